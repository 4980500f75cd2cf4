//! `suppression`: addresses that must not be written to.

use clap::{Args, Subcommand};

use crate::admin::wire::{
    MAX_ADDRESSES, Request, Response, Scope, SuppressionChanges, SuppressionList,
    SuppressionOutcome,
};
use crate::cli::error::CliError;
use crate::cli::reach::{Reach, Session};
use crate::cli::table::Table;

#[derive(Debug, Args)]
pub(super) struct Suppression {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Suppress addresses.
    Add(Change),
    /// End suppressions.
    Remove(Change),
    /// List suppressions.
    List(Filter),
}

#[derive(Debug, Args)]
struct Change {
    #[command(flatten)]
    whose: Whose,
    /// The addresses.
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<String>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Whose {
    /// The organisation that must not write to them.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Every organisation.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Filter {
    /// Only this organisation's own.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only those for every organisation.
    #[arg(long)]
    all: bool,
}

impl Change {
    fn scope(&self) -> Scope {
        self.whose.org.clone().map_or(Scope::All, Scope::Organisation)
    }
}

impl Suppression {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let mut session = self.reach.open().await?;
        match self.action {
            Action::Add(given) => {
                change(&mut session, &given, |scope, addresses| Request::SuppressionAdd {
                    scope,
                    addresses,
                })
                .await
            }
            Action::Remove(given) => {
                change(&mut session, &given, |scope, addresses| Request::SuppressionRemove {
                    scope,
                    addresses,
                })
                .await
            }
            Action::List(filter) => list(&mut session, filter).await,
        }
    }
}

async fn change(
    session: &mut Session,
    given: &Change,
    request: impl Fn(Scope, Vec<String>) -> Request,
) -> Result<String, CliError> {
    let mut all = SuppressionChanges { addresses: Vec::new() };
    for part in given.addresses.chunks(MAX_ADDRESSES) {
        match session.ask(request(given.scope(), part.to_vec())).await? {
            Response::SuppressionsChanged(changes) => all.addresses.extend(changes.addresses),
            _ => return Err(CliError::Unexpected),
        }
    }
    Ok(session.show(&all, |all| {
        let mut table = Table::new(["ADDRESS", "OUTCOME"]);
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
            table.row([&change.address, outcome]);
        }
        table.or("nothing to do")
    }))
}

async fn list(session: &mut Session, filter: Filter) -> Result<String, CliError> {
    let scope = match (filter.org, filter.all) {
        (Some(name), _) => Some(Scope::Organisation(name)),
        (None, true) => Some(Scope::All),
        (None, false) => None,
    };
    let mut all = SuppressionList { suppressions: Vec::new(), next: None };
    loop {
        let after = all.next.take();
        match session.ask(Request::SuppressionList { scope: scope.clone(), after }).await? {
            Response::Suppressions(page) => {
                all.suppressions.extend(page.suppressions);
                all.next = page.next;
            }
            _ => return Err(CliError::Unexpected),
        }
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
