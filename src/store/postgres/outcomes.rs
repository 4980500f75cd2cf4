//! Outcomes and reports: the jobs that gather while one transaction is under way share the next
//! one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::postgres::calls;
use crate::postgres::error::QueryError;
use crate::postgres::row_set::{Effects, RowSet};
use crate::postgres::session::Session;
use crate::postgres::{PostgresStore, Shared, answer_to};
use crate::rows::{Key, KeyRange, Lock, Stop, Table};
use crate::{Applied, Reference, Report, StoreError, feed, transitions};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Recorded, Transition};
use pillarbox_domain::time::Timestamp;

/// Largest number of jobs that wait. Beyond it, callers wait to hand over theirs.
pub(super) const QUEUE_CAPACITY: usize = 4_096;
const MAX_MESSAGES: usize = 256;
/// Number of times that a failed transaction is repeated: after a conflict, or a lost connection.
pub(super) const ATTEMPTS: usize = 5;
/// Pause before a repetition.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// Outcome or reports to be written.
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) now: Timestamp,
    pub(super) reply: oneshot::Sender<Result<Decided, StoreError>>,
}

pub(super) enum Work {
    Record { id: MessageId, attempts: u32, transition: Transition },
    Apply(Vec<Report>),
}

/// Result of [`Work`], of its own kind.
pub(super) enum Decided {
    Recorded(Recorded),
    Applied(Vec<Applied>),
}

type Decision = Result<Decided, Stop>;

impl PostgresStore {
    pub(crate) async fn record(
        &self,
        id: MessageId,
        attempts: u32,
        transition: Transition,
        now: Timestamp,
    ) -> Result<Recorded, StoreError> {
        let work = Work::Record { id, attempts, transition };
        match answer_to(&self.changing, |reply| Job { work, now, reply }).await? {
            Decided::Recorded(recorded) => Ok(recorded),
            Decided::Applied(_) => unreachable!("a job decides of its own kind"),
        }
    }

    pub(crate) async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let work = Work::Apply(reports);
        match answer_to(&self.changing, |reply| Job { work, now, reply }).await? {
            Decided::Applied(applied) => Ok(applied),
            Decided::Recorded(_) => unreachable!("a job decides of its own kind"),
        }
    }
}

impl Job {
    fn messages(&self) -> usize {
        match &self.work {
            Work::Record { .. } => 1,
            Work::Apply(reports) => reports.len(),
        }
    }

    /// Registers the rows that it will need to be read.
    fn ask(&self, rows: &mut RowSet<'_>) {
        match &self.work {
            Work::Record { id, transition, .. } => {
                rows.ask(Table::Messages, Key::from(*id));
                if let Transition::Sent { ses_message_id, .. } = transition {
                    ask_unmatched(rows, ses_message_id);
                }
            }
            Work::Apply(reports) => {
                for report in reports {
                    ask_unmatched(rows, &report.ses_message_id);
                    match report.message {
                        Reference::Tag(id) => {
                            rows.ask(Table::Messages, Key::from(id));
                            if let Some(event) = &report.event {
                                let key = transitions::event_key(event);
                                rows.ask(Table::Events, feed::event_key(id, &key));
                            }
                        }
                        Reference::ProviderId => rows.ask_sent(&report.ses_message_id),
                    }
                }
            }
        }
    }

    fn decide(&self, rows: &mut RowSet<'_>) -> Decision {
        match &self.work {
            Work::Record { id, attempts, transition } => {
                let transition = transition.clone();
                transitions::record(rows, *id, *attempts, transition, self.now)
                    .map(Decided::Recorded)
            }
            Work::Apply(reports) => {
                let (mut applied, mut unread) = (Vec::with_capacity(reports.len()), None);
                for report in reports {
                    match transitions::apply(rows, report, self.now) {
                        Ok(one) => applied.push(one),
                        // The others run all the same, so that their rows are read in the same
                        // round.
                        Err(Stop::Unread) => unread = Some(Stop::Unread),
                        Err(stop) => return Err(stop),
                    }
                }
                unread.map_or(Ok(Decided::Applied(applied)), Err)
            }
        }
    }

    fn answer(self, decided: Result<Decided, StoreError>) {
        // The caller may have disconnected; the change stands all the same.
        let _ = self.reply.send(decided);
    }
}

