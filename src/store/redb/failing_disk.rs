//! Store on a disk in memory, whose writes fail if a test wants it: for tests of code that uses a
//! store.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::InMemoryBackend;
use redb::{Database, StorageBackend};

use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;

use crate::redb::journal::JournalFile;
use crate::redb::open::{Opener, initialize, open_with};
use crate::redb::overlay::Overlay;
use crate::redb::startup_recovery::Pending;
use crate::redb::{CACHE_BYTES, RedbStore};
use crate::{Engine, OpenError, Store};

#[derive(Debug, Clone)]
struct MemoryFile {
    bytes: Arc<InMemoryBackend>,
    fails: Arc<AtomicBool>,
}

impl MemoryFile {
    fn new(fails: &Arc<AtomicBool>) -> Self {
        Self { bytes: Arc::new(InMemoryBackend::new()), fails: Arc::clone(fails) }
    }

    fn copy_to(&self, other: &Self) -> io::Result<()> {
        let length = self.bytes.len()?;
        let mut bytes = vec![0; usize::try_from(length).expect("it is in memory")];
        self.bytes.read(0, &mut bytes)?;
        other.bytes.set_len(length)?;
        other.bytes.write(0, &bytes)
    }

    fn check(&self) -> io::Result<()> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("write failed"));
        }
        Ok(())
    }
}

impl StorageBackend for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.bytes.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.bytes.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.bytes.write(offset, data)
    }
}

/// A disk in memory, with a data file and its journal.
#[derive(Debug, Clone)]
pub struct MemoryDisk {
    data: MemoryFile,
    journal: MemoryFile,
}

impl MemoryDisk {
    /// A disk with a new data file.
    pub fn new() -> Self {
        let disk = Self::empty();
        let database = Database::builder().create_with_backend(disk.data.clone());
        initialize(&database.expect("memory takes a database")).expect("memory takes tables");
        disk
    }

    fn empty() -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        Self { data: MemoryFile::new(&fails), journal: MemoryFile::new(&fails) }
    }

    /// Makes writes fail.
    pub fn fail(&self) {
        self.data.fails.store(true, Ordering::SeqCst);
    }

    /// Lets writes succeed again.
    pub fn work(&self) {
        self.data.fails.store(false, Ordering::SeqCst);
    }

    /// Copies the files as they are now, as a process finds them if this one ends here.
    pub fn copy(&self) -> io::Result<Self> {
        let copy = Self::empty();
        self.data.copy_to(&copy.data)?;
        self.journal.copy_to(&copy.journal)?;
        Ok(copy)
    }
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// A store on a disk in memory, with a function that makes its writes fail and one that lets
    /// them succeed again.
    pub fn on_failing_disk(now: Timestamp) -> (Self, impl Fn(), impl Fn()) {
        let disk = MemoryDisk::new();
        let store = Self::on_disk(&disk, BTreeSet::new(), now).expect("a new database opens");
        let working = disk.clone();
        (store, move || disk.fail(), move || working.work())
    }

    /// Opens the store on a disk in memory. The messages with these bodies stay pending.
    pub fn on_disk(
        disk: &MemoryDisk,
        bodies: BTreeSet<MessageId>,
        now: Timestamp,
    ) -> Result<Self, OpenError> {
        let MemoryDisk { data, journal } = disk.clone();
        let opener = Opener::backend(CACHE_BYTES, move || data.clone(), move || journal.clone());
        let (redb, _) = RedbStore::start_by(opener, Pending::Recover, None, |_| bodies, now)?;
        Ok(Self { engine: Engine::Redb(redb) })
    }
}

impl Opener {
    /// Opens the storage that `backend` returns, which fails as a test wants it to.
    pub(super) fn backend<B: StorageBackend>(
        cache_bytes: usize,
        backend: impl Fn() -> B + Clone + Send + Sync + 'static,
        journal: impl Fn() -> B + Clone + Send + Sync + 'static,
    ) -> Self {
        let same = backend.clone();
        let (new_journal, read_journal) = (journal.clone(), journal.clone());
        Self {
            open: Box::new(move || open_with(cache_bytes, backend())),
            open_for_reading: Box::new(move || open_with(cache_bytes, Overlay::new(same()))),
            data_file: None,
            journal: Box::new(move || in_memory(journal())),
            journal_for_reading: Box::new(move || in_memory(read_journal())),
            create_journal: Box::new(move || {
                Ok(JournalFile { storage: Box::new(new_journal()), id: None })
            }),
            journal_id: Box::new(|| None),
            set_journal_aside: Box::new(|_| Ok(())),
        }
    }
}

/// The journal that a test keeps in memory, if there is one.
fn in_memory(journal: impl StorageBackend) -> io::Result<Option<JournalFile>> {
    let is_there = journal.len()? > 0;
    Ok(is_there.then(|| JournalFile { storage: Box::new(journal), id: None }))
}
