//! Connections to the server. They find the writable host, prepare statements once, and keep a
//! warning that a wait for the standby was cancelled. Each statement has a time limit: if no answer
//! comes in time, its connection is closed.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustls::RootCertStore;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::RwLock;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{
    AsyncMessage, Client, Config, Row, SimpleQueryMessage, SimpleQueryRow, Statement,
};

use crate::locks::{Mutex, locked};
use crate::postgres::error::QueryError;
use crate::postgres::silence::{Purpose, Silence};
use crate::postgres::tls::Tls;
use pillarbox_runtime::resolver::{Resolver, ResolverLimits};

/// Longest time until a new connection to one host is ready.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest time until one address of a host takes a new connection. The host may have another one.
const ADDRESS_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Longest time for which sent data may stay unacknowledged, and for which a silent peer is
/// trusted. Without these limits a connection to a host that vanished hangs for minutes.
const SILENCE: Duration = Duration::from_secs(5);
/// Resolution of the hosts' names. An answer that comes too late serves the next attempt to
/// connect. Earlier addresses are not used without an answer, because the name may belong to
/// another server now.
const NAMES: ResolverLimits = ResolverLimits {
    max_lookups: 16,
    patience: Duration::from_millis(2_500),
    kept: Duration::ZERO,
};
/// Time that other hosts have to answer once one has. One of them may have taken over from it.
const GRACE: Duration = Duration::from_millis(200);
/// The same for the first connection of a process: it has no server yet to compare with.
const FIRST_GRACE: Duration = Duration::from_secs(1);
/// Time between two lines of the log that say that a server was refused.
const WRONG_SERVER_INTERVAL: Duration = Duration::from_mins(1);
/// The name of a file of the write-ahead log begins with its timeline, in hexadecimal.
const SERVER: &str = "
SELECT system_identifier,
    ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
FROM pg_control_system()";
const BEAT: &str = "SELECT beat::bigint FROM node WHERE id = $1";
/// Settings of each connection. Plans that scan whole tables are always wrong here: statistics of
/// tables that grow by the hour are always behind. A wait for a lock ends before the connection is
/// given up. A statement that still runs then ends soon after.
const OPTIONS: &str = "-c TimeZone=UTC -c synchronous_commit=on -c statement_timeout=30s \
                       -c lock_timeout=8s -c client_connection_check_interval=2s \
                       -c idle_in_transaction_session_timeout=10s \
                       -c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off \
                       -c enable_hashjoin=off -c enable_mergejoin=off \
                       -c default_transaction_isolation=read\\ committed \
                       -c default_transaction_deferrable=off";

/// Server that the store is on.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct PostgresServer {
    /// Hosts with their ports. The writable one is found.
    pub hosts: Vec<(String, u16)>,
    pub database: String,
    pub user: String,
    pub password: Option<SecretString>,
    /// Certificates that the server's own is checked against. Without them, TLS is not used.
    pub authorities: Option<RootCertStore>,
    /// Number of connections by which the node accepts messages.
    pub accepting_connections: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ServerId {
    /// Number of the server's data, which its standbys have too.
    system: i64,
    /// Number of its timeline: each standby that takes over begins a new one.
    timeline: i64,
}

/// Server that a node stays with: the one of its last confirmed beat.
#[derive(Debug, Clone, Copy)]
struct Held {
    server: ServerId,
    /// The node, with its last beat that this server confirmed.
    beat: Option<(i32, i64)>,
}

impl Held {
    /// Returns the reason why a server must not be used, if there is one: it lacks a commit that
    /// the held one has confirmed. `beat` is the node's last beat there.
    fn objection(&self, server: ServerId, beat: Option<i64>) -> Option<&'static str> {
        let (before, now) = (self.server.timeline, server.timeline);
        if server.system != self.server.system {
            return Some(
                "it is not the database that this node uses; if you restored a database, restart \
                 the node to use it",
            );
        }
        let confirmed = self.beat.map(|(_, confirmed)| confirmed);
        let is_behind = now < before || (now == before && beat.is_some() && beat < confirmed);
        is_behind.then_some(
            "its data is older than that of the server that this node used last, so it may be an \
             old primary; stop it, or make it a standby",
        )
    }
}

pub(super) struct Connector {
    /// Settings of each host, with its name.
    configs: Vec<(String, Config)>,
    /// Not used if the settings disable it.
    tls: Tls,
    resolver: Resolver<()>,
    held: Mutex<Option<Held>>,
    /// Time of the last line that said that a server was refused.
    told_at: Mutex<Option<Instant>>,
    /// Tasks of the open connections.
    drivers: Mutex<Vec<AbortHandle>>,
    /// Purposes of connections by which no answer came in time.
    pub(super) silence: Silence,
}

