//! `clock`: confirms the wall clock.

use clap::{Args, Subcommand};

use crate::admin::wire::{Request, Response};
use crate::cli::connect::Connection;
use crate::cli::error::CliError;

#[derive(Debug, Args)]
pub(super) struct Clock {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Confirm that the clock's time is right. Records and idempotency keys that are expired by this
    /// time are deleted. Messages that were accepted while the clock was in doubt are kept for
    /// their whole time.
    Confirm,
}

impl Clock {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let mut session = self.connection.open().await?;
        let request = match self.action {
            Action::Confirm => Request::ClockConfirm {},
        };
        match session.ask(request).await? {
            Response::ClockConfirmed(confirmed) => {
                Ok(session.show(&confirmed, |confirmed| match &confirmed.jump {
                    Some(jump) => format!(
                        "{} is taken as right; nothing was purged since {}\n",
                        confirmed.now, jump.since
                    ),
                    None => format!("the clock, {}, was not in doubt\n", confirmed.now),
                }))
            }
            _ => Err(CliError::Unexpected),
        }
    }
}
