//! The least that makes a message durable: groups of rows in a journal, one sync for each group.
//!
//! The journal is written with zeros before, so that a write changes no metadata, and each write
//! is synchronous and goes past the page cache.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use tokio::sync::{mpsc, oneshot};

use crate::commit::ROW_BYTES;

const JOURNAL_BYTES: usize = 64 << 20;
/// Alignment of a direct write, in memory and in the file.
const BLOCK_BYTES: usize = 4096;
/// Rows in one write at most.
const MAX_GROUP: usize = 4096;
/// Rows that wait for the next write at most.
const MAX_WAITING: usize = 16_384;

/// A journal and the thread that writes it.
#[derive(Debug, Clone)]
pub(crate) struct Journal(mpsc::Sender<oneshot::Sender<()>>);

impl Journal {
    /// Makes the journal and starts its thread.
    pub(crate) fn start(path: &Path) -> anyhow::Result<Self> {
        std::fs::write(path, vec![0; JOURNAL_BYTES])?;
        File::open(path)?.sync_all()?;
        let flags = i32::try_from((OFlags::DIRECT | OFlags::DSYNC).bits())?;
        let file = File::options().write(true).custom_flags(flags).open(path)?;
        let (sender, waiting) = mpsc::channel(MAX_WAITING);
        std::thread::spawn(move || {
            write_groups(&file, waiting).expect("the journal can be written");
        });
        Ok(Self(sender))
    }

    /// Returns when a row is on disk.
    pub(crate) async fn append(&self) {
        let (written, answer) = oneshot::channel();
        self.0.send(written).await.expect("the journal's thread runs as long as the server");
        answer.await.expect("every row is written");
    }
}

fn write_groups(
    file: &File,
    mut waiting: mpsc::Receiver<oneshot::Sender<()>>,
) -> std::io::Result<()> {
    let memory = vec![7; MAX_GROUP * ROW_BYTES + 2 * BLOCK_BYTES];
    let start = memory.as_ptr().align_offset(BLOCK_BYTES);
    let mut position = 0;
    let mut group = Vec::with_capacity(MAX_GROUP);
    while waiting.blocking_recv_many(&mut group, MAX_GROUP) > 0 {
        let length = (group.len() * ROW_BYTES).next_multiple_of(BLOCK_BYTES);
        if position + length > JOURNAL_BYTES {
            position = 0;
        }
        file.write_all_at(&memory[start..start + length], position as u64)?;
        position += length;
        for written in group.drain(..) {
            // Who does not wait any more has closed its connection.
            let _ = written.send(());
        }
    }
    Ok(())
}
