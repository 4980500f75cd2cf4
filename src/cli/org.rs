//! `org`: organisations.

use clap::Subcommand;

use crate::admin::message::QueuedMessages;
use crate::admin::organisation::{
    Organisation, OrganisationAdd, OrganisationList, OrganisationRemove, OrganisationRemoved,
    Organisations,
};
use crate::cli::confirmation::{Confirmation, ENDS_BY_ITSELF, on_all_nodes};
use crate::cli::connect::{Commands, Session};
use crate::cli::error::CliError;
use crate::cli::output::Table;

#[derive(Debug, Subcommand)]
pub(super) enum Org {
    /// Add an organisation.
    Add {
        /// Name: 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
        name: String,
    },
    /// List the organisations.
    List,
    /// Remove an organisation with its keys and domains, and cancel its queued messages. Its
    /// records stay.
    Remove {
        /// Name.
        name: String,
        #[command(flatten)]
        confirmation: Confirmation,
    },
}

impl Commands for Org {
    async fn run(self, session: &Session) -> Result<String, CliError> {
        match self {
            Self::Add { name } => session.run(OrganisationAdd { name }, added).await,
            Self::List => session.run(OrganisationList {}, table).await,
            Self::Remove { name, confirmation } => remove(session, name, confirmation).await,
        }
    }
}

async fn remove(
    session: &Session,
    name: String,
    confirmation: Confirmation,
) -> Result<String, CliError> {
    let messages = QueuedMessages::OfOrganisation { name: name.clone(), key: None, domain: None };
    let what = format!("Removing the organisation {name}");
    confirmation.ask(session, messages, &what).await?;
    let answer = session.call(OrganisationRemove { name }).await?;
    let report = session.show(&answer, removed);
    on_all_nodes(report, answer.nodes_without_answer, ENDS_BY_ITSELF)
}

fn added(added: &Organisation) -> String {
    format!(
        "added {0}; next: pillarbox domain add --org {0} DOMAIN, pillarbox key add --org {0}\n",
        added.name
    )
}

fn table(list: &Organisations) -> String {
    let mut table = Table::new(["ID", "NAME"]);
    for organisation in &list.organisations {
        table.row([&organisation.id.to_string(), &organisation.name]);
    }
    table.or("no organisations; pillarbox org add NAME adds one")
}

fn removed(removed: &OrganisationRemoved) -> String {
    format!(
        "removed {}: keys revoked: {}, domains withdrawn: {}, queued messages cancelled: {}, calls \
         under way, not tried again: {}; its records stay\n",
        removed.name,
        removed.keys_revoked,
        removed.domains_removed,
        removed.messages_cancelled,
        removed.calls_under_way
    )
}
