//! The writer's thread: it gathers batches and commits them, and makes a checkpoint when one is
//! due. After a failure it opens the file again, and refuses all operations until a write succeeds.
//!
//! A panic fails the batch in which it happens, but does not end the thread.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::StoreError;
use crate::locks::write_lock;
use crate::organisations::read_index;
use crate::redb::batch::{Batch, Effects, Kind, Operation};
use crate::redb::data_file::FileLoss;
use crate::redb::database::Written;
use crate::redb::error::ReadError;
use crate::redb::usage;
use crate::redb::writer::answer;
use crate::redb::{OpenError, Shared, startup_recovery};
use crate::rows::KeyRange;
use pillarbox_runtime::sync::atomic::Ordering;
use pillarbox_runtime::sync::{Instant, thread};

/// Number of messages that share one commit. A new operation waits for at most as many before it.
/// One operation may have more.
const BATCH_MESSAGES: usize = 512;
/// Number of bytes of rows that share one commit.
const BATCH_BYTES: usize = 8 << 20;
/// Operations, bytes in the journal and time after which the data file is made durable. They limit
/// the records that a start after a crash replays. Few operations in tests, so that they meet
/// checkpoints.
const MAX_CHECKPOINT_OPERATIONS: usize = if cfg!(schedules) {
    3
} else if cfg!(test) {
    40
} else {
    4_000
};
const CHECKPOINT_BYTES: u64 = 8 << 20;
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(250);
/// Operations after which it is made durable already if checkpoints are quick. All writes wait for
/// a checkpoint, and for less time if it has less to do. The same number in tests, so that a clock
/// changes nothing.
const MIN_CHECKPOINT_OPERATIONS: usize = if cfg!(test) { 40 } else { 1_000 };
/// Checkpoints are quick if the last one took at most this part of the time since then. In a large
/// file they are not: each writes the state of the file's allocator.
const QUICK_CHECKPOINT_DIVISOR: u32 = 16;
/// Shortest and longest wait between attempts to write again after a failure.
const REOPEN_PAUSE_MIN: Duration = Duration::from_millis(50);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Shortest wait, as a multiple of the duration of the attempt before it.
const ATTEMPT_REST: u32 = 4;
/// Interval at which the log repeats one and the same failure.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

pub(super) struct Thread {
    shared: Arc<Shared>,
    operations: mpsc::Receiver<Box<dyn Operation>>,
    /// Operations since the last checkpoint.
    since_checkpoint: usize,
    /// Time of the next checkpoint; `None` if there is nothing to make durable.
    checkpoint_at: Option<Instant>,
    /// Time from which on few operations are enough for a checkpoint.
    early_checkpoint_at: Instant,
}

enum Step {
    Commit(Vec<Box<dyn Operation>>),
    Checkpoint,
    End,
}

impl Thread {
    pub(super) fn new(shared: Arc<Shared>, operations: mpsc::Receiver<Box<dyn Operation>>) -> Self {
        let early_checkpoint_at = Instant::now();
        Self { shared, operations, since_checkpoint: 0, checkpoint_at: None, early_checkpoint_at }
    }

    /// Works until the last writer's handle is gone.
    pub(super) fn work(mut self) {
        let mut done = Ok(());
        if !self.shared.database.is_started() {
            self.shared.memory.metrics.commit_failed();
            done = Err(Box::new(Attempt::of(Vec::new())));
        }
        loop {
            if let Err(failed) = done
                && self.reopen(*failed).is_break()
            {
                break;
            }
            done = match self.next_step() {
                Step::Commit(batch) => self.commit(batch),
                Step::Checkpoint => self.checkpoint(),
                Step::End => break,
            };
        }
        self.shared.database.close();
    }

