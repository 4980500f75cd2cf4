//! `message`: what became of messages, and cancelling those that are queued.

use std::ffi::OsStr;
use std::fmt::Write;

use clap::builder::styling::Style;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Subcommand};

use crate::admin::MAX_PAGE;
use crate::admin::message::{
    MAX_MESSAGES, MessageCancel, MessageList, MessageShow, MessageShown, Messages,
    MessagesCancelled, OperatorsView, QueuedMessages,
};
use crate::cli::confirmation::{Confirmation, on_all_nodes};
use crate::cli::connect::{Commands, Session};
use crate::cli::error::CliError;
use crate::cli::output::{Table, escaped, painted, style_of};
use crate::domain::outcome::MessageOutcome;
use crate::views::{DetailView, FailureView};

/// The most messages that one command lists.
const MAX_LISTED: i64 = 100_000;
/// How much of a recipient or a subject a table shows, in characters.
const CELL_CHARS: usize = 40;

#[derive(Debug, Subcommand)]
pub(super) enum Message {
    /// Show a message with what happened to each recipient.
    Show {
        /// Id of the message.
        id: String,
    },
    /// List messages, newest first.
    List(Listing),
    /// Cancel queued messages: they are not sent. A message whose call to the provider is under way
    /// is not tried again after that call.
    Cancel(CancelArgs),
}

#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    /// Ids of the messages.
    #[arg(value_name = "ID", required_unless_present = "org", conflicts_with = "org")]
    ids: Vec<String>,
    /// All queued messages of this organisation.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only messages that this API key posted, even if the key is revoked.
    #[arg(long, value_name = "ID", requires = "org")]
    key: Option<u32>,
    /// Only messages from this domain.
    #[arg(long, value_name = "DOMAIN", requires = "org")]
    domain: Option<String>,
    #[command(flatten)]
    confirmation: Confirmation,
}

#[derive(Debug, Args)]
pub(super) struct Listing {
    /// Only messages of this organisation.
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only messages with this status.
    #[arg(long, value_parser = StatusParser)]
    status: Option<String>,
    /// Only messages with this outcome: the status, or after "sent" what the latest event says.
    #[arg(long, value_parser = PossibleValuesParser::new(MessageOutcome::ALL.map(MessageOutcome::as_str)))]
    outcome: Option<String>,
    /// Only messages with this text in the address of a recipient, in any case.
    #[arg(long, value_name = "TEXT")]
    recipient: Option<String>,
    /// Only messages from an address of this domain.
    #[arg(long, value_name = "DOMAIN")]
    sender_domain: Option<String>,
    /// Only messages with each of these words in the subject, in any case and order.
    #[arg(long, value_name = "WORDS")]
    subject: Option<String>,
    /// Only messages accepted at or after this time (2027-01-31T12:00:00Z), the beginning of this
    /// day (2027-01-31) or this duration until now (2h).
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only messages accepted before this time, day or duration until now.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Most messages to list.
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=MAX_LISTED))]
    limit: u32,
    /// Only messages accepted before the one with this id.
    #[arg(long, value_name = "ID")]
    before: Option<String>,
}

/// Reads a status. Points at `--outcome` if the word is an outcome and no status.
#[derive(Debug, Clone, Copy)]
struct StatusParser;

impl StatusParser {
    const STATUSES: [&str; 5] = ["queued", "sending", "sent", "failed", "suppressed"];
}

impl TypedValueParser for StatusParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let is_outcome = |value: &str| MessageOutcome::ALL.iter().any(|one| one.as_str() == value);
        match value.to_str() {
            Some(value) if !Self::STATUSES.contains(&value) && is_outcome(value) => {
                let message = format!(
                    "{value:?} is an outcome, not a status; a message that the provider took keeps \
                     the status \"sent\". Use: --outcome {value}\n"
                );
                Err(clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command))
            }
            _ => PossibleValuesParser::new(Self::STATUSES).parse_ref(command, argument, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Self::STATUSES.into_iter().map(PossibleValue::new)))
    }
}

impl Commands for Message {
    async fn run(self, session: &Session) -> Result<String, CliError> {
        match self {
            Self::Show { id } => session.run(MessageShow { id }, shown).await,
            Self::List(listing) => list(session, listing).await,
            Self::Cancel(args) => cancel(session, args).await,
        }
    }
}

async fn cancel(session: &Session, args: CancelArgs) -> Result<String, CliError> {
    let CancelArgs { ids, org, key, domain, confirmation } = args;
    let selections = match org {
        Some(name) => {
            let messages = QueuedMessages::OfOrganisation { name, key, domain };
            confirmation.ask(session, messages.clone(), "This").await?;
            vec![messages]
        }
        None => ids.chunks(MAX_MESSAGES).map(|ids| QueuedMessages::WithIds(ids.to_vec())).collect(),
    };
    let mut all = MessagesCancelled::default();
    for messages in selections {
        let some = session.call(MessageCancel { messages }).await?;
        all.cancelled += some.cancelled;
        all.calls_under_way += some.calls_under_way;
        all.not_pending += some.not_pending;
        all.nodes_without_answer.extend(some.nodes_without_answer);
    }
    all.nodes_without_answer.sort();
    all.nodes_without_answer.dedup();
    let report = session.show(&all, |all| {
        let mut text = format!(
            "cancelled: {}; calls already under way, not tried again: {}",
            all.cancelled, all.calls_under_way
        );
        if all.not_pending > 0 {
            write!(text, "; not pending: {}", all.not_pending).expect("text takes everything");
        }
        text.push('\n');
        text
    });
    let advice = "what it holds is not cancelled; give the command again once it answers";
    on_all_nodes(report, all.nodes_without_answer, advice)
}

