//! Engine over `PostgreSQL`: any number of nodes work on one database.
//!
//! No type of the client library leaves it. Each file of this folder has one subject: its part of
//! [`PostgresStore`], and the statements behind that. The data that every request needs (the
//! directory, a filter of suppressions, the ends of feeds) is in memory, and follows the database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::cluster::DatabaseStatus;
use crate::{Health, InMemory, Joined, StoreError, StoreId, StoreOwner};
use accept::Request;
use calls::Calls;
use connection::{Connection, Connector, Slot};
use error::QueryError;
use feed::Feeds;
use node::Node;
use outcomes::Job;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::time::{ClockReading, Timestamp};
use pillarbox_runtime::tasks::Task;
use refusals::Refusals;
use requests::Requests;
use session::{Session, Sessions};
use silence::Purpose;
use tasks::Tasks;

pub use connection::PostgresServer;
pub use error::ConnectError;
pub(super) use import::Import;
pub use node::NodeIdentity;

mod accept;
mod call_slots;
mod calls;
mod cluster;
mod connection;
mod directory;
mod error;
mod feed;
mod import;
mod messages;
mod node;
mod outcomes;
mod peers;
mod purge;
mod refusals;
mod replays;
mod requests;
mod row_set;
mod rows;
mod schema;
mod session;
mod silence;
mod suppressions;
mod tables;
mod tasks;
#[cfg(test)]
mod tests;
mod tls;
mod usage;

/// Longest time for which a start waits for its part of the pace.
const FIRST_SHARE: Duration = Duration::from_secs(10);
/// Interval at which the node checks for changes of other nodes.
const FOLLOW: Duration = Duration::from_millis(250);
/// Interval at which the node checks for messages of dead nodes.
const SETTLE: Duration = Duration::from_secs(2);

/// The engine, connected. Cheap to clone; the node's tasks end when the last clone is gone.
#[derive(Clone)]
pub(super) struct PostgresStore {
    shared: Arc<Shared>,
    accepting: mpsc::Sender<Request>,
    changing: mpsc::Sender<Job>,
    replaying: mpsc::Sender<replays::Request>,
    /// For all other changes, one at a time.
    writer: Arc<Mutex<Session>>,
    tasks: Arc<Tasks>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore")
            .field("node", &self.shared.node.id())
            .finish_non_exhaustive()
    }
}

struct Shared {
    memory: InMemory,
    connector: Arc<Connector>,
    node: Node,
    /// The server's clock, as it was last read.
    clock: watch::Sender<ClockReading>,
    /// Longest time for which a client waits for its acceptance.
    answer_timeout: Duration,
    /// Number of connections by which messages are accepted.
    accepting_connections: usize,
    /// For reads of single rows.
    readers: Slot,
    /// For reads of many rows, so that single rows do not wait behind them.
    listers: Slot,
    /// Position up to which the filter has the additions of other nodes.
    suppressions_followed: AtomicI64,
    feed: Feeds,
    calls: Calls,
    sessions: Sessions,
    refusals: Refusals,
    requests: Requests,
    /// Largest known skew of an id ahead of its acceptance, in milliseconds.
    id_lead: AtomicI64,
    /// True if the last attempt to reach the server failed.
    is_lost: AtomicBool,
    /// First schema that may work on the database; nodes of earlier ones are known not to.
    kept_off_before: AtomicI32,
    /// The database's state at the last check.
    database: crate::locks::Mutex<DatabaseStatus>,
}