    /// Waits for an operation, or until a checkpoint is due.
    fn next_step(&mut self) -> Step {
        // A file that another process wrote to takes no checkpoint any more.
        if self.is_much_written() && self.shared.look() != Some(FileLoss::WrittenOver) {
            return Step::Checkpoint;
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            let left = self.checkpoint_at.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Step::Checkpoint;
            }
            match (self.operations.poll_recv(&mut context), left) {
                (Poll::Ready(Some(first)), _) => return Step::Commit(self.gather(first)),
                (Poll::Ready(None), _) => return Step::End,
                (Poll::Pending, Some(left)) => thread::park_timeout(left),
                (Poll::Pending, None) => thread::park(),
            }
        }
    }

    /// Returns true if the writes since the last checkpoint make one due.
    fn is_much_written(&self) -> bool {
        self.since_checkpoint >= MAX_CHECKPOINT_OPERATIONS
            || self.shared.database.journal_bytes() >= CHECKPOINT_BYTES
            || (self.since_checkpoint >= MIN_CHECKPOINT_OPERATIONS
                && Instant::now() >= self.early_checkpoint_at)
    }

    /// Takes all other queued operations, within limits. If several come at once, the tasks that
    /// are about to hand over theirs get the processor first.
    fn gather(&mut self, first: Box<dyn Operation>) -> Vec<Box<dyn Operation>> {
        let (mut messages, mut bytes) = (first.messages(), first.weight());
        let mut batch = vec![first];
        let mut gathered = 1;
        while messages < BATCH_MESSAGES && bytes < BATCH_BYTES {
            if let Ok(operation) = self.operations.try_recv() {
                messages += operation.messages();
                bytes += operation.weight();
                batch.push(operation);
            } else if batch.len() > gathered {
                gathered = batch.len();
                thread::yield_now();
            } else {
                break;
            }
        }
        batch
    }

    fn checkpoint(&mut self) -> Result<(), Box<Attempt>> {
        let started = Instant::now();
        self.or_refuse("a checkpoint", || self.shared.database.checkpoint())?;
        let took = started.elapsed();
        self.shared.memory.metrics.checkpointed(took);
        self.early_checkpoint_at = Instant::now() + took * QUICK_CHECKPOINT_DIVISOR;
        (self.since_checkpoint, self.checkpoint_at) = (0, None);
        Ok(())
    }

    /// Runs work that no operation waits for. If that fails, writes are refused, and its changes
    /// come back from the journal.
    fn or_refuse(
        &self,
        what: &str,
        work: impl FnOnce() -> Result<(), ReadError>,
    ) -> Result<(), Box<Attempt>> {
        let nothing = Attempt::of(Vec::new());
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => {
                tracing::error!(%error, "{what} failed; writes are refused for now");
            }
            Err(_) => tracing::error!("{what} panicked; writes are refused for now"),
        }
        self.begin_refusing();
        Err(Box::new(nothing))
    }

    fn begin_refusing(&self) {
        self.shared.memory.metrics.commit_failed();
        self.shared.refusing.store(true, Ordering::Release);
        self.shared.memory.health_changed.notify_waiters();
    }

    fn commit(&mut self, mut operations: Vec<Box<dyn Operation>>) -> Result<(), Box<Attempt>> {
        if let Some(loss) = self.shared.look() {
            operations = refuse(operations, loss);
        }
        if operations.is_empty() {
            return Ok(());
        }
        let (mut batch, mut panicked) = (Attempt::of(operations), None);
        match catch_unwind(AssertUnwindSafe(|| self.run(&mut batch, &mut panicked))) {
            Ok(Ok(())) => {
                self.since_checkpoint += write_count(&batch.operations);
                if self.shared.database.journal_bytes() > 0 {
                    self.checkpoint_at.get_or_insert_with(|| batch.started + CHECKPOINT_INTERVAL);
                }
                self.finish(batch, Ok(()));
                let make = || self.shared.database.make_later_changes();
                return self.or_refuse("a change that follows a commit", make);
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "the store could not commit; writes are refused for now");
            }
            // The rows may be on disk or not, as after a failed write.
            Err(_) => tracing::error!("a commit panicked; writes are refused for now"),
        }
        self.begin_refusing();
        if let Some(guilty) = panicked {
            // It would panic again, so it must not be tried again.
            answer([batch.operations.remove(guilty)], Err(StoreError::Damaged));
        }
        Err(Box::new(batch))
    }

    fn run(&self, batch: &mut Attempt, panicked: &mut Option<usize>) -> Result<(), ReadError> {
        let Attempt { operations, written, .. } = batch;
        let database = &self.shared.database;
        let barriers = operations.len() - write_count(operations);
        if barriers == operations.len() {
            return database.publish();
        }
        database.write_batch(written, |tables| {
            let mut batch = Batch {
                tables,
                effects: Effects::default(),
                is_directory_changed: false,
                is_changed: false,
                failure: None,
                shared: &self.shared,
            };
            // An operation that panics fails its batch, as a failed write does, but not the writer.
            for (position, operation) in operations.iter_mut().enumerate() {
                let ran = catch_unwind(AssertUnwindSafe(|| operation.run(&mut batch)));
                ran.unwrap_or_else(|_| {
                    *panicked = Some(position);
                    Err(redb::CommitError::TransactionPoisoned.into())
                })?;
            }
            // Read before the commit, because nothing after it may fail.
            if batch.is_directory_changed {
                let index =
                    read_index(|table| batch.tables.of(table).range(&KeyRange::all(), usize::MAX));
                batch.effects.organisations = Some(index?);
            }
            usage::write(&mut batch.tables, &batch.effects.usage)?;
            Ok(batch.effects)
        })?;
        if barriers > 0 { database.publish() } else { Ok(()) }
    }

    /// Answers a batch with this outcome. If it is durable, first shows its changes to all readers,
    /// and the outcome is `Ok`.
    fn finish(&self, batch: Attempt, mut outcome: Result<(), StoreError>) {
        let Attempt { operations, written, started } = batch;
        if let Written::Durably(effects) = written {
            let memory = &self.shared.memory;
            memory.metrics.committed(operations.len(), started.elapsed(), effects.increments);
            if !effects.claimed.0.is_empty() {
                let mut index = write_lock(&self.shared.idempotency);
                for (hash, id) in effects.claimed.0 {
                    index.insert(hash, id);
                }
            }
            memory.usage.replace(effects.usage);
            self.shared.feed.grow(effects.fed);
            if effects.is_suppressed {
                memory.suppressed.grew();
            }
            if let Some(organisations) = effects.organisations {
                self.shared.set_organisations(organisations);
            }
            outcome = Ok(());
        }
        answer(operations, outcome);
    }

    /// Brings the file back to a state that takes writes. Meanwhile answers the batch that failed,
    /// as soon as it is known if it is on disk. Breaks if the last writer's handle is gone.
    fn reopen(&mut self, failed: Attempt) -> ControlFlow<()> {
        let database = &self.shared.database;
        let (mut pause, mut failed) = (REOPEN_PAUSE_MIN, Some(failed));
        // The last failure in the log, with its time.
        let mut logged: Option<(String, Instant)> = None;
        let is_open = loop {
            if self.shared.look() == Some(FileLoss::WrittenOver) {
                // Data in memory can still be read. The file takes no writes any more.
                if let Some(failed) = failed {
                    self.finish(failed, Err(StoreError::FileLost));
                }
                break false;
            }
            let attempt = Instant::now();
            // A panic is one more failed attempt: redb panics on pages that it cannot interpret.
            let opened = catch_unwind(AssertUnwindSafe(|| {
                if database.is_started() {
                    database.reopen()?;
                } else {
                    startup_recovery::start_writing(&self.shared)?;
                }
                Ok::<_, OpenError>(self.shared.reload_organisations()?)
            }));
            let is_open = matches!(opened, Ok(Ok(())));
            // Not before the file is open for reading: a caller may read as soon as it is answered.
            let is_known = |failed: &mut Attempt| match failed.written {
                Written::Durably(_) => is_open || database.is_readable(),
                Written::Perhaps => is_open || !database.is_doubt_on_disk(),
                Written::Not => true,
            };
            if let Some(failed) = failed.take_if(is_known) {
                self.finish(failed, Err(StoreError::Unavailable));
            }
            match opened {
                Ok(Ok(())) => break true,
                Ok(Err(error)) => {
                    let failure = error.to_string();
                    if logged
                        .as_ref()
                        .is_none_or(|(last, at)| *last != failure || at.elapsed() >= LOG_INTERVAL)
                    {
                        tracing::warn!(%error, "the store does not accept writes yet");
                        logged = Some((failure, Instant::now()));
                    }
                }
                Err(_) => tracing::error!("the attempt to open the store again panicked"),
            }
            // Readers wait for an attempt, so a long one is not repeated at once.
            let rest = pause.max(attempt.elapsed() * ATTEMPT_REST);
            if refuse_until(&mut self.operations, Instant::now() + rest).is_break() {
                answer(
                    failed.map_or_else(Vec::new, |failed| failed.operations),
                    Err(StoreError::Unavailable),
                );
                return ControlFlow::Break(());
            }
            pause = (pause * 2).min(REOPEN_PAUSE_MAX);
        };
        // The records of the journal are in redb's file.
        (self.since_checkpoint, self.checkpoint_at) = (0, None);
        // The batch may have suppressed an address, and be durable in spite of the error.
        self.shared.memory.suppressed.grew();
        self.shared.refusing.store(false, Ordering::Release);
        self.shared.memory.health_changed.notify_waiters();
        if is_open {
            tracing::info!("the store accepts writes again");
        }
        ControlFlow::Continue(())
    }
}

