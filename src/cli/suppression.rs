//! `suppression`: addresses that must not be written to.

use std::io::{self, Write};

use clap::{Args, Subcommand};

use crate::admin::Call;
use crate::admin::suppression::{
    AtSes, MAX_ADDRESSES, Scope, SuppressionAdd, SuppressionChange, SuppressionChanges,
    SuppressionClearAtSes, SuppressionList, SuppressionOutcome, SuppressionRemove, Suppressions,
};
use crate::cli::connect::{Commands, Session};
use crate::cli::error::CliError;
use crate::cli::output::{Progress, Table};

mod csv;
mod export;
mod import;

/// Stands for standard input or output in place of a file.
const STANDARD: &str = "-";

#[derive(Debug, Subcommand)]
pub(super) enum Suppression {
    /// Suppress addresses.
    Add(Change),
    /// Remove suppressions.
    Remove(Remove),
    /// List suppressions.
    List(Filter),
    /// Suppress the addresses of a CSV file. Existing suppressions stay as they are.
    Import(import::Import),
    /// Write suppressions to a CSV file.
    Export(export::Export),
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("whose").required(true).args(["org", "all"])))]
pub(super) struct Change {
    #[command(flatten)]
    whose: Whose,
    /// Addresses.
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<String>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Whose {
    /// Organisation that must not write to the addresses.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// All organisations.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct Filter {
    /// Only suppressions of this organisation.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only suppressions for all organisations.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    #[command(flatten)]
    change: Change,
    /// Also remove the addresses from the SES account's own suppression list, one a second.
    #[arg(long)]
    at_ses: bool,
}

impl Change {
    fn scope(&self) -> Scope {
        self.whose.scope().unwrap_or(Scope::All)
    }
}

impl Whose {
    fn scope(&self) -> Option<Scope> {
        let for_all = self.all.then_some(Scope::All);
        self.org.clone().map(Scope::Organisation).or(for_all)
    }
}

impl Filter {
    fn scope(&self) -> Option<Scope> {
        let for_all = self.all.then_some(Scope::All);
        self.org.clone().map(Scope::Organisation).or(for_all)
    }
}

impl Commands for Suppression {
    async fn run(self, session: &Session) -> Result<String, CliError> {
        match self {
            Self::Add(given) => {
                let add = |scope, addresses| SuppressionAdd { scope, addresses };
                Ok(session.show(&change(session, &given, add).await?, shown))
            }
            Self::Remove(given) => remove(session, given).await,
            Self::List(filter) => list(session, &filter).await,
            Self::Import(given) => import::run(session, given).await,
            Self::Export(given) => export::run(session, given).await,
        }
    }
}

async fn change<C: Call<Answer = SuppressionChanges>>(
    session: &Session,
    given: &Change,
    call: impl Fn(Scope, Vec<String>) -> C,
) -> Result<SuppressionChanges, CliError> {
    let mut all = SuppressionChanges { addresses: Vec::new() };
    for part in given.addresses.chunks(MAX_ADDRESSES) {
        let changes = session.call(call(given.scope(), part.to_vec())).await?;
        all.addresses.extend(changes.addresses);
    }
    Ok(all)
}

fn shown(all: &SuppressionChanges) -> String {
    let mut table = Table::new(["ADDRESS", "OUTCOME", "AT SES"]);
    for change in &all.addresses {
        let outcome = match change.outcome {
            SuppressionOutcome::Added => "suppressed",
            SuppressionOutcome::AlreadyThere => "was suppressed already; that entry stays",
            SuppressionOutcome::Removed => "suppressed no more",
            SuppressionOutcome::NotThere => "was not suppressed",
            SuppressionOutcome::StillForAll => {
                "still suppressed, for all organisations; --all ends that"
            }
        };
        let at_ses = match &change.at_ses {
            None => "not asked".to_owned(),
            Some(AtSes::Cleared) => "suppressed no more".to_owned(),
            Some(AtSes::NotThere) => "was not suppressed".to_owned(),
            Some(AtSes::Failed { message }) => format!("perhaps suppressed still: {message}"),
        };
        table.row([&change.address, outcome, &at_ses]);
    }
    table.or("nothing to do")
}

async fn list(session: &Session, filter: &Filter) -> Result<String, CliError> {
    let scope = filter.scope();
    let mut all = Suppressions { suppressions: Vec::new(), next: None };
    loop {
        let after = all.next.take();
        let page = session.call(SuppressionList { scope: scope.clone(), after }).await?;
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

async fn remove(session: &Session, given: Remove) -> Result<String, CliError> {
    if given.at_ses && session.is_on_file() {
        return Err(CliError::Refused(
            "no service runs, and only a running service asks SES: start it, or leave out \
             --at-ses. Nothing was changed"
                .to_owned(),
        ));
    }
    let remove = |scope, addresses| SuppressionRemove { scope, addresses };
    let mut changes = change(session, &given.change, remove).await?;
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

/// One address a call: SES takes one such call a second.
async fn clear(session: &Session, changes: &mut SuppressionChanges) -> Result<(), CliError> {
    let total = u64::try_from(changes.addresses.len()).unwrap_or(u64::MAX);
    let progress = Progress::of(total, "clearing at SES");
    for (done, change) in (1..).zip(&mut changes.addresses) {
        let address = change.address.clone();
        change.at_ses = Some(session.call(SuppressionClearAtSes { address }).await?);
        progress.at(done);
    }
    Ok(())
}
