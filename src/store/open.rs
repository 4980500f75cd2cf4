//! Opening the file: the first time, again after a failure, and its creation and version.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redb::{
    Database, DatabaseError, Durability, ReadTransaction, ReadableDatabase, ReadableTable,
    WriteTransaction,
};

use crate::domain::id::MessageId;
use crate::store::changes::Changes;
use crate::store::damage::Damage;
use crate::store::data_file::{DataFile, FileId};
use crate::store::error::{InRow, OpenError, ReadError};
use crate::store::journal::{
    self, Checkpoint, DirectFile, Epoch, JOURNAL_NAME, Journal, JournalError, JournalFile,
};
use crate::store::overlay::Overlay;
use crate::store::record::decode_message;
use crate::store::tables::{
    self, FORMAT_KEY, FORMAT_VERSION, IdKey, JOURNAL_EPOCH, JOURNAL_RECORD, MESSAGES, META, PROBE,
    Tables, begin_write,
};
use crate::store::{read_lock, temp_files, write_lock};

/// How many messages one transaction of a migration takes over.
const MIGRATION_STEP: usize = 50_000;
/// After how many batches, how many bytes of them and how long redb's file is made durable. What
/// was written since then is replayed at a start after a crash.
const CHECKPOINT_BYTES: u64 = 8 << 20;
pub(super) const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(250);

/// Database handle that readers and the writer share, and that is opened again after a failure.
pub(super) struct SharedDatabase {
    opener: Opener,
    handle: RwLock<Handle>,
    journal: Mutex<Journal>,
    /// Bytes in the journal since the last checkpoint; readers must not wait for its writes.
    journal_bytes: AtomicU64,
}

/// The file as it is open now.
enum Handle {
    /// Not at all: after the store is closed, and where the file cannot be opened.
    Closed,
    /// To be read: the disk takes no writes, and what would be written is lost.
    Reading(Database),
    /// To be read and written.
    Writing(Database),
}

impl SharedDatabase {
    /// Opens the file for the first time in this process, after a look at whether it is ours: a
    /// file that is not stays as it is to the last byte.
    pub(super) fn open(opener: Opener, damage: &Damage) -> Result<Self, OpenError> {
        let looked_at = (opener.open_for_reading)()?;
        let version = require_format(&looked_at)?;
        drop(looked_at);
        let database = (opener.open)()?;
        // A compaction or restoration held the lock until it had put another file in this place.
        if opener.data_file.as_ref().is_some_and(|file| file.look().is_some()) {
            return Err(OpenError::Replaced);
        }
        if version == 1 {
            migrate_from_1(&database, damage)?;
        }
        let journal = start_journal(&opener, &database)?;
        let handle = RwLock::new(Handle::Writing(database));
        let (journal, journal_bytes) = (Mutex::new(journal), AtomicU64::new(0));
        Ok(Self { opener, handle, journal, journal_bytes })
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        lock(&self.journal)
    }

    /// The file, if the storage is one.
    pub(super) fn data_file(&self) -> Option<&DataFile> {
        self.opener.data_file.as_deref()
    }

