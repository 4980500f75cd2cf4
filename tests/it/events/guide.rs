//! The documents of SES's own guide, and variants of them, on the records of messages.

use crate::kit;
use std::time::Duration;

use pillarbox_domain::event::{Event, EventType};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::Transition;
use pillarbox_domain::suppression::SuppressionReason;
use pillarbox_domain::time::Timestamp;
use pillarbox_events::metrics::DocumentType;
use serde_json::{Value, json};

use crate::events::document::{about, guide};
use crate::events::sink::{EventSink, NOW};

/// A document, the event that it makes, and whom it suppresses.
type Row = (&'static str, Option<EventType>, &'static [&'static str]);

const DOCUMENTS: [Row; 15] = [
    ("event-bounce-record.json", Some(EventType::Bounce), &["recipient@example.com"]),
    ("event-click-record.json", None, &[]),
    ("event-complaint-record.json", Some(EventType::Complaint), &["recipient@example.com"]),
    ("event-delivery-record.json", Some(EventType::Delivery), &[]),
    ("event-deliverydelay-record.json", Some(EventType::DeliveryDelay), &[]),
    ("event-open-record.json", None, &[]),
    ("event-reject-record.json", Some(EventType::Reject), &[]),
    ("event-rendering-failure-record.json", None, &[]),
    ("event-send-record.json", None, &[]),
    ("event-subscription-record.json", None, &[]),
    ("notification-amazon-sns-delivery-notification-example.json", Some(EventType::Delivery), &[]),
    (
        "notification-bounce-notification-with-a-dsn.json",
        Some(EventType::Bounce),
        &["jane@example.com"],
    ),
    (
        "notification-bounce-notification-without-a-dsn.json",
        Some(EventType::Bounce),
        &["jane@example.com", "richard@example.com"],
    ),
    (
        "notification-complaint-notification-with-a-feedback-report.json",
        Some(EventType::Complaint),
        &["richard@example.com"],
    ),
    (
        "notification-complaint-notification-without-a-feedback-report.json",
        Some(EventType::Complaint),
        &["richard@example.com"],
    ),
];

/// A message that SES accepted as the document says.
async fn sent_as(sink: &EventSink, document: &Value) -> MessageId {
    let id = sink.new_message().await;
    let mail = &document["mail"];
    let accepted_at = Timestamp::parse_rfc3339(mail["timestamp"].as_str().unwrap()).unwrap();
    let transition = Transition::Sent {
        ses_message_id: mail["messageId"].as_str().unwrap().to_owned(),
        sent_at: accepted_at.plus(Duration::from_millis(200)),
    };
    sink.store.record(id, 1, transition, accepted_at).await.unwrap();
    id
}

fn suppressed(sink: &EventSink) -> Vec<(String, SuppressionReason, Option<MessageId>)> {
    let listed = kit::at_once(sink.store.suppressions(None, 100)).unwrap().suppressions;
    let own = listed.into_iter().map(|(scope, suppression)| {
        assert_eq!(scope, Some(sink.organisation));
        (suppression.address.as_str().to_owned(), suppression.reason, suppression.cause)
    });
    own.collect()
}

#[tokio::test]
async fn every_document_of_the_guide_comes_to_what_it_says() {
    for (name, event_type, addresses) in DOCUMENTS {
        let directory = tempfile::tempdir().unwrap();
        let sink = EventSink::in_directory(directory.path()).await;
        let document = guide(name);
        let id = sent_as(&sink, &document).await;
        for _ in 0..2 {
            sink.events.ingest(&[&document.to_string()]).await.unwrap();
        }
        let events = sink.store.events(id).await.unwrap();
        let types: Vec<EventType> = events.iter().map(Event::event_type).collect();
        assert_eq!(types, event_type.into_iter().collect::<Vec<_>>(), "{name}");
        let message = sink.store.message(id, NOW).await.unwrap().unwrap();
        assert_eq!(message.last_event.map(|last| last.event_type), event_type, "{name}");
        let suppressed = suppressed(&sink);
        let found: Vec<&str> = suppressed.iter().map(|(address, ..)| address.as_str()).collect();
        assert_eq!(found, addresses, "{name}");
        assert!(suppressed.iter().all(|(_, _, cause)| *cause == Some(id)));
        let metrics = sink.events.metrics();
        assert_eq!(
            (metrics.unmatched.get(), metrics.documents(DocumentType::Unreadable)),
            (0, 0),
            "{name}"
        );
    }
}

#[tokio::test]
async fn only_the_recipients_that_bounced_for_good_are_suppressed() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let id = sink.new_message().await;
    let mut hard = about(id, "event-bounce-record.json");
    hard["mail"]["destination"] = json!(["a@x.org", "b@x.org", "c@x.org", "d@x.org", "e@x.org"]);
    hard["bounce"]["bouncedRecipients"] = json!([
        {"emailAddress": "Ann \"The\" Lee <A@X.org>"}, {"emailAddress": "\"Lee, Bo\" <b@x.org>"},
    ]);
    let mut soft = hard.clone();
    soft["bounce"]["bounceType"] = json!("Transient");
    soft["bounce"]["bouncedRecipients"] = json!([{"emailAddress": "c@x.org"}]);
    let mut listed = hard.clone();
    listed["bounce"]["bounceSubType"] = json!("OnAccountSuppressionList");
    listed["bounce"]["bouncedRecipients"] = json!([{"emailAddress": "d@x.org"}]);
    let mut novel = hard.clone();
    novel["bounce"]["bounceType"] = json!("OfTheFuture");
    novel["bounce"]["bouncedRecipients"] = json!([{"emailAddress": "e@x.org"}]);
    for document in [&hard, &soft, &listed, &novel] {
        sink.events.ingest(&[&document.to_string()]).await.unwrap();
    }
    let found: Vec<String> = suppressed(&sink).into_iter().map(|(address, ..)| address).collect();
    assert_eq!(found, ["a@x.org", "b@x.org"]);
    assert_eq!(sink.events(id), 4);
}

#[tokio::test]
async fn documents_of_no_message_of_ours_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let made_up: MessageId = "01980000-0000-7000-8000-000000000001".parse().unwrap();
    let mut foreign = about(made_up, "event-bounce-record.json");
    foreign["mail"]["tags"]["pillarbox-message-id"] = json!(["../../etc/passwd"]);
    let documents = [
        guide("event-bounce-record.json").to_string(),
        about(made_up, "event-delivery-record.json").to_string(),
        foreign.to_string(),
    ];
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    sink.events.ingest(&documents).await.unwrap();
    assert!(suppressed(&sink).is_empty());
    assert_eq!(sink.events.metrics().unmatched.get(), 3);
    assert_eq!(
        sink.store.event_backlog().await.unwrap().unmatched,
        1,
        "only one may find a record"
    );
}
