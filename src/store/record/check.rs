//! Any bytes as rows, for fuzzing: a row stays the same after it is written again. Other bytes are
//! no row.

use crate::error::RowError;
use crate::record::alerts::{decode_alert, encode_alert};
use crate::record::directory::{
    decode_api_key, decode_domain, decode_organisation, encode_api_key, encode_domain,
    encode_organisation,
};
use crate::record::timeline::{decode_step, encode_step};
use crate::record::usage::{decode_usage, encode_usage};
use crate::record::{
    IdempotencyRow, decode_dead_letter, decode_event, decode_feed, decode_message,
    decode_overturned, decode_suppression, decode_time, decode_unmatched, encode_dead_letter,
    encode_event, encode_feed, encode_message, encode_overturned, encode_suppression, encode_time,
    encode_unmatched, organisation_of,
};
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;

/// Number of kinds of rows.
pub(super) const KINDS: u8 = 15;
/// Instant for rows whose key holds one.
const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

/// Reads bytes as a row of the kind that their first byte selects; returns true if they are one.
/// Panics if the row is not the same after it was written and read again.
pub fn check_row(data: &[u8]) -> bool {
    let Some((kind, row)) = data.split_first() else { return false };
    let id = MessageId::first_of(NOON);
    match kind % KINDS {
        0 => {
            if let Ok(message) = decode_message(id, row) {
                assert_eq!(organisation_of(row), Some(message.organisation));
            }
            is_lasting(row, |row| decode_message(id, row), encode_message)
        }
        1 => {
            let written = IdempotencyRow::decode(row).map(|row| row.encode());
            written.is_ok_and(|written| {
                IdempotencyRow::decode(&written).expect("what was written").encode() == written
            })
        }
        2 => is_lasting(row, decode_event, encode_event),
        3 => is_lasting(row, decode_unmatched, |kept| {
            encode_unmatched(&kept.event, kept.organisation.as_deref())
        }),
        4 => is_lasting(row, |row| decode_dead_letter(NOON, row), encode_dead_letter),
        5 => is_lasting(row, |row| decode_suppression("a@example.org", row), encode_suppression),
        6 => is_lasting(row, |row| decode_organisation(1, row), encode_organisation),
        7 => is_lasting(row, |row| decode_api_key(1, row), encode_api_key),
        8 => is_lasting(row, |row| decode_domain(1, "example.com", row), encode_domain),
        9 => is_lasting(row, decode_time, encode_time),
        10 => {
            let position = FeedPosition::first_of(NOON);
            let decode = |row: &[u8]| decode_feed(position, row);
            is_lasting(row, decode, |row| encode_feed(position, row))
        }
        11 => is_lasting(row, decode_overturned, encode_overturned),
        12 => is_lasting(row, decode_step, encode_step),
        13 => is_lasting(row, |row| decode_usage(0, row), encode_usage),
        _ => is_lasting(row, decode_alert, encode_alert),
    }
}

fn is_lasting<T>(
    row: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, RowError>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> bool {
    let Ok(read) = decode(row) else { return false };
    let written = encode(&read);
    let again = decode(&written).expect("what was written is a row");
    assert_eq!(encode(&again), written);
    true
}
