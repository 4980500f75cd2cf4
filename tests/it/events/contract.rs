//! The contract's section 3, row by row, as far as no other file here has it.

use crate::kit;
use pillarbox_domain::event::{BounceType, Event, EventDetail, EventType};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{State, Status};
use pillarbox_domain::suppression::SuppressionReason;
use pillarbox_domain::time::Timestamp;
use serde_json::{Value, json};

use crate::events::document::{about, send};
use crate::events::sink::{EventSink, NOW};

/// The documents of the five types, in rising rank.
const RANKED: [(&str, &str, EventType); 5] = [
    ("event-deliverydelay-record.json", "deliveryDelay", EventType::DeliveryDelay),
    ("event-delivery-record.json", "delivery", EventType::Delivery),
    ("event-reject-record.json", "reject", EventType::Reject),
    ("event-bounce-record.json", "bounce", EventType::Bounce),
    ("event-complaint-record.json", "complaint", EventType::Complaint),
];
const INSTANT: &str = "2026-11-21T09:30:00.123Z";

async fn ingest(sink: &EventSink, document: &Value) {
    sink.events.ingest(&[&document.to_string()]).await.unwrap();
}

/// A document of this type about the message, at this instant.
fn at(id: MessageId, name: &str, part: &str, instant: &str) -> Value {
    let mut document = about(id, name);
    // A reject has no time of its own: the message's counts.
    document["mail"]["timestamp"] = json!(instant);
    document[part]["timestamp"] = json!(instant);
    document
}

fn suppressed(sink: &EventSink) -> Vec<(String, SuppressionReason)> {
    let listed = kit::at_once(sink.store.suppressions(None, 100)).unwrap().suppressions;
    let own = listed.into_iter().map(|(_, s)| (s.address.as_str().to_owned(), s.reason));
    own.collect()
}

#[tokio::test]
async fn of_events_at_one_instant_the_gravest_is_the_last_in_whatever_order_they_come() {
    for turned in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let sink = EventSink::in_directory(directory.path()).await;
        let id = sink.new_message().await;
        let mut ranked = RANKED.to_vec();
        if turned {
            ranked.reverse();
        }
        for (count, (name, part, event_type)) in (1..).zip(&ranked) {
            ingest(&sink, &at(id, name, part, INSTANT)).await;
            let last = sink.store.message(id, NOW).await.unwrap().unwrap().last_event.unwrap();
            let gravest = if turned { EventType::Complaint } else { *event_type };
            assert_eq!(
                (last.event_type, last.occurred_at.to_string().as_str()),
                (gravest, INSTANT)
            );
            assert_eq!(sink.events(id), count);
        }
        let types: Vec<EventType> =
            sink.store.events(id).await.unwrap().iter().map(Event::event_type).collect();
        assert_eq!(types, RANKED.map(|(_, _, event_type)| event_type), "oldest first, by rank");
        // A later one of the least rank is the last all the same.
        let later = at(id, RANKED[0].0, RANKED[0].1, "2026-11-21T09:30:00.124Z");
        ingest(&sink, &later).await;
        let last = sink.store.message(id, NOW).await.unwrap().unwrap().last_event.unwrap();
        assert_eq!(last.event_type, EventType::DeliveryDelay);
    }
}

#[tokio::test]
async fn of_reports_of_one_event_that_differ_in_detail_the_same_one_stays() {
    let mut kept = Vec::new();
    for turned in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let sink = EventSink::in_directory(directory.path()).await;
        let id = sink.new_message().await;
        let mut reports = ["250 ok", "250 2.0.0 queued"].map(|response| {
            let mut document = at(id, RANKED[1].0, RANKED[1].1, INSTANT);
            document["delivery"]["smtpResponse"] = json!(response);
            document
        });
        if turned {
            reports.reverse();
        }
        for report in &reports {
            ingest(&sink, report).await;
        }
        assert_eq!(sink.events(id), 1);
        kept.push(sink.store.events(id).await.unwrap().remove(0).detail);
    }
    assert_eq!(kept[0], kept[1]);
}

