//! The database that readers and the writer share: the data file as redb has it, and its journal.
//!
//! It is written in batches that the journal makes durable. These share one write transaction,
//! which stays open: its commit, by a publication or a checkpoint, costs more than a batch's rows.
//! A publication shows the batches to snapshots, a checkpoint makes the data file itself durable.
//! After a failure the files are opened again.

use pillarbox_runtime::sync::atomic::{AtomicU64, Ordering};
use std::io;

use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    TableDefinition, TableHandle, WriteTransaction,
};

use crate::StoreOwner;
use crate::damage::Damage;
use crate::locks::{Mutex, RwLock, locked, read_lock, write_lock};
use crate::redb::changes::{Changes, LaterChanges};
use crate::redb::data_file::DataFile;
use crate::redb::error::{OpenError, ReadError};
use crate::redb::journal::{self, Checkpoint, Epoch, Journal, JournalError};
use crate::redb::open::{Opener, new_epoch, open_to_read, open_to_write};
use crate::redb::recent_rows::RecentRows;
use crate::redb::tables::{
    self, IDEMPOTENCY, IdKey, MESSAGES, META, PROBE, Row, Tables, begin_write, checkpoint_in,
    forget_journal, keep_checkpoint, make_later, number_of, set_durable, write,
};
use pillarbox_domain::id::MessageId;

/// Largest number of changes that wait until their tables get them. It is small in tests, so that
/// they meet both cases.
const LATER_CHANGES: usize = if cfg!(schedules) {
    6
} else if cfg!(test) {
    40
} else {
    250
};

/// Database handle that readers and the writer share, and that is opened again after a failure.
pub(super) struct SharedDatabase {
    opener: Opener,
    /// Required owner of the file; `None` for commands.
    owner: Option<StoreOwner>,
    handle: RwLock<Handle>,
    /// Tables from which rows are read by their key, open as of the last publication, because
    /// opening one takes longer than reading a row of it. While one is open, the data file cannot
    /// be opened again. Empty while the file is not open.
    published: RwLock<Published>,
    /// Of this process: a repeated attempt to open the files uses the same one.
    epoch: Epoch,
    /// `None` until the files were open to be written.
    journal: Mutex<Option<Journal>>,
    /// Bytes in the journal since the last checkpoint. Readers must not wait for its writes.
    journal_bytes: AtomicU64,
    /// Batches since the last publication; `None` if there are none. Only the writer's thread uses
    /// it.
    unpublished: Mutex<Option<Unpublished>>,
    recent_rows: RecentRows,
}

type Published = Vec<ReadOnlyTable<IdKey, Row>>;

/// Destination of the changes by which a start repairs a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Laid {
    /// The file itself.
    Down,
    /// Memory over the file: the file gets them once the disk takes writes.
    Over,
}

/// The transaction with the batches since the last publication.
struct Unpublished {
    transaction: WriteTransaction,
    /// Changes of the batches that it does not have yet.
    later: LaterChanges,
}

enum Handle {
    /// Not open: after the store is closed, and if the file cannot be opened.
    Closed,
    /// Open for reading: the disk takes no writes, and writes are lost.
    Reading(Database),
    Writing(Database),
}

impl SharedDatabase {
    /// A database that is not open yet, after a check that its file is ours: a file of another
    /// program stays as it is to the last byte.
    pub(super) fn new(opener: Opener, owner: Option<StoreOwner>) -> Result<Self, OpenError> {
        opener.check(owner)?;
        Ok(Self {
            opener,
            owner,
            handle: RwLock::new(Handle::Closed),
            published: RwLock::default(),
            epoch: new_epoch()?,
            journal: Mutex::default(),
            journal_bytes: AtomicU64::new(0),
            unpublished: Mutex::default(),
            recent_rows: RecentRows::default(),
        })
    }

    /// Returns true if the files were open for writing once.
    pub(super) fn is_started(&self) -> bool {
        locked(&self.journal).is_some()
    }

