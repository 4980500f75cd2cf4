//! Opening the file: the first time, again after a failure, and its creation and version.

use std::fs::File;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, RwLock};

use redb::{Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable};

use crate::domain::id::MessageId;
use crate::store::damage::Damage;
use crate::store::data_file::DataFile;
use crate::store::error::{InRow, OpenError, ReadError};
use crate::store::overlay::Overlay;
use crate::store::record::decode_message;
use crate::store::tables::{
    FORMAT_KEY, FORMAT_VERSION, IdKey, MESSAGES, META, Tables, begin_write,
};
use crate::store::{read_lock, temp_files, write_lock};

/// How many messages one transaction of a migration takes over.
const MIGRATION_STEP: usize = 50_000;

/// Database handle that readers and the writer share, and that is opened again after a failure.
pub(super) struct SharedDatabase {
    opener: Opener,
    handle: RwLock<Handle>,
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
        Ok(Self { opener, handle: RwLock::new(Handle::Writing(database)) })
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

    /// Runs one write transaction and commits it durably. The writer's thread alone calls it,
    /// and whoever opens the store before that thread starts.
    pub(super) fn write<T>(
        &self,
        work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        match &*read_lock(&self.handle) {
            Handle::Writing(database) => write(database, work),
            Handle::Reading(_) | Handle::Closed => Err(closed()),
        }
    }

    /// Opens the file again and runs one write transaction, because after an I/O error redb's
    /// handle refuses all that follows. If the file cannot be opened or written, it is open for
    /// reading afterwards. Readers wait meanwhile: none meets a handle whose write failed.
    pub(super) fn reopen(
        &self,
        work: impl FnOnce(Tables<'_>) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut guard = write_lock(&self.handle);
        // The old handle holds the file's lock, so it goes first.
        *guard = Handle::Closed;
        let opened = (self.opener.open)().map_err(|error| ReadError::File(error.into()));
        let written = opened.and_then(|database| {
            write(&database, work)?;
            Ok(database)
        });
        match written {
            Ok(database) => {
                *guard = Handle::Writing(database);
                Ok(())
            }
            Err(error) => {
                *guard = (self.opener.open_for_reading)().map_or(Handle::Closed, Handle::Reading);
                Err(error)
            }
        }
    }

    /// Closes the file.
    pub(super) fn close(&self) {
        *write_lock(&self.handle) = Handle::Closed;
    }
}

fn write<T>(
    database: &Database,
    work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let transaction = begin_write(database)?;
    let done = work(Tables::open(&transaction)?)?;
    transaction.commit()?;
    Ok(done)
}

fn closed() -> ReadError {
    redb::StorageError::DatabaseClosed.into()
}

/// Opens the storage: a file, or what a test gives.
pub(super) struct Opener {
    open: Box<Open>,
    /// Opens it without changing it: what redb writes while it does so stays in memory.
    open_for_reading: Box<Open>,
    /// `None` if the storage is no file.
    data_file: Option<Arc<DataFile>>,
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
        Ok(Self {
            open: Box::new(move || open_with(cache_bytes, to_write.backend()?)),
            open_for_reading: Box::new(move || {
                open_with(cache_bytes, Overlay::new(to_read.below()?))
            }),
            data_file: Some(file),
        })
    }

    /// Opens whatever storage `backend` gives, which fails as a test wants it to.
    #[cfg(test)]
    pub(super) fn backend<B: redb::StorageBackend>(
        cache_bytes: usize,
        backend: impl Fn() -> B + Clone + Send + Sync + 'static,
    ) -> Self {
        let same = backend.clone();
        Self {
            open: Box::new(move || open_with(cache_bytes, backend())),
            open_for_reading: Box::new(move || open_with(cache_bytes, Overlay::new(same()))),
            data_file: None,
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
    Ok(write(database, |mut tables| {
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
        let last =
            write(database, |mut tables| list_organisations_messages(&mut tables, after, damage))?;
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
        tables.meta.open()?.insert(FORMAT_KEY, FORMAT_VERSION)?;
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
