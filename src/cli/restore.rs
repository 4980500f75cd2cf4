//! `restore`: a backup, checked, in the place of the data file.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::cli::connect::Connection;
use crate::cli::error::CliError;
use crate::cli::progress::Progress;
use crate::clock::Clock;
use crate::store::{Candidate, Contents, Existing, OwnFiles, RestoreError};

#[derive(Debug, Args)]
pub(super) struct Restore {
    #[command(flatten)]
    connection: Connection,
    /// Path of the backup. It stays as it is.
    file: PathBuf,
    /// Check the backup, and change nothing.
    #[arg(long, conflicts_with = "replace")]
    check: bool,
    /// Replace an existing data file, and keep that one under another name.
    #[arg(long)]
    replace: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
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
        let directory = self.connection.idle_directory().await?;
        if let Some(name) = OwnFiles::in_directory(directory.clone()).name_of(&self.file) {
            return Err(CliError::OwnFile { file: self.file, name, directory });
        }
        let size = std::fs::metadata(&self.file).map_or(0, |metadata| metadata.len());
        let progress = Progress::of(size, "checking");
        let candidate = Candidate::check(&self.file, &directory, |bytes| progress.at(bytes))?;
        drop(progress);
        if self.check {
            return Ok(format.show(&Done::of(candidate.contents(), None, false), |done| {
                format!("{} is good: {}\n", self.file.display(), done.holds())
            }));
        }
        let existing = if self.replace { Existing::Replace } else { Existing::Keep };
        let now = Clock::system().now();
        let restored = candidate.install(existing, now).map_err(|error| match error {
            error @ RestoreError::Exists { .. } => CliError::WouldReplace(error),
            error => error.into(),
        })?;
        Ok(format.show(&Done::of(&restored.contents, restored.kept, true), |done| {
            let kept = done.kept.as_ref().map_or(String::new(), |kept| {
                format!("The data file that was there is kept as {}.\n", kept.display())
            });
            format!("restored: {}\n{kept}", done.holds())
        }))
    }
}

impl Done {
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
        let newest = newest.map_or(String::new(), |newest| format!(" (the newest of {newest})"));
        let damaged = match self.damaged {
            0 => String::new(),
            1 => "; 1 row cannot be read".to_owned(),
            more => format!("; {more} rows cannot be read"),
        };
        format!(
            "{} messages{newest}, {} organisations, {} keys, {} domains, {} suppressions{damaged}",
            self.messages, self.organisations, self.keys, self.domains, self.suppressions
        )
    }
}
