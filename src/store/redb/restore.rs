//! Restoration: puts a backup in the place of the data file, after it has been read from end to
//! end.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata};

use crate::record::decode_message;
use crate::redb::backup::behind_link;
use crate::redb::data_file::DataFile;
use crate::redb::error::{InRow, OpenError, ReadError};
use crate::redb::open::{open_with, require_format};
use crate::redb::overlay::Overlay;
use crate::redb::tables::{
    MESSAGES, SUPPRESSIONS, forget_journal, kept_checkpoint, write, write_tables,
};
use crate::redb::temp_files::{self, Existing};
use crate::redb::{CACHE_BYTES, FILE_NAME, rows};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;

/// Number of bytes that are copied between two reports.
const STEP_BYTES: usize = 1 << 20;

/// Content of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Contents {
    pub messages: u64,
    /// Time at which the newest of them was accepted.
    pub newest: Option<Timestamp>,
    pub organisations: usize,
    pub api_keys: usize,
    pub domains: usize,
    pub suppressions: u64,
    /// Rows that cannot be read: messages, organisations, keys and domains beyond those above.
    pub damaged: usize,
}

impl Contents {
    /// Reads a backup from end to end where it is. Nothing is written, neither to it nor beside it.
    pub fn of(backup: &Path, unclosed: Unclosed) -> Result<Self, RestoreError> {
        let file = DataFile::open(backup)
            .map_err(|source| RestoreError::Read { path: backup.to_owned(), source })?;
        let opened = file.below().and_then(|below| open_with(CACHE_BYTES, Overlay::new(below)));
        inspect(backup, opened, unclosed)
    }
}

/// Result of a restoration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Content of the backup.
    pub contents: Contents,
    /// Path at which the previous data file is kept; `None` if there was none.
    pub kept: Option<PathBuf>,
}

/// Reason why a backup is not in place. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RestoreError {
    #[error("the backup {} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the backup {} cannot be used: {source}", path.display())]
    Unusable { path: PathBuf, source: OpenError },
    #[error("there is already a data file {}", path.display())]
    Exists { path: PathBuf },
    #[error("a service is running on the data file {}", path.display())]
    InUse { path: PathBuf },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Decision for a copy of a data file that was not closed, without its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unclosed {
    /// Refuse it, because something may be missing.
    Refuse,
    /// Accept it as it is.
    AcceptLoss,
}

/// A backup that has been copied beside the data file and checked.
#[derive(Debug)]
pub struct Candidate {
    temporary: tempfile::NamedTempFile,
    target: PathBuf,
    contents: Contents,
}

impl Candidate {
    /// Copies a backup into the data directory, reporting the bytes as they come, and reads the
    /// copy from end to end. The backup itself stays as it is.
    pub fn check(
        backup: &Path,
        directory: &Path,
        unclosed: Unclosed,
        mut copied: impl FnMut(u64),
    ) -> Result<Self, RestoreError> {
        let target = behind_link(directory.join(FILE_NAME));
        let unreadable = |source| RestoreError::Read { path: backup.to_owned(), source };
        let unwritable = |source| RestoreError::Write { path: target.clone(), source };
        let mut from = File::open(backup).map_err(unreadable)?;
        let beside = target.parent().unwrap_or(directory);
        let mut temporary = temp_files::make_data_file(beside).map_err(unwritable)?;
        // A command that opens the directory meanwhile must see that this file is in use.
        temporary.as_file().lock().map_err(unwritable)?;
        let (mut buffer, mut total) = (vec![0; STEP_BYTES], 0);
        loop {
            let read = from.read(&mut buffer).map_err(unreadable)?;
            if read == 0 {
                break;
            }
            temporary.write_all(&buffer[..read]).map_err(unwritable)?;
            total += u64::try_from(read).unwrap_or(0);
            copied(total);
        }
        // redb locks it itself.
        temporary.as_file().unlock().map_err(unwritable)?;
        let opened = Database::builder().set_cache_size(CACHE_BYTES).open(temporary.path());
        let contents = inspect(backup, opened, unclosed)?;
        temporary.as_file().lock().map_err(unwritable)?;
        Ok(Self { temporary, target, contents })
    }