    /// Reads from a snapshot. A read is a few pages of a mapped or cached file, so it is done
    /// where the caller stands; only long listings belong on a thread of their own.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        match &*read_lock(&self.handle) {
            Handle::Reading(database) | Handle::Writing(database) => work(&database.begin_read()?),
            Handle::Closed => Err(closed()),
        }
    }

    /// A snapshot that lives on by itself. Whoever holds it lets go where the store begins to
    /// refuse: while it lives, the file cannot be opened again.
    pub(super) fn begin_read(&self) -> Result<ReadTransaction, ReadError> {
        match &*read_lock(&self.handle) {
            Handle::Writing(database) => Ok(database.begin_read()?),
            Handle::Reading(_) | Handle::Closed => Err(closed()),
        }
    }

    /// Runs one write transaction and makes redb's file durable with it. For what is done before
    /// the writer's thread starts.
    pub(super) fn write<T>(
        &self,
        work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        self.checkpoint_with(|transaction| work(Tables::open(transaction, &Changes::default())?))
    }

    /// Whether the journal is at its path, or the data file is not at its own either: then both are
    /// kept up to date where they are.
    fn is_in_place(&self, journal: &Journal) -> bool {
        (self.opener.journal_id)() == journal.id()
            || self.data_file().is_some_and(|file| file.look().is_some())
    }

    /// Runs a batch in one write transaction, which is durable once it is in the journal: then
    /// `written` holds what the work gave, and the batch is accepted whatever fails after that. The
    /// writer's thread alone calls it.
    pub(super) fn write_batch<T>(
        &self,
        written: &mut Written<T>,
        work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
    ) -> Result<(), ReadError> {
        let handle = read_lock(&self.handle);
        let Handle::Writing(database) = &*handle else { return Err(closed()) };
        if !self.is_in_place(&self.journal()) {
            let gone = io::Error::new(io::ErrorKind::NotFound, "the journal is gone or another");
            return Err(JournalError::from(gone).into());
        }
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::None).expect("no persistent savepoint is used");
        let changes = Changes::default();
        let done = work(Tables::open(&transaction, &changes)?)?;
        let changes = changes.into_bytes();
        if changes.is_empty() {
            *written = Written::Durably(done);
            return Ok(transaction.abort()?);
        }
        let mut journal = self.journal();
        journal.make_room(changes.len()).map_err(JournalError::from)?;
        *written = Written::Perhaps;
        journal.append(&changes).map_err(JournalError::from)?;
        *written = Written::Durably(done);
        self.note_bytes(&journal);
        drop(journal);
        Ok(transaction.commit()?)
    }

    /// Does something while nobody reads or writes.
    #[cfg(test)]
    pub(super) fn between_writes(&self, work: impl FnOnce()) {
        let _nobody = write_lock(&self.handle);
        work();
    }

    /// Bytes in the journal since the last checkpoint.
    pub(super) fn journal_bytes(&self) -> u64 {
        self.journal_bytes.load(Ordering::Relaxed)
    }

    fn note_bytes(&self, journal: &Journal) {
        self.journal_bytes.store(journal.used_bytes(), Ordering::Relaxed);
    }

    /// Whether the journal has so much that a checkpoint is due before its time.
    pub(super) fn is_journal_full(&self) -> bool {
        self.journal_bytes() >= CHECKPOINT_BYTES
    }

    /// Makes redb's file durable, and lets the journal begin again.
    pub(super) fn checkpoint(&self) -> Result<(), ReadError> {
        self.checkpoint_with(|_| Ok(()))
    }

    fn checkpoint_with<T>(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        match &*read_lock(&self.handle) {
            Handle::Writing(database) => {
                let (done, checkpoint) = write(database, |transaction| {
                    let done = work(transaction)?;
                    let checkpoint = self.journal().checkpoint();
                    keep_checkpoint(transaction, checkpoint)?;
                    Ok((done, checkpoint))
                })?;
                let mut journal = self.journal();
                journal.restart(checkpoint);
                self.note_bytes(&journal);
                Ok(done)
            }
            Handle::Reading(_) | Handle::Closed => Err(closed()),
        }
    }

    /// Opens the file again, replays the journal and proves that both take writes, because after an
    /// I/O error redb's handle refuses all that follows. A record in doubt is void afterwards. If
    /// the file cannot be opened or written, it is open for reading afterwards, with all that is in
    /// the journal. Readers wait meanwhile: none meets a handle whose write failed.
    pub(super) fn reopen(&self) -> Result<(), ReadError> {
        let mut guard = write_lock(&self.handle);
        // The old handle holds the file's lock, so it goes first.
        *guard = Handle::Closed;
        let mut journal = self.journal();
        let opened = (self.opener.open)().map_err(|error| ReadError::File(error.into()));
        let written = opened.and_then(|database| {
            let (checkpoint, is_in_place) = (journal.checkpoint(), self.is_in_place(&journal));
            write(&database, |transaction| {
                replay_kept(&journal, transaction)?;
                if is_in_place {
                    keep_checkpoint(transaction, checkpoint)?;
                } else {
                    // The file has everything, and needs no journal until there is one.
                    transaction.open_table(META)?.remove(JOURNAL_EPOCH)?;
                }
                transaction.open_table(META)?.insert(PROBE, 0)?;
                Ok(())
            })?;
            journal.restart(checkpoint);
            if !is_in_place {
                let found = (self.opener.journal)().map_err(JournalError::from)?;
                self.opener.keep_journal_of_another(found)?;
                let file = (self.opener.create_journal)().map_err(JournalError::from)?;
                journal.move_to(file).map_err(JournalError::from)?;
                write(&database, |transaction| keep_checkpoint(transaction, checkpoint))?;
            }
            // An empty record, which no replay minds.
            journal.append(&[]).map_err(JournalError::from)?;
            Ok(database)
        });
        self.note_bytes(&journal);
        match written {
            Ok(database) => {
                *guard = Handle::Writing(database);
                Ok(())
            }
            Err(error) => {
                *guard = self.open_for_reading(&journal).map_or(Handle::Closed, Handle::Reading);
                Err(error)
            }
        }
    }

    /// Opens the file as it is, with what is in the journal laid over it in memory.
    fn open_for_reading(&self, journal: &Journal) -> Result<Database, ReadError> {
        let opened = (self.opener.open_for_reading)();
        let database = opened.map_err(|error| ReadError::File(error.into()))?;
        write(&database, |transaction| replay_kept(journal, transaction))?;
        Ok(database)
    }

    /// Whether the record in doubt, if there is one, may be read at a start.
    pub(super) fn is_doubt_on_disk(&self) -> bool {
        self.journal().is_doubt_on_disk()
    }

    /// Whether the file can be read now.
    pub(super) fn is_readable(&self) -> bool {
        !matches!(&*read_lock(&self.handle), Handle::Closed)
    }

    /// Closes the file. If it takes a last write, it needs no journal from then on.
    pub(super) fn close(&self) {
        let mut guard = write_lock(&self.handle);
        if let Handle::Writing(database) = &*guard {
            let forgotten = forget_journal(database);
            // Not before the data file needs it no more.
            let closed = forgotten.and_then(|()| {
                self.journal().disown().map_err(|error| JournalError::from(error).into())
            });
            if let Err(error) = closed {
                tracing::warn!(%error, "the data file could not be closed; its journal is replayed at the next start");
            }
        }
        *guard = Handle::Closed;
    }
}