#[tokio::test]
async fn each_type_keeps_what_ses_told_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let id = sink.new_message().await;
    let mut documents = RANKED.map(|(name, part, _)| at(id, name, part, INSTANT));
    documents[0]["deliveryDelay"]["delayType"] = json!("MailboxFull");
    documents[0]["deliveryDelay"]["delayedRecipients"] =
        json!([{"emailAddress": "bob@example.org", "diagnosticCode": "smtp; 452 full"}]);
    documents[1]["delivery"]["smtpResponse"] = json!("250 ok");
    documents[2]["reject"]["reason"] = json!("Bad content");
    documents[3]["bounce"]["bounceSubType"] = json!("NoEmail");
    documents[3]["bounce"]["bouncedRecipients"] =
        json!([{"emailAddress": "bob@example.org", "diagnosticCode": "smtp; 550 5.1.1"}]);
    documents[4]["complaint"]["complaintFeedbackType"] = json!("abuse");
    for document in &documents {
        ingest(&sink, document).await;
    }
    let text = |text: &str| text.to_owned();
    let details: Vec<EventDetail> =
        sink.store.events(id).await.unwrap().into_iter().map(|event| event.detail).collect();
    let expected = [
        EventDetail::DeliveryDelay {
            delay_type: text("MailboxFull"),
            diagnostic_code: Some(text("smtp; 452 full")),
        },
        EventDetail::Delivery { smtp_response: Some(text("250 ok")) },
        EventDetail::Reject { reason: text("Bad content") },
        EventDetail::Bounce {
            bounce_type: BounceType::Permanent,
            sub_type: text("NoEmail"),
            diagnostic_code: Some(text("smtp; 550 5.1.1")),
        },
        EventDetail::Complaint { feedback_type: Some(text("abuse")), sub_type: None },
    ];
    assert_eq!(details, expected);
}

#[tokio::test]
async fn a_complaint_suppresses_all_whom_it_names_and_ses_own_list_suppresses_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let id = sink.new_message().await;
    for sub_type in [
        "Suppressed",
        "OnAccountSuppressionList",
        "OnTenantSuppressionList",
        "EmailValidationSuppressed",
        "UnsubscribedRecipient",
    ] {
        let mut listed = about(id, "event-complaint-record.json");
        listed["complaint"]["complaintSubType"] = json!(sub_type);
        ingest(&sink, &listed).await;
        let mut bounce = about(id, "event-bounce-record.json");
        bounce["bounce"]["bounceSubType"] = json!(sub_type);
        bounce["bounce"]["bouncedRecipients"] = json!([{"emailAddress": "bob@example.org"}]);
        ingest(&sink, &bounce).await;
    }
    ingest(&sink, &about(id, "event-deliverydelay-record.json")).await;
    let mut wanted = about(id, "event-complaint-record.json");
    wanted["complaint"]["complaintFeedbackType"] = json!("not-spam");
    ingest(&sink, &wanted).await;
    assert!(suppressed(&sink).is_empty());

    let mut complaint = at(id, "event-complaint-record.json", "complaint", INSTANT);
    complaint["complaint"]["complainedRecipients"] =
        json!([{"emailAddress": "A@x.org"}, {"emailAddress": "b@B\u{fc}cher.example"}]);
    ingest(&sink, &complaint).await;
    let reason = SuppressionReason::Complaint;
    let expected = ["a@x.org", "b@xn--bcher-kva.example"].map(|who| (who.to_owned(), reason));
    assert_eq!(suppressed(&sink), expected);
    let since = sink.store.suppressions(None, 1).await.unwrap().suppressions[0].1.since;
    assert_eq!(
        since,
        Timestamp::parse_rfc3339(INSTANT).unwrap(),
        "since the event, not its coming"
    );
}