    /// Puts the copy in the data file's place at `now`. A data file that is there is kept under
    /// another name, and there is no moment without one.
    pub fn install(self, existing: Existing, now: Timestamp) -> Result<Restored, RestoreError> {
        let Self { temporary, target, contents } = self;
        let there = target.symlink_metadata().is_ok();
        if there && existing == Existing::Keep {
            return Err(RestoreError::Exists { path: target });
        }
        // Its lock is held until the other file is in its place. A file that does not open is the
        // usual reason to restore.
        let lock = there.then(|| Database::open(&target));
        if let Some(Err(DatabaseError::DatabaseAlreadyOpen)) = lock {
            return Err(RestoreError::InUse { path: target });
        }
        let installed = (|| {
            let kept = there.then(|| {
                target.with_file_name(format!("{FILE_NAME}.replaced-{}", now.unix_millis()))
            });
            if let Some(kept) = &kept {
                std::fs::hard_link(&target, kept)?;
            }
            // A file that was created since then must not be lost.
            let existing = if there { Existing::Replace } else { Existing::Keep };
            // Not by closing it: a process that is being started may hold a copy of the descriptor,
            // and so the lock.
            temp_files::place(temporary, &target, existing)?.unlock()?;
            Ok(kept)
        })();
        drop(lock);
        let kept = installed.map_err(|source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AlreadyExists if !there => RestoreError::Exists { path: target },
            _ => RestoreError::Write { path: target, source },
        })?;
        Ok(Restored { contents, kept })
    }
}

/// Reads a file that nobody else uses from end to end: a backup, or its copy.
fn inspect(
    backup: &Path,
    opened: Result<Database, DatabaseError>,
    unclosed: Unclosed,
) -> Result<Contents, RestoreError> {
    let inspected = (|| -> Result<_, OpenError> {
        let mut database = opened?;
        if !database.check_integrity()? {
            return Err(OpenError::Damaged("its checksums are wrong".to_owned()));
        }
        require_format(&database)?;
        // An older format does not have all tables. It is brought to this one when it is opened.
        write_tables(&database, |mut tables| Ok(tables.create()?))?;
        if kept_checkpoint(&database.begin_read()?)?.is_some() {
            match unclosed {
                Unclosed::Refuse => return Err(OpenError::Unclosed),
                Unclosed::AcceptLoss => write(&database, forget_journal)?,
            }
        }
        Ok(read_contents(&database)?)
    })();
    inspected.map_err(|source| RestoreError::Unusable { path: backup.to_owned(), source })
}

fn read_contents(database: &Database) -> Result<Contents, ReadError> {
    let transaction = database.begin_read()?;
    let index = rows::directory(&transaction)?;
    let (mut messages, mut newest) = (0, None);
    let mut damaged = index.damaged.len();
    for row in transaction.open_table(MESSAGES)?.iter()? {
        let (id, row) = row?;
        let id = MessageId::from_bytes(id.value());
        match decode_message(id, row.value()).in_row(MESSAGES, id) {
            Ok(message) => {
                messages += 1;
                newest = newest.max(Some(message.created_at));
            }
            Err(row) => {
                row.log();
                damaged += 1;
            }
        }
    }
    Ok(Contents {
        messages,
        newest,
        damaged,
        organisations: index.organisations.len(),
        api_keys: index.api_keys.len(),
        domains: index.domains.len(),
        suppressions: transaction.open_table(SUPPRESSIONS)?.len()?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Store;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    #[test]
    fn a_data_file_that_comes_into_being_meanwhile_is_not_lost() {
        let there = tempfile::tempdir().unwrap();
        drop(Store::open(there.path(), NOON).unwrap());
        let mut others = 0;
        for round in 0..100 {
            let directory = tempfile::tempdir().unwrap();
            let backup = there.path().join(FILE_NAME);
            let candidate =
                Candidate::check(&backup, directory.path(), Unclosed::Refuse, |_| ()).unwrap();
            let target = directory.path().join(FILE_NAME);
            // A service that is started while the restoration ends.
            let start = Instant::now() + Duration::from_micros(20 * round);
            let path = target.clone();
            let other = std::thread::spawn(move || {
                while Instant::now() < start {}
                File::create_new(path).is_ok_and(|mut file| file.write_all(b"another's").is_ok())
            });
            let installed = candidate.install(Existing::Keep, NOON);
            let is_others = other.join().unwrap();
            assert_ne!(installed.is_ok(), is_others, "round {round}: {installed:?}");
            assert_eq!(std::fs::read(target).unwrap() == b"another's", is_others);
            others += u32::from(is_others);
        }
        assert!(others > 0, "nobody came in between");
    }

    #[test]
    fn an_installed_file_is_free_while_others_hold_copies_of_the_descriptor() {
        let there = tempfile::tempdir().unwrap();
        drop(Store::open(there.path(), NOON).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let backup = there.path().join(FILE_NAME);
        let candidate =
            Candidate::check(&backup, directory.path(), Unclosed::Refuse, |_| ()).unwrap();
        // As held by a process that is being started.
        let _copy = candidate.temporary.as_file().try_clone().unwrap();
        candidate.install(Existing::Keep, NOON).unwrap();
        Store::open(directory.path(), NOON).unwrap();
    }
}