fn write_count(operations: &[Box<dyn Operation>]) -> usize {
    operations.iter().filter(|operation| operation.kind() != Kind::Barrier).count()
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Refuses operations that must not be written while the file is not in its place; returns the
/// rest.
fn refuse(operations: Vec<Box<dyn Operation>>, loss: FileLoss) -> Vec<Box<dyn Operation>> {
    let (rest, refused): (_, Vec<_>) =
        operations.into_iter().partition(|operation| match operation.kind() {
            Kind::Write => false,
            Kind::Outcome => loss != FileLoss::WrittenOver,
            Kind::Barrier => true,
        });
    answer(refused, Err(StoreError::FileLost));
    rest
}

/// A batch, and the result of the attempt to write it.
struct Attempt {
    operations: Vec<Box<dyn Operation>>,
    written: Written<Effects>,
    started: Instant,
}

impl Attempt {
    fn of(operations: Vec<Box<dyn Operation>>) -> Self {
        Self { operations, written: Written::Not, started: Instant::now() }
    }
}

/// Refuses all operations until `end`: none of them was in a transaction.
fn refuse_until(
    operations: &mut mpsc::Receiver<Box<dyn Operation>>,
    end: Instant,
) -> ControlFlow<()> {
    while Instant::now() < end {
        match operations.try_recv() {
            Ok(operation) => answer([operation], Err(StoreError::Unavailable)),
            Err(mpsc::error::TryRecvError::Empty) => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(mpsc::error::TryRecvError::Disconnected) => return ControlFlow::Break(()),
        }
    }
    ControlFlow::Continue(())
}
