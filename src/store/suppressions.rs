//! Suppressions: adds, removes and finds addresses, for one organisation or for all.
//!
//! For almost every address that is not suppressed, a filter in memory knows that. It only narrows
//! down: for a hit the row is read, so no answer depends on chance.

use std::sync::Arc;

use crate::damage::{Damage, damaged_suppression};
use crate::limits::ALL_ORGANISATIONS;
use crate::record::{decode_suppression, encode_suppression};
use crate::rows::{Key, KeyRange, Lock, Rows, Stop, Table, read_all};
use crate::suppression_filter::Suppressed;
use crate::{Change, Store, StoreError, SuppressionPage};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::suppression::{SuppressedAddress, Suppression};

impl Store {
    /// Returns true if an organisation must not write to an address.
    pub async fn is_suppressed(
        &self,
        organisation: OrganisationId,
        address: &SuppressedAddress,
    ) -> Result<bool, StoreError> {
        for scope in [organisation.0, ALL_ORGANISATIONS] {
            if self.memory().suppressed.may_contain(scope, address.as_str())
                && self.row(Table::Suppressions, key(scope, address)).await?.is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Suppressions of an address that hold for an organisation: its own, and that of all. One that
    /// cannot be read is left out.
    pub async fn suppressions_of(
        &self,
        organisation: OrganisationId,
        address: &SuppressedAddress,
    ) -> Result<Vec<(Option<OrganisationId>, Suppression)>, StoreError> {
        let mut found = Vec::new();
        for scope in [Some(organisation), None] {
            let row = self.row(Table::Suppressions, key(scope_of(scope), address)).await?;
            let read = row.and_then(|row| decode_suppression(address.as_str(), &row).ok());
            found.extend(read.map(|suppression| (scope, suppression)));
        }
        Ok(found)
    }

    /// Number that grows each time that an address becomes suppressed. While it does not change, no
    /// message that was admitted before needs to be checked again.
    pub fn suppression_epoch(&self) -> u64 {
        self.memory().suppressed.epoch()
    }

    /// Suppresses an address for an organisation, or for all.
    pub async fn suppress(
        &self,
        organisation: Option<OrganisationId>,
        suppression: Suppression,
    ) -> Result<Change, StoreError> {
        Ok(self.suppress_all(vec![(organisation, suppression)]).await?[0])
    }

    /// Suppresses many addresses in one transaction; returns the change of each, in order.
    /// Neighbours in the order of [`Store::suppressions`] cost the least.
    pub async fn suppress_all(
        &self,
        suppressions: Vec<(Option<OrganisationId>, Suppression)>,
    ) -> Result<Vec<Change>, StoreError> {
        let suppressions: Arc<[_]> = suppressions.into();
        let (count, all) = (suppressions.len(), Arc::clone(&suppressions));
        let add_all = move |rows: &mut dyn Rows| {
            let of = |(organisation, suppression): &(Option<OrganisationId>, Suppression)| {
                key(scope_of(*organisation), &suppression.address)
            };
            let keys: Vec<Key> = suppressions.iter().map(of).collect();
            read_all(rows, Table::Suppressions, &keys)?;
            suppressions.iter().map(|(organisation, new)| add(rows, *organisation, new)).collect()
        };
        let changes: Vec<Change> = self.change(Lock::Rows, count, add_all).await?;
        for ((organisation, new), change) in all.iter().zip(&changes) {
            if *change == Change::Made {
                // It was written anew if it could not be read.
                self.damage().forget_suppression(scope_of(*organisation), new.address.as_str());
            }
        }
        Ok(changes)
    }

    /// Removes the suppression of an address in this scope.
    pub async fn unsuppress(
        &self,
        organisation: Option<OrganisationId>,
        address: SuppressedAddress,
    ) -> Result<Change, StoreError> {
        let scope = scope_of(organisation);
        let key = key(scope, &address);
        let change = self.remove_row(Lock::Rows, Table::Suppressions, key).await?;
        if change == Change::Made {
            self.damage().forget_suppression(scope, address.as_str());
        }
        Ok(change)
    }

    /// Suppressions by scope and address, from after `after` on, at most `limit`.
    pub async fn suppressions(
        &self,
        after: Option<(Option<OrganisationId>, &SuppressedAddress)>,
        limit: usize,
    ) -> Result<SuppressionPage, StoreError> {
        let range = after.map_or_else(KeyRange::all, |(organisation, address)| {
            KeyRange::all().after(key(scope_of(organisation), address))
        });
        let mut page =
            SuppressionPage { suppressions: Vec::new(), damaged: Vec::new(), next: None };
        for (place, (key, row)) in (1..).zip(self.rows(Table::Suppressions, range, limit).await?) {
            let (scope, address) = (key.number(0), key.text(4));
            let organisation = (scope != ALL_ORGANISATIONS).then_some(OrganisationId(scope));
            if place == limit {
                page.next = Some((organisation, SuppressedAddress::from_stored(address)));
            }
            match decode_suppression(address, &row) {
                Ok(suppression) => page.suppressions.push((organisation, suppression)),
                Err(reason) => {
                    self.damage().note(damaged_suppression(scope, address, &reason));
                    page.damaged.push((organisation, SuppressedAddress::from_stored(address)));
                }
            }
        }
        Ok(page)
    }
}

/// A suppression's scope as a number: an organisation, or all of them.
fn scope_of(organisation: Option<OrganisationId>) -> u32 {
    organisation.map_or(ALL_ORGANISATIONS, |organisation| organisation.0)
}

pub(super) fn key(scope: u32, address: &SuppressedAddress) -> Key {
    Key::from((scope, address.as_str()))
}

/// Adds a suppression. One that is there already stays as it is: the first cause counts. One that
/// cannot be read is written anew.
fn add(
    rows: &mut dyn Rows,
    organisation: Option<OrganisationId>,
    suppression: &Suppression,
) -> Result<Change, Stop> {
    let key = key(scope_of(organisation), &suppression.address);
    let known = rows.get(Table::Suppressions, &key)?;
    if known.is_some_and(|row| decode_suppression(suppression.address.as_str(), &row).is_ok()) {
        return Ok(Change::None);
    }
    rows.put(Table::Suppressions, &key, &encode_suppression(suppression))?;
    Ok(Change::Made)
}

/// Takes the row of an address that is suppressed into the filter. One that cannot be read
/// suppresses as well, and is noted.
pub(super) fn load(
    suppressed: &Suppressed,
    damage: &Damage,
    scope: u32,
    address: &str,
    row: &[u8],
) {
    suppressed.insert([(scope, address)]);
    if let Err(reason) = decode_suppression(address, row) {
        damage.note(damaged_suppression(scope, address, &reason));
    }
}