    /// Opens the files for writing. `prepare` repairs their content. If that fails and
    /// `may_be_read` allows it for that error, the file is open for reading afterwards, prepared in
    /// memory, and the error is returned too.
    pub(super) fn start<T>(
        &self,
        damage: &Damage,
        may_be_read: impl FnOnce(&OpenError) -> bool,
        mut prepare: impl FnMut(&Database, Laid) -> Result<T, ReadError>,
    ) -> Result<(T, Option<OpenError>), OpenError> {
        let mut guard = write_lock(&self.handle);
        let mut published = write_lock(&self.published);
        // The old handle and its tables hold the file's lock, so they are dropped first.
        (*published, *guard) = (Vec::new(), Handle::Closed);
        let (opener, owner) = (&self.opener, self.owner);
        let mut show = |database, laid, handle: fn(Database) -> Handle| {
            let prepared = prepare(&database, laid)?;
            *published = published_tables(&database)?;
            *guard = handle(database);
            Ok(prepared)
        };
        let written = open_to_write(opener, owner, self.epoch, damage);
        let written = written.and_then(|(database, journal)| {
            let prepared = show(database, Laid::Down, Handle::Writing)?;
            *locked(&self.journal) = Some(journal);
            Ok(prepared)
        });
        let error = match written {
            Err(error) if may_be_read(&error) => error,
            written => return Ok((written?, None)),
        };
        let read = open_to_read(opener, owner, damage);
        match read.and_then(|database| show(database, Laid::Over, Handle::Reading)) {
            Ok(prepared) => Ok((prepared, Some(error))),
            Err(_) => Err(error),
        }
    }

    /// Takes the open transaction with all changes, which is no longer kept. A caller that drops it
    /// has the file opened again, so that the batches in it come back from the journal.
    fn take_unpublished(&self) -> Result<Option<WriteTransaction>, ReadError> {
        let Some(Unpublished { transaction, later }) = locked(&self.unpublished).take() else {
            return Ok(None);
        };
        make_later(&transaction, &later)?;
        Ok(Some(transaction))
    }

    /// Makes the changes that the last batches left for after their answer, once there are many. So
    /// a row that is changed again meanwhile is written once, and a table is opened for many rows.
    /// Only the writer's thread calls it.
    pub(super) fn make_later_changes(&self) -> Result<(), ReadError> {
        let is_much =
            locked(&self.unpublished).as_ref().is_some_and(|now| now.later.len() >= LATER_CHANGES);
        if is_much {
            let transaction = self.take_unpublished()?;
            let later = LaterChanges::default();
            *locked(&self.unpublished) =
                transaction.map(|transaction| Unpublished { transaction, later });
        }
        Ok(())
    }

    /// The file, if the storage is one.
    pub(super) fn data_file(&self) -> Option<&DataFile> {
        self.opener.data_file.as_deref()
    }

    /// Reads one row by its key: as the last durable batch left it.
    pub(super) fn read_row<T>(
        &self,
        table: KeyedTable,
        key: &IdKey,
        work: impl FnOnce(Option<&[u8]>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        // First, because rows are removed here only once each new snapshot has them.
        if let Some(row) = self.recent_rows.get(number_of(&table), key) {
            return work(Some(&row));
        }
        self.read_published(table, |table| {
            let row = table.get(key)?;
            work(row.as_ref().map(redb::AccessGuard::value))
        })
    }

    /// Reads the row with the least key. If there is a published row, that is the one.
    pub(super) fn read_first<T>(
        &self,
        table: KeyedTable,
        work: impl FnOnce(Option<(IdKey, &[u8])>) -> T,
    ) -> Result<T, ReadError> {
        // First, as in `read_row`.
        let recent = self.recent_rows.first(number_of(&table));
        self.read_published(table, |table| {
            Ok(match table.first()? {
                Some((key, row)) => work(Some((key.value(), row.value()))),
                None => work(recent.as_ref().map(|(key, row)| (*key, &**row))),
            })
        })
    }

    fn read_published<T>(
        &self,
        table: KeyedTable,
        work: impl FnOnce(&ReadOnlyTable<IdKey, Row>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let published = read_lock(&self.published);
        work(published.iter().find(|open| open.name() == table.name()).ok_or_else(closed)?)
    }

    /// Reads from a snapshot, as of the last publication. A read takes a few pages of a mapped or
    /// cached file, so it runs on the caller's thread; only long listings belong on a thread of
    /// their own.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        match &*read_lock(&self.handle) {
            Handle::Reading(database) | Handle::Writing(database) => work(&database.begin_read()?),
            Handle::Closed => Err(closed()),
        }
    }

