//! Transitions of messages: the rules by which outcomes, reports and events change rows. Neither
//! their order nor a repetition makes a difference.
//!
//! The rules know no engine.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::feed;
use crate::limits::{self, MAX_UNMATCHED};
use crate::lost_messages;
use crate::organisation_counts::Increment;
use crate::record::{
    EventKey, ReportedChange, UnmatchedEvent, decode_event, decode_message, decode_suppression,
    decode_unmatched, encode_event, encode_message, encode_overturned, encode_suppression,
    encode_unmatched,
};
use crate::rows::{InTable, Key, KeyRange, Rows, Stop, Table, read_all, split_timed, timed};
use crate::suppressions;
use crate::timeline;
use crate::{Applied, Change, Reference, Report};
use pillarbox_domain::event::{BounceType, Event, EventDetail};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::{FailureCode, Message, Recorded, State, Transition};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_domain::time::Timestamp;

/// Largest difference of our record of an acceptance from the provider's, either way: AWS refuses
/// signatures over five minutes off its own clock, and a call may take as long again.
pub(super) const SEARCH_WINDOW: Duration = Duration::from_mins(10);
/// Number of bytes of its digest that distinguish an unmatched event from others of the same
/// message.
const DIGEST_BYTES: usize = 16;

/// Returns a message, or `None` if there is no record of it.
fn read(rows: &mut dyn Rows, id: MessageId) -> Result<Option<Message>, Stop> {
    let row = rows.get(Table::Messages, &Key::from(id))?;
    let message = row.map(|row| decode_message(id, &row).in_table(Table::Messages, id));
    Ok(message.transpose()?)
}

/// Writes a message, and removes its pending mark if its state is final.
fn write(rows: &mut dyn Rows, message: &Message) -> Result<(), Stop> {
    rows.put(Table::Messages, &Key::from(message.id), &encode_message(message))?;
    if matches!(message.state, State::Queued { .. }) {
        rows.end_call(message.id);
        return Ok(());
    }
    rows.end_pending(message.id)
}

/// Records the outcome of a message after `attempts` calls to the provider in all.
pub(super) fn record(
    rows: &mut dyn Rows,
    id: MessageId,
    attempts: u32,
    transition: Transition,
    now: Timestamp,
) -> Result<Recorded, Stop> {
    let Some(mut message) = read(rows, id)? else {
        return Ok(Recorded::AlreadyFinal);
    };
    let attempts_before = message.attempts;
    let (lost_at, next_attempt_at) = match &transition {
        Transition::BodyLost { found_at, .. } => (Some(*found_at), None),
        Transition::RetryLater { next_attempt_at, .. } => (None, *next_attempt_at),
        Transition::Sent { .. } | Transition::Failed { .. } | Transition::Suppressed => {
            (None, None)
        }
    };
    let recorded = message.record(attempts, transition);
    if recorded == Recorded::Changed {
        if let Some(found_at) = lost_at {
            lost_messages::add(rows, 1, found_at)?;
        }
        timeline::add(rows, &message, attempts_before, next_attempt_at, now)?;
        finish(rows, &mut message, now)?;
    } else {
        // An event has proved it, maybe by another node, which does not know of restarts here.
        timeline::add_restart(rows, id, message.attempts)?;
    }
    if recorded == Recorded::Changed || message.attempts != attempts_before {
        write(rows, &message)?;
    }
    Ok(recorded)
}

/// Applies a provider's report: the event, the proof of acceptance and the suppressions that
/// follow. A repeat changes nothing.
pub(super) fn apply(rows: &mut dyn Rows, report: &Report, now: Timestamp) -> Result<Applied, Stop> {
    let id = match report.message {
        Reference::Tag(id) => id,
        Reference::ProviderId => {
            let ses_id = &report.ses_message_id;
            let Some(id) = rows.find_sent(ses_id, report.accepted_at)? else {
                // A report without an event says nothing that the outcome itself does not say.
                if let Some(event) = &report.event {
                    keep_unmatched(rows, ses_id, report.organisation.as_deref(), event, now)?;
                }
                return Ok(Applied::Unmatched);
            };
            id
        }
    };
    let mut message = match read(rows, id) {
        Ok(Some(message)) => message,
        Ok(None) => {
            suppress_without_record(rows, report, now)?;
            return Ok(Applied::UnknownMessage);
        }
        // One damaged row must not prevent the events of all others.
        Err(Stop::Damaged(row)) => {
            tracing::error!(%id, "an event's message cannot be read; its record lacks the event");
            rows.memory().damage.note(row);
            suppress_without_record(rows, report, now)?;
            return Ok(Applied::DamagedRecord);
        }
        Err(stop) => return Err(stop),
    };
    if !is_owner(rows, &message, report.organisation.as_deref()) {
        return Ok(Applied::OtherOrganisation);
    }
    let before = message.clone();
    if message.prove_accepted(&report.ses_message_id, report.accepted_at) == Recorded::Changed {
        if let State::Failed { failure, .. } = &before.state {
            let row = encode_overturned(failure);
            rows.put(Table::OverturnedFailures, &Key::from(id), &row)?;
        }
        timeline::add(rows, &message, before.attempts, None, now)?;
        finish(rows, &mut message, now)?;
    } else if matches!(message.state, State::Sent { .. }) {
        timeline::add_restart(rows, id, message.attempts)?;
    }
    if let Some(event) = &report.event {
        observe(rows, &mut message, event, now)?;
    }
    if message != before {
        write(rows, &message)?;
    }
    // Returned also if an earlier report proved it: the process that applied that one may have
    // ended before it cancelled the retry.
    Ok(match message.state {
        State::Sent { .. } => Applied::Sent(id),
        State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. } => Applied::Done,
    })
}

