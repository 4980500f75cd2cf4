//! API keys, and the times at which they were last used.
//!
//! A use is noted in memory on every request, and stored now and then: a write for each request
//! would cost more than the answer is worth. A crash loses the uses since the last write.

use std::sync::Arc;
use std::time::Duration;

use crate::organisations::exists;
use crate::record::directory::{decode_api_key, encode_api_key};
use crate::rows::{Counter, Key, Lock, Rows, Stop, Table, next_number};
use crate::{Change, NewApiKey, Store, StoreError};
use pillarbox_domain::api_key::ApiKeyHash;
use pillarbox_domain::id::{KeyId, OrganisationId};
use pillarbox_domain::organisation::{ApiKeyEntry, KeyRights, Organisation};
use pillarbox_domain::time::Timestamp;

impl Store {
    /// The client that an API key lets in at `now`; notes the use, in memory.
    pub fn authenticate(&self, hash: &ApiKeyHash, now: Timestamp) -> Option<Client> {
        let directory = self.directory();
        let index = directory.load();
        let key = index.key(hash).filter(|key| key.is_live(now))?;
        directory.key_use.note(key.id, now);
        let organisation = index.organisation(key.organisation)?.clone();
        Some(Client { organisation, key: key.id, rights: Arc::clone(&key.rights) })
    }

    /// Time at which an API key was last used, exact to the millisecond while the service runs.
    pub fn key_last_used(&self, id: KeyId) -> Option<Timestamp> {
        self.directory().key_use.last(id)
    }

    /// Stores the times at which API keys were last used, if they are newer than the stored ones.
    pub async fn store_key_use(&self) -> Result<(), StoreError> {
        let key_use = &self.directory().key_use;
        let newer = key_use.unstored();
        if !newer.is_empty() {
            ask_engine!(self, engine => engine.put_key_use(newer.clone()))?;
            key_use.note_stored(&newer);
        }
        Ok(())
    }

    /// Adds an API key by its hash, or returns `None` if there is no such organisation.
    pub async fn add_api_key(
        &self,
        organisation: OrganisationId,
        key: NewApiKey,
        now: Timestamp,
    ) -> Result<Option<ApiKeyEntry>, StoreError> {
        self.change(Lock::Directory, 1, move |rows| add(rows, organisation, &key, now)).await
    }

    /// Replaces an API key: adds another one by its hash, with the same label and rights, with the
    /// lifetime of the first one. The first one ends after `overlap`, if it does not before.
    /// Returns the new key, or `None` if there is no such key.
    pub async fn rotate_api_key(
        &self,
        id: KeyId,
        hash: ApiKeyHash,
        overlap: Duration,
        now: Timestamp,
    ) -> Result<Option<ApiKeyEntry>, StoreError> {
        self.change(Lock::Directory, 2, move |rows| rotate(rows, id, hash, overlap, now)).await
    }

    /// Revokes an API key; no request that arrives after this is let in with it.
    pub async fn revoke_api_key(&self, id: KeyId) -> Result<Change, StoreError> {
        self.remove_row(Lock::Directory, Table::ApiKeys, Key::from(id.0)).await
    }

    /// All API keys, as hashes.
    pub fn api_keys(&self) -> Vec<ApiKeyEntry> {
        self.directory().load().api_keys.clone()
    }
}

/// Client that an API key let in.
#[derive(Debug, Clone)]
pub struct Client {
    /// Organisation of the key.
    pub organisation: Organisation,
    /// Number of the key.
    pub key: KeyId,
    /// Rights of the key.
    pub rights: Arc<KeyRights>,
}

fn add(
    rows: &mut dyn Rows,
    organisation: OrganisationId,
    key: &NewApiKey,
    now: Timestamp,
) -> Result<Option<ApiKeyEntry>, Stop> {
    if !exists(rows, organisation)? {
        return Ok(None);
    }
    let id = KeyId(next_number(rows, Counter::LastKey)?);
    let NewApiKey { label, expires_at, hash, rights } = key.clone();
    let entry = ApiKeyEntry {
        id,
        organisation,
        label,
        created_at: now,
        expires_at,
        hash,
        rights: Arc::new(rights),
    };
    put(rows, &entry)?;
    Ok(Some(entry))
}

fn rotate(
    rows: &mut dyn Rows,
    id: KeyId,
    hash: ApiKeyHash,
    overlap: Duration,
    now: Timestamp,
) -> Result<Option<ApiKeyEntry>, Stop> {
    let row = rows.get(Table::ApiKeys, &Key::from(id.0))?;
    let Some(mut old) = row.and_then(|row| decode_api_key(id.0, &row).ok()) else {
        return Ok(None);
    };
    let lifetime = |end: Timestamp| {
        let millis = end.unix_millis().saturating_sub(old.created_at.unix_millis());
        Duration::from_millis(millis)
    };
    let new = ApiKeyEntry {
        id: KeyId(next_number(rows, Counter::LastKey)?),
        created_at: now,
        expires_at: old.expires_at.map(|end| now.plus(lifetime(end)).min(Timestamp::LAST)),
        hash,
        ..old.clone()
    };
    let end = now.plus(overlap);
    old.expires_at = Some(old.expires_at.map_or(end, |earlier| earlier.min(end)));
    put(rows, &old)?;
    put(rows, &new)?;
    Ok(Some(new))
}

fn put(rows: &mut dyn Rows, entry: &ApiKeyEntry) -> Result<(), Stop> {
    rows.put(Table::ApiKeys, &Key::from(entry.id.0), &encode_api_key(entry))
}
