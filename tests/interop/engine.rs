//! The engine on `PostgreSQL` under faults of its own and of single processes of the server.
//! `tests/with-postgres.sh` starts that.

use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pillarbox_simulator::{Fault, Faults, Options};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::kit::{self, PATIENCE, Server, Site, message};
use crate::nodes::{configuration, psql};

/// Time for which a node sends once it stops.
const DRAIN: Duration = Duration::from_secs(2);
/// Time beyond that until it has ended.
const END: Duration = Duration::from_secs(10);
/// Until it shows that something does not answer.
const SHOWN: Duration = Duration::from_secs(15);

/// A node on a database of its own.
async fn node(database: &str) -> (Site, Server) {
    psql("postgres", &format!("CREATE DATABASE {database}"));
    let sending = format!("[sending]\ndrain = \"{}s\"\n", DRAIN.as_secs());
    let configuration = configuration("a", database).replace("[sending]\n", &sending);
    let mut site = Site::empty(&configuration, Options::default()).await;
    let server = site.start();
    site.key = site.add_organisation("acme", "example.com");
    let server = Server { key: site.key.clone(), ..server };
    (site, server)
}

/// Ends a node in order, which has to be over in time; gives its exit code and what it logged.
async fn ended_in_time(server: Server) -> (Option<i32>, String) {
    server.signal("TERM");
    let began = Instant::now();
    let ended = tokio::task::spawn_blocking(move || server.process.wait_at_most(PATIENCE));
    let (code, log) = ended.await.unwrap();
    assert!(began.elapsed() < DRAIN + END, "it ended after {:?}: {log}", began.elapsed());
    (code, log)
}

/// A column gets a type that the node does not know, so that the task that reads it panics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_engine_panics_ends_with_70() {
    let (_site, server) = node("engine_panic").await;
    server.send(&message()).await;
    psql("engine_panic", "ALTER TABLE cluster ALTER directory_version TYPE integer");
    psql(
        "engine_panic",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    let ended = tokio::task::spawn_blocking(move || server.process.wait_at_most(PATIENCE));
    let (code, log) = ended.await.unwrap();
    assert_eq!(code, Some(70), "{log}");
    assert!(log.contains("other_nodes_changes"), "{log}");
}

/// Purposes of the server's processes, in the order in which a node connects.
const BACKENDS: [&str; 7] = [
    "acceptance",
    "acceptance",
    "outcomes",
    "administration and webhooks",
    "reads",
    "lists",
    "signs of life",
];

/// Processes of the server that stand still, until this is dropped.
struct Stopped(Vec<String>);

impl Stopped {
    fn now(processes: &[String]) -> Self {
        let stopped = Self(processes.to_vec());
        stopped.signal("-STOP");
        stopped
    }

