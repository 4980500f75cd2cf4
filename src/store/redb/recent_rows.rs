//! Rows that are durable in the journal, but not yet in snapshots of the data file.
//!
//! A read of one row by its key checks here first. A read of a range waits for the publication
//! instead, unless all of these rows are behind the range. A batch that removes such a row is
//! published at once.

use pillarbox_runtime::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::locks::{RwLock, read_lock, write_lock};
use crate::redb::changes::row_changes;
use crate::redb::tables::{IdKey, Visibility, visibility};

/// Rows of the batches since the last publication, by their table's number and their key.
#[derive(Debug, Default)]
pub(super) struct RecentRows {
    rows: RwLock<Rows>,
    /// True if a batch was written since the last publication. If not, reads need no lock.
    is_unpublished: AtomicBool,
}

#[derive(Debug, Default)]
struct Rows {
    by_key: FxHashMap<(u8, IdKey), Bytes>,
    /// The least key of each table.
    least: BTreeMap<u8, IdKey>,
}

impl RecentRows {
    /// Adds the changes of a durable batch. Returns true if all of them can be read before they are
    /// published.
    pub(super) fn add(&self, changes: &Bytes) -> bool {
        let mut are_readable = true;
        let mut rows = write_lock(&self.rows);
        // A batch that was written a moment ago is whole.
        for change in row_changes(changes).flatten() {
            match (visibility(change.table), change.value) {
                (Visibility::ByKey, Some(row)) => {
                    let key = IdKey::try_from(change.key).expect("these tables' keys are ids");
                    let least = rows.least.entry(change.table).or_insert(key);
                    *least = key.min(*least);
                    rows.by_key.insert((change.table, key), changes.slice_ref(row));
                }
                (Visibility::OnDemand, _) => {}
                (Visibility::ByKey, None) | (Visibility::AtOnce, _) => {
                    are_readable = false;
                }
            }
        }
        self.is_unpublished.store(true, Ordering::Release);
        are_readable
    }

    pub(super) fn is_unpublished(&self) -> bool {
        self.is_unpublished.load(Ordering::Acquire)
    }

    /// Returns the row if it was written since the last publication.
    pub(super) fn get(&self, table: u8, key: &IdKey) -> Option<Bytes> {
        if !self.is_unpublished() {
            return None;
        }
        read_lock(&self.rows).by_key.get(&(table, *key)).cloned()
    }

    /// Returns the row with the least key that was written since the last publication.
    pub(super) fn first(&self, table: u8) -> Option<(IdKey, Bytes)> {
        let rows = read_lock(&self.rows);
        let key = *rows.least.get(&table)?;
        Some((key, rows.by_key.get(&(table, key))?.clone()))
    }

    /// Returns true if a row of the table with a lesser key was written since the last publication.
    pub(super) fn any_before(&self, table: u8, key: &IdKey) -> bool {
        read_lock(&self.rows).least.get(&table).is_some_and(|least| least < key)
    }

    /// Forgets all rows: snapshots show them from now on.
    pub(super) fn clear(&self) {
        let mut rows = write_lock(&self.rows);
        // The memory is kept, because it will be needed again.
        rows.by_key.clear();
        rows.least.clear();
        self.is_unpublished.store(false, Ordering::Release);
    }
}
