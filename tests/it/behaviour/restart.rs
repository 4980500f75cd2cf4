//! Ends of the process, in order and not: every message is accounted for.

use std::time::Duration;

use pillarbox_ses::send::MESSAGE_ID_TAG;
use pillarbox_simulator::Options;
use serde_json::json;

use crate::kit::{PATIENCE, Site, answer, look, message, message_with, refusal};

#[tokio::test]
async fn a_crash_before_sending_fails_the_message_and_keeps_its_key() {
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let site = Site::with("", slow).await;
    let server = site.start();
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(server.send(&message_with("idempotencyKey", json!(n.to_string()))).await);
    }
    server.kill();
    let server = site.start();
    let told = look(&site, &server).await;
    assert!(told.contains("The process ended before it sent 20 messages"), "{told}");
    for (n, id) in ids.iter().enumerate() {
        let record = server.record(id).await;
        assert_eq!(record["status"], "failed");
        assert_eq!(record["error"]["code"], "body_lost_on_restart");
        let replay = server.post(&message_with("idempotencyKey", json!(n.to_string())));
        let replay = replay.send().await.unwrap();
        assert_eq!(replay.headers()["idempotent-replayed"], "true");
        assert_eq!(answer(replay).await.1["id"], json!(id));
    }
}

#[tokio::test]
async fn an_orderly_end_sends_what_is_pending() {
    let slow = Options { latency: Duration::from_millis(300), ..Options::default() };
    let site = Site::with("", slow).await;
    let server = site.start();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(server.send(&message()).await);
    }
    let log = server.terminate().await;
    assert_eq!(site.simulator.accepted_total(), 5, "{log}");
    let server = site.start();
    for id in ids {
        assert_eq!(server.record(&id).await["status"], "sent");
    }
}

#[tokio::test]
async fn the_end_of_the_drain_fails_what_is_left() {
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let site = Site::with("[sending]\ndrain = \"500ms\"", slow).await;
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    server.terminate().await;
    let server = site.start();
    let record = server.record(&id).await;
    assert_eq!(record["error"]["code"], "body_lost_on_restart");
    assert_eq!(record["attempts"], 1);
}

#[tokio::test]
async fn a_draining_service_refuses_new_messages_and_answers_reads_and_replays() {
    let slow = Options { latency: Duration::from_secs(3), ..Options::default() };
    let site = Site::with("", slow).await;
    let server = site.start();
    let keyed = message_with("idempotencyKey", json!("k"));
    let id = server.send(&keyed).await;
    let (post, replay) = (server.post(&message()), server.post(&keyed));
    let read = server.get(&format!("/emails/{id}"));
    let ended = tokio::spawn(server.terminate());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let response = post.send().await.unwrap();
    assert_eq!(response.headers()["connection"], "close");
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(refusal(response).await, (503, "ShuttingDown".to_owned(), None));
    assert_eq!(answer(replay.send().await.unwrap()).await.1["id"], json!(id));
    assert_eq!(answer(read.send().await.unwrap()).await.1["id"], json!(id));
    ended.await.unwrap();
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let site = Site::with("", slow).await;
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    server.signal("TERM");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let started = std::time::Instant::now();
    server.signal("INT");
    server.process.wait();
    assert!(started.elapsed() < Duration::from_secs(5));
    let record = site.start().record(&id).await;
    assert_eq!(record["error"]["code"], "body_lost_on_restart");
}

#[tokio::test]
async fn a_hangup_reads_the_configuration_again_and_keeps_the_old_one_where_it_is_wrong() {
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let more = "max_request_bytes = 1024\n[sending]\nmax_pending_bytes = 4096";
    let site = Site::with(more, slow).await;
    let server = site.start();
    let refused = loop {
        let response = server.post(&message()).send().await.unwrap();
        if response.status() != 200 {
            break refusal(response).await.1;
        }
    };
    assert_eq!(refused, "QueueFull");
    site.reconfigure("max_pending_bytes = 4096", "max_pending_bytes = -1");
    server.signal("HUP");
    until(|| server.log().contains("the old one stays in use")).await;
    assert_eq!(server.post(&message()).send().await.unwrap().status(), 503);
    site.reconfigure("max_pending_bytes = -1", "max_pending_bytes = 1000000");
    site.reconfigure("max_request_bytes = 1024", "max_request_bytes = 8192");
    server.signal("HUP");
    until(|| server.log().contains("was read again")).await;
    server.send(&message()).await;
    assert!(server.log().contains("max_request_bytes"), "what needs a restart is named");
}

async fn until(mut reached: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !reached() {
        assert!(std::time::Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_while_the_service_stops_is_sent_as_well() {
    let site = Site::new().await;
    let mut accepted = Vec::new();
    for _ in 0..6 {
        let server = site.start();
        let mut posts = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let post = server.post(&message());
            posts.spawn(async move {
                let mut ids = Vec::new();
                // Until the first refusal, or until nothing listens any more.
                while let Ok(response) = post.try_clone().unwrap().send().await {
                    if response.status() != 200 {
                        break;
                    }
                    ids.push(answer(response).await.1["id"].as_str().unwrap().to_owned());
                }
                ids
            });
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.terminate().await;
        accepted.extend(posts.join_all().await.concat());
    }
    let unsent =
        accepted.iter().filter(|id| site.simulator.accepted_by_tag(MESSAGE_ID_TAG, id) != 1);
    assert_eq!(unsent.count(), 0, "of {} accepted", accepted.len());
}