impl PostgresStore {
    /// Connects, makes the schema if there is none, and joins the other nodes. Takes over the
    /// messages of this node's life before that `bodies` has a body of, and fails those that dead
    /// nodes held.
    pub(crate) async fn connect(
        owner: StoreOwner,
        server: &PostgresServer,
        identity: NodeIdentity,
        answer_timeout: Duration,
        bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
        now: impl FnOnce(ClockReading) -> Timestamp,
    ) -> Result<(Self, Joined), ConnectError> {
        let connector = Connector::new(server);
        schema::prepare(&connector.connect().await?, owner).await?;
        let connection = connector.connect_for(Purpose::Start).await?;
        let dead = node::watch_namesake(&connection, &identity).await?;
        let database = cluster::database(&connection).await?;
        let reading = cluster::read_clock(&connection).await?;
        let now = now(reading);
        let database_id = connection.query_one(feed::ID, &[]).await?.get(0);
        let bodies = bodies(StoreId::of_node(database_id, &identity.name));
        let node = Node::new(identity);
        let kept = node::join(&node, &connection, dead, &bodies, now).await?;
        let shared = Arc::new(Shared {
            memory: InMemory::default(),
            node,
            clock: watch::Sender::new(reading),
            answer_timeout,
            accepting_connections: usize::from(server.accepting_connections),
            readers: Slot::new(&connector, Purpose::Reads),
            listers: Slot::new(&connector, Purpose::Lists),
            connector,
            suppressions_followed: AtomicI64::new(0),
            feed: Feeds::default(),
            calls: Calls::default(),
            sessions: Sessions::default(),
            refusals: Refusals::default(),
            requests: Requests::default(),
            id_lead: AtomicI64::new(0),
            is_lost: AtomicBool::new(false),
            kept_off_before: AtomicI32::new(0),
            database: crate::locks::Mutex::new(database),
        });
        shared.memory.restarts.note(now, kept.clone());
        shared.load(&connection).await?;
        drop(connection);
        let (accepting, requests) = mpsc::channel(accept::QUEUE_CAPACITY);
        let requests = Arc::new(Mutex::new(requests));
        let (changing, jobs) = mpsc::channel(outcomes::QUEUE_CAPACITY);
        let mut tasks = Tasks::default();
        let session = async |purpose| Session::connect(Arc::clone(&shared), purpose).await;
        for _ in 0..server.accepting_connections {
            let session = session(Purpose::Acceptance).await?;
            let accepting = accept::work(Arc::clone(&shared), session, Arc::clone(&requests));
            tasks.spawn(Task::Acceptance, accepting);
        }
        let recording = session(Purpose::Outcomes).await?;
        tasks.spawn(Task::Outcomes, outcomes::work(Arc::clone(&shared), recording, jobs));
        let writer = Arc::new(Mutex::new(session(Purpose::Administration).await?));
        let (replaying, questions) = mpsc::channel(replays::QUEUE_CAPACITY);
        let replays = replays::work(Arc::clone(&shared), Arc::clone(&writer), questions);
        tasks.spawn(Task::Replays, replays);
        feed::confirm(&shared, &writer).await?;
        let confirming = feed::confirm_others(Arc::clone(&shared), Arc::clone(&writer));
        tasks.spawn(Task::FeedConfirmation, confirming);
        shared.feed.follow(&*shared.readers.get().await?).await?;
        shared.listers.get().await?;
        tasks.spawn(Task::SignsOfLife, node::live(Arc::clone(&shared)));
        tasks.spawn(Task::OtherNodesChanges, follow(Arc::clone(&shared)));
        tasks.spawn(Task::DatabaseState, cluster::watch_database(Arc::clone(&shared)));
        // Without a part of the pace nothing can be sent. The others free one within a second.
        let mut share = shared.node.share();
        let _ = timeout(FIRST_SHARE, share.wait_for(|share| *share > 0.0)).await;
        let bodies_lost = node::recover_orphans(&shared, &changing, now).await?;
        tasks.spawn(Task::DeadNodesMessages, recover(Arc::clone(&shared), changing.clone()));
        let tasks = Arc::new(tasks);
        let joined = Joined { bodies_lost, kept };
        Ok((Self { shared, accepting, changing, replaying, writer, tasks }, joined))
    }

    pub(crate) fn memory(&self) -> &InMemory {
        &self.shared.memory
    }

    pub(crate) fn health(&self) -> Health {
        if self.tasks.ended().is_some() { Health::Refusing } else { self.shared.health() }
    }

    /// Waits until a task that the engine needs has ended, and returns it.
    pub(crate) async fn task_ended(&self) -> Task {
        self.tasks.one_ended().await
    }

    pub(crate) async fn reload_directory(&self) -> Result<(), StoreError> {
        self.shared.reload_directory().await.map_err(|error| self.shared.refused(error))
    }

    pub(crate) async fn answered(&self) {
        let _ = self.query("SELECT 1", &[]).await;
    }

    async fn query(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.query_by(&self.shared.readers, sql, parameters).await
    }

    async fn query_one(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, StoreError> {
        self.query(sql, parameters).await?.pop().ok_or(StoreError::Unavailable)
    }

    /// Asks, and once more if the connection was lost. A read of many rows without an answer is not
    /// repeated: it may only have been slow.
    async fn query_by(
        &self,
        slot: &Slot,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let limit = self.shared.answer_timeout;
        let ask = async || slot.get_within(limit).await?.query_within(limit, sql, parameters).await;
        let asked = match ask().await {
            Err(QueryError::Server(_)) => ask().await,
            Err(QueryError::Silent { .. }) if slot.purpose != Purpose::Lists => ask().await,
            asked => asked,
        };
        asked.map_err(|error| self.shared.refused(error))
    }
}

impl Shared {
    fn health(&self) -> Health {
        // Nothing can be accepted, or no outcome recorded, until the outcome of the last transaction
        // is known.
        let silence = &self.connector.silence;
        let is_in_doubt = silence.doubts(Purpose::Outcomes) > 0
            || silence.doubts(Purpose::Acceptance) >= self.accepting_connections;
        if self.node.is_live() && !self.is_lost.load(Ordering::Acquire) && !is_in_doubt {
            Health::Writable
        } else {
            Health::Refusing
        }
    }

