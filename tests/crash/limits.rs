//! A limit against kill -9: never more than it says is accepted, and all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::kit::{http_client, message};
use crate::site::{faulty_site, listening, spawn};

const ROUNDS: u64 = if cfg!(feature = "long") { 200 } else { 8 };
/// Recipients by which the limit grows in each round.
const STEP: u64 = 60;
const CLIENTS: usize = 8;

/// Posts until the limit is reached or the process is gone; counts what is accepted.
async fn post(base: &str, key: &str, accepted: &AtomicU64) {
    let client = http_client();
    loop {
        let request = client.post(format!("{base}/emails")).bearer_auth(key);
        let request = request.header("content-type", "application/json");
        match request.body(message().to_string()).send().await {
            Ok(response) if response.status() == 200 => accepted.fetch_add(1, Ordering::SeqCst),
            Ok(response) if response.status() == 429 => return,
            Ok(response) => panic!("{response:?}"),
            Err(_) => return,
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_whenever_the_process_is_killed() {
    let seed = crate::number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    println!("SEED={seed}");
    let site = faulty_site(seed).await;
    let key = {
        let process = spawn(&site);
        listening(&process);
        site.add_organisation("acme", "example.com")
    };
    let accepted = Arc::new(AtomicU64::new(0));
    let mut limit = 0;
    for round in 0..=ROUNDS {
        let process = spawn(&site);
        let base = listening(&process);
        limit += STEP;
        site.done(&["org", "limit", "acme", "--per-month", &limit.to_string()]);
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (base, key, accepted) = (base.clone(), key.clone(), Arc::clone(&accepted));
            clients.spawn(async move { post(&base, &key, &accepted).await });
        }
        if round < ROUNDS {
            sleep(Duration::from_millis(random.u64(1..150))).await;
            let log = process.kill();
            assert!(!log.contains("panicked"), "{log}");
            clients.join_all().await;
            continue;
        }
        // Undisturbed, it is used up exactly.
        clients.join_all().await;
        let answer = http_client().get(format!("{base}/usage")).bearer_auth(&key).send();
        let usage: Value =
            serde_json::from_str(&answer.await.unwrap().text().await.unwrap()).unwrap();
        assert_eq!(usage["month"]["used"], limit, "{usage}");
        let listed = listed(&base, &key).await;
        assert_eq!(listed, limit, "what is stored is what counts");
        let answered = accepted.load(Ordering::SeqCst);
        // A killed process took some whose clients had no answer.
        assert!(answered <= limit && answered * 2 > limit, "{answered} of {limit}");
    }
}

/// Counts the messages that are stored.
async fn listed(base: &str, key: &str) -> u64 {
    let (client, mut count, mut query) = (http_client(), 0, String::new());
    loop {
        let url = format!("{base}/emails?limit=100{query}");
        let answer = client.get(url).bearer_auth(key).send().await.unwrap();
        let page: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        count += page["emails"].as_array().unwrap().len() as u64;
        match page["next"].as_str() {
            Some(next) => query = format!("&before={next}"),
            None => return count,
        }
    }
}
