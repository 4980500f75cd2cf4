//! A limit of an organisation on two nodes that are killed: never more than it says is accepted, and
//! all of it.

use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::kit::{Server, answer, http_client, message};
use crate::nodes::Nodes;

const ROUNDS: u64 = if cfg!(feature = "long") { 200 } else { 4 };
/// Recipients by which the limit grows in each round.
const STEP: u64 = 150;
const CLIENTS_OF_A_NODE: usize = 6;
/// Time after which every node knows a new limit.
const KNOWN: Duration = Duration::from_secs(1);

/// Posts until the limit is reached or the node is gone.
async fn post(url: String, key: String) {
    let client = http_client();
    loop {
        let request =
            client.post(&url).bearer_auth(&key).header("content-type", "application/json");
        match request.body(message().to_string()).send().await {
            Ok(response) if response.status() == 200 || response.status() == 503 => {}
            Ok(response) if response.status() == 429 => return,
            Ok(response) => panic!("{response:?}"),
            Err(_) => return,
        }
    }
}

async fn listed(server: &Server) -> u64 {
    let (mut count, mut query) = (0, String::new());
    loop {
        let path = format!("/emails?limit=100{query}");
        let (_, page) = answer(server.get(&path).send().await.unwrap()).await;
        count += page["emails"].as_array().unwrap().len() as u64;
        match page["next"].as_str() {
            Some(next) => query = format!("&before={next}"),
            None => return count,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_on_two_nodes_that_are_killed() {
    let (nodes, first) = Nodes::new("limits").await;
    let mut servers = [first, nodes.start(1)];
    let mut limit = 0;
    for round in 0..=ROUNDS {
        limit += STEP;
        nodes.sites[0].done(&["org", "limit", "acme", "--per-month", &limit.to_string()]);
        sleep(KNOWN).await;
        let mut clients = JoinSet::new();
        for server in &servers {
            for _ in 0..CLIENTS_OF_A_NODE {
                clients.spawn(post(format!("{}/emails", server.base), server.key.clone()));
            }
        }
        if round == ROUNDS {
            clients.join_all().await;
            break;
        }
        sleep(Duration::from_millis(fastrand::u64(1..400))).await;
        let killed = usize::from(round % 2 == 0);
        servers[killed].signal("KILL");
        clients.join_all().await;
        servers[killed] = nodes.start(killed);
    }
    for server in &servers {
        let (_, usage) = answer(server.get("/usage").send().await.unwrap()).await;
        assert_eq!(usage["month"]["used"], limit, "{usage}");
        assert_eq!(usage["month"]["limit"], limit, "{usage}");
    }
    assert_eq!(listed(&servers[0]).await, limit, "what is stored is what counts");
    let month = nodes.sites[0].done(&["org", "usage", "--json"]);
    let month: Value = serde_json::from_slice(&month.stdout).unwrap();
    assert_eq!(month["organisations"][0]["recipients"], limit, "{month}");
}
