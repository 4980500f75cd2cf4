//! Which message the provider knows by which id: for events that do not carry our own.
//!
//! Ordered by time, so that inserts go to the table's end. The provider's ids are random: an index
//! by them would cost the sends an order of magnitude at some million rows. The price is a bounded
//! search around the time at which the provider says that it accepted the message.

use std::ops::Range;
use std::time::Duration;

use redb::ReadableTable;

use crate::domain::id::MessageId;
use crate::domain::message::{Message, State};
use crate::domain::time::Timestamp;
use crate::store::redb::message_events::{is_owner, observe};
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::message::decode_message;
use crate::store::redb::tables::Tables;
use crate::store::redb::unmatched;
use crate::store::redb::writer::Batch;

/// How far our record of an acceptance may be from the provider's, either way: AWS refuses
/// signatures over five minutes off its own clock, and a call may take as long again.
const SEARCH_WINDOW: Duration = Duration::from_mins(10);
/// How many rows a search looks at, the nearest in time first.
const SEARCH_ROWS: usize = 20_000;

/// Notes a message that has become sent, and applies the events that came before its outcome.
pub(super) fn note(batch: &mut Batch<'_>, message: &mut Message) -> Result<(), ReadError> {
    let State::Sent { ses_message_id, sent_at } = &message.state else { return Ok(()) };
    let key = (sent_at.unix_millis(), *message.id.as_bytes());
    batch.tables.sent.open()?.insert(key, ses_message_id.as_bytes())?;
    let kept = unmatched::take(batch, ses_message_id)?;
    for early in kept {
        if is_owner(batch, message, early.organisation.as_deref()) {
            observe(batch, message, &early.event)?;
        }
    }
    Ok(())
}

/// The message that the provider knows by this id and accepted at about this time.
pub(super) fn find(
    tables: &mut Tables<'_>,
    ses_message_id: &str,
    accepted_at: Timestamp,
) -> Result<Option<MessageId>, redb::Error> {
    let at = (accepted_at.unix_millis(), [0; 16]);
    let end = (accepted_at.plus(SEARCH_WINDOW).unix_millis(), [u8::MAX; 16]);
    let start = (accepted_at.minus(SEARCH_WINDOW).unix_millis(), [0; 16]);
    let sent = tables.sent.open()?;
    let mut later = sent.range(at..=end)?;
    let mut earlier = sent.range(start..at)?.rev();
    for _ in 0..SEARCH_ROWS / 2 {
        // Taken in turn: our record is a call's length after the provider's, give or take the
        // difference between the clocks.
        let pair = [later.next(), earlier.next()];
        if pair.iter().all(Option::is_none) {
            break;
        }
        for row in pair.into_iter().flatten() {
            let (key, row) = row?;
            if row.value() == ses_message_id.as_bytes() {
                return Ok(Some(MessageId::from_bytes(key.value().1)));
            }
        }
    }
    Ok(None)
}

/// Removes what stands here of the first `limit` messages of `ids`, ahead of their records.
pub(super) fn purge(
    tables: &mut Tables<'_>,
    ids: &Range<MessageId>,
    limit: usize,
) -> Result<(), ReadError> {
    let mut keys = Vec::new();
    for row in tables.messages.range(*ids.start.as_bytes()..*ids.end.as_bytes())?.take(limit) {
        let (id, row) = row?;
        // A record that cannot be read must not keep all others from being purged.
        let Ok(message) = decode_message(MessageId::from_bytes(id.value()), row.value()) else {
            continue;
        };
        if let State::Sent { sent_at, .. } = message.state {
            keys.push((sent_at.unix_millis(), *message.id.as_bytes()));
        }
    }
    for key in keys {
        tables.sent.open()?.remove(key)?;
    }
    Ok(())
}
