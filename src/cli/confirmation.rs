//! Confirmation of commands that end messages: on a terminal they say how many, and ask. Also their
//! error if a node did not answer.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;

use crate::connect::Session;
use crate::error::CliError;
use pillarbox_admin::MessageCount;
use pillarbox_admin::message::QueuedMessages;

/// End of messages on a node that did not answer, once their organisation or domain is removed.
pub(super) const ENDS_BY_ITSELF: &str = "a node that does not answer stops its messages itself, \
                                         instead of sending them; they are not counted here";

#[derive(Debug, Args)]
pub(super) struct Confirmation {
    /// Continue without asking. Without a terminal, the command never asks.
    #[arg(long)]
    yes: bool,
    /// Print what the command would delete or stop, and change nothing.
    #[arg(long, conflicts_with = "yes")]
    pub(super) dry_run: bool,
}

// Call that ends messages, once that is confirmed. No doc comment: the help is the call's.
#[derive(Debug, Args)]
pub(super) struct Confirmed<C: Args> {
    #[command(flatten)]
    pub(super) call: C,
    #[command(flatten)]
    pub(super) confirmation: Confirmation,
}

impl Confirmation {
    /// Prints the number of messages that a command ends, and asks whether to go on. Of a dry run,
    /// which stops here, returns what to print.
    pub(super) async fn ask(
        &self,
        session: &Session,
        messages: QueuedMessages,
        what: &str,
    ) -> Result<Option<String>, CliError> {
        if !self.dry_run && !self.asks() {
            return Ok(None);
        }
        let counted = session.call(MessageCount { messages }).await?;
        let mut said = match counted.pending {
            1 => format!("{what} stops 1 message that is not sent yet."),
            count => format!("{what} stops {count} messages that are not sent yet."),
        };
        if !counted.nodes_without_answer.is_empty() {
            let silent = counted.nodes_without_answer.join(", ");
            let _ = write!(said, " More may wait on nodes that do not answer: {silent}.");
        }
        if self.dry_run {
            return Ok(Some(session.show(&counted, |_| format!("{said}\n"))));
        }
        Self::confirm(&said).map(|()| None)
    }

    /// Returns true if standard input and error are a terminal, so that a person can answer.
    pub(super) fn asks(&self) -> bool {
        !self.yes && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Says what a command does, and asks whether to go on.
    pub(super) fn confirm(said: &str) -> Result<(), CliError> {
        // Standard output has the command's answer alone.
        let mut errors = io::stderr();
        let asked = write!(errors, "{said} Continue? [y/N] ").and_then(|()| errors.flush());
        asked.map_err(CliError::Print)?;
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer);
        match (read, answer.trim().to_ascii_lowercase().as_str()) {
            (Ok(_), "y" | "yes") => Ok(()),
            _ => Err(CliError::Refused("not confirmed: nothing was changed".to_owned())),
        }
    }
}

/// Returns what to print, as an error if a node did not answer.
pub(super) fn on_all_nodes(
    report: String,
    silent: &[String],
    advice: &str,
) -> Result<String, CliError> {
    if silent.is_empty() {
        return Ok(report);
    }
    let nodes = match silent {
        [node] => format!("node {node} does not answer"),
        nodes => format!("nodes {} do not answer", nodes.join(", ")),
    };
    Err(CliError::Reported { report, what: format!("{nodes}: {advice}") })
}
