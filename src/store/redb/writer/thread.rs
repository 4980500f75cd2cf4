//! The writer's thread: it gathers batches and commits them.
//!
//! A panic costs the batch in which it happens, and never the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::mpsc;

use crate::domain::id::{MessageId, OrganisationId};
use crate::metrics::organisations::Increment;
use crate::store::redb::directory::Directory;
use crate::store::redb::idempotency::KeyHash;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::writer::recovery::{Doubt, recover};
use crate::store::redb::writer::{
    Batch, DirectoryChange, Kind, Operation, SuppressionChange, settle,
};
use crate::store::redb::{Shared, write_lock};
use crate::store::{FileLoss, StoreError};

/// How many operations share one commit.
const BATCH_OPERATIONS: usize = 512;
/// How many bytes of rows share one commit.
const BATCH_BYTES: usize = 8 << 20;

/// What a batch changed that readers keep in memory.
struct Effects {
    claimed: Vec<(KeyHash, MessageId)>,
    increments: Vec<(OrganisationId, Increment)>,
    directory: Option<Directory>,
    suppressed: SuppressionChange,
}

/// How far a batch came.
#[derive(Default)]
struct Progress {
    /// Messages that it accepts, once their commit may have begun: they have to be undone if the
    /// commit fails.
    in_doubt: Option<Vec<MessageId>>,
    /// The operation that panicked.
    panicked: Option<usize>,
}

/// What the thread works with.
pub(super) struct Thread {
    pub(super) shared: Arc<Shared>,
    pub(super) operations: mpsc::Receiver<Box<dyn Operation>>,
}

impl Thread {
    /// Works until the last writer's handle is gone.
    pub(super) fn work(mut self) {
        while let Some(batch) = self.next_batch() {
            if let Err(doubt) = self.commit(batch) {
                recover(&self.shared, &mut self.operations, doubt);
            }
        }
        self.shared.close();
    }

    /// Waits for an operation and takes whatever else is queued, within limits. Where several
    /// come at once, those who are about to hand over theirs get the processor first.
    fn next_batch(&mut self) -> Option<Vec<Box<dyn Operation>>> {
        let first = self.operations.blocking_recv()?;
        let mut bytes = first.weight();
        let mut batch = vec![first];
        let mut gathered = 1;
        while batch.len() < BATCH_OPERATIONS && bytes < BATCH_BYTES {
            if let Ok(operation) = self.operations.try_recv() {
                bytes += operation.weight();
                batch.push(operation);
            } else if batch.len() > gathered {
                gathered = batch.len();
                std::thread::yield_now();
            } else {
                break;
            }
        }
        Some(batch)
    }

    fn commit(&self, mut operations: Vec<Box<dyn Operation>>) -> Result<(), Doubt> {
        if let Some(loss) = self.shared.look() {
            operations = refuse(operations, loss);
        }
        if operations.iter().all(|operation| operation.kind() == Kind::Turn) {
            settle(operations, Ok(()));
            return Ok(());
        }
        let mut progress = Progress::default();
        match catch_unwind(AssertUnwindSafe(|| self.run(&mut operations, &mut progress))) {
            Ok(Ok(())) => {
                settle(operations, Ok(()));
                return Ok(());
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "the store could not commit; writes are refused for now");
            }
            // The rows may be on disk or not, as after a failed write.
            Err(_) => tracing::error!("a commit panicked; writes are refused for now"),
        }
        self.shared.metrics.commit_failed();
        self.shared.refusing.store(true, Ordering::Release);
        self.shared.health_changed.notify_waiters();
        if let Some(guilty) = progress.panicked {
            // It would panic again: it must not be tried again.
            settle([operations.remove(guilty)], Err(StoreError::Damaged));
        }
        Err(Doubt { operations, accepted: progress.in_doubt })
    }

    fn run(
        &self,
        operations: &mut [Box<dyn Operation>],
        progress: &mut Progress,
    ) -> Result<(), ReadError> {
        let started = Instant::now();
        let effects = self.shared.write(|tables| {
            let mut batch = Batch {
                tables,
                accepted: Vec::new(),
                claimed: Vec::new(),
                increments: Vec::new(),
                directory: DirectoryChange::Unchanged,
                suppressed: SuppressionChange::Unchanged,
                shared: &self.shared,
            };
            // An operation that panics costs its batch, as a failed write does, not the writer.
            for (position, operation) in operations.iter_mut().enumerate() {
                let ran = catch_unwind(AssertUnwindSafe(|| operation.run(&mut batch)));
                ran.unwrap_or_else(|_| {
                    progress.panicked = Some(position);
                    Err(redb::CommitError::TransactionPoisoned.into())
                })?;
            }
            // Read before the commit: nothing after it may fail.
            let directory = match batch.directory {
                DirectoryChange::Changed => Some(Directory::of(
                    batch.tables.organisations.open()?,
                    batch.tables.api_keys.open()?,
                    batch.tables.domains.open()?,
                )?),
                DirectoryChange::Unchanged => None,
            };
            let Batch { accepted, claimed, increments, suppressed, .. } = batch;
            progress.in_doubt = Some(accepted);
            Ok(Effects { claimed, increments, directory, suppressed })
        })?;
        self.shared.metrics.committed(operations.len(), started.elapsed(), effects.increments);
        publish(&self.shared, effects.claimed);
        if effects.suppressed == SuppressionChange::Added {
            self.shared.suppression_epoch.fetch_add(1, Ordering::Release);
        }
        if let Some(directory) = effects.directory {
            self.shared.set_directory(directory);
        }
        Ok(())
    }
}

/// Refuses what must not be written while the file is not in its place; gives the rest.
fn refuse(operations: Vec<Box<dyn Operation>>, loss: FileLoss) -> Vec<Box<dyn Operation>> {
    let (rest, refused): (_, Vec<_>) =
        operations.into_iter().partition(|operation| match operation.kind() {
            Kind::Write => false,
            Kind::Outcome => loss != FileLoss::WrittenOver,
            Kind::Turn => true,
        });
    settle(refused, Err(StoreError::FileLost));
    rest
}

/// Makes a durable batch's keys known to all readers.
fn publish(shared: &Shared, claimed: Vec<(KeyHash, MessageId)>) {
    if claimed.is_empty() {
        return;
    }
    let mut index = write_lock(&shared.index);
    for (hash, id) in claimed {
        index.insert(hash, id);
    }
}
