//! The one thread that writes: runs what is queued in one transaction, commits once, answers all.
//!
//! There is no timer: while one commit is on its way to the disk, the next batch gathers. Where a
//! commit fails, its outcome is in doubt. The file is then opened again, rows of that batch which
//! did reach the disk are removed, and only then is the batch refused, so that a refused message
//! can never come to life later. Until a write succeeds again, everything is refused at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redb::Durability;
use tokio::sync::{mpsc, oneshot};

use crate::domain::id::{MessageId, OrganisationId};
use crate::store::StoreError;
use crate::store::redb::directory::Directory;
use crate::store::redb::failure::ReadError;
use crate::store::redb::idempotency::KeyHash;
use crate::store::redb::tables::{MESSAGES, PROBE, Tables};
use crate::store::redb::{Shared, accept};
use crate::tally::ledger::Fact;

pub(in crate::store) use change::{DirectoryChange, SuppressionChange};

mod change;

/// How many operations may wait for the writer before callers wait to hand over theirs.
const QUEUE_CAPACITY: usize = 4_096;
/// How many operations share one commit.
const BATCH_OPERATIONS: usize = 512;
/// How many bytes of rows share one commit.
const BATCH_BYTES: usize = 8 << 20;
/// How long to wait between attempts to write again after a failure.
const REOPEN_PAUSE_MIN: Duration = Duration::from_millis(50);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(1);

/// One operation in the shared transaction.
pub(in crate::store) trait Operation: Send {
    /// Runs. It checks before its first write, so that a refusal leaves nothing behind in the
    /// transaction that it shares with others. A row that cannot be read is its own failure; only
    /// a failure of the file is an error here, and fails the whole batch.
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), redb::Error>;

    /// Learns what became of the transaction, and answers whoever waits.
    fn settle(self: Box<Self>, outcome: Result<(), StoreError>);

    /// About how many bytes it writes.
    fn weight(&self) -> usize;
}

/// The transaction that operations share.
pub(in crate::store) struct Batch<'txn> {
    pub(in crate::store) tables: Tables<'txn>,
    /// Messages that this batch accepts: what has to be undone where its commit is in doubt.
    pub(in crate::store) accepted: Vec<MessageId>,
    /// Idempotency keys that this batch claims: not yet in the index, which holds durable ones.
    pub(in crate::store) claimed: Vec<(KeyHash, MessageId)>,
    /// What is to be counted once it is durable.
    pub(in crate::store) facts: Vec<(OrganisationId, Fact)>,
    /// Whether organisations, keys or domains changed.
    pub(in crate::store) directory: DirectoryChange,
    /// Whether an address became suppressed.
    pub(in crate::store) suppressed: SuppressionChange,
    pub(in crate::store) shared: &'txn Shared,
}

/// What a batch changed that readers keep in memory.
struct Effects {
    claimed: Vec<(KeyHash, MessageId)>,
    facts: Vec<(OrganisationId, Fact)>,
    directory: Option<Directory>,
    suppressed: SuppressionChange,
}

/// How far a batch came.
#[derive(Default)]
struct Progress {
    /// Messages that it accepts: what has to be undone where its commit is in doubt.
    accepted: Vec<MessageId>,
    /// The operation that panicked.
    panicked: Option<usize>,
}

/// Hands operations to the writer's thread.
#[derive(Debug, Clone)]
pub(in crate::store) struct Writer {
    queue: mpsc::Sender<Box<dyn Operation>>,
}

impl Writer {
    /// Starts the thread. It ends when the last `Writer` is gone.
    pub(in crate::store) fn start(shared: Arc<Shared>) -> std::io::Result<(Self, WriterThread)> {
        let (queue, operations) = mpsc::channel(QUEUE_CAPACITY);
        let thread = std::thread::Builder::new()
            .name("pillarbox-writer".to_owned())
            .spawn(move || Thread { shared, operations }.work())?;
        Ok((Self { queue }, WriterThread(Some(thread))))
    }

