//! Backups and other copies of the file: a snapshot is read row by row, and a copy is put in its
//! place whole or not at all.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};
use tempfile::NamedTempFile;

use crate::StoreError;
use crate::redb::changes::{Changes, RowChange, push_row, split_all, split_row};
use crate::redb::data_directory::create_directory;
use crate::redb::data_file::FileLoss;
use crate::redb::error::ReadError;
use crate::redb::tables::{
    FORMAT_KEY, JOURNAL_EPOCH, META, TABLES, Tables, begin_write, kept_checkpoint,
};
use crate::redb::temp_files::{self, Existing};
use crate::redb::{FILE_NAME, RedbStore, Shared};
use crate::rows::KeyRange;
use pillarbox_domain::time::Timestamp;

/// Number of bytes of rows that one commit takes.
const COMMIT_BYTES: usize = 16 << 20;
/// Number of bytes of the copy that are cached while it is made.
const COPY_CACHE_BYTES: usize = 64 << 20;

impl RedbStore {
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.published().await;
        self.checked("meta", "all tables", Snapshot::take(&self.shared))
    }

    pub(crate) async fn save_lost_file(
        &self,
        now: Timestamp,
    ) -> Result<Option<PathBuf>, SaveError> {
        let Some((loss, file)) = self.shared.look().zip(self.shared.database.data_file()) else {
            return Ok(None);
        };
        let path = match loss {
            FileLoss::WrittenOver => return Err(SaveError::WrittenOver),
            // A link without a target takes up the place as well.
            FileLoss::Gone if file.path().symlink_metadata().is_err() => file.path().to_owned(),
            FileLoss::Gone | FileLoss::Replaced => {
                file.path().with_file_name(format!("{FILE_NAME}.saved-{}", now.unix_millis()))
            }
        };
        // The directory may be missing with the file. If it cannot be made, the copy returns the
        // error.
        let _ = path.parent().map(create_directory);
        let snapshot = self.snapshot().await?;
        let saved = tokio::task::spawn_blocking(move || snapshot.save(&path).map(|()| path));
        saved.await.expect("saving does not panic and is not aborted").map(Some)
    }

    pub(crate) fn replacement(directory: &Path) -> Result<FileCopy, CopyError> {
        FileCopy::begin(&behind_link(directory.join(FILE_NAME)), Existing::Replace)
    }
}

/// Snapshot of everything that the file holds at one moment. While it lives, the space of removed
/// rows is not reused.
#[derive(Debug)]
pub struct Snapshot {
    transaction: ReadTransaction,
    shared: Arc<Shared>,
    rows: u64,
}

impl Snapshot {
    fn take(shared: &Arc<Shared>) -> Result<Self, ReadError> {
        let transaction = shared.database.begin_read()?;
        let mut rows = 0;
        for (table, _) in TABLES {
            rows += table.open(&transaction)?.count(&KeyRange::all())?;
        }
        // The copy has everything, and no journal.
        rows -= u64::from(kept_checkpoint(&transaction)?.is_some());
        Ok(Self { transaction, shared: Arc::clone(shared), rows })
    }

