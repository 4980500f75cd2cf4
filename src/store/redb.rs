//! The default engine: one file of redb, its journal, and one thread that writes.
//!
//! No redb type or closure leaves this module. Each file of this folder has one subject: its part
//! of [`RedbStore`], and the rows and tables behind that.

use pillarbox_runtime::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use redb::ReadTransaction;

use crate::StoreId;
use crate::directory::OrganisationIndex;
use crate::locks::{RwLock, read_lock, write_lock};
use crate::{Applied, Health, InMemory, Report, StoreError, StoreOwner, transitions};
use batch::{Batch, Kind};
use database::SharedDatabase;
use error::ReadError;
use feed::FeedIndex;
use idempotency::IdempotencyIndex;
use open::Opener;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Recorded, Transition};
use pillarbox_domain::time::Timestamp;
use startup_recovery::Start;
use writer::{Writer, WriterThread};

pub use backup::{Chunk, CopyError, FileCopy, NotAChunk, SaveError, Snapshot};
pub use data_directory::create_directory;
pub use data_file::{FileId, FileLoss, OwnFiles};
pub use error::OpenError;
#[cfg(feature = "failing-disk")]
pub use failing_disk::MemoryDisk;
pub use open::FileOrigin;
pub use restore::{Candidate, Contents, RestoreError, Restored, Unclosed};
pub(super) use startup_recovery::Pending;
pub use startup_recovery::Recovery;
pub use temp_files::Existing;

/// Hands locks of parts of a storage on to the one below, each by the method that is named for it.
macro_rules! hand_on_locks {
    ($($method:ident => $below:ident: $answer:ty,)+) => {$(
        fn $method(&self, start: Bound<u64>, end: Bound<u64>) -> Result<$answer, BackendError> {
            self.below.$below(start, end)
        }
    )+};
}

mod accept;
mod backup;
mod batch;
mod changes;
mod data_directory;
mod data_file;
mod database;
mod error;
mod export;
#[cfg(any(test, feature = "failing-disk"))]
mod failing_disk;
mod feed;
mod idempotency;
mod journal;
mod messages;
mod open;
mod overlay;
mod purge;
mod recent_rows;
mod restore;
mod rows;
mod startup_recovery;
mod tables;
mod temp_files;
#[cfg(test)]
mod tests;
mod usage;
mod writer;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "pillarbox.redb";
/// The journal's name in the data directory.
pub const JOURNAL_NAME: &str = "pillarbox.journal";
/// Number of bytes of the file that are cached. Sending and reading use mostly recent rows.
pub const CACHE_BYTES: usize = 64 << 20;

/// Approximate number of bytes that an outcome writes.
const OUTCOME_WEIGHT: usize = 512;
/// Approximate number of bytes that a report writes.
const REPORT_WEIGHT: usize = 1_024;

/// The engine, open. Cheap to clone; the file is closed when the last clone is gone.
#[derive(Debug, Clone)]
pub(super) struct RedbStore {
    writer: Writer,
    shared: Arc<Shared>,
    // Joined after the queue above is closed: fields drop in order.
    _thread: Arc<WriterThread>,
}

impl RedbStore {
    /// Opens the files in a directory, and creates them if they are missing. Refuses a file of
    /// another program; commands have no file of their own.
    pub(crate) fn open(
        directory: &Path,
        pending: Pending,
        owner: Option<StoreOwner>,
        bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
        now: Timestamp,
    ) -> Result<(Self, Recovery), OpenError> {
        let path = directory.join(FILE_NAME);
        let file = open::create_if_missing(&path, owner)?;
        let opener = Opener::file(&path, CACHE_BYTES)?;
        let (store, recovery) = Self::start_by(opener, pending, owner, bodies, now)?;
        // Not before the file's lock is held: two starts at one time must not take each other's.
        temp_files::remove(directory, temp_files::NEW);
        Ok((store, Recovery { file, ..recovery }))
    }

    /// Checks that the service could read a directory's data file, if there is one that no process
    /// has open. Writes nothing.
    pub(crate) fn check(directory: &Path) -> Result<(), OpenError> {
        let path = directory.join(FILE_NAME);
        if !path.exists() {
            return Ok(());
        }
        let opener = Opener::file(&path, CACHE_BYTES);
        match opener.and_then(|opener| opener.check(Some(StoreOwner::Service))) {
            Err(OpenError::InUse) => Ok(()),
            checked => checked,
        }
    }

    fn start_by(
        opener: Opener,
        pending: Pending,
        owner: Option<StoreOwner>,
        bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
        now: Timestamp,
    ) -> Result<(Self, Recovery), OpenError> {
        let shared = Arc::new(Shared {
            memory: InMemory::default(),
            database: SharedDatabase::new(opener, owner)?,
            idempotency: RwLock::default(),
            refusing: AtomicBool::new(false),
            file_loss: RwLock::default(),
            feed: FeedIndex::default(),
            start: Start { pending, now, bodies: OnceLock::new() },
        });
        let (recovery, refused) = startup_recovery::start(&shared, bodies)?;
        if let Some(error) = refused {
            shared.refusing.store(true, Ordering::Release);
            tracing::error!(
                %error,
                "the store accepts no writes: until the disk accepts them, messages are refused, \
                 but stored data can be read"
            );
        }
        let (writer, thread) = Writer::start(Arc::clone(&shared)).map_err(OpenError::Thread)?;
        Ok((Self { writer, shared, _thread: Arc::new(thread) }, recovery))
    }

