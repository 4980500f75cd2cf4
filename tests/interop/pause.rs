//! Organisations that an operator pauses, on several nodes. `tests/with-postgres.sh` starts the server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kit::{PATIENCE, Server, Site, answer, message, refusal};
use crate::nodes::Nodes;

/// A call that began before a pause is at the provider by then.
const ON_ITS_WAY: Duration = Duration::from_millis(250);
/// So long without a call, nothing sends.
const QUIET: Duration = Duration::from_secs(2);

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    let output = site.done(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Two nodes that are ready to send.
async fn two(database: &str) -> (Nodes, [Server; 2]) {
    let (nodes, first) = Nodes::new(database).await;
    let servers = [first, nodes.start(1)];
    for server in &servers {
        server.ready().await;
    }
    (nodes, servers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_starts_a_call_for_a_paused_organisation() {
    let (nodes, servers) = two("pause_all").await;
    let [one, two] = &nodes.sites;
    one.simulator.set_latency(Duration::from_millis(20));
    let mut ids = Vec::new();
    for number in 0..200 {
        ids.push(servers[number % 2].send(&message()).await);
        if number == 100 {
            let paused = json_of(two, &["org", "pause", "acme"]);
            assert_eq!(paused.get("nodesWithoutAnswer"), None, "{paused}");
            sleep(ON_ITS_WAY).await;
        }
    }
    let calls = one.simulator.accepted_total();
    let paused = json_of(one, &["org", "pause", "acme"]);
    assert!(paused["messagesWaiting"].as_u64().unwrap() >= 99, "the sum of both: {paused}");
    assert!(paused["firstEnd"].is_string(), "{paused}");
    sleep(QUIET).await;
    assert_eq!(one.simulator.accepted_total(), calls);
    json_of(one, &["org", "pause", "acme", "--refuse"]);
    for server in &servers {
        let response = server.post(&message()).send().await.unwrap();
        assert_eq!(refusal(response).await, (503, "Paused".to_owned(), None));
    }
    json_of(two, &["org", "resume", "acme"]);
    for id in &ids {
        servers[0].wait_for(id, "sent").await;
    }
    assert_eq!(one.simulator.accepted_total(), 200, "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_follow_a_pause_is_named() {
    let (nodes, servers) = two("pause_silent").await;
    let one = &nodes.sites[0];
    servers[1].signal("STOP");
    let output = one.run(&["org", "pause", "acme", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("node b does not answer"), "{said}");
    let paused: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(paused["nodesWithoutAnswer"], json!(["b"]));
    let calls = one.simulator.accepted_total();
    let id = servers[0].send(&message()).await;
    servers[1].signal("CONT");
    // It follows by itself.
    let end = Instant::now() + PATIENCE;
    while !one.run(&["org", "pause", "acme"]).status.success() {
        assert!(Instant::now() < end, "it does not follow");
    }
    let other = servers[1].send(&message()).await;
    sleep(QUIET).await;
    assert_eq!(one.simulator.accepted_total(), calls);
    json_of(one, &["org", "resume", "acme"]);
    for id in [&id, &other] {
        servers[0].wait_for(id, "sent").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_cancels_by_any_node_and_learns_that_the_holder_is_silent() {
    let (nodes, servers) = two("cancel_own").await;
    let [one, _] = &nodes.sites;
    // Held, so that the test decides when a message ends.
    json_of(one, &["org", "pause", "acme"]);
    let ids = [servers[1].send(&message()).await, servers[1].send(&message()).await];
    let cancel = async |id: &str| {
        let request = servers[0].client.post(format!("{}/emails/{id}/cancel", servers[0].base));
        let request =
            request.bearer_auth(&servers[0].key).header("content-type", "application/json");
        request.body("{}").send().await.unwrap()
    };
    let (status, record) = answer(cancel(&ids[0]).await).await;
    assert_eq!(status, 200, "{record}");
    assert_eq!(
        (&record["status"], &record["error"]["code"]),
        (&json!("failed"), &json!("cancelled"))
    );
    servers[1].signal("STOP");
    let began = Instant::now();
    let response = cancel(&ids[1]).await;
    let took = began.elapsed();
    assert_eq!(response.headers()["retry-after"], "5");
    let (status, body) = answer(response).await;
    assert_eq!((status.as_u16(), &body["error"]["code"]), (503, &json!("StorageUnavailable")));
    let said = body["error"]["message"].as_str().unwrap();
    assert!(said.contains("the node that holds the message does not answer"), "{said}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    servers[1].signal("CONT");
    let end = Instant::now() + PATIENCE;
    while cancel(&ids[1]).await.status() != 200 {
        assert!(Instant::now() < end, "it does not answer");
    }
    assert_eq!(servers[1].record(&ids[1]).await["error"]["code"], "cancelled");
}