    /// Total number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Copies everything to a new file. Blocks.
    fn save(self, path: &Path) -> Result<(), SaveError> {
        let rows = self.rows();
        let mut copy = FileCopy::begin(path, Existing::Keep)?;
        let mut added = Ok(0);
        self.read(|chunk| {
            added = copy.add(&chunk);
            if added.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        added?;
        copy.finish(rows)?;
        Ok(())
    }

    /// Hands over everything, a part at a time, until `take` breaks. Blocks.
    pub fn read(self, mut take: impl FnMut(Chunk) -> ControlFlow<()>) -> Result<(), StoreError> {
        for (number, (table, _)) in (0..).zip(TABLES) {
            let mut chunk = Chunk::of(number);
            let mut refusing = false;
            let mut hand_over = |chunk| {
                // A file that is to be opened again must not be held open here.
                refusing = self.shared.refusing.load(Ordering::Acquire);
                if refusing { ControlFlow::Break(()) } else { take(chunk) }
            };
            let mut add = |key: &[u8], value: &[u8]| {
                if table.name() == "meta" && key == JOURNAL_EPOCH.as_bytes() {
                    return ControlFlow::Continue(());
                }
                push_row(&mut chunk.0, key, Some(value));
                if chunk.0.len() < Chunk::FULL_BYTES {
                    return ControlFlow::Continue(());
                }
                hand_over(std::mem::replace(&mut chunk, Chunk::of(number)))
            };
            let read = table.open(&self.transaction).and_then(|rows| rows.each(&mut add));
            let mut flow = read.map_err(|error| {
                tracing::error!(table = table.name(), %error, "a read of the data file failed");
                StoreError::Unavailable
            })?;
            // A chunk with nothing behind its table's number has no rows.
            if flow.is_continue() && chunk.0.len() > 1 {
                flow = hand_over(chunk);
            }
            if refusing {
                return Err(StoreError::Unavailable);
            }
            if flow.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Rows of one table, as bytes that can travel: the table's number, then for each row the lengths
/// of key and value (four bytes each, the lowest first), the key and the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk(Vec<u8>);

/// The bytes are no chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the received data is not a part of a backup")]
pub struct NotAChunk;

impl Chunk {
    /// Length, in bytes, after which no further row is added.
    const FULL_BYTES: usize = 1 << 20;
    /// The longest chunk, in bytes: a full one, and a row with everything that a request may hold.
    pub const MAX_BYTES: usize = 64 << 20;

    fn of(table: u8) -> Self {
        Self(vec![table])
    }

    /// Returns a chunk of received bytes. Checks that they are whole.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, NotAChunk> {
        let chunk = Self(bytes);
        if usize::from(*chunk.0.first().ok_or(NotAChunk)?) >= TABLES.len() {
            return Err(NotAChunk);
        }
        let is_whole = chunk.rows().all(|row| row.is_some());
        if is_whole { Ok(chunk) } else { Err(NotAChunk) }
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The rows; ends with `None` if the last one is not whole.
    fn rows(&self) -> impl Iterator<Item = Option<RowChange<'_>>> {
        let table = self.0[0];
        split_all(&self.0[1..], move |bytes| {
            split_row(table, bytes).filter(|(row, _)| row.value.is_some())
        })
    }
}

/// Reason why the content of a lost file could not be saved.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SaveError {
    #[error("another process overwrote it")]
    WrittenOver,
    #[error(transparent)]
    Read(#[from] StoreError),
    #[error(transparent)]
    Write(#[from] CopyError),
}

/// Reason why there is no copy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CopyError {
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("only {copied} of {expected} rows arrived; nothing was written")]
    Incomplete { copied: u64, expected: u64 },
}

/// A copy that is being made. If it is not finished, it is removed.
pub struct FileCopy {
    path: PathBuf,
    existing: Existing,
    // In the order of their drop: the transaction before its database, and the file last.
    transaction: Option<WriteTransaction>,
    database: Database,
    temporary: NamedTempFile,
    uncommitted: usize,
    rows: u64,
}

impl FileCopy {
    /// Begins a copy that is to be at `path`, with access for its owner only.
    pub fn begin(path: &Path, existing: Existing) -> Result<Self, CopyError> {
        let path = std::path::absolute(path).map_err(|source| write_error(path, source))?;
        // Checked before the work; the renaming at the end decides.
        if existing == Existing::Keep && path.symlink_metadata().is_ok() {
            return Err(CopyError::Exists { path });
        }
        let directory = path.parent().unwrap_or(&path);
        // Files of earlier processes that were killed can be as large as this one.
        temp_files::remove(directory, temp_files::BACKUP);
        temp_files::remove(directory, temp_files::NEW);
        let made = (|| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
            let temporary = match existing {
                Existing::Keep => temp_files::make(directory, temp_files::BACKUP)?,
                Existing::Replace => temp_files::make_data_file(directory)?,
            };
            let file = temporary.reopen()?;
            Ok((Database::builder().set_cache_size(COPY_CACHE_BYTES).create_file(file)?, temporary))
        })();
        let (database, temporary) = made.map_err(|source| write_error(&path, source))?;
        let transaction = None;
        Ok(Self { path, existing, transaction, database, temporary, uncommitted: 0, rows: 0 })
    }

    /// Adds rows; returns the number of rows so far.
    pub fn add(&mut self, chunk: &Chunk) -> Result<u64, CopyError> {
        let added = (|| -> Result<u64, redb::Error> {
            let transaction = match self.transaction.take() {
                Some(transaction) => transaction,
                None => self.database.begin_write()?,
            };
            let rows: Vec<_> = chunk.rows().flatten().collect();
            TABLES[usize::from(chunk.0[0])].0.make(&transaction, &rows)?;
            self.uncommitted += chunk.as_bytes().len();
            if self.uncommitted < COMMIT_BYTES {
                self.transaction = Some(transaction);
            } else {
                self.uncommitted = 0;
                transaction.commit()?;
            }
            Ok(rows.len() as u64)
        })();
        self.rows += added.map_err(|source| write_error(&self.path, source))?;
        Ok(self.rows)
    }

    /// Puts the copy in its place, durably, once it has all of `expected` rows; returns its size in
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
            // Locked here, because redb has released its lock, so that nobody takes it for an
            // abandoned file.
            temporary.as_file().lock()?;
            Ok(temp_files::place(temporary, &path, existing)?.metadata()?.len())
        })();
        placed.map_err(|source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AlreadyExists => CopyError::Exists { path },
            _ => write_error(&path, source),
        })
    }
}

/// Follows a link that the data file is behind, so that the link stays.
pub(super) fn behind_link(path: PathBuf) -> PathBuf {
    std::fs::canonicalize(&path).unwrap_or(path)
}

/// Makes tables that had no rows, returns free space to the file system, and leaves the file quick
/// to open.
fn complete(database: &mut Database) -> Result<(), redb::Error> {
    database.compact()?;
    let transaction = begin_write(database)?;
    Tables::new(&transaction, &Changes::default()).create()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_reads_back_and_a_broken_one_is_told() {
        let mut chunk = Chunk::of(1);
        push_row(&mut chunk.0, b"key", Some(b"value"));
        push_row(&mut chunk.0, b"", Some(b""));
        let bytes = chunk.as_bytes().to_vec();
        let read = Chunk::from_bytes(bytes.clone()).unwrap();
        let rows: Vec<_> = read.rows().flatten().map(|row| (row.key, row.value.unwrap())).collect();
        assert_eq!(rows, [(&b"key"[..], &b"value"[..]), (b"", b"")]);
        for bad in [&[][..], &[200], &bytes[..bytes.len() - 1], &bytes[..5]] {
            assert_eq!(Chunk::from_bytes(bad.to_vec()), Err(NotAChunk), "{bad:?}");
        }
    }
}
