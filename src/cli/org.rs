//! `org`: organisations.

use clap::{Args, Subcommand};

use crate::admin::organisation::{
    Organisation, OrganisationAdd, OrganisationList, OrganisationRemove, OrganisationRemoved,
    Organisations,
};
use crate::cli::connect::Connection;
use crate::cli::error::CliError;
use crate::cli::output::Table;

#[derive(Debug, Args)]
pub(super) struct Org {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
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
    },
}

impl Org {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let session = self.connection.open().await?;
        match self.action {
            Action::Add { name } => session.run(OrganisationAdd { name }, added).await,
            Action::List => session.run(OrganisationList {}, table).await,
            Action::Remove { name } => session.run(OrganisationRemove { name }, removed).await,
        }
    }
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
