//! Why the store could not be opened, or could not do what was asked.

use std::path::PathBuf;

use redb::{DatabaseError, StorageError};

use crate::store::redb::read_error::ReadError;

/// Why the store could not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk does not take it now (full, I/O error): nothing was changed; try again later.
    #[error("the store does not take it now: the disk is full or failing")]
    Unavailable,
    /// The data file is gone, another or written over: nothing was changed.
    #[error("the store takes no changes: its data file is gone, replaced or written over")]
    FileLost,
    /// A row cannot be read: the file is damaged.
    #[error("a row of the store cannot be read: the file is damaged")]
    Damaged,
}

/// Why messages could not be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too many listings of the same organisation wait already.
    #[error("too many listings of the organisation wait; try again later")]
    TooMany,
}

/// Why the file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("another process has the file open; is pillarbox running already?")]
    InUse,
    /// It is not a file of pillarbox.
    #[error("the file is not a pillarbox store; it was left untouched")]
    Foreign,
    /// It was written by a newer pillarbox.
    #[error("the file has format {version}, written by a newer pillarbox; upgrade this one")]
    Newer {
        /// The file's format.
        version: u64,
    },
    /// It is redb's, in a form that this version of redb does not read.
    #[error(
        "the file has redb's format {0}, which this pillarbox cannot read; it was left untouched"
    )]
    OtherFormat(u8),
    /// Its content cannot be read.
    #[error("the file is damaged: {0}; restore a backup")]
    Damaged(String),
    /// It could not be made.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The disk failed.
    #[error("the file cannot be read or written: {0}")]
    Io(redb::Error),
    /// Another process put another file in its place meanwhile.
    #[error("another process replaced the file while it was opened; start again")]
    Replaced,
    /// The writer's thread could not be started.
    #[error("cannot start the writer's thread: {0}")]
    Thread(std::io::Error),
}

impl OpenError {
    pub(in crate::store) fn from_database(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            DatabaseError::Storage(StorageError::Corrupted(what)) => Self::Damaged(what),
            DatabaseError::UpgradeRequired(format) => Self::OtherFormat(format),
            DatabaseError::Storage(StorageError::Io(error))
                if error.kind() == std::io::ErrorKind::UnexpectedEof =>
            {
                Self::Damaged("it is cut short".to_owned())
            }
            // redb reports a wrong magic number as invalid data.
            DatabaseError::Storage(StorageError::Io(error))
                if error.kind() == std::io::ErrorKind::InvalidData =>
            {
                Self::Foreign
            }
            other => Self::Io(other.into()),
        }
    }

    pub(in crate::store) fn from_read(error: ReadError) -> Self {
        match error {
            ReadError::File(error) => Self::Io(error),
            ReadError::Row(error) => Self::Damaged(error.to_string()),
        }
    }
}
