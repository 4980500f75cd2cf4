//! `dead-letter`: documents of the provider that could not be read.

use clap::{Args, Subcommand};

use crate::admin::dead_letter::{
    DeadLetterClear, DeadLetterList, DeadLetterShow, DeadLetterShown, DeadLetters, Letters,
};
use crate::cli::connect::{Commands, Session};
use crate::cli::error::CliError;
use crate::cli::output::{Table, escaped};

/// How much of an id a table shows, in characters; it does for the other commands.
const ID_CHARS: usize = 12;

#[derive(Debug, Subcommand)]
pub(super) enum DeadLetter {
    /// List dead letters, newest first.
    List,
    /// Show a dead letter with its document.
    Show {
        /// Id, or the beginning of the id.
        id: String,
    },
    /// Delete dead letters. The others are deleted after 90 days.
    Clear(Clear),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Clear {
    /// Ids, or the beginnings of ids.
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All dead letters.
    #[arg(long)]
    all: bool,
}

impl Commands for DeadLetter {
    async fn run(self, session: &Session) -> Result<String, CliError> {
        match self {
            Self::List => session.run(DeadLetterList {}, table).await,
            Self::Show { id } => session.run(DeadLetterShow { id }, with_document).await,
            Self::Clear(Clear { ids, all }) => {
                let letters = if all { Letters::All } else { Letters::Ids(ids) };
                let cleared = session.run(DeadLetterClear { letters }, |cleared| {
                    format!("cleared {} dead letters\n", cleared.cleared)
                });
                cleared.await
            }
        }
    }
}

fn table(list: &DeadLetters) -> String {
    let mut table = Table::new(["ID", "RECEIVED", "BYTES", "REASON"]);
    for letter in &list.dead_letters {
        let id = letter.id.get(..ID_CHARS).unwrap_or(&letter.id);
        table.row([id, &letter.received_at, &letter.length.to_string(), &letter.reason]);
    }
    table.or("no dead letters")
}

fn with_document(shown: &DeadLetterShown) -> String {
    let DeadLetterShown { letter, document } = shown;
    let mut lines = vec![
        format!("id:        {}", letter.id),
        format!("received:  {}", letter.received_at),
        format!("reason:    {}", escaped(&letter.reason)),
    ];
    if document.len() < letter.length {
        lines.push(format!("length:    {}, of which {} are kept", letter.length, document.len()));
    }
    lines.push(String::new());
    lines.extend(document.lines().map(escaped));
    lines.join("\n") + "\n"
}
