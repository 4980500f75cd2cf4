//! `key`: API keys.

use clap::Subcommand;

use crate::admin::key::{self, KeyAdd, KeyAdded, KeyList, KeyRevoke, Keys};
use crate::cli::connect::{Commands, Session};
use crate::cli::error::CliError;
use crate::cli::output::{Table, escaped};

#[derive(Debug, Subcommand)]
pub(super) enum Key {
    /// Create an API key and print it. It is shown only once.
    Add {
        /// Organisation that the key belongs to.
        #[arg(long, value_name = "NAME")]
        org: String,
        /// Label, to tell the key from others.
        #[arg(long = "name", value_name = "LABEL", default_value = "")]
        label: String,
        /// Lifetime (90d), or the day at whose beginning in UTC it expires (2027-01-31); never if not
        /// given.
        #[arg(long, value_name = "DURATION|DATE")]
        expires: Option<String>,
    },
    /// List the API keys. The keys themselves are not stored.
    List {
        /// Only keys of this organisation.
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
    },
    /// Revoke an API key. It stops working at once.
    Revoke {
        /// Number of the key, from the list.
        id: u32,
    },
}

impl Commands for Key {
    async fn run(self, session: &Session) -> Result<String, CliError> {
        match self {
            Self::Add { org, label, expires } => {
                session.run(KeyAdd { organisation: org, label, expires }, added).await
            }
            Self::List { org } => session.run(KeyList { organisation: org }, table).await,
            Self::Revoke { id } => session.run(KeyRevoke { id }, revoked).await,
        }
    }
}

fn added(added: &KeyAdded) -> String {
    format!(
        "key {} for {}:\n\n    {}\n\nThe key is shown only once. Keep it on your servers: it does \
         not belong into a browser or an app.\n",
        added.id, added.organisation, added.key.0
    )
}

fn table(list: &Keys) -> String {
    let mut table = Table::new(["ID", "ORGANISATION", "CREATED", "EXPIRES", "LAST USED", "NAME"]);
    for key in &list.keys {
        let id = key.id.to_string();
        let expires = key.expires_at.as_deref().unwrap_or("never");
        let last_used = key.last_used_at.as_deref().unwrap_or("never");
        table.row([&id, &key.organisation, &key.created_at, expires, last_used, &key.label]);
    }
    table.or("no keys; pillarbox key add --org NAME makes one")
}

fn revoked(key: &key::Key) -> String {
    let label = match key.label.as_str() {
        "" => String::new(),
        label => format!(" ({})", escaped(label)),
    };
    format!("revoked key {} of {}{label}\n", key.id, key.organisation)
}