async fn list(session: &Session, listing: Listing) -> Result<String, CliError> {
    let limit = usize::try_from(listing.limit).expect("at least 32 bits");
    let mut all = Messages { messages: Vec::new(), next: listing.before };
    loop {
        let call = MessageList {
            organisation: listing.org.clone(),
            status: listing.status.clone(),
            outcome: listing.outcome.clone(),
            recipient: listing.recipient.clone(),
            sender_domain: listing.sender_domain.clone(),
            subject: listing.subject.clone(),
            from: listing.since.clone(),
            until: listing.until.clone(),
            before: all.next.take(),
            limit: (limit - all.messages.len()).min(MAX_PAGE),
        };
        let page = session.call(call).await?;
        all.messages.extend(page.messages);
        all.next = page.next;
        if all.next.is_none() || all.messages.len() >= limit {
            break;
        }
    }
    Ok(session.show(&all, |all| {
        let mut table = Table::new(["ID", "ACCEPTED", "ORGANISATION", "OUTCOME", "TO", "SUBJECT"]);
        for view in &all.messages {
            let OperatorsView { organisation, message, .. } = view;
            table.row([
                &message.id,
                &message.created_at,
                organisation,
                &outcome(view),
                &recipients(&message.to),
                &shortened(&message.subject),
            ]);
        }
        let mut text = table.or("no messages");
        if let Some(next) = &all.next {
            writeln!(text, "there may be more: --before {next}").expect("text takes everything");
        }
        text
    }))
}

fn outcome(view: &OperatorsView) -> String {
    match &view.message.error {
        Some(error) => format!("{} ({})", view.outcome, error.code),
        None => view.outcome.clone(),
    }
}

fn recipients(to: &[String]) -> String {
    match to {
        [] => String::new(),
        [only] => shortened(only),
        [first, others @ ..] => format!("{} +{}", shortened(first), others.len()),
    }
}

/// The beginning of a text that is too long for a table.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(CELL_CHARS) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.to_owned(),
    }
}

fn shown(shown: &MessageShown) -> String {
    let OperatorsView { organisation, from, outcome, message: record } = &shown.view;
    let mut lines: Vec<(&str, String)> = vec![
        ("id", record.id.clone()),
        ("organisation", organisation.clone()),
        ("outcome", outcome.clone()),
        ("accepted", record.created_at.clone()),
        ("from", from.clone()),
    ];
    lines.extend(record.to.iter().map(|to| ("to", to.clone())));
    lines.push(("subject", record.subject.clone()));
    let metadata = record.metadata.iter().flatten();
    lines.extend(metadata.map(|(name, value)| ("metadata", format!("{name}={value}"))));
    lines.push(("attempts", record.attempts.to_string()));
    lines.extend(shown.restarted_at.clone().map(|at| ("restarted", at)));
    lines.extend(record.error.as_ref().map(|error| ("error", failure(error))));
    lines.extend(record.sent_at.clone().map(|at| ("sent", at)));
    lines.extend(record.ses_message_id.clone().map(|id| ("SES's id", id)));
    let mut text = String::new();
    for (name, value) in lines {
        let style = if name == "outcome" { style_of(&value) } else { Style::new() };
        let value = painted(&escaped(&value), style);
        writeln!(text, "{:14}{value}", format!("{name}:")).expect("text takes everything");
    }
    let mut table = Table::new(["RECIPIENT", "OCCURRED", "EVENT", "DETAIL"]);
    for timeline in &shown.timelines {
        if timeline.events.is_empty() {
            table.row([&timeline.recipient, "", "(none yet)", ""]);
        }
        // Named once, so that a recipient's events stand together.
        let names = std::iter::once(timeline.recipient.as_str()).chain(std::iter::repeat(""));
        for (name, event) in names.zip(&timeline.events) {
            table.row([name, &event.occurred_at, &event.event_type, &detail(&event.detail)]);
        }
    }
    text.push('\n');
    text.push_str(&table.or("no recipients"));
    text
}

/// The details by their names, as JSON has them.
fn detail(detail: &DetailView) -> String {
    let named = serde_json::to_value(detail).expect("texts serialize");
    let told = named.as_object().into_iter().flatten();
    let told: Vec<_> =
        told.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?))).collect();
    told.join("; ")
}

fn failure(failure: &FailureView) -> String {
    match &failure.provider_code {
        Some(code) => format!("{} ({code}): {}", failure.code, failure.message),
        None => format!("{}: {}", failure.code, failure.message),
    }
}