    pub(crate) fn memory(&self) -> &InMemory {
        &self.shared.memory
    }

    pub(crate) fn health(&self) -> Health {
        let loss = *read_lock(&self.shared.file_loss);
        match (loss, self.shared.refusing.load(Ordering::Acquire)) {
            (Some(FileLoss::WrittenOver), _) => Health::FileLost(FileLoss::WrittenOver),
            (_, true) => Health::Refusing,
            (Some(loss), false) => Health::FileLost(loss),
            (None, false) => Health::Writable,
        }
    }

    pub(crate) fn journal_bytes(&self) -> u64 {
        self.shared.database.journal_bytes()
    }

    pub(crate) async fn answered(&self) {
        // `health` shows the result.
        let _ = self.writer.barrier().await;
    }

    /// Waits until snapshots show every batch that is durable now, or the store refuses writes.
    pub(crate) async fn published(&self) {
        if self.shared.database.is_unpublished() {
            // If it fails, the file is opened again, and snapshots show the batches of the journal.
            let _ = self.writer.barrier().await;
        }
    }

    pub(crate) async fn record(
        &self,
        id: MessageId,
        attempts: u32,
        transition: Transition,
        now: Timestamp,
    ) -> Result<Recorded, StoreError> {
        let record = move |batch: &mut Batch<'_>| {
            batch.follow(|rows| transitions::record(rows, id, attempts, transition, now))
        };
        self.writer.run_as(Kind::Outcome, OUTCOME_WEIGHT, None, record).await
    }

    pub(crate) async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let weight = REPORT_WEIGHT * reports.len();
        let apply = move |batch: &mut Batch<'_>| {
            batch.follow(|rows| {
                reports.iter().map(|report| transitions::apply(rows, report, now)).collect()
            })
        };
        self.writer.run(weight, apply).await
    }

    /// Reads from a snapshot. If the read fails, the log has the table, the row and the reason.
    fn read<T>(
        &self,
        table: &str,
        id: impl Display,
        work: impl FnOnce(&ReadTransaction) -> Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        self.checked(table, id, self.shared.database.read(work))
    }

    /// Returns the result of a read, and logs the reason if it failed. After a failure of the file,
    /// redb's handle refuses all further work, so the file is opened again now, and not only at the
    /// next write.
    fn checked<T>(
        &self,
        table: &str,
        id: impl Display,
        read: Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        match read {
            Ok(read) => Ok(read),
            Err(ReadError::Row(row)) => {
                self.shared.memory.damage.note(row);
                Err(StoreError::Damaged)
            }
            Err(ReadError::File(error)) => {
                tracing::error!(table, %id, %error, "a read of the data file failed");
                if self.health() == Health::Writable {
                    self.writer.probe();
                }
                Err(StoreError::Unavailable)
            }
        }
    }
}

struct Shared {
    memory: InMemory,
    database: SharedDatabase,
    idempotency: RwLock<IdempotencyIndex>,
    /// True if the last commit failed and none has succeeded since.
    refusing: AtomicBool,
    /// Loss of the file, if it is not in its place as it was written.
    file_loss: RwLock<Option<FileLoss>>,
    feed: FeedIndex,
    start: Start,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    /// Checks that the file is in its place and as it was written, and notifies of a change.
    fn look(&self) -> Option<FileLoss> {
        let file = self.database.data_file()?;
        let loss = file.look();
        if *read_lock(&self.file_loss) == loss {
            return loss;
        }
        *write_lock(&self.file_loss) = loss;
        self.memory.health_changed.notify_waiters();
        let path = file.path().display();
        match loss {
            None => tracing::info!(%path, "the data file is in its place again"),
            Some(FileLoss::Gone) => tracing::error!(
                %path, "the data file is gone: new messages are refused; put it back if it was \
                 moved, otherwise run: pillarbox backup FILE, then stop and start the service"
            ),
            Some(FileLoss::Replaced) => tracing::error!(
                %path, "the data file is not the one that is open: new messages are \
                 refused; put the right one back, or run: pillarbox backup FILE, stop the service, and \
                 run: pillarbox restore FILE --replace"
            ),
            Some(FileLoss::WrittenOver) => tracing::error!(
                %path, "the data file was overwritten by another process: new messages are \
                 refused and outcomes are lost; stop the service and restore a backup"
            ),
        }
        loss
    }

    fn reload_organisations(&self) -> Result<(), ReadError> {
        self.set_organisations(self.database.read(rows::directory)?);
        Ok(())
    }

    fn set_organisations(&self, mut index: OrganisationIndex) {
        index.version = self.memory.directory.load().version + 1;
        self.memory.directory.replace(index);
    }
}