/// What became of a batch that was to be written.
#[derive(Debug)]
pub(super) enum Written<T> {
    /// It is not on disk.
    Not,
    /// It may be on disk.
    Perhaps,
    /// It is on disk.
    Durably(T),
}

/// Takes over the journal for this start: replays what the last process left in it.
fn start_journal(opener: &Opener, database: &Database) -> Result<Journal, OpenError> {
    let kept = kept_checkpoint(&database.begin_read().map_err(ReadError::from)?)?;
    let found = (opener.journal)().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse,
        _ => JournalError::from(error).into(),
    })?;
    let found = match kept {
        Some(_) => found,
        None => opener.keep_journal_of_another(found)?,
    };
    let file = match found {
        Some(file) => file,
        None if kept.is_none() => (opener.create_journal)()
            .map_err(|source| OpenError::Create { path: JOURNAL_NAME.into(), source })?,
        None => return Err(OpenError::Journal("it is missing".to_owned())),
    };
    let epoch = Epoch(
        getrandom::u64()
            .map_err(|error| JournalError::from(std::io::Error::other(error.to_string())))?,
    );
    let transaction = begin_write(database).map_err(ReadError::from)?;
    let mut journal = Journal::open(file, kept, epoch, |record| {
        tables::replay(&transaction, record).map_err(OpenError::from)
    })?;
    keep_checkpoint(&transaction, journal.checkpoint())?;
    transaction
        .open_table(META)
        .map_err(ReadError::from)?
        .insert(FORMAT_KEY, FORMAT_VERSION)
        .map_err(ReadError::from)?;
    transaction.commit().map_err(ReadError::from)?;
    journal.own().map_err(JournalError::from)?;
    Ok(journal)
}

