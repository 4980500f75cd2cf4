//! Opening the files: the data file and its journal, their creation and version. A data file belongs
//! to the service or to `pillarbox dev`, whose files have a mark.

use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableError};

use crate::StoreOwner;
use crate::damage::Damage;
use crate::record::decode_message;
use crate::record::directory::decode_organisation;
use crate::redb::JOURNAL_NAME;
use crate::redb::data_directory::{create_directory, sync_above};
use crate::redb::data_file::{DataFile, FileId};
use crate::redb::error::{InRow, OpenError, ReadError};
use crate::redb::journal::{self, DirectFile, Epoch, Journal, JournalError, JournalFile};
use crate::redb::overlay::Overlay;
use crate::redb::tables::{
    self, FORMAT_KEY, MADE_BY_DEV, MESSAGES, META, ORGANISATIONS, begin_write, keep_checkpoint,
    kept_checkpoint, write, write_tables,
};
use crate::redb::temp_files::{self, Existing};
use crate::tables::DATA_FORMAT;
use pillarbox_domain::id::MessageId;

/// Number of messages that one transaction of a migration takes over.
const MIGRATION_STEP: usize = 50_000;

/// A new epoch, which only this process has.
pub(super) fn new_epoch() -> Result<Epoch, OpenError> {
    let number = getrandom::u64();
    let number = number.map_err(|error| JournalError::from(io::Error::other(error.to_string())))?;
    Ok(Epoch(number))
}

/// Opens both files for writing, in the layout of this version and with the records that the last
/// process left in the journal. An attempt that failed may be made again, with the same epoch.
pub(super) fn open_to_write(
    opener: &Opener,
    owner: Option<StoreOwner>,
    epoch: Epoch,
    damage: &Damage,
) -> Result<(Database, Journal), OpenError> {
    let database = (opener.open)()?;
    // A compaction or restoration held the lock until it had put another file in this place.
    if opener.data_file.as_ref().is_some_and(|file| file.look().is_some()) {
        return Err(OpenError::Replaced);
    }
    migrate(&database, damage)?;
    let journal = start_journal(opener, &database, epoch)?;
    require_owner(&database, owner)?;
    Ok((database, journal))
}

/// Opens both files as they are: all writes stay in memory, laid over them.
pub(super) fn open_to_read(
    opener: &Opener,
    owner: Option<StoreOwner>,
    damage: &Damage,
) -> Result<Database, OpenError> {
    let database = (opener.open_for_reading)()?;
    migrate(&database, damage)?;
    if let Some(kept) = kept_checkpoint(&database.begin_read()?)? {
        let file = found_journal((opener.journal_for_reading)())?.ok_or_else(missing_journal)?;
        write(&database, |transaction| {
            let replay = |record: &[u8]| Ok::<_, ReadError>(tables::replay(transaction, record)?);
            Journal::read_after(file, kept, replay)
        })?;
    }
    refuse_others(&database, owner)?;
    Ok(database)
}

fn found_journal(found: io::Result<Option<JournalFile>>) -> Result<Option<JournalFile>, OpenError> {
    found.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse,
        _ => JournalError::from(error).into(),
    })
}

fn missing_journal() -> OpenError {
    OpenError::Journal("it is missing".to_owned())
}

/// Takes over the journal for this start: replays the records that the last process left in it.
fn start_journal(opener: &Opener, database: &Database, epoch: Epoch) -> Result<Journal, OpenError> {
    let kept = kept_checkpoint(&database.begin_read()?)?;
    let found = found_journal((opener.journal)())?;
    let found = match kept {
        Some(_) => found,
        // A failed attempt may have made it this process's own.
        None if journal::belongs_to(epoch, found.as_ref())? => found,
        None => journal::keep_of_another(found, &opener.set_journal_aside)?,
    };
    let file = match found {
        Some(file) => file,
        None if kept.is_none() => (opener.create_journal)()
            .map_err(|source| OpenError::Create { path: JOURNAL_NAME.into(), source })?,
        None => return Err(missing_journal()),
    };
    let transaction = begin_write(database)?;
    let mut journal = Journal::open(file, kept, epoch, |record| {
        tables::replay(&transaction, record).map_err(OpenError::from)
    })?;
    keep_checkpoint(&transaction, journal.checkpoint())?;
    transaction.open_table(META)?.insert(FORMAT_KEY, DATA_FORMAT)?;
    transaction.commit()?;
    journal.own().map_err(JournalError::from)?;
    Ok(journal)
}