impl Connector {
    pub(super) fn new(server: &PostgresServer) -> Arc<Self> {
        let mode = if server.authorities.is_some() { "require" } else { "disable" };
        let mut config: Config = format!("target_session_attrs=read-write sslmode={mode}")
            .parse()
            .expect("these are parameters of libpq");
        config
            .dbname(&server.database)
            .user(&server.user)
            .application_name("pillarbox")
            .options(OPTIONS)
            .connect_timeout(ADDRESS_TIMEOUT)
            .tcp_user_timeout(SILENCE)
            .keepalives_idle(SILENCE)
            .keepalives_interval(Duration::from_secs(1))
            .keepalives_retries(3);
        if let Some(password) = &server.password {
            config.password(password.expose_secret());
        }
        let configs = server.hosts.iter().map(|(host, port)| {
            let mut config = config.clone();
            config.host(host).port(*port);
            (host.clone(), config)
        });
        Arc::new(Self {
            configs: configs.collect(),
            tls: Tls::new(server.authorities.clone().unwrap_or_else(RootCertStore::empty)),
            resolver: Resolver::new(NAMES),
            held: Mutex::default(),
            told_at: Mutex::default(),
            drivers: Mutex::default(),
            silence: Silence::default(),
        })
    }

    /// Connects, to check the schema or to change it.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Connection, QueryError> {
        self.connect_for(Purpose::Schema).await
    }

    /// Connects to the host that takes writes, and is not behind the one that the node stays with.
    /// All hosts are asked at once: one that takes connections and does not answer must not delay
    /// the others. If several take writes, the one of the latest timeline is right.
    pub(super) async fn connect_for(
        self: &Arc<Self>,
        purpose: Purpose,
    ) -> Result<Connection, QueryError> {
        match self.connect_to_one(purpose).await {
            // Signs of life say whether the server answers at all.
            Err(QueryError::TimedOut(limit)) if purpose != Purpose::Lease => {
                self.silence.note(purpose);
                Err(QueryError::Silent { purpose: purpose.as_str(), limit })
            }
            connected => connected,
        }
    }

    async fn connect_to_one(self: &Arc<Self>, purpose: Purpose) -> Result<Connection, QueryError> {
        let held = *locked(&self.held);
        let mut attempts = JoinSet::new();
        for host in self.configs.iter().cloned() {
            attempts.spawn(Arc::clone(self).connect_to(host, purpose, held));
        }
        let grace = if held.is_some() { GRACE } else { FIRST_GRACE };
        let mut last_error = QueryError::NotMade;
        let mut best: Option<Connection> = None;
        let mut end: Option<Instant> = None;
        loop {
            let next = match end {
                None => attempts.join_next().await,
                Some(end) => timeout_at(end, attempts.join_next()).await.unwrap_or(None),
            };
            match next {
                None => break,
                Some(Ok(Ok(connection))) => {
                    end.get_or_insert_with(|| Instant::now() + grace);
                    let timeline = |one: &Connection| one.server.map(|server| server.timeline);
                    if best.as_ref().is_none_or(|best| timeline(best) < timeline(&connection)) {
                        best = Some(connection);
                    }
                }
                Some(Ok(Err(error))) => {
                    self.tell_of_wrong_server(&error);
                    last_error = error;
                }
                Some(Err(error)) => tracing::error!(%error, "an attempt to connect ended"),
            }
        }
        let connection = best.ok_or(last_error)?;
        if let Some(server) = connection.server {
            // Later connections do not have to compare the hosts. Another server may be held
            // meanwhile.
            let held = *locked(&self.held).get_or_insert(Held { server, beat: None });
            if let Some(reason) = held.objection(server, None) {
                return Err(QueryError::WrongServer(reason));
            }
        }
        let mut drivers = locked(&self.drivers);
        drivers.retain(|driver| !driver.is_finished());
        drivers.push(connection.driver.abort_handle());
        Ok(connection)
    }

    /// Notes that the server of a connection has confirmed a beat of a node. Connections to a
    /// server that is behind it are refused from now on.
    pub(super) fn hold(&self, connection: &Connection, node: i32, beat: i64) {
        let Some(server) = connection.server else { return };
        *locked(&self.held) = Some(Held { server, beat: Some((node, beat)) });
    }

    /// Logs that a server was refused, once a minute: another one may be right.
    fn tell_of_wrong_server(&self, error: &QueryError) {
        let QueryError::WrongServer(_) = error else { return };
        let mut told_at = locked(&self.told_at);
        if told_at.is_none_or(|at| at.elapsed() >= WRONG_SERVER_INTERVAL) {
            *told_at = Some(Instant::now());
            tracing::warn!(%error, "a PostgreSQL server accepts writes, but the node does not use it");
        }
    }

    /// Closes all other connections. Callers that wait for an answer by one of them get an error:
    /// their server may have stopped answering, and then they would get none.
    pub(super) fn close_others(&self, kept: &Connection) {
        let kept = kept.driver.id();
        for other in locked(&self.drivers).extract_if(.., |driver| driver.id() != kept) {
            other.abort();
        }
    }

    /// Connects to one host, if it takes writes and is not behind the server that the node stays with.
    async fn connect_to(
        self: Arc<Self>,
        (name, config): (String, Config),
        purpose: Purpose,
        held: Option<Held>,
    ) -> Result<Connection, QueryError> {
        // The library's own limit ends once the host has taken the connection.
        let connected = timeout(CONNECT_TIMEOUT, async {
            let config = self.with_addresses(config, &name).await?;
            Ok::<_, QueryError>(config.connect(self.tls.clone()).await?)
        });
        let (client, mut driver) =
            connected.await.map_err(|_| QueryError::TimedOut(CONNECT_TIMEOUT))??;
        let cancelled_waits = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&cancelled_waits);
        let driver = tokio::spawn(async move {
            while let Some(message) = poll_fn(|context| driver.poll_message(context)).await {
                match message {
                    // "canceling wait for synchronous replication": the commit is on this server, but
                    // may not be on the standby (PostgreSQL, syncrep.c).
                    Ok(AsyncMessage::Notice(notice)) if *notice.code() == SqlState::WARNING => {
                        tracing::warn!(message = notice.message(), "PostgreSQL sent a warning");
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a connection to PostgreSQL ended");
                        break;
                    }
                }
            }
        });
        let mut connection = Connection {
            client,
            statements: Mutex::default(),
            cancelled_waits,
            driver,
            connector: self,
            purpose,
            is_given_up: AtomicBool::new(false),
            server: None,
        };
        let looked = timeout(CONNECT_TIMEOUT, connection.look_at_server(held)).await;
        looked.map_err(|_| QueryError::TimedOut(CONNECT_TIMEOUT))??;
        Ok(connection)
    }

    /// Adds the addresses of the host's name. The library itself would resolve it on the threads that
    /// store reads run on.
    async fn with_addresses(&self, mut config: Config, name: &str) -> Result<Config, QueryError> {
        // A host may be the directory of a Unix socket too.
        if name.starts_with('/') || name.parse::<IpAddr>().is_ok() {
            return Ok(config);
        }
        let addresses = self.resolver.resolve((), name).await?;
        for (index, address) in addresses.iter().enumerate() {
            if index > 0 {
                // The library needs as many names as addresses.
                config.host(name);
            }
            config.hostaddr(address.ip());
        }
        Ok(config)
    }
}

