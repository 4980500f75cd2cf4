//! Directory in memory: organisations, keys, domains and endpoints, read again if its version on
//! the server has changed.

use crate::directory::Directory;
use crate::organisations::read_index;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::tables::{ask_all, keyed_row, range};
use crate::rows::{KeyRange, Table};

const TABLES: [Table; 4] = [Table::Organisations, Table::ApiKeys, Table::Domains, Table::Webhooks];
const VERSION: &str = "SELECT directory_version FROM cluster";

impl Directory {
    /// Reads the directory if it has changed.
    pub(super) async fn follow(&self, connection: &Connection) -> Result<(), QueryError> {
        let version: i64 = connection.query_one(VERSION, &[]).await?.get(0);
        let is_known = version.cast_unsigned() == self.load().version;
        if is_known { Ok(()) } else { self.read(connection).await }
    }

    pub(super) async fn read(&self, connection: &Connection) -> Result<(), QueryError> {
        // The version first: a change in between is read twice, but is not missed.
        let version: i64 = connection.query_one(VERSION, &[]).await?.get(0);
        let all = |table| range(table, &KeyRange::all(), usize::MAX);
        let answers = ask_all(connection, &TABLES.map(all)).await?;
        let mut index = read_index(|table| {
            let place = TABLES.iter().position(|one| *one == table);
            let rows = &answers[place.expect("every table of the directory was read")];
            Ok::<_, QueryError>(rows.iter().map(|row| keyed_row(table, row)).collect())
        })?;
        index.version = version.cast_unsigned();
        self.replace(index);
        Ok(())
    }

    pub(super) async fn read_uses(&self, connection: &Connection) -> Result<(), QueryError> {
        const READ: &str = "SELECT id, used_at FROM api_key WHERE used_at IS NOT NULL";
        let rows = connection.query(READ, &[]).await?;
        self.key_use.replace(
            rows.iter().map(|row| {
                (row.get::<_, i32>(0).unsigned_abs(), row.get::<_, i64>(1).unsigned_abs())
            }),
        );
        Ok(())
    }
}
