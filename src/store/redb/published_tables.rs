//! Tables from which rows are read by their key, open as of the last publication.
//!
//! To open a table takes longer than to read a row of it. While one is open, the data file cannot be
//! opened again.

use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition, TableHandle};

use crate::store::redb::error::ReadError;
use crate::store::redb::tables::{IDEMPOTENCY, IdKey, MESSAGES, Row};

/// Definition of a table whose rows are read by a message's id.
pub(super) type KeyedTable = TableDefinition<'static, IdKey, Row>;

const KEYED: [KeyedTable; 2] = [MESSAGES, IDEMPOTENCY];

pub(super) struct PublishedTables(Vec<ReadOnlyTable<IdKey, Row>>);

impl PublishedTables {
    /// Opens the tables as the last commit left them.
    pub(super) fn open(database: &Database) -> Result<Self, ReadError> {
        let transaction = database.begin_read()?;
        let tables = KEYED.iter().map(|table| Ok(transaction.open_table(*table)?));
        Ok(Self(tables.collect::<Result<_, ReadError>>()?))
    }

    pub(super) fn of(&self, table: KeyedTable) -> &ReadOnlyTable<IdKey, Row> {
        let open = self.0.iter().find(|open| open.name() == table.name());
        open.expect("every table with such reads is open")
    }
}
