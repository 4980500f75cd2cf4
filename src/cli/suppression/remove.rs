//! `suppression remove`: ends suppressions, here and where asked for on SES's own list.

use std::io::{self, Write};

use clap::Args;

use crate::admin::wire::{AtSes, Request, Response, SuppressionChange, SuppressionChanges};
use crate::cli::connect::Session;
use crate::cli::error::CliError;
use crate::cli::progress::Progress;
use crate::cli::suppression::{Change, change, shown};

#[derive(Debug, Args)]
pub(super) struct Remove {
    #[command(flatten)]
    change: Change,
    /// Also remove the addresses from the SES account's own suppression list, one a second.
    #[arg(long)]
    at_ses: bool,
}

pub(super) async fn run(session: &mut Session, given: Remove) -> Result<String, CliError> {
    if given.at_ses && session.is_on_file() {
        return Err(CliError::Refused(
            "no service runs, and only a running service asks SES: start it, or leave out \
             --at-ses. Nothing was changed"
                .to_owned(),
        ));
    }
    let request = |scope, addresses| Request::SuppressionRemove { scope, addresses };
    let mut changes = change(session, &given.change, request).await?;
    if given.at_ses {
        clear(session, &mut changes).await?;
    }
    let text = session.show(&changes, shown);
    match changes.addresses.iter().filter(|change| has_failed(change)).count() {
        0 => Ok(text),
        addresses => {
            // Its reader wants the answer also where it is not all good.
            let _ = io::stdout().write_all(text.as_bytes());
            Err(CliError::NotClearedAtSes { addresses })
        }
    }
}

fn has_failed(change: &SuppressionChange) -> bool {
    matches!(change.at_ses, Some(AtSes::Failed { .. }))
}

/// One address a request: SES takes one such call a second.
async fn clear(session: &mut Session, changes: &mut SuppressionChanges) -> Result<(), CliError> {
    let total = u64::try_from(changes.addresses.len()).unwrap_or(u64::MAX);
    let progress = Progress::of(total, "clearing at SES");
    for (done, change) in (1..).zip(&mut changes.addresses) {
        let request = Request::SuppressionClearAtSes { address: change.address.clone() };
        let Response::SuppressionClearedAtSes(outcome) = session.ask(request).await? else {
            return Err(CliError::Unexpected);
        };
        change.at_ses = Some(outcome);
        progress.at(done);
    }
    Ok(())
}
