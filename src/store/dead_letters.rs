//! Dead letters: the provider's documents that could not be read. Their number and the time for
//! which they are kept are limited.

use std::cmp::Reverse;

use crate::limits::{self, MAX_DEAD_LETTERS};
use crate::record::{decode_dead_letter, encode_dead_letter};
use crate::rows::{InTable, Key, KeyRange, Lock, Rows, Table, read_all, split_timed, timed};
use crate::{DeadLetter, EventBacklog, Store, StoreError};

impl Store {
    /// Keeps documents that could not be read; one that is there already stays as it is. If there
    /// are too many, the oldest are deleted.
    pub async fn keep_dead_letters(&self, letters: Vec<DeadLetter>) -> Result<(), StoreError> {
        let weight = letters.len() * DeadLetter::MAX_DOCUMENT_BYTES / super::ROW_WEIGHT;
        let keep = move |rows: &mut dyn Rows| {
            let keys: Vec<Key> = letters.iter().map(key).collect();
            read_all(rows, Table::DeadLetters, &keys)?;
            for (letter, key) in letters.iter().zip(&keys) {
                if rows.get(Table::DeadLetters, key)?.is_none() {
                    rows.make_room(Table::DeadLetters, MAX_DEAD_LETTERS, limits::DEAD_LETTERS)?;
                    let row = timed(letter.received_at, &encode_dead_letter(letter));
                    rows.put(Table::DeadLetters, key, &row)?;
                }
            }
            Ok(())
        };
        self.change(Lock::Rows, weight, keep).await
    }

    /// Removes dead letters; returns the number of them that were there.
    pub async fn remove_dead_letters(&self, letters: &[DeadLetter]) -> Result<usize, StoreError> {
        let keys: Vec<Key> = letters.iter().map(key).collect();
        let remove = move |rows: &mut dyn Rows| {
            read_all(rows, Table::DeadLetters, &keys)?;
            let mut removed = 0;
            for key in &keys {
                if rows.get(Table::DeadLetters, key)?.is_some() {
                    rows.remove(Table::DeadLetters, key)?;
                    removed += 1;
                }
            }
            Ok(removed)
        };
        self.change(Lock::Rows, 0, remove).await
    }

    /// The documents that could not be read, newest first, at most `limit`. Rows that cannot be
    /// read are left out.
    pub async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let rows = self.rows(Table::DeadLetters, KeyRange::all(), MAX_DEAD_LETTERS).await?;
        let read = rows.iter().filter_map(|(key, row)| {
            let (received_at, row) = split_timed(row);
            let id = hex::encode(key.bytes());
            let read = decode_dead_letter(received_at, row).in_table(Table::DeadLetters, id);
            self.damage().left_out(read)
        });
        let mut letters: Vec<DeadLetter> = read.collect();
        letters.sort_by_key(|letter| Reverse(letter.received_at));
        letters.truncate(limit);
        Ok(letters)
    }

    /// Number of the provider's reports that wait for their message or for a reader.
    pub async fn event_backlog(&self) -> Result<EventBacklog, StoreError> {
        Ok(EventBacklog {
            unmatched: self.count_rows(Table::UnmatchedEvents, KeyRange::all()).await?,
            dead_letters: self.count_rows(Table::DeadLetters, KeyRange::all()).await?,
        })
    }
}

fn key(letter: &DeadLetter) -> Key {
    Key::from(letter.key().as_slice())
}
