//! The one thread that writes: runs what is queued in one transaction, commits once, answers all.
//!
//! There is no timer: while one commit is on its way to the disk, the next batch gathers. Where a
//! commit fails, its outcome is in doubt. The file is then opened again, rows of that batch which
//! did reach the disk are removed, and only then is the batch refused, so that a refused message
//! can never come to life later. Until a write succeeds again, everything is refused at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use redb::Durability;
use tokio::sync::{mpsc, oneshot};

use crate::domain::id::{MessageId, OrganisationId};
use crate::metrics::organisations::Increment;
use crate::store::StoreError;
use crate::store::redb::Shared;
use crate::store::redb::idempotency::KeyHash;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::tables::{PROBE, Tables};

use thread::Thread;

pub(in crate::store) use change::{DirectoryChange, SuppressionChange};

mod change;
mod recovery;
mod thread;

/// How many operations may wait for the writer before callers wait to hand over theirs.
const QUEUE_CAPACITY: usize = 4_096;
/// Exit code of a process whose writer cannot go on: `EX_SOFTWARE` of sysexits.h.
const EXIT_WRITER_ENDED: i32 = 70;

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

    /// Kind of the operation.
    fn kind(&self) -> Kind {
        Kind::Write
    }
}

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Kind {
    /// It writes. It is refused while the file is not in its place.
    Write,
    /// It writes what has happened and cannot be refused, also to a file that is not in its place.
    Outcome,
    /// It writes nothing, and only waits for its turn: what was queued before it is durable then.
    Turn,
}

/// The transaction that operations share.
pub(in crate::store) struct Batch<'txn> {
    pub(in crate::store) tables: Tables<'txn>,
    /// Messages that this batch accepts: what has to be undone where its commit is in doubt.
    pub(in crate::store) accepted: Vec<MessageId>,
    /// Idempotency keys that this batch claims: not yet in the index, which holds durable ones.
    pub(in crate::store) claimed: Vec<(KeyHash, MessageId)>,
    /// What is to be counted once it is durable.
    pub(in crate::store) increments: Vec<(OrganisationId, Increment)>,
    /// Whether organisations, keys or domains changed.
    pub(in crate::store) directory: DirectoryChange,
    /// Whether an address became suppressed.
    pub(in crate::store) suppressed: SuppressionChange,
    pub(in crate::store) shared: &'txn Shared,
}

/// Answers everybody. A panic in one answer is not the others' loss.
fn settle(
    operations: impl IntoIterator<Item = Box<dyn Operation>>,
    outcome: Result<(), StoreError>,
) {
    for operation in operations {
        if catch_unwind(AssertUnwindSafe(|| operation.settle(outcome))).is_err() {
            tracing::error!("an operation panicked when it learned the outcome of its commit");
        }
    }
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
        let thread =
            std::thread::Builder::new().name("pillarbox-writer".to_owned()).spawn(move || {
                let thread = Thread { shared, operations };
                if catch_unwind(AssertUnwindSafe(|| thread.work())).is_err() {
                    // The last resort: without this thread nothing is accepted or recorded.
                    tracing::error!("the writer's thread panicked; the process ends");
                    std::process::exit(EXIT_WRITER_ENDED);
                }
            })?;
        Ok((Self { queue }, WriterThread(Some(thread))))
    }

    /// Queues an operation. Gives it back where the writer is gone.
    pub(in crate::store) async fn submit(
        &self,
        operation: Box<dyn Operation>,
    ) -> Result<(), StoreError> {
        self.queue.send(operation).await.map_err(|_| StoreError::Unavailable)
    }

    /// Waits for a turn: ends once everything that was queued before is durable or refused.
    pub(in crate::store) async fn turn(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.submit(Box::new(Turn(reply))).await?;
        answer.await.map_err(|_| StoreError::Unavailable)?
    }

    /// Has something written, so that a file whose handle fails is opened again.
    pub(in crate::store) fn probe(&self) {
        let (reply, _) = oneshot::channel();
        let write = |batch: &mut Batch<'_>| {
            batch.tables.meta.open()?.insert(PROBE, 0)?;
            Ok(())
        };
        let kind = Kind::Outcome;
        let probe = Work { run: Some(write), done: None, kind, weight: 0, reply };
        // Where the queue is full, enough will be written.
        let _ = self.queue.try_send(Box::new(probe));
    }

    /// Runs `work` in the shared transaction and returns its result once that is durable.
    pub(in crate::store) async fn run<T, F>(&self, weight: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> Result<T, ReadError> + Send + 'static,
    {
        self.run_as(Kind::Write, weight, work).await
    }

    /// As [`Writer::run`], for an operation of another kind.
    pub(in crate::store) async fn run_as<T, F>(
        &self,
        kind: Kind,
        weight: usize,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> Result<T, ReadError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.submit(Box::new(Work { run: Some(work), done: None, kind, weight, reply })).await?;
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

struct Turn(oneshot::Sender<Result<(), StoreError>>);

impl Operation for Turn {
    fn run(&mut self, _: &mut Batch<'_>) -> Result<(), redb::Error> {
        Ok(())
    }

    fn settle(self: Box<Self>, outcome: Result<(), StoreError>) {
        // Whoever asked may be gone.
        let _ = self.0.send(outcome);
    }

    fn weight(&self) -> usize {
        0
    }

    fn kind(&self) -> Kind {
        Kind::Turn
    }
}

struct Work<T, F> {
    run: Option<F>,
    done: Option<Result<T, StoreError>>,
    kind: Kind,
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
        self.done = Some(own_failure(work(batch), batch.shared)?);
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

    fn kind(&self) -> Kind {
        self.kind
    }
}

/// Tells a failure of the operation's own from one of the file.
pub(in crate::store) fn own_failure<T>(
    result: Result<T, ReadError>,
    shared: &Shared,
) -> Result<Result<T, StoreError>, redb::Error> {
    match result {
        Ok(done) => Ok(Ok(done)),
        Err(ReadError::Row(row)) => {
            shared.damage.note(row);
            Ok(Err(StoreError::Damaged))
        }
        Err(ReadError::File(error)) => Err(error),
    }
}

/// What every commit is made with: durable on return, and quick to open after a crash.
pub(in crate::store) fn prepare(transaction: &mut redb::WriteTransaction) {
    transaction.set_durability(Durability::Immediate).expect("no persistent savepoint is used");
    transaction.set_quick_repair(true);
}
