//! Reads that fail: each is logged with its table, its row and the reason.

use std::fmt::Display;

use redb::TableHandle;

use crate::store::redb::read_error::ReadError;
use crate::store::{DamagedRow, Health, Store, StoreError};

impl Store {
    /// The rows that cannot be read, as far as they have been met since the start. A start meets
    /// those of organisations, API keys, domains, suppressions, live idempotency keys and pending
    /// messages.
    pub fn damaged(&self) -> Vec<DamagedRow> {
        let mut rows = self.shared.directory().damaged.clone();
        rows.extend(self.shared.damage.rows());
        rows
    }

    /// A read's answer; the log says why one failed. If the file failed it, redb's handle refuses
    /// all that follows, so the file is opened again, and not only when somebody writes.
    pub(in crate::store) fn noticed<T>(
        &self,
        table: &impl TableHandle,
        id: impl Display,
        read: Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        match read {
            Ok(read) => Ok(read),
            Err(ReadError::Row(row)) => {
                self.shared.damage.note(row);
                Err(StoreError::Damaged)
            }
            Err(ReadError::File(error)) => {
                let table = table.name();
                tracing::error!(table, %id, %error, "a read of the data file failed");
                if self.health() == Health::Writable {
                    self.writer.probe();
                }
                Err(StoreError::Unavailable)
            }
        }
    }
}
