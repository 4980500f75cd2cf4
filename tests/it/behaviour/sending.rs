//! A message goes all the way: accepted, sent by a signed request, read back.

use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, FaultScope, Faults, Options};
use serde_json::json;

use crate::behaviour::RETRIES_AT_ONCE;
use crate::kit::{PATIENCE, Server, Site, answer, message, message_with, metric};

#[tokio::test]
async fn a_message_is_accepted_sent_and_read_back() {
    let site = Site::new().await;
    let server = site.start();
    let id = server
        .send(&json!({
            "from": "J\u{fc}rgen <ann@example.com>",
            "to": ["Bob <bob@example.org>"],
            "cc": ["cy@example.org"],
            "bcc": ["dee@B\u{fc}cher.example"],
            "reply_to": "\"Help, please\" <help@example.com>",
            "subject": "Gr\u{fc}\u{df}e",
            "html": "<p>\u{1f4ee}\u{0}</p>",
            "text": "line one\r\nline two\n\ttabbed \\ \"quoted\"",
            "headers": {"X-Order": "17", "list-unsubscribe": "<mailto:u@example.com>"},
            "tag": "transactional",
        }))
        .await;
    let record = server.wait_for(&id, "sent").await;
    let caught = &site.simulator.messages()[0];
    assert_eq!(caught.from, "=?utf-8?Q?J=C3=BCrgen?= <ann@example.com>");
    assert_eq!(caught.to, [r#""Bob" <bob@example.org>"#]);
    assert_eq!(caught.cc, ["cy@example.org"]);
    assert_eq!(caught.bcc, ["dee@xn--bcher-kva.example"]);
    assert_eq!(caught.reply_to, [r#""Help, please" <help@example.com>"#]);
    assert_eq!(caught.subject, "Gr\u{fc}\u{df}e");
    assert_eq!(caught.html.as_deref(), Some("<p>\u{1f4ee}\u{0}</p>"));
    assert_eq!(caught.text.as_deref(), Some("line one\r\nline two\n\ttabbed \\ \"quoted\""));
    let headers: Vec<_> =
        caught.headers.iter().map(|h| (h.name.as_str(), h.value.as_str())).collect();
    assert_eq!(headers, [("X-Order", "17"), ("list-unsubscribe", "<mailto:u@example.com>")]);
    assert_eq!(
        record,
        json!({
            "id": id,
            "status": "sent",
            "to": ["Bob <bob@example.org>", "cy@example.org", "dee@B\u{fc}cher.example"],
            "subject": "Gr\u{fc}\u{df}e",
            "tag": "transactional",
            "attempts": 1,
            "error": null,
            "sesMessageId": caught.id,
            "createdAt": record["createdAt"],
            "sentAt": record["sentAt"],
            "lastEvent": null,
        })
    );
    for field in ["createdAt", "sentAt"] {
        let text = record[field].as_str().unwrap();
        assert_eq!((text.len(), &text[19..20], &text[23..]), (24, ".", "Z"), "{text}");
    }
    let uuid: uuid::Uuid = id.parse().unwrap();
    assert_eq!((uuid.get_version_num(), uuid.to_string()), (7, id));
}

#[tokio::test]
async fn optional_fields_may_be_null() {
    let site = Site::new().await;
    let server = site.start();
    let mut message = message();
    for field in ["cc", "bcc", "reply_to", "html", "headers", "idempotencyKey", "tag"] {
        message[field] = serde_json::Value::Null;
    }
    server.send(&message).await;
}

#[tokio::test]
async fn ids_sort_by_acceptance() {
    let site = Site::new().await;
    let server = site.start();
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(server.send(&message()).await);
    }
    assert!(ids.is_sorted(), "{ids:?}");
}

#[tokio::test]
async fn a_refusal_by_the_provider_is_final_and_says_why() {
    let site = Site::new().await;
    site.simulator.script(vec![Fault::Rejected]);
    let server = site.start();
    let record = server.wait_for(&server.send(&message()).await, "failed").await;
    assert_eq!(record["error"]["code"], "provider_rejected");
    assert_eq!(record["error"]["providerCode"], "MessageRejected");
    assert_eq!(record["attempts"], 1);
    assert_eq!(record["sentAt"], serde_json::Value::Null);
}

#[tokio::test]
async fn a_passing_fault_is_retried_and_its_error_gone_once_sent() {
    let site = Site::with(
        "[sending]\nretry_initial = \"300ms\"\nretry_max = \"400ms\"",
        Options::default(),
    )
    .await;
    site.simulator.script(vec![Fault::Throttled, Fault::ResetBefore]);
    let server = site.start();
    let record = server.wait_for(&server.send(&message()).await, "sent").await;
    assert_eq!(record["attempts"], 3);
    assert_eq!(record["error"], serde_json::Value::Null);
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test]
async fn a_waiting_message_shows_its_last_failure_also_while_it_is_being_sent() {
    let site = Site::with(RETRIES_AT_ONCE, Options::default()).await;
    let server = site.start();
    // The first call is reset at once, the second one is not answered before the test ends.
    site.simulator.script(vec![Fault::ResetBefore]);
    site.simulator.set_latency(std::time::Duration::from_mins(1));
    let id = server.send(&message()).await;
    let record = loop {
        let record = server.wait_for(&id, "sending").await;
        if record["attempts"] == 2 {
            break record;
        }
    };
    assert_eq!(record["error"]["code"], "outcome_unknown");
}

#[tokio::test]
async fn a_record_that_counts_a_later_attempt_tells_of_the_failure_before_it() {
    let site = Site::with(RETRIES_AT_ONCE, Options::default()).await;
    let server = site.start();
    site.simulator.set_latency(std::time::Duration::from_millis(5));
    let read = async |id: &str| loop {
        let record = server.record(id).await;
        if record["status"] == "sent" {
            break;
        }
        let attempts = record["attempts"].as_u64().unwrap();
        assert!(attempts < 2 || record["error"].is_object(), "{record}");
    };
    for _ in 0..100 {
        site.simulator.script(vec![Fault::ResetBefore]);
        let id = server.send(&message()).await;
        tokio::join!(read(&id), read(&id), read(&id), read(&id), read(&id), read(&id));
    }
}

#[tokio::test]
async fn a_lost_answer_fails_at_most_once_senders() {
    let site = Site::with("[sending]\non_unknown = \"fail\"", Options::default()).await;
    site.simulator.script(vec![Fault::ResetAfter]);
    let server = site.start();
    let record = server.wait_for(&server.send(&message()).await, "failed").await;
    assert_eq!(record["error"]["code"], "outcome_unknown");
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test]
async fn a_provider_that_cannot_tell_its_quota_still_gets_mail() {
    let site = Site::new().await;
    site.simulator.set_faults(
        pillarbox_simulator::Faults::always(Fault::AccessDenied)
            .with_scope(pillarbox_simulator::FaultScope::AllCalls),
    );
    let server = site.start();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    site.simulator.set_faults(pillarbox_simulator::Faults::none());
    server.wait_for(&server.send(&message()).await, "sent").await;
}

#[tokio::test]
async fn a_recipient_suppressed_after_acceptance_is_not_written_to() {
    let site = Site::with(
        "[sending]\nretry_initial = \"500ms\"\nretry_max = \"500ms\"",
        Options::default(),
    )
    .await;
    site.simulator.script(vec![Fault::Throttled; 20]);
    let server = site.start();
    let id = server.send(&message_with("to", json!(["Bob <BOB@example.org>"]))).await;
    server.wait_for(&id, "queued").await;
    site.done(&["suppression", "add", "--org", "acme", "bob@example.org"]);
    let record = server.wait_for(&id, "suppressed").await;
    assert_eq!(record["error"]["code"], "recipient_suppressed");
    assert_eq!(site.simulator.accepted_total(), 0);
}

/// The sentences by which SES reports a quota, a rate, a paused account or a missing configuration
/// set, as a lapsed domain's owner may write them into a display name.
const HOSTILE: [&str; 5] = [
    "daily message quota exceeded",
    "Maximum sending rate exceeded",
    "Sending paused for this account",
    "Configuration set <x> does not exist.",
    "on resource: arn:aws:ses:eu-west-1:1:configuration-set/x",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lapsed_domains_sender_writes_delays_no_other_organisation() {
    let site = Site::with("[sending]\nmax_rate = 50.0", Options::default()).await;
    let lapsed = site.add_organisation("beta", "lapsed.example");
    let server = site.start();
    server.ready().await;
    let mut last = None;
    for words in HOSTILE.iter().cycle().take(40) {
        let from = format!("\"{words}\" <a@lapsed.example>");
        let hostile = message_with("from", json!(from)).to_string();
        let post = server.client.post(format!("{}/emails", server.base)).bearer_auth(&lapsed);
        let post = post.header("content-type", "application/json").body(hostile);
        let response = post.send().await.unwrap();
        assert_eq!(response.status(), 200);
        last = Some(answer(response).await.1["id"].as_str().unwrap().to_owned());
    }
    let start = std::time::Instant::now();
    for _ in 0..10 {
        server.wait_for(&server.send(&message()).await, "sent").await;
    }
    // Ten pauses of a second at least, if each of its sentences were believed.
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(6), "{took:?} for ten messages, one by one");
    let (_, readiness) = answer(server.operator("/readyz").await).await;
    assert_eq!(readiness["ready"], true, "{readiness}");
    let codes: Vec<_> = readiness["reasons"].as_array().unwrap().iter().collect();
    assert!(codes.iter().all(|reason| reason["code"] == "domain_paused"), "{readiness}");
    assert_eq!(codes.len(), 1, "{readiness}");
    let url = format!("{}/emails/{}", server.base, last.unwrap());
    let (_, held) = answer(server.client.get(url).bearer_auth(&lapsed).send().await.unwrap()).await;
    assert_eq!(held["status"], "queued", "{held}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organisation_whose_calls_get_no_answer_delays_no_other() {
    // The first probe comes after all that is tried here.
    let site = Site::with("[sending]\nretry_initial = \"2m\"", Options::default()).await;
    let key = site.add_organisation("beta", "hangs.example");
    let server = site.start();
    site.simulator.script(vec![Fault::InternalError; 5]);
    let hanging = message_with("from", json!("a@hangs.example")).to_string();
    for _ in 0..5 {
        let post = server.client.post(format!("{}/emails", server.base)).bearer_auth(&key);
        let post = post.header("content-type", "application/json").body(hanging.clone());
        assert_eq!(post.send().await.unwrap().status(), 200);
    }
    // As long as no call of others succeeds, the provider itself may be down.
    let reason = async |code: &str| {
        let (_, readiness) = answer(server.operator("/readyz").await).await;
        readiness["reasons"].as_array().unwrap().iter().find(|one| one["code"] == code).cloned()
    };
    let end = std::time::Instant::now() + PATIENCE;
    let told = async |code: &str| loop {
        if let Some(reason) = reason(code).await {
            return reason;
        }
        assert!(std::time::Instant::now() < end, "{code} is not told");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(told("unreachable").await["ready"], true);
    server.wait_for(&server.send(&message()).await, "sent").await;
    let paused = told("organisation_paused").await;
    assert_eq!(paused["ready"], true);
    assert!(paused["message"].as_str().unwrap().contains("calls for beta"), "{paused}");
    assert!(paused["advice"].as_str().unwrap().ends_with("--org beta"), "{paused}");
    assert_eq!(reason("unreachable").await, None);
    let metrics = server.operator("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("\npillarbox_paused_organisations 1.0\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_unanswered_calls_are_told_of_everywhere() {
    let more = "[sending]\nrequest_timeout = \"3s\"";
    let site = Site::with(more, Options::default()).await;
    let server = site.start();
    server.ready().await;
    // Accepted, and answered after the time-out.
    site.simulator.script(vec![Fault::Slow; 3]);
    for _ in 0..3 {
        server.send(&message()).await;
    }
    let end = std::time::Instant::now() + PATIENCE;
    let readiness = loop {
        let (status, document) = answer(server.operator("/readyz").await).await;
        assert_eq!(status, 200);
        if document["reasons"].as_array().unwrap().len() == 2 {
            break document;
        }
        assert!(std::time::Instant::now() < end, "{document}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert_eq!(readiness["ready"], true);
    assert_eq!(readiness["reasons"][0]["code"], "provider_slow");
    assert_eq!(readiness["reasons"][1]["code"], "outcomes_unknown");
    let metrics = server.operator("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("\npillarbox_provider_slow 1.0\n"), "{metrics}");
    let told = String::from_utf8(site.done(&["status"]).stdout).unwrap();
    assert!(told.contains("calls to the provider took over 2.5 seconds"), "{told}");
    assert!(told.contains("3 calls of the last 5 minutes got no answer"), "{told}");
    let status = site.done(&["status", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["sending"]["slowCalls"]["slow"], 3, "{status}");
    assert_eq!(status["sending"]["unansweredCalls"], 3, "{status}");
}

/// Waits until the service paces by this rate, in recipients per second.
async fn paced_by(server: &Server, rate: f64) {
    let end = Instant::now() + PATIENCE;
    while limit(server).await != Some(rate) {
        assert!(Instant::now() < end, "the limit is {:?}", limit(server).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn limit(server: &Server) -> Option<f64> {
    metric(server, "pillarbox_send_rate_limit_recipients_per_second").await
}

/// Each renewal of a certificate is such a signal.
#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_keeps_the_accounts_rate_while_ses_does_not_tell_it_again() {
    let options = Options { send_rate: Some(5.0), ..Options::default() };
    let site = Site::with("[sending]\nmax_rate = 1000\n", options).await;
    let server = site.start();
    paced_by(&server, 5.0).await;
    let denied = Faults::always(Fault::AccessDenied).with_scope(FaultScope::OtherCalls);
    site.simulator.set_faults(denied);
    let calls = site.simulator.calls_total();
    server.signal("HUP");
    let end = Instant::now() + PATIENCE;
    while site.simulator.calls_total() == calls {
        assert_eq!(limit(&server).await, Some(5.0), "it is never more than the account's");
        assert!(Instant::now() < end, "SES is asked again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The configured rate holds as before: at once, and no more than it.
    for (from, to, rate) in [("1000", "3", 3.0), ("3", "\"auto\"", 5.0)] {
        site.reconfigure(&format!("max_rate = {from}\n"), &format!("max_rate = {to}\n"));
        server.signal("HUP");
        paced_by(&server, rate).await;
    }
}