/// Counts the final state that a message has reached, and reports it in the feed. If it is sent,
/// notes the provider's id, and applies the events that came before the outcome.
fn finish(rows: &mut dyn Rows, message: &mut Message, now: Timestamp) -> Result<(), Stop> {
    let (change, increment) = match &message.state {
        State::Queued { .. } => return Ok(()),
        State::Sent { .. } => {
            let recipients = message.recipients.len() as u64;
            (ReportedChange::Sent, Increment::Sent { recipients })
        }
        State::Failed { failure, .. } => {
            let increment = match failure.code {
                FailureCode::Cancelled => Increment::Cancelled,
                FailureCode::BodyLostOnRestart => Increment::BodyLost,
                _ => Increment::Failed,
            };
            (ReportedChange::Failed, increment)
        }
        State::Suppressed { .. } => (ReportedChange::Suppressed, Increment::Suppressed),
    };
    rows.report(message, change, now)?;
    if let State::Sent { ses_message_id, sent_at } = &message.state {
        rows.add_sent(message.id, ses_message_id, *sent_at)?;
        let mut early = take_unmatched(rows, ses_message_id)?;
        early.retain(|early| is_owner(rows, message, early.organisation.as_deref()));
        let needed = early.iter().flat_map(|early| rows_of(message, &early.event));
        rows.read_ahead(&needed.collect::<Vec<_>>())?;
        for early in early {
            observe(rows, message, &early.event, now)?;
        }
    }
    rows.count(message.organisation, increment);
    Ok(())
}

/// Returns true if a message is the named organisation's, or no name is given. The name of a
/// removed organisation is no longer known: then the message's id has to be enough.
fn is_owner(rows: &dyn Rows, message: &Message, named: Option<&str>) -> bool {
    named.is_none_or(|named| rows.directory().may_be_named(message.organisation, named))
}

/// Returns the rows that decide on an event of a message.
fn rows_of(message: &Message, event: &Event) -> Vec<(Table, Key)> {
    let event_row = feed::event_key(message.id, &event_key(event));
    let mut rows = vec![(Table::Events, event_row)];
    if event.suppresses().is_some() {
        let each = event.recipients.iter().filter_map(|one| SuppressedAddress::of_recipient(one));
        let key = |address| suppressions::key(message.organisation.0, &address);
        rows.extend(each.map(|address| (Table::Suppressions, key(address))));
    }
    rows
}

/// Puts an event on a message's timeline and into the feed, with the suppressions that follow. A
/// repeat changes nothing: it does not bring back a suppression that an operator has removed.
fn observe(
    rows: &mut dyn Rows,
    message: &mut Message,
    event: &Event,
    now: Timestamp,
) -> Result<(), Stop> {
    let key = event_key(event);
    let event_row = feed::event_key(message.id, &key);
    let row = encode_event(event);
    let reason = event.suppresses();
    let mut is_news = reason.is_some();
    if let Some(known) = rows.get(Table::Events, &event_row)? {
        // One that cannot be read is written anew.
        if let Ok(suppressed) = decode_event(&known).map(|known| known.suppresses().is_some()) {
            // If reports of one event differ in their details, the same one always stays.
            if (reason.is_some(), &row) <= (suppressed, &known) {
                return Ok(());
            }
            is_news = !suppressed;
        }
    } else {
        rows.count(message.organisation, increment(event));
        rows.report(message, ReportedChange::Observed(key), now)?;
    }
    rows.put(Table::Events, &event_row, &row)?;
    message.observe(event.summary());
    if let (Some(reason), true) = (reason, is_news) {
        suppress_recipients(rows, message.organisation, message.id, event, reason)?;
    }
    Ok(())
}

/// Suppresses by an event whose message has no readable record: it is purged, damaged, or younger
/// than the backup that was restored. Message id and organisation together say that the message is
/// ours: no other application writes both tags. The event is kept as one without a message, so
/// that a repeat does not bring back a suppression that an operator has removed.
fn suppress_without_record(
    rows: &mut dyn Rows,
    report: &Report,
    now: Timestamp,
) -> Result<(), Stop> {
    let (Reference::Tag(id), Some(named), Some(event)) =
        (report.message, report.organisation.as_deref(), &report.event)
    else {
        return Ok(());
    };
    let organisation = rows.directory().named(named).map(|organisation| organisation.id);
    let (Some(reason), Some(organisation)) = (event.suppresses(), organisation) else {
        return Ok(());
    };
    match keep_unmatched(rows, &report.ses_message_id, Some(named), event, now)? {
        Change::Made => suppress_recipients(rows, organisation, id, event, reason),
        Change::None => Ok(()),
    }
}

