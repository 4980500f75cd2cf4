//! Directory, read: organisations, keys, domains and endpoints, and the uses of keys.

use redb::{ReadTransaction, ReadableTable};

use crate::store::damage::Damage;
use crate::store::directory::{KeyUses, OrganisationIndex};
use crate::store::redb::error::ReadError;
use crate::store::redb::tables::{
    API_KEYS, DOMAINS, KEY_USE, ORGANISATIONS, Row, SUPPRESSIONS, WEBHOOKS,
};
use crate::store::suppression_filter::Suppressed;
use crate::store::suppressions;
pub(super) fn load(transaction: &ReadTransaction) -> Result<OrganisationIndex, ReadError> {
    read(
        &transaction.open_table(ORGANISATIONS)?,
        &transaction.open_table(API_KEYS)?,
        &transaction.open_table(DOMAINS)?,
        &transaction.open_table(WEBHOOKS)?,
    )
}

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

pub(super) fn key_uses(transaction: &ReadTransaction) -> Result<KeyUses, ReadError> {
    let mut uses = KeyUses::new();
    for row in transaction.open_table(KEY_USE)?.iter()? {
        let (id, time) = row?;
        uses.push((id.value(), time.value()));
    }
    Ok(uses)
}

/// Reads which addresses are suppressed. A row that cannot be read suppresses as well, and is noted.
pub(super) fn load_suppressed(
    transaction: &ReadTransaction,
    suppressed: &Suppressed,
    damage: &Damage,
) -> Result<(), ReadError> {
    for row in transaction.open_table(SUPPRESSIONS)?.iter()? {
        let (key, row) = row?;
        let (scope, address) = key.value();
        suppressions::load(suppressed, damage, scope, address, row.value());
    }
    Ok(())
}
