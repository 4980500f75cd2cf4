//! API keys, and when each was last used on any node.

use std::sync::Arc;

use crate::domain::api_key::ApiKeyHash;
use crate::domain::id::{KeyId, OrganisationId};
use crate::domain::organisation::{ApiKeyEntry, Organisation};
use crate::domain::time::Timestamp;
use crate::store::directory::KeyUse;
use crate::store::postgres::connection::Connection;
use crate::store::postgres::directory::organisation_exists;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::{PostgresStore, Shared, number};
use crate::store::record::encode_api_key;
use crate::store::{Change, NewApiKey, SendingRight, StoreError};

impl PostgresStore {
    pub(in crate::store) fn authenticate(
        &self,
        hash: &ApiKeyHash,
        now: Timestamp,
    ) -> Option<(Organisation, KeyId)> {
        let index = self.shared.directory.load();
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
        SendingRight::find(&self.shared.directory.load(), organisation, key, now)
    }

    pub(in crate::store) fn key_last_used(&self, id: KeyId) -> Option<Timestamp> {
        self.shared.key_use.load().last(id)
    }

    pub(in crate::store) async fn store_key_use(&self) -> Result<(), StoreError> {
        const STORE: &str = "
            UPDATE api_key SET used_at = new.used_at
            FROM unnest($1::integer[], $2::bigint[]) AS new (id, used_at)
            WHERE api_key.id = new.id AND coalesce(api_key.used_at, 0) < new.used_at";
        let newer = self.shared.key_use.load().take_unstored();
        if newer.is_empty() {
            return Ok(());
        }
        let mut unstored = Unstored { shared: &self.shared, newer: newer.clone() };
        let (ids, times): (Vec<i32>, Vec<i64>) = newer
            .iter()
            .map(|(id, used)| (i32::try_from(*id).unwrap_or(i32::MAX), used.cast_signed()))
            .unzip();
        let stored = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            connection.execute(STORE, &[&ids, &times]).await?;
            change.commit(()).await
        });
        stored.await?;
        unstored.newer.clear();
        Ok(())
    }

    pub(in crate::store) async fn add_api_key(
        &self,
        organisation: OrganisationId,
        key: NewApiKey,
        now: Timestamp,
    ) -> Result<Option<ApiKeyEntry>, StoreError> {
        const NEXT: &str = "UPDATE cluster SET last_key = last_key + 1 RETURNING last_key";
        const ADD: &str = "INSERT INTO api_key (id, organisation, api_key) VALUES ($1, $2, $3)";
        let key = &key;
        let added = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            if !organisation_exists(connection, organisation).await? {
                return Ok(None);
            }
            let id: i32 = connection.query_one(NEXT, &[]).await?.get(0);
            let NewApiKey { label, expires_at, hash } = key.clone();
            let entry = ApiKeyEntry {
                id: KeyId(id.unsigned_abs()),
                organisation,
                label,
                created_at: now,
                expires_at,
                hash,
            };
            connection.execute(ADD, &[&id, &number(organisation), &encode_api_key(&entry)]).await?;
            change.commit(Some(entry)).await
        });
        added.await
    }

    pub(in crate::store) async fn revoke_api_key(&self, id: KeyId) -> Result<Change, StoreError> {
        let revoked = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            let id = i32::try_from(id.0).unwrap_or(i32::MAX);
            let removed = connection.execute("DELETE FROM api_key WHERE id = $1", &[&id]).await?;
            change.commit(if removed == 0 { Change::None } else { Change::Made }).await
        });
        revoked.await
    }

    pub(in crate::store) fn api_keys(&self) -> Vec<ApiKeyEntry> {
        self.shared.directory.load().api_keys.clone()
    }
}

/// Uses of keys that are being stored. They are to be stored again if that fails or is given up.
struct Unstored<'a> {
    shared: &'a Shared,
    newer: Vec<(u32, u64)>,
}

impl Drop for Unstored<'_> {
    fn drop(&mut self) {
        self.shared.key_use.load().give_back(&self.newer);
    }
}

impl Shared {
    /// Reads when each key was last used.
    pub(super) async fn load_key_use(&self, connection: &Connection) -> Result<(), QueryError> {
        const READ: &str = "SELECT id, used_at FROM api_key WHERE used_at IS NOT NULL";
        let mut key_use = KeyUse::default();
        for row in connection.query(READ, &[]).await? {
            key_use.add(row.get::<_, i32>(0).unsigned_abs(), row.get::<_, i64>(1).unsigned_abs());
        }
        self.key_use.store(Arc::new(key_use));
        Ok(())
    }
}
