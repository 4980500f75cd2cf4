//! A real full disk: a small file system of the test's own, in a mount namespace of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pillarbox_ses::send::MESSAGE_ID_TAG;
use pillarbox_simulator::{Fault, Faults};
use serde_json::json;

use crate::kit::{PATIENCE, Server, Site, answer, message, message_with, refusal};

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
    goes_on(&server).await;
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

async fn goes_on(server: &Server) {
    let end = Instant::now() + PATIENCE;
    while server.post(&message()).send().await.unwrap().status() != 200 {
        assert!(Instant::now() < end, "the service does not recover: {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A site whose service was killed, with the ids of a message that was sent and of one that was not,
/// whose key is `k`.
async fn killed() -> (Site, String, String) {
    let site = Site::new().await;
    let server = site.start();
    let sent = server.send(&message()).await;
    server.wait_for(&sent, "sent").await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let pending = server.send(&message_with("idempotencyKey", json!("k"))).await;
    server.kill();
    site.simulator.set_faults(Faults::none());
    (site, sent, pending)
}

async fn reads_and_refuses(server: &Server, sent: &str, pending: &str) {
    assert_eq!(server.record(sent).await["status"], "sent");
    let record = server.record(pending).await;
    assert_eq!(record["status"], "failed", "{record}");
    assert_eq!(record["error"]["code"], "body_lost_on_restart");
    let refused = server.post(&message()).send().await.unwrap();
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refusal(refused).await, (503, "StorageUnavailable".to_owned(), None));
    let keyed = message_with("idempotencyKey", json!("k"));
    let replay = server.post(&keyed).send().await.unwrap();
    assert_eq!(answer(replay).await.1["id"], json!(pending));
    let (status, ready) = answer(server.operator("/readyz").await).await;
    assert_eq!(status, 503);
    assert!(ready.to_string().contains("store_refusing"), "{ready}");
    assert_eq!(server.operator("/healthz").await.status(), 200, "a restart would not help");
    let log = server.log();
    let said = log.lines().find(|line| line.contains("the store accepts no writes"));
    assert!(said.is_some_and(|line| line.contains("ERROR")), "{log}");
}

async fn is_written(server: &Server, pending: &str) {
    goes_on(server).await;
    let record = server.record(pending).await;
    assert_eq!(record["error"]["code"], "body_lost_on_restart", "{record}");
    let (_, feed) = answer(server.get("/events").send().await.unwrap()).await;
    let told =
        feed["events"].as_array().unwrap().iter().filter(|entry| entry["type"] == "email.failed");
    assert_eq!(told.count(), 1, "{feed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_reads_and_refuses_and_goes_on_when_there_is_room() {
    let (site, sent, pending) = killed().await;
    let fill = "{ dd if=/dev/zero of=ballast bs=4k 2> /dev/null; true; } &&";
    let server = site.start_by(site.service_on_small_disk_after("6m", fill));
    reads_and_refuses(&server, &sent, &pending).await;
    let ballast = server.process.seen_from_outside(&site.data_dir()).join("ballast");
    std::fs::remove_file(ballast).unwrap();
    is_written(&server, &pending).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_read_only_disk_reads_and_refuses_until_it_is_writable() {
    let (site, sent, pending) = killed().await;
    let read_only = "mount -o remount,ro . &&";
    let server = site.start_by(site.service_on_small_disk_after("6m", read_only));
    reads_and_refuses(&server, &sent, &pending).await;
    // Attempts follow each other, and the log has the reason once a minute.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let log = server.log();
    assert!(log.contains("Read-only file system"), "{log}");
    let told = log.matches("the store does not accept writes yet").count();
    assert!(told <= 1, "{told} times: {log}");
    let id = server.process.id().to_string();
    let mut remount = std::process::Command::new("nsenter");
    remount.args(["--target", &id, "--user", "--preserve-credentials", "--mount"]);
    remount.args(["mount", "-o", "remount,rw"]).arg(site.data_dir());
    assert!(remount.status().unwrap().success());
    is_written(&server, &pending).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_journal_cannot_be_made_reads_and_refuses_until_it_can() {
    let (site, sent, _) = killed().await;
    // Closed in order, so that it needs no journal.
    site.start().terminate().await;
    let journal = site.data_dir().join("pillarbox.journal");
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    let server = site.start();
    assert_eq!(server.record(&sent).await["status"], "sent");
    let refused = server.post(&message()).send().await.unwrap();
    assert_eq!(refusal(refused).await, (503, "StorageUnavailable".to_owned(), None));
    let log = server.log();
    assert!(log.contains("the journal pillarbox.journal: Is a directory"), "{log}");
    std::fs::remove_dir(&journal).unwrap();
    goes_on(&server).await;
    server.terminate().await;
}
