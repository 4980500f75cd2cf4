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
use crate::postgres::{PostgresStore, Shared};
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
pub(super) enum Job {
    Record {
        id: MessageId,
        attempts: u32,
        transition: Transition,
        now: Timestamp,
        reply: oneshot::Sender<Result<Recorded, StoreError>>,
    },
    Apply {
        reports: Vec<Report>,
        now: Timestamp,
        reply: oneshot::Sender<Result<Vec<Applied>, StoreError>>,
    },
}

enum Decided {
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
        self.hand_over(|reply| Job::Record { id, attempts, transition, now, reply }).await
    }

    pub(crate) async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        self.hand_over(|reply| Job::Apply { reports, now, reply }).await
    }

    async fn hand_over<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.changing.send(job(reply)).await.map_err(|_| StoreError::Unavailable)?;
        answer.await.map_err(|_| StoreError::Unavailable)?
    }
}

impl Job {
    fn messages(&self) -> usize {
        match self {
            Self::Record { .. } => 1,
            Self::Apply { reports, .. } => reports.len(),
        }
    }

    /// Registers the rows that it will need to be read.
    fn ask(&self, rows: &mut RowSet<'_>) {
        match self {
            Self::Record { id, transition, .. } => {
                rows.ask(Table::Messages, Key::from(*id));
                if let Transition::Sent { ses_message_id, .. } = transition {
                    ask_unmatched(rows, ses_message_id);
                }
            }
            Self::Apply { reports, .. } => {
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

    /// Decides the job. A panic fails only this job, after which the transaction cannot be made.
    fn decide(&self, rows: &mut RowSet<'_>) -> Result<Decision, QueryError> {
        catch_unwind(AssertUnwindSafe(|| self.follow(rows))).map_err(|_| QueryError::Panicked)
    }

    fn follow(&self, rows: &mut RowSet<'_>) -> Decision {
        match self {
            Self::Record { id, attempts, transition, now, .. } => {
                let transition = transition.clone();
                transitions::record(rows, *id, *attempts, transition, *now).map(Decided::Recorded)
            }
            Self::Apply { reports, now, .. } => {
                let (mut applied, mut unread) = (Vec::with_capacity(reports.len()), None);
                for report in reports {
                    match transitions::apply(rows, report, *now) {
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
        match self {
            Self::Record { reply, .. } => {
                let _ = reply.send(decided.map(|decided| match decided {
                    Decided::Recorded(recorded) => recorded,
                    Decided::Applied(_) => unreachable!("a job decides of its own kind"),
                }));
            }
            Self::Apply { reply, .. } => {
                let _ = reply.send(decided.map(|decided| match decided {
                    Decided::Applied(applied) => applied,
                    Decided::Recorded(_) => unreachable!("a job decides of its own kind"),
                }));
            }
        }
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
    match write_together(shared, session, batch).await {
        Ok(()) => {}
        Err(batch) => {
            for job in batch {
                if let Err(panicked) = write_together(shared, session, vec![job]).await {
                    for job in panicked {
                        tracing::error!("an outcome or an event cannot be written: it panics");
                        job.answer(Err(StoreError::Damaged));
                    }
                }
            }
        }
    }
}

/// Writes a batch, and answers all; returns it if a job panics.
async fn write_together(
    shared: &Shared,
    session: &mut Session,
    batch: Vec<Job>,
) -> Result<(), Vec<Job>> {
    for job in &batch {
        if let Job::Record { id, .. } = job {
            shared.calls.ended(*id);
        }
    }
    let began = Instant::now();
    match write_again(shared, session, &batch).await {
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

/// Writes a batch, and repeats it if its transaction failed.
async fn write_again(
    shared: &Shared,
    session: &mut Session,
    batch: &[Job],
) -> Result<(Vec<Result<Decided, StoreError>>, Effects), QueryError> {
    let mut attempt = 1;
    loop {
        match write(shared, session, batch).await {
            Err(error)
                if (attempt < ATTEMPTS
                    && (error.is_conflict() || matches!(error, QueryError::NotMade)))
                    || (attempt == 1 && error.is_lost_connection()) =>
            {
                attempt += 1;
                sleep(PAUSE).await;
            }
            done => return done,
        }
    }
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
    let begun = session.begin().await?;
    let connection = session.connection();
    let decided = rows.run(connection, |rows| {
        let decided = batch.iter().map(|job| job.decide(rows)).collect::<Result<Vec<_>, _>>()?;
        let is_unread = |decided: &Decision| matches!(decided, Err(Stop::Unread));
        Ok((!decided.iter().any(is_unread)).then_some(decided))
    });
    let decided = decided.await?;
    let effects = rows.write(connection).await?;
    session.commit(begun).await?;
    let decided = decided.into_iter().map(|decided| {
        decided.map_err(|stop| match stop {
            // A row that cannot be read fails only its job.
            Stop::Damaged(row) => shared.refused(row.into()),
            Stop::Unread | Stop::Failed => StoreError::Unavailable,
        })
    });
    Ok((decided.collect(), effects))
}
