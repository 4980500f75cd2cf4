//! `cluster`: brings a data file into the database of several nodes.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::backup;
use crate::connect::{self, Format};
use crate::error::CliError;
use crate::output::Progress;
use pillarbox_admin::conditions::several;
use pillarbox_config::StoreConfig;
use pillarbox_runtime::clock::Clock;
use pillarbox_service as service;
use pillarbox_store::{Existing, ImportError, Imported, Store, Unclosed};

#[derive(Debug, Subcommand)]
pub(super) enum Cluster {
    /// Import a backup (`pillarbox backup`) into an empty database. Start no node before the import
    /// ends.
    Import(Import),
}

#[derive(Debug, Args)]
pub(super) struct Import {
    /// Configuration file of a node. It names the database.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the backup. It stays as it is. It is copied into `TMPDIR` or, if nothing can be
    /// written to `TMPDIR`, into the node's data directory.
    file: PathBuf,
    /// Import a data file that was copied without its journal. What the service accepted in its last
    /// moments is lost.
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Import {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let config = connect::load(self.config.as_deref())?;
        let StoreConfig::Postgres(postgres) = &config.store else {
            let rule = "the configuration has no database: set [store] engine = \"postgres\" and \
                        [store.postgres], as on each node";
            return Err(CliError::Usage(rule.to_owned()));
        };
        let server = service::postgres_server(postgres)?;
        let refused = |error: ImportError| CliError::Refused(refusal(&error));
        // Before the file is read: that may take long.
        Store::can_import_into(&server).await.map_err(refused)?;
        // A copy, in which an old format is brought to this one.
        let directory = tempfile::tempdir().or_else(|_| tempfile::tempdir_in(&config.data_dir));
        let directory = directory
            .map_err(|source| CliError::Write { path: config.data_dir.clone(), source })?;
        let unclosed = if self.accept_loss { Unclosed::AcceptLoss } else { Unclosed::Refuse };
        let candidate = backup::check(&self.file, directory.path(), unclosed)?;
        let now = Clock::system().now();
        candidate.install(Existing::Keep, now)?;
        let store = connect::observe(directory.path(), now)?;
        let progress = Progress::counting("importing rows:");
        let imported = store.import_into(&server, |rows| progress.at(rows)).await;
        drop(progress);
        let imported = imported.map_err(refused)?;
        Ok(Format::of(self.json).show(&imported, told))
    }
}

/// Reason why nothing was imported, and what to do.
fn refusal(error: &ImportError) -> String {
    let advice = match error {
        ImportError::File(_) => "check the file: pillarbox restore --check FILE",
        ImportError::Nodes(_) => {
            "stop these nodes normally, then try again. If one of them crashed, start it again \
             before you stop it"
        }
        ImportError::NotEmpty => "create an empty database, and name it in store.postgres.database",
        ImportError::Server(_) => "check store.postgres and the server's log",
        ImportError::Unanswered => {
            return format!(
                "{error}. To find out, start a node and run pillarbox org list: if it shows the \
                 organisations, everything was imported"
            );
        }
        ImportError::SameEngine => "give a data file",
    };
    format!("nothing was imported: {error}; {advice}")
}

fn told(done: &Imported) -> String {
    let mut text = format!(
        "imported {}, {}, {} and {} ({})\n",
        several(done.messages, "message"),
        several(done.organisations, "organisation"),
        several(done.keys, "key"),
        several(done.suppressions, "suppression"),
        several(done.rows, "row")
    );
    if done.pending > 0 {
        let _ = writeln!(
            text,
            "messages that were not sent yet: {}; their bodies are gone, so these messages fail \
             when the first node starts",
            done.pending
        );
    }
    if done.left_out > 0 {
        let _ = writeln!(text, "left out {}, which cannot be read", several(done.left_out, "row"));
    }
    text + "Start the nodes.\n"
}
