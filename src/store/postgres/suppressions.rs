//! Suppressions: adding, removing and looking up addresses.
//!
//! A filter in memory knows of almost every address that it is not suppressed. It only narrows
//! down: who gets a hit asks the server. It follows what other nodes add by the positions of
//! their commits.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tokio_postgres::Row;

use crate::domain::id::OrganisationId;
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::store::damage::damaged_suppression;
use crate::store::limits::ALL_ORGANISATIONS;
use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::{PostgresStore, Shared, number};
use crate::store::record::{decode_suppression, encode_suppression};
use crate::store::{Change, StoreError, SuppressionPage};

/// How many are read at one time: an organisation may have a million.
const ROWS_PER_LOOK: usize = 10_000;
/// Those of one commit have one position.
const NEW: &str = "
SELECT organisation, address, suppression, position FROM suppression
WHERE position > $1 ORDER BY position FETCH FIRST $2 ROWS WITH TIES";

const LIST: &str = "
SELECT organisation, address, suppression FROM suppression
WHERE (organisation, address) > ($1, $2) ORDER BY organisation, address LIMIT $3";

impl PostgresStore {
    pub(in crate::store) fn suppression_epoch(&self) -> u64 {
        self.shared.suppression_epoch.load(Ordering::Acquire)
    }

    pub(in crate::store) async fn is_suppressed(
        &self,
        organisation: OrganisationId,
        address: &SuppressedAddress,
    ) -> Result<bool, StoreError> {
        const FIND: &str = "
            SELECT FROM suppression WHERE address = $1 AND organisation IN ($2, 0) LIMIT 1";
        let address = address.as_str();
        let possible = {
            let filter = self.shared.suppressions.read().unwrap_or_else(PoisonError::into_inner);
            filter.may_contain(organisation.0, address)
                || filter.may_contain(ALL_ORGANISATIONS, address)
        };
        if !possible {
            return Ok(false);
        }
        Ok(self.query_opt(FIND, &[&address, &number(organisation)]).await?.is_some())
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
        // One that is there already stays as it is: the first cause counts.
        const ADD: &str = "
            INSERT INTO suppression (organisation, address, suppression, position)
            SELECT DISTINCT ON (organisation, address) organisation, address, suppression, $4
            FROM unnest($1::integer[], $2::text[], $3::bytea[])
                WITH ORDINALITY AS new (organisation, address, suppression, place)
            ORDER BY organisation, address, place
            ON CONFLICT DO NOTHING RETURNING organisation, address";
        const POSITION: &str = "UPDATE feed_counter SET last = last + 1 RETURNING last";
        if suppressions.is_empty() {
            return Ok(Vec::new());
        }
        let scopes: Vec<i32> = suppressions.iter().map(|(scope, _)| scope_of(*scope)).collect();
        let addresses: Vec<&str> = suppressions.iter().map(|(_, s)| s.address.as_str()).collect();
        let rows: Vec<Vec<u8>> = suppressions.iter().map(|(_, s)| encode_suppression(s)).collect();
        let added = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            let position: i64 = connection.query_one(POSITION, &[]).await?.get(0);
            let added = connection.query(ADD, &[&scopes, &addresses, &rows, &position]).await?;
            change.commit(added).await
        });
        let mut added: Vec<(i32, String)> =
            added.await?.iter().map(|row| (row.get(0), row.get(1))).collect();
        let keys: Vec<_> = added
            .iter()
            .map(|(scope, address)| (OrganisationId(scope.unsigned_abs()), address.clone()))
            .collect();
        self.shared.suppress(&keys);
        let changes = scopes.iter().zip(&addresses).map(|(scope, address)| {
            let place = added.iter().position(|(s, a)| s == scope && a == address);
            // Of two of one address, the first was added.
            place.map_or(Change::None, |place| {
                added.swap_remove(place);
                Change::Made
            })
        });
        Ok(changes.collect())
    }

    pub(in crate::store) async fn unsuppress(
        &self,
        organisation: Option<OrganisationId>,
        address: SuppressedAddress,
    ) -> Result<Change, StoreError> {
        const REMOVE: &str = "DELETE FROM suppression WHERE organisation = $1 AND address = $2";
        let scope = scope_of(organisation);
        let removed = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            let removed = connection.execute(REMOVE, &[&scope, &address.as_str()]).await?;
            change.commit(removed).await
        });
        if removed.await? == 0 {
            return Ok(Change::None);
        }
        self.shared.damage.forget_suppression(scope.unsigned_abs(), address.as_str());
        Ok(Change::Made)
    }

    pub(in crate::store) async fn suppressions(
        &self,
        after: Option<(Option<OrganisationId>, &SuppressedAddress)>,
        limit: usize,
    ) -> Result<SuppressionPage, StoreError> {
        let (scope, address) = after
            .map_or((-1, ""), |(organisation, address)| (scope_of(organisation), address.as_str()));
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.list_rows(LIST, &[&scope, &address, &most]).await?;
        let mut page =
            SuppressionPage { suppressions: Vec::new(), damaged: Vec::new(), next: None };
        for (row, place) in rows.iter().zip(1..) {
            let (scope, address): (i32, &str) = (row.get(0), row.get(1));
            let scope = scope.unsigned_abs();
            let organisation = (scope != 0).then_some(OrganisationId(scope));
            if place == limit {
                page.next = Some((organisation, SuppressedAddress::from_stored(address)));
            }
            match decode_suppression(address, row.get(2)) {
                Ok(suppression) => page.suppressions.push((organisation, suppression)),
                Err(reason) => {
                    self.shared.damage.note(damaged_suppression(scope, address, &reason));
                    page.damaged.push((organisation, SuppressedAddress::from_stored(address)));
                }
            }
        }
        Ok(page)
    }
}

