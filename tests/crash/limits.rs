//! A limit against kill -9: never more than it says is accepted, and all of it.

use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::ROUNDS;
use crate::kit::{History, answer, http_client, message_with, number};
use crate::site::{faulty_site, listening, run, spawn};

/// Recipients by which the limit grows in each round.
const STEP: u64 = 60;
const CLIENTS: usize = 8;

/// Posts until the limit is reached or the process has ended.
async fn post(base: String, key: String, history: History) {
    let client = http_client();
    loop {
        let subject = format!("{:x}", fastrand::u64(..));
        let body = message_with("subject", subject.as_str().into()).to_string();
        let request = client.post(format!("{base}/emails")).bearer_auth(&key);
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
            200 => {}
            429 => return,
            _ => panic!("{status}: {text}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_whenever_the_process_is_killed() {
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let rounds = number("CRASH_ROUNDS").unwrap_or(ROUNDS);
    println!("SEED={seed} CRASH_ROUNDS={rounds}");
    let mut random = fastrand::Rng::with_seed(seed);
    let site = faulty_site(seed).await;
    let key = {
        let process = spawn(&site);
        listening(&process);
        site.add_organisation("acme", "example.com")
    };
    let history = History::begin("limit", run(), &site.simulator);
    let mut limit = 0;
    for round in 0..=rounds {
        let process = spawn(&site);
        let base = listening(&process);
        limit += STEP;
        history.write_limit(limit);
        site.done(&["org", "limit", "acme", "--per-month", &limit.to_string()]);
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(post(base.clone(), key.clone(), history.clone()));
        }
        if round < rounds {
            sleep(Duration::from_millis(random.u64(1..150))).await;
            let log = process.kill();
            history.write_kill();
            assert!(!log.contains("panicked"), "{log}");
            clients.join_all().await;
            continue;
        }
        // Undisturbed, it is used up exactly.
        clients.join_all().await;
        let request = http_client().get(format!("{base}/usage")).bearer_auth(&key);
        let (_, usage) = answer(request.send().await.unwrap()).await;
        assert_eq!(usage["month"]["used"], limit, "{usage}");
        let listed = listed(&base, &key).await;
        assert_eq!(listed, limit, "what is stored is what counts");
        let summary = history.finish(&base, &key, &site.simulator).await;
        println!("{summary:?}");
        // A killed process took some whose clients had no answer.
        let acknowledged = summary.messages as u64;
        assert!(acknowledged * 2 > limit, "{acknowledged} of {limit}");
    }
}

/// Counts the messages that are stored.
async fn listed(base: &str, key: &str) -> u64 {
    let (client, mut count, mut query) = (http_client(), 0, String::new());
    loop {
        let url = format!("{base}/emails?limit=100{query}");
        let (_, page): (_, Value) =
            answer(client.get(url).bearer_auth(key).send().await.unwrap()).await;
        count += page["emails"].as_array().unwrap().len() as u64;
        match page["next"].as_str() {
            Some(next) => query = format!("&before={next}"),
            None => return count,
        }
    }
}
