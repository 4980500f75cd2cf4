//! The redb file behind the store: opening, reading, writing and opening again after a failure.
//!
//! Knows rows and transactions; which of them make up a domain transition is the business of
//! the operations beside it.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::{Database, ReadTransaction, ReadableDatabase};
use tokio::sync::{Notify, Semaphore};

use crate::domain::id::OrganisationId;
use crate::fair_share::Slots;
use crate::store::FileLoss;
use crate::store::metrics::StoreMetrics;
use damage::Damage;
use directory::Directory;
use idempotency::IdempotencyIndex;
use read_error::ReadError;
use tables::Tables;

pub(super) mod accept;
pub(super) mod administer;
pub(super) mod apply;
mod bounded;
pub(super) mod copy;
pub(super) mod damage;
pub(super) mod data_file;
pub(super) mod dead_letter;
pub(super) mod directory;
pub(super) mod idempotency;
pub(super) mod key_use;
pub(super) mod list;
pub(super) mod lost;
pub(super) mod message;
pub(super) mod message_events;
mod migrate;
pub(super) mod open;
pub(super) mod provider_ids;
pub(super) mod purge;
pub(super) mod raw;
pub(super) mod read_error;
pub(super) mod record;
pub(super) mod restore;
mod set_aside;
mod short_hash;
pub(super) mod snapshot;
pub(super) mod suppress;
pub(super) mod tables;
pub(super) mod temp_files;
pub(super) mod time_record;
pub(super) mod unmatched;
pub(super) mod writer;

/// The file as it is open now.
enum Handle {
    /// Not at all: after the store is closed, and where the file cannot be opened.
    Closed,
    /// To be read: the disk takes no writes, and what would be written is lost.
    Reading(Database),
    /// To be read and written.
    Writing(Database),
}

/// What readers and the writer share.
pub(super) struct Shared {
    /// How to open the file again.
    pub(super) opener: open::Opener,
    database: RwLock<Handle>,
    pub(super) directory: RwLock<Arc<Directory>>,
    pub(super) index: RwLock<IdempotencyIndex>,
    /// Whether the last commit failed and none has succeeded since.
    pub(super) refusing: AtomicBool,
    /// What became of the file, if it is not in its place as it was written.
    pub(super) file_loss: RwLock<Option<FileLoss>>,
    /// Told when one of these changes.
    pub(super) health_changed: Notify,
    /// Grows with every commit that suppressed an address.
    pub(super) suppression_epoch: AtomicU64,
    pub(super) suppression_filter: RwLock<suppress::SuppressionFilter>,
    /// When each API key was last used.
    pub(super) key_use: RwLock<key_use::KeyUse>,
    pub(super) metrics: StoreMetrics,
    /// Rows that cannot be read.
    pub(super) damage: Damage,
    /// Listings that may read at one time: they must not take the processor from acceptance.
    pub(super) listings: Arc<Semaphore>,
    /// Those of one organisation; of `None`, those over all organisations.
    pub(super) listings_of: Slots<Option<OrganisationId>>,
}