fn scope_of(organisation: Option<OrganisationId>) -> i32 {
    number(organisation.unwrap_or(OrganisationId(ALL_ORGANISATIONS)))
}

impl Shared {
    /// Notes addresses that are suppressed from now on.
    pub(super) fn suppress(&self, addresses: &[(OrganisationId, String)]) {
        if addresses.is_empty() {
            return;
        }
        let mut filter = self.suppressions.write().unwrap_or_else(PoisonError::into_inner);
        for (organisation, address) in addresses {
            filter.insert(organisation.0, address);
        }
        drop(filter);
        self.suppression_epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Reads all that there are.
    pub(super) async fn load_suppressions(
        &self,
        connection: &Connection,
    ) -> Result<(), QueryError> {
        // Positions are in the order of commits: what is added meanwhile is behind this one.
        const LAST: &str = "SELECT coalesce(max(position), 0) FROM suppression";
        let followed: i64 = connection.query_one(LAST, &[]).await?.get(0);
        let most = i64::try_from(ROWS_PER_LOOK).unwrap_or(i64::MAX);
        let (mut scope, mut address) = (-1, String::new());
        loop {
            let rows = connection.query(LIST, &[&scope, &address, &most]).await?;
            self.note_suppressions(&rows);
            let Some(last) = rows.last().filter(|_| rows.len() == ROWS_PER_LOOK) else { break };
            (scope, address) = (last.get(0), last.get(1));
        }
        self.suppressions_followed.store(followed, Ordering::Release);
        Ok(())
    }

    /// Reads what was added since the last look.
    pub(super) async fn follow_suppressions(
        &self,
        connection: &Connection,
    ) -> Result<(), QueryError> {
        let most = i64::try_from(ROWS_PER_LOOK).unwrap_or(i64::MAX);
        loop {
            let known = self.suppressions_followed.load(Ordering::Acquire);
            let rows = connection.query(NEW, &[&known, &most]).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            self.note_suppressions(&rows);
            self.suppressions_followed.store(last.get(3), Ordering::Release);
            self.suppression_epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Puts rows into the filter.
    fn note_suppressions(&self, rows: &[Row]) {
        let mut filter = self.suppressions.write().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            let (scope, address): (i32, &str) = (row.get(0), row.get(1));
            filter.insert(scope.unsigned_abs(), address);
            if let Err(reason) = decode_suppression(address, row.get(2)) {
                self.damage.note(damaged_suppression(scope.unsigned_abs(), address, &reason));
            }
        }
    }
}
