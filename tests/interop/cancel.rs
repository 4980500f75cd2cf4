//! Commands that stop messages, on several nodes. `tests/with-postgres.sh` starts the server.

use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, Faults};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kit::{PATIENCE, Server, Site, message};
use crate::nodes::Nodes;

/// So long after the first refusal the provider is not called: no message has a call under way.
const WITHOUT_CALLS: Duration = Duration::from_secs(20);

/// Two nodes that both hold messages which the provider does not accept.
async fn holding(database: &str) -> (Nodes, [Server; 2], [Vec<String>; 2]) {
    let (nodes, first) = Nodes::new(database).await;
    drop(first);
    let servers = [0, 1].map(|number| {
        let without_calls = format!("[sending]\nretry_initial = \"{WITHOUT_CALLS:?}\"\n");
        nodes.sites[number].reconfigure("[sending]\n", &without_calls);
        nodes.start(number)
    });
    nodes.sites[0].simulator.set_faults(Faults::always(Fault::SendingPaused));
    let mut ids = [Vec::new(), Vec::new()];
    for (server, ids) in servers.iter().zip(&mut ids) {
        ids.push(server.send(&message()).await);
        let end = Instant::now() + PATIENCE;
        while server.record(&ids[0]).await["error"]["code"] != "sending_paused" {
            assert!(Instant::now() < end, "it is not paused");
            sleep(Duration::from_millis(20)).await;
        }
        for _ in 0..2 {
            ids.push(server.send(&message()).await);
        }
    }
    (nodes, servers, ids)
}

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    let output = site.done(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn all_are(server: &Server, ids: &[Vec<String>], code: &str) {
    for id in ids.iter().flatten() {
        let record = server.record(id).await;
        assert_eq!((&record["status"], &record["error"]["code"]), (&json!("failed"), &json!(code)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_cancelled_on_all_nodes() {
    let (nodes, servers, ids) = holding("cancel_all").await;
    let [one, two] = &nodes.sites;
    // By ids, from the node that holds the first of them.
    let named =
        ["message", "cancel", &ids[0][0], &ids[1][0], "019a5b7c-0000-7000-8000-000000000000"];
    let cancelled = json_of(one, &named);
    assert_eq!(cancelled, json!({"cancelled": 2, "callsUnderWay": 0, "notPending": 1}));
    let by_organisation = ["message", "cancel", "--org", "acme"];
    let cancelled = json_of(two, &by_organisation);
    assert_eq!(cancelled, json!({"cancelled": 4, "callsUnderWay": 0, "notPending": 0}));
    for server in &servers {
        all_are(server, &ids, "cancelled").await;
    }
    let cancelled = json_of(one, &by_organisation);
    assert_eq!(cancelled, json!({"cancelled": 0, "callsUnderWay": 0, "notPending": 0}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_domain_and_a_removed_organisation_stop_messages_on_all_nodes() {
    let (nodes, servers, ids) = holding("remove_all").await;
    let [one, two] = &nodes.sites;
    let removed = json_of(one, &["domain", "remove", "--org", "acme", "example.com"]);
    assert_eq!(removed["messagesFailed"], 6, "{removed}");
    all_are(&servers[0], &ids, "domain_unverified").await;
    one.done(&["domain", "add", "--org", "acme", "example.com", "--assume-verified"]);
    let mut again = [Vec::new(), Vec::new()];
    for (server, ids) in servers.iter().zip(&mut again) {
        let end = Instant::now() + PATIENCE;
        while ids.is_empty() {
            let answer = server.post(&message()).send().await.unwrap();
            if answer.status() == 200 {
                let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
                ids.push(answer["id"].as_str().unwrap().to_owned());
            }
            assert!(Instant::now() < end, "the domain does not come back");
            sleep(Duration::from_millis(50)).await;
        }
    }
    let removed = json_of(two, &["org", "remove", "acme"]);
    assert_eq!(removed["messagesCancelled"], 2, "{removed}");
    for id in again.iter().flatten() {
        let shown = json_of(one, &["message", "show", id]);
        assert_eq!(shown["error"]["code"], "cancelled", "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_answer_is_named() {
    let (nodes, servers, ids) = holding("cancel_silent").await;
    let one = &nodes.sites[0];
    servers[1].signal("STOP");
    let began = Instant::now();
    let output = one.run(&["message", "cancel", "--org", "acme", "--json"]);
    let took = began.elapsed();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("node b does not answer"), "{said}");
    let cancelled: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&cancelled["cancelled"], &cancelled["nodesWithoutAnswer"]),
        (&json!(3), &json!(["b"]))
    );
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(9), "{took:?}");
    all_are(&servers[0], &ids[..1], "cancelled").await;
    let output = one.run(&["org", "remove", "acme"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("node b does not answer"), "{said}");
    let organisations = json_of(one, &["org", "list"]);
    assert_eq!(organisations, json!({"organisations": []}), "it is removed all the same");
    // The messages that it held end when their attempt is due.
    servers[1].signal("CONT");
    let end = Instant::now() + WITHOUT_CALLS + PATIENCE;
    loop {
        let shown = json_of(one, &["message", "show", &ids[1][0]]);
        if shown["status"] == "failed" {
            assert_eq!(shown["error"]["code"], "cancelled", "{shown}");
            break;
        }
        assert!(Instant::now() < end, "{shown}");
        sleep(Duration::from_millis(100)).await;
    }
}
