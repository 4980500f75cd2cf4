//! `suppression`: addresses that must not be written to.

use clap::{Args, Subcommand};

use crate::admin::wire::{
    AtSes, MAX_ADDRESSES, Request, Response, Scope, SuppressionChanges, SuppressionList,
    SuppressionOutcome,
};
use crate::cli::connect::{Connection, Session};
use crate::cli::error::CliError;
use crate::cli::table::Table;

mod csv;
mod export;
mod import;
mod remove;

/// Stands for standard input or output in place of a file.
const STANDARD: &str = "-";

#[derive(Debug, Args)]
pub(super) struct Suppression {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Suppress addresses.
    Add(Change),
    /// Remove suppressions.
    Remove(remove::Remove),
    /// List suppressions.
    List(Filter),
    /// Suppress the addresses of a CSV file. Existing suppressions stay as they are.
    Import(import::Import),
    /// Write suppressions to a CSV file.
    Export(export::Export),
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("whose").required(true).args(["org", "all"])))]
struct Change {
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
struct Filter {
    /// Only suppressions of this organisation.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only suppressions for all organisations.
    #[arg(long)]
    all: bool,
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

impl Suppression {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let mut session = self.connection.open().await?;
        match self.action {
            Action::Add(given) => {
                let request = |scope, addresses| Request::SuppressionAdd { scope, addresses };
                let changes = change(&mut session, &given, request).await?;
                Ok(session.show(&changes, shown))
            }
            Action::Remove(given) => remove::run(&mut session, given).await,
            Action::List(filter) => list(&mut session, &filter).await,
            Action::Import(given) => import::run(&mut session, given).await,
            Action::Export(given) => export::run(&mut session, given).await,
        }
    }
}

async fn change(
    session: &mut Session,
    given: &Change,
    request: impl Fn(Scope, Vec<String>) -> Request,
) -> Result<SuppressionChanges, CliError> {
    let mut all = SuppressionChanges { addresses: Vec::new() };
    for part in given.addresses.chunks(MAX_ADDRESSES) {
        match session.ask(request(given.scope(), part.to_vec())).await? {
            Response::SuppressionsChanged(changes) => all.addresses.extend(changes.addresses),
            _ => return Err(CliError::Unexpected),
        }
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

async fn list(session: &mut Session, filter: &Filter) -> Result<String, CliError> {
    let scope = filter.scope();
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