/// Replays what the file does not have yet.
fn replay_kept(journal: &Journal, transaction: &WriteTransaction) -> Result<(), ReadError> {
    let meta = transaction.open_table(META)?;
    let kept = checkpoint_in(&meta)?;
    drop(meta);
    let Some(kept) = kept else { return Ok(()) };
    journal.replay(kept, |record| Ok(tables::replay(transaction, record)?))
}

/// Writes durably that the file has everything, and needs no journal.
pub(super) fn forget_journal(database: &Database) -> Result<(), ReadError> {
    write(database, |transaction| {
        transaction.open_table(META)?.remove(JOURNAL_EPOCH)?;
        Ok(())
    })
}

/// Returns what the file has of its journal; `None` if it needs none.
pub(super) fn kept_checkpoint(
    transaction: &ReadTransaction,
) -> Result<Option<Checkpoint>, ReadError> {
    checkpoint_in(&transaction.open_table(META)?)
}

fn checkpoint_in(
    meta: &impl ReadableTable<&'static str, u64>,
) -> Result<Option<Checkpoint>, ReadError> {
    let Some(epoch) = meta.get(JOURNAL_EPOCH)? else { return Ok(None) };
    let record = meta.get(JOURNAL_RECORD)?.map_or(0, |row| row.value());
    Ok(Some(Checkpoint { epoch: Epoch(epoch.value()), record }))
}

fn keep_checkpoint(
    transaction: &WriteTransaction,
    checkpoint: Checkpoint,
) -> Result<(), ReadError> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(JOURNAL_EPOCH, checkpoint.epoch.0)?;
    meta.insert(JOURNAL_RECORD, checkpoint.record)?;
    Ok(())
}