#[tokio::test]
async fn another_organisations_or_a_made_up_tag_changes_no_record_and_suppresses_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    sink.store.add_organisation("beta".parse().unwrap()).await.unwrap().unwrap();
    let id = sink.new_message().await;
    for (name, part, _) in RANKED {
        for organisation in ["beta", "nobody", ""] {
            let mut document = at(id, name, part, INSTANT);
            document["mail"]["tags"]["pillarbox-organisation"] = json!([organisation]);
            ingest(&sink, &document).await;
        }
    }
    let mut proof = send(id);
    proof["mail"]["tags"]["pillarbox-organisation"] = json!(["beta"]);
    ingest(&sink, &proof).await;
    let message = sink.store.message(id, NOW).await.unwrap().unwrap();
    assert_eq!((message.status(), message.last_event), (Status::Queued, None));
    assert_eq!(sink.events(id), 0);
    assert!(suppressed(&sink).is_empty());
    assert_eq!(sink.events.metrics().foreign.get(), 16);
}

#[tokio::test]
async fn times_are_read_with_any_offset() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let utc = Timestamp::parse_rfc3339("2026-11-25T01:23:58.779Z").unwrap();
    for (address, offset) in [
        ("a@x.org", "2026-11-24T18:23:58.779-07:00"),
        ("b@x.org", "2026-11-25T06:53:58.779+0530"),
        ("c@x.org", "2026-11-25T01:23:58.779+00:00"),
        ("d@x.org", "2026-11-25T03:23:58.779+02"),
    ] {
        let id = sink.new_message().await;
        let mut bounce = at(id, "event-bounce-record.json", "bounce", offset);
        bounce["bounce"]["bouncedRecipients"] = json!([{ "emailAddress": address }]);
        ingest(&sink, &bounce).await;
        let message = sink.store.message(id, NOW).await.unwrap().unwrap();
        assert_eq!(message.last_event.unwrap().occurred_at, utc, "{offset}");
        // It proves that SES accepted the message, at that instant.
        let State::Sent { sent_at, .. } = message.state else { panic!("{message:?}") };
        assert_eq!(sent_at, utc, "{offset}");
        assert_eq!(suppressed(&sink).last().unwrap().0, address);
    }
    assert!(sink.store.dead_letters(10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_recipient_in_another_form_is_suppressed_and_one_that_cannot_be_read_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let mut expected = Vec::new();
    for (n, form) in
        ["rfc822; {}", "{} (Bob)", "<<{}>>", "{}.", "{}\r\n", "Bob <{}>"].into_iter().enumerate()
    {
        let id = sink.new_message().await;
        let address = format!("r{n}@x.org");
        let mut bounce = about(id, "event-bounce-record.json");
        let text = form.replace("{}", &address);
        bounce["bounce"]["bouncedRecipients"] = json!([{ "emailAddress": text }]);
        ingest(&sink, &bounce).await;
        expected.push((address, SuppressionReason::Bounce));
        assert_eq!(suppressed(&sink), expected, "{text:?}");
    }
    assert!(sink.store.dead_letters(10).await.unwrap().is_empty());

    let id = sink.new_message().await;
    let mut complaint = about(id, "event-complaint-record.json");
    complaint["complaint"]["complainedRecipients"] =
        json!([{ "emailAddress": "y@x.org, z@x.org" }, { "emailAddress": "r9@x.org" }]);
    ingest(&sink, &complaint).await;
    // What can be read counts.
    expected.push(("r9@x.org".to_owned(), SuppressionReason::Complaint));
    assert_eq!(suppressed(&sink), expected);
    assert_eq!(sink.events(id), 1);
    let letters = sink.store.dead_letters(10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert!(letters[0].document.contains("y@x.org, z@x.org"), "{letters:?}");
    assert!(letters[0].reason.contains("recipient"), "{letters:?}");
}