const LISTINGS_AT_ONCE: usize = 4;
/// Listings of one organisation that may read at one time, and how many more may wait.
const LISTINGS_OF_ONE: usize = 2;
const LISTINGS_WAITING: usize = 64;

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(opener: open::Opener, database: Database, damage: Damage) -> Self {
        Self {
            opener,
            database: RwLock::new(Handle::Writing(database)),
            directory: RwLock::default(),
            index: RwLock::default(),
            refusing: AtomicBool::new(false),
            file_loss: RwLock::default(),
            health_changed: Notify::new(),
            suppression_epoch: AtomicU64::new(0),
            suppression_filter: RwLock::default(),
            key_use: RwLock::default(),
            metrics: StoreMetrics::default(),
            damage,
            listings: Arc::new(Semaphore::new(LISTINGS_AT_ONCE)),
            listings_of: Slots::new(LISTINGS_OF_ONE, LISTINGS_WAITING),
        }
    }

    /// Reads from a snapshot. A read is a few pages of a mapped or cached file, so it is done
    /// where the caller stands; only long listings belong on a thread of their own.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let guard = read_lock(&self.database);
        match &*guard {
            Handle::Reading(database) | Handle::Writing(database) => work(&database.begin_read()?),
            Handle::Closed => Err(closed()),
        }
    }

    /// A snapshot that lives on by itself. Whoever holds it lets go where the store begins to
    /// refuse: while it lives, the file cannot be opened again.
    pub(super) fn begin_read(&self) -> Result<ReadTransaction, ReadError> {
        let guard = read_lock(&self.database);
        let Handle::Writing(database) = &*guard else { return Err(closed()) };
        Ok(database.begin_read()?)
    }

    /// Runs one write transaction and commits it durably. The writer's thread alone calls it,
    /// and whoever opens the store before that thread starts.
    pub(super) fn write<T>(
        &self,
        work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let guard = read_lock(&self.database);
        let Handle::Writing(database) = &*guard else { return Err(closed()) };
        write_into(database, work)
    }

    /// Opens the file again and runs one write transaction, because after an I/O error redb's
    /// handle refuses all that follows. If the file cannot be opened or written, it is open for
    /// reading afterwards. Readers wait meanwhile: none meets a handle whose write failed.
    pub(super) fn reopen(
        &self,
        work: impl FnOnce(Tables<'_>) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut guard = write_lock(&self.database);
        // The old handle holds the file's lock, so it goes first.
        *guard = Handle::Closed;
        let opened = self.opener.open().map_err(ReadError::from);
        let written = opened.and_then(|database| {
            write_into(&database, work)?;
            Ok(database)
        });
        match written {
            Ok(database) => {
                *guard = Handle::Writing(database);
                Ok(())
            }
            Err(error) => {
                *guard = self.opener.open_for_reading().map_or(Handle::Closed, Handle::Reading);
                Err(error)
            }
        }
    }

    /// Looks whether the file is in its place and as it was written, and tells of a change.
    pub(super) fn look(&self) -> Option<FileLoss> {
        let file = self.opener.data_file()?;
        let loss = file.look();
        if *read_lock(&self.file_loss) == loss {
            return loss;
        }
        *write_lock(&self.file_loss) = loss;
        self.health_changed.notify_waiters();
        let path = file.path().display();
        match loss {
            None => tracing::info!(%path, "the data file is in its place again"),
            Some(FileLoss::Gone) => tracing::error!(
                %path, "the data file is gone: new messages are refused; put it back if it was \
                 moved, else run: pillarbox backup FILE, and restart"
            ),
            Some(FileLoss::Replaced) => tracing::error!(
                %path, "the data file is another than the one that is open: new messages are \
                 refused; put the right one back, or run: pillarbox backup FILE, and restart"
            ),
            Some(FileLoss::WrittenOver) => tracing::error!(
                %path, "the data file was written over by another process: new messages are \
                 refused and outcomes are lost; stop the service and restore a backup"
            ),
        }
        loss
    }

    pub(super) fn close(&self) {
        *write_lock(&self.database) = Handle::Closed;
    }

    pub(super) fn reload_directory(&self) -> Result<(), ReadError> {
        self.set_directory(self.read(Directory::load)?);
        Ok(())
    }

    pub(super) fn set_directory(&self, directory: Directory) {
        *write_lock(&self.directory) = Arc::new(directory);
    }

    /// The snapshot of organisations, keys and domains.
    pub(super) fn directory(&self) -> Arc<Directory> {
        Arc::clone(&read_lock(&self.directory))
    }
}

fn write_into<T>(
    database: &Database,
    work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let mut transaction = database.begin_write()?;
    writer::prepare(&mut transaction);
    let done = work(Tables::open(&transaction)?)?;
    transaction.commit().map_err(redb::Error::from)?;
    Ok(done)
}

fn closed() -> ReadError {
    redb::Error::from(redb::StorageError::DatabaseClosed).into()
}

/// Locks for reading. What the locks guard is whole at every moment, so a panic elsewhere is no
/// reason to stop.
pub(super) fn read_lock<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, as [`read_lock`] does for reading.
pub(super) fn write_lock<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
