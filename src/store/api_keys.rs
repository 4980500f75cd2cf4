//! API keys, and when each was last used.
//!
//! A use is noted in memory on every request, and stored now and then: a write for each request
//! would cost more than the answer is worth. A crash forgets the uses since they were last stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::{ReadTransaction, ReadableTable};

use crate::domain::api_key::ApiKeyHash;
use crate::domain::id::{KeyId, OrganisationId};
use crate::domain::organisation::{ApiKeyEntry, Organisation};
use crate::domain::time::Timestamp;
use crate::store::error::ReadError;
use crate::store::record::encode_api_key;
use crate::store::tables::{KEY_USE, LAST_KEY};
use crate::store::{Change, ROW_WEIGHT, Store, StoreError};

/// An API key to be added.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    /// What the operator calls it; may be empty.
    pub label: String,
    /// When it stops letting anybody in; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// The hash of the key.
    pub hash: ApiKeyHash,
}

impl Store {
    /// The organisation that an API key lets in at `now`, with the key's number; notes the use, in
    /// memory.
    pub fn authenticate(&self, hash: &ApiKeyHash, now: Timestamp) -> Option<(Organisation, KeyId)> {
        let index = self.shared.organisations();
        let key = index.key(hash).filter(|key| key.is_live(now))?;
        self.note_key_use(key.id, now);
        Some((index.organisation(key.organisation)?.clone(), key.id))
    }

    fn note_key_use(&self, id: KeyId, now: Timestamp) {
        let now = now.unix_millis();
        match self.shared.key_use.load().0.get(&id.0) {
            // Many requests come in the same millisecond: only the first of them writes.
            Some(times) if times.used.load(Ordering::Relaxed) >= now => {}
            Some(times) => {
                times.used.fetch_max(now, Ordering::Relaxed);
            }
            None => {
                self.shared.key_use.rcu(|key_use| key_use.with(id, now));
            }
        }
    }

    /// When an API key was last used, to the millisecond while the service runs.
    pub fn key_last_used(&self, id: KeyId) -> Option<Timestamp> {
        let key_use = self.shared.key_use.load();
        let used = key_use.0.get(&id.0)?.used.load(Ordering::Relaxed);
        Some(Timestamp::from_unix_millis(used))
    }

    /// Stores when the API keys were last used, as far as that is newer than what is stored.
    pub async fn store_key_use(&self) -> Result<(), StoreError> {
        let newer = self.shared.key_use.load().take_unstored();
        if newer.is_empty() {
            return Ok(());
        }
        let to_store = newer.clone();
        let stored = self.writer.run(ROW_WEIGHT, move |batch| {
            for (id, used) in to_store {
                // A key that was revoked meanwhile has no use.
                if batch.tables.api_keys.open()?.get(id)?.is_some() {
                    batch.tables.key_use.open()?.insert(id, used)?;
                }
            }
            Ok(())
        });
        let stored = stored.await;
        if stored.is_err() {
            self.shared.key_use.load().give_back(&newer);
        }
        stored
    }

    /// Adds an API key by its hash, or returns `None` if there is no such organisation.
    pub async fn add_api_key(
        &self,
        organisation: OrganisationId,
        key: NewApiKey,
        now: Timestamp,
    ) -> Result<Option<ApiKeyEntry>, StoreError> {
        let add = self.writer.run(ROW_WEIGHT, move |batch| {
            if batch.tables.organisations.open()?.get(organisation.0)?.is_none() {
                return Ok(None);
            }
            let id = KeyId(batch.tables.next_number(LAST_KEY)?);
            let NewApiKey { label, expires_at, hash } = key;
            let entry = ApiKeyEntry { id, organisation, label, created_at: now, expires_at, hash };
            batch.tables.api_keys.open()?.insert(id.0, encode_api_key(&entry).as_slice())?;
            batch.organisations = Change::Made;
            Ok(Some(entry))
        });
        add.await
    }

    /// Revokes an API key; no request that arrives after this is let in with it.
    pub async fn revoke_api_key(&self, id: KeyId) -> Result<Change, StoreError> {
        let revoke = self.writer.run(ROW_WEIGHT, move |batch| {
            let removed = batch.tables.api_keys.open()?.remove(id.0)?.is_some();
            batch.tables.key_use.open()?.remove(id.0)?;
            if !removed {
                return Ok(Change::None);
            }
            batch.organisations = Change::Made;
            Ok(Change::Made)
        });
        revoke.await
    }

    /// All API keys, as hashes.
    pub fn api_keys(&self) -> Vec<ApiKeyEntry> {
        self.shared.organisations().api_keys.clone()
    }
}

/// When each key was last used, and what of it is stored; in milliseconds.
#[derive(Debug, Default, Clone)]
pub(super) struct KeyUse(HashMap<u32, Arc<Times>>);

#[derive(Debug, Default)]
struct Times {
    used: AtomicU64,
    stored: AtomicU64,
}

impl KeyUse {
    /// Reads what is stored.
    pub(super) fn load(transaction: &ReadTransaction) -> Result<Self, ReadError> {
        let mut key_use = Self::default();
        for row in transaction.open_table(KEY_USE)?.iter()? {
            let (id, time) = row?;
            let (used, stored) = (AtomicU64::new(time.value()), AtomicU64::new(time.value()));
            key_use.0.insert(id.value(), Arc::new(Times { used, stored }));
        }
        Ok(key_use)
    }

    /// Returns the same uses with one of a key that may have had none.
    fn with(&self, id: KeyId, now: u64) -> Self {
        let mut key_use = self.clone();
        key_use.0.entry(id.0).or_default().used.fetch_max(now, Ordering::Relaxed);
        key_use
    }

    /// Returns what is newer than what is stored, which counts as stored from here on.
    fn take_unstored(&self) -> Vec<(u32, u64)> {
        let newer = self.0.iter().filter_map(|(id, times)| {
            let used = times.used.load(Ordering::Relaxed);
            (times.stored.swap(used, Ordering::Relaxed) < used).then_some((*id, used))
        });
        newer.collect()
    }

    /// Takes back that something was stored.
    fn give_back(&self, newer: &[(u32, u64)]) {
        for times in newer.iter().filter_map(|(id, _)| self.0.get(id)) {
            times.stored.store(0, Ordering::Relaxed);
        }
    }
}