    /// A snapshot that outlives this call. Its holder releases it if the store begins to refuse:
    /// while it lives, the file cannot be opened again.
    pub(super) fn begin_read(&self) -> Result<ReadTransaction, ReadError> {
        match &*read_lock(&self.handle) {
            Handle::Writing(database) => Ok(database.begin_read()?),
            Handle::Reading(_) | Handle::Closed => Err(closed()),
        }
    }

    /// Returns true if the journal is at its path, or if the data file is not at its own either:
    /// then both are kept up to date where they are.
    fn is_in_place(&self, journal: &Journal) -> bool {
        (self.opener.journal_id)() == journal.id()
            || self.data_file().is_some_and(|file| file.look().is_some())
    }

    /// Runs a batch in one write transaction, which is durable once it is in the journal. Then
    /// `written` holds the result of the work, and the batch is accepted even if a later step
    /// fails. Only the writer's thread calls it.
    pub(super) fn write_batch<T>(
        &self,
        written: &mut Written<T>,
        work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
    ) -> Result<(), ReadError> {
        let handle = read_lock(&self.handle);
        let Handle::Writing(database) = &*handle else { return Err(closed()) };
        if !locked(&self.journal).as_ref().is_some_and(|journal| self.is_in_place(journal)) {
            let gone =
                io::Error::new(io::ErrorKind::NotFound, "the journal was deleted or replaced");
            return Err(JournalError::from(gone).into());
        }
        let unpublished = locked(&self.unpublished).take();
        let is_unpublished = unpublished.is_some();
        let (transaction, earlier) = match unpublished {
            Some(Unpublished { transaction, later }) => (transaction, later),
            None => (database.begin_write()?, LaterChanges::default()),
        };
        let changes = Changes::after(earlier);
        let done = work(Tables::new(&transaction, &changes))?;
        let (changes, later) = changes.into_parts();
        if changes.is_empty() {
            *written = Written::Durably(done);
            if is_unpublished {
                *locked(&self.unpublished) = Some(Unpublished { transaction, later });
            } else {
                transaction.abort()?;
            }
            return Ok(());
        }
        let mut guard = locked(&self.journal);
        let journal = guard.as_mut().ok_or_else(closed)?;
        journal.make_room(changes.len()).map_err(JournalError::from)?;
        *written = Written::Perhaps;
        journal.append(&changes).map_err(JournalError::from)?;
        *written = Written::Durably(done);
        self.note_bytes(journal);
        drop(guard);
        let are_readable = self.recent_rows.add(&changes);
        *locked(&self.unpublished) = Some(Unpublished { transaction, later });
        if are_readable { Ok(()) } else { self.publish_in(database) }
    }

    /// Shows all batches to snapshots from now on. Only the writer's thread calls it.
    pub(super) fn publish(&self) -> Result<(), ReadError> {
        match &*read_lock(&self.handle) {
            Handle::Writing(database) => self.publish_in(database),
            // The transaction with the unpublished batches was lost with the file.
            Handle::Reading(_) | Handle::Closed => Ok(()),
        }
    }

    fn publish_in(&self, database: &Database) -> Result<(), ReadError> {
        let Some(mut transaction) = self.take_unpublished()? else { return Ok(()) };
        transaction.set_durability(Durability::None).expect("no persistent savepoint is used");
        self.commit(database, transaction)
    }

