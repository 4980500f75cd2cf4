//! The data file of a running service is moved, deleted, replaced or written over: the service
//! stops accepting, says so, and keeps what it can.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pillarbox_simulator::{EventOptions, Events, Fault, Faults, Options};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Server, Site, answer, message, message_with, refusal};

fn data_file(site: &Site) -> PathBuf {
    site.data_dir().join("pillarbox.redb")
}

async fn refuses(server: &Server) {
    let response = server.post(&message()).send().await.unwrap();
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(refusal(response).await, (503, "StorageUnavailable".to_owned(), None));
}

async fn reasons(server: &Server) -> Vec<Value> {
    let (_, document) = answer(server.operator("/readyz").await).await;
    document["reasons"].as_array().unwrap().clone()
}

/// Waits until readiness has such a reason, or none, without a request of a client.
async fn noticed(server: &Server, code: Option<&str>) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let reasons = reasons(server).await;
        let found = match code {
            Some(code) => reasons.iter().any(|reason| reason["code"] == code),
            None => reasons.is_empty(),
        };
        if found {
            return reasons;
        }
        assert!(start.elapsed() < PATIENCE, "{reasons:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn is_told_everywhere(site: &Site, server: &Server, what: &str) {
    let reasons = noticed(server, Some("data_file_lost")).await;
    assert!(reasons[0]["message"].as_str().unwrap().contains(what), "{reasons:?}");
    assert!(
        reasons[0]["advice"].as_str().unwrap().contains("pillarbox backup FILE"),
        "{reasons:?}"
    );
    assert_eq!(server.operator("/readyz").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let status = site.run(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(!status.contains("takes messages"), "{status}");
    assert!(status.contains(what) && status.contains("pillarbox backup FILE"), "{status}");
    let doctor = String::from_utf8(site.run(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains(what), "{doctor}");
    let metrics = server.operator("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("\npillarbox_store_file_in_place 0.0\n"), "{metrics}");
    let log = server.log();
    let said = log.lines().find(|line| line.contains("ERROR") && line.contains(what));
    assert!(said.is_some_and(|line| line.contains("pillarbox.redb")), "{log}");
    assert_eq!(server.operator("/healthz").await.status(), StatusCode::OK, "a restart would harm");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_moved_away_stops_acceptance_until_it_is_back() {
    let site = Site::new().await;
    let server = site.start();
    let keyed = message_with("idempotencyKey", json!("k"));
    let sent = server.send(&keyed).await;
    server.wait_for(&sent, "sent").await;
    let (file, elsewhere) = (data_file(&site), site.directory().join("elsewhere.redb"));
    fs::rename(&file, &elsewhere).unwrap();
    // No message may be accepted into a file that cannot be found, not even the first.
    refuses(&server).await;
    is_told_everywhere(&site, &server, "is gone").await;
    assert_eq!(server.record(&sent).await["status"], "sent", "reads go on");
    let replay = server.post(&keyed).send().await.unwrap();
    assert_eq!(replay.headers()["idempotent-replayed"], "true", "replays go on");
    let refused = site.run(&["org", "add", "beta"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains("pillarbox backup FILE"), "{error}");
    fs::rename(&elsewhere, &file).unwrap();
    noticed(&server, None).await;
    server.wait_for(&server.send(&message()).await, "sent").await;
    assert!(server.log().contains("the data file is in its place again"), "{}", server.log());
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_file_is_noticed_without_a_request_and_can_be_saved_and_put_back() {
    let events = Events::On(EventOptions::after(Duration::from_millis(50)));
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    let server = site.start();
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let pending = server.send(&message()).await;
    fs::remove_file(data_file(&site)).unwrap();
    is_told_everywhere(&site, &server, "is gone").await;
    // What was accepted goes out all the same, and the open file has that.
    site.simulator.set_faults(Faults::none());
    let sent = server.wait_for(&pending, "sent").await;
    refuses(&server).await;
    let backup = site.directory().join("backup.redb");
    site.done(&["backup", backup.to_str().unwrap()]);
    server.terminate().await;
    // As after the loss of the whole machine.
    fs::remove_dir_all(site.data_dir()).unwrap();
    fs::create_dir(site.data_dir()).unwrap();
    site.done(&["restore", backup.to_str().unwrap()]);
    let server = site.start();
    let record = server.record(&pending).await;
    assert_eq!(record["sesMessageId"], sent["sesMessageId"], "{record}");
    // Its event was left in the queue meanwhile, and comes now.
    let end = Instant::now() + PATIENCE;
    while server.record(&pending).await["lastEvent"].is_null() {
        assert!(Instant::now() < end, "its event is lost");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_file_in_its_place_is_neither_used_nor_touched() {
    let site = Site::new().await;
    let file = data_file(&site);
    let (other, moved) = (site.directory().join("other.redb"), site.directory().join("moved.redb"));
    fs::copy(&file, &other).unwrap();
    let server = site.start();
    let sent = server.send(&message()).await;
    server.wait_for(&sent, "sent").await;
    fs::rename(&file, &moved).unwrap();
    fs::rename(&other, &file).unwrap();
    let before = (fs::metadata(&file).unwrap().ino(), fs::read(&file).unwrap());
    refuses(&server).await;
    is_told_everywhere(&site, &server, "is not the one").await;
    assert_eq!(server.record(&sent).await["status"], "sent");
    let log = server.terminate().await;
    let after = (fs::metadata(&file).unwrap().ino(), fs::read(&file).unwrap());
    assert!(before == after, "the other file was touched");
    // What the service held is beside it.
    let kept = fs::read_dir(site.data_dir()).unwrap().map(|entry| entry.unwrap().path());
    let journal = site.data_dir().join("pillarbox.journal");
    let kept: Vec<_> = kept.filter(|path| *path != file && *path != journal).collect();
    let [kept] = &kept[..] else { panic!("{kept:?}: {log}") };
    assert!(log.contains(kept.to_str().unwrap()), "{log}");
    site.done(&["restore", "--replace", kept.to_str().unwrap()]);
    let server = site.start();
    assert_eq!(server.record(&sent).await["status"], "sent");
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_puts_a_deleted_file_back() {
    let site = Site::new().await;
    let server = site.start();
    let sent = server.send(&message()).await;
    server.wait_for(&sent, "sent").await;
    fs::remove_file(data_file(&site)).unwrap();
    noticed(&server, Some("data_file_lost")).await;
    let log = server.terminate().await;
    assert!(log.contains("its content is saved to this path"), "{log}");
    let server = site.start();
    assert_eq!(server.record(&sent).await["status"], "sent");
    server.send(&message()).await;
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_written_over_is_left_as_it_was_put_there() {
    let site = Site::new().await;
    let file = data_file(&site);
    let other = fs::read(&file).unwrap();
    for content in [&other[..], b"garbage", b""] {
        let server = site.start();
        let sent = server.send(&message()).await;
        server.wait_for(&sent, "sent").await;
        // As `cp` and a shell's `>` do it: the same inode with other content.
        fs::write(&file, content).unwrap();
        refuses(&server).await;
        let reasons = noticed(&server, Some("data_file_lost")).await;
        let text = reasons.iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains("overwritten"), "{text}");
        server.kill();
        assert!(fs::read(&file).unwrap() == content, "the service wrote into it");
        fs::write(&file, &other).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_its_file_says_so() {
    let site = Site::new().await;
    assert!(!site.start().terminate().await.contains("no data file"));
    let (file, kept) = (data_file(&site), site.data_dir().join("pillarbox.redb.saved-1"));
    fs::rename(&file, &kept).unwrap();
    let log = site.start().terminate().await;
    let said = log.lines().find(|line| line.contains("WARN") && line.contains("no data file"));
    let said = said.unwrap_or_else(|| panic!("{log}"));
    assert!(said.contains("pillarbox restore FILE") && said.contains("redb.saved-1"), "{said}");
}