    fn signal(&self, signal: &str) {
        // One may have ended.
        let _ = Command::new("kill").arg(signal).args(&self.0).output().unwrap();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

/// Processes of the server for a node's connections, in the order of [`BACKENDS`].
async fn backends(database: &str) -> Vec<String> {
    let port = std::env::var("TEST_POSTGRES_PORT").unwrap();
    let asked = "SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'pillarbox'
        ORDER BY backend_start";
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = Command::new("psql")
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                "pillarbox",
                "-qAt",
                database,
                "-c",
                asked,
            ])
            .output()
            .unwrap();
        let found: Vec<String> =
            String::from_utf8(answer.stdout).unwrap().lines().map(str::to_owned).collect();
        if found.len() == BACKENDS.len() {
            return found;
        }
        assert!(Instant::now() < end, "{found:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Posts until a message is accepted.
async fn accepted(server: &Server) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let (status, body) = kit::answer(server.post(&message()).send().await.unwrap()).await;
        match status.as_u16() {
            200 => return body["id"].as_str().unwrap().to_owned(),
            503 => assert!(Instant::now() < end, "nothing is accepted: {body}"),
            _ => panic!("{status}: {body}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Reads a record, as soon as the node answers.
async fn status(server: &Server, id: &str) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let (status, body) =
            kit::answer(server.get(&format!("/emails/{id}")).send().await.unwrap()).await;
        if status == 200 {
            return body["status"].as_str().unwrap().to_owned();
        }
        assert!(status == 503 && Instant::now() < end, "{status}: {body}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// One process of the server stands still. The node says so, and goes on; and it ends in time.
async fn goes_on_without(backend: usize) {
    let purpose = BACKENDS[backend];
    let database = format!("silent_{backend}");
    let (site, server) = node(&database).await;
    let first = server.send(&message()).await;
    server.wait_for(&first, "sent").await;
    let stopped = Stopped::now(&backends(&database).await[backend..=backend]);
    let began = Instant::now();

    // At once, so that something is asked of each.
    let readiness = async {
        loop {
            let (_, body) = kit::answer(server.operator("/readyz").await).await;
            let reasons = body["reasons"].as_array().unwrap();
            let silent = |one: &&Value| one["code"] == "database_silent";
            if let Some(told) = reasons.iter().find(silent) {
                break assert!(told["message"].as_str().unwrap().contains(purpose), "{told}");
            }
            assert!(began.elapsed() < SHOWN, "{purpose}: {body}");
            if purpose == "acceptance" {
                // The other connection that accepts may have taken both messages.
                let more = join_all([(); 4].map(|()| server.post(&message()).send()));
                let _ = timeout(Duration::from_millis(100), more).await;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let mail = async || {
        let id = accepted(&server).await;
        let end = Instant::now() + PATIENCE;
        while status(&server, &id).await != "sent" {
            assert!(Instant::now() < end, "{purpose}: it is not sent");
            sleep(Duration::from_millis(50)).await;
        }
        println!("{purpose}: sent after {:.1} s", began.elapsed().as_secs_f64());
    };
    let list = async {
        let end = Instant::now() + PATIENCE;
        while server.get("/emails").send().await.unwrap().status() != 200 {
            assert!(Instant::now() < end, "{purpose}: no list");
            sleep(Duration::from_millis(50)).await;
        }
    };
    let command = async {
        let added = site.command(&["key", "add", "--org", "acme", "--name", "second"]);
        let added = kit::Finished::run(added).await;
        assert_eq!(added.code, 0, "{purpose}: {added:?}");
    };
    // Two, because two connections accept.
    tokio::join!(readiness, mail(), mail(), list, command);

    // Also while it stands still.
    let (code, log) = ended_in_time(server).await;
    assert_eq!(code, Some(0), "{purpose}: {log}");
    drop(stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_while_a_process_for_acceptance_or_outcomes_stands_still() {
    for backend in 0..3 {
        goes_on_without(backend).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_while_a_process_for_administration_or_reads_stands_still() {
    for backend in 3..5 {
        goes_on_without(backend).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_while_a_process_for_lists_or_signs_of_life_stands_still() {
    for backend in 5..7 {
        goes_on_without(backend).await;
    }
}

/// A call is under way, another message waits, and the database answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_in_time_though_the_whole_database_stands_still() {
    let (site, server) = node("silent_stop").await;
    site.simulator.set_faults(Faults::always(Fault::Slow).with_slow_for(Duration::from_secs(5)));
    for _ in 0..3 {
        server.send(&message()).await;
    }
    let stopped = Stopped::now(&backends("silent_stop").await);
    let (_, log) = ended_in_time(server).await;
    assert!(log.contains("stopping"), "{log}");
    drop(stopped);
}

/// The process for outcomes stands still in the middle of a transaction, so that the server keeps
/// its locks from others. Nothing can be recorded; the node says so, ends in time if it has to, and
/// records the outcome once the process is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_waits_while_a_process_that_has_its_locks_stands_still() {
    const HELD: &str = "BEGIN; LOCK TABLE feed_counter; SELECT pg_sleep(3); COMMIT";
    let (_site, server) = node("silent_locks").await;
    let first = server.send(&message()).await;
    server.wait_for(&first, "sent").await;
    let backends = backends("silent_locks").await;
    let lock = tokio::task::spawn_blocking(|| psql("silent_locks", HELD));
    sleep(Duration::from_millis(500)).await;
    let id = server.send(&message()).await;
    // It has written the message's row by now, and waits for the lock.
    sleep(Duration::from_secs(1)).await;
    let stopped = Stopped::now(&backends[2..3]);
    let began = Instant::now();
    lock.await.unwrap();
    for (condition, limit) in [("database_silent", SHOWN), ("outcomes_unrecorded", PATIENCE)] {
        loop {
            let told = server.operator("/readyz").await.text().await.unwrap();
            if told.contains(condition) {
                break;
            }
            assert!(began.elapsed() < limit, "{condition}: {told}");
            sleep(Duration::from_millis(100)).await;
        }
    }
    assert_ne!(status(&server, &id).await, "sent");
    drop(stopped);
    server.wait_for(&id, "sent").await;

    // The same once more with the process in its place, and the node ends.
    let now = self::backends("silent_locks").await;
    let outcomes = now.into_iter().find(|process| !backends.contains(process)).unwrap();
    let lock = tokio::task::spawn_blocking(|| psql("silent_locks", HELD));
    sleep(Duration::from_millis(500)).await;
    server.send(&message()).await;
    sleep(Duration::from_secs(1)).await;
    let stopped = Stopped::now(&[outcomes]);
    lock.await.unwrap();
    ended_in_time(server).await;
    drop(stopped);
}
