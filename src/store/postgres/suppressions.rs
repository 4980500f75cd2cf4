//! Filter of suppressions: it follows what other nodes add by the positions of their commits.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;

use crate::store::postgres::Shared;
use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::QueryError;
use crate::store::suppressions;

/// How many are read at one time: an organisation may have a million.
const ROWS_PER_LOOK: usize = 10_000;
/// Those of one commit have one position.
const NEW: &str = "
SELECT organisation, address, suppression, position FROM suppression
WHERE position > $1 ORDER BY position FETCH FIRST $2 ROWS WITH TIES";

const LIST: &str = "
SELECT organisation, address, suppression FROM suppression
WHERE (organisation, address) > ($1, $2) ORDER BY organisation, address LIMIT $3";

impl Shared {
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
            self.memory.suppressed.grew();
        }
    }

    fn note_suppressions(&self, rows: &[Row]) {
        for row in rows {
            let (scope, address): (i32, &str) = (row.get(0), row.get(1));
            let (suppressed, damage) = (&self.memory.suppressed, &self.memory.damage);
            suppressions::load(suppressed, damage, scope.unsigned_abs(), address, row.get(2));
        }
    }
}
