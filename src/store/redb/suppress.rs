//! Suppressions: adding, removing and looking up addresses, for one organisation or for all.

use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable};

use crate::domain::admission::Facts;
use crate::domain::id::OrganisationId;
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::SenderStatus;
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::store::redb::damage::{Damage, DamagedRow, of_organisation};
use crate::store::redb::directory::Directory;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::tenant::{decode_suppression, encode_suppression};
use crate::store::redb::tables::{ALL_ORGANISATIONS, SUPPRESSIONS};
use crate::store::redb::writer::{Batch, SuppressionChange};
use crate::store::redb::{Shared, read_lock, write_lock};
use crate::store::{Store, StoreError, SuppressionPage};

pub(in crate::store) use filter::SuppressionFilter;

mod filter;

/// A suppression's scope as a key: an organisation, or all of them.
pub(super) fn scope(organisation: Option<OrganisationId>) -> u32 {
    organisation.map_or(ALL_ORGANISATIONS, |organisation| organisation.0)
}

/// Adds a suppression. One that is there already stays as it is: the first cause counts. One that
/// cannot be read is written anew.
pub(in crate::store) fn insert_suppression(
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
    batch.suppressed = SuppressionChange::Added;
    Ok(Change::Made)
}

/// Adds a suppression that a provider's event caused. Of several causes the earliest counts,
/// whatever order they arrive in; an operator's own decision stays.
pub(super) fn insert_caused(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
    suppression: &Suppression,
) -> Result<(), ReadError> {
    let key = (organisation.0, suppression.address.as_str());
    let earlier = match batch.tables.suppressions.open()?.get(key)? {
        None => None,
        // A row that cannot be read suppresses all the same.
        Some(row) => match decode_suppression(key.1, row.value()) {
            Ok(earlier) => Some(earlier),
            Err(_) => return Ok(()),
        },
    };
    let Some(earlier) = earlier else {
        return insert_suppression(batch, Some(organisation), suppression).map(|_| ());
    };
    let rank = |s: &Suppression| (s.since, s.reason != SuppressionReason::Complaint, s.cause);
    if earlier.cause.is_some() && rank(suppression) < rank(&earlier) {
        batch
            .tables
            .suppressions
            .open()?
            .insert(key, encode_suppression(suppression).as_slice())?;
    }
    Ok(())
}

/// Whether an operation changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It did.
    Made,
    /// All was as asked for before.
    None,
}

/// Removes a suppression.
pub(in crate::store) fn remove_suppression(
    batch: &mut Batch<'_>,
    organisation: Option<OrganisationId>,
    address: &SuppressedAddress,
) -> Result<Change, ReadError> {
    let key = (scope(organisation), address.as_str());
    if batch.tables.suppressions.open()?.remove(key)?.is_none() {
        return Ok(Change::None);
    }
    batch.shared.damage.forget_suppression(key.0, key.1);
    Ok(Change::Made)
}

/// Reads suppressions in the order of their scope and address, from after `after` on.
pub(in crate::store) fn list(
    transaction: &ReadTransaction,
    damage: &Damage,
    after: Option<(Option<OrganisationId>, &SuppressedAddress)>,
    limit: usize,
) -> Result<SuppressionPage, ReadError> {
    let table = transaction.open_table(SUPPRESSIONS)?;
    let start = after.map_or(std::ops::Bound::Unbounded, |(organisation, address)| {
        std::ops::Bound::Excluded((scope(organisation), address.as_str()))
    });
    let mut page = SuppressionPage { suppressions: Vec::new(), damaged: Vec::new(), next: None };
    let rows = table.range::<(u32, &str)>((start, std::ops::Bound::Unbounded))?;
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
                damage.note(DamagedRow::suppression(scope, address, &reason));
                page.damaged.push((organisation, SuppressedAddress::from_stored(address)));
            }
        }
    }
    Ok(page)
}

/// Reads the filter's content from the file. A row that cannot be read suppresses as well, and is
/// noted.
pub(super) fn load_filter(shared: &Shared) -> Result<(), ReadError> {
    let mut filter = SuppressionFilter::default();
    shared.read(|transaction| {
        for row in transaction.open_table(SUPPRESSIONS)?.iter()? {
            let (key, row) = row?;
            let (scope, address) = key.value();
            filter.insert(scope, address);
            if let Err(reason) = decode_suppression(address, row.value()) {
                shared.damage.note(DamagedRow::suppression(scope, address, &reason));
            }
        }
        Ok(())
    })?;
    *write_lock(&shared.suppression_filter) = filter;
    Ok(())
}

/// What admission asks of the store about one organisation. The file is read only for an address
/// that the filter cannot rule out.
pub struct OrganisationFacts<'a> {
    store: &'a Store,
    organisation: OrganisationId,
    directory: Arc<Directory>,
}

impl<'a> OrganisationFacts<'a> {
    pub(in crate::store) fn new(store: &'a Store, organisation: OrganisationId) -> Self {
        Self { store, organisation, directory: store.shared.directory() }
    }
}

impl Facts for OrganisationFacts<'_> {
    type Error = StoreError;

    fn is_verified(&self, domain: &DomainName<'_>) -> Result<bool, StoreError> {
        let status = self.directory.sender_status(self.organisation, domain.as_str());
        Ok(status == SenderStatus::Verified)
    }

    fn is_suppressed(&self, address: &SuppressedAddress) -> Result<bool, StoreError> {
        let shared = &self.store.shared;
        let scopes = [self.organisation.0, ALL_ORGANISATIONS];
        let possible = {
            let filter = read_lock(&shared.suppression_filter);
            scopes.map(|scope| filter.may_contain(scope, address.as_str()))
        };
        if possible == [false; 2] {
            return Ok(false);
        }
        let found = shared.read(|transaction| {
            let suppressions = transaction.open_table(SUPPRESSIONS)?;
            for (scope, _) in scopes.into_iter().zip(possible).filter(|(_, possible)| *possible) {
                if suppressions.get((scope, address.as_str()))?.is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        self.store.noticed(&SUPPRESSIONS, of_organisation(self.organisation), found)
    }
}
