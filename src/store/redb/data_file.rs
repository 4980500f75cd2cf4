//! The data file of a running service: one descriptor for the life of the store, and the check that
//! the file at the path is still the one that is open, and holds what was written to it.
//!
//! Device and inode do not show that another process wrote to the file. redb's header does: it
//! changes with every commit. This module also knows the files that only the service may write.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::Bound;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend, StorageError};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde::{Deserialize, Serialize};

use crate::locks::{Mutex, locked};
use crate::redb::{FILE_NAME, JOURNAL_NAME};

/// Length of redb's header.
const HEADER_BYTES: usize = 320;
/// Number of bytes that are written to check that the disk takes writes.
const PROBE_BYTES: usize = 64 * 1024;

/// Files of a data directory that no command may write to.
const OWN: [(&str, &str); 2] = [(FILE_NAME, "data file"), (JOURNAL_NAME, "journal")];

/// Loss of the data file of an open store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileLoss {
    /// There is no file at its path.
    Gone,
    /// There is another file at its path.
    Replaced,
    /// Another process wrote to it. Nothing is written any more, even no outcomes.
    WrittenOver,
}

/// A data file, open to be read and, once the disk takes writes, to be written.
#[derive(Debug)]
pub(super) struct DataFile {
    path: PathBuf,
    /// Open to be read at least.
    file: File,
    /// The same file, open to be written too.
    writable: OnceLock<File>,
    id: FileId,
    content: Mutex<Content>,
    /// Set once this process has had the file's lock. What others wrote before is the content.
    has_been_locked: AtomicBool,
    /// Set if another process wrote to it. That is final: the rest of the content is not known. It
    /// is outside the lock, because reads check it and must not wait for the writer.
    is_written_over: AtomicBool,
}

/// Expected content of the file if nobody else writes to it.
#[derive(Debug)]
struct Content {
    /// `None` after a write that failed, because a part of it may have been done.
    header: Option<Vec<u8>>,
    length: u64,
}

impl Content {
    fn of(file: &File) -> io::Result<Self> {
        Ok(Self { header: Some(read_header(file)?), length: file.metadata()?.len() })
    }
}

