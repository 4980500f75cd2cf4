//! Outcomes and reports: what gathers while one transaction is under way becomes the next one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::domain::id::MessageId;
use crate::domain::message::{Recorded, Transition};
use crate::domain::time::Timestamp;
use crate::store::postgres::calls;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::session::Session;
use crate::store::postgres::working_set::{Effects, MessageOf, Needs, WorkingSet};
use crate::store::postgres::{PostgresStore, Shared};
use crate::store::{Applied, Reference, Report, StoreError, transitions};

/// How many jobs may wait before callers wait to hand over theirs.
const QUEUE_CAPACITY: usize = 4_096;
/// The most messages of one transaction.
const MAX_MESSAGES: usize = 256;
/// How often a transaction is made again that was not made: a conflict, or a lost connection.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(5);

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

/// Result of a job, before it is durable.
enum Decided {
    Recorded(Result<Recorded, StoreError>),
    Applied(Result<Vec<Applied>, StoreError>),
}

/// Makes a queue of jobs.
pub(super) fn queue() -> (mpsc::Sender<Job>, mpsc::Receiver<Job>) {
    mpsc::channel(QUEUE_CAPACITY)
}

impl PostgresStore {
    pub(in crate::store) async fn record(
        &self,
        id: MessageId,
        attempts: u32,
        transition: Transition,
        now: Timestamp,
    ) -> Result<Recorded, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.hand_over(Job::Record { id, attempts, transition, now, reply }).await?;
        answer.await.map_err(|_| StoreError::Unavailable)?
    }

    pub(in crate::store) async fn apply(
        &self,
        report: Report,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        Ok(self.apply_all(vec![report], now).await?[0])
    }

    pub(in crate::store) async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.hand_over(Job::Apply { reports, now, reply }).await?;
        answer.await.map_err(|_| StoreError::Unavailable)?
    }

    async fn hand_over(&self, job: Job) -> Result<(), StoreError> {
        self.changing.send(job).await.map_err(|_| StoreError::Unavailable)
    }
}

impl Job {
    fn messages(&self) -> usize {
        match self {
            Self::Record { .. } => 1,
            Self::Apply { reports, .. } => reports.len(),
        }
    }

    fn need(&self, needs: &mut Needs, shared: &Shared) {
        match self {
            Self::Record { id, transition, .. } => {
                needs.messages.insert(*id);
                if let Transition::Sent { ses_message_id, .. } = transition {
                    needs.ses_ids.insert(ses_message_id.clone());
                }
            }
            Self::Apply { reports, .. } => {
                for report in reports {
                    needs.ses_ids.insert(report.ses_message_id.clone());
                    let message = match report.message {
                        Reference::Tag(id) => {
                            needs.messages.insert(id);
                            MessageOf::Id(id)
                        }
                        Reference::ProviderId => MessageOf::SesId(report.ses_message_id.clone()),
                    };
                    let named = report.organisation.as_deref();
                    let directory = shared.directory.load();
                    let named = named.and_then(|name| directory.named(name));
                    needs.organisations.extend(named.map(|organisation| organisation.id));
                    needs.events.extend(report.event.clone().map(|event| (message, event)));
                }
            }
        }
    }

    /// Decides. A panic is this job's own failure, after which the transaction cannot be made.
    fn decide(&self, rows: &mut WorkingSet) -> Result<Decided, QueryError> {
        catch_unwind(AssertUnwindSafe(|| self.apply(rows))).unwrap_or(Err(QueryError::Panicked))
    }

    fn apply(&self, rows: &mut WorkingSet) -> Result<Decided, QueryError> {
        match self {
            Self::Record { id, attempts, transition, now, .. } => {
                let transition = transition.clone();
                let recorded = transitions::record(rows, *id, *attempts, transition, *now);
                Ok(Decided::Recorded(own_failure(recorded, rows)?))
            }
            Self::Apply { reports, now, .. } => {
                let each = reports.iter().map(|report| transitions::apply(rows, report, *now));
                let applied = each.collect::<Result<Vec<_>, _>>();
                Ok(Decided::Applied(own_failure(applied, rows)?))
            }
        }
    }

    fn answer(self, decided: Result<Decided, StoreError>) {
        match (self, decided) {
            // Whoever asked may be gone; the change stands all the same.
            (Self::Record { reply, .. }, Ok(Decided::Recorded(recorded))) => {
                let _ = reply.send(recorded);
            }
            (Self::Apply { reply, .. }, Ok(Decided::Applied(applied))) => {
                let _ = reply.send(applied);
            }
            (Self::Record { reply, .. }, Err(error)) => {
                let _ = reply.send(Err(error));
            }
            (Self::Apply { reply, .. }, Err(error)) => {
                let _ = reply.send(Err(error));
            }
            (Self::Record { .. }, Ok(Decided::Applied(_)))
            | (Self::Apply { .. }, Ok(Decided::Recorded(_))) => {
                unreachable!("a job decides of its own kind")
            }
        }
    }
}

/// Tells a row that cannot be read, which is the job's own failure, from one of the server.
fn own_failure<T>(
    decided: Result<T, QueryError>,
    rows: &WorkingSet,
) -> Result<Result<T, StoreError>, QueryError> {
    use crate::store::transitions::Rows;
    match decided {
        Ok(decided) => Ok(Ok(decided)),
        Err(QueryError::Row(row)) => {
            rows.note_damage(row);
            Ok(Err(StoreError::Damaged))
        }
        Err(error) => Err(error),
    }
}

/// Writes what is queued, until nobody can queue any more, and tells the other nodes of calls.
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

/// Takes what is queued behind a job, as far as it fits into one transaction.
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

/// Writes a batch, and answers all; gives it back if a job panics.
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
            shared.metrics.committed(batch.len(), began.elapsed(), effects.increments);
            shared.suppress(&effects.suppressed);
            shared.feed.grow(&effects.feed_ends);
            for (job, decided) in batch.into_iter().zip(decided) {
                job.answer(Ok(decided));
            }
        }
        Err(QueryError::Panicked) => return Err(batch),
        Err(error) => {
            shared.metrics.commit_failed();
            shared.lost(&error);
            for job in batch {
                job.answer(Err(StoreError::Unavailable));
            }
        }
    }
    Ok(())
}

/// Writes a batch, again if its transaction was not made.
async fn write_again(
    shared: &Shared,
    session: &mut Session,
    batch: &[Job],
) -> Result<(Vec<Decided>, Effects), QueryError> {
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
) -> Result<(Vec<Decided>, Effects), QueryError> {
    let mut needs = Needs::default();
    for job in batch {
        job.need(&mut needs, shared);
    }
    let begun = session.begin().await?;
    let connection = session.connection();
    let mut rows = WorkingSet::read(connection, shared.directory.load(), &needs).await?;
    let decided: Vec<Decided> =
        batch.iter().map(|job| job.decide(&mut rows)).collect::<Result<_, _>>()?;
    let effects = rows.write(connection, shared).await?;
    session.commit(begun).await?;
    Ok((decided, effects))
}
