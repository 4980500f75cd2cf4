//! Changes: the rows that a transaction puts and removes, in the order in which it does so.
//!
//! The journal keeps them as bytes. A second replay changes nothing.
//!
//! A change may be noted for later: the journal gets it with its batch, and the table together with
//! those of other batches, or as soon as an operation opens the table. A later change of the same
//! row replaces the earlier one until then.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Deref, Range, RangeBounds};

use bytes::Bytes;
use redb::{AccessGuard, Key, ReadableTable, StorageError, Value};
use rustc_hash::FxHashMap;

/// Length that stands for a row that was removed; no value has this length.
const REMOVED: u32 = u32::MAX;

/// Changes of one batch, and those of earlier ones that their tables do not have yet.
#[derive(Debug, Default)]
pub(super) struct Changes {
    bytes: RefCell<Vec<u8>>,
    later: RefCell<LaterChanges>,
}

/// Changes that are in the journal, or about to be, and not in their tables yet.
#[derive(Debug, Default)]
pub(super) struct LaterChanges {
    /// The changes of the batches that these are part of, oldest first.
    batches: Vec<Bytes>,
    by_table: BTreeMap<u8, TableChanges>,
}

#[derive(Debug, Default)]
struct TableChanges {
    /// Places of the changes, in the order in which they were made.
    places: Vec<Place>,
    /// The last change of each row whose key is as long as a message's id.
    by_id: FxHashMap<[u8; 16], Place>,
}

/// Place of a change: its batch and its beginning there.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Position in the batches. The one after the last is the running batch.
    batch: usize,
    offset: usize,
}

impl Changes {
    /// Returns an empty list of changes, after earlier batches' changes that their tables do not
    /// have yet.
    pub(super) fn after(earlier: LaterChanges) -> Self {
        Self { bytes: RefCell::default(), later: RefCell::new(earlier) }
    }

    /// Returns all changes as bytes, and those that their tables do not have yet.
    pub(super) fn into_parts(self) -> (Bytes, LaterChanges) {
        let changes = Bytes::from(self.bytes.into_inner());
        let mut later = self.later.into_inner();
        if later.by_table.is_empty() {
            later.batches.clear();
        } else {
            later.batches.push(changes.clone());
        }
        (changes, later)
    }

    /// Notes that a table gets a row later, or loses it if there is no value.
    pub(super) fn note_later(&self, table: u8, key: &[u8], value: Option<&[u8]>) {
        let mut later = self.later.borrow_mut();
        let place = Place { batch: later.batches.len(), offset: self.bytes.borrow().len() };
        let changes = later.by_table.entry(table).or_default();
        changes.places.push(place);
        if let Ok(id) = <[u8; 16]>::try_from(key) {
            changes.by_id.insert(id, place);
        }
        drop(later);
        self.note(table, key, value);
    }

    /// Reads a row that was noted for later; `None` if there is no such note. `work` gets `None` if
    /// the row is to be removed.
    pub(super) fn read_later<T>(
        &self,
        table: u8,
        id: &[u8; 16],
        work: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Option<T> {
        let (bytes, later) = (self.bytes.borrow(), self.later.borrow());
        let place = later.by_table.get(&table)?.by_id.get(id)?;
        Some(work(later.change_at(*place, &bytes).value))
    }

    fn note(&self, table: u8, key: &[u8], value: Option<&[u8]>) {
        let mut bytes = self.bytes.borrow_mut();
        bytes.push(table);
        push_row(&mut bytes, key, value);
    }
}

impl LaterChanges {
    pub(super) fn len(&self) -> usize {
        self.by_table.values().map(|changes| changes.places.len()).sum()
    }

    /// Returns the tables' numbers, each with the last change of every row.
    pub(super) fn by_table(&self) -> impl Iterator<Item = (u8, Vec<RowChange<'_>>)> {
        let tables = self.by_table.iter();
        tables.map(|(table, changes)| (*table, self.last_changes(changes, &[])))
    }

    /// Returns the last change of every row, by the bytes of its key. `running` has the changes of
    /// the running batch.
    fn last_changes<'a>(&'a self, of: &TableChanges, running: &'a [u8]) -> Vec<RowChange<'a>> {
        let mut changes: Vec<_> =
            of.places.iter().map(|place| self.change_at(*place, running)).collect();
        last_of_each(&mut changes);
        changes
    }

    fn change_at<'a>(&'a self, place: Place, running: &'a [u8]) -> RowChange<'a> {
        let batch = self.batches.get(place.batch).map_or(running, |batch| batch);
        split_change(&batch[place.offset..]).expect("it was noted whole").0
    }
}

/// Keeps only the last change of every row, by the bytes of its key.
pub(super) fn last_of_each(changes: &mut Vec<RowChange<'_>>) {
    // A stable sort, and quick, because most rows come in the order of their keys.
    changes.sort_by(|a, b| a.key.cmp(b.key));
    changes.dedup_by(|next, kept| {
        let is_same = next.key == kept.key;
        if is_same {
            kept.value = next.value;
        }
        is_same
    });
}

/// Change of one row, as [`Changes`] has it.
#[derive(Debug)]
pub(super) struct RowChange<'a> {
    pub(super) table: u8,
    pub(super) key: &'a [u8],
    /// `None` if the row was removed.
    pub(super) value: Option<&'a [u8]>,
}

