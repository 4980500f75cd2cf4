//! `suppression`: addresses that must not be written to.

use clap::Args;

use crate::connect::Session;
use crate::error::CliError;
use crate::output::{Progress, Table};
use pillarbox_admin::suppression::{
    AtSes, MAX_ADDRESSES, Scope, SuppressionChange, SuppressionChanges, SuppressionOutcome,
    Suppressions,
};
use pillarbox_admin::{
    Call, OrganisationList, SuppressionAdd, SuppressionClearAtSes, SuppressionList,
    SuppressionRemove,
};

mod csv;
mod export;
mod import;
mod text;
mod values;

pub(super) use export::{Export, export};
pub(super) use import::{Import, import};

/// Name of standard input or output in place of a file.
const STANDARD: &str = "-";

#[derive(Debug, Args)]
pub(super) struct Remove {
    #[command(flatten)]
    call: SuppressionRemove,
    /// Also remove the addresses from the SES account's own suppression list, one a second.
    #[arg(long)]
    at_ses: bool,
}

pub(super) async fn add(session: &Session, given: SuppressionAdd) -> Result<String, CliError> {
    let SuppressionAdd { scope, addresses } = given;
    let call = |addresses| SuppressionAdd { scope: scope.clone(), addresses };
    Ok(session.show(&change(session, &addresses, call).await?, shown))
}

async fn change<C: Call<Answer = SuppressionChanges>>(
    session: &Session,
    addresses: &[String],
    call: impl Fn(Vec<String>) -> C,
) -> Result<SuppressionChanges, CliError> {
    let mut all = SuppressionChanges { addresses: Vec::new() };
    for part in addresses.chunks(MAX_ADDRESSES) {
        all.addresses.extend(session.call(call(part.to_vec())).await?.addresses);
    }
    Ok(all)
}

fn shown(all: &SuppressionChanges) -> String {
    let mut table = Table::new(["ADDRESS", "OUTCOME", "AT SES"]);
    for change in &all.addresses {
        let outcome = match change.outcome {
            SuppressionOutcome::Added => "suppressed",
            SuppressionOutcome::AlreadyThere => "was already suppressed; that entry stays",
            SuppressionOutcome::Removed => "suppression removed",
            SuppressionOutcome::NotThere => "there was no such suppression",
            SuppressionOutcome::StillForAll => {
                "still suppressed for all organisations; to change that: --all"
            }
        };
        let at_ses = match &change.at_ses {
            None => "not asked".to_owned(),
            Some(AtSes::Cleared) => "not suppressed any more".to_owned(),
            Some(AtSes::NotThere) => "was not suppressed".to_owned(),
            Some(AtSes::Failed { message }) => format!("may still be suppressed: {message}"),
        };
        table.row([&change.address, outcome, &at_ses]);
    }
    table.or("nothing to do")
}

pub(super) async fn list(session: &Session, given: SuppressionList) -> Result<String, CliError> {
    let mut all = Suppressions { suppressions: Vec::new(), next: None };
    loop {
        let call = SuppressionList { after: all.next.take(), ..given.clone() };
        let page = session.call(call).await?;
        all.suppressions.extend(page.suppressions);
        all.next = page.next;
        if all.next.is_none() {
            break;
        }
    }
    Ok(session.show(&all, |all| {
        let mut table = Table::new(["ADDRESS", "ORGANISATION", "REASON", "SINCE", "MESSAGE"]);
        for suppression in &all.suppressions {
            table.row([
                &suppression.address,
                suppression.organisation.as_deref().unwrap_or("(all)"),
                &suppression.reason,
                &suppression.since,
                suppression.message.as_deref().unwrap_or_default(),
            ]);
        }
        table.or("no suppressions")
    }))
}

pub(super) async fn remove(session: &Session, given: Remove) -> Result<String, CliError> {
    if given.at_ses && session.is_on_file() {
        return Err(CliError::Refused(
            "no service is running, and only a running service asks SES: start it, or leave out \
             --at-ses. Nothing was changed"
                .to_owned(),
        ));
    }
    if let (true, Scope::Organisation(name)) = (given.at_ses, &given.call.scope) {
        require_production(session, name).await?;
    }
    let SuppressionRemove { scope, addresses } = given.call;
    let call = |addresses| SuppressionRemove { scope: scope.clone(), addresses };
    let mut changes = change(session, &addresses, call).await?;
    if given.at_ses {
        clear(session, &mut changes).await?;
    }
    let report = session.show(&changes, shown);
    let has_failed =
        |change: &&SuppressionChange| matches!(change.at_ses, Some(AtSes::Failed { .. }));
    match changes.addresses.iter().filter(has_failed).count() {
        0 => Ok(report),
        addresses => Err(CliError::Reported {
            report,
            what: format!(
                "pillarbox did its own part, but {addresses} of the addresses may still be on \
                 SES's list; correct the error shown above and repeat the command for each of these"
            ),
        }),
    }
}

/// Refuses a test organisation: SES's list knows nothing of its mail, and protects the others.
async fn require_production(session: &Session, name: &str) -> Result<(), CliError> {
    let all = session.call(OrganisationList {}).await?.organisations;
    if all.iter().any(|organisation| organisation.name == name && organisation.test) {
        return Err(CliError::Refused(format!(
            "{name} is a test organisation, whose mail never reaches SES: leave out --at-ses. \
             Nothing was changed"
        )));
    }
    Ok(())
}

/// One address a call: SES takes one such call a second.
async fn clear(session: &Session, changes: &mut SuppressionChanges) -> Result<(), CliError> {
    let progress = Progress::of(changes.addresses.len() as u64, "clearing at SES");
    for (done, change) in (1..).zip(&mut changes.addresses) {
        let address = change.address.clone();
        change.at_ses = Some(session.call(SuppressionClearAtSes { address }).await?);
        progress.at(done);
    }
    Ok(())
}
