//! The writer's thread: it gathers batches and commits them. After a failed commit it opens the file
//! again, undoes what is in doubt, and refuses what arrives until a write succeeds.
//!
//! A panic costs the batch in which it happens, and never the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::domain::id::{MessageId, OrganisationId};
use crate::organisation_counts::Increment;
use crate::store::batch::{Batch, Kind, Operation};
use crate::store::data_file::FileLoss;
use crate::store::error::ReadError;
use crate::store::idempotency::KeyHash;
use crate::store::organisations::OrganisationIndex;
use crate::store::tables::{MESSAGES, PROBE};
use crate::store::writer::settle;
use crate::store::{Change, Shared, StoreError, write_lock};

/// How many operations share one commit.
const BATCH_OPERATIONS: usize = 512;
/// How many bytes of rows share one commit.
const BATCH_BYTES: usize = 8 << 20;
/// How long to wait between attempts to write again after a failure.
const REOPEN_PAUSE_MIN: Duration = Duration::from_millis(50);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a batch changed that readers keep in memory.
struct Effects {
    claimed: Vec<(KeyHash, MessageId)>,
    increments: Vec<(OrganisationId, Increment)>,
    organisations: Option<OrganisationIndex>,
    suppressed: Change,
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
            if let Err(failed) = self.commit(batch) {
                reopen(&self.shared, &mut self.operations, failed);
            }
        }
        self.shared.database.close();
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

    fn commit(&self, mut operations: Vec<Box<dyn Operation>>) -> Result<(), FailedBatch> {
        if let Some(loss) = self.shared.look() {
            operations = refuse(operations, loss);
        }
        if operations.iter().all(|operation| operation.kind() == Kind::Barrier) {
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
        Err(FailedBatch { operations, accepted: progress.in_doubt })
    }

    fn run(
        &self,
        operations: &mut [Box<dyn Operation>],
        progress: &mut Progress,
    ) -> Result<(), ReadError> {
        let started = Instant::now();
        let effects = self.shared.database.write(|tables| {
            let mut batch = Batch {
                tables,
                accepted: Vec::new(),
                claimed: Vec::new(),
                increments: Vec::new(),
                organisations: Change::None,
                suppressed: Change::None,
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
            let organisations = match batch.organisations {
                Change::Made => Some(OrganisationIndex::of(
                    batch.tables.organisations.open()?,
                    batch.tables.api_keys.open()?,
                    batch.tables.domains.open()?,
                )?),
                Change::None => None,
            };
            let Batch { accepted, claimed, increments, suppressed, .. } = batch;
            progress.in_doubt = Some(accepted);
            Ok(Effects { claimed, increments, organisations, suppressed })
        })?;
        self.shared.metrics.committed(operations.len(), started.elapsed(), effects.increments);
        publish(&self.shared, effects.claimed);
        if effects.suppressed == Change::Made {
            self.shared.suppression_epoch.fetch_add(1, Ordering::Release);
        }
        if let Some(organisations) = effects.organisations {
            self.shared.set_organisations(organisations);
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
            Kind::Barrier => true,
        });
    settle(refused, Err(StoreError::FileLost));
    rest
}

/// Makes a durable batch's keys known to all readers.
fn publish(shared: &Shared, claimed: Vec<(KeyHash, MessageId)>) {
    if claimed.is_empty() {
        return;
    }
    let mut index = write_lock(&shared.idempotency);
    for (hash, id) in claimed {
        index.insert(hash, id);
    }
}

/// What a failed batch leaves to clear up.
struct FailedBatch {
    operations: Vec<Box<dyn Operation>>,
    /// Messages that it accepts, if its commit may have begun: they have to be undone.
    accepted: Option<Vec<MessageId>>,
}

/// Brings the file back to a state that takes writes, then refuses the batch in doubt.
fn reopen(
    shared: &Shared,
    operations: &mut mpsc::Receiver<Box<dyn Operation>>,
    failed: FailedBatch,
) {
    let mut pause = REOPEN_PAUSE_MIN;
    let FailedBatch { operations: mut waiting, accepted } = failed;
    let may_be_on_disk = accepted.is_some();
    let accepted = accepted.unwrap_or_default();
    loop {
        if shared.look() == Some(FileLoss::WrittenOver) {
            // What is in memory can still be read. The file never takes writes again.
            settle(waiting, Err(StoreError::FileLost));
            shared.suppression_epoch.fetch_add(1, Ordering::Release);
            shared.refusing.store(false, Ordering::Release);
            shared.health_changed.notify_waiters();
            return;
        }
        // A panic is one more failed attempt: redb panics on pages that it cannot make sense of.
        let opened = catch_unwind(AssertUnwindSafe(|| open_again(shared, &accepted, &mut waiting)));
        if !may_be_on_disk {
            // Not before the file is open for reading: who is refused may read at once.
            settle(std::mem::take(&mut waiting), Err(StoreError::Unavailable));
        }
        match opened {
            Ok(Ok(())) => break,
            Ok(Err(error)) => tracing::warn!(%error, "the store does not take writes yet"),
            Err(_) => tracing::error!("the attempt to open the store again panicked"),
        }
        if refuse_until(operations, Instant::now() + pause) == Ended::Yes {
            break;
        }
        pause = (pause * 2).min(REOPEN_PAUSE_MAX);
    }
    settle(waiting, Err(StoreError::Unavailable));
    // The batch may have suppressed an address and been durable all the same.
    shared.suppression_epoch.fetch_add(1, Ordering::Release);
    shared.refusing.store(false, Ordering::Release);
    shared.health_changed.notify_waiters();
    tracing::info!("the store takes writes again");
}

/// Opens the file again and removes the rows of the batch in doubt; the write itself proves
/// that writes succeed. If it fails, callers whose rows are not on disk are refused at once:
/// they need not wait until a write succeeds.
fn open_again(
    shared: &Shared,
    accepted: &[MessageId],
    waiting: &mut Vec<Box<dyn Operation>>,
) -> Result<(), ReadError> {
    let cleaned = shared.database.reopen(|mut tables| {
        for id in accepted {
            tables.remove_accepted(*id)?;
        }
        tables.meta.open()?.insert(PROBE, 0)?;
        Ok(())
    });
    if cleaned.is_err() && !waiting.is_empty() && is_absent(shared, accepted) {
        settle(std::mem::take(waiting), Err(StoreError::Unavailable));
    }
    cleaned?;
    shared.reload_organisations()
}

fn is_absent(shared: &Shared, accepted: &[MessageId]) -> bool {
    let found = shared.database.read(|transaction| {
        let messages = transaction.open_table(MESSAGES)?;
        for id in accepted {
            if messages.get(id.as_bytes())?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    });
    matches!(found, Ok(false))
}

/// Refuses what arrives until `end`: none of it was in a transaction.
fn refuse_until(operations: &mut mpsc::Receiver<Box<dyn Operation>>, end: Instant) -> Ended {
    while Instant::now() < end {
        match operations.try_recv() {
            Ok(operation) => settle([operation], Err(StoreError::Unavailable)),
            Err(mpsc::error::TryRecvError::Empty) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(mpsc::error::TryRecvError::Disconnected) => return Ended::Yes,
        }
    }
    Ended::No
}

#[derive(PartialEq, Eq)]
enum Ended {
    Yes,
    No,
}