/// Opens the storage: a file, or the storage of a test.
pub(crate) struct Opener {
    pub(super) open: Box<Open>,
    /// Opens it without changing it: the writes of redb meanwhile stay in memory.
    pub(super) open_for_reading: Box<Open>,
    /// `None` if the storage is no file.
    pub(super) data_file: Option<Arc<DataFile>>,
    /// Opens the journal, if there is one.
    pub(super) journal: Box<dyn Fn() -> io::Result<Option<JournalFile>> + Send + Sync>,
    /// The same for reading; it writes nothing.
    pub(super) journal_for_reading: Box<dyn Fn() -> io::Result<Option<JournalFile>> + Send + Sync>,
    pub(super) create_journal: Box<dyn Fn() -> io::Result<JournalFile> + Send + Sync>,
    /// Returns the identity of the file at the journal's path; `None` if there is none.
    pub(super) journal_id: Box<dyn Fn() -> Option<FileId> + Send + Sync>,
    /// Renames the journal of another data file.
    pub(super) set_journal_aside: Box<dyn Fn(Epoch) -> io::Result<()> + Send + Sync>,
}

type Open = dyn Fn() -> Result<Database, DatabaseError> + Send + Sync;

pub(super) fn open_with(
    cache_bytes: usize,
    backend: impl redb::StorageBackend,
) -> Result<Database, DatabaseError> {
    Database::builder().set_cache_size(cache_bytes).create_with_backend(backend)
}

impl Opener {
    /// Opens a file, caching up to `cache_bytes` of it. Its descriptor is kept, so another file at
    /// the same path later is not opened.
    pub(super) fn file(path: &Path, cache_bytes: usize) -> Result<Self, OpenError> {
        let file = DataFile::open(path).map_err(|error| OpenError::Io(error.into()))?;
        let (to_write, to_read) = (Arc::clone(&file), Arc::clone(&file));
        let journal = path.with_file_name(JOURNAL_NAME);
        let (new_journal, other_journal, own_journal, read_journal) =
            (journal.clone(), journal.clone(), journal.clone(), journal.clone());
        Ok(Self {
            open: Box::new(move || open_with(cache_bytes, to_write.backend()?)),
            open_for_reading: Box::new(move || {
                open_with(cache_bytes, Overlay::new(to_read.below()?))
            }),
            data_file: Some(file),
            journal: Box::new(move || {
                DirectFile::open(&journal)?.map(DirectFile::into_journal_file).transpose()
            }),
            journal_for_reading: Box::new(move || DirectFile::open_for_reading(&read_journal)),
            create_journal: Box::new(move || DirectFile::create(&new_journal)?.into_journal_file()),
            journal_id: Box::new(move || FileId::of(&own_journal).ok()),
            set_journal_aside: Box::new(move |epoch| {
                let kept =
                    other_journal.with_file_name(format!("{JOURNAL_NAME}.kept-{:016x}", epoch.0));
                std::fs::rename(&other_journal, &kept)?;
                tracing::warn!(
                    journal = %kept.display(),
                    "a journal that this data file does not need was renamed. To use it again, \
                     stop the service, put back the data file that the journal belongs to, and \
                     rename the journal to {JOURNAL_NAME}"
                );
                Ok(())
            }),
        })
    }

    /// Checks that the file has a known format, and no other owner. Changes nothing.
    pub(super) fn check(&self, owner: Option<StoreOwner>) -> Result<(), OpenError> {
        let database = (self.open_for_reading)()?;
        require_format(&database)?;
        refuse_others(&database, owner)
    }
}

/// Checks that a file is ours and of a known version, which may be an earlier one; returns the
/// version.
pub(super) fn require_format(database: &Database) -> Result<u64, OpenError> {
    let format = match database.begin_read()?.open_table(META) {
        Err(TableError::TableDoesNotExist(_) | TableError::TableTypeMismatch { .. }) => None,
        meta => meta?.get(FORMAT_KEY)?.map(|row| row.value()),
    };
    match format {
        Some(version @ 1..=DATA_FORMAT) => Ok(version),
        Some(version) if version > DATA_FORMAT => Err(OpenError::Newer { version }),
        Some(_) | None => Err(OpenError::Foreign),
    }
}

/// Brings a file of version 1, which had no list of each organisation's messages, to this layout.
/// Each step can be repeated: the version is written last, so a process that ends in between
/// begins again.
fn migrate(database: &Database, damage: &Damage) -> Result<(), OpenError> {
    if require_format(database)? != 1 {
        return Ok(());
    }
    let mut after = Bound::Unbounded;
    loop {
        let last = write_tables(database, |mut tables| {
            let (mut found, mut last) = (Vec::new(), None);
            let rows = tables.messages.open()?.range((after, Bound::Unbounded))?;
            for row in rows.take(MIGRATION_STEP) {
                let (id, row) = row?;
                last = Some(id.value());
                let id = MessageId::from_bytes(id.value());
                found.extend(damage.left_out(decode_message(id, row.value()).in_row(MESSAGES, id)));
            }
            for message in &found {
                let id = message.id;
                let listed = (message.organisation.0, *id.as_bytes());
                tables.by_organisation.open()?.insert(listed, ())?;
                tables.note_lead(id, message.created_at)?;
            }
            if last.is_none() {
                tables.meta.open()?.insert(FORMAT_KEY, 2)?;
            }
            Ok(last)
        })?;
        let Some(last) = last else { return Ok(()) };
        after = Bound::Excluded(last);
    }
}

