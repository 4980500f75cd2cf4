//! Documents of the provider that could not be read, for the operator to look at: only so many,
//! and no longer than a record.

use std::fmt::Write;

use redb::{ReadTransaction, ReadableTable};
use sha2::{Digest, Sha256};

use crate::domain::clock_corrections::WindowTime;
use crate::domain::policy::RECORD_RETENTION;
use crate::domain::time::Timestamp;
use crate::store::DeadLetter;
use crate::store::redb::bounded::{expire as expire_rows, make_room};
use crate::store::redb::damage::{Damage, InRow};
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::kept_event::{decode_dead_letter, encode_dead_letter};
use crate::store::redb::tables::{DEAD_LETTERS, Tables};
use crate::store::redb::writer::Batch;

/// How many are kept; beyond, the oldest go.
const MAX_LETTERS: u64 = 1_000;

/// Keeps dead letters; one that is there already stays as it is.
pub(in crate::store) fn keep_all(
    batch: &mut Batch<'_>,
    letters: &[DeadLetter],
) -> Result<(), ReadError> {
    let table = batch.tables.dead_letters.open()?;
    for letter in letters {
        let key = key(letter);
        let key = key.as_slice();
        if table.get(key)?.is_none() {
            make_room(table, MAX_LETTERS, "unreadable documents")?;
            let row = encode_dead_letter(letter);
            table.insert(key, (letter.received_at.unix_millis(), row.as_slice()))?;
        }
    }
    Ok(())
}

/// A dead letter's key: the beginning of its document's digest.
pub(in crate::store) fn key(letter: &DeadLetter) -> [u8; 16] {
    let digest = Sha256::digest(letter.document.as_bytes());
    *digest.first_chunk().expect("a digest has 32 bytes")
}

/// A key as letters and digits.
pub(in crate::store) fn hexadecimal(key: &[u8]) -> String {
    key.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text takes everything");
        text
    })
}

/// Removes those with these keys; how many there were.
pub(in crate::store) fn remove(
    batch: &mut Batch<'_>,
    keys: &[[u8; 16]],
) -> Result<usize, ReadError> {
    let mut removed = 0;
    for key in keys {
        if batch.tables.dead_letters.open()?.remove(key.as_slice())?.is_some() {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Reads dead letters, newest first. Rows that cannot be read are left out.
pub(in crate::store) fn list(
    transaction: &ReadTransaction,
    damage: &Damage,
    limit: usize,
) -> Result<Vec<DeadLetter>, ReadError> {
    let mut letters = Vec::new();
    for row in transaction.open_table(DEAD_LETTERS)?.iter()? {
        let (key, row) = row?;
        let (time, row) = row.value();
        let read = decode_dead_letter(Timestamp::from_unix_millis(time), row);
        letters.extend(damage.left_out(read.in_row(DEAD_LETTERS, hexadecimal(key.value()))));
    }
    letters.sort_by_key(|letter| std::cmp::Reverse(letter.received_at));
    letters.truncate(limit);
    Ok(letters)
}

/// Removes those that are past a record's retention.
pub(super) fn expire(tables: &mut Tables<'_>, window_now: &WindowTime) -> Result<(), ReadError> {
    expire_rows(tables.dead_letters.open()?, window_now, RECORD_RETENTION)
}
