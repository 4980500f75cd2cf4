//! Rows, as the rules of the store read and change them, each change in a transaction of its own.

use std::collections::{BTreeMap, HashMap};

use tokio::time::sleep;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::StoreError;
use crate::directory::{KeyUses, OrganisationIndex};
use crate::postgres::PostgresStore;
use crate::postgres::connection::Slot;
use crate::postgres::error::QueryError;
use crate::postgres::outcomes::{ATTEMPTS, PAUSE};
use crate::postgres::row_set::RowSet;
use crate::postgres::session::Transaction;
use crate::postgres::tables::{self, COUNTERS, Query, array, bigint, integer, keyed_row};
use crate::rows::{Counter, Key, KeyRange, KeyedRow, Lock, Rows, Stop, Table};

impl PostgresStore {
    pub(crate) async fn change<T>(
        &self,
        lock: Lock,
        rule: &(impl Fn(&mut dyn Rows) -> Result<T, Stop> + Sync),
    ) -> Result<T, StoreError> {
        let mut attempt = 1;
        let (done, directory) = loop {
            match self.change_once(lock, rule).await {
                Err(error) if attempt < ATTEMPTS && error.is_conflict() => {
                    attempt += 1;
                    sleep(PAUSE).await;
                }
                changed => break changed.map_err(|error| self.shared.refused(error))?,
            }
        };
        if let Some(directory) = directory {
            self.shared.memory.directory.replace(directory);
        } else if lock == Lock::Directory {
            // Also if nothing was changed: another node may have changed it a moment ago.
            self.shared.reload_directory().await.map_err(|error| self.shared.refused(error))?;
        }
        Ok(done)
    }

    async fn change_once<T>(
        &self,
        lock: Lock,
        rule: &(impl Fn(&mut dyn Rows) -> Result<T, Stop> + Sync),
    ) -> Result<(T, Option<OrganisationIndex>), QueryError> {
        let change = Transaction::begin(&self.writer).await?;
        let mut rows = RowSet::new(&self.shared, lock);
        let done = rows.run(change.connection(), |rows| match rule(rows) {
            Ok(done) => Ok(Some(done)),
            Err(Stop::Damaged(row)) => Err(row.into()),
            Err(Stop::Unread | Stop::Failed) => Ok(None),
        });
        let done = done.await?;
        if rows.is_unchanged() {
            return Ok((done, None));
        }
        let effects = rows.write(change.connection()).await?;
        let done = change.commit(done).await?;
        if effects.is_suppressed {
            self.shared.memory.suppressed.grew();
        }
        Ok((done, rows.changed_directory(&effects)))
    }

    pub(crate) async fn row(&self, table: Table, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        let rows = self.ask(&self.shared.readers, &tables::get(table, &[&key])).await?;
        Ok(rows.first().map(|row| keyed_row(table, row).1))
    }

    pub(crate) async fn rows_of(
        &self,
        table: Table,
        keys: Vec<Key>,
        max_bytes: usize,
    ) -> Result<HashMap<Key, Vec<u8>>, StoreError> {
        let query = tables::get_up_to(table, &keys.iter().collect::<Vec<_>>(), max_bytes);
        let rows = self.ask(&self.shared.listers, &query).await?;
        Ok(rows.iter().map(|row| keyed_row(table, row)).collect())
    }

    pub(crate) async fn rows(
        &self,
        table: Table,
        range: KeyRange,
        limit: usize,
    ) -> Result<Vec<KeyedRow>, StoreError> {
        let query = tables::range(table, &range, limit);
        let rows = self.ask(self.slot_of(table), &query).await?;
        Ok(rows.iter().map(|row| keyed_row(table, row)).collect())
    }

    pub(crate) async fn count_rows(
        &self,
        table: Table,
        range: KeyRange,
    ) -> Result<u64, StoreError> {
        let rows = self.ask(self.slot_of(table), &tables::count(table, &range)).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    pub(crate) async fn counters(&self) -> Result<BTreeMap<Counter, u64>, StoreError> {
        Ok(tables::counters_of(&self.query_one(COUNTERS, &[]).await?))
    }

    pub(crate) async fn time_row(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.query_one("SELECT time_record FROM cluster", &[]).await?.get(0))
    }

    pub(crate) async fn put_time_row(&self, row: Vec<u8>) -> Result<(), StoreError> {
        self.execute("UPDATE cluster SET time_record = $1", &[&row]).await.map(drop)
    }

    pub(crate) async fn put_key_use(&self, uses: KeyUses) -> Result<(), StoreError> {
        let query = put_key_use(&uses);
        self.execute(query.sql, &query.parameters()).await.map(drop)
    }

    /// Makes one statement a transaction; returns how many rows it changed.
    pub(super) async fn execute(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, StoreError> {
        let executed = async {
            let change = Transaction::begin(&self.writer).await?;
            let rows = change.connection().execute(sql, parameters).await?;
            change.commit(rows).await
        };
        executed.await.map_err(|error| self.shared.refused(error))
    }

    pub(super) async fn ask(&self, slot: &Slot, query: &Query) -> Result<Vec<Row>, StoreError> {
        self.query_by(slot, query.sql, &query.parameters()).await
    }

    /// Connection by which runs of a table's rows are read. Small reads do not wait behind a run that
    /// may have many rows.
    fn slot_of(&self, table: Table) -> &Slot {
        match table {
            Table::Feed | Table::History | Table::Messages | Table::Suppressions => {
                &self.shared.listers
            }
            _ => &self.shared.readers,
        }
    }
}

pub(super) fn put_key_use(uses: &KeyUses) -> Query {
    const PUT: &str = "
        UPDATE api_key SET used_at = new.used_at
        FROM unnest($1::integer[], $2::bigint[]) AS new (id, used_at)
        WHERE api_key.id = new.id AND coalesce(api_key.used_at, 0) < new.used_at";
    let ids = array(uses.iter().map(|(id, _)| integer(*id)));
    let times = array(uses.iter().map(|(_, used)| bigint(*used)));
    Query::new(PUT, vec![ids, times])
}
