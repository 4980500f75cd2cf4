//! `compact`: the data file, as small as it can be.
//!
//! A new file is made row by row beside the old one and takes its place at once, so that nothing
//! can be lost on the way. The old one stays open until then: its lock keeps a service from
//! starting meanwhile.

use clap::Args;
use serde::Serialize;

use crate::cli::connect::Connection;
use crate::cli::error::CliError;
use crate::store::{FILE_NAME, Store};

#[derive(Debug, Args)]
pub(super) struct Compact {
    #[command(flatten)]
    connection: Connection,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    bytes_before: u64,
    bytes_after: u64,
}

impl Compact {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let (mut session, directory) = self.connection.open_idle().await?;
        let path = directory.join(FILE_NAME);
        let bytes_before = std::fs::metadata(&path)
            .map_err(|source| CliError::Write { path: path.clone(), source })?
            .len();
        let mut copy = Store::replacement(&directory)?;
        let rows = session.copy_to(&mut copy).await?;
        let bytes_after = copy.finish(rows)?;
        Ok(session.show(&Done { bytes_before, bytes_after }, |done| {
            let Done { bytes_before, bytes_after } = done;
            format!("{} had {bytes_before} bytes and has {bytes_after} now\n", path.display())
        }))
    }
}
