//! Organisations, and the index in memory of organisations, API keys, sender domains and endpoints
//! of webhooks: few, and asked about all the time.
//!
//! The index is made anew after each commit that changed one of them; readers share it.

use redb::{ReadTransaction, ReadableTable};

use crate::domain::id::OrganisationId;
use crate::domain::organisation::{Organisation, OrganisationName};
use crate::store::directory::OrganisationIndex;
use crate::store::record::{decode_api_key, decode_organisation, encode_organisation};
use crate::store::redb::error::ReadError;
use crate::store::redb::tables::{
    API_KEYS, DOMAINS, LAST_ORGANISATION, ORGANISATIONS, Row, WEBHOOKS,
};
use crate::store::redb::{ROW_WEIGHT, RedbStore, webhooks};
use crate::store::{Change, StoreError};

impl RedbStore {
    pub(in crate::store) async fn add_organisation(
        &self,
        name: OrganisationName,
    ) -> Result<Option<Organisation>, StoreError> {
        let add = self.writer.run(ROW_WEIGHT, move |batch| {
            for row in batch.tables.organisations.open()?.iter()? {
                if decode_organisation(row?.1.value()).is_ok_and(|taken| taken == name) {
                    return Ok(None);
                }
            }
            let id = OrganisationId(batch.tables.next_number(LAST_ORGANISATION)?);
            let row = encode_organisation(&name);
            batch.tables.organisations.open()?.insert(id.0, row.as_slice())?;
            batch.organisations = Change::Made;
            Ok(Some(Organisation { id, name }))
        });
        add.await
    }

    pub(in crate::store) async fn remove_organisation(
        &self,
        id: OrganisationId,
    ) -> Result<Change, StoreError> {
        let remove = self.writer.run(ROW_WEIGHT, move |batch| {
            let mut keys = Vec::new();
            for row in batch.tables.api_keys.open()?.iter()? {
                let (number, row) = row?;
                let key = decode_api_key(number.value(), row.value());
                if key.is_ok_and(|key| key.organisation == id) {
                    keys.push(number.value());
                }
            }
            if batch.tables.organisations.open()?.remove(id.0)?.is_none() {
                return Ok(Change::None);
            }
            for key in keys {
                batch.tables.api_keys.open()?.remove(key)?;
                batch.tables.key_use.open()?.remove(key)?;
            }
            batch.tables.domains.open()?.retain_in((id.0, "")..(id.0 + 1, ""), |_, _| false)?;
            webhooks::remove_of(batch, id)?;
            batch.organisations = Change::Made;
            Ok(Change::Made)
        });
        remove.await
    }

    pub(in crate::store) fn organisations(&self) -> Vec<Organisation> {
        self.shared.organisations().organisations.clone()
    }

    pub(in crate::store) fn organisation(&self, name: &OrganisationName) -> Option<Organisation> {
        self.shared.organisations().named(name.as_str()).cloned()
    }

    pub(in crate::store) fn organisation_by_id(&self, id: OrganisationId) -> Option<Organisation> {
        self.shared.organisations().organisation(id).cloned()
    }
}

/// Reads the directory.
pub(super) fn load(transaction: &ReadTransaction) -> Result<OrganisationIndex, ReadError> {
    read(
        &transaction.open_table(ORGANISATIONS)?,
        &transaction.open_table(API_KEYS)?,
        &transaction.open_table(DOMAINS)?,
        &transaction.open_table(WEBHOOKS)?,
    )
}

/// Reads the directory from its tables.
pub(super) fn read(
    organisations: &impl ReadableTable<u32, Row>,
    api_keys: &impl ReadableTable<u32, Row>,
    domains: &impl ReadableTable<(u32, &'static str), Row>,
    webhooks: &impl ReadableTable<u32, Row>,
) -> Result<OrganisationIndex, ReadError> {
    let mut index = OrganisationIndex::default();
    for row in organisations.iter()? {
        let (id, row) = row?;
        index.add_organisation(id.value(), row.value());
    }
    for row in api_keys.iter()? {
        let (id, row) = row?;
        index.add_api_key(id.value(), row.value());
    }
    for row in domains.iter()? {
        let (key, row) = row?;
        let (organisation, name) = key.value();
        index.add_domain(organisation, name, row.value());
    }
    for row in webhooks.iter()? {
        let (id, row) = row?;
        index.add_webhook(id.value(), row.value());
    }
    Ok(index)
}
