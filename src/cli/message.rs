//! `message`: lists messages with their outcome, and cancels those that are queued.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::builder::styling::Style;
use serde::Serialize;

use crate::confirmation::{Confirmed, on_all_nodes};
use crate::connect::Session;
use crate::error::CliError;
use crate::output::{Columns, Table, escaped, painted, style_of};
use pillarbox_admin::message::{
    MAX_MESSAGES, MessageShown, Messages, MessagesCancelled, OperatorsView, QueuedMessages,
};
use pillarbox_admin::{MAX_PAGE, MessageCancel, MessageList};
use pillarbox_records::views::{DetailView, FailureView, TimelineEntryView};

/// Length of a recipient or a subject in a table, in characters.
const CELL_CHARS: usize = 40;

/// Number of messages, by organisation and outcome.
#[derive(Serialize)]
struct MessagesInAll {
    counts: BTreeMap<String, BTreeMap<String, u64>>,
}

pub(super) async fn cancel(
    session: &Session,
    given: Confirmed<MessageCancel>,
) -> Result<String, CliError> {
    let confirmation = &given.confirmation;
    let selections = match &given.call.messages {
        QueuedMessages::WithIds(ids) if !confirmation.dry_run => {
            ids.chunks(MAX_MESSAGES).map(|ids| QueuedMessages::WithIds(ids.to_vec())).collect()
        }
        messages => {
            if let Some(told) = confirmation.ask(session, messages.clone(), "This").await? {
                return Ok(told);
            }
            vec![messages.clone()]
        }
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
            let _ = write!(text, "; not pending: {}", all.not_pending);
        }
        text.push('\n');
        text
    });
    let advice = "messages there are not cancelled; repeat the command when all nodes answer again";
    on_all_nodes(report, &all.nodes_without_answer, advice)
}

pub(super) async fn list(session: &Session, given: MessageList) -> Result<String, CliError> {
    let mut all = Messages { next: given.before.clone(), ..Messages::default() };
    loop {
        let limit = (given.limit - all.messages.len()).min(MAX_PAGE);
        let call = MessageList { before: all.next.take(), limit, ..given.clone() };
        let page = session.call(call).await?;
        all.messages.extend(page.messages);
        all.exact |= page.exact;
        for (organisation, outcomes) in page.counts.into_iter().flatten() {
            let own = all.counts.get_or_insert_default().entry(organisation).or_default();
            for (outcome, count) in outcomes {
                *own.entry(outcome).or_default() += count;
            }
        }
        all.next = page.next;
        if all.next.is_none() || all.messages.len() >= given.limit {
            break;
        }
    }
    if given.count {
        let counts = all.counts.unwrap_or_default();
        return Ok(session.show(&MessagesInAll { counts }, |all| {
            let mut table = Table::new(["ORGANISATION", "OUTCOME", "MESSAGES"]);
            for (organisation, outcomes) in &all.counts {
                for (outcome, count) in outcomes {
                    table.row([organisation, outcome, &count.to_string()]);
                }
            }
            table.or("no messages")
        }));
    }
    Ok(session.show(&all, |all| {
        let columns: Columns<OperatorsView, 6> = [
            ("ID", |one| one.message.id.clone()),
            ("ACCEPTED", |one| one.message.created_at.clone()),
            ("ORGANISATION", |one| one.organisation.clone()),
            ("OUTCOME", outcome),
            ("TO", |one| recipients(&one.message.to)),
            ("SUBJECT", |one| shortened(&one.message.subject)),
        ];
        let mut text = Table::of(&all.messages, columns).or("no messages");
        if let Some(next) = &all.next {
            let _ = writeln!(text, "there may be more: --before {next}");
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

pub(super) fn shown(shown: &MessageShown) -> String {
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
    lines.extend(record.priority.clone().map(|priority| ("priority", priority)));
    lines.extend(record.expires_at.clone().map(|at| ("expires", at)));
    lines.push(("attempts", record.attempts.to_string()));
    lines.extend(shown.restarted_at.clone().map(|at| ("restarted", at)));
    lines.extend(record.error.as_ref().map(|error| ("error", failure(error))));
    lines.extend(record.sent_at.clone().map(|at| ("sent", at)));
    lines.extend(record.ses_message_id.clone().map(|id| ("SES's id", id)));
    lines.extend(shown.idempotency_key.clone().map(|key| ("idempotency key", key)));
    lines.extend(shown.suppressions.iter().map(|one| {
        let whose = one.organisation.as_deref().unwrap_or("all organisations");
        ("suppressed", format!("{} for {whose}, since {} ({})", one.address, one.since, one.reason))
    }));
    let mut text = String::new();
    for (name, value) in lines {
        let style = if name == "outcome" { style_of(&value) } else { Style::new() };
        let value = painted(&escaped(&value), style);
        let _ = writeln!(text, "{:17}{value}", format!("{name}:"));
    }
    let mut table = Table::new(["WHEN", "WHAT", "ATTEMPT", "DETAIL"]);
    for entry in &shown.timeline {
        let attempt = entry.attempt.map_or_else(String::new, |attempt| attempt.to_string());
        table.row([entry.at.as_deref().unwrap_or(""), &entry.what, &attempt, &told(entry)]);
    }
    text.push('\n');
    text.push_str(&table.or("no timeline"));
    // Of the last step that has one: the steps before it are over.
    if let Some(last) = shown.explanations.iter().rev().flatten().next() {
        let _ = writeln!(text, "\nwhy:    {}.\nto do:  {}.", last.cause, last.advice);
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

/// Details of a timeline's entry, without its kind.
fn told(entry: &TimelineEntryView) -> String {
    if let Some(event) = &entry.event {
        return event.recipients.join(", ");
    }
    if let Some(count) = entry.count {
        return format!("attempts that are not kept: {count}");
    }
    let mut told = entry.failure.as_ref().map_or_else(String::new, failure);
    if let Some(next) = &entry.next_attempt_at {
        let _ = write!(told, "; next attempt at {next}");
    }
    told
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