    /// Commits, and shows the commit to all later readers.
    fn commit(&self, database: &Database, transaction: WriteTransaction) -> Result<(), ReadError> {
        transaction.commit()?;
        let published = published_tables(database)?;
        *write_lock(&self.published) = published;
        self.recent_rows.clear();
        Ok(())
    }

    /// Returns true if there are batches that snapshots do not show yet.
    pub(super) fn is_unpublished(&self) -> bool {
        self.recent_rows.is_unpublished()
    }

    /// Returns true if snapshots lack a change of a message before this one.
    pub(super) fn is_any_unpublished_before(&self, id: MessageId) -> bool {
        self.recent_rows.any_before(number_of(&MESSAGES), id.as_bytes())
    }

    /// Runs work while nobody reads or writes.
    #[cfg(test)]
    pub(super) fn between_writes(&self, work: impl FnOnce()) {
        let _nobody = write_lock(&self.handle);
        work();
    }

    pub(super) fn journal_bytes(&self) -> u64 {
        self.journal_bytes.load(Ordering::Relaxed)
    }

    fn note_bytes(&self, journal: &Journal) {
        self.journal_bytes.store(journal.used_bytes(), Ordering::Relaxed);
    }

    /// Makes redb's file durable, and lets the journal begin again.
    pub(super) fn checkpoint(&self) -> Result<(), ReadError> {
        let handle = read_lock(&self.handle);
        let Handle::Writing(database) = &*handle else { return Err(closed()) };
        let transaction = self.last_write(database)?;
        let checkpoint = self.mark_checkpoint()?;
        keep_checkpoint(&transaction, checkpoint)?;
        self.commit(database, transaction)?;
        if let Some(journal) = &mut *locked(&self.journal) {
            journal.restart(checkpoint);
            self.note_bytes(journal);
        }
        Ok(())
    }

    fn mark_checkpoint(&self) -> Result<Checkpoint, ReadError> {
        let mut guard = locked(&self.journal);
        let journal = guard.as_mut().ok_or_else(closed)?;
        let checkpoint = journal.checkpoint();
        journal.mark(checkpoint).map_err(JournalError::from)?;
        Ok(checkpoint)
    }

    /// The transaction with the unpublished changes, which is durable once it is committed.
    fn last_write(&self, database: &Database) -> Result<WriteTransaction, ReadError> {
        let Some(mut transaction) = self.take_unpublished()? else {
            return Ok(begin_write(database)?);
        };
        set_durable(&mut transaction);
        Ok(transaction)
    }

    /// Opens the file again, replays the journal and proves that both take writes, because after an
    /// I/O error redb's handle refuses all further work. A record in doubt is void afterwards. If
    /// the file cannot be opened or written, it is open for reading afterwards, with everything
    /// that is in the journal. Readers wait meanwhile, so none meets a handle whose write failed.
    pub(super) fn reopen(&self) -> Result<(), ReadError> {
        let mut guard = write_lock(&self.handle);
        let mut published = write_lock(&self.published);
        drop(locked(&self.unpublished).take());
        // The old handle and its tables hold the file's lock, so they are dropped first.
        (*published, *guard) = (Vec::new(), Handle::Closed);
        let mut journal_guard = locked(&self.journal);
        let journal = journal_guard.as_mut().ok_or_else(closed)?;
        let opened = (self.opener.open)().map_err(|error| ReadError::File(error.into()));
        let written = opened.and_then(|database| {
            let (checkpoint, is_in_place) = (journal.checkpoint(), self.is_in_place(journal));
            if is_in_place {
                journal.mark(checkpoint).map_err(JournalError::from)?;
            }
            write(&database, |transaction| {
                replay_kept(journal, transaction)?;
                if is_in_place {
                    keep_checkpoint(transaction, checkpoint)?;
                } else {
                    // The file has everything, and needs no journal until there is one.
                    forget_journal(transaction)?;
                }
                transaction.open_table(META)?.insert(PROBE, 0)?;
                Ok(())
            })?;
            journal.restart(checkpoint);
            if !is_in_place {
                let found = (self.opener.journal)().map_err(JournalError::from)?;
                journal::keep_of_another(found, &self.opener.set_journal_aside)?;
                let file = (self.opener.create_journal)().map_err(JournalError::from)?;
                let checkpoint = journal.move_to(file).map_err(JournalError::from)?;
                write(&database, |transaction| keep_checkpoint(transaction, checkpoint))?;
            }
            // An empty record, which changes no replay.
            journal.append(&[]).map_err(JournalError::from)?;
            Ok((published_tables(&database)?, Handle::Writing(database)))
        });
        self.note_bytes(journal);
        let (opened, failed) = match written {
            Ok(open) => (Ok(open), Ok(())),
            Err(error) => (self.open_for_reading(journal), Err(error)),
        };
        if let Ok(open) = opened {
            (*published, *guard) = open;
            self.recent_rows.clear();
        }
        failed
    }

