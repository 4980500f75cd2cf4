//! Messages and their events: recording what became of them, and reading them back.

use redb::{ReadTransaction, ReadableTable};
use sha2::{Digest, Sha256};

use crate::domain::event::Event;
use crate::domain::id::MessageId;
use crate::domain::message::{Message, Recorded, State, Transition};
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::domain::time::Timestamp;
use crate::store::redb::failure::ReadError;
use crate::store::redb::record::event::{decode_event, encode_event};
use crate::store::redb::record::message::{decode_message, encode_message};
use crate::store::redb::suppress::insert_suppression;
use crate::store::redb::tables::{EVENTS, MESSAGES, Tables};
use crate::store::redb::writer::Batch;
use crate::store::{Applied, MessageFilter, Report};

/// Reads a message that has not reached the end of its retention.
pub(in crate::store) fn read(
    transaction: &ReadTransaction,
    id: MessageId,
    window_now: Timestamp,
) -> Result<Option<Message>, ReadError> {
    let Some(row) = transaction.open_table(MESSAGES)?.get(id.as_bytes())? else {
        return Ok(None);
    };
    let message = decode_message(id, row.value())?;
    Ok((!message.is_expired(window_now)).then_some(message))
}

/// Reads a message's events, oldest first.
pub(in crate::store) fn read_events(
    transaction: &ReadTransaction,
    id: MessageId,
) -> Result<Vec<Event>, ReadError> {
    let mut events = Vec::new();
    let (first, last) = event_keys(id);
    for row in transaction.open_table(EVENTS)?.range::<&[u8]>(&first[..]..=&last[..])? {
        events.push(decode_event(row?.1.value())?);
    }
    Ok(events)
}

/// Reads messages, newest first.
pub(in crate::store) fn list(
    transaction: &ReadTransaction,
    filter: &MessageFilter,
    limit: usize,
    window_now: Timestamp,
) -> Result<Vec<Message>, ReadError> {
    let messages = transaction.open_table(MESSAGES)?;
    let range = match filter.before {
        Some(before) => messages.range(..*before.as_bytes())?,
        None => messages.range::<[u8; 16]>(..)?,
    };
    let mut found = Vec::new();
    for row in range.rev() {
        let (id, row) = row?;
        let message = decode_message(MessageId::from_bytes(id.value()), row.value())?;
        if message.is_expired(window_now) {
            break;
        }
        if filter.matches(&message) {
            found.push(message);
            if found.len() == limit {
                break;
            }
        }
    }
    Ok(found)
}

/// Records what became of a message after `attempts` calls in all.
pub(in crate::store) fn record(
    batch: &mut Batch<'_>,
    id: MessageId,
    attempts: u32,
    transition: Transition,
) -> Result<Recorded, ReadError> {
    let Some(mut message) = read_row(&batch.tables, id)? else {
        return Ok(Recorded::AlreadyFinal);
    };
    let recorded = message.record(attempts, transition);
    if recorded == Recorded::Changed {
        write_row(&mut batch.tables, &message)?;
    }
    Ok(recorded)
}

/// Applies what the provider reports of a message, once: a repeat changes nothing.
pub(in crate::store) fn apply(
    batch: &mut Batch<'_>,
    report: &Report,
    now: Timestamp,
) -> Result<Applied, ReadError> {
    let Some(mut message) = read_row(&batch.tables, report.message)? else {
        return Ok(Applied::UnknownMessage);
    };
    let before = message.clone();
    message.prove_accepted(&report.ses_message_id, report.accepted_at);
    if let Some(event) = &report.event {
        let key = event_key(report.message, event);
        let row = encode_event(event);
        let is_new = batch.tables.events.insert(key.as_slice(), row.as_slice())?.is_none();
        message.observe(event.summary());
        // A repeat must not bring back what an operator has removed since.
        if let Some(reason) = event.suppresses().filter(|_| is_new) {
            for recipient in &event.recipients {
                let Some(address) = SuppressedAddress::of_recipient(recipient) else { continue };
                let suppression =
                    Suppression { address, reason, since: now, cause: Some(message.id) };
                insert_suppression(batch, Some(message.organisation), &suppression)?;
            }
        }
    }
    if message != before {
        write_row(&mut batch.tables, &message)?;
    }
    // Said also where an earlier report proved it: whoever applied that one may not have lived to
    // cancel the retry.
    Ok(match message.state {
        State::Sent { .. } => Applied::Sent,
        State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. } => Applied::Done,
    })
}

fn read_row(tables: &Tables<'_>, id: MessageId) -> Result<Option<Message>, ReadError> {
    let row = tables.messages.get(id.as_bytes())?;
    Ok(row.map(|row| decode_message(id, row.value())).transpose()?)
}

fn write_row(tables: &mut Tables<'_>, message: &Message) -> Result<(), ReadError> {
    tables.messages.insert(message.id.as_bytes(), encode_message(message).as_slice())?;
    if !matches!(message.state, State::Queued { .. }) {
        tables.pending.remove(message.id.as_bytes())?;
    }
    Ok(())
}

/// An event's key: message, time, rank, digest. Orders a message's events by time, and gives the
/// same event the same key however often it arrives: same type, recipients and time.
fn event_key(message: MessageId, event: &Event) -> Vec<u8> {
    let mut recipients: Vec<&str> = event.recipients.iter().map(String::as_str).collect();
    recipients.sort_unstable();
    let mut digest = Sha256::new();
    for recipient in recipients {
        digest.update(recipient.as_bytes());
        digest.update([0]);
    }
    let digest = digest.finalize();
    let mut key = Vec::with_capacity(33);
    key.extend_from_slice(message.as_bytes());
    key.extend_from_slice(&event.occurred_at.unix_millis().to_be_bytes());
    key.push(event.event_type() as u8);
    key.extend_from_slice(&digest[..8]);
    key
}

/// The bounds of a message's event keys.
fn event_keys(message: MessageId) -> (Vec<u8>, Vec<u8>) {
    let first = message.as_bytes().to_vec();
    let last = [message.as_bytes().as_slice(), &[u8::MAX; 17]].concat();
    (first, last)
}
