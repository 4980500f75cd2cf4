//! `webhook`: endpoints that are told of events.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::admin::webhook::{
    Webhook as Endpoint, WebhookAdd, WebhookList, WebhookPause, WebhookRemove, WebhookResume,
    WebhookRotate, WebhookSecret, WebhookTest, WebhookTested, Webhooks,
};
use crate::cli::connect::Connection;
use crate::cli::error::CliError;
use crate::cli::output::{Table, escaped};

#[derive(Debug, Args)]
pub(super) struct Webhook {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add an endpoint, and print the secret that signs its deliveries. It is shown only once.
    Add {
        /// Organisation of the events.
        #[arg(long, value_name = "NAME")]
        org: String,
        /// URL that is called, https or http.
        url: String,
        /// Types of events, such as email.bounce,email.complaint; all types if not given.
        #[arg(long, value_name = "TYPES", value_delimiter = ',')]
        types: Vec<String>,
        /// File of certificates in PEM that the endpoint's own is checked against; the system's
        /// roots if not given.
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
    },
    /// List the endpoints, and how their deliveries go.
    List {
        /// Only endpoints of this organisation.
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
    },
    /// Remove an endpoint. Events that it was not told of yet, it is never told of.
    Remove {
        /// Number of the endpoint, from the list.
        id: u32,
    },
    /// Stop deliveries to an endpoint. Its events wait.
    Pause {
        /// Number of the endpoint, from the list.
        id: u32,
    },
    /// Go on with the deliveries to an endpoint that is paused.
    Resume {
        /// Number of the endpoint, from the list.
        id: u32,
    },
    /// Create a new secret and print it. The one before signs as well for 24 hours.
    Rotate {
        /// Number of the endpoint, from the list.
        id: u32,
    },
    /// Send the event email.test to an endpoint, and print its answer.
    Test {
        /// Number of the endpoint, from the list.
        id: u32,
    },
}

impl Webhook {
    pub(super) async fn run(self) -> Result<String, CliError> {
        let session = self.connection.open().await?;
        match self.action {
            Action::Add { org, url, types, ca } => {
                let authority = ca.map(read).transpose()?;
                session.run(WebhookAdd { organisation: org, url, types, authority }, added).await
            }
            Action::List { org } => session.run(WebhookList { organisation: org }, table).await,
            Action::Remove { id } => {
                session.run(WebhookRemove { id }, |one| told("removed", one)).await
            }
            Action::Pause { id } => {
                session.run(WebhookPause { id }, |one| told("paused", one)).await
            }
            Action::Resume { id } => {
                session.run(WebhookResume { id }, |one| told("resumed", one)).await
            }
            Action::Rotate { id } => session.run(WebhookRotate { id }, rotated).await,
            Action::Test { id } => {
                let tested = session.call(WebhookTest { id }).await?;
                let report = session.show(&tested, answered);
                if tested.delivered {
                    Ok(report)
                } else {
                    Err(CliError::NotDelivered { id, report })
                }
            }
        }
    }
}

fn read(file: PathBuf) -> Result<String, CliError> {
    std::fs::read_to_string(&file).map_err(|source| CliError::File { file, source })
}

fn added(added: &WebhookSecret) -> String {
    format!(
        "endpoint {} of {} for {}\n\nThe secret that signs its deliveries:\n\n    {}\n\nIt is \
         shown this once and cannot be shown again. Try it: pillarbox webhook test {}\n",
        added.id,
        escaped(&added.url),
        added.organisation,
        added.secret.0,
        added.id
    )
}

fn rotated(rotated: &WebhookSecret) -> String {
    format!(
        "The new secret of endpoint {}:\n\n    {}\n\nIt is shown this once and cannot be shown \
         again. Both secrets sign for 24 hours: give it to the application within that time.\n",
        rotated.id, rotated.secret.0
    )
}

fn table(list: &Webhooks) -> String {
    let head = ["ID", "ORGANISATION", "STATE", "WAITING", "BEHIND SINCE", "LAST ANSWER", "URL"];
    let mut table = Table::new(head);
    for one in &list.webhooks {
        let live = one.deliveries.as_ref();
        let state = match live {
            Some(live) if live.failing && one.state == "active" => "failing",
            Some(_) | None => one.state.as_str(),
        };
        let waiting = live.map(|live| live.waiting.to_string()).unwrap_or_default();
        let behind = live.and_then(|live| live.behind_since.as_deref()).unwrap_or_default();
        let answer = live.and_then(|live| live.last_answer.as_deref()).unwrap_or_default();
        let id = one.id.to_string();
        table.row([&id, &one.organisation, state, &waiting, behind, answer, &one.url]);
    }
    table.or("no endpoints; pillarbox webhook add --org NAME URL adds one")
}

fn told(what: &str, one: &Endpoint) -> String {
    format!("{what} endpoint {} of {} for {}\n", one.id, escaped(&one.url), one.organisation)
}

fn answered(tested: &WebhookTested) -> String {
    let WebhookTested { delivered, answer, took_millis, body } = tested;
    let verdict = if *delivered { "delivered" } else { "NOT delivered" };
    let mut text = format!("{verdict}: {} after {took_millis} ms\n", escaped(answer));
    if !body.is_empty() {
        writeln!(text, "\n{}", escaped(body)).expect("text takes everything");
    }
    text
}