    /// Opens the file as it is, with the content of the journal laid over it in memory.
    fn open_for_reading(&self, journal: &Journal) -> Result<(Published, Handle), ReadError> {
        let opened = (self.opener.open_for_reading)();
        let database = opened.map_err(|error| ReadError::File(error.into()))?;
        write(&database, |transaction| replay_kept(journal, transaction))?;
        Ok((published_tables(&database)?, Handle::Reading(database)))
    }

    /// Returns true if a start may read the record in doubt, if there is one.
    pub(super) fn is_doubt_on_disk(&self) -> bool {
        locked(&self.journal).as_ref().is_some_and(Journal::is_doubt_on_disk)
    }

    pub(super) fn is_readable(&self) -> bool {
        !matches!(&*read_lock(&self.handle), Handle::Closed)
    }

    /// Closes the file. If it takes a last write, it needs no journal from then on.
    pub(super) fn close(&self) {
        let mut guard = write_lock(&self.handle);
        if let Handle::Writing(database) = &*guard {
            let forgotten = self.last_write(database).and_then(|transaction| {
                forget_journal(&transaction)?;
                Ok(transaction.commit()?)
            });
            // Not before the data file has everything in it.
            let closed = forgotten.and_then(|()| {
                let disowned = locked(&self.journal).as_mut().map(Journal::disown).transpose();
                disowned.map(drop).map_err(|error| JournalError::from(error).into())
            });
            if let Err(error) = closed {
                tracing::warn!(%error, "the data file could not be closed; its journal is replayed at the next start");
            }
        }
        (*write_lock(&self.published), *guard) = (Vec::new(), Handle::Closed);
    }
}

/// Definition of a table whose rows are read by a message's id.
pub(super) type KeyedTable = TableDefinition<'static, IdKey, Row>;

const KEYED: [KeyedTable; 2] = [MESSAGES, IDEMPOTENCY];

/// Opens the tables as the last commit left them.
fn published_tables(database: &Database) -> Result<Published, ReadError> {
    let transaction = database.begin_read()?;
    KEYED.iter().map(|table| Ok(transaction.open_table(*table)?)).collect()
}

/// Replays the records that the file does not have yet.
fn replay_kept(journal: &Journal, transaction: &WriteTransaction) -> Result<(), ReadError> {
    let Some(kept) = checkpoint_in(&transaction.open_table(META)?)? else { return Ok(()) };
    journal.replay(kept, |record| Ok(tables::replay(transaction, record)?))
}

/// Result of writing a batch.
#[derive(Debug)]
pub(super) enum Written<T> {
    /// The batch is not on disk.
    Not,
    /// The batch may be on disk.
    Perhaps,
    /// The batch is on disk.
    Durably(T),
}

fn closed() -> ReadError {
    redb::StorageError::DatabaseClosed.into()
}
