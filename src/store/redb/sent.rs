//! Provider's ids of the messages that it accepted. By them, an event without our own id finds its
//! message.
//!
//! The ids are ordered by time, so that inserts go to the table's end. The provider's ids are
//! random: an index by them would cost the sends an order of magnitude at some million rows. The
//! price is a bounded search around the time at which the provider says that it accepted the
//! message.

use redb::ReadableTable;

use crate::redb::tables::{IdKey, Row};
use crate::transitions::SEARCH_WINDOW;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;

/// Number of rows that a search checks, the nearest in time first.
const SEARCH_ROWS: usize = 20_000;

/// Finds the message that the provider knows by this id and accepted at about this time.
pub(super) fn find(
    sent: &impl ReadableTable<(u64, IdKey), Row>,
    ses_message_id: &str,
    accepted_at: Timestamp,
) -> Result<Option<MessageId>, redb::StorageError> {
    let at = (accepted_at.unix_millis(), [0; 16]);
    let end = (accepted_at.plus(SEARCH_WINDOW).unix_millis(), [u8::MAX; 16]);
    let start = (accepted_at.minus(SEARCH_WINDOW).unix_millis(), [0; 16]);
    let mut later = sent.range(at..=end)?;
    let mut earlier = sent.range(start..at)?.rev();
    for _ in 0..SEARCH_ROWS / 2 {
        // Alternately from both sides: our record is later than the provider's by the time of a
        // call, plus or minus the difference between the clocks.
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