fn ask_unmatched(rows: &mut RowSet<'_>, ses_message_id: &str) {
    let range = KeyRange::of(transitions::unmatched_of(ses_message_id));
    rows.ask_range(Table::UnmatchedEvents, range, usize::MAX);
}

/// Writes queued jobs, until nobody can queue any more, and reports calls to the other nodes.
pub(super) async fn work(shared: Arc<Shared>, mut session: Session, mut jobs: mpsc::Receiver<Job>) {
    let mut ticks = interval(calls::TELL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            first = jobs.recv() => {
                let Some(first) = first else { return };
                write_all(&shared, &mut session, gather(first, &mut jobs)).await;
            }
            _ = ticks.tick() => calls::tell(&shared, &mut session).await,
        }
    }
}

/// Takes the jobs that are queued behind a job, as many as fit into one transaction.
fn gather(first: Job, jobs: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let mut count = first.messages();
    let mut batch = vec![first];
    while count < MAX_MESSAGES {
        let Ok(job) = jobs.try_recv() else { break };
        count += job.messages();
        batch.push(job);
    }
    batch
}

/// Writes a batch, and answers all. If a job panics, each is written alone.
async fn write_all(shared: &Shared, session: &mut Session, batch: Vec<Job>) {
    let Err(batch) = write_together(shared, session, batch).await else { return };
    for job in batch {
        if let Err(panicked) = write_together(shared, session, vec![job]).await {
            for job in panicked {
                tracing::error!("a fault in pillarbox: writing an outcome or an event panicked");
                job.answer(Err(StoreError::Damaged));
            }
        }
    }
}

/// Writes a batch, again if its transaction failed, and answers all; returns it if a job panics.
async fn write_together(
    shared: &Shared,
    session: &mut Session,
    batch: Vec<Job>,
) -> Result<(), Vec<Job>> {
    for job in &batch {
        if let Work::Record { id, .. } = &job.work {
            shared.calls.ended(*id);
        }
    }
    let began = Instant::now();
    let mut attempt = 1;
    let written = loop {
        match write(shared, session, &batch).await {
            Err(error) if attempt < ATTEMPTS && error.may_be_repeated(attempt) => {
                attempt += 1;
                sleep(PAUSE).await;
            }
            written => break written,
        }
    };
    match written {
        Ok((decided, effects)) => {
            shared.memory.metrics.committed(batch.len(), began.elapsed(), effects.increments);
            if effects.is_suppressed {
                shared.memory.suppressed.grew();
            }
            shared.feed.grow(&effects.feed_ends);
            for (job, decided) in batch.into_iter().zip(decided) {
                job.answer(decided);
            }
        }
        Err(QueryError::Panicked) => return Err(batch),
        Err(error) => {
            shared.memory.metrics.commit_failed();
            shared.lost(&error);
            for job in batch {
                job.answer(Err(StoreError::Unavailable));
            }
        }
    }
    Ok(())
}

async fn write(
    shared: &Shared,
    session: &mut Session,
    batch: &[Job],
) -> Result<(Vec<Result<Decided, StoreError>>, Effects), QueryError> {
    let mut rows = RowSet::new(shared, Lock::Rows);
    for job in batch {
        job.ask(&mut rows);
    }
    session.begin().await?;
    let connection = session.connection();
    let decided = rows.run(connection, |rows| {
        // A panic fails only its job, after which the transaction cannot be made.
        let decide = |job: &Job| catch_unwind(AssertUnwindSafe(|| job.decide(rows)));
        let decided = batch.iter().map(decide).collect::<Result<Vec<_>, _>>();
        let decided = decided.map_err(|_| QueryError::Panicked)?;
        let is_unread = |decided: &Decision| matches!(decided, Err(Stop::Unread));
        Ok((!decided.iter().any(is_unread)).then_some(decided))
    });
    let decided = decided.await?;
    let effects = rows.write(connection).await?;
    session.commit().await?;
    let decided = decided.into_iter().map(|decided| {
        decided.map_err(|stop| match stop {
            // A row that cannot be read fails only its job.
            Stop::Damaged(row) => shared.refused(row.into()),
            Stop::Unread | Stop::Failed => StoreError::Unavailable,
        })
    });
    Ok((decided.collect(), effects))
}