/// Keeps an event whose message has no record, unless it is there already.
///
/// An event without our tags may have overtaken the outcome that has the provider's id of its
/// message, and waits for that. An event with our tags does not find a message later, because the
/// tags exist only after the message is durable. It is kept if it has suppressed a recipient, so
/// that a repeat of it is recognised.
fn keep_unmatched(
    rows: &mut dyn Rows,
    ses_message_id: &str,
    organisation: Option<&str>,
    event: &Event,
    now: Timestamp,
) -> Result<Change, Stop> {
    let row = encode_unmatched(event, organisation);
    // By all of its content: the record decides which of two different reports counts.
    let digest = Sha256::digest(&row);
    let key = unmatched_of(ses_message_id).and(&digest[..DIGEST_BYTES]);
    if rows.get(Table::UnmatchedEvents, &key)?.is_some() {
        return Ok(Change::None);
    }
    rows.make_room(Table::UnmatchedEvents, MAX_UNMATCHED, limits::UNMATCHED)?;
    rows.put(Table::UnmatchedEvents, &key, &timed(now, &row))?;
    Ok(Change::Made)
}

/// Takes out the events of the message that the provider knows by this id. An event that cannot be
/// read is removed as well.
fn take_unmatched(rows: &mut dyn Rows, ses_message_id: &str) -> Result<Vec<UnmatchedEvent>, Stop> {
    let range = KeyRange::of(unmatched_of(ses_message_id));
    let mut events = Vec::new();
    for (key, row) in rows.range(Table::UnmatchedEvents, &range, usize::MAX)? {
        let (_, row) = split_timed(&row);
        let read = decode_unmatched(row).in_table(Table::UnmatchedEvents, ses_message_id);
        events.extend(rows.memory().damage.left_out(read));
        rows.remove(Table::UnmatchedEvents, &key)?;
    }
    Ok(events)
}

/// Returns the beginning of the keys of a message's unmatched events. No id of the provider has a
/// NUL in it, so none is the beginning of another's key.
pub(super) fn unmatched_of(ses_message_id: &str) -> Key {
    Key::from((ses_message_id, "\0"))
}

/// Suppresses exactly the recipients that an event names.
fn suppress_recipients(
    rows: &mut dyn Rows,
    organisation: OrganisationId,
    message: MessageId,
    event: &Event,
    reason: SuppressionReason,
) -> Result<(), Stop> {
    let mut addresses = Vec::new();
    for recipient in &event.recipients {
        let Some(address) = SuppressedAddress::of_recipient(recipient) else {
            tracing::warn!(id = %message, "a reported recipient is not an address");
            continue;
        };
        addresses.push(address);
    }
    let key = |address| suppressions::key(organisation.0, address);
    let keys: Vec<Key> = addresses.iter().map(key).collect();
    read_all(rows, Table::Suppressions, &keys)?;
    for address in addresses {
        let (since, cause) = (event.occurred_at, Some(message));
        add_suppression(rows, organisation, &Suppression { address, reason, since, cause })?;
    }
    Ok(())
}

/// Adds a suppression that a provider's event caused. If there are several causes, the earliest
/// counts, in whatever order they arrive; an operator's own decision stays.
fn add_suppression(
    rows: &mut dyn Rows,
    organisation: OrganisationId,
    suppression: &Suppression,
) -> Result<(), Stop> {
    let rank = |s: &Suppression| (s.since, s.reason != SuppressionReason::Complaint, s.cause);
    let key = suppressions::key(organisation.0, &suppression.address);
    if let Some(row) = rows.get(Table::Suppressions, &key)? {
        match decode_suppression(suppression.address.as_str(), &row) {
            Ok(earlier) if earlier.cause.is_some() && rank(suppression) < rank(&earlier) => {}
            // One that cannot be read suppresses all the same.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
    rows.put(Table::Suppressions, &key, &encode_suppression(suppression))
}

fn increment(event: &Event) -> Increment {
    let is_hard =
        matches!(event.detail, EventDetail::Bounce { bounce_type: BounceType::Permanent, .. });
    let hard_bounces = if is_hard { event.recipients.len() as u64 } else { 0 };
    Increment::Event { event_type: event.event_type(), hard_bounces }
}

/// Returns an event's key among those of its message.
pub(super) fn event_key(event: &Event) -> EventKey {
    let normal = |text: &String| {
        SuppressedAddress::of_recipient(text)
            .map_or_else(|| text.to_ascii_lowercase(), |address| address.as_str().to_owned())
    };
    let mut recipients: Vec<String> = event.recipients.iter().map(normal).collect();
    recipients.sort_unstable();
    recipients.dedup();
    let mut digest = Sha256::new();
    for recipient in recipients {
        digest.update(recipient.as_bytes());
        digest.update([0]);
    }
    EventKey {
        occurred_at: event.occurred_at,
        event_type: event.event_type(),
        recipients: *digest.finalize().first_chunk().expect("a digest has 32 bytes"),
    }
}
