//! `backup`, `restore` and `compact`: copies of everything that is stored.
//!
//! The process of the command writes the backup: the service needs no access to where backups are
//! kept. `compact` makes a new file row by row beside the old one, which stays open until the new
//! one takes its place: its lock keeps a service from starting meanwhile.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::connect::Connection;
use crate::destination::{Destination, refuse_own};
use crate::error::CliError;
use crate::output::Progress;
use pillarbox_admin::conditions::several;
use pillarbox_runtime::clock::Clock;
use pillarbox_store::{
    Candidate, Contents, Existing, FILE_NAME, FileCopy, OwnFiles, RestoreError, Store, Unclosed,
};

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
struct BackupDone {
    file: PathBuf,
    rows: u64,
    bytes: u64,
}

impl Backup {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let session = self.connection.open().await?;
        let existing = if self.force { Existing::Replace } else { Existing::Keep };
        let own = session.own_files().await?;
        let path = match Destination::of(&self.file, existing, own.as_ref())? {
            Destination::File(path) => path,
            Destination::Output | Destination::Stream(_) => {
                let rule = "is not a regular file, which a backup needs; name another file";
                return Err(CliError::Refused(format!("{} {rule}", self.file.display())));
            }
        };
        let mut copy = FileCopy::begin(&path, existing)?;
        let rows = session.copy_to(&mut copy).await?;
        let bytes = copy.finish(rows)?;
        let done = BackupDone { file: self.file, rows, bytes };
        Ok(session.show(&done, |done| {
            let rows = several(done.rows, "row");
            format!("{} has {rows} in {} bytes\n", done.file.display(), done.bytes)
        }))
    }
}

#[derive(Debug, Args)]
pub(super) struct Restore {
    #[command(flatten)]
    connection: Connection,
    /// Path of the backup. It stays as it is.
    file: PathBuf,
    /// Check the backup, and change nothing. The service may run meanwhile.
    #[arg(long, conflicts_with = "replace")]
    check: bool,
    /// Replace an existing data file, and keep that one under another name.
    #[arg(long)]
    replace: bool,
    /// Restore a data file that was copied without its journal. What the service accepted in its
    /// last moments is lost.
    #[arg(long)]
    accept_loss: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Restored {
    messages: u64,
    newest_message: Option<String>,
    organisations: usize,
    keys: usize,
    domains: usize,
    suppressions: u64,
    /// Rows that cannot be read.
    damaged: usize,
    kept: Option<PathBuf>,
    installed: bool,
}

impl Restore {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let format = self.connection.format();
        let unclosed = if self.accept_loss { Unclosed::AcceptLoss } else { Unclosed::Refuse };
        if self.check {
            // A running service does not matter: nothing is copied, and nothing is written.
            if let Some(own) = self.connection.own_files().await? {
                refuse_own(&own, &self.file)?;
            }
            let contents = Contents::of(&self.file, unclosed)?;
            return Ok(format.show(&Restored::of(&contents, None, false), |done| {
                format!("{} is good: {}\n", self.file.display(), done.holds())
            }));
        }
        let directory = self.connection.idle_directory().await?;
        refuse_own(&OwnFiles::in_directory(directory.clone()), &self.file)?;
        let candidate = check(&self.file, &directory, unclosed)?;
        let existing = if self.replace { Existing::Replace } else { Existing::Keep };
        let now = Clock::system().now();
        let restored = candidate.install(existing, now).map_err(|error| match error {
            error @ RestoreError::Exists { .. } => CliError::Refused(format!(
                "{error}; --replace puts the backup in its place, and keeps the old data file \
                 under another name"
            )),
            error => error.into(),
        })?;
        Ok(format.show(&Restored::of(&restored.contents, restored.kept, true), |done| {
            let kept = done.kept.as_ref().map_or(String::new(), |kept| {
                format!("The data file that was there is kept as {}.\n", kept.display())
            });
            format!("restored {}\n{kept}Start the service again.\n", done.holds())
        }))
    }
}

/// Checks a backup or a data file, and shows how far it is, as a candidate for a directory.
pub(super) fn check(
    file: &Path,
    directory: &Path,
    unclosed: Unclosed,
) -> Result<Candidate, RestoreError> {
    let size = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    let progress = Progress::of(size, "checking");
    Candidate::check(file, directory, unclosed, |bytes| progress.at(bytes))
}

impl Restored {
    fn of(contents: &Contents, kept: Option<PathBuf>, installed: bool) -> Self {
        Self {
            messages: contents.messages,
            newest_message: contents.newest.as_ref().map(ToString::to_string),
            organisations: contents.organisations,
            keys: contents.api_keys,
            domains: contents.domains,
            suppressions: contents.suppressions,
            damaged: contents.damaged,
            kept,
            installed,
        }
    }

    fn holds(&self) -> String {
        let newest = self.newest_message.as_ref();
        let newest =
            newest.map_or(String::new(), |newest| format!(" (the newest accepted at {newest})"));
        let damaged = match self.damaged {
            0 => String::new(),
            1 => "; 1 row cannot be read".to_owned(),
            more => format!("; {more} rows cannot be read"),
        };
        format!(
            "{}{newest}, {}, {}, {}, {}{damaged}",
            several(self.messages, "message"),
            several(self.organisations as u64, "organisation"),
            several(self.keys as u64, "key"),
            several(self.domains as u64, "domain"),
            several(self.suppressions, "suppression")
        )
    }
}

#[derive(Debug, Args)]
pub(super) struct Compact {
    #[command(flatten)]
    connection: Connection,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Compacted {
    bytes_before: u64,
    bytes_after: u64,
}

impl Compact {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let (session, directory) = self.connection.open_idle().await?;
        let path = directory.join(FILE_NAME);
        let bytes_before = std::fs::metadata(&path)
            .map_err(|source| CliError::Write { path: path.clone(), source })?
            .len();
        let mut copy = Store::replacement(&directory)?;
        let rows = session.copy_to(&mut copy).await?;
        let bytes_after = copy.finish(rows)?;
        Ok(session.show(&Compacted { bytes_before, bytes_after }, |done| {
            let Compacted { bytes_before, bytes_after } = done;
            format!("{} had {bytes_before} bytes and has {bytes_after} now\n", path.display())
        }))
    }
}
