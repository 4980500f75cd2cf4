//! Any bytes as rows, for fuzzing: each is a row that is the same once it is written again, or
//! none.

use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::store::redb::record::RowError;
use crate::store::redb::record::event::{decode_event, encode_event};
use crate::store::redb::record::kept_event::{
    decode_dead_letter, decode_early, encode_dead_letter, encode_early,
};
use crate::store::redb::record::message::{
    IdempotencyRow, decode_message, encode_message, organisation_of,
};
use crate::store::redb::record::tenant::{
    decode_api_key, decode_domain, decode_organisation, decode_suppression, encode_api_key,
    encode_domain, encode_organisation, encode_suppression,
};
use crate::store::redb::record::time_record::{decode_time, encode_time};

/// How many kinds of rows there are.
const KINDS: u8 = 10;
/// For what is in a row's key.
const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

/// Reads bytes as a row of the kind that their first byte says; whether they are one. Panics where
/// the row is not the same after it was written and read again.
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
        3 => is_lasting(row, decode_early, |early| {
            encode_early(&early.event, early.organisation.as_deref())
        }),
        4 => is_lasting(row, |row| decode_dead_letter(NOON, row), encode_dead_letter),
        5 => is_lasting(row, |row| decode_suppression("a@example.org", row), encode_suppression),
        6 => is_lasting(row, decode_organisation, encode_organisation),
        7 => is_lasting(row, |row| decode_api_key(1, row), encode_api_key),
        8 => is_lasting(row, |row| decode_domain(1, "example.com", row), encode_domain),
        _ => is_lasting(row, decode_time, encode_time),
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

#[cfg(test)]
mod tests;
