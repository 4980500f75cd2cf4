//! The journal's file: every write is durable when it returns, and bypasses the page cache if the
//! file system allows it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use redb::StorageBackend;
use rustix::fs::OFlags;

use crate::redb::data_file::FileId;
use crate::redb::journal::{BLOCK_BYTES, FIRST_BYTES, JournalFile};
use crate::redb::temp_files::{self, Existing};

/// Number of attempts to take a lock, and the pause in between.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// An open file of whole blocks. All of its blocks are written once before they are used, so that
/// a later write changes no metadata.
#[derive(Debug)]
pub(in crate::redb) struct DirectFile {
    plain: File,
    /// Synchronous, through the page cache (`O_DSYNC` of open(2)).
    synchronous: File,
    /// Synchronous, without the page cache. `None` if the file system has no such writes.
    direct: Option<File>,
}

impl DirectFile {
    /// Opens and locks the file at a path, if there is one. If another process has it open, the
    /// error is [`io::ErrorKind::WouldBlock`].
    pub(in crate::redb) fn open(path: &Path) -> io::Result<Option<Self>> {
        let plain = match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        // In addition to the data file's lock: two copies of that file have a lock each.
        lock_with(|| plain.try_lock())?;
        Self::over(plain, path).map(Some)
    }

    /// Opens the file at a path to be read, if there is one. The error is as that of
    /// [`open`](Self::open).
    pub(in crate::redb) fn open_for_reading(path: &Path) -> io::Result<Option<JournalFile>> {
        let plain = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        lock_with(|| plain.try_lock_shared())?;
        // Both handles take no write.
        let synchronous = plain.try_clone()?;
        Self { plain, synchronous, direct: None }.into_journal_file().map(Some)
    }

    /// Opens the other handles of a file that is locked.
    fn over(plain: File, path: &Path) -> io::Result<Self> {
        let with = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).expect("open's flags are an int");
            File::options().write(true).custom_flags(flags).open(path)
        };
        let synchronous = with(OFlags::DSYNC)?;
        let direct = with(OFlags::DIRECT | OFlags::DSYNC).ok();
        Ok(Self { plain, synchronous, direct })
    }

    pub(in crate::redb) fn into_journal_file(self) -> io::Result<JournalFile> {
        let id = Some(FileId::from(&self.plain.metadata()?));
        Ok(JournalFile { storage: Box::new(self), id })
    }

    /// Makes the file, whole or not at all, and opens it.
    pub(in crate::redb) fn create(path: &Path) -> io::Result<Self> {
        let directory = path.parent().expect("the file's path has a directory");
        let new = temp_files::make_data_file(directory)?;
        // So that nobody takes it for an abandoned file.
        new.as_file().lock()?;
        write_zeros(new.as_file(), 0, FIRST_BYTES)?;
        // The lock stays with this handle.
        let plain = temp_files::place(new, path, Existing::Replace)?;
        Self::over(plain, path)
    }
}

/// Locks a file. Tries again for a moment, because a process that is being started holds copies of
/// its parent's locks until it becomes its program.
fn lock_with(lock: impl Fn() -> Result<(), TryLockError>) -> io::Result<()> {
    for _ in 1..LOCK_ATTEMPTS {
        match lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            locked => return Ok(locked?),
        }
    }
    Ok(lock()?)
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; 256 * 1024];
    let mut at = from;
    while at < to {
        let length = zeros.len().min(usize::try_from(to - at).unwrap_or(usize::MAX));
        file.write_all_at(&zeros[..length], at)?;
        at += length as u64;
    }
    Ok(())
}

impl StorageBackend for DirectFile {
    fn len(&self) -> io::Result<u64> {
        // A part behind the last whole block was cut off while the file grew.
        Ok(self.plain.metadata()?.len() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.plain.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let before = self.len()?;
        let grown = write_zeros(&self.plain, before, length).and_then(|()| self.plain.sync_all());
        if grown.is_err() {
            // So that a full disk gets its space back.
            let _ = self.plain.set_len(before);
        }
        grown
    }

    fn sync_data(&self) -> io::Result<()> {
        // Every write is durable.
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            match direct.write_all_at(data, offset) {
                // The file system takes no direct write of this kind.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                written => return written,
            }
        }
        self.synchronous.write_all_at(data, offset)
    }
}
