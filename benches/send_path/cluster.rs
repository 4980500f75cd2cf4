//! Acceptance by nodes on `PostgreSQL`, beside `pgbench` with the same inserts on the same server.
//! `POSTGRES_FSYNC=on tests/with-postgres.sh` starts the server.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use pillarbox_store::{ACCEPTING_CONNECTIONS, NodeIdentity, NodePlace, PostgresServer, Store};

use crate::process::{directory, set_up};
use crate::report::{Bound, Report, median};
use crate::scale::Scale;
use crate::writer::{accept_by, micros};

/// Numbers of nodes, and of the connections by which each accepts.
const NODES: [(usize, u8); 4] = [
    (1, 1),
    (1, ACCEPTING_CONNECTIONS),
    (2, ACCEPTING_CONNECTIONS),
    (1, 2 * ACCEPTING_CONNECTIONS),
];
/// Callers that wait for a node at one time.
const CALLERS: usize = 256;
/// Messages in one transaction of `pgbench`.
const BATCH: usize = 64;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
const DEAD_AFTER: Duration = Duration::from_mins(3);
/// Least share of what `pgbench` reaches.
const GOAL: f64 = 0.7;

/// Nodes beside `pgbench`, without a standby and with one.
pub(crate) fn cluster(scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let Ok(port) = std::env::var("TEST_POSTGRES_PORT") else {
        println!("cluster: not measured, because tests/with-postgres.sh started no server");
        return Ok(());
    };
    let server = Server { port: port.parse()? };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for with_standby in [false, true] {
        let directory = directory()?;
        let standby =
            with_standby.then(|| Standby::start(&server, directory.path())).transpose()?;
        for (nodes, accepting_connections) in NODES {
            let (mut rates, mut times, mut ceilings) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..scale.rounds {
                let database = server.make_database()?;
                let target = server.target(&database, accepting_connections);
                let (rate, p99) = runtime.block_on(accepts(&target, nodes, scale.load_time))?;
                rates.push(rate);
                times.push(p99);
                let connections = nodes * usize::from(accepting_connections);
                ceilings.push(server.pgbench(&database, connections, scale.load_time)?);
            }
            let (rate, ceiling) = (median(rates), median(ceilings));
            let p99 = median(times);
            let standby = if with_standby { "with a standby" } else { "without a standby" };
            let by = format!("by {accepting_connections} connections each");
            let what = format!("{nodes} nodes {by}, {standby} ÷ pgbench");
            report.goal(&what, Bound::AtLeast(GOAL), "", rate / ceiling);
            rows.push(json!({
                "nodes": nodes,
                "connections_of_each": accepting_connections,
                "standby": with_standby,
                "per_second": rate,
                "p99_ms": p99,
                "pgbench_per_second": ceiling,
                "share": rate / ceiling,
            }));
        }
        drop(standby);
    }
    report.figure("cluster", Value::from(rows));
    size(&server, &runtime, scale, report)
}

/// One node on many records, and half as many keys, beside an empty database.
fn size(
    server: &Server,
    runtime: &tokio::runtime::Runtime,
    scale: &Scale,
    report: &mut Report,
) -> anyhow::Result<()> {
    let full = server.make_database()?;
    // Makes the tables and a record to copy.
    let filled = server.target(&full, ACCEPTING_CONNECTIONS);
    runtime.block_on(accepts(&filled, 1, Duration::from_millis(100)))?;
    server.fill(&full, scale.records)?;
    let mut figures: [Vec<f64>; 4] = Default::default();
    for _ in 0..scale.rounds {
        let (rate, p99) = runtime.block_on(accepts(&filled, 1, scale.load_time))?;
        let empty = server.target(&server.make_database()?, ACCEPTING_CONNECTIONS);
        let (rate_empty, p99_empty) = runtime.block_on(accepts(&empty, 1, scale.load_time))?;
        for (all, one) in figures.iter_mut().zip([rate, p99, rate_empty, p99_empty]) {
            all.push(one);
        }
    }
    let [rate, p99, rate_empty, p99_empty] = figures.map(median);
    report.figure(
        "cluster_size",
        json!({
            "records": scale.records,
            "per_second": rate,
            "p99_ms": p99,
            "per_second_empty": rate_empty,
            "p99_ms_empty": p99_empty,
            "share": rate / rate_empty,
        }),
    );
    Ok(())
}

struct Server {
    port: u16,
}

