//! When each API key was last used: noted in memory on every request, stored now and then.
//!
//! A write for each request would cost more than the answer is worth; what a crash forgets is what
//! came since the last time it was stored.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::ReadableTable;

use crate::domain::id::KeyId;
use crate::domain::time::Timestamp;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::tables::KEY_USE;
use crate::store::redb::writer::Batch;
use crate::store::redb::{Shared, read_lock, write_lock};

/// When each key was last used, and what of it is stored; in milliseconds.
#[derive(Debug, Default)]
pub(in crate::store) struct KeyUse(HashMap<u32, Times>);

#[derive(Debug, Default)]
struct Times {
    used: AtomicU64,
    stored: AtomicU64,
}

/// Reads what is stored.
pub(super) fn load(shared: &Shared) -> Result<(), ReadError> {
    let mut key_use = KeyUse::default();
    shared.read(|transaction| {
        for row in transaction.open_table(KEY_USE)?.iter()? {
            let (id, time) = row?;
            let (used, stored) = (AtomicU64::new(time.value()), AtomicU64::new(time.value()));
            key_use.0.insert(id.value(), Times { used, stored });
        }
        Ok(())
    })?;
    *write_lock(&shared.key_use) = key_use;
    Ok(())
}

/// Notes a use.
pub(in crate::store) fn note(shared: &Shared, id: KeyId, now: Timestamp) {
    if let Some(times) = read_lock(&shared.key_use).0.get(&id.0) {
        times.used.fetch_max(now.unix_millis(), Ordering::Relaxed);
        return;
    }
    let mut key_use = write_lock(&shared.key_use);
    let times = key_use.0.entry(id.0).or_default();
    times.used.fetch_max(now.unix_millis(), Ordering::Relaxed);
}

/// The last use of a key, if there was one.
pub(in crate::store) fn last(shared: &Shared, id: KeyId) -> Option<Timestamp> {
    let key_use = read_lock(&shared.key_use);
    let used = key_use.0.get(&id.0)?.used.load(Ordering::Relaxed);
    Some(Timestamp::from_unix_millis(used))
}

/// What is newer than what is stored, which counts as stored from here on.
pub(in crate::store) fn take_unstored(shared: &Shared) -> Vec<(u32, u64)> {
    let key_use = read_lock(&shared.key_use);
    let newer = key_use.0.iter().filter_map(|(id, times)| {
        let used = times.used.load(Ordering::Relaxed);
        (times.stored.swap(used, Ordering::Relaxed) < used).then_some((*id, used))
    });
    newer.collect()
}

/// Takes back that something was stored.
pub(in crate::store) fn give_back(shared: &Shared, newer: &[(u32, u64)]) {
    let key_use = read_lock(&shared.key_use);
    for (id, _) in newer {
        if let Some(times) = key_use.0.get(id) {
            times.stored.store(0, Ordering::Relaxed);
        }
    }
}

/// Writes the last uses of keys that are still there.
pub(in crate::store) fn write(
    batch: &mut Batch<'_>,
    newer: &[(u32, u64)],
) -> Result<(), ReadError> {
    for (id, used) in newer {
        if batch.tables.api_keys.open()?.get(id)?.is_some() {
            batch.tables.key_use.open()?.insert(id, used)?;
        }
    }
    Ok(())
}
