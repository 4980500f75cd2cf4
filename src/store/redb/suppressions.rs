//! Suppressions: adding, removing and looking up addresses, for one organisation or for all.
//!
//! A filter in memory knows of almost every address that it is not suppressed. It only narrows
//! down: whoever gets a hit looks at the file, so an answer is never a matter of chance.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use redb::{ReadTransaction, ReadableTable};

use crate::domain::id::OrganisationId;
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::store::SuppressionPage;
use crate::store::damage::{Damage, damaged_suppression};
use crate::store::limits::ALL_ORGANISATIONS;
use crate::store::record::{decode_suppression, encode_suppression};
use crate::store::redb::batch::Batch;
use crate::store::redb::error::ReadError;
use crate::store::redb::of_organisation;
use crate::store::redb::tables::SUPPRESSIONS;
use crate::store::redb::{ROW_WEIGHT, RedbStore, read_lock, write_lock};
use crate::store::suppression_filter::SuppressionFilter;
use crate::store::{Change, StoreError};

impl RedbStore {
    pub(in crate::store) fn suppression_epoch(&self) -> u64 {
        self.shared.suppression_epoch.load(Ordering::Acquire)
    }

    /// Whether an organisation must not write to the address. The file is read only for an address
    /// that the filter cannot rule out.
    pub(in crate::store) fn is_suppressed(
        &self,
        organisation: OrganisationId,
        address: &SuppressedAddress,
    ) -> Result<bool, StoreError> {
        let scopes = [organisation.0, ALL_ORGANISATIONS];
        let possible = {
            let filter = read_lock(&self.shared.suppression_filter);
            scopes.map(|scope| filter.may_contain(scope, address.as_str()))
        };
        if possible == [false; 2] {
            return Ok(false);
        }
        self.read(&SUPPRESSIONS, of_organisation(organisation), |transaction| {
            let suppressions = transaction.open_table(SUPPRESSIONS)?;
            for (scope, _) in scopes.into_iter().zip(possible).filter(|(_, possible)| *possible) {
                if suppressions.get((scope, address.as_str()))?.is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    pub(in crate::store) async fn suppress(
        &self,
        organisation: Option<OrganisationId>,
        suppression: Suppression,
    ) -> Result<Change, StoreError> {
        Ok(self.suppress_all(vec![(organisation, suppression)]).await?[0])
    }

    pub(in crate::store) async fn suppress_all(
        &self,
        suppressions: Vec<(Option<OrganisationId>, Suppression)>,
    ) -> Result<Vec<Change>, StoreError> {
        let insert_all = self.writer.run(ROW_WEIGHT * suppressions.len(), move |batch| {
            let each = suppressions
                .iter()
                .map(|(organisation, suppression)| insert(batch, *organisation, suppression));
            each.collect()
        });
        insert_all.await
    }

    pub(in crate::store) async fn unsuppress(
        &self,
        organisation: Option<OrganisationId>,
        address: SuppressedAddress,
    ) -> Result<Change, StoreError> {
        let remove = self.writer.run(ROW_WEIGHT, move |batch| {
            let key = (scope(organisation), address.as_str());
            if batch.tables.suppressions.open()?.remove(key)?.is_none() {
                return Ok(Change::None);
            }
            batch.shared.damage.forget_suppression(key.0, key.1);
            Ok(Change::Made)
        });
        remove.await
    }

    pub(in crate::store) fn suppressions(
        &self,
        after: Option<(Option<OrganisationId>, &SuppressedAddress)>,
        limit: usize,
    ) -> Result<SuppressionPage, StoreError> {
        let damage = &self.shared.damage;
        let read = |transaction: &_| read_page(transaction, damage, after, limit);
        self.read(&SUPPRESSIONS, "a list", read)
    }
}

/// A suppression's scope as a key: an organisation, or all of them.
fn scope(organisation: Option<OrganisationId>) -> u32 {
    organisation.map_or(ALL_ORGANISATIONS, |organisation| organisation.0)
}

/// Adds a suppression. One that is there already stays as it is: the first cause counts. One that
/// cannot be read is written anew.
pub(super) fn insert(
    batch: &mut Batch<'_>,
    organisation: Option<OrganisationId>,
    suppression: &Suppression,
) -> Result<Change, ReadError> {
    let key = (scope(organisation), suppression.address.as_str());
    if let Some(row) = batch.tables.suppressions.open()?.get(key)? {
        if decode_suppression(key.1, row.value()).is_ok() {
            return Ok(Change::None);
        }
        batch.shared.damage.forget_suppression(key.0, key.1);
    }
    write_lock(&batch.shared.suppression_filter).insert(key.0, key.1);
    batch.tables.suppressions.open()?.insert(key, encode_suppression(suppression).as_slice())?;
    batch.suppressed = Change::Made;
    Ok(Change::Made)
}

/// Reads suppressions in the order of their scope and address, from after `after` on.
fn read_page(
    transaction: &ReadTransaction,
    damage: &Damage,
    after: Option<(Option<OrganisationId>, &SuppressedAddress)>,
    limit: usize,
) -> Result<SuppressionPage, ReadError> {
    let table = transaction.open_table(SUPPRESSIONS)?;
    let start = after.map_or(Bound::Unbounded, |(organisation, address)| {
        Bound::Excluded((scope(organisation), address.as_str()))
    });
    let mut page = SuppressionPage { suppressions: Vec::new(), damaged: Vec::new(), next: None };
    let rows = table.range::<(u32, &str)>((start, Bound::Unbounded))?;
    for (row, number) in rows.take(limit).zip(1..) {
        let (key, row) = row?;
        let (scope, address) = key.value();
        let organisation = (scope != ALL_ORGANISATIONS).then_some(OrganisationId(scope));
        if number == limit {
            page.next = Some((organisation, SuppressedAddress::from_stored(address)));
        }
        match decode_suppression(address, row.value()) {
            Ok(suppression) => page.suppressions.push((organisation, suppression)),
            Err(reason) => {
                damage.note(damaged_suppression(scope, address, &reason));
                page.damaged.push((organisation, SuppressedAddress::from_stored(address)));
            }
        }
    }
    Ok(page)
}

/// Reads the file. A row that cannot be read suppresses as well, and is noted.
pub(super) fn load_filter(
    transaction: &ReadTransaction,
    damage: &Damage,
) -> Result<SuppressionFilter, ReadError> {
    let mut filter = SuppressionFilter::default();
    for row in transaction.open_table(SUPPRESSIONS)?.iter()? {
        let (key, row) = row?;
        let (scope, address) = key.value();
        filter.insert(scope, address);
        if let Err(reason) = decode_suppression(address, row.value()) {
            damage.note(damaged_suppression(scope, address, &reason));
        }
    }
    Ok(filter)
}
