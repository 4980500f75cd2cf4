//! Directory in memory: organisations, keys, domains and endpoints, read again if its version on
//! the server has changed.

use tokio_postgres::Row;

use crate::directory::{Directory, TABLES};
use crate::organisations::read_index;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::rows::{Key, KeyedRow, Table};

const VERSION: &str = "SELECT directory_version FROM cluster";
/// The rows of all tables, each with its table's place in [`TABLES`], and the version. One statement,
/// so that they are as of one instant.
const READ: &str = "
SELECT 0 AS place, id AS number, '' AS name, organisation AS row, directory_version AS version
FROM cluster LEFT JOIN organisation ON true
UNION ALL SELECT 1, id, '', api_key, 0 FROM api_key
UNION ALL SELECT 2, organisation, name, domain, 0 FROM domain
UNION ALL SELECT 3, id, '', webhook, 0 FROM webhook";

impl Directory {
    /// Reads the directory if it has changed.
    pub(super) async fn follow(&self, connection: &Connection) -> Result<(), QueryError> {
        let version: i64 = connection.query_one(VERSION, &[]).await?.get(0);
        let is_known = version.cast_unsigned() == self.load().version;
        if is_known { Ok(()) } else { self.read(connection).await }
    }

    pub(super) async fn read(&self, connection: &Connection) -> Result<(), QueryError> {
        let rows = connection.query(READ, &[]).await?;
        let mut index = read_index(|table| Ok::<_, QueryError>(rows_of(table, &rows)))?;
        let version = rows.iter().map(|row| row.get::<_, i64>("version")).max();
        index.version = version.unwrap_or_default().cast_unsigned();
        self.replace(index);
        Ok(())
    }

    pub(super) async fn read_uses(&self, connection: &Connection) -> Result<(), QueryError> {
        const READ: &str = "SELECT id, used_at FROM api_key WHERE used_at IS NOT NULL";
        let rows = connection.query(READ, &[]).await?;
        let uses = rows.iter().map(|row| (row.get::<_, i32>(0), row.get::<_, i64>(1)));
        self.key_use.replace(uses.map(|(id, used)| (id.unsigned_abs(), used.unsigned_abs())));
        Ok(())
    }
}

/// Returns a table's rows, by key, of those that [`READ`] answers with.
fn rows_of(table: Table, rows: &[Row]) -> Vec<KeyedRow> {
    let keyed_row = |row: &Row| {
        let place = usize::try_from(row.get::<_, i32>("place")).ok()?;
        if TABLES.get(place) != Some(&table) {
            return None;
        }
        let number = row.get::<_, Option<i32>>("number")?.unsigned_abs();
        Some((Key::from((number, row.get::<_, &str>("name"))), row.get("row")))
    };
    let mut found: Vec<KeyedRow> = rows.iter().filter_map(keyed_row).collect();
    found.sort_unstable();
    found
}
