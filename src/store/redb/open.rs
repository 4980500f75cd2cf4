//! Opening the file: its first creation, its version, and what a restart has to set right.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::sync::Arc;

use overlay::Overlay;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable};
use tempfile::NamedTempFile;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Acceptance, Recorded, Transition};
use crate::domain::policy::IDEMPOTENCY_WINDOW;
use crate::domain::time::Timestamp;
use crate::store::OpenError;
use crate::store::redb::damage::{Damage, InRow};
use crate::store::redb::data_file::DataFile;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::message::{IdempotencyRow, decode_message, encode_message};
use crate::store::redb::tables::{FORMAT_KEY, FORMAT_VERSION, IDEMPOTENCY, MESSAGES, META, Tables};
use crate::store::redb::{
    Shared, key_use, lost, migrate, set_aside, suppress, temp_files, time_record, write_lock,
    writer,
};

mod overlay;

/// How many pending messages a restart settles in one transaction.
const RECOVERY_STEP: usize = 5_000;

/// Opens the file, the first time and again after a failure.
pub(in crate::store) struct Opener {
    open: Box<Open>,
    /// Opens it without changing it: what redb writes while it does so stays in memory.
    open_for_reading: Box<Open>,
    /// `None` if the storage is no file.
    data_file: Option<Arc<DataFile>>,
}

type Open = dyn Fn() -> Result<Database, DatabaseError> + Send + Sync;

impl Opener {
    /// Opens a file, caching up to `cache_bytes` of it. Its descriptor is kept: another file that
    /// lies at the path later is never opened.
    pub(in crate::store) fn file(path: &Path, cache_bytes: usize) -> Result<Self, OpenError> {
        let file = DataFile::open(path).map_err(|error| OpenError::Io(redb::Error::Io(error)))?;
        let (to_write, to_read) = (Arc::clone(&file), Arc::clone(&file));
        let builder = move || {
            let mut builder = Database::builder();
            builder.set_cache_size(cache_bytes);
            builder
        };
        let open = move || builder().create_with_backend(to_write.backend()?);
        let open_for_reading =
            move || builder().create_with_backend(Overlay::new(to_read.below()?));
        Ok(Self {
            open: Box::new(open),
            open_for_reading: Box::new(open_for_reading),
            data_file: Some(file),
        })
    }

    /// The file, if the storage is one.
    pub(in crate::store) fn data_file(&self) -> Option<&Arc<DataFile>> {
        self.data_file.as_ref()
    }

    /// Opens whatever storage `backend` gives, which fails as a test wants it to.
    #[cfg(test)]
    pub(in crate::store) fn backend<B: redb::StorageBackend>(
        cache_bytes: usize,
        backend: impl Fn() -> B + Clone + Send + Sync + 'static,
    ) -> Self {
        let builder = move || {
            let mut builder = Database::builder();
            builder.set_cache_size(cache_bytes);
            builder
        };
        let same_backend = backend.clone();
        let open_for_reading = move || builder().create_with_backend(Overlay::new(same_backend()));
        Self {
            open: Box::new(move || builder().create_with_backend(backend())),
            open_for_reading: Box::new(open_for_reading),
            data_file: None,
        }
    }

    pub(super) fn open(&self) -> Result<Database, redb::Error> {
        Ok((self.open)()?)
    }

    /// What is in the file, to be read alone: whatever is written to it is lost.
    pub(super) fn open_for_reading(&self) -> Result<Database, redb::Error> {
        Ok((self.open_for_reading)()?)
    }

    /// Opens the file for the first time in this process, after a look at whether it is ours: a
    /// file that is not stays as it is to the last byte.
    pub(in crate::store) fn open_first(&self, damage: &Damage) -> Result<Database, OpenError> {
        let looked_at = (self.open_for_reading)().map_err(OpenError::from_database)?;
        let version = require_format(&looked_at)?;
        drop(looked_at);
        let database = (self.open)().map_err(OpenError::from_database)?;
        // A compaction or restoration held the lock until it had put another file in this place.
        if self.data_file.as_ref().is_some_and(|file| file.look().is_some()) {
            return Err(OpenError::Replaced);
        }
        if version == 1 {
            migrate::from_1(&database, damage).map_err(OpenError::from_read)?;
        }
        Ok(database)
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

fn format(database: &Database) -> Result<Option<u64>, OpenError> {
    let transaction = database.begin_read().map_err(|e| OpenError::Io(e.into()))?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(
            redb::TableError::TableDoesNotExist(_) | redb::TableError::TableTypeMismatch { .. },
        ) => return Ok(None),
        Err(error) => return Err(OpenError::Io(error.into())),
    };
    let row = meta.get(FORMAT_KEY).map_err(|e| OpenError::Io(e.into()))?;
    Ok(row.map(|row| row.value()))
}

/// Makes the file where there is none, whole or not at all: it is made under another name in the
/// same directory, made durable, and only then renamed. A crash at any moment leaves either no
/// file or a good one.
pub(in crate::store) fn create_if_missing(path: &Path) -> Result<FileOrigin, OpenError> {
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
        temporary_in(directory)
    })();
    let new = made.map_err(|source| OpenError::Create { path: path.to_owned(), source })?;
    let database = Database::builder()
        .create_file(new.reopen().map_err(|e| OpenError::Io(e.into()))?)
        .map_err(OpenError::from_database)?;
    initialize(&database)?;
    drop(database);
    let renamed = (|| {
        new.as_file().sync_all()?;
        new.persist_noclobber(path).map_err(|error| error.error)?;
        File::open(directory)?.sync_all()
    })();
    renamed.map_err(|source| OpenError::Create { path: path.to_owned(), source })
}

