//! Messages that their application cancels, on the real binary: `POST /emails/{id}/cancel`.

use std::time::Duration;

use pillarbox::simulator::{Fault, Faults, Options};
use reqwest::Response;
use serde_json::{Value, json};

use crate::kit::{Server, Site, answer, message, refusal};

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
    let more = "[sending]\nretry_initial = \"1ms\"\nretry_max = \"2ms\"";
    let site = Site::with(more, Options::default()).await;
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
    // The same bytes as for a read, whatever is unknown.
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
