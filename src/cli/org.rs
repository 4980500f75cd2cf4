//! `org`: organisations.

use clap::{Args, Subcommand};

use crate::admin::wire::{Request, Response};
use crate::cli::connect::Connection;
use crate::cli::error::CliError;
use crate::cli::table::Table;

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
        let mut session = self.connection.open().await?;
        let request = match self.action {
            Action::Add { name } => Request::OrganisationAdd { name },
            Action::List => Request::OrganisationList {},
            Action::Remove { name } => Request::OrganisationRemove { name },
        };
        match session.ask(request).await? {
            Response::OrganisationAdded(added) => Ok(session.show(&added, |added| {
                format!(
                    "added {0}; next: pillarbox domain add --org {0} DOMAIN, pillarbox key add \
                     --org {0}\n",
                    added.name
                )
            })),
            Response::Organisations(list) => Ok(session.show(&list, |list| {
                let mut table = Table::new(["ID", "NAME"]);
                for organisation in &list.organisations {
                    table.row([&organisation.id.to_string(), &organisation.name]);
                }
                table.or("no organisations; pillarbox org add NAME adds one")
            })),
            Response::OrganisationRemoved(removed) => Ok(session.show(&removed, |removed| {
                format!(
                    "removed {}: keys revoked: {}, domains withdrawn: {}, queued messages \
                     cancelled: {}, calls under way, not tried again: {}; its records stay\n",
                    removed.name,
                    removed.keys_revoked,
                    removed.domains_removed,
                    removed.messages_cancelled,
                    removed.calls_under_way
                )
            })),
            _ => Err(CliError::Unexpected),
        }
    }
}
