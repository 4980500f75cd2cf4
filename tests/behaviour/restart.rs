//! Ends of the process, in order and not: every message is accounted for.

use std::time::Duration;

use pillarbox::simulator::Options;
use serde_json::json;

use crate::harness::{Site, answer, message, message_with, refusal};

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
