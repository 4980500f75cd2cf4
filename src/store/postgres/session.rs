//! Session: a connection that writes, with a row of its own on the server.
//!
//! Each transaction increments a count in that row, and fails if the row is gone. So a node whose
//! session was removed writes nothing any more. If the answer to a commit is lost, the count shows
//! if the transaction was made: the row is read and removed once no transaction of the old
//! connection holds it, and nothing older can follow.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, RwLock};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::locks::locked;
use crate::postgres::Shared;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::silence::Purpose;

/// Longest time until the server has begun a transaction. It waits for no lock.
const BEGIN_LIMIT: Duration = Duration::from_secs(5);
/// Longest time for which others may have a shared session, and for which the outcome of a
/// transaction there is searched for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two attempts to reach the server.
const RECONNECT: Duration = Duration::from_millis(200);
/// Time after which a doubt that cannot be resolved is logged once more.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

const OPEN: &str = "INSERT INTO session (node) SELECT id FROM node WHERE id = $1 RETURNING id";
const COUNT: &str = "UPDATE session SET writes = writes + 1 WHERE id = $1";
const LOCK: &str = "SELECT writes FROM session WHERE id = $1 FOR UPDATE";
const REMOVE: &str = "DELETE FROM session WHERE id = $1";
/// A row that a transaction of a lost connection still holds is left for the next time.
const REMOVE_UNUSED: &str = "
DELETE FROM session WHERE id IN (
    SELECT id FROM session WHERE node = $1 AND id < $2 AND id <> ALL($3) FOR UPDATE SKIP LOCKED
)";

/// Sessions of this node that are in use. Rows of others are left behind by lost connections.
#[derive(Default)]
pub(super) struct Sessions {
    used: crate::locks::Mutex<HashSet<i64>>,
    /// Held for reading while one is opened: its row is there before its number is known.
    opening: RwLock<()>,
}

/// Mark that a session is in use, or that the outcome of its last transaction is still needed.
struct Used {
    shared: Arc<Shared>,
    id: i64,
}

impl Used {
    fn new(shared: &Arc<Shared>, id: i64) -> Self {
        locked(&shared.sessions.used).insert(id);
        Self { shared: Arc::clone(shared), id }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        locked(&self.shared.sessions.used).remove(&self.id);
    }
}

/// Removes rows of sessions that are no longer in use.
pub(super) async fn remove_unused(shared: &Shared) -> Result<(), QueryError> {
    let used: Vec<i64> = match shared.sessions.opening.try_write() {
        Ok(_none_opens) => locked(&shared.sessions.used).iter().copied().collect(),
        Err(_) => return Ok(()),
    };
    // Later sessions have greater numbers: however late the server does this, it spares them.
    let Some(last) = used.iter().max() else { return Ok(()) };
    let connection = shared.readers.get().await?;
    connection.execute(REMOVE_UNUSED, &[&shared.node.id(), last, &used]).await?;
    Ok(())
}

/// Connection that writes. If it is lost, the next use opens it again.
pub(super) struct Session {
    shared: Arc<Shared>,
    purpose: Purpose,
    open: Option<OpenSession>,
}

struct OpenSession {
    connection: Connection,
    used: Used,
    /// Transactions that were committed.
    writes: i64,
    /// True if a transaction was begun and not ended.
    is_begun: bool,
    /// Warnings of the connection when the last transaction was begun.
    warnings: u64,
}

/// Result of a statement that is a transaction of its own.
pub(super) enum Ran {
    /// The transaction was made, and these rows are its answer.
    Answered(Vec<Row>),
    /// The transaction was made. Its answer was lost.
    Unanswered,
    /// The transaction found nothing to write.
    WroteNothing,
}

impl Session {
    /// Connects. A node opens the sessions that it needs at its start: later, clients may have used
    /// up the process's files, or other programs the server's connections.
    pub(super) async fn connect(shared: Arc<Shared>, purpose: Purpose) -> Result<Self, QueryError> {
        let open = Some(OpenSession::open(&shared, purpose).await?);
        Ok(Self { shared, purpose, open })
    }

