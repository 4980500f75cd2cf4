//! Messages: recording what became of them, and reading them back.

use redb::{ReadTransaction, ReadableTable};

use crate::domain::clock_corrections::WindowTime;
use crate::domain::id::MessageId;
use crate::domain::message::{FailureCode, Message, Recorded, State, Transition};
use crate::domain::time::Timestamp;
use crate::metrics::organisations::Increment;
use crate::store::redb::damage::InRow;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::message::{decode_message, encode_message};
use crate::store::redb::tables::{MESSAGES, Tables};
use crate::store::redb::writer::Batch;
use crate::store::redb::{lost, provider_ids};

/// Reads a message that has not reached the end of its retention.
pub(in crate::store) fn read(
    transaction: &ReadTransaction,
    id: MessageId,
    window_now: &WindowTime,
) -> Result<Option<Message>, ReadError> {
    let Some(row) = transaction.open_table(MESSAGES)?.get(id.as_bytes())? else {
        return Ok(None);
    };
    let message = decode_message(id, row.value()).in_row(MESSAGES, id)?;
    let message = corrected(message, window_now);
    Ok((!message.is_expired(window_now.now())).then_some(message))
}

/// Returns a message as readers see it: with the corrected time of its acceptance.
pub(super) fn corrected(message: Message, window_now: &WindowTime) -> Message {
    Message { created_at: window_now.corrected(message.created_at), ..message }
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
    let attempts_before = message.attempts;
    let lost_at = match &transition {
        Transition::BodyLost { found_at, .. } => Some(*found_at),
        Transition::Sent { .. }
        | Transition::RetryLater { .. }
        | Transition::Failed { .. }
        | Transition::Suppressed => None,
    };
    let recorded = message.record(attempts, transition);
    if recorded == Recorded::Changed {
        if let Some(found_at) = lost_at {
            lost::add(&mut batch.tables, 1, found_at)?;
        }
        provider_ids::note(batch, &mut message)?;
        note_state(batch, &message);
    }
    if recorded == Recorded::Changed || message.attempts != attempts_before {
        write_row(&mut batch.tables, &message)?;
    }
    Ok(recorded)
}

/// Counts the final state that a message has come to.
pub(super) fn note_state(batch: &mut Batch<'_>, message: &Message) {
    let increment = match message.state {
        State::Queued { .. } => return,
        State::Sent { .. } => Increment::Sent { recipients: message.recipients.len() as u64 },
        State::Failed { ref failure, .. } if failure.code == FailureCode::Cancelled => {
            Increment::Cancelled
        }
        State::Failed { .. } => Increment::Failed,
        State::Suppressed { .. } => Increment::Suppressed,
    };
    batch.increments.push((message.organisation, increment));
}

/// When the first record in the table was made, as it is stored; of one that cannot be read, its
/// id's instant.
pub(in crate::store) fn oldest(
    transaction: &ReadTransaction,
) -> Result<Option<Timestamp>, ReadError> {
    let messages = transaction.open_table(MESSAGES)?;
    let Some((id, row)) = messages.first()? else { return Ok(None) };
    let id = MessageId::from_bytes(id.value());
    Ok(Some(decode_message(id, row.value()).map_or(id.instant(), |message| message.created_at)))
}

/// Returns the instant of the last id in the table.
pub(in crate::store) fn newest(
    transaction: &ReadTransaction,
) -> Result<Option<Timestamp>, ReadError> {
    let messages = transaction.open_table(MESSAGES)?;
    let last = messages.last()?;
    Ok(last.map(|(id, _)| MessageId::from_bytes(id.value()).instant()))
}

pub(super) fn read_row(tables: &Tables<'_>, id: MessageId) -> Result<Option<Message>, ReadError> {
    let row = tables.messages.get(id.as_bytes())?;
    Ok(row.map(|row| decode_message(id, row.value()).in_row(MESSAGES, id)).transpose()?)
}

pub(super) fn write_row(tables: &mut Tables<'_>, message: &Message) -> Result<(), ReadError> {
    tables.messages.insert(message.id.as_bytes(), encode_message(message).as_slice())?;
    if !matches!(message.state, State::Queued { .. }) {
        tables.pending.remove(message.id.as_bytes())?;
    }
    Ok(())
}
