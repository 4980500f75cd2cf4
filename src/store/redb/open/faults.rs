//! A disk in memory that fails when a test tells it to.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::{Database, StorageBackend};

use crate::store::redb::open::initialize;

/// A block of the file system, in bytes.
const BLOCK: u64 = 4_096;

/// How the disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Fault {
    /// It does not.
    None,
    /// No space is left: what was never written before cannot be written, as on a file system
    /// that gives out blocks at the first write.
    Full,
    /// Writes arrive, and the one sync after `after` more fails.
    SyncFails { after: usize },
    /// The one sync after `after` more fails, and what was written since the last one is gone.
    SyncLoses { after: usize },
    /// No write and no sync succeeds.
    WritesFail,
    /// No read succeeds.
    ReadsFail,
    /// Every read panics, as redb does on pages that it cannot make sense of.
    ReadsPanic,
    /// Writes arrive, and the one sync after `after` more panics.
    SyncPanics { after: usize },
}

/// A disk; clones are the same disk.
#[derive(Debug, Clone)]
pub(in crate::store) struct Disk(Arc<Mutex<Content>>);

#[derive(Debug)]
struct Content {
    bytes: Vec<u8>,
    /// As of the last sync.
    synced: Vec<u8>,
    /// The blocks that have been given out.
    given: HashSet<u64>,
    fault: Fault,
}

impl Disk {
    /// A disk that holds an empty store.
    pub(in crate::store) fn formatted() -> Self {
        let disk = Self(Arc::new(Mutex::new(Content {
            bytes: Vec::new(),
            synced: Vec::new(),
            given: HashSet::new(),
            fault: Fault::None,
        })));
        let database = Database::builder().create_with_backend(disk.clone()).unwrap();
        initialize(&database).unwrap();
        disk
    }

    /// Sets how it fails from now on.
    pub(in crate::store) fn set(&self, fault: Fault) {
        self.content().fault = fault;
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let content = self.content();
        match content.fault {
            Fault::ReadsFail => return Err(io::Error::other("read failed")),
            Fault::ReadsPanic => {
                // Others use the disk after this.
                drop(content);
                panic!("read panics");
            }
            _ => {}
        }
        let bytes = content.bytes.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.content();
        if content.fault == Fault::WritesFail {
            return Err(io::Error::other("write failed"));
        }
        content.bytes.resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut guard = self.content();
        let content = &mut *guard;
        match &mut content.fault {
            Fault::SyncFails { after: 0 } => {
                content.fault = Fault::None;
                return Err(io::Error::other("sync failed"));
            }
            Fault::SyncLoses { after: 0 } => {
                content.fault = Fault::None;
                content.bytes.clone_from(&content.synced);
                return Err(io::Error::other("sync failed"));
            }
            Fault::SyncPanics { after: 0 } => {
                content.fault = Fault::None;
                content.synced.clone_from(&content.bytes);
                drop(guard);
                panic!("sync panics");
            }
            Fault::WritesFail => return Err(io::Error::other("sync failed")),
            Fault::SyncFails { after }
            | Fault::SyncLoses { after }
            | Fault::SyncPanics { after } => *after -= 1,
            Fault::None | Fault::Full | Fault::ReadsFail | Fault::ReadsPanic => {}
        }
        content.synced.clone_from(&content.bytes);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.content();
        if content.fault == Fault::WritesFail {
            return Err(io::Error::other("write failed"));
        }
        for block in offset / BLOCK..=(offset + data.len() as u64 - 1) / BLOCK {
            if content.fault == Fault::Full && !content.given.contains(&block) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            content.given.insert(block);
        }
        let offset = usize::try_from(offset).unwrap();
        let bytes = content.bytes.get_mut(offset..offset + data.len());
        bytes.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
}