/// Reads changes one after the other; ends with `None` if the last one is cut short.
pub(super) fn row_changes(bytes: &[u8]) -> impl Iterator<Item = Option<RowChange<'_>>> {
    split_all(bytes, split_change)
}

/// Splits changes from bytes one after the other; ends with `None` if the last one is cut short.
pub(super) fn split_all<'a>(
    mut rest: &'a [u8],
    split: impl Fn(&'a [u8]) -> Option<(RowChange<'a>, &'a [u8])>,
) -> impl Iterator<Item = Option<RowChange<'a>>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (change, behind) = split(rest).unzip();
        rest = behind.unwrap_or_default();
        Some(change)
    })
}

fn split_change(bytes: &[u8]) -> Option<(RowChange<'_>, &[u8])> {
    let (table, row) = bytes.split_first()?;
    split_row(*table, row)
}

/// Appends the lengths of a key and its value (four bytes each, the lowest first), the key and the
/// value. A row that was removed has no value.
pub(super) fn push_row(bytes: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    let length = |bytes: &[u8]| {
        u32::try_from(bytes.len()).expect("redb's rows are shorter than 4 GiB").to_le_bytes()
    };
    bytes.extend_from_slice(&length(key));
    bytes.extend_from_slice(&value.map_or(REMOVED.to_le_bytes(), length));
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value.unwrap_or_default());
}

/// Reads the row of a table that bytes begin with, and returns it with the bytes behind it; `None`
/// if it is cut short.
pub(super) fn split_row(table: u8, bytes: &[u8]) -> Option<(RowChange<'_>, &[u8])> {
    let (key_length, rest) = bytes.split_first_chunk()?;
    let (value_length, rest) = rest.split_first_chunk()?;
    let key_length = usize::try_from(u32::from_le_bytes(*key_length)).ok()?;
    let (key, rest) = rest.split_at_checked(key_length)?;
    let value_length = u32::from_le_bytes(*value_length);
    if value_length == REMOVED {
        return Some((RowChange { table, key, value: None }, rest));
    }
    let (value, rest) = rest.split_at_checked(usize::try_from(value_length).ok()?)?;
    Some((RowChange { table, key, value: Some(value) }, rest))
}

/// Table of a transaction, which notes the rows that are put and removed. It is read like redb's
/// own table.
pub(super) struct Table<'txn, K: Key + 'static, V: Value + 'static> {
    inner: redb::Table<'txn, K, V>,
    number: u8,
    changes: &'txn Changes,
    /// True if it has every change that was noted for later.
    is_whole: bool,
}

impl<'txn, K: Key + 'static, V: Value + 'static> Deref for Table<'txn, K, V> {
    type Target = redb::Table<'txn, K, V>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl<'txn, K: Key + 'static, V: Value + 'static> Table<'txn, K, V> {
    /// Wraps a table. Until it has [caught up](Self::catch_up), it lacks the changes that were
    /// noted for later.
    pub(super) const fn new(
        inner: redb::Table<'txn, K, V>,
        number: u8,
        changes: &'txn Changes,
    ) -> Self {
        Self { inner, number, changes, is_whole: false }
    }

    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Makes the changes that were noted for later, unless the table has them.
    pub(super) fn catch_up(&mut self) -> Result<(), StorageError> {
        if self.is_whole {
            return Ok(());
        }
        let mut later = self.changes.later.borrow_mut();
        if let Some(noted) = later.by_table.remove(&self.number) {
            let running = self.changes.bytes.borrow();
            make(&mut self.inner, &later.last_changes(&noted, &running))?;
        }
        self.is_whole = true;
        Ok(())
    }

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

impl<K, V> Table<'_, K, V>
where
    K: Key + for<'a> Value<SelfType<'a> = K> + Copy + 'static,
    V: Value + 'static,
{
    /// Removes the first rows of a run of keys, at most `limit`, and shows each to `look_at`;
    /// returns their number, and the key of the last.
    pub(super) fn remove_first(
        &mut self,
        run: Range<K>,
        limit: usize,
        mut look_at: impl for<'f> FnMut(K, V::SelfType<'f>),
    ) -> Result<(usize, Option<K>), StorageError> {
        let (mut count, mut last) = (0, None);
        for row in self.inner.range(run.start..run.end)?.take(limit) {
            last = Some(row?.0.value());
            count += 1;
        }
        if let Some(last) = last {
            self.retain_in(run.start..=last, |key, row| {
                look_at(key, row);
                false
            })?;
        }
        Ok((count, last))
    }
}

pub(super) fn make<K: Key + 'static, V: Value + 'static>(
    table: &mut redb::Table<'_, K, V>,
    changes: &[RowChange<'_>],
) -> Result<(), StorageError> {
    for change in changes {
        let key = K::from_bytes(change.key);
        match change.value {
            Some(value) => drop(table.insert(key, V::from_bytes(value))?),
            None => drop(table.remove(key)?),
        }
    }
    Ok(())
}
