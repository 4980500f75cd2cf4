//! The one thread that writes: runs the queued operations in one transaction, writes its changes to
//! the journal once, answers all.
//!
//! While one write is on its way to the disk, the next batch gathers. If the write to the journal
//! fails, its outcome is in doubt. The file is then opened again, a checkpoint makes the record in
//! doubt void, and only then is the batch refused, so that a refused message cannot appear later. A
//! failure after that write does not undo it: the batch is answered once the journal is replayed.
//! Until a write succeeds again, everything else is refused at once. All of that is in `thread`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::StoreError;
use crate::redb::Shared;
use crate::redb::batch::{Batch, Kind, Operation, own_failure};
use crate::redb::error::ReadError;
use crate::redb::tables::PROBE;
use pillarbox_runtime::sync::thread::{Builder, JoinHandle};
use pillarbox_runtime::tasks::Task;
use thread::Thread;

mod thread;

/// Largest number of operations that wait for the writer. Beyond it, callers wait to hand over
/// theirs.
const QUEUE_CAPACITY: usize = 4_096;

/// Answers all callers. A panic in one answer does not affect the others.
fn answer(
    operations: impl IntoIterator<Item = Box<dyn Operation>>,
    outcome: Result<(), StoreError>,
) {
    for operation in operations {
        if catch_unwind(AssertUnwindSafe(|| operation.answer(outcome))).is_err() {
            tracing::error!("an operation panicked when it learned the outcome of its commit");
        }
    }
}

/// Hands operations to the writer's thread.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    queue: mpsc::Sender<Box<dyn Operation>>,
}

impl Writer {
    /// Starts the thread. It ends when the last `Writer` is gone.
    pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<(Self, WriterThread)> {
        let (queue, operations) = mpsc::channel(QUEUE_CAPACITY);
        let thread = Builder::new().name("pillarbox-writer".to_owned()).spawn(
            // Without this thread nothing is accepted or recorded.
            Task::StoreWriter.thread(move || Thread::new(shared, operations).work()),
        )?;
        Ok((Self { queue }, WriterThread(Some(thread))))
    }

    /// Queues an operation. Returns it if the writer has ended.
    pub(super) async fn submit(&self, operation: Box<dyn Operation>) -> Result<(), StoreError> {
        self.queue.send(operation).await.map_err(|_| StoreError::Unavailable)
    }

    /// Ends once everything that was queued before is durable or refused.
    pub(super) async fn barrier(&self) -> Result<(), StoreError> {
        // It may not run: nothing is written for it.
        self.run_as(Kind::Barrier, 0, Some(Ok(())), |_: &mut Batch<'_>| Ok(())).await
    }

    /// Makes the writer write something, so that a file whose handle fails is opened again.
    pub(super) fn probe(&self) {
        let (reply, _) = oneshot::channel();
        let write = |batch: &mut Batch<'_>| {
            batch.tables.meta.open()?.insert(PROBE, 0)?;
            Ok(())
        };
        let kind = Kind::Outcome;
        let probe = Work { run: Some(write), done: None, kind, weight: 0, reply };
        // If the queue is full, enough will be written.
        let _ = self.queue.try_send(Box::new(probe));
    }

    /// Runs `work` in the shared transaction and returns its result once that is durable.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        weight: usize,
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_as(Kind::Write, weight, None, work).await
    }

    /// As [`Writer::run`], for an operation of another kind. `done` is its result if it does not
    /// run.
    pub(super) async fn run_as<T: Send + 'static>(
        &self,
        kind: Kind,
        weight: usize,
        done: Option<Result<T, StoreError>>,
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.submit(Box::new(Work { run: Some(work), done, kind, weight, reply })).await?;
        answer.await.map_err(|_| StoreError::Unavailable)?
    }
}

/// The writer's thread, joined when dropped.
#[derive(Debug)]
pub(super) struct WriterThread(Option<JoinHandle<()>>);

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

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { done, reply, .. } = *self;
        let answer = outcome.and_then(|()| done.unwrap_or(Err(StoreError::Unavailable)));
        // The caller may have disconnected; the change stands all the same.
        let _ = reply.send(answer);
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn kind(&self) -> Kind {
        self.kind
    }
}
