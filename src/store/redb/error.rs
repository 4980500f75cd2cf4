//! Errors of the engine: of a read or write of the file, of an opening.

use std::fmt::Display;
use std::path::PathBuf;

use redb::{DatabaseError, StorageError, TableHandle};

use crate::error::{DamagedRow, RowError};
use crate::redb::JOURNAL_NAME;
use crate::redb::journal::JournalError;

/// Reason why the file could not be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OpenError {
    #[error(
        "another process has the file open; is pillarbox running already? Stop it, or use another \
         data directory"
    )]
    InUse,
    #[error("the file is not a pillarbox store; it was left untouched")]
    Foreign,
    #[error("the file has format {version}, written by a newer pillarbox; upgrade this one")]
    Newer { version: u64 },
    #[error(
        "the file has redb's format {0}, which this pillarbox cannot read; it was left untouched"
    )]
    OtherFormat(u8),
    #[error("the file is damaged: {0}; restore a backup")]
    Damaged(String),
    #[error("cannot create {}: {source}", path.display())]
    Create { path: PathBuf, source: std::io::Error },
    #[error(
        "the service did not close the file, so the last writes are in its journal {JOURNAL_NAME}, \
         which cannot be used: {0}. Put back the data file and the journal that belong together, \
         or run: pillarbox restore BACKUP --replace. To continue without the last writes, copy the \
         data file elsewhere and run: pillarbox restore COPY --replace --accept-loss. To copy the \
         files of a running service, run: pillarbox backup FILE"
    )]
    Journal(String),
    #[error(
        "it is a copy of a data file that was in use, without its journal, so the last writes are \
         missing; either copy both files into a data directory and start the service there, or \
         restore a copy made with pillarbox backup FILE, or add --accept-loss"
    )]
    Unclosed,
    #[error("the file cannot be read or written: {0}")]
    Io(redb::Error),
    #[error(
        "the data file was made by `pillarbox dev`, for trials: its keys and domains are not real; \
         give the service another directory in data_dir"
    )]
    MadeByDev,
    #[error(
        "the data file was not made by `pillarbox dev`, which would add an organisation, a domain \
         and a key to it; give `pillarbox dev` another directory with --data-dir, or leave the \
         option out. (If an earlier version of `dev` made it, remove the organisations that you \
         added.)"
    )]
    NotMadeByDev,
    #[error("another process replaced the file while pillarbox opened it; start the service again")]
    Replaced,
    #[error("cannot start the writer's thread: {0}")]
    Thread(std::io::Error),
}

impl From<DatabaseError> for OpenError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            DatabaseError::Storage(StorageError::Corrupted(what)) => Self::Damaged(what),
            DatabaseError::UpgradeRequired(format) => Self::OtherFormat(format),
            DatabaseError::Storage(StorageError::Io(error)) => match error.kind() {
                std::io::ErrorKind::UnexpectedEof => Self::Damaged("it is cut short".to_owned()),
                // redb reports a wrong magic number as invalid data.
                std::io::ErrorKind::InvalidData => Self::Foreign,
                _ => Self::Io(redb::Error::Io(error)),
            },
            other => Self::Io(other.into()),
        }
    }
}

impl From<JournalError> for OpenError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Io(_) => ReadError::from(error).into(),
            other => Self::Journal(other.to_string()),
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

/// Adds to an error that it is the journal's, and not the data file's.
fn of_journal(error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("the journal {JOURNAL_NAME}: {error}"))
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::File(error) => Self::Io(error),
            ReadError::Row(error) => Self::Damaged(error.to_string()),
        }
    }
}

/// Reason why rows could not be read or written, before it becomes one of the errors above.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    File(redb::Error),
    #[error(transparent)]
    Row(#[from] DamagedRow),
}

macro_rules! of_file {
    ($($error:ty),+) => {$(
        impl From<$error> for ReadError {
            fn from(error: $error) -> Self {
                Self::File(error.into())
            }
        }

        impl From<$error> for OpenError {
            fn from(error: $error) -> Self {
                Self::Io(error.into())
            }
        }
    )+};
}

of_file!(redb::Error, StorageError, redb::TableError, redb::TransactionError, redb::CommitError);

/// Adds the place of a row that cannot be read.
pub(super) trait InRow<T> {
    fn in_row(self, table: impl TableHandle, id: impl Display) -> Result<T, DamagedRow>;
}

impl<T> InRow<T> for Result<T, RowError> {
    fn in_row(self, table: impl TableHandle, id: impl Display) -> Result<T, DamagedRow> {
        self.map_err(|reason| DamagedRow::new(table.name(), id, &reason))
    }
}