impl Server {
    fn psql(&self, database: &str, sql: &str) -> anyhow::Result<String> {
        let run = Command::new("psql")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "pillarbox"])
            .args(["-q", "-A", "-t", database, "-c", sql])
            .output()?;
        ensure!(run.status.success(), "{run:?}");
        Ok(String::from_utf8(run.stdout)?.trim().to_owned())
    }

    /// A database of it, for nodes that accept by so many connections each.
    fn target(&self, database: &str, accepting_connections: u8) -> PostgresServer {
        PostgresServer {
            hosts: vec![("127.0.0.1".to_owned(), self.port)],
            database: database.to_owned(),
            user: "pillarbox".to_owned(),
            password: None,
            authorities: None,
            accepting_connections,
        }
    }

    fn make_database(&self) -> anyhow::Result<String> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let name = format!("bench_{}", MADE.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Adds records of 90 days, equal except for their ids, and the keys of half of them.
    fn fill(&self, database: &str, records: usize) -> anyhow::Result<()> {
        let id = "(lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - 7776000000 \
                  + n * 7776000000 / last), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid";
        self.psql(
            database,
            &format!(
                "WITH series AS (SELECT n, {records}::bigint AS last FROM generate_series(1, {records}) n) \
                 INSERT INTO message SELECT {id}, organisation, record FROM series, \
                 (SELECT organisation, record FROM message LIMIT 1) one"
            ),
        )?;
        self.psql(
            database,
            "INSERT INTO idempotency SELECT organisation, sha256(id::text::bytea), id, \
             (extract(epoch FROM now()) * 1000)::bigint FROM message \
             WHERE get_byte(uuid_send(id), 15) % 2 = 0",
        )?;
        self.psql(database, "VACUUM ANALYZE").map(|_| ())
    }

    /// Messages a second that `pgbench` inserts as acceptance does, with records as long.
    fn pgbench(&self, database: &str, connections: usize, time: Duration) -> anyhow::Result<f64> {
        let length = self.psql(database, "SELECT avg(length(record))::integer FROM message")?;
        self.psql(database, "CREATE SEQUENCE bench_id START 1")?;
        let directory = directory()?;
        let script = directory.path().join("insert.sql");
        // Ids grow, as ours do.
        let sql = format!(
            "WITH new AS MATERIALIZED (SELECT lpad(to_hex(nextval('bench_id')), 32, '0')::uuid AS id, \
             sha256(random()::text::bytea) AS key FROM generate_series(1, {BATCH})), \
             keyed AS (INSERT INTO idempotency SELECT 1, key, id, 0 FROM new ORDER BY key), \
             stored AS (INSERT INTO message SELECT id, 1, decode(repeat('ab', {length}), 'hex') FROM new) \
             INSERT INTO pending SELECT id, 1 FROM new;\n"
        );
        std::fs::write(&script, sql)?;
        let run = Command::new("pgbench")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "pillarbox", "-n"])
            .args(["-M", "prepared", "-c", &connections.to_string(), "-j", "2"])
            .args(["-T", &time.as_secs().max(1).to_string(), "-f"])
            .arg(&script)
            .arg(database)
            .output()
            .context("pgbench is in Debian's package postgresql-contrib or postgresql")?;
        ensure!(run.status.success(), "{run:?}");
        let said = String::from_utf8(run.stdout)?;
        let tps = said.lines().find_map(|line| line.strip_prefix("tps = "));
        let tps = tps.and_then(|rest| rest.split(' ').next()).context("pgbench tells its rate")?;
        #[expect(clippy::cast_precision_loss, reason = "it is small")]
        let batch = BATCH as f64;
        Ok(tps.parse::<f64>()? * batch)
    }
}

/// A synchronous standby, which keeps the log alone.
struct Standby {
    receiver: Child,
    server: Server,
}

impl Standby {
    fn start(server: &Server, directory: &Path) -> anyhow::Result<Self> {
        let server = Server { port: server.port };
        let connection = format!(
            "host=127.0.0.1 port={} user=pillarbox dbname=postgres application_name=bench",
            server.port
        );
        let receiver = Command::new("pg_receivewal")
            .args(["--synchronous", "--dbname", &connection, "--directory"])
            .arg(directory)
            .spawn()?;
        server.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'bench'")?;
        server.psql("postgres", "SELECT pg_reload_conf()")?;
        Ok(Self { receiver, server })
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let _ = self.server.psql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
        let _ = self.server.psql("postgres", "SELECT pg_reload_conf()");
        let _ = self.receiver.kill();
        let _ = self.receiver.wait();
    }
}

/// Messages a second that so many nodes accept, and the time of the slowest in a hundred in
/// milliseconds.
async fn accepts(
    server: &PostgresServer,
    nodes: usize,
    time: Duration,
) -> anyhow::Result<(f64, f64)> {
    let mut stores = Vec::new();
    for number in 0..nodes {
        let identity = NodeIdentity {
            name: format!("n{number}"),
            directory: [u8::try_from(number)?; 16],
            place: NodePlace::of(&tempfile::tempfile()?)?,
            dead_after: DEAD_AFTER,
            least_dead_after: Duration::ZERO,
        };
        let (store, _) =
            Store::connect(server, identity, ANSWER_TIMEOUT, |clock| clock.time).await?;
        stores.push(store);
    }
    let organisation = match stores[0].organisations().into_iter().next() {
        Some(first) => first,
        None => set_up(&stores[0]).await?,
    };
    // The others follow within half a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (rate, times) = accept_by(&stores, &organisation, nodes * CALLERS, time).await?;
    for store in stores {
        store.leave().await;
    }
    Ok((rate, micros(&times, 0.99) / 1e3))
}
