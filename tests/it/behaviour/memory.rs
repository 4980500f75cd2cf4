//! Memory stays within its budget while the provider is down, and nothing accepted is lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, Faults, Options};
use serde_json::json;
use tokio::task::JoinSet;

use crate::kit::{Site, answer, message_with};

const MIB: usize = 1 << 20;
const CONNECTIONS: usize = 32;
/// The long form: half a million posts against 64 MiB.
const POSTS: usize = if cfg!(feature = "long") { 500_000 } else { 4_000 };
const BUDGET: usize = if cfg!(feature = "long") { 64 * MIB } else { 4 * MIB };

#[tokio::test(flavor = "multi_thread")]
async fn a_long_outage_fills_the_budget_and_no_more() {
    let more = format!(
        "max_request_bytes = 65536\n[sending]\nmax_pending_bytes = {BUDGET}\n\
         retry_initial = \"100ms\"\nretry_max = \"1s\"\n"
    );
    let site = Site::with(&more, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Down));
    let server = Arc::new(site.start());
    let body = message_with("text", json!("x".repeat(4_096)));
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let refused = Arc::new(AtomicUsize::new(0));
    let mut posts = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (server, body) = (Arc::clone(&server), body.clone());
        let (accepted, refused) = (Arc::clone(&accepted), Arc::clone(&refused));
        posts.spawn(async move {
            for _ in 0..POSTS / CONNECTIONS {
                let (status, body) = answer(server.post(&body).send().await.unwrap()).await;
                if status == 200 {
                    accepted.lock().unwrap().push(body["id"].as_str().unwrap().to_owned());
                } else {
                    assert_eq!(
                        (status.as_u16(), &body["error"]["code"]),
                        (503, &json!("QueueFull"))
                    );
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    let ceiling = BUDGET * 5 / 4 + 64 * MIB;
    let mut highest = 0;
    while posts.try_join_next().is_some() || !posts.is_empty() {
        highest = highest.max(server.process.resident_bytes());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!(
        "{} accepted, at most {} KiB resident",
        accepted.lock().unwrap().len(),
        highest / 1024
    );
    assert!(highest < ceiling, "{highest} of {ceiling} bytes");
    assert!(refused.load(Ordering::Relaxed) > 0, "the budget was never reached");
    // The account is paused, which is critical.
    let status = site.run(&["status"]);
    let status = String::from_utf8(status.stdout).unwrap();
    // One organisation alone gets half.
    assert!(status.contains("The queue is full for acme"), "{status}");

    site.simulator.set_faults(Faults::none());
    let accepted = accepted.lock().unwrap().clone();
    let end = Instant::now() + Duration::from_mins(2);
    for id in &accepted {
        loop {
            let record = server.record(id).await;
            match record["status"].as_str().unwrap() {
                "sent" => break,
                "queued" | "sending" => tokio::time::sleep(Duration::from_millis(20)).await,
                _ => panic!("{record}"),
            }
            assert!(Instant::now() < end, "{record}");
        }
    }
    assert_eq!(site.simulator.accepted_total(), accepted.len() as u64);
}
