//! Several nodes on one database, as processes. `tests/with-postgres.sh` starts the server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use pillarbox::simulator::{Fault, Faults, Options};
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use crate::Program;
use crate::kit::{self, PATIENCE, Server, Site, message};

const MESSAGE_ID_TAG: &str = "pillarbox-message-id";

/// Two nodes on a database of their own, with one provider.
struct Nodes {
    sites: [Site; 2],
}

/// Configuration of a node.
pub(crate) fn configuration(name: &str, database: &str) -> String {
    let port = std::env::var("TEST_POSTGRES_PORT");
    let port = port.expect("run this with tests/with-postgres.sh");
    format!(
        "[store]\nengine = \"postgres\"\n[store.postgres]\nhosts = [\"127.0.0.1:{port}\"]\n\
         database = \"{database}\"\n[cluster]\nnode = \"{name}\"\ndead_after = \"2m\"\n\
         [sending]\nmax_rate = 1000\n"
    )
}

/// Runs a statement as the superuser that the server was made with.
pub(crate) fn psql(database: &str, sql: &str) {
    let port = std::env::var("TEST_POSTGRES_PORT").unwrap();
    let run = std::process::Command::new("psql")
        .args(["-h", "127.0.0.1", "-p", &port, "-U", "pillarbox", "-q", database, "-c", sql])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
}

/// A standby that commits wait for. When it is dropped, they wait for none, as Patroni has it.
pub(crate) struct Standby {
    _receiver: Program,
    /// The server has one list of standbys, for all tests.
    _turn: MutexGuard<'static, ()>,
}

impl Standby {
    /// Starts one under this name, which keeps the server's log in a directory.
    pub(crate) async fn start(name: &str, directory: &Path) -> Self {
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let port = std::env::var("TEST_POSTGRES_PORT").unwrap();
        std::fs::create_dir(directory).unwrap();
        let server = format!(
            "host=127.0.0.1 port={port} user=pillarbox dbname=postgres application_name={name}"
        );
        let receiver = std::process::Command::new("pg_receivewal")
            .args(["--synchronous", "--dbname", &server, "--directory"])
            .arg(directory)
            .spawn();
        let receiver = Program(receiver.expect("pg_receivewal is beside psql"));
        psql("postgres", &format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"));
        psql("postgres", "SELECT pg_reload_conf()");
        Self { _receiver: receiver, _turn: turn }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        psql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
        psql("postgres", "SELECT pg_reload_conf()");
    }
}

impl Nodes {
    /// Two nodes, and the first of them as it runs.
    async fn new(database: &str) -> (Self, Server) {
        psql("postgres", &format!("CREATE DATABASE {database}"));
        let mut one = Site::empty(&configuration("a", database), Options::default()).await;
        let two = Site::empty("", Options::default()).await;
        let endpoint = format!("endpoint = \"{}\"\n", one.simulator.endpoint());
        two.configure(&configuration("b", database), &endpoint);
        let first = one.start();
        one.key = one.add_organisation("acme", "example.com");
        let key = one.key.clone();
        let nodes = Self { sites: [one, two] };
        let first = Server { key, ..first };
        (nodes, first)
    }

