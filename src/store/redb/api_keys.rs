//! API keys, and when each was last used.
//!
//! A use is noted in memory on every request, and stored now and then: a write for each request
//! would cost more than the answer is worth. A crash forgets the uses since they were last stored.

use redb::{ReadTransaction, ReadableTable};

use crate::domain::api_key::ApiKeyHash;
use crate::domain::id::{KeyId, OrganisationId};
use crate::domain::organisation::{ApiKeyEntry, Organisation};
use crate::domain::time::Timestamp;
use crate::store::NewApiKey;
use crate::store::directory::KeyUse;
use crate::store::record::encode_api_key;
use crate::store::redb::error::ReadError;
use crate::store::redb::tables::{KEY_USE, LAST_KEY};
use crate::store::redb::{ROW_WEIGHT, RedbStore};
use crate::store::{Change, SendingRight, StoreError};

impl RedbStore {
    pub(in crate::store) fn authenticate(
        &self,
        hash: &ApiKeyHash,
        now: Timestamp,
    ) -> Option<(Organisation, KeyId)> {
        let index = self.shared.organisations();
        let key = index.key(hash).filter(|key| key.is_live(now))?;
        KeyUse::note(&self.shared.key_use, key.id, now);
        Some((index.organisation(key.organisation)?.clone(), key.id))
    }

    pub(in crate::store) fn sending_right(
        &self,
        organisation: OrganisationId,
        key: Option<KeyId>,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Option<SendingRight> {
        SendingRight::find(&self.shared.organisations(), organisation, key, now)
    }

    pub(in crate::store) fn key_last_used(&self, id: KeyId) -> Option<Timestamp> {
        self.shared.key_use.load().last(id)
    }

    pub(in crate::store) async fn store_key_use(&self) -> Result<(), StoreError> {
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

    pub(in crate::store) async fn add_api_key(
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

    pub(in crate::store) async fn revoke_api_key(&self, id: KeyId) -> Result<Change, StoreError> {
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

    pub(in crate::store) fn api_keys(&self) -> Vec<ApiKeyEntry> {
        self.shared.organisations().api_keys.clone()
    }
}

/// Reads the uses that are stored.
pub(super) fn load_key_use(transaction: &ReadTransaction) -> Result<KeyUse, ReadError> {
    let mut key_use = KeyUse::default();
    for row in transaction.open_table(KEY_USE)?.iter()? {
        let (id, time) = row?;
        key_use.add(id.value(), time.value());
    }
    Ok(key_use)
}
