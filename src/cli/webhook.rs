//! `webhook`: endpoints that are told of events.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use crate::admin::webhook::{
    ReplayedEvents, Webhook as Endpoint, WebhookAdd, WebhookDeliveryList, WebhookDeliveryPage,
    WebhookList, WebhookPause, WebhookRemove, WebhookReplay, WebhookReplayed, WebhookResume,
    WebhookRotate, WebhookSecret, WebhookTest, WebhookTested, Webhooks, WhichDeliveries,
};
use crate::cli::connect::{Commands, Session};
use crate::cli::error::CliError;
use crate::cli::output::{Table, escaped};

#[derive(Debug, Subcommand)]
pub(super) enum Webhook {
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
    /// Remove an endpoint. It does not get the events that still wait for it.
    Remove(Numbered),
    /// Stop deliveries to an endpoint. Its events wait.
    Pause(Numbered),
    /// Go on with the deliveries to an endpoint that is paused.
    Resume(Numbered),
    /// Create a new secret and print it. The one before signs as well for 24 hours.
    Rotate(Numbered),
    /// Send the event email.test to an endpoint, and print its answer.
    Test(Numbered),
    /// List deliveries to an endpoint: the last ones, those that wait for their next attempt, and
    /// those that failed.
    Deliveries {
        /// Number of the endpoint, from the list.
        id: u32,
        /// Only those whose last attempt failed.
        #[arg(long)]
        failed: bool,
    },
    /// Deliver events again: all since a time, or one.
    #[command(group(ArgGroup::new("events").required(true)))]
    Replay {
        /// Number of the endpoint, from the list.
        id: u32,
        /// Time (2027-01-31T12:00:00Z), day (2027-01-31) or duration until now (2h).
        #[arg(long, value_name = "TIME", group = "events")]
        since: Option<String>,
        /// Identifier of the event.
        #[arg(long, value_name = "EVENT", group = "events")]
        event: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(super) struct Numbered {
    /// Number of the endpoint, from the list.
    id: u32,
}

impl Commands for Webhook {
    async fn run(self, session: &Session) -> Result<String, CliError> {
        match self {
            Self::Add { org, url, types, ca } => {
                let authority = ca.map(read).transpose()?;
                session.run(WebhookAdd { organisation: org, url, types, authority }, added).await
            }
            Self::List { org } => session.run(WebhookList { organisation: org }, table).await,
            Self::Remove(Numbered { id }) => {
                session.run(WebhookRemove { id }, |one| told("removed", one)).await
            }
            Self::Pause(Numbered { id }) => {
                session.run(WebhookPause { id }, |one| told("paused", one)).await
            }
            Self::Resume(Numbered { id }) => {
                session.run(WebhookResume { id }, |one| told("resumed", one)).await
            }
            Self::Rotate(Numbered { id }) => session.run(WebhookRotate { id }, rotated).await,
            Self::Deliveries { id, failed } => {
                let which = if failed { WhichDeliveries::Failed } else { WhichDeliveries::All };
                session.run(WebhookDeliveryList { id, which }, deliveries).await
            }
            Self::Replay { id, since, event } => {
                let events = match (since, event) {
                    (Some(time), _) => ReplayedEvents::Since(time),
                    (None, Some(event)) => ReplayedEvents::One(event),
                    (None, None) => unreachable!("one of the group is required"),
                };
                session.run(WebhookReplay { id, events }, replayed).await
            }
            Self::Test(Numbered { id }) => {
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
        "Added endpoint {}. It gets the events of {} at {}\n\nThe secret that signs its \
         deliveries:\n\n    {}\n\nThe secret is shown only once. Send a test event: pillarbox \
         webhook test {}\n",
        added.id,
        added.organisation,
        escaped(&added.url),
        added.secret.0,
        added.id
    )
}

fn rotated(rotated: &WebhookSecret) -> String {
    format!(
        "The new secret of endpoint {}:\n\n    {}\n\nThe secret is shown only once. Both secrets \
         sign for 24 hours: give the new one to the application within that time.\n",
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

fn deliveries(page: &WebhookDeliveryPage) -> String {
    let head = ["STATE", "EVENT", "TYPE", "ATTEMPTS", "LAST ATTEMPT", "ANSWER", "NEXT ATTEMPT"];
    let mut table = Table::new(head);
    for one in &page.deliveries {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        table.row([
            &one.state,
            &text(&one.event),
            &text(&one.event_type),
            &one.attempts.to_string(),
            &text(&one.attempted_at),
            &text(&one.answer),
            &text(&one.next_attempt_at),
        ]);
    }
    table.or("no deliveries")
}

fn replayed(replayed: &WebhookReplayed) -> String {
    let WebhookReplayed { id, replayed } = replayed;
    if *replayed {
        format!("endpoint {id} gets these events again\n")
    } else {
        format!("these events still wait for endpoint {id}; nothing was changed\n")
    }
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
