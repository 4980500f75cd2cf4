//! Timelines of messages, as clients and operators read them.

use pillarbox_simulator::{Fault, Faults, Options};
use serde_json::{Value, json};

use crate::kit::{Finished, Manager, Server, Site, answer, message, message_with};

/// Configuration that tries again soon.
const SOON: &str = "[sending]\nretry_initial = \"50ms\"\nretry_max = \"100ms\"\ndrain = \"1s\"";

async fn timeline(server: &Server, id: &str) -> Vec<Value> {
    let (status, mut body) =
        answer(server.get(&format!("/emails/{id}/timeline")).send().await.unwrap()).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_value(body["timeline"].take()).unwrap()
}

fn words(timeline: &[Value]) -> Vec<&str> {
    timeline.iter().map(|entry| entry["what"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_message_that_is_sent_at_once_has_its_acceptance_and_its_attempt() {
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    let record = server.record(&id).await;
    let accepted = json!({ "at": record["createdAt"], "what": "accepted" });
    let sent = json!({ "at": record["sentAt"], "what": "sent", "attempt": 1 });
    assert_eq!(timeline(&server, &id).await, [accepted, sent]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_attempts_are_shown_with_their_reasons_before_and_after_the_message_is_sent() {
    let site = Site::with(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = site.start();
    let id = server.send(&message()).await;
    let waiting = loop {
        let timeline = timeline(&server, &id).await;
        if timeline.len() > 2 {
            break timeline;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!(waiting[0]["what"], "accepted");
    for (entry, attempt) in waiting[1..].iter().zip(1..) {
        assert_eq!(entry["what"], "attempt_failed", "{entry}");
        assert_eq!(entry["attempt"], attempt, "{entry}");
        assert_eq!(entry["code"], "provider_throttled", "{entry}");
        assert_eq!(entry["providerCode"], "TooManyRequestsException", "{entry}");
        assert!(entry["message"].is_string(), "{entry}");
        assert!(entry["nextAttemptAt"].as_str() >= entry["at"].as_str(), "{entry}");
    }
    site.simulator.set_faults(Faults::none());
    let record = server.wait_for(&id, "sent").await;
    let attempts = record["attempts"].as_u64().unwrap();
    let timeline = timeline(&server, &id).await;
    assert_eq!(timeline.last().unwrap()["what"], "sent");
    assert_eq!(timeline.last().unwrap()["attempt"], attempts);
    assert_eq!(timeline.len() as u64, attempts + 1);
    // Operators see the same.
    let shown = site.done(&["message", "show", &id, "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["timeline"], Value::from(timeline));
    let text = String::from_utf8(site.done(&["message", "show", &id]).stdout).unwrap();
    assert!(text.contains("attempt_failed") && text.contains("TooManyRequestsException"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_shown_while_the_message_waits_and_stays() {
    let site = Site::with(SOON, Options::default()).await;
    let manager = Manager::of(&site, 2, Vec::new());
    let server = manager.start(&site);
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    let id = server.send(&message()).await;
    Finished::run(site.command(&["restart", "--json"])).await.json();
    assert!(words(&timeline(&server, &id).await).contains(&"restarted"));
    Finished::run(site.command(&["restart", "--json"])).await.json();
    site.simulator.set_faults(Faults::none());
    server.wait_for(&id, "sent").await;
    let timeline = timeline(&server, &id).await;
    let words = words(&timeline);
    assert_eq!((words[0], *words.last().unwrap()), ("accepted", "sent"), "{words:?}");
    assert!(words.contains(&"restarted"), "{words:?}");
}

#[tokio::test]
async fn an_end_is_shown_with_its_time_and_reason() {
    let site = Site::with(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = site.start();
    let id = server.send(&message()).await;
    site.done(&["message", "cancel", &id]);
    let record = server.wait_for(&id, "failed").await;
    let cancelled = timeline(&server, &id).await.pop().unwrap();
    assert_eq!(cancelled["what"], "cancelled", "{cancelled}");
    assert_eq!(cancelled["code"], "cancelled");
    assert_eq!(cancelled["message"], record["error"]["message"]);
    assert!(cancelled["at"].as_str() >= record["createdAt"].as_str());

    site.simulator.set_faults(Faults::always(Fault::Rejected));
    let id = server.send(&message_with("to", json!(["eve@example.org"]))).await;
    server.wait_for(&id, "failed").await;
    let timeline = timeline(&server, &id).await;
    assert_eq!(words(&timeline), ["accepted", "failed"]);
    assert_eq!(timeline[1]["attempt"], 1);
    assert_eq!(timeline[1]["code"], "provider_rejected");
}