    /// Runs one statement as a transaction. Its last parameter is the session's number. If the
    /// session's row is gone, it must write nothing. If it writes something, it must increment the
    /// row's count, and answer with the count in the first column of one row. In other rows that
    /// column is null.
    pub(super) async fn run(
        &mut self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Ran, QueryError> {
        // First, because an error while the statement is prepared leaves no doubt.
        self.ready().await?.connection.prepare(sql).await?;
        // Out of its place until the answer is known, as for a commit.
        let mut open = self.open.take().expect("it is ready");
        open.warnings = open.connection.warnings();
        let parameters = [parameters, &[&open.used.id]].concat();
        let asked = open.connection.query(sql, &parameters).await;
        match asked {
            Ok(rows) if open.connection.warnings() == open.warnings => {
                let writes = rows.iter().find_map(|row| row.get::<_, Option<i64>>(0));
                let writes = writes.ok_or(QueryError::Fenced)?;
                let before = std::mem::replace(&mut open.writes, writes);
                self.open = Some(open);
                Ok(if writes > before { Ran::Answered(rows) } else { Ran::WroteNothing })
            }
            // The server rolled it back.
            Err(error) if error.is_rolled_back() => {
                self.open = Some(open);
                Err(error)
            }
            answer => {
                self.resolve_doubt(open).await?;
                Ok(answer.map_or(Ran::Unanswered, Ran::Answered))
            }
        }
    }

    /// Begins a transaction. If it is not committed, the next use rolls it back.
    pub(super) async fn begin(&mut self) -> Result<(), QueryError> {
        match self.begin_once().await {
            Err(error) if error.is_lost_connection() => self.begin_once().await,
            begun => begun,
        }
    }

    async fn begin_once(&mut self) -> Result<(), QueryError> {
        let open = self.ready().await?;
        open.is_begun = true;
        let fence: [&(dyn ToSql + Sync); 1] = [&open.used.id];
        let begin = async {
            open.connection.prepare(COUNT).await?;
            let execute = open.connection.execute(COUNT, &fence);
            Ok::<_, QueryError>(tokio::join!(open.connection.batch("BEGIN"), execute))
        };
        let begun = timeout(BEGIN_LIMIT, begin).await;
        let begun = begun.unwrap_or_else(|_| Err(open.connection.give_up(BEGIN_LIMIT)));
        let (begun, counted) = begun?;
        begun?;
        if counted? == 0 {
            self.open = None;
            return Err(QueryError::Fenced);
        }
        open.warnings = open.connection.warnings();
        Ok(())
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.open.as_ref().expect("a transaction was begun").connection
    }

    /// Commits the transaction. If this returns, it is durable, also on the standby.
    ///
    /// The connection is out of its place until the answer is known. So if the caller gives up
    /// meanwhile, the connection is closed, and its count of transactions is not compared with a
    /// later one's.
    pub(super) async fn commit(&mut self) -> Result<(), QueryError> {
        let mut open = self.open.take().expect("a transaction was begun");
        let answer = open.connection.batch("COMMIT").await;
        match answer {
            Ok(()) if open.connection.warnings() == open.warnings => {
                open.is_begun = false;
                open.writes += 1;
                self.open = Some(open);
                Ok(())
            }
            // The server refused the commit itself: nothing was written.
            Err(error) if error.is_rolled_back() => {
                open.is_begun = false;
                self.open = Some(open);
                Err(error)
            }
            _ => self.resolve_doubt(open).await,
        }
    }

    /// Rolls back a transaction that was given up, if there is one.
    pub(super) async fn roll_back(&mut self) {
        let Some(open) = self.open.as_mut().filter(|open| open.is_begun) else { return };
        match open.connection.batch("ROLLBACK").await {
            Ok(()) => open.is_begun = false,
            Err(_) => self.open = None,
        }
    }

    /// Opens the session, or rolls back a transaction that was given up.
    async fn ready(&mut self) -> Result<&mut OpenSession, QueryError> {
        self.roll_back().await;
        if self.open.as_ref().is_none_or(|open| open.connection.is_closed()) {
            self.open = None;
            self.open = Some(OpenSession::open(&self.shared, self.purpose).await?);
        }
        Ok(self.open.as_mut().expect("it is open"))
    }

    /// Finds out the outcome of the last transaction, however long that takes. Only if several
    /// callers share the session, the others do not wait for it.
    async fn resolve_doubt(&mut self, old: OpenSession) -> Result<(), QueryError> {
        let (id, before) = (old.used.id, old.writes);
        // Closed first: nobody waits for the answer of a statement that is on its way. Its row
        // stays until it has been read.
        let _used = old.used;
        drop(old.connection);
        let mut seen = None;
        let began = Instant::now();
        let mut logged = began;
        let shared = Arc::clone(&self.shared);
        let mut in_doubt = None;
        loop {
            match self.look(id, &mut seen).await {
                Ok(()) => break,
                Err(QueryError::Fenced) => return Err(QueryError::Fenced),
                Err(error) => {
                    in_doubt.get_or_insert_with(|| shared.connector.silence.doubt(self.purpose));
                    self.shared.lost(&error);
                    if self.purpose == Purpose::Administration && began.elapsed() >= PATIENCE {
                        shared.connector.silence.note(self.purpose);
                        return Err(QueryError::InDoubt);
                    }
                    if logged.elapsed() >= LOG_INTERVAL {
                        tracing::warn!(%error, "the outcome of a transaction is still in doubt");
                        logged = Instant::now();
                    }
                }
            }
            sleep(RECONNECT).await;
        }
        match seen {
            Some(writes) if writes > before => Ok(()),
            Some(_) => Err(QueryError::NotMade),
            None => Err(QueryError::Fenced),
        }
    }

    /// Reads and removes the old session's row. `seen` is the count that was read; it is valid once
    /// the row is gone.
    async fn look(&mut self, id: i64, seen: &mut Option<i64>) -> Result<(), QueryError> {
        let new = OpenSession::open(&self.shared, self.purpose).await?;
        let connection = &new.connection;
        connection.batch("BEGIN").await?;
        if let Some(row) = connection.query(LOCK, &[&id]).await?.pop() {
            *seen = Some(row.get(0));
            connection.execute(REMOVE, &[&id]).await?;
        }
        let warnings = connection.warnings();
        connection.batch("COMMIT").await?;
        if connection.warnings() != warnings {
            return Err(QueryError::NotMade);
        }
        self.open = Some(new);
        Ok(())
    }
}

impl OpenSession {
    async fn open(shared: &Arc<Shared>, purpose: Purpose) -> Result<Self, QueryError> {
        let connection = shared.connector.connect_for(purpose).await?;
        connection.prepare(OPEN).await?;
        let _opening = shared.sessions.opening.read().await;
        let Some(row) = connection.query(OPEN, &[&shared.node.id()]).await?.pop() else {
            return Err(QueryError::Fenced);
        };
        // The wait for the standby was cancelled. This commit resolves a doubt, too.
        if connection.warnings() > 0 {
            return Err(QueryError::NotMade);
        }
        let used = Used::new(shared, row.get(0));
        Ok(Self { connection, used, writes: 0, is_begun: false, warnings: 0 })
    }
}

/// Transaction of a session that several callers share. If it is dropped, it is rolled back.
pub(super) struct Transaction {
    session: Option<OwnedMutexGuard<Session>>,
}

impl Transaction {
    pub(super) async fn begin(session: &Arc<Mutex<Session>>) -> Result<Self, QueryError> {
        let waited = timeout(PATIENCE, Arc::clone(session).lock_owned()).await;
        let mut session = waited.map_err(|_| QueryError::Silent {
            purpose: Purpose::Administration.as_str(),
            limit: PATIENCE,
        })?;
        if let Err(error) = session.begin().await {
            session.roll_back().await;
            return Err(error);
        }
        Ok(Self { session: Some(session) })
    }

    pub(super) fn connection(&self) -> &Connection {
        self.session.as_ref().expect("it is there until the commit").connection()
    }

    /// Commits the transaction, and returns its result.
    pub(super) async fn commit<T>(mut self, result: T) -> Result<T, QueryError> {
        let mut session = self.session.take().expect("it is there until the commit");
        session.commit().await?;
        Ok(result)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(mut session) = self.session.take() {
            // Its locks must not stay until the session is needed again.
            tokio::spawn(async move { session.roll_back().await });
        }
    }
}
