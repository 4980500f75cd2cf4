//! Several nodes on one database, as processes. `tests/with-postgres.sh` starts the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pillarbox::simulator::Options;

use crate::kit::{self, PATIENCE, Server, Site, message};

const MESSAGE_ID_TAG: &str = "pillarbox-message-id";

/// Two nodes on a database of their own, with one provider.
struct Nodes {
    sites: [Site; 2],
}

/// Configuration of a node.
fn configuration(name: &str, database: &str) -> String {
    let port = std::env::var("TEST_POSTGRES_PORT");
    let port = port.expect("run this with tests/with-postgres.sh");
    format!(
        "[store]\nengine = \"postgres\"\n[store.postgres]\nhosts = [\"127.0.0.1:{port}\"]\n\
         database = \"{database}\"\n[cluster]\nnode = \"{name}\"\ndead_after = \"2m\"\n\
         [sending]\nmax_rate = 1000\n"
    )
}

fn psql(database: &str, sql: &str) {
    let port = std::env::var("TEST_POSTGRES_PORT").unwrap();
    let run = std::process::Command::new("psql")
        .args(["-h", "127.0.0.1", "-p", &port, "-U", "pillarbox", "-q", database, "-c", sql])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
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
