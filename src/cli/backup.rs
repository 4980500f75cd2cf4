//! `backup`: everything that is stored, in one file.
//!
//! The rows of one moment come from whoever has the file open, and are written here, by whoever
//! runs the command: the service needs no access to where backups are kept.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::cli::connect::Connection;
use crate::cli::destination::Destination;
use crate::cli::error::CliError;
use crate::store::{Existing, FileCopy};

#[derive(Debug, Args)]
pub(super) struct Backup {
    #[command(flatten)]
    connection: Connection,
    /// Path of the backup. Only its owner may read it.
    file: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Done {
    file: PathBuf,
    rows: u64,
    bytes: u64,
}

impl Backup {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let mut session = self.connection.open().await?;
        let format = session.format();
        let existing = if self.force { Existing::Replace } else { Existing::Keep };
        let own = session.own_files().await?;
        let path = match Destination::of(&self.file, existing, own.as_ref())? {
            Destination::File(path) => path,
            Destination::Output | Destination::Stream(_) => {
                return Err(CliError::NotAFile { file: self.file });
            }
        };
        let mut copy = FileCopy::begin(&path, existing)?;
        let rows = session.copy_to(&mut copy).await?;
        let bytes = copy.finish(rows)?;
        let done = Done { file: self.file, rows, bytes };
        Ok(format.show(&done, |done| {
            format!("{} has {} rows in {} bytes\n", done.file.display(), done.rows, done.bytes)
        }))
    }
}
