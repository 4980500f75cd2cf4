//! Directory, read: organisations, keys, domains and endpoints, and the uses of keys.

use redb::{ReadTransaction, ReadableTable};

use crate::damage::Damage;
use crate::directory::{KeyUses, OrganisationIndex};
use crate::organisations::read_index;
use crate::redb::error::ReadError;
use crate::redb::tables::{KEY_USE, SUPPRESSIONS, published};
use crate::rows::KeyRange;
use crate::suppression_filter::Suppressed;
use crate::suppressions;

pub(super) fn load(transaction: &ReadTransaction) -> Result<OrganisationIndex, ReadError> {
    let rows = |table| published(table).open(transaction)?.range(&KeyRange::all(), usize::MAX);
    read_index(|table| Ok(rows(table)?))
}

pub(super) fn key_uses(transaction: &ReadTransaction) -> Result<KeyUses, ReadError> {
    let mut uses = KeyUses::new();
    for row in transaction.open_table(KEY_USE)?.iter()? {
        let (id, time) = row?;
        uses.push((id.value(), time.value()));
    }
    Ok(uses)
}

/// Reads the suppressed addresses. A row that cannot be read suppresses as well, and is noted.
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
