//! Sends, records and cancellations in Resend's shape.

use std::sync::Arc;

use pillarbox_simulator::CapturedMessage;
use serde_json::{Value, json};

use super::{Resend, email_with, full_email};
use crate::kit::{Site, answer, message};

/// Messages that were sent to an address.
fn captured(site: &Site, address: &str) -> Vec<Arc<CapturedMessage>> {
    let is_to = |mail: &Arc<CapturedMessage>| mail.to.iter().any(|to| to.contains(address));
    site.simulator.messages().into_iter().filter(is_to).collect()
}

#[tokio::test]
async fn every_field_reaches_the_provider_and_the_record_says_what_is_kept() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let id = resend.send(&full_email()).await;
    resend.server.wait_for(&id, "sent").await;
    let sent = captured(&site, "bob@example.org");
    let sent = sent.first().expect("it was sent");
    assert_eq!(sent.reply_to, ["desk@example.com", "\"Ann\" <ann@example.com>"]);
    assert_eq!((sent.cc.len(), sent.bcc.len()), (1, 1));
    let headers: Vec<_> =
        sent.headers.iter().map(|one| (one.name.as_str(), one.value.as_str())).collect();
    assert!(headers.contains(&("List-Unsubscribe-Post", "List-Unsubscribe=One-Click")));
    assert!(headers.contains(&("In-Reply-To", "<1@example.com>")));
    assert!(headers.contains(&("References", "<0@example.com> <1@example.com>")));
    let files: Vec<_> =
        sent.attachments.iter().map(|file| (file.filename.as_str(), &file.content[..])).collect();
    assert_eq!(files[0], ("a.txt", &b"Hello"[..]));
    assert_eq!(files[1], ("b.bin", &[0, 127, 255][..]));
    assert_eq!(files[2].0, "logo.png");

    let record = resend.get(&format!("/emails/{id}")).await;
    assert_eq!(
        record,
        json!({
            "object": "email",
            "id": id,
            "from": "Ann <ann@example.com>",
            "to": ["Bob <bob@example.org>", "eve@example.org", "carol@example.org",
                   "dave@example.org"],
            "cc": [], "bcc": [], "reply_to": [],
            "created_at": record["created_at"],
            "subject": "Hello",
            "html": null, "text": null,
            "last_event": "sent",
            "scheduled_at": null,
            "tags": [{ "name": "kind", "value": "receipt" }],
        })
    );
    let own = resend.server.record(&id).await;
    assert_eq!(
        (&own["createdAt"], &own["metadata"]["kind"]),
        (&record["created_at"], &json!("receipt"))
    );
}

#[tokio::test]
async fn a_key_names_the_same_message_over_both_listeners() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let post = |key: &str| resend.post("/emails", &message()).header("Idempotency-Key", key);
    let first = post("order-17").send().await.unwrap();
    assert!(!first.headers().contains_key("idempotent-replayed"));
    let first = answer(first).await.1;
    // A retry after a lost answer, also with another body.
    let again = resend.post("/emails", &full_email()).header("idempotency-key", "order-17");
    let again = again.send().await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(answer(again).await.1, first);
    let mut body = message();
    body["idempotencyKey"] = json!("order-17");
    assert_eq!(json!({ "id": resend.server.send(&body).await }), first);
    body["idempotencyKey"] = json!("order-18");
    let own = resend.server.send(&body).await;
    assert_eq!(answer(post("order-18").send().await.unwrap()).await.1, json!({ "id": own }));
    // On the other listener the header counts for nothing.
    let ignored = resend.server.post(&message()).header("Idempotency-Key", "order-17");
    let ignored = ignored.send().await.unwrap();
    assert!(ignored.headers().contains_key("pillarbox-notice"));
    assert_ne!(answer(ignored).await.1, first);
}

#[tokio::test]
async fn shapes_of_other_frameworks_are_read() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    // Symfony: tags by name, and Reply-To a second time among the headers, encoded.
    let symfony = email_with(json!({
        "to": "Bob <bob@example.org>",
        "reply_to": "J\u{fc}rgen <desk@example.com>",
        "headers": { "Reply-To": "=?utf-8?Q?J=C3=BCrgen?= <Desk@example.com>", "X-A": "b" },
        "tags": [{ "X-Tag": "signup" }],
    }));
    let id = resend.send(&symfony).await;
    assert_eq!(resend.server.record(&id).await["metadata"], json!({ "X-Tag": "signup" }));
    resend.server.wait_for(&id, "sent").await;
    let sent = captured(&site, "bob@example.org");
    let names: Vec<_> = sent[0].headers.iter().map(|header| header.name.as_str()).collect();
    assert_eq!((names, sent[0].reply_to.len()), (vec!["X-A"], 1));
    let id = resend.send(&email_with(json!({ "tags": { "kind": "x" } }))).await;
    assert_eq!(resend.get(&format!("/emails/{id}")).await["tags"][0]["name"], "kind");
    // Laravel: everything that is not given is null or empty, and PHP's empty map is a list.
    let laravel = email_with(json!({
        "cc": [], "bcc": [], "reply_to": [], "headers": [], "html": null, "attachments": [],
        "tags": [], "scheduled_at": null, "template": null, "topic_id": null,
    }));
    resend.send(&laravel).await;
    // Node's `Buffer`, as `JSON.stringify` writes it.
    let buffer = json!({ "type": "Buffer", "data": [104, 105] });
    let files = json!([{ "filename": "a.txt", "content": buffer, "path": null }]);
    let body = email_with(json!({ "to": ["file@example.org"], "attachments": files }));
    let id = resend.send(&body).await;
    resend.server.wait_for(&id, "sent").await;
    let sent = captured(&site, "file@example.org");
    assert_eq!(sent[0].attachments[0].content, &b"hi"[..]);
}

#[tokio::test]
async fn a_waiting_message_is_cancelled_and_a_sent_one_is_not() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let sent = resend.send(&message()).await;
    resend.server.wait_for(&sent, "sent").await;
    let path = format!("/emails/{sent}/cancel");
    let (status, name, _) = resend.refused(resend.request("POST", &path)).await;
    assert_eq!((status, name.as_str()), (422, "validation_error"));
    assert_eq!(resend.get(&format!("/emails/{sent}")).await["last_event"], "sent");

    site.done(&["org", "pause", "acme"]);
    let queued = resend.send(&message()).await;
    assert_eq!(resend.get(&format!("/emails/{queued}")).await["last_event"], "queued");
    let path = format!("/emails/{queued}/cancel");
    // Without a body, as Go sends it, and with an empty object.
    let cancelled = |body: Option<&Value>| match body {
        Some(body) => resend.post(&path, body),
        None => resend.request("POST", &path),
    };
    for body in [None, Some(&json!({}))] {
        let (status, body) = answer(cancelled(body).send().await.unwrap()).await;
        assert_eq!((status.as_u16(), body), (200, json!({ "object": "email", "id": queued })));
    }
    assert_eq!(resend.get(&format!("/emails/{queued}")).await["last_event"], "canceled");
    let (_, name, message) = resend.refused(cancelled(Some(&json!({ "now": true })))).await;
    assert_eq!(name, "validation_error");
    assert!(message.starts_with("now: unknown field"), "{message}");
}
