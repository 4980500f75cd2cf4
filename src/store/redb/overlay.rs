//! A storage that is only read: writes stay in memory, above it.
//!
//! redb repairs and marks a file while it opens it, even if nothing is to be changed. With this in
//! between, a file can be checked and left as it is, and a file on a disk that takes no writes can
//! still be read.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{BackendError, StorageBackend};

/// Unit that is kept in memory, in bytes: redb's own page.
const PAGE: usize = 4_096;

/// Storage whose writes are kept in memory above it.
#[derive(Debug)]
pub(super) struct Overlay<B> {
    below: B,
    above: Mutex<Above>,
}

#[derive(Debug, Default)]
struct Above {
    /// Length after the writes; `None` if they did not change it.
    length: Option<u64>,
    /// Pages that were written, by their number.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl<B: StorageBackend> Overlay<B> {
    pub(super) fn new(below: B) -> Self {
        Self { below, above: Mutex::default() }
    }

    /// Not a lock of `crate::locks`: redb writes under locks of its own.
    fn above(&self) -> MutexGuard<'_, Above> {
        self.above.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn length(&self, above: &Above) -> io::Result<u64> {
        above.length.map_or_else(|| self.below.len(), Ok)
    }

    /// Reads a part of one page: as it was written, or from below, or zeros beyond its end.
    fn read_page(&self, above: &Above, page: u64, start: usize, out: &mut [u8]) -> io::Result<()> {
        if let Some(content) = above.pages.get(&page) {
            out.copy_from_slice(&content[start..start + out.len()]);
            return Ok(());
        }
        let offset = page * PAGE as u64 + start as u64;
        let there = usize::try_from(self.below.len()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (there, beyond) = out.split_at_mut(there.min(out.len()));
        beyond.fill(0);
        if there.is_empty() { Ok(()) } else { self.below.read(offset, there) }
    }
}

/// The parts of pages that a range of bytes is made of: page, start in it, range in the bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let start = usize::try_from(at % PAGE as u64).expect("less than a page");
        let end = length.min(done + PAGE - start);
        let part = (at / PAGE as u64, start, done..end);
        (done < length).then(|| {
            done = end;
            part
        })
    })
}

impl<B: StorageBackend> StorageBackend for Overlay<B> {
    fn len(&self) -> io::Result<u64> {
        self.length(&self.above())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let above = self.above();
        if offset + out.len() as u64 > self.length(&above)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, start, range) in parts(offset, out.len()) {
            self.read_page(&above, page, start, &mut out[range])?;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.above().length = Some(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut above = self.above();
        for (page, start, range) in parts(offset, data.len()) {
            let mut content = vec![0; PAGE];
            self.read_page(&above, page, 0, &mut content)?;
            content[start..start + range.len()].copy_from_slice(&data[range]);
            above.pages.insert(page, content);
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }

    // A file that is only read can only get a shared lock. It keeps writers away, which is enough.
    hand_on_locks! {
        try_lock_range => try_lock_shared_range: bool,
        try_lock_shared_range => try_lock_shared_range: bool,
        lock_range => lock_shared_range: (),
        lock_shared_range => lock_shared_range: (),
        unlock_range => unlock_range: (),
        query_lock_range => query_lock_range: bool,
    }
}