    /// Notes that the server could not be reached, or that other nodes took this one for dead.
    fn lost(&self, error: &QueryError) {
        // Signs of life say whether the server answers at all.
        if matches!(
            error,
            QueryError::Row(_)
                | QueryError::NotMade
                | QueryError::Silent { .. }
                | QueryError::InDoubt
                | QueryError::Endless
        ) {
            return;
        }
        if error.is_refusal() {
            let code = error.code().map_or("", SqlState::code);
            if let Some(times) = self.refusals.note(code, Instant::now()) {
                tracing::error!(%error, times, "PostgreSQL refused a request");
            }
            return;
        }
        if matches!(error, QueryError::Fenced) {
            self.node.fence();
        }
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "PostgreSQL accepts no writes: new messages are refused");
        }
        self.memory.health_changed.notify_waiters();
    }

    fn reached(&self) {
        if self.is_lost.swap(false, Ordering::AcqRel) {
            tracing::info!("PostgreSQL accepts writes again");
        }
        self.memory.health_changed.notify_waiters();
    }

    /// Notes the reason why an operation failed, and returns the error for the caller.
    fn refused(&self, error: QueryError) -> StoreError {
        match error {
            QueryError::Row(row) => {
                self.memory.damage.note(row);
                StoreError::Damaged
            }
            QueryError::InDoubt => StoreError::OutcomeOpen,
            error => {
                self.lost(&error);
                StoreError::Unavailable
            }
        }
    }

    async fn load(&self, connection: &Connection) -> Result<(), QueryError> {
        self.memory.directory.read(connection).await?;
        self.memory.directory.read_uses(connection).await?;
        self.load_suppressions(connection).await?;
        self.feed.identify(connection).await?;
        self.feed.follow(connection).await?;
        self.load_lead(connection).await
    }

    async fn reload_directory(&self) -> Result<(), QueryError> {
        let read = async || self.memory.directory.read(&*self.readers.get().await?).await;
        match read().await {
            Err(error) if error.is_lost_connection() => read().await,
            read => read,
        }
    }
}

/// Follows the changes of other nodes.
async fn follow(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(FOLLOW);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.feed.now_confirmed.notified() => {}
        }
        let followed = async {
            let connection = shared.readers.get().await?;
            shared.memory.directory.follow(&connection).await?;
            shared.follow_suppressions(&connection).await?;
            shared.feed.follow(&connection).await?;
            shared.take_requests(&connection).await
        };
        if let Err(error) = followed.await {
            shared.lost(&error);
        }
    }
}

/// Fails the messages of nodes that died.
async fn recover(shared: Arc<Shared>, changing: mpsc::Sender<Job>) {
    loop {
        tokio::time::sleep(SETTLE).await;
        if let Err(error) = session::remove_unused(&shared).await {
            tracing::debug!(%error, "rows of lost connections could not be deleted; pillarbox tries again later");
        }
        let now = shared.clock.borrow().time;
        match node::recover_orphans(&shared, &changing, now).await {
            Ok(0) => {}
            Ok(messages) => {
                tracing::warn!(messages, "messages failed because their node ended");
            }
            Err(error) => tracing::debug!(%error, "messages of dead nodes stay pending"),
        }
    }
}

/// Hands a request over to its task, and waits for the answer.
async fn answer_to<R, T, E: From<StoreError>>(
    task: &mpsc::Sender<R>,
    request: impl FnOnce(oneshot::Sender<Result<T, E>>) -> R,
) -> Result<T, E> {
    let (reply, answer) = oneshot::channel();
    task.send(request(reply)).await.map_err(|_| StoreError::Unavailable)?;
    answer.await.map_err(|_| StoreError::Unavailable)?
}

fn number(organisation: OrganisationId) -> i32 {
    tables::integer(organisation.0)
}

fn uuid_of(id: MessageId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

fn message_id(uuid: Uuid) -> MessageId {
    MessageId::from_bytes(uuid.into_bytes())
}

fn millis(instant: Timestamp) -> i64 {
    tables::bigint(instant.unix_millis())
}

fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_unix_millis(millis.unsigned_abs())
}
