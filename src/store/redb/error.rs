//! Errors of the engine: of a read or write of the file, of an opening.

use std::fmt::Display;
use std::path::PathBuf;

use redb::{DatabaseError, StorageError, TableHandle};

use crate::store::error::{DamagedRow, RowError};
use crate::store::redb::JOURNAL_NAME;
use crate::store::redb::journal::JournalError;

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
    /// The file was not closed, and its journal is missing, another's or damaged.
    #[error(
        "the file was in use when the service ended, and what was accepted last is in its journal \
         {JOURNAL_NAME}, which cannot be used: {0}. Put the two files together that belong together, \
         or run: pillarbox restore BACKUP --replace. To go on without what was accepted last, copy \
         the data file elsewhere and run: pillarbox restore COPY --replace --accept-loss. To copy \
         the files of a running service, run: pillarbox backup FILE"
    )]
    Journal(String),
    /// The file was not closed, and a copy of it alone is not enough.
    #[error(
        "it is a copy of a data file that was in use, without its journal, so what was accepted last \
         is missing; copy both files into a data directory and start the service there, make a copy \
         with: pillarbox backup, or add --accept-loss"
    )]
    Unclosed,
    /// The disk failed.
    #[error("the file cannot be read or written: {0}")]
    Io(redb::Error),
    /// It is of `pillarbox dev`, and the service does not take it.
    #[error(
        "the data file was made by `pillarbox dev`, for trials: its keys and domains are not real; \
         give the service a directory of its own in data_dir"
    )]
    MadeByDev,
    /// It is of the service, and `pillarbox dev` does not take it.
    #[error(
        "the data file was not made by `pillarbox dev`, which would put an organisation, a domain \
         and a key into it; give `pillarbox dev` a directory of its own with --data-dir, or none. (If an earlier \
         version of `dev` made it, remove the organisations that you added.)"
    )]
    NotMadeByDev,
    /// Another process put another file in its place meanwhile.
    #[error("another process replaced the file while it was opened; start again")]
    Replaced,
    /// The writer's thread could not be started.
    #[error("cannot start the writer's thread: {0}")]
    Thread(std::io::Error),
}

impl From<DatabaseError> for OpenError {
    fn from(error: DatabaseError) -> Self {
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
}

impl From<JournalError> for OpenError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Io(error) => Self::Io(StorageError::Io(of_journal(&error)).into()),
            JournalError::Foreign
            | JournalError::Older
            | JournalError::Newer
            | JournalError::Damaged { .. } => Self::Journal(error.to_string()),
        }
    }
}

impl From<JournalError> for ReadError {
    fn from(error: JournalError) -> Self {
        let error = match error {
            JournalError::Io(error) => StorageError::Io(of_journal(&error)),
            other => StorageError::Corrupted(other.to_string()),
        };
        error.into()
    }
}

/// Says in an error that the journal has it, and not the data file.
fn of_journal(error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("the journal {JOURNAL_NAME}: {error}"))
}

impl From<redb::Error> for OpenError {
    fn from(error: redb::Error) -> Self {
        Self::Io(error)
    }
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::File(error) => Self::Io(error),
            ReadError::Row(error) => Self::Damaged(error.to_string()),
        }
    }
}

/// Why rows could not be read or written, before it becomes one of the errors above.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The file, or the handle on it.
    #[error(transparent)]
    File(#[from] redb::Error),
    /// A row's content.
    #[error(transparent)]
    Row(#[from] DamagedRow),
}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> Self {
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

impl From<redb::CommitError> for ReadError {
    fn from(error: redb::CommitError) -> Self {
        Self::File(error.into())
    }
}

/// Says where a row is that cannot be read.
pub(super) trait InRow<T> {
    /// Adds the table and the key, for people, to the error.
    fn in_row(self, table: impl TableHandle, id: impl Display) -> Result<T, DamagedRow>;
}

impl<T> InRow<T> for Result<T, RowError> {
    fn in_row(self, table: impl TableHandle, id: impl Display) -> Result<T, DamagedRow> {
        self.map_err(|reason| DamagedRow::new(table.name(), id, &reason))
    }
}
