//! Failures of reading and writing the file, before they become the store's own errors.

use crate::store::StoreError;
use crate::store::redb::damage::DamagedRow;

/// Why rows could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(in crate::store) enum ReadError {
    /// The file, or the handle on it.
    #[error(transparent)]
    File(#[from] redb::Error),
    /// A row's content.
    #[error(transparent)]
    Row(#[from] DamagedRow),
}

impl From<redb::StorageError> for ReadError {
    fn from(error: redb::StorageError) -> Self {
        Self::File(error.into())
    }
}

impl From<redb::TableError> for ReadError {
    fn from(error: redb::TableError) -> Self {
        Self::File(error.into())
    }
}

impl From<redb::TransactionError> for ReadError {
    fn from(error: redb::TransactionError) -> Self {
        Self::File(error.into())
    }
}

impl From<ReadError> for StoreError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::File(_) => Self::Unavailable,
            ReadError::Row(_) => Self::Damaged,
        }
    }
}
