//! Changes: the rows that a transaction puts and removes, in the order in which it does so.
//!
//! The journal keeps them as bytes. To replay them a second time changes nothing.
//!
//! A row may be noted for later: the journal gets it with its batch, and the table after the batch
//! is answered, or as soon as an operation opens the table.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Deref, RangeBounds};

use bytes::Bytes;
use redb::{AccessGuard, Key, StorageError, Value};

/// Length that stands for a row that was removed; no value is so long.
const REMOVED: u32 = u32::MAX;
/// Bytes of a change before its key: the table's number and the lengths of key and value.
const HEAD_BYTES: usize = 1 + 4 + 4;

/// Changes of one batch.
#[derive(Debug, Default)]
pub(super) struct Changes {
    bytes: RefCell<Vec<u8>>,
    later: RefCell<Later>,
}

/// Where the changes begin that a table does not have yet, by the table's number.
type Later = BTreeMap<u8, Vec<usize>>;

impl Changes {
    /// Returns all changes as bytes, and the rows that their tables do not have yet.
    pub(super) fn into_parts(self) -> (Bytes, LaterRows) {
        let changes = Bytes::from(self.bytes.into_inner());
        (changes.clone(), LaterRows { changes, later: self.later.into_inner() })
    }

    /// Notes a row for a table that is not open.
    pub(super) fn note_later(&self, table: u8, key: &[u8], value: &[u8]) {
        let offset = self.bytes.borrow().len();
        self.later.borrow_mut().entry(table).or_default().push(offset);
        self.note(table, key, Some(value));
    }

    fn note(&self, table: u8, key: &[u8], value: Option<&[u8]>) {
        let length = |bytes: &[u8]| {
            u32::try_from(bytes.len()).expect("redb's rows are shorter than 4 GiB").to_le_bytes()
        };
        let mut bytes = self.bytes.borrow_mut();
        bytes.push(table);
        bytes.extend_from_slice(&length(key));
        bytes.extend_from_slice(&value.map_or(REMOVED.to_le_bytes(), length));
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value.unwrap_or_default());
    }
}

/// Rows of a batch that are in the journal, and not in their tables yet.
#[derive(Debug, Default)]
pub(super) struct LaterRows {
    changes: Bytes,
    later: Later,
}

impl LaterRows {
    /// Returns the tables' numbers, each with its keys and values.
    pub(super) fn by_table(&self) -> impl Iterator<Item = (u8, impl Iterator<Item = NewRow<'_>>)> {
        let tables = self.later.iter();
        tables.map(|(table, offsets)| (*table, rows_at(&self.changes, offsets)))
    }
}

/// Key and value of a row.
type NewRow<'a> = (&'a [u8], &'a [u8]);

fn rows_at<'a>(changes: &'a [u8], offsets: &'a [usize]) -> impl Iterator<Item = NewRow<'a>> {
    offsets.iter().map(|offset| {
        let (change, _) = split_change(&changes[*offset..]).expect("it was noted whole");
        (change.key, change.value.expect("a row was put"))
    })
}

/// Change of one row, as [`Changes`] has it.
pub(super) struct RowChange<'a> {
    /// Number of the table.
    pub(super) table: u8,
    pub(super) key: &'a [u8],
    /// `None` if the row was removed.
    pub(super) value: Option<&'a [u8]>,
}

/// Reads changes one after the other; `None` in the place of the last one if they are cut short.
pub(super) fn row_changes(bytes: &[u8]) -> impl Iterator<Item = Option<RowChange<'_>>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let change = split_change(rest);
        rest = change.as_ref().map_or(&[], |(_, behind)| behind);
        Some(change.map(|(change, _)| change))
    })
}

/// Splits off the first change.
fn split_change(bytes: &[u8]) -> Option<(RowChange<'_>, &[u8])> {
    let ([table, k0, k1, k2, k3, v0, v1, v2, v3], behind) =
        bytes.split_first_chunk::<HEAD_BYTES>()?;
    let key_length = u32::from_le_bytes([*k0, *k1, *k2, *k3]);
    let value_length = u32::from_le_bytes([*v0, *v1, *v2, *v3]);
    let (key, behind) = behind.split_at_checked(usize::try_from(key_length).ok()?)?;
    if value_length == REMOVED {
        return Some((RowChange { table: *table, key, value: None }, behind));
    }
    let (value, behind) = behind.split_at_checked(usize::try_from(value_length).ok()?)?;
    Some((RowChange { table: *table, key, value: Some(value) }, behind))
}

/// Table of a transaction, which notes what is put and removed. It is read as redb's own is.
pub(super) struct Table<'txn, K: Key + 'static, V: Value + 'static> {
    inner: redb::Table<'txn, K, V>,
    /// Position in `TABLES`.
    number: u8,
    changes: &'txn Changes,
}

impl<'txn, K: Key + 'static, V: Value + 'static> Deref for Table<'txn, K, V> {
    type Target = redb::Table<'txn, K, V>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl<'txn, K: Key + 'static, V: Value + 'static> Table<'txn, K, V> {
    /// Wraps a table, which gets the rows that were noted for it.
    pub(super) fn new(
        mut inner: redb::Table<'txn, K, V>,
        number: u8,
        changes: &'txn Changes,
    ) -> Result<Self, StorageError> {
        if let Some(offsets) = changes.later.borrow_mut().remove(&number) {
            for (key, value) in rows_at(&changes.bytes.borrow(), &offsets) {
                inner.insert(K::from_bytes(key), V::from_bytes(value))?;
            }
        }
        Ok(Self { inner, number, changes })
    }

    /// Puts a row in the place of one that may be there.
    pub(super) fn insert<'k, 'v>(
        &mut self,
        key: impl Borrow<K::SelfType<'k>>,
        value: impl Borrow<V::SelfType<'v>>,
    ) -> Result<(), StorageError> {
        let (key, value) = (key.borrow(), value.borrow());
        self.inner.insert(key, value)?;
        let value = V::as_bytes(value);
        self.changes.note(self.number, K::as_bytes(key).as_ref(), Some(value.as_ref()));
        Ok(())
    }

    /// Removes a row and returns it, if it was there.
    pub(super) fn remove<'k>(
        &mut self,
        key: impl Borrow<K::SelfType<'k>>,
    ) -> Result<Option<AccessGuard<'_, V>>, StorageError> {
        let key = key.borrow();
        let removed = self.inner.remove(key)?;
        if removed.is_some() {
            self.changes.note(self.number, K::as_bytes(key).as_ref(), None);
        }
        Ok(removed)
    }

    /// Removes the rows of a range for which `keep` returns false.
    pub(super) fn retain_in<'a, KR: Borrow<K::SelfType<'a>> + 'a>(
        &mut self,
        range: impl RangeBounds<KR> + 'a,
        mut keep: impl for<'f> FnMut(K::SelfType<'f>, V::SelfType<'f>) -> bool,
    ) -> Result<(), StorageError> {
        let (number, changes) = (self.number, self.changes);
        self.inner.retain_in::<KR, _>(range, |key, value| {
            let noted = K::as_bytes(&key).as_ref().to_vec();
            let is_kept = keep(key, value);
            if !is_kept {
                changes.note(number, &noted, None);
            }
            is_kept
        })
    }
}