impl DataFile {
    /// Opens an existing file. One that cannot be written may be read.
    pub(super) fn open(path: &Path) -> io::Result<Arc<Self>> {
        let writable = OnceLock::new();
        let file = match File::options().read(true).write(true).open(path) {
            Ok(file) => {
                let _ = writable.set(file.try_clone()?);
                file
            }
            Err(error) if is_refusal(&error) => File::open(path).map_err(|_| error)?,
            Err(error) => return Err(error),
        };
        let (content, id) = (Content::of(&file)?, FileId::from(&file.metadata()?));
        Ok(Arc::new(Self {
            path: path.to_owned(),
            file,
            writable,
            id,
            content: Mutex::new(content),
            has_been_locked: AtomicBool::new(false),
            is_written_over: AtomicBool::new(false),
        }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Storage for redb, through the same descriptor each time.
    pub(super) fn backend(self: &Arc<Self>) -> Result<Backend, DatabaseError> {
        let writable = self.writable().map_err(StorageError::from)?;
        Ok(Backend { file: Arc::clone(self), below: storage(writable)? })
    }

    /// The same storage, for an overlay that writes nothing to it.
    pub(super) fn below(&self) -> Result<FileBackend, DatabaseError> {
        storage(self.writable.get().unwrap_or(&self.file))
    }

    /// Takes note that this process has the file's lock. A process that had it when this one opened
    /// the file, such as a command, may have written since, and that is no loss.
    fn is_locked_now(&self) -> io::Result<()> {
        if !self.has_been_locked.load(Ordering::Acquire) {
            *locked(&self.content) = Content::of(&self.file)?;
            self.has_been_locked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The file, open to be written. It is opened again if the disk took no writes before.
    fn writable(&self) -> io::Result<&File> {
        if let Some(file) = self.writable.get() {
            return Ok(file);
        }
        let file = File::options().read(true).write(true).open(&self.path)?;
        if FileId::from(&file.metadata()?) != self.id {
            return Err(io::Error::new(io::ErrorKind::NotFound, "another file is in its place"));
        }
        Ok(self.writable.get_or_init(|| file))
    }

    /// Checks that the disk takes writes, before much work is done for them.
    pub(super) fn probe(&self) -> io::Result<()> {
        let directory = self.path.parent().expect("the file's path has a directory");
        // Without a name: an error names only the directory, and nothing is left behind.
        let mut file = tempfile::tempfile_in(directory)?;
        file.write_all(&vec![1; PROBE_BYTES])?;
        file.sync_data()
    }

    /// Checks that the file is in its place and holds what was written to it. Takes some
    /// microseconds.
    pub(super) fn look(&self) -> Option<FileLoss> {
        if self.check(&locked(&self.content)).is_err() {
            return Some(FileLoss::WrittenOver);
        }
        match FileId::of(&self.path) {
            Ok(id) if id == self.id => None,
            Ok(_) => Some(FileLoss::Replaced),
            Err(_) => Some(FileLoss::Gone),
        }
    }

    /// Compares the file with its expected content. If it cannot be read, the disk is at fault, and
    /// redb gets the same error.
    fn check(&self, content: &Content) -> io::Result<()> {
        // As in `FileId::of`, without a read of its times.
        let found = rustix::fs::statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::SIZE);
        if let (Ok(found), Ok(header)) = (found, read_header(&self.file)) {
            let is_header = content.header.as_ref().is_none_or(|expected| *expected == header);
            if !is_header || found.stx_size != content.length {
                self.is_written_over.store(true, Ordering::Release);
            }
        }
        self.refuse_written_over()
    }

    fn refuse_written_over(&self) -> io::Result<()> {
        if self.is_written_over.load(Ordering::Acquire) {
            return Err(io::Error::other("another process overwrote the data file"));
        }
        Ok(())
    }
}

fn storage(file: &File) -> Result<FileBackend, DatabaseError> {
    let file = file.try_clone().map_err(StorageError::from)?;
    // redb would make a new database of an empty file.
    if file.metadata().map_err(StorageError::from)?.len() == 0 {
        return Err(StorageError::Io(io::ErrorKind::InvalidData.into()).into());
    }
    FileBackend::new(file)
}

/// Returns true if a file may be read though it cannot be opened to be written.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// The first bytes of a file, up to the length of a header.
fn read_header(file: &File) -> io::Result<Vec<u8>> {
    let mut header = vec![0; HEADER_BYTES];
    let mut read = 0;
    while read < HEADER_BYTES {
        match file.read_at(&mut header[read..], read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    header.truncate(read);
    Ok(header)
}

/// A header after a write that begins in it.
fn overwritten(mut header: Vec<u8>, offset: u64, data: &[u8]) -> Vec<u8> {
    let start = usize::try_from(offset).expect("less than the header's length");
    let end = HEADER_BYTES.min(start + data.len());
    header.resize(header.len().max(end), 0);
    header[start..end].copy_from_slice(&data[..end - start]);
    header
}

/// Storage that neither writes to nor reads from a file that another process wrote to.
#[derive(Debug)]
pub(super) struct Backend {
    file: Arc<DataFile>,
    below: FileBackend,
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.refuse_written_over()?;
        self.below.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut content = locked(&self.file.content);
        self.file.check(&content)?;
        let set = self.below.set_len(length);
        content.length = self.below.len()?;
        set
    }

    fn sync_data(&self) -> io::Result<()> {
        self.below.sync_data()?;
        // Data of another process must not count as committed.
        self.file.check(&locked(&self.file.content))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        let mut content = locked(&self.file.content);
        if offset < HEADER_BYTES as u64 {
            self.file.check(&content)?;
            let expected = content.header.take();
            self.below.write(offset, data)?;
            content.header = expected.map_or_else(
                || read_header(&self.file.file).ok(),
                |header| Some(overwritten(header, offset, data)),
            );
        } else {
            self.file.refuse_written_over()?;
            self.below.write(offset, data)?;
        }
        content.length = content.length.max(end);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        let is_locked = self.below.try_lock_range(start, end)?;
        if is_locked {
            self.file.is_locked_now()?;
        }
        Ok(is_locked)
    }

    hand_on_locks! {
        try_lock_shared_range => try_lock_shared_range: bool,
        lock_range => lock_range: (),
        lock_shared_range => lock_shared_range: (),
        unlock_range => unlock_range: (),
        query_lock_range => query_lock_range: bool,
    }
}

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of the file at a path.
    pub fn of(path: &Path) -> io::Result<Self> {
        // Only its inode is needed. A read of a file's times makes the next write to it store a new
        // time (multigrain timestamps, Linux 6.13 and later), and a synchronous write waits for
        // that.
        let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::INO)?;
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        Ok(Self { device, inode: found.stx_ino })
    }

    /// The id with these numbers of device and inode.
    pub const fn of_numbers(device: u64, inode: u64) -> Self {
        Self { device, inode }
    }

    /// The numbers of device and inode.
    pub const fn numbers(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

impl From<&fs::Metadata> for FileId {
    fn from(found: &fs::Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

/// The service's own files in a data directory.
#[derive(Debug, Clone)]
pub struct OwnFiles {
    directory: PathBuf,
}

impl OwnFiles {
    /// Names the files of a data directory.
    pub fn in_directory(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The data directory of these files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the name of the file at a path, if that is one of these files or the place of one
    /// that is missing now.
    pub fn name_of(&self, path: &Path) -> Option<&'static str> {
        let is_same =
            |a: &Path, b: &Path| FileId::of(a).is_ok_and(|a| FileId::of(b).is_ok_and(|b| a == b));
        let own = OWN.iter().find(|(file, _)| {
            if path.exists() {
                return is_same(&self.directory.join(file), path);
            }
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            path.file_name().is_some_and(|name| name == *file)
                && is_same(parent.unwrap_or(Path::new(".")), &self.directory)
        });
        own.map(|(_, name)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: [u8; 4096] = [7; 4096];

    fn made() -> (tempfile::TempDir, PathBuf, Arc<DataFile>, Backend) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, [1; 8192]).unwrap();
        let file = DataFile::open(&path).unwrap();
        let backend = file.backend().unwrap();
        (directory, path, file, backend)
    }

    #[test]
    fn own_writes_are_no_loss() {
        let (_directory, _, file, backend) = made();
        backend.write(0, &[2; HEADER_BYTES]).unwrap();
        backend.write(64, &[3; 128]).unwrap();
        backend.write(4096, &PAGE).unwrap();
        backend.set_len(16384).unwrap();
        backend.write(12288, &PAGE).unwrap();
        backend.set_len(8192).unwrap();
        backend.write(8192, &PAGE).unwrap();
        backend.sync_data().unwrap();
        assert_eq!(file.look(), None);
    }

    #[test]
    fn a_process_that_had_the_file_before_has_not_written_it_over() {
        let (_directory, path, _, before) = made();
        let file = DataFile::open(&path).unwrap();
        before.write(0, &[2; HEADER_BYTES]).unwrap();
        before.set_len(16384).unwrap();
        drop(before);
        let backend = file.backend().unwrap();
        assert!(backend.try_lock_range(Bound::Unbounded, Bound::Unbounded).unwrap());
        assert_eq!(file.look(), None);
        backend.write(0, &[3; HEADER_BYTES]).unwrap();
        // It has been this process's own since.
        drop(backend);
        fs::write(&path, [4; 8192]).unwrap();
        let backend = file.backend().unwrap();
        assert!(backend.try_lock_range(Bound::Unbounded, Bound::Unbounded).unwrap());
        assert!(backend.write(0, &[3; HEADER_BYTES]).is_err());
        assert_eq!(file.look(), Some(FileLoss::WrittenOver));
    }

    #[test]
    fn a_file_that_moves_is_gone_until_it_is_back() {
        let (directory, path, file, backend) = made();
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        assert_eq!(file.look(), Some(FileLoss::Gone));
        fs::write(&path, [1; 8192]).unwrap();
        assert_eq!(file.look(), Some(FileLoss::Replaced));
        // It is kept up to date all the same.
        backend.write(0, &[2; HEADER_BYTES]).unwrap();
        backend.sync_data().unwrap();
        fs::rename(&elsewhere, &path).unwrap();
        assert_eq!(file.look(), None);
    }

    #[test]
    fn nothing_is_written_to_a_file_that_somebody_else_wrote() {
        for content in [&[9; 8192][..], &[1; 4096], b"short", b""] {
            let (_directory, path, file, backend) = made();
            backend.write(0, &[2; HEADER_BYTES]).unwrap();
            // Between two writes of one commit, the worst moment.
            fs::write(&path, content).unwrap();
            assert!(backend.write(0, &[3; HEADER_BYTES]).is_err());
            assert!(backend.write(4096, &PAGE).is_err());
            assert!(backend.set_len(16384).is_err());
            assert!(backend.sync_data().is_err());
            assert!(backend.read(0, &mut [0; 4]).is_err());
            assert_eq!(file.look(), Some(FileLoss::WrittenOver));
            assert_eq!(fs::read(&path).unwrap(), content);
        }
    }
}