/// Refuses a file of another owner, if that can be seen without its journal. Changes nothing.
fn refuse_others(database: &Database, owner: Option<StoreOwner>) -> Result<(), OpenError> {
    match (owner, is_marked(database)?) {
        (Some(StoreOwner::Service), true) => Err(OpenError::MadeByDev),
        (Some(StoreOwner::Dev), false)
            if has(database, |name| name != StoreOwner::ORGANISATION_OF_DEV)? =>
        {
            Err(OpenError::NotMadeByDev)
        }
        _ => Ok(()),
    }
}

/// Refuses a file of another owner, once it has the content of its journal. Marks a file that `dev`
/// made before there were marks: it has only the organisation of `dev`.
fn require_owner(database: &Database, owner: Option<StoreOwner>) -> Result<(), OpenError> {
    refuse_others(database, owner)?;
    if owner != Some(StoreOwner::Dev) || is_marked(database)? {
        return Ok(());
    }
    if !has(database, |name| name == StoreOwner::ORGANISATION_OF_DEV)? {
        return Err(OpenError::NotMadeByDev);
    }
    Ok(mark(database)?)
}

/// Marks a file as one of `dev`.
fn mark(database: &Database) -> Result<(), ReadError> {
    write(database, |transaction| {
        transaction.open_table(META)?.insert(MADE_BY_DEV, 1)?;
        Ok(())
    })
}

fn is_marked(database: &Database) -> Result<bool, ReadError> {
    let meta = database.begin_read()?.open_table(META)?;
    Ok(meta.get(MADE_BY_DEV)?.is_some())
}

/// Returns true if there is such an organisation. One that cannot be read has no name.
fn has(database: &Database, is_wanted: impl Fn(&str) -> bool) -> Result<bool, ReadError> {
    let organisations = match database.begin_read()?.open_table(ORGANISATIONS) {
        // A file of an early version.
        Err(TableError::TableDoesNotExist(_)) => return Ok(false),
        opened => opened?,
    };
    for row in organisations.iter()? {
        let (id, row) = row?;
        let organisation = decode_organisation(id.value(), row.value());
        if is_wanted(organisation.as_ref().map_or("", |known| known.name.as_str())) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the file if there is none, whole or not at all: it is made under another name in the same
/// directory, made durable, and only then renamed. A crash at any moment leaves either no file or a
/// good one.
pub(super) fn create_if_missing(
    path: &Path,
    owner: Option<StoreOwner>,
) -> Result<FileOrigin, OpenError> {
    if path.exists() {
        return Ok(FileOrigin::Existing);
    }
    match create(path, owner) {
        // Another process was first, and took this file for an abandoned one; its own file is as
        // good.
        Err(_) if path.exists() => Ok(FileOrigin::Existing),
        made => made.map(|()| FileOrigin::Created),
    }
}

fn create(path: &Path, owner: Option<StoreOwner>) -> Result<(), OpenError> {
    let directory = path.parent().expect("the file's path has a directory");
    let made = (|| {
        create_directory(directory)?;
        temp_files::make_data_file(directory)
    })();
    let new = made.map_err(|source| OpenError::Create { path: path.to_owned(), source })?;
    let database =
        Database::builder().create_file(new.reopen().map_err(|e| OpenError::Io(e.into()))?)?;
    initialize(&database)?;
    if owner == Some(StoreOwner::Dev) {
        mark(&database)?;
    }
    drop(database);
    let placed = temp_files::place(new, path, Existing::Keep).and_then(|_| sync_above(directory));
    placed.map_err(|source| OpenError::Create { path: path.to_owned(), source })
}

/// Writes the tables and the version into an empty file.
pub(super) fn initialize(database: &Database) -> Result<(), OpenError> {
    Ok(write_tables(database, |mut tables| {
        tables.create()?;
        tables.meta.open()?.insert(FORMAT_KEY, DATA_FORMAT)?;
        Ok(())
    })?)
}

/// Origin of a data file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileOrigin {
    /// It existed before.
    #[default]
    Existing,
    /// It did not exist, so it was created, empty.
    Created,
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