    /// Queues an operation. Gives it back where the writer is gone.
    pub(in crate::store) async fn submit(
        &self,
        operation: Box<dyn Operation>,
    ) -> Result<(), StoreError> {
        self.queue.send(operation).await.map_err(|_| StoreError::Unavailable)
    }

    /// Has something written, so that a file whose handle fails is opened again.
    pub(in crate::store) fn probe(&self) {
        let (reply, _) = oneshot::channel();
        let write = |batch: &mut Batch<'_>| {
            batch.tables.meta.open()?.insert(PROBE, 0)?;
            Ok(())
        };
        let probe = Work { run: Some(write), done: None, weight: 0, reply };
        // Where the queue is full, enough will be written.
        let _ = self.queue.try_send(Box::new(probe));
    }

    /// Runs `work` in the shared transaction and returns its result once that is durable.
    pub(in crate::store) async fn run<T, F>(&self, weight: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> Result<T, ReadError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.submit(Box::new(Work { run: Some(work), done: None, weight, reply })).await?;
        answer.await.map_err(|_| StoreError::Unavailable)?
    }
}

/// The writer's thread, joined when dropped.
#[derive(Debug)]
pub(in crate::store) struct WriterThread(Option<std::thread::JoinHandle<()>>);

impl Drop for WriterThread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take()
            && thread.join().is_err()
        {
            tracing::error!("the writer's thread panicked");
        }
    }
}

struct Work<T, F> {
    run: Option<F>,
    done: Option<Result<T, StoreError>>,
    weight: usize,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Operation for Work<T, F>
where
    T: Send,
    F: FnOnce(&mut Batch<'_>) -> Result<T, ReadError> + Send,
{
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), redb::Error> {
        let work = self.run.take().expect("an operation runs once");
        self.done = Some(own_failure(work(batch))?);
        Ok(())
    }

    fn settle(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { done, reply, .. } = *self;
        let answer = outcome.and_then(|()| done.unwrap_or(Err(StoreError::Unavailable)));
        // Whoever asked may be gone; the change stands all the same.
        let _ = reply.send(answer);
    }

    fn weight(&self) -> usize {
        self.weight
    }
}

/// Tells a failure of the operation's own from one of the file.
pub(in crate::store) fn own_failure<T>(
    result: Result<T, ReadError>,
) -> Result<Result<T, StoreError>, redb::Error> {
    match result {
        Ok(done) => Ok(Ok(done)),
        Err(ReadError::Row(error)) => {
            tracing::error!(%error, "an operation met a row that cannot be read");
            Ok(Err(StoreError::Damaged))
        }
        Err(ReadError::File(error)) => Err(error),
    }
}

struct Thread {
    shared: Arc<Shared>,
    operations: mpsc::Receiver<Box<dyn Operation>>,
}

/// What a failed batch leaves to clear up.
struct Doubt {
    operations: Vec<Box<dyn Operation>>,
    accepted: Vec<MessageId>,
}

impl Thread {
    fn work(mut self) {
        while let Some(batch) = self.next_batch() {
            // Whatever panics beyond an operation's own work costs its batch and not the writer.
            let committed = catch_unwind(AssertUnwindSafe(|| self.commit(batch)));
            let nothing = Doubt { operations: Vec::new(), accepted: Vec::new() };
            if let Err(doubt) = committed.unwrap_or(Err(nothing)) {
                self.recover(doubt);
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
        let mut progress = Progress::default();
        match self.run(&mut operations, &mut progress) {
            Ok(()) => {
                for operation in operations {
                    operation.settle(Ok(()));
                }
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the store could not commit; writes are refused for now");
                self.shared.counts.commit_failed();
                if let Some(guilty) = progress.panicked {
                    // It would panic again: it must not be tried again.
                    operations.remove(guilty).settle(Err(StoreError::Damaged));
                }
                Err(Doubt { operations, accepted: progress.accepted })
            }
        }
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
                facts: Vec::new(),
                directory: DirectoryChange::Unchanged,
                suppressed: SuppressionChange::Unchanged,
                shared: &self.shared,
            };
            // An operation that panics costs its batch, as a failed write does, not the writer.
            for (position, operation) in operations.iter_mut().enumerate() {
                let ran = catch_unwind(AssertUnwindSafe(|| operation.run(&mut batch)));
                progress.accepted.append(&mut batch.accepted);
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
            let Batch { claimed, facts, suppressed, .. } = batch;
            Ok(Effects { claimed, facts, directory, suppressed })
        })?;
        self.shared.counts.committed(operations.len(), started.elapsed(), effects.facts);
        accept::publish(&self.shared, effects.claimed);
        if effects.suppressed == SuppressionChange::Added {
            self.shared.suppression_epoch.fetch_add(1, Ordering::Release);
        }
        if let Some(directory) = effects.directory {
            self.shared.set_directory(directory);
        }
        Ok(())
    }

