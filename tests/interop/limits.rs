//! A limit of an organisation on several nodes that are killed: never more than it says is accepted,
//! and all of it.

use std::array;
use std::time::Duration;

use pillarbox_judge::history::{Answers, OnUnknown, Refusal, Run};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::kit::{History, Server, answer, http_client, message_with, number};
use crate::nodes::Nodes;

const ROUNDS: u64 = if cfg!(feature = "long") { 200 } else { 4 };
/// Recipients by which the limit grows in each round.
const STEP: u64 = 150;
/// Clients of all nodes together.
const CLIENTS: usize = 12;
/// Time after which every node knows a new limit.
const KNOWN: Duration = Duration::from_secs(1);

/// Posts until the limit is reached or the node has ended.
async fn post(url: String, key: String, history: History) {
    let client = http_client();
    loop {
        let subject = format!("{:x}", fastrand::u64(..));
        let body = message_with("subject", subject.as_str().into()).to_string();
        let request = client.post(&url).bearer_auth(&key);
        let request = request.header("content-type", "application/json").body(body);
        let began = history.now();
        let answered = async {
            let response = request.send().await.ok()?;
            Some((response.status().as_u16(), response.text().await.ok()?))
        };
        let Some((status, text)) = answered.await else {
            return history.write_post(began, &subject, None);
        };
        let answer: Value = serde_json::from_str(&text).unwrap();
        history.write_post(began, &subject, Some((status, answer["id"].as_str())));
        match status {
            200 | 503 => {}
            429 => return,
            _ => panic!("{status}: {text}"),
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

async fn a_limit_holds_on_nodes_that_are_killed<const COUNT: usize>(database: &str) {
    let rounds = number("CRASH_ROUNDS").unwrap_or(ROUNDS);
    println!("CRASH_ROUNDS={rounds}");
    let (nodes, first) = Nodes::<COUNT>::of(database).await;
    let mut first = Some(first);
    let mut servers: [Server; COUNT] =
        array::from_fn(|number| first.take().unwrap_or_else(|| nodes.start(number)));
    let run = Run {
        on_unknown: OnUnknown::Retry,
        answers: Answers::Arrive,
        refusal: Refusal::MayBeOpen,
        suppression_delay: 1_000_000,
    };
    let simulator = &nodes.sites[0].simulator;
    let history = History::begin(database, run, simulator);
    let mut limit = 0;
    for round in 0..=rounds {
        limit += STEP;
        history.write_limit(limit);
        nodes.sites[0].done(&["org", "limit", "acme", "--per-month", &limit.to_string()]);
        sleep(KNOWN).await;
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let server = &servers[number % COUNT];
            let url = format!("{}/emails", server.base);
            clients.spawn(post(url, server.key.clone(), history.clone()));
        }
        if round == rounds {
            clients.join_all().await;
            break;
        }
        sleep(Duration::from_millis(fastrand::u64(1..400))).await;
        let killed = usize::try_from(round).unwrap() % COUNT;
        servers[killed].signal("KILL");
        history.write_kill();
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
    println!("{:?}", history.finish(&servers[0].base, &servers[0].key, simulator).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_on_two_nodes_that_are_killed() {
    a_limit_holds_on_nodes_that_are_killed::<2>("limits_of_two").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_on_five_nodes_that_are_killed() {
    a_limit_holds_on_nodes_that_are_killed::<5>("limits_of_five").await;
}
