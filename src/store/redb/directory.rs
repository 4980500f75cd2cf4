//! Organisations, API keys and sender domains in memory: few, and asked about on every request.
//!
//! A snapshot is made anew after each commit that changed one of them; readers share it.

use std::collections::HashMap;

use redb::{ReadTransaction, ReadableTable};
use subtle::ConstantTimeEq;

use crate::domain::api_key::ApiKeyHash;
use crate::domain::id::OrganisationId;
use crate::domain::organisation::{
    ApiKeyEntry, DomainState, Organisation, SenderDomain, SenderStatus,
};
use crate::store::redb::damage::{self, DamagedRow, InRow};
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::tenant::{decode_api_key, decode_domain, decode_organisation};
use crate::store::redb::tables::{API_KEYS, DOMAINS, ORGANISATIONS, Rows};

/// A snapshot of who may send from where.
#[derive(Debug, Default)]
pub(in crate::store) struct Directory {
    /// By number.
    pub(in crate::store) organisations: Vec<Organisation>,
    /// By number.
    pub(in crate::store) api_keys: Vec<ApiKeyEntry>,
    /// By organisation, then by name.
    pub(in crate::store) domains: Vec<SenderDomain>,
    /// Positions in `api_keys` by the first bytes of the hash.
    keys_by_prefix: HashMap<[u8; 8], Vec<usize>>,
    /// Rows that cannot be read: whoever they would let in or let send is refused.
    pub(in crate::store) damaged: Vec<DamagedRow>,
}

impl Directory {
    pub(super) fn load(transaction: &ReadTransaction) -> Result<Self, ReadError> {
        Self::of(
            &transaction.open_table(ORGANISATIONS)?,
            &transaction.open_table(API_KEYS)?,
            &transaction.open_table(DOMAINS)?,
        )
    }

    pub(super) fn of(
        organisations: &impl ReadableTable<u32, Rows>,
        api_keys: &impl ReadableTable<u32, Rows>,
        domains: &impl ReadableTable<(u32, &'static str), Rows>,
    ) -> Result<Self, ReadError> {
        let mut directory = Self::default();
        for row in organisations.iter()? {
            let (id, row) = row?;
            let name = decode_organisation(row.value()).in_row(ORGANISATIONS, id.value());
            let Some(name) = directory.left_out(name) else { continue };
            directory.organisations.push(Organisation { id: OrganisationId(id.value()), name });
        }
        for row in api_keys.iter()? {
            let (id, row) = row?;
            let entry = decode_api_key(id.value(), row.value()).in_row(API_KEYS, id.value());
            let Some(entry) = directory.left_out(entry) else { continue };
            let positions = directory.keys_by_prefix.entry(prefix(&entry.hash)).or_default();
            positions.push(directory.api_keys.len());
            directory.api_keys.push(entry);
        }
        for row in domains.iter()? {
            let (key, row) = row?;
            let (organisation, name) = key.value();
            let shown = format_args!("{name} of organisation {organisation}");
            let domain = decode_domain(organisation, name, row.value()).in_row(DOMAINS, shown);
            let Some(domain) = directory.left_out(domain) else { continue };
            directory.domains.push(domain);
        }
        Ok(directory)
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
    pub(in crate::store) fn key(&self, hash: &ApiKeyHash) -> Option<&ApiKeyEntry> {
        let positions = self.keys_by_prefix.get(&prefix(hash))?;
        positions
            .iter()
            .map(|&position| &self.api_keys[position])
            .find(|entry| bool::from(entry.hash.0.ct_eq(&hash.0)))
    }

    /// The organisation with this number.
    pub(in crate::store) fn organisation(&self, id: OrganisationId) -> Option<&Organisation> {
        let position = self.organisations.binary_search_by_key(&id, |o| o.id).ok()?;
        Some(&self.organisations[position])
    }

    /// Whether the organisation may send from the domain.
    pub(in crate::store) fn sender_status(
        &self,
        organisation: OrganisationId,
        name: &str,
    ) -> SenderStatus {
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
