//! What the provider reported and no message's record has: dead letters, which are documents that
//! could not be read, and unmatched events, whose message has no record. Each table holds only so
//! many rows, and only for so long.
//!
//! An unmatched event without our tags may have overtaken the outcome that says by which id the
//! provider knows its message, and waits for that. One with our tags never finds a message, because
//! the tags exist only after the message is durable: it is kept if it has suppressed somebody, so
//! that a repeat of it is told.

use redb::{ReadableTable, ReadableTableMetadata, StorageError};

use crate::domain::clock_corrections::WindowTime;
use crate::domain::policy::RECORD_RETENTION;
use crate::domain::time::Timestamp;
use crate::store::limits::{self, MAX_DEAD_LETTERS, MAX_UNMATCHED, UNMATCHED_WAIT};
use crate::store::record::{
    UnmatchedEvent, decode_dead_letter, decode_unmatched, encode_dead_letter,
};
use crate::store::redb::RedbStore;
use crate::store::redb::batch::Batch;
use crate::store::redb::changes::Table;
use crate::store::redb::error::{InRow, ReadError};
use crate::store::redb::tables::{DEAD_LETTERS, Row, Tables, TimedRow, UNMATCHED};
use crate::store::transitions::DIGEST_BYTES;
use crate::store::{Change, StoreError};
use crate::store::{DeadLetter, EventBacklog};

/// The part of a full table that goes at once, so that not every new row looks at all others.
const SHARE: usize = 10;

impl RedbStore {
    pub(in crate::store) async fn keep_dead_letters(
        &self,
        letters: Vec<DeadLetter>,
    ) -> Result<(), StoreError> {
        let weight = DeadLetter::MAX_DOCUMENT_BYTES * letters.len();
        let keep = self.writer.run(weight, move |batch| {
            let table = batch.tables.dead_letters.open()?;
            for letter in letters {
                let key = letter.key();
                if table.get(key.as_slice())?.is_none() {
                    make_room(table, MAX_DEAD_LETTERS, limits::DEAD_LETTERS)?;
                    let row = encode_dead_letter(&letter);
                    let row = (letter.received_at.unix_millis(), row.as_slice());
                    table.insert(key.as_slice(), row)?;
                }
            }
            Ok(())
        });
        keep.await
    }

    pub(in crate::store) async fn remove_dead_letters(
        &self,
        letters: &[DeadLetter],
    ) -> Result<usize, StoreError> {
        let keys: Vec<_> = letters.iter().map(DeadLetter::key).collect();
        let remove = self.writer.run(0, move |batch| {
            let table = batch.tables.dead_letters.open()?;
            let mut removed = 0;
            for key in keys {
                removed += usize::from(table.remove(key.as_slice())?.is_some());
            }
            Ok(removed)
        });
        remove.await
    }

    pub(in crate::store) fn dead_letters(
        &self,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.read(&DEAD_LETTERS, "a list", |transaction| {
            let mut letters = Vec::new();
            for row in transaction.open_table(DEAD_LETTERS)?.iter()? {
                let (key, row) = row?;
                let (time, row) = row.value();
                let read = decode_dead_letter(Timestamp::from_unix_millis(time), row)
                    .in_row(DEAD_LETTERS, hex::encode(key.value()));
                letters.extend(self.shared.damage.left_out(read));
            }
            letters.sort_by_key(|letter| std::cmp::Reverse(letter.received_at));
            letters.truncate(limit);
            Ok(letters)
        })
    }

    pub(in crate::store) fn event_backlog(&self) -> Result<EventBacklog, StoreError> {
        self.read(&UNMATCHED, "their number", |transaction| {
            Ok(EventBacklog {
                unmatched: transaction.open_table(UNMATCHED)?.len()?,
                dead_letters: transaction.open_table(DEAD_LETTERS)?.len()?,
            })
        })
    }
}

/// Keeps the row of an event whose message has no record, unless it is there already.
pub(super) fn keep_unmatched(
    batch: &mut Batch<'_>,
    ses_message_id: &str,
    digest: &[u8],
    row: &[u8],
    now: Timestamp,
) -> Result<Change, ReadError> {
    let table = batch.tables.unmatched.open()?;
    let key = [prefix(ses_message_id).as_slice(), digest].concat();
    if table.get(key.as_slice())?.is_some() {
        return Ok(Change::None);
    }
    make_room(table, MAX_UNMATCHED, limits::UNMATCHED)?;
    table.insert(key.as_slice(), (now.unix_millis(), row))?;
    Ok(Change::Made)
}

/// Takes out the events of the message that the provider knows by this id. One that cannot be read
/// goes as well.
pub(super) fn take_unmatched(
    batch: &mut Batch<'_>,
    ses_message_id: &str,
) -> Result<Vec<UnmatchedEvent>, ReadError> {
    let (table, damage) = (batch.tables.unmatched.open()?, &batch.shared.damage);
    let mut events = Vec::new();
    if table.is_empty()? {
        return Ok(events);
    }
    let first = prefix(ses_message_id);
    let last = [first.as_slice(), &[u8::MAX; DIGEST_BYTES]].concat();
    let range = first.as_slice()..=last.as_slice();
    if table.range::<&[u8]>(range.clone())?.next().is_none() {
        return Ok(events);
    }
    table.retain_in::<&[u8]>(range, |_, (_, row)| {
        events.extend(damage.left_out(decode_unmatched(row).in_row(UNMATCHED, ses_message_id)));
        false
    })?;
    Ok(events)
}

fn prefix(ses_message_id: &str) -> Vec<u8> {
    // No id has a NUL in it, so none is the beginning of another's key.
    [ses_message_id.as_bytes(), &[0]].concat()
}

/// Removes the events that have waited long enough, and dead letters past a record's retention.
pub(super) fn expire(tables: &mut Tables<'_>, window_now: &WindowTime) -> Result<(), ReadError> {
    let both = [
        (tables.unmatched.open()?, UNMATCHED_WAIT),
        (tables.dead_letters.open()?, RECORD_RETENTION),
    ];
    for (table, window) in both {
        if !table.is_empty()? {
            table.retain_in::<&[u8]>(.., |_, (time, _)| {
                !window_now.is_past(Timestamp::from_unix_millis(time), window)
            })?;
        }
    }
    Ok(())
}

/// Removes the oldest rows of a table that has `max` of them.
fn make_room(
    table: &mut Table<'_, Row, TimedRow>,
    max: usize,
    what: &str,
) -> Result<(), ReadError> {
    if table.len()? < max as u64 {
        return Ok(());
    }
    let mut times: Vec<u64> = table
        .iter()?
        .map(|row| row.map(|(_, row)| row.value().0))
        .collect::<Result<_, StorageError>>()?;
    let number = (times.len() / SHARE).max(1);
    let (older, cut, _) = times.select_nth_unstable(number - 1);
    let cut = *cut;
    let mut at_the_cut = number - older.iter().filter(|&&time| time < cut).count();
    table.retain_in::<&[u8]>(.., |_, (time, _)| {
        let goes = time < cut || (time == cut && at_the_cut > 0);
        if goes && time == cut {
            at_the_cut -= 1;
        }
        !goes
    })?;
    limits::warn_removed(number as u64, what);
    Ok(())
}