/// A file in the data directory that is to become the data file: the service's own, whoever makes
/// it.
pub(super) fn temporary_in(directory: &Path) -> std::io::Result<NamedTempFile> {
    let new = temp_files::make(directory, temp_files::NEW)?;
    // Where root makes the file for the service, the service must be able to open it.
    let owner = std::fs::metadata(directory)?;
    if new.as_file().metadata()?.uid() != owner.uid() {
        chown(new.path(), Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(new)
}

/// Writes the tables and the version into an empty file.
pub(in crate::store) fn initialize(database: &Database) -> Result<(), OpenError> {
    let made = (|| -> Result<(), redb::Error> {
        let mut transaction = database.begin_write()?;
        writer::prepare(&mut transaction);
        let mut tables = Tables::open(&transaction)?;
        tables.create()?;
        tables.meta.open()?.insert(FORMAT_KEY, FORMAT_VERSION)?;
        drop(tables);
        Ok(transaction.commit()?)
    })();
    made.map_err(OpenError::Io)
}

/// What a start found to set right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// Messages whose body was lost with the process that held it.
    pub bodies_lost: usize,
    /// Idempotency keys that still replay.
    pub live_keys: usize,
    /// Origin of the file.
    pub file: FileOrigin,
}

/// Origin of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOrigin {
    /// It was there.
    Existing,
    /// There was none, so it was created, empty.
    Created,
}

/// Sets right what the end of the last process left: every pending message becomes `failed`, the
/// directory and the index are read. A row that cannot be read stops nothing: it is noted and left
/// out. Before this is done, nobody may ask the store anything.
pub(in crate::store) fn recover(shared: &Shared, now: Timestamp) -> Result<Recovery, OpenError> {
    let recovered = (|| -> Result<Recovery, ReadError> {
        let mut bodies_lost = 0;
        loop {
            let step = shared.write(|mut tables| {
                // An earlier version may not have had all of them.
                tables.create()?;
                // A clock that is behind the file's time stamp is wrong.
                let reached = time_record::reached(&mut tables)?;
                settle_pending(&mut tables, reached.map_or(now, |reached| reached.now().max(now)))
            })?;
            bodies_lost += step;
            if step < RECOVERY_STEP {
                break;
            }
        }
        set_aside::note_all(shared)?;
        shared.reload_directory()?;
        key_use::load(shared)?;
        suppress::load_filter(shared)?;
        let live_keys = rebuild_index(shared, now)?;
        Ok(Recovery { bodies_lost, live_keys, file: FileOrigin::Existing })
    })();
    recovered.map_err(OpenError::from_read)
}

fn settle_pending(tables: &mut Tables<'_>, now: Timestamp) -> Result<usize, ReadError> {
    let pending: Vec<MessageId> = tables
        .pending
        .iter()?
        .take(RECOVERY_STEP)
        .map(|row| row.map(|(id, _)| MessageId::from_bytes(id.value())))
        .collect::<Result<_, _>>()?;
    let mut lost = 0;
    for id in &pending {
        let row = tables.messages.get(id.as_bytes())?.map(|row| row.value().to_vec());
        let message = row.as_deref().map(|row| decode_message(*id, row).in_row(MESSAGES, id));
        if let (Some(row), Some(Err(damaged))) = (&row, &message) {
            set_aside::keep(tables, *id, row, damaged, now)?;
            lost += 1;
        }
        if let Some(Ok(mut message)) = message {
            let transition = Transition::BodyLost {
                acceptance: Acceptance::Possible,
                message: "the service restarted before the message was sent, and bodies are kept \
                          in memory only; a call to the provider may have been under way, so \
                          whether it was accepted is unknown",
                found_at: now,
            };
            let attempts = message.attempts;
            if message.record(attempts, transition) == Recorded::Changed {
                lost += 1;
            }
            tables.messages.insert(id.as_bytes(), encode_message(&message).as_slice())?;
        }
        tables.pending.remove(id.as_bytes())?;
    }
    lost::add(tables, lost, now)?;
    Ok(pending.len())
}

/// Returns what was read; a damaged row is noted and left out.
fn left_out<T>(shared: &Shared, read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(ReadError::Row(row)) => {
            shared.damage.note(row);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads the keys that may still replay. A lookup decides whether a key does; by then it is known
/// whether the clock is in doubt.
fn rebuild_index(shared: &Shared, now: Timestamp) -> Result<usize, ReadError> {
    let mut index = write_lock(&shared.index);
    let hasher = index.hasher().clone();
    shared.read(|transaction| {
        // The time stamp and not the clock decides, because the clock may be wrong.
        let reached = match left_out(shared, time_record::read(transaction))? {
            Some(Some(record)) => record.reached(),
            Some(None) => now.into(),
            None => Timestamp::from_unix_millis(0).into(),
        };
        let past = reached.past(IDEMPOTENCY_WINDOW);
        let zero = Timestamp::from_unix_millis(0);
        let first = past.first().filter(|run| run.start == zero).map_or(zero, |run| run.end);
        let from = MessageId::first_of(first);
        let rows = transaction.open_table(IDEMPOTENCY)?.range(*from.as_bytes()..)?;
        let rows = rows.map(|row| -> Result<_, ReadError> {
            let (id, row) = row?;
            let id = MessageId::from_bytes(id.value());
            let read = IdempotencyRow::decode(row.value()).in_row(IDEMPOTENCY, id);
            let row = shared.damage.left_out(read);
            Ok(row.map(|row| (hasher.hash(OrganisationId(row.organisation), row.key), id)))
        });
        index.extend(rows.filter_map(Result::transpose))
    })?;
    Ok(index.len())
}

#[cfg(test)]
pub(in crate::store) mod faults;
#[cfg(test)]
pub(in crate::store) mod power;