    /// Brings the file back to a state that takes writes, then refuses the batch in doubt.
    fn recover(&mut self, doubt: Doubt) {
        self.shared.refusing.store(true, Ordering::Release);
        self.shared.health_changed.notify_waiters();
        let mut pause = REOPEN_PAUSE_MIN;
        let Doubt { operations, accepted } = doubt;
        let mut waiting = operations;
        loop {
            // Where none of the batch's rows is on disk, its callers need not wait for a write.
            if let Err(error) = self.shared.reopen() {
                tracing::error!(%error, "the store could not be opened again");
            }
            if !waiting.is_empty() && self.is_absent(&accepted) {
                refuse(std::mem::take(&mut waiting));
            }
            match self.clean(&accepted) {
                Ok(()) => break,
                Err(error) => tracing::warn!(%error, "the store does not take writes yet"),
            }
            if self.refuse_until(Instant::now() + pause) == Ended::Yes {
                break;
            }
            pause = (pause * 2).min(REOPEN_PAUSE_MAX);
        }
        refuse(waiting);
        // The batch may have suppressed an address and been durable all the same.
        self.shared.suppression_epoch.fetch_add(1, Ordering::Release);
        self.shared.refusing.store(false, Ordering::Release);
        self.shared.health_changed.notify_waiters();
        tracing::info!("the store takes writes again");
    }

    fn is_absent(&self, accepted: &[MessageId]) -> bool {
        let found = self.shared.read(|transaction| {
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

    /// Removes the rows of the batch in doubt; the write itself proves that writes succeed.
    fn clean(&self, accepted: &[MessageId]) -> Result<(), ReadError> {
        self.shared.write(|mut tables| {
            for id in accepted {
                tables.remove_accepted(*id)?;
            }
            tables.meta.open()?.insert(PROBE, 0)?;
            Ok(())
        })?;
        self.shared.reload_directory()
    }

    /// Refuses what arrives until `end`: none of it was in a transaction.
    fn refuse_until(&mut self, end: Instant) -> Ended {
        while Instant::now() < end {
            match self.operations.try_recv() {
                Ok(operation) => operation.settle(Err(StoreError::Unavailable)),
                Err(mpsc::error::TryRecvError::Empty) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(mpsc::error::TryRecvError::Disconnected) => return Ended::Yes,
            }
        }
        Ended::No
    }
}

#[derive(PartialEq, Eq)]
enum Ended {
    Yes,
    No,
}

fn refuse(operations: Vec<Box<dyn Operation>>) {
    for operation in operations {
        operation.settle(Err(StoreError::Unavailable));
    }
}

/// What every commit is made with: durable on return, and quick to open after a crash.
pub(in crate::store) fn prepare(transaction: &mut redb::WriteTransaction) {
    transaction.set_durability(Durability::Immediate).expect("no persistent savepoint is used");
    transaction.set_quick_repair(true);
}
