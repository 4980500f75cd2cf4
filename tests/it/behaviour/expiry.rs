//! Messages that expire, on the real binary: requests, keys, records and their end.

use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, Faults, Options};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kit::{
    Finished, Manager, PATIENCE, Server, Site, answer, message, message_with, refusal,
};

const MINUTE: Duration = Duration::from_mins(1);

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    let output = site.done(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Time from a message's acceptance to its end, as its record says.
fn expires_in(record: &Value) -> Option<Duration> {
    let time = |member: &str| humantime::parse_rfc3339(record[member].as_str()?).ok();
    time("expiresAt")?.duration_since(time("createdAt")?).ok()
}

async fn read(server: &Server, path: &str) -> Value {
    let (status, body) = answer(server.get(path).send().await.unwrap()).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// Waits for the end of a message, which was posted at `posted` and must not end before its time.
async fn wait_for_end(server: &Server, id: &str, posted: Instant) -> Value {
    loop {
        let record = server.record(id).await;
        if record["status"] == "failed" {
            assert!(posted.elapsed() + Duration::from_millis(100) >= MINUTE, "{record}");
            return record;
        }
        assert!(posted.elapsed() < MINUTE + PATIENCE, "{record}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_is_checked_stored_and_shown() {
    let site = Site::new().await;
    let mut server = site.start();
    for wrong in [json!("59s"), json!("8d"), json!("soon"), json!(""), json!(600), json!("-1h")] {
        let refused = message_with("expiresIn", wrong.clone());
        let refused = refusal(server.post(&refused).send().await.unwrap()).await;
        let expected = (422, "ValidationError".to_owned(), Some("expiresIn".to_owned()));
        assert_eq!(refused, expected, "{wrong}");
    }
    for (text, minutes) in [("1m", 1), ("1h 30m", 90), ("7d", 10_080)] {
        let id = server.send(&message_with("expiresIn", json!(text))).await;
        let record = server.wait_for(&id, "sent").await;
        assert_eq!(expires_in(&record), Some(Duration::from_mins(minutes)), "{record}");
        let shown = json_of(&site, &["message", "show", &id]);
        assert_eq!(shown["expiresAt"], record["expiresAt"]);
        let shown = String::from_utf8(site.done(&["message", "show", &id]).stdout).unwrap();
        assert!(shown.contains(record["expiresAt"].as_str().unwrap()), "{shown}");
    }
    let id = server.send(&message()).await;
    assert_eq!(server.record(&id).await.get("expiresAt"), None);

    let add = ["key", "add", "--org", "acme", "--message-expires-in"];
    let refused = site.run(&[&add[..], &["8d"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("from 1m to 7d"));
    let added = json_of(&site, &[&add[..], &["5m"]].concat());
    let rotated = json_of(&site, &["key", "rotate", &added["id"].to_string()]);
    let keys = json_of(&site, &["key", "list"]);
    let keys = keys["keys"].as_array().unwrap().iter();
    let listed: Vec<_> = keys.map(|key| &key["messageExpiresIn"]).collect();
    assert_eq!(listed, [&json!(null), &json!("5m"), &json!("5m")]);
    for key in [added, rotated] {
        key["key"].as_str().unwrap().clone_into(&mut server.key);
        let id = server.send(&message()).await;
        assert_eq!(expires_in(&server.record(&id).await), Some(Duration::from_mins(5)));
        let id = server.send(&message_with("expiresIn", json!("1h"))).await;
        assert_eq!(expires_in(&server.record(&id).await), Some(Duration::from_hours(1)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_expire_over_a_restart_and_a_kill_and_while_the_provider_is_down() {
    // Together, because each waits for a minute of the real time.
    tokio::join!(expires_over_a_restart_and_a_kill(), expires_while_the_provider_is_down());
}

/// Has a message of a paused organisation expire.
async fn expires_over_a_restart_and_a_kill() {
    let site = Site::new().await;
    let manager = Manager::of(&site, 2, Vec::new());
    let server = manager.start(&site);
    let paused = json_of(&site, &["org", "pause", "acme"]);
    assert_eq!(paused["firstEnd"], json!(null));
    let stays = server.send(&message()).await;
    let posted = Instant::now();
    let id = server.send(&message_with("expiresIn", json!("1m"))).await;
    let expires_at = server.record(&id).await["expiresAt"].clone();
    let paused = json_of(&site, &["org", "pause", "acme"]);
    let time = |text: &Value| humantime::parse_rfc3339(text.as_str().unwrap()).unwrap();
    let first_end = time(&paused["firstEnd"]);
    let apart = first_end.max(time(&expires_at)).duration_since(first_end.min(time(&expires_at)));
    assert!(apart.unwrap() < Duration::from_secs(1), "{paused}, {expires_at}");
    Finished::run(site.command(&["restart", "--json"])).await.json();
    assert_eq!(server.record(&id).await["expiresAt"], expires_at);
    server.kill();
    let server = manager.start(&site);
    assert_eq!(server.record(&id).await["status"], "queued");

    let record = wait_for_end(&server, &id, posted).await;
    let error = json!({
        "code": "expired",
        "message": "the message expired 1m after its acceptance; the message was not sent"
    });
    assert_eq!((&record["error"], &record["attempts"]), (&error, &json!(0)));
    let timeline = read(&server, &format!("/emails/{id}/timeline")).await;
    let last = timeline["timeline"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["what"], &last["code"]), (&json!("expired"), &json!("expired")));
    let feed = read(&server, "/events?types=email.failed").await;
    let event = &feed["events"][0];
    assert_eq!((&event["data"]["id"], &event["data"]["error"]), (&json!(id), &error));
    assert_eq!(server.record(&stays).await["status"], "queued");
    site.done(&["org", "resume", "acme"]);
    server.wait_for(&stays, "sent").await;
    assert_eq!(site.simulator.accepted_total(), 1);
}

async fn expires_while_the_provider_is_down() {
    let site = Site::with("[sending]\nmax_in_flight = 1", Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Unavailable));
    let server = site.start();
    let posted = Instant::now();
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(server.send(&message_with("expiresIn", json!("1m"))).await);
    }
    for id in &ids {
        let record = wait_for_end(&server, id, posted).await;
        assert_eq!(record["error"]["code"], "expired", "{record}");
    }
    let calls = site.simulator.calls_total();
    site.simulator.set_faults(Faults::none());
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    assert_eq!(site.simulator.accepted_total(), 1, "nothing is sent later; {calls} calls before");
}
