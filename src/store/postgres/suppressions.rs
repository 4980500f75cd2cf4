//! Filter of suppressions: it follows the additions of other nodes by the positions of their
//! commits.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;

use crate::InMemory;
use crate::postgres::Shared;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::tables::{bigint, keyed_row, range};
use crate::rows::{KeyRange, KeyedRow, Table};
use crate::suppressions;

/// Number of addresses that are read at one time: an organisation may have a million.
const ROWS_PER_LOOK: usize = 10_000;
/// Addresses of one commit have one position.
const NEW: &str = "
SELECT organisation, address, suppression, position FROM suppression
WHERE position > $1 ORDER BY position FETCH FIRST $2 ROWS WITH TIES";

impl Shared {
    pub(super) async fn load_suppressions(
        &self,
        connection: &Connection,
    ) -> Result<(), QueryError> {
        // Positions are in the order of commits: addresses that are added meanwhile are behind this
        // one.
        const LAST: &str = "SELECT coalesce(max(position), 0) FROM suppression";
        let followed: i64 = connection.query_one(LAST, &[]).await?.get(0);
        let mut run = KeyRange::all();
        loop {
            let query = range(Table::Suppressions, &run, ROWS_PER_LOOK);
            let rows = connection.query(query.sql, &query.parameters()).await?;
            let last = self.note_suppressions(&rows);
            let Some((last, _)) = last.filter(|_| rows.len() == ROWS_PER_LOOK) else { break };
            run = run.after(last);
        }
        self.suppressions_followed.store(followed, Ordering::Release);
        Ok(())
    }

    /// Reads addresses that were added since the last check.
    pub(super) async fn follow_suppressions(
        &self,
        connection: &Connection,
    ) -> Result<(), QueryError> {
        let most = bigint(ROWS_PER_LOOK);
        loop {
            let known = self.suppressions_followed.load(Ordering::Acquire);
            let rows = connection.query(NEW, &[&known, &most]).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            self.note_suppressions(&rows);
            self.suppressions_followed.store(last.get(3), Ordering::Release);
            self.memory.suppressed.grew();
        }
    }

    /// Takes rows into the filter; returns the last one.
    fn note_suppressions(&self, rows: &[Row]) -> Option<KeyedRow> {
        let InMemory { suppressed, damage, .. } = &self.memory;
        let rows = rows.iter().map(|row| keyed_row(Table::Suppressions, row));
        let noted = rows.inspect(|(key, row)| {
            suppressions::load(suppressed, damage, key.number(0), key.text(4), row);
        });
        noted.last()
    }
}
