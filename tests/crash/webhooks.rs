//! Deliveries and the feed against kill -9: every event of the feed reaches its endpoint, however
//! often the process dies and the endpoint refuses.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_judge::history::{Delivery, Entry, Event};
use serde_json::Value;
use tokio::time::sleep;

use crate::clients::Api;
use crate::kit::{History, PATIENCE, Receiver, Reply, http_client, number};
use crate::ledger::Ledger;
use crate::site::{faulty_site, listening, run, spawn};

const ROUNDS: u64 = if cfg!(feature = "long") { 50 } else { 4 };
/// One in so many answers of the endpoint is a failure.
const FAILING_ONE_IN: usize = 20;
const EVENTS_IN_A_PAGE: usize = 100;

/// The ids of all events that the feed has, in its order.
async fn feed(api: &Api) -> Vec<String> {
    let (client, mut ids, mut query) = (http_client(), Vec::new(), String::new());
    loop {
        let url = format!("{}/events?limit={EVENTS_IN_A_PAGE}{query}", api.base);
        let answer = client.get(url).bearer_auth(&api.key).send().await.unwrap();
        let page: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        let events = page["events"].as_array().unwrap();
        ids.extend(events.iter().map(|event| event["id"].as_str().unwrap().to_owned()));
        if events.is_empty() {
            return ids;
        }
        query = format!("&after={}", page["next"].as_str().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_delivery_is_lost_whenever_the_process_is_killed() {
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    println!("SEED={seed}");
    let site = faulty_site(seed).await;
    let history = History::begin(&format!("webhooks-{seed}"), run(), &site.simulator);
    let process = spawn(&site);
    listening(&process);
    let key = site.add_organisation("acme", "example.com");
    let receiver = Receiver::start(Reply::Status(200)).await;
    let output = site.done(&["webhook", "add", "--org", "acme", &receiver.url, "--json"]);
    let added: Value = serde_json::from_slice(&output.stdout).unwrap();
    let secret = added["secret"].as_str().unwrap();
    drop(process);

    let ledger = Arc::new(Mutex::new(Ledger::default()));
    for round in 0..ROUNDS {
        let process = spawn(&site);
        let api = Api::new(&process, key.clone(), history.clone());
        let failures = (0..200).map(|number| {
            let fails = number % FAILING_ONE_IN == FAILING_ONE_IN - 1;
            Reply::Status(if fails { 503 } else { 200 })
        });
        receiver.next(failures);
        let clients = api.load(round, seed, &ledger);
        sleep(Duration::from_millis(random.u64(100..1_200))).await;
        let log = process.kill();
        history.write_kill();
        assert!(!log.contains("panicked"), "{log}");
        clients.join_all().await;
    }
    let process = spawn(&site);
    let api = Api::new(&process, key, history.clone());
    let end = Instant::now() + PATIENCE;
    // Events of the provider still come in; then the feed stands still, and all of it is delivered.
    loop {
        let told: BTreeSet<_> = receiver.received().into_iter().map(|one| one.id).collect();
        let all = feed(&api).await;
        assert!(all.is_sorted(), "ids sort as the feed does");
        let counts = site.simulator.queue_counts();
        let is_quiet = counts.queued + counts.delayed + counts.in_flight == 0;
        let missing = all.iter().filter(|id| !told.contains(*id)).count();
        if is_quiet && missing == 0 && !all.is_empty() {
            assert!(told.len() <= all.len(), "only what is in the feed is told");
            println!(
                "{ROUNDS} kills, {} events, {} requests, of which {} repeats; lost: 0",
                all.len(),
                receiver.count(),
                receiver.count() - told.len()
            );
            break;
        }
        assert!(Instant::now() < end, "{missing} of {} events are not told: {counts:?}", all.len());
        sleep(Duration::from_millis(200)).await;
    }
    let received = receiver.received();
    assert!(received.iter().all(|one| one.is_signed_by(secret)));
    for one in received {
        let event = one.event();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        history.write(&Event::Webhook(Delivery {
            at: history.now(),
            organisation: "acme".to_owned(),
            receiver: "endpoint".to_owned(),
            entry: Entry {
                id: text(&event["id"]),
                kind: text(&event["type"]),
                message: text(&event["data"]["id"]),
            },
        }));
    }
    let ids: Vec<String> = ledger.lock().unwrap().ids.keys().cloned().collect();
    for id in ids {
        api.read(&id).await;
    }
    api.follow(&ledger).await;
    api.read_feed("reader").await;
    println!("{:?}", history.judge());
}
