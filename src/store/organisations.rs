//! Organisations, and the index in memory of organisations, API keys, sender domains and endpoints
//! of webhooks: few, and asked about all the time.
//!
//! The index is made anew after each commit that changed one of them; readers share it.

use std::collections::HashMap;

use redb::{ReadTransaction, ReadableTable};
use subtle::ConstantTimeEq;

use crate::domain::api_key::ApiKeyHash;
use crate::domain::id::OrganisationId;
use crate::domain::organisation::{
    ApiKeyEntry, DomainState, Organisation, OrganisationName, SenderDomain, SenderStatus,
};
use crate::domain::webhook::Webhook;
use crate::store::error::{DamagedRow, InRow, ReadError};
use crate::store::record::webhooks::decode_webhook;
use crate::store::record::{
    decode_api_key, decode_domain, decode_organisation, encode_organisation,
};
use crate::store::tables::{API_KEYS, DOMAINS, LAST_ORGANISATION, ORGANISATIONS, Row, WEBHOOKS};
use crate::store::{Change, ROW_WEIGHT, Store, StoreError, damage, webhooks};

impl Store {
    /// Adds an organisation, or returns `None` if the name is taken. A row that cannot be read
    /// takes no name.
    pub async fn add_organisation(
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

    /// Removes an organisation with its keys, domains and endpoints. Its records stay until their
    /// retention ends, and its suppressions with them. A key that cannot be read lets nobody in, and
    /// stays.
    pub async fn remove_organisation(&self, id: OrganisationId) -> Result<Change, StoreError> {
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

    /// All organisations.
    pub fn organisations(&self) -> Vec<Organisation> {
        self.shared.organisations().organisations.clone()
    }

    /// The organisation with this name.
    pub fn organisation(&self, name: &OrganisationName) -> Option<Organisation> {
        self.shared.organisations().organisations.iter().find(|o| o.name == *name).cloned()
    }

    /// The organisation with this number.
    pub fn organisation_by_id(&self, id: OrganisationId) -> Option<Organisation> {
        self.shared.organisations().organisation(id).cloned()
    }
}

/// A snapshot of who may send from where.
#[derive(Debug, Default)]
pub(super) struct OrganisationIndex {
    /// By number.
    pub(super) organisations: Vec<Organisation>,
    /// By number.
    pub(super) api_keys: Vec<ApiKeyEntry>,
    /// By organisation, then by name.
    pub(super) domains: Vec<SenderDomain>,
    /// By number.
    pub(super) webhooks: Vec<Webhook>,
    /// Positions in `api_keys` by the first bytes of the hash.
    keys_by_prefix: HashMap<[u8; 8], Vec<usize>>,
    /// Rows that cannot be read: whoever they would let in or let send is refused.
    pub(super) damaged: Vec<DamagedRow>,
}

impl OrganisationIndex {
    pub(super) fn load(transaction: &ReadTransaction) -> Result<Self, ReadError> {
        Self::of(
            &transaction.open_table(ORGANISATIONS)?,
            &transaction.open_table(API_KEYS)?,
            &transaction.open_table(DOMAINS)?,
            &transaction.open_table(WEBHOOKS)?,
        )
    }

    pub(super) fn of(
        organisations: &impl ReadableTable<u32, Row>,
        api_keys: &impl ReadableTable<u32, Row>,
        domains: &impl ReadableTable<(u32, &'static str), Row>,
        webhooks: &impl ReadableTable<u32, Row>,
    ) -> Result<Self, ReadError> {
        let mut index = Self::default();
        for row in organisations.iter()? {
            let (id, row) = row?;
            let name = decode_organisation(row.value()).in_row(ORGANISATIONS, id.value());
            let Some(name) = index.left_out(name) else { continue };
            index.organisations.push(Organisation { id: OrganisationId(id.value()), name });
        }
        for row in api_keys.iter()? {
            let (id, row) = row?;
            let entry = decode_api_key(id.value(), row.value()).in_row(API_KEYS, id.value());
            let Some(entry) = index.left_out(entry) else { continue };
            let positions = index.keys_by_prefix.entry(prefix(&entry.hash)).or_default();
            positions.push(index.api_keys.len());
            index.api_keys.push(entry);
        }
        for row in domains.iter()? {
            let (key, row) = row?;
            let (organisation, name) = key.value();
            let shown = format_args!("{name} of organisation {organisation}");
            let domain = decode_domain(organisation, name, row.value()).in_row(DOMAINS, shown);
            let Some(domain) = index.left_out(domain) else { continue };
            index.domains.push(domain);
        }
        for row in webhooks.iter()? {
            let (id, row) = row?;
            let webhook = decode_webhook(id.value(), row.value()).in_row(WEBHOOKS, id.value());
            let Some(webhook) = index.left_out(webhook) else { continue };
            index.webhooks.push(webhook);
        }
        Ok(index)
    }

    fn left_out<T>(&mut self, read: Result<T, DamagedRow>) -> Option<T> {
        let note = |row| {
            damage::log(&row);
            self.damaged.push(row);
        };
        read.map_err(note).ok()
    }

    /// The key with this hash. The comparison takes the same time wherever the
    /// hashes differ beyond the prefix that finds them.
    pub(super) fn key(&self, hash: &ApiKeyHash) -> Option<&ApiKeyEntry> {
        let positions = self.keys_by_prefix.get(&prefix(hash))?;
        positions
            .iter()
            .map(|&position| &self.api_keys[position])
            .find(|entry| bool::from(entry.hash.0.ct_eq(&hash.0)))
    }

    /// The organisation with this number.
    pub(super) fn organisation(&self, id: OrganisationId) -> Option<&Organisation> {
        let position = self.organisations.binary_search_by_key(&id, |o| o.id).ok()?;
        Some(&self.organisations[position])
    }

    /// Whether the organisation may send from the domain.
    pub(super) fn sender_status(&self, organisation: OrganisationId, name: &str) -> SenderStatus {
        if self.organisation(organisation).is_none() {
            return SenderStatus::OrganisationRemoved;
        }
        let found = self
            .domains
            .binary_search_by(|d| (d.organisation, d.name.as_str()).cmp(&(organisation, name)));
        match found.map(|position| self.domains[position].state) {
            Ok(DomainState::Verified | DomainState::Assumed) => SenderStatus::Verified,
            Ok(DomainState::Pending) => SenderStatus::Unverified,
            Err(_) => SenderStatus::DomainRemoved,
        }
    }
}

fn prefix(hash: &ApiKeyHash) -> [u8; 8] {
    *hash.0.first_chunk().expect("a hash has 32 bytes")
}
