//! A real full disk: a small file system of the test's own, in a mount namespace of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pillarbox::ses::send::MESSAGE_ID_TAG;
use serde_json::json;

use crate::kit::{PATIENCE, Site, answer, message, message_with, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_answers_replays_and_reads_and_goes_on_when_there_is_room() {
    let site = Site::new().await;
    let server = site.start_by(site.service_on_small_disk("6m"));
    let keyed = message_with("idempotencyKey", json!("k"));
    let first = server.send(&keyed).await;
    server.wait_for(&first, "sent").await;

    let ballast = server.process.seen_from_outside(&site.data_dir()).join("ballast");
    fill(&ballast);
    let mut accepted = vec![first.clone()];
    // A long subject, so that what is left fills up soon.
    let long = message_with("subject", json!("x".repeat(900)));
    let refused = loop {
        let response = server.post(&long).send().await.unwrap();
        if response.status() != 200 {
            break response;
        }
        accepted.push(answer(response).await.1["id"].as_str().unwrap().to_owned());
        assert!(accepted.len() < 20_000, "the disk never fills up");
    };
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refusal(refused).await, (503, "StorageUnavailable".to_owned(), None));
    let replay = server.post(&keyed).send().await.unwrap();
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    assert_eq!(answer(replay).await.1["id"], json!(first));
    assert_eq!(server.record(&first).await["status"], "sent");

    std::fs::remove_file(ballast).unwrap();
    let end = Instant::now() + PATIENCE;
    while server.post(&message()).send().await.unwrap().status() != 200 {
        assert!(Instant::now() < end, "the service does not recover: {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for id in &accepted {
        server.wait_for(id, "sent").await;
        assert_eq!(site.simulator.accepted_by_tag(MESSAGE_ID_TAG, id), 1);
    }
}

/// Takes up all the room that is left.
fn fill(ballast: &PathBuf) {
    let mut file = std::fs::File::create(ballast).unwrap();
    let block = [0; 4_096];
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
}