/// Connection to the server. Requests that are made at one time are sent one behind the other, and
/// none waits for the answer of another.
pub(super) struct Connection {
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
    cancelled_waits: Arc<AtomicU64>,
    driver: JoinHandle<()>,
    purpose: Purpose,
    connector: Arc<Connector>,
    is_given_up: AtomicBool,
    /// `None` if the server does not give its identity.
    server: Option<ServerId>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Reads the identity of its server, and refuses one that is behind the held one.
    async fn look_at_server(&mut self, held: Option<Held>) -> Result<(), QueryError> {
        let row = match self.query_one(SERVER, &[]).await {
            Ok(row) => row,
            // A service that hides this from its users has one address and handles it itself.
            Err(error) if error.is_refusal() => return Ok(()),
            Err(error) => return Err(error),
        };
        let server = ServerId { system: row.get(0), timeline: row.get(1) };
        self.server = Some(server);
        let Some(held) = held else { return Ok(()) };
        let beat = match held.beat {
            Some((node, _)) if server == held.server => {
                self.query(BEAT, &[&node]).await?.first().map(|row| row.get(0))
            }
            _ => None,
        };
        held.objection(server, beat).map_or(Ok(()), |reason| Err(QueryError::WrongServer(reason)))
    }

    /// Returns true if no statement can be sent any more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire) || self.client.is_closed()
    }

    /// Number of warnings that have come. A commit between two equal counts is on the standby too.
    pub(super) fn warnings(&self) -> u64 {
        self.cancelled_waits.load(Ordering::SeqCst)
    }

    /// Closes the connection, because no answer came in time. All that wait for one get the error.
    pub(super) fn give_up(&self, limit: Duration) -> QueryError {
        let purpose = self.purpose.as_str();
        if !self.is_given_up.swap(true, Ordering::AcqRel) {
            tracing::warn!(purpose, ?limit, "PostgreSQL did not answer: its connection is closed");
            self.connector.silence.note(self.purpose);
        }
        self.driver.abort();
        QueryError::Silent { purpose, limit }
    }

    /// Waits for an answer, up to the limit of the connection's purpose.
    async fn answered<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, QueryError> {
        match timeout(limit, answer).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(self.give_up(limit)),
        }
    }

    /// Runs statements without parameters, such as `BEGIN`.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), QueryError> {
        self.answered(self.purpose.limit(), self.client.batch_execute(sql)).await
    }

    /// Runs statements without parameters in one request, as one transaction; returns the rows of
    /// all. The server needs no further request of this node to end it.
    pub(super) async fn script(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, QueryError> {
        let answers =
            self.answered(self.purpose.limit(), self.client.simple_query(sql)).await?.into_iter();
        let rows = answers.filter_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        Ok(rows.collect())
    }

    /// Prepares a statement, unless it is prepared already.
    pub(super) async fn prepare(&self, sql: &'static str) -> Result<Statement, QueryError> {
        let known = locked(&self.statements).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.answered(self.purpose.limit(), self.client.prepare(sql)).await?;
        locked(&self.statements).insert(sql, statement.clone());
        Ok(statement)
    }

    pub(super) async fn query(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, QueryError> {
        self.query_within(self.purpose.limit(), sql, parameters).await
    }

    pub(super) async fn query_within(
        &self,
        limit: Duration,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, QueryError> {
        let limit = limit.min(self.purpose.limit());
        let statement = self.prepare(sql).await?;
        self.answered(limit, self.client.query(&statement, parameters)).await
    }

    pub(super) async fn query_one(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, QueryError> {
        let statement = self.prepare(sql).await?;
        self.answered(self.purpose.limit(), self.client.query_one(&statement, parameters)).await
    }

    pub(super) async fn execute(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, QueryError> {
        let statement = self.prepare(sql).await?;
        self.answered(self.purpose.limit(), self.client.execute(&statement, parameters)).await
    }
}

/// Place of a connection that many callers use for reading. A lost connection is replaced.
pub(super) struct Slot {
    connector: Arc<Connector>,
    pub(super) purpose: Purpose,
    connection: RwLock<Option<Arc<Connection>>>,
}

impl Slot {
    pub(super) fn new(connector: &Arc<Connector>, purpose: Purpose) -> Self {
        Self { connector: Arc::clone(connector), purpose, connection: RwLock::default() }
    }

    /// Returns the connection within `limit`, because another caller may be making it.
    pub(super) async fn get_within(&self, limit: Duration) -> Result<Arc<Connection>, QueryError> {
        let silent = QueryError::Silent { purpose: self.purpose.as_str(), limit };
        timeout(limit, self.get()).await.unwrap_or(Err(silent))
    }

    /// Returns the connection, a new one if the last one is lost.
    pub(super) async fn get(&self) -> Result<Arc<Connection>, QueryError> {
        let open = |slot: &Option<Arc<Connection>>| {
            slot.as_ref().filter(|connection| !connection.is_closed()).cloned()
        };
        if let Some(connection) = open(&*self.connection.read().await) {
            return Ok(connection);
        }
        let mut slot = self.connection.write().await;
        // Another caller may have made it meanwhile.
        if let Some(connection) = open(&slot) {
            return Ok(connection);
        }
        let connection = self.connector.connect_for(self.purpose).await?;
        Ok(Arc::clone(slot.insert(Arc::new(connection))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_behind_the_held_one_or_another_is_refused() {
        let server = |system, timeline| ServerId { system, timeline };
        let held = Held { server: server(7, 3), beat: Some((1, 100)) };
        let is_refused = |server, beat| held.objection(server, beat).is_some();
        assert!(!is_refused(server(7, 3), Some(100)), "the same");
        assert!(!is_refused(server(7, 3), Some(101)));
        assert!(!is_refused(server(7, 3), None), "the node is gone there: others took it for dead");
        assert!(!is_refused(server(7, 4), Some(90)), "a standby took over, without the last beats");
        assert!(is_refused(server(7, 2), Some(100)), "an old primary");
        assert!(is_refused(server(7, 2), None));
        assert!(is_refused(server(7, 3), Some(99)), "an older copy of the same server");
        assert!(is_refused(server(8, 3), Some(100)) && is_refused(server(8, 9), None), "another");
        let first = Held { server: server(7, 3), beat: None };
        assert!(first.objection(server(7, 3), Some(1)).is_none());
    }
}
