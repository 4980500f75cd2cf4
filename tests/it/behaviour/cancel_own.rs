//! Messages that their application cancels, on the real binary: `POST /emails/{id}/cancel`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pillarbox_ses::send::MESSAGE_ID_TAG;
use pillarbox_simulator::{Fault, Faults, Options};
use reqwest::Response;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::behaviour::{RETRIES_AT_ONCE, batch};
use crate::kit::{Finished, Manager, PATIENCE, Server, Site, answer, message, metric, refusal};

async fn post(server: &Server, id: &str, body: &str) -> Response {
    let request = server.client.post(format!("{}/emails/{id}/cancel", server.base));
    let request = request.bearer_auth(&server.key).header("content-type", "application/json");
    request.body(body.to_owned()).send().await.unwrap()
}

/// Cancels a message, which must be possible; gives the record.
async fn cancel(server: &Server, id: &str) -> Value {
    let (status, record) = answer(post(server, id, "{}").await).await;
    assert_eq!(status, 200, "{record}");
    record
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_fails_as_cancelled_and_a_final_one_stays_as_it_is() {
    let site = Site::new().await;
    let server = site.start();
    let sent = server.send(&message()).await;
    let before = server.wait_for(&sent, "sent").await;
    assert_eq!(cancel(&server, &sent).await, before);

    // No call is made that could be under way.
    site.done(&["org", "pause", "acme"]);
    let ids = [server.send(&message()).await, server.send(&message()).await];
    let record = cancel(&server, &ids[0]).await;
    assert_eq!(
        (&record["id"], &record["status"], &record["error"]["code"]),
        (&json!(ids[0]), &json!("failed"), &json!("cancelled"))
    );
    let said = record["error"]["message"].as_str().unwrap();
    assert!(said.contains("your application cancelled the message"), "{said}");
    assert_eq!(server.record(&ids[0]).await, record);
    assert_eq!(cancel(&server, &ids[0]).await, record);
    // At one time, all get the same.
    let (one, two) = tokio::join!(cancel(&server, &ids[1]), cancel(&server, &ids[1]));
    assert_eq!((&one, &one["status"]), (&two, &json!("failed")));
    site.done(&["org", "resume", "acme"]);
    let last = server.send(&message()).await;
    server.wait_for(&last, "sent").await;
    assert_eq!(site.simulator.accepted_total(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_call_is_under_way_is_not_tried_again() {
    let site = Site::with(RETRIES_AT_ONCE, Options::default()).await;
    site.simulator.set_latency(Duration::from_secs(2));
    let server = site.start();
    for (faults, status) in
        [(Faults::always(Fault::Unavailable), "failed"), (Faults::none(), "sent")]
    {
        site.simulator.set_faults(faults);
        let id = server.send(&message()).await;
        server.wait_for(&id, "sending").await;
        assert_eq!(cancel(&server, &id).await["status"], "sending");
        let record = server.wait_for(&id, status).await;
        assert_eq!(record["attempts"], 1, "{record}");
        if status == "failed" {
            assert_eq!(record["error"]["code"], "cancelled", "{record}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_cancelled_is_refused_as_elsewhere() {
    let site = Site::new().await;
    let mut server = site.start();
    site.done(&["org", "pause", "acme"]);
    let id = server.send(&message()).await;
    for (body, status, code, field) in [
        ("", 400, "InvalidJson", None),
        ("[]", 400, "InvalidJson", None),
        (r#"{"why":"because"}"#, 422, "ValidationError", Some("why".to_owned())),
    ] {
        let refused = refusal(post(&server, &id, body).await).await;
        assert_eq!(refused, (status, code.to_owned(), field), "{body}");
    }
    let request = server.client.post(format!("{}/emails/{id}/cancel", server.base));
    let response = request.bearer_auth(&server.key).body("{}").send().await.unwrap();
    assert_eq!(refusal(response).await.0, 415);
    // The same bytes as for a read, for every kind of unknown id.
    let unknown = "019a5b7c-0000-7000-8000-000000000000";
    server.key = site.add_organisation("beta", "example.com");
    for unknown in [unknown, "no-id", &id] {
        let read = server.get(&format!("/emails/{unknown}")).send().await.unwrap();
        let cancelled = post(&server, unknown, "{}").await;
        assert_eq!(
            (read.status(), cancelled.status()),
            (404.try_into().unwrap(), 404.try_into().unwrap())
        );
        assert_eq!(read.bytes().await.unwrap(), cancelled.bytes().await.unwrap());
    }
    server.key.clone_from(&site.key);
    assert_eq!(server.record(&id).await["status"], "queued");
}

async fn timeline(server: &Server, id: &str) -> Vec<String> {
    let response = server.get(&format!("/emails/{id}/timeline")).send().await.unwrap();
    let (status, body) = answer(response).await;
    assert_eq!(status, 200, "{body}");
    let entries = body["timeline"].as_array().unwrap();
    entries.iter().map(|entry| entry["what"].as_str().unwrap().to_owned()).collect()
}

/// Sends a batch of messages; gives their ids.
async fn send_batch(server: &Server, count: usize) -> Vec<String> {
    let (status, body) = answer(
        batch::post(server, &json!({ "emails": vec![message(); count] })).send().await.unwrap(),
    )
    .await;
    assert_eq!(status, 200, "{body}");
    let ids = body["emails"].as_array().unwrap().iter();
    ids.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

/// Each message is cancelled while its first call starts, is under way or has just failed.
#[tokio::test(flavor = "multi_thread")]
async fn cancellations_race_with_the_calls_and_each_message_has_one_end() {
    const WORKERS: usize = 4;
    const OF_A_BATCH: usize = 100;
    const MESSAGES: usize = if cfg!(feature = "long") { 10_000 } else { 2_000 };
    let faults = Faults::none().with_probability(Fault::Unavailable, 0.05).unwrap();
    let options = Options { latency: Duration::from_millis(1), faults, ..Options::default() };
    let site = Site::with(RETRIES_AT_ONCE, options).await;
    let server = Arc::new(site.start());
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let server = Arc::clone(&server);
        workers.spawn(async move {
            let mut told = Vec::new();
            for _ in 0..MESSAGES / WORKERS / OF_A_BATCH {
                let mut cancels = JoinSet::new();
                for id in send_batch(&server, OF_A_BATCH).await {
                    let server = Arc::clone(&server);
                    cancels.spawn(async move {
                        sleep(Duration::from_micros(fastrand::u64(0..5_000))).await;
                        cancel(&server, &id).await
                    });
                }
                told.extend(cancels.join_all().await);
            }
            told
        });
    }
    let told = workers.join_all().await.concat();
    assert_eq!(told.len(), MESSAGES);
    let end = Instant::now() + PATIENCE;
    while metric(&server, "pillarbox_queue_messages").await != Some(0.0) {
        assert!(Instant::now() < end, "the calls under way do not end");
        sleep(Duration::from_millis(20)).await;
    }
    let (mut sent, mut during_calls) = (0, 0);
    for part in told.chunks(OF_A_BATCH) {
        let mut checks = JoinSet::new();
        for told in part {
            let (server, told) = (Arc::clone(&server), told.clone());
            checks.spawn(async move {
                let id = told["id"].as_str().unwrap();
                let record = server.record(id).await;
                if told["status"] == "sending" {
                    assert_eq!(
                        told["attempts"], record["attempts"],
                        "it is not tried again: {record}"
                    );
                } else {
                    assert_eq!(told, record, "it is final");
                }
                let timeline = timeline(&server, id).await;
                let ends = timeline.iter().filter(|what| *what == "sent" || *what == "cancelled");
                let ends: Vec<_> = ends.map(String::as_str).collect();
                if record["status"] == "sent" {
                    assert_eq!(ends, ["sent"], "{record}");
                } else {
                    assert_eq!(record["error"]["code"], "cancelled", "{record}");
                    assert_eq!(ends, ["cancelled"], "{record}");
                }
                (record["status"] == "sent", told["status"] == "sending")
            });
        }
        for (is_sent, is_during_call) in checks.join_all().await {
            sent += u64::from(is_sent);
            during_calls += u64::from(is_during_call);
        }
    }
    println!("{sent} of {MESSAGES} were sent, {during_calls} were cancelled during their calls");
    assert!(sent > 0 && sent < MESSAGES as u64 && during_calls > 0, "{sent} {during_calls}");
    assert_eq!(site.simulator.accepted_total(), sent);
    assert_eq!(site.simulator.repeated_tags(MESSAGE_ID_TAG), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_message_that_an_event_proves_sent_tells_both() {
    let site = Site::new().await;
    site.read_events();
    site.simulator.set_latency(Duration::from_secs(2));
    site.simulator.set_faults(Faults::always(Fault::ResetAfter));
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    assert_eq!(cancel(&server, &id).await["status"], "sending");
    let failed = server.wait_for(&id, "failed").await;
    assert_eq!((&failed["error"]["code"], &failed["attempts"]), (&json!("cancelled"), &json!(1)));
    assert!(failed["error"]["message"].as_str().unwrap().contains("is unknown"), "{failed}");
    assert_eq!(timeline(&server, &id).await, ["accepted", "attempt_failed", "cancelled"]);
    let document = json!({
        "eventType": "Send",
        "mail": {
            "messageId": "ses-1",
            "timestamp": failed["createdAt"],
            "tags": { "pillarbox-message-id": [id], "pillarbox-organisation": ["acme"] },
        },
        "send": {},
    });
    site.simulator.publish_notification(&document.to_string()).unwrap();
    let sent = server.wait_for(&id, "sent").await;
    assert_eq!((&sent["error"], &sent["attempts"]), (&Value::Null, &json!(1)));
    assert_eq!(cancel(&server, &id).await, sent, "it is final");
    let mut told = timeline(&server, &id).await;
    told.sort_unstable();
    assert_eq!(told, ["accepted", "attempt_failed", "cancelled", "sent"]);
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cancelled_during_its_call_is_not_tried_again_after_a_restart_in_place() {
    let more = format!("{RETRIES_AT_ONCE}\ndrain = \"1s\"");
    let site = Site::with(&more, Options::default()).await;
    let manager = Manager::of(&site, 2, Vec::new());
    let server = manager.start(&site);
    // The provider has both, and its answers do not come before the restart.
    let slow = Faults::always(Fault::Slow).with_slow_for(Duration::from_mins(5));
    site.simulator.set_faults(slow);
    let ids = [server.send(&message()).await, server.send(&message()).await];
    for id in &ids {
        server.wait_for(id, "sending").await;
    }
    assert_eq!(cancel(&server, &ids[0]).await["status"], "sending");
    let end = Instant::now() + PATIENCE;
    while site.simulator.accepted_total() < 2 {
        assert!(Instant::now() < end, "the calls do not arrive");
        sleep(Duration::from_millis(5)).await;
    }
    site.simulator.set_faults(Faults::none());
    Finished::run(site.command(&["restart", "--json"])).await.json();
    let sent = server.wait_for(&ids[1], "sent").await;
    assert_eq!(sent["attempts"], 2, "{sent}");
    let cancelled = server.wait_for(&ids[0], "failed").await;
    assert_eq!(
        (&cancelled["error"]["code"], &cancelled["attempts"]),
        (&json!("cancelled"), &json!(1))
    );
    assert!(cancelled["error"]["message"].as_str().unwrap().contains("is unknown"), "{cancelled}");
    assert_eq!(cancel(&server, &ids[0]).await, cancelled);
    assert_eq!(timeline(&server, &ids[0]).await.last().unwrap(), "cancelled");
    assert_eq!(site.simulator.accepted_total(), 3, "the other one is sent a second time");
}