    fn start(&self, number: usize) -> Server {
        let server = self.sites[number].start();
        Server { key: self.sites[0].key.clone(), ..server }
    }
}

/// Posts with a key until it is answered by one of the nodes that are there.
async fn post(servers: &[Option<Server>; 2], first: usize, key: &str) -> Option<String> {
    let mut body = message();
    body["idempotencyKey"] = key.into();
    for number in [first, 1 - first] {
        let Some(server) = &servers[number] else { continue };
        let Ok(response) = server.post(&body).send().await else { continue };
        if response.status() == 200 {
            let (_, answer) = kit::answer(response).await;
            return Some(answer["id"].as_str().unwrap().to_owned());
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_share_keys_records_and_the_provider_and_outlive_each_others_deaths() {
    let rounds = if cfg!(feature = "long") { 40 } else { 4 };
    let (nodes, first) = Nodes::new("two_nodes").await;
    let mut servers = [Some(first), Some(nodes.start(1))];
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for round in 0..rounds {
        for number in 0..40 {
            let key = format!("key-{round}-{number}");
            // Each twice, and the second time by the other node.
            for first in [number % 2, 1 - number % 2] {
                let began = Instant::now();
                let id = loop {
                    if let Some(id) = post(&servers, first, &key).await {
                        break id;
                    }
                    assert!(began.elapsed() < PATIENCE, "nobody accepts it");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                };
                ids.entry(key.clone()).or_default().insert(id);
            }
            if number == 20 {
                servers[round % 2].take().unwrap().kill();
            }
        }
        servers[round % 2] = Some(nodes.start(round % 2));
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "one id for each key");
    let [Some(one), Some(two)] = servers else { panic!("both run") };
    let simulator = &nodes.sites[0].simulator;
    for id in ids.values().flatten() {
        // Read by the node that did not accept it, half of the time.
        let end = Instant::now() + PATIENCE;
        let status = loop {
            let (left, right) = (one.record(id).await, two.record(id).await);
            if left["status"] == right["status"]
                && left["status"] != "queued"
                && left["status"] != "sending"
            {
                break left;
            }
            assert!(Instant::now() < end, "{left} {right}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let sent = simulator.accepted_by_tag(MESSAGE_ID_TAG, id);
        match status["status"].as_str().unwrap() {
            "sent" => assert_eq!(sent, 1, "{status}"),
            // Its body went with its node. A call may have been under way.
            "failed" => {
                assert_eq!(status["error"]["code"], "body_lost_on_restart", "{status}");
                assert!(sent <= 1, "{status}");
            }
            _ => panic!("{status}"),
        }
    }
    assert!(simulator.repeated_tags(MESSAGE_ID_TAG).is_empty(), "nothing was sent twice");
    for server in [one, two] {
        let log = server.terminate().await;
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_listed_drained_and_forgotten() {
    let (nodes, first) = Nodes::new("node_commands").await;
    let second = nodes.start(1);
    let [one, two] = &nodes.sites;
    let list = |site: &Site| {
        let listed = site.done(&["node", "list", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed["nodes"].as_array().unwrap().clone()
    };
    let state = |site: &Site, name: &str| {
        let listed = list(site);
        let found = listed.iter().find(|node| node["name"] == name);
        found.map_or(Value::Null, |node| node["state"].clone())
    };
    let until = async |so: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < end, "{:?}", list(one));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    until(&|| list(one).len() == 2 && list(two).len() == 2).await;
    until(&|| list(one).iter().all(|node| node["share"] == 0.5)).await;
    let listed = list(two);
    assert_eq!((&listed[0]["name"], &listed[0]["answers"]), (&"a".into(), &false.into()));
    assert_eq!((&listed[1]["name"], &listed[1]["answers"]), (&"b".into(), &true.into()));
    let duties = listed.iter().filter(|node| node["duties"][0] == "webhooks").count();
    assert_eq!(duties, 1, "{listed:?}");

    // By a command on the other node. What it holds is sent, and readiness says why it takes no more.
    nodes.sites[0].simulator.set_faults(Faults::always(Fault::Down));
    let waiting = first.send(&message()).await;
    one.done(&["node", "drain", "b"]);
    until(&|| state(one, "b") == "draining" && state(two, "b") == "draining").await;
    let refused = second.post(&message()).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    let (_, answer) = kit::answer(refused).await;
    assert_eq!(answer["error"]["code"], "ShuttingDown", "{answer}");
    let status = two.done(&["status"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("drains this node"), "{status:?}");
    for _ in 0..5 {
        first.send(&message()).await;
    }
    until(&|| list(two)[0]["pendingMessages"] == 6).await;
    until(&|| list(two)[0]["conditions"].to_string().contains("unreachable")).await;
    one.done(&["node", "drain", "b", "--undo"]);
    until(&|| state(two, "b") == "working").await;
    second.send(&message()).await;

    // A node that lives is not forgotten; one that is gone is, and what it held has failed.
    let kept = two.run(&["node", "forget", "a"]);
    let said = String::from_utf8_lossy(&kept.stderr).into_owned();
    assert!(!kept.status.success() && said.contains("sign of life"), "{said}");
    first.kill();
    until(&|| state(two, "a") == "silent").await;
    let doctor = two.run(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("node a") && said.contains("node forget a"), "{said}");
    two.done(&["node", "forget", "a"]);
    until(&|| list(two).len() == 1).await;
    let end = Instant::now() + PATIENCE;
    loop {
        let record = second.record(&waiting).await;
        if record["status"] == "failed" {
            assert_eq!(record["error"]["code"], "body_lost_on_restart", "{record}");
            break;
        }
        assert!(Instant::now() < end, "{record}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (arguments, reason) in [
        (["node", "forget", "a"], "there is no node a"),
        (["node", "drain", "c"], "there is no node c"),
    ] {
        let refused = two.run(&arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(reason), "{said}");
    }
    one.simulator.set_faults(Faults::default());
    second.terminate().await;
    let offline = two.run(&["doctor"]);
    let said = String::from_utf8_lossy(&offline.stdout).into_owned();
    assert!(said.contains("PostgreSQL 1") && said.contains("schema 2"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_a_file_is_refused_with_what_to_do() {
    let (nodes, server) = Nodes::new("no_file").await;
    let backup = nodes.sites[0].run(&["backup", "copy.redb"]);
    let said = String::from_utf8_lossy(&backup.stderr).into_owned();
    assert!(!backup.status.success() && said.contains("pg_dump"), "{said}");
    // A second process of the same data directory must not take the first one's place.
    nodes.sites[1].reconfigure("node = \"b\"", "node = \"a\"");
    let taken = nodes.sites[1].command(&["serve"]).output().unwrap();
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(!taken.status.success() && said.contains("cluster"), "{said}");
    server.terminate().await;
    let offline = nodes.sites[0].run(&["org", "list"]);
    let said = String::from_utf8_lossy(&offline.stderr).into_owned();
    assert!(!offline.status.success() && said.contains("running node"), "{said}");
}
