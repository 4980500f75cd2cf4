//! One moment of the file, read from beginning to end while everything else goes on.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::ReadTransaction;

use crate::store::StoreError;
use crate::store::redb::Shared;
use crate::store::redb::raw::{Chunk, TABLES};
use crate::store::redb::read_error::ReadError;

/// Everything that the file holds at one moment. While it lives, what is removed from the file
/// takes up its room in it.
pub struct Snapshot {
    transaction: ReadTransaction,
    shared: Arc<Shared>,
    rows: u64,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(in crate::store) fn take(shared: &Arc<Shared>) -> Result<Self, ReadError> {
        let transaction = shared.begin_read()?;
        let mut rows = 0;
        for table in TABLES {
            rows += table.rows(&transaction)?;
        }
        Ok(Self { transaction, shared: Arc::clone(shared), rows })
    }

    /// How many rows there are in all.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Hands over everything, a part at a time, until `take` wants no more. Blocks.
    pub fn read(self, mut take: impl FnMut(Chunk) -> ControlFlow<()>) -> Result<(), StoreError> {
        for (number, table) in (0..).zip(TABLES) {
            let mut chunk = Chunk::of(number);
            let mut refusing = false;
            let mut hand_over = |chunk| {
                // A file that is to be opened again must not be held open here.
                refusing = self.shared.refusing.load(Ordering::Acquire);
                if refusing { ControlFlow::Break(()) } else { take(chunk) }
            };
            let read = table.each(&self.transaction, &mut |key, value| {
                chunk.push(key, value);
                if !chunk.is_full() {
                    return ControlFlow::Continue(());
                }
                hand_over(std::mem::replace(&mut chunk, Chunk::of(number)))
            });
            let mut flow = read.map_err(|error| {
                tracing::error!(table = table.name(), %error, "a read of the data file failed");
                StoreError::Unavailable
            })?;
            if flow.is_continue() && !chunk.is_empty() {
                flow = hand_over(chunk);
            }
            if refusing {
                return Err(StoreError::Unavailable);
            }
            if flow.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}
