//! A copy of the file, made row by row beside its place and put there whole or not at all.

use std::fs::File;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, WriteTransaction};
use tempfile::NamedTempFile;

use crate::store::redb::open::temporary_in;
use crate::store::redb::raw::Chunk;
use crate::store::redb::tables::{FORMAT_KEY, META, Tables};
use crate::store::redb::{temp_files, writer};

/// How many bytes of rows one commit takes.
const COMMIT_BYTES: usize = 16 << 20;
/// How much of the copy is cached while it is made, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// What to do with a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Leave it, and make no copy.
    Keep,
    /// Put the copy in its place.
    Replace,
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// There is a file of that name.
    #[error("{} is there already", path.display())]
    Exists {
        /// Its path.
        path: PathBuf,
    },
    /// It cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Not everything has come.
    #[error("only {copied} of {expected} rows came; nothing was written")]
    Incomplete {
        /// Rows that came.
        copied: u64,
        /// Rows that there are.
        expected: u64,
    },
}

/// A copy in the making. Nothing is left of it where it is not finished.
pub struct FileCopy {
    path: PathBuf,
    existing: Existing,
    // In the order in which they are to go: the transaction before its database, and the file last.
    transaction: Option<WriteTransaction>,
    database: Database,
    temporary: NamedTempFile,
    uncommitted: usize,
    rows: u64,
}

impl std::fmt::Debug for FileCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileCopy").field("path", &self.path).finish_non_exhaustive()
    }
}

impl FileCopy {
    /// Begins a copy that is to be at `path`, with no access for anybody but its owner.
    pub fn begin(path: &Path, existing: Existing) -> Result<Self, CopyError> {
        let path = std::path::absolute(path).map_err(|source| write_error(path, source))?;
        // Looked at before the work; what decides is the renaming at the end.
        if existing == Existing::Keep && path.symlink_metadata().is_ok() {
            return Err(CopyError::Exists { path });
        }
        let failed = |source: std::io::Error| write_error(&path, source);
        let directory = path.parent().unwrap_or(&path);
        // What earlier ones left that were killed can be as large as this one.
        temp_files::remove(directory, temp_files::BACKUP);
        temp_files::remove(directory, temp_files::NEW);
        let temporary = match existing {
            Existing::Keep => temp_files::make(directory, temp_files::BACKUP),
            Existing::Replace => temporary_in(directory),
        };
        let temporary = temporary.map_err(failed)?;
        let file = temporary.reopen().map_err(failed)?;
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create_file(file)
            .map_err(|source| write_error(&path, source))?;
        let transaction = None;
        Ok(Self { path, existing, transaction, database, temporary, uncommitted: 0, rows: 0 })
    }

    /// Adds rows; gives how many there are now.
    pub fn add(&mut self, chunk: &Chunk) -> Result<u64, CopyError> {
        let added = (|| -> Result<u64, redb::Error> {
            let transaction = match self.transaction.take() {
                Some(transaction) => transaction,
                None => self.database.begin_write()?,
            };
            let added = chunk.table().insert(&transaction, &mut chunk.rows())?;
            self.uncommitted += chunk.as_bytes().len();
            if self.uncommitted < COMMIT_BYTES {
                self.transaction = Some(transaction);
            } else {
                self.uncommitted = 0;
                transaction.commit()?;
            }
            Ok(added)
        })();
        self.rows += added.map_err(|source| write_error(&self.path, source))?;
        Ok(self.rows)
    }

    /// Puts the copy in its place, durably, once it has all of `expected` rows; gives its size in
    /// bytes.
    pub fn finish(mut self, expected: u64) -> Result<u64, CopyError> {
        let failed = |source| write_error(&self.path, source);
        if let Some(transaction) = self.transaction.take() {
            transaction.commit().map_err(|source| failed(redb::Error::from(source)))?;
        }
        complete(&mut self.database).map_err(failed)?;
        if self.rows != expected || !has_format(&self.database).map_err(failed)? {
            return Err(CopyError::Incomplete { copied: self.rows, expected });
        }
        let Self { path, existing, database, temporary, .. } = self;
        drop(database);
        let placed = (|| {
            // In redb's stead, so that nobody takes it for a stray.
            temporary.as_file().lock()?;
            temporary.as_file().sync_all()?;
            let bytes = temporary.as_file().metadata()?.len();
            match existing {
                Existing::Keep => temporary.persist_noclobber(&path),
                Existing::Replace => temporary.persist(&path),
            }
            .map_err(|error| error.error)?;
            sync_directory_of(&path)?;
            Ok(bytes)
        })();
        placed.map_err(|source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AlreadyExists => CopyError::Exists { path },
            _ => write_error(&path, source),
        })
    }
}

/// Follows a link that the data file is behind, so that the link stays.
pub(in crate::store) fn behind_link(path: PathBuf) -> PathBuf {
    std::fs::canonicalize(&path).unwrap_or(path)
}

/// Makes the names in a file's directory durable.
pub(super) fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

/// Makes tables that had no rows, gives back what is free, and leaves the file quick to open.
fn complete(database: &mut Database) -> Result<(), redb::Error> {
    database.compact()?;
    let mut transaction = database.begin_write()?;
    writer::prepare(&mut transaction);
    Tables::open(&transaction)?.create()?;
    Ok(transaction.commit()?)
}

fn has_format(database: &Database) -> Result<bool, redb::Error> {
    let meta = database.begin_read()?.open_table(META)?;
    Ok(meta.get(FORMAT_KEY)?.is_some())
}

fn write_error(
    path: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> CopyError {
    CopyError::Write { path: path.to_owned(), source: source.into() }
}