/// Runs one write transaction and commits it durably.
fn write<T>(
    database: &Database,
    work: impl FnOnce(&WriteTransaction) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let transaction = begin_write(database)?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

/// Runs one write transaction over all tables, outside of the journal.
fn write_tables<T>(
    database: &Database,
    work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    write(database, |transaction| work(Tables::open(transaction, &Changes::default())?))
}

fn closed() -> ReadError {
    redb::StorageError::DatabaseClosed.into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the storage: a file, or what a test gives.
pub(super) struct Opener {
    open: Box<Open>,
    /// Opens it without changing it: what redb writes while it does so stays in memory.
    open_for_reading: Box<Open>,
    /// `None` if the storage is no file.
    data_file: Option<Arc<DataFile>>,
    /// Opens the journal, if there is one.
    journal: Box<dyn Fn() -> io::Result<Option<JournalFile>> + Send + Sync>,
    create_journal: Box<dyn Fn() -> io::Result<JournalFile> + Send + Sync>,
    /// Identifies the file at the journal's path; `None` if there is none.
    journal_id: Box<dyn Fn() -> Option<FileId> + Send + Sync>,
    /// Gives another data file's journal another name.
    set_journal_aside: Box<dyn Fn(Epoch) -> io::Result<()> + Send + Sync>,
}

type Open = dyn Fn() -> Result<Database, DatabaseError> + Send + Sync;

fn open_with(
    cache_bytes: usize,
    backend: impl redb::StorageBackend,
) -> Result<Database, DatabaseError> {
    Database::builder().set_cache_size(cache_bytes).create_with_backend(backend)
}

impl Opener {
    /// Opens a file, caching up to `cache_bytes` of it. Its descriptor is kept: another file that
    /// lies at the path later is never opened.
    pub(super) fn file(path: &Path, cache_bytes: usize) -> Result<Self, OpenError> {
        let file = DataFile::open(path).map_err(|error| OpenError::Io(error.into()))?;
        let (to_write, to_read) = (Arc::clone(&file), Arc::clone(&file));
        let journal = path.with_file_name(JOURNAL_NAME);
        let (new_journal, other_journal, own_journal) =
            (journal.clone(), journal.clone(), journal.clone());
        Ok(Self {
            open: Box::new(move || open_with(cache_bytes, to_write.backend()?)),
            open_for_reading: Box::new(move || {
                open_with(cache_bytes, Overlay::new(to_read.below()?))
            }),
            data_file: Some(file),
            journal: Box::new(move || {
                DirectFile::open(&journal)?.map(DirectFile::into_journal_file).transpose()
            }),
            create_journal: Box::new(move || DirectFile::create(&new_journal)?.into_journal_file()),
            journal_id: Box::new(move || FileId::of(&own_journal).ok()),
            set_journal_aside: Box::new(move |epoch| {
                let kept =
                    other_journal.with_file_name(format!("{JOURNAL_NAME}.kept-{:016x}", epoch.0));
                std::fs::rename(&other_journal, &kept)?;
                tracing::warn!(
                    journal = %kept.display(),
                    "a journal that the data file does not need was kept; if another data file is \
                     put back, stop the service and rename its journal to {JOURNAL_NAME}"
                );
                Ok(())
            }),
        })
    }

    /// Keeps a journal that was found under another name, if a data file may still need it: that
    /// file is not here. Gives it back otherwise.
    fn keep_journal_of_another(
        &self,
        found: Option<JournalFile>,
    ) -> Result<Option<JournalFile>, JournalError> {
        let Some(file) = found else { return Ok(None) };
        let Some([epoch, _]) = journal::owners(&*file.storage)? else { return Ok(Some(file)) };
        (self.set_journal_aside)(epoch)?;
        Ok(None)
    }

    /// Opens whatever storage `backend` gives, which fails as a test wants it to.
    #[cfg(test)]
    pub(super) fn backend<B: redb::StorageBackend>(
        cache_bytes: usize,
        backend: impl Fn() -> B + Clone + Send + Sync + 'static,
        journal: impl Fn() -> B + Clone + Send + Sync + 'static,
    ) -> Self {
        let same = backend.clone();
        let new_journal = journal.clone();
        Self {
            open: Box::new(move || open_with(cache_bytes, backend())),
            open_for_reading: Box::new(move || open_with(cache_bytes, Overlay::new(same()))),
            data_file: None,
            journal: Box::new(move || {
                let journal = journal();
                let is_there = journal.len()? > 0;
                Ok(is_there.then(|| JournalFile { storage: Box::new(journal), id: None }))
            }),
            create_journal: Box::new(move || {
                Ok(JournalFile { storage: Box::new(new_journal()), id: None })
            }),
            journal_id: Box::new(|| None),
            set_journal_aside: Box::new(|_| Ok(())),
        }
    }
}

/// Checks that a file is ours and of a version that is known, be it an earlier one; gives that.
pub(super) fn require_format(database: &Database) -> Result<u64, OpenError> {
    match format(database)? {
        Some(version @ 1..=FORMAT_VERSION) => Ok(version),
        Some(version) if version > FORMAT_VERSION => Err(OpenError::Newer { version }),
        Some(_) | None => Err(OpenError::Foreign),
    }
}

fn format(database: &Database) -> Result<Option<u64>, ReadError> {
    match database.begin_read()?.open_table(META) {
        Ok(meta) => Ok(meta.get(FORMAT_KEY)?.map(|row| row.value())),
        Err(
            redb::TableError::TableDoesNotExist(_) | redb::TableError::TableTypeMismatch { .. },
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes the file where there is none, whole or not at all: it is made under another name in the
/// same directory, made durable, and only then renamed. A crash at any moment leaves either no
/// file or a good one.
pub(super) fn create_if_missing(path: &Path) -> Result<FileOrigin, OpenError> {
    if path.exists() {
        return Ok(FileOrigin::Existing);
    }
    match create(path) {
        // Another process was first, and took what is made here for a stray; its file is as good.
        Err(_) if path.exists() => Ok(FileOrigin::Existing),
        made => made.map(|()| FileOrigin::Created),
    }
}

fn create(path: &Path) -> Result<(), OpenError> {
    let directory = path.parent().expect("the file's path has a directory");
    let made = (|| {
        std::fs::create_dir_all(directory)?;
        temp_files::make_data_file(directory)
    })();
    let new = made.map_err(|source| OpenError::Create { path: path.to_owned(), source })?;
    let database =
        Database::builder().create_file(new.reopen().map_err(|e| OpenError::Io(e.into()))?)?;
    initialize(&database)?;
    drop(database);
    let renamed = (|| {
        new.as_file().sync_all()?;
        new.persist_noclobber(path).map_err(|error| error.error)?;
        File::open(directory)?.sync_all()
    })();
    renamed.map_err(|source| OpenError::Create { path: path.to_owned(), source })
}

/// Writes the tables and the version into an empty file.
pub(super) fn initialize(database: &Database) -> Result<(), OpenError> {
    Ok(write_tables(database, |mut tables| {
        tables.create()?;
        tables.meta.open()?.insert(FORMAT_KEY, FORMAT_VERSION)?;
        Ok(())
    })?)
}

/// Origin of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOrigin {
    /// It was there.
    Existing,
    /// There was none, so it was created, empty.
    Created,
}

/// Brings a file of version 1, which had no list of each organisation's messages, to this layout.
/// Each step can be repeated: the version is written last, so a process that ends in between
/// begins again.
fn migrate_from_1(database: &Database, damage: &Damage) -> Result<(), ReadError> {
    let mut after = Bound::Unbounded;
    loop {
        let last = write_tables(database, |mut tables| {
            list_organisations_messages(&mut tables, after, damage)
        })?;
        match last {
            Some(last) => after = Bound::Excluded(last),
            None => return Ok(()),
        }
    }
}

/// Takes over some messages after `after`; the last of them, or nothing once all are.
fn list_organisations_messages(
    tables: &mut Tables<'_>,
    after: Bound<IdKey>,
    damage: &Damage,
) -> Result<Option<IdKey>, ReadError> {
    let (mut found, mut last) = (Vec::new(), None);
    for row in tables.messages.range((after, Bound::Unbounded))?.take(MIGRATION_STEP) {
        let (id, row) = row?;
        last = Some(id.value());
        let id = MessageId::from_bytes(id.value());
        found.extend(damage.left_out(decode_message(id, row.value()).in_row(MESSAGES, id)));
    }
    for message in &found {
        let id = message.id;
        tables.by_organisation.insert((message.organisation.0, *id.as_bytes()), ())?;
        tables.note_lead(id, message.created_at)?;
    }
    if last.is_none() {
        tables.meta.open()?.insert(FORMAT_KEY, 2)?;
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use redb::TableDefinition;

    use super::*;

    #[test]
    fn what_is_opened_again_is_the_same_file_whatever_lies_at_its_path() {
        const TABLE: TableDefinition<u64, &str> = TableDefinition::new("table");
        let directory = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| directory.path().join(name));
        for (path, text) in [(&path, "ours"), (&other, "another's")] {
            let database = Database::create(path).unwrap();
            let transaction = database.begin_write().unwrap();
            transaction.open_table(TABLE).unwrap().insert(0, text).unwrap();
            transaction.commit().unwrap();
        }
        let opener = Opener::file(&path, 1 << 20).unwrap();
        drop((opener.open)().unwrap());
        std::fs::rename(&other, &path).unwrap();
        for database in [(opener.open)(), (opener.open_for_reading)()] {
            let table = database.unwrap().begin_read().unwrap().open_table(TABLE).unwrap();
            assert_eq!(table.get(0).unwrap().unwrap().value(), "ours");
        }
    }
}
