use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::*;
use pillarbox_domain::event::{BounceType, EventDetail};

fn documents() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/it/events/documents")
}

fn guide(name: &str) -> Value {
    let text = fs::read_to_string(documents().join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn read(document: &Value) -> ProviderEvent {
    match parse(&document.to_string()).unwrap() {
        Document::Event(event) => event,
        Document::Other(name) => panic!("{name} is of no account"),
    }
}

fn recipients_event(document: &Value) -> Event {
    match read(document).kind {
        EventKind::Recipients(event) => event,
        EventKind::Send => panic!("a Send has no event"),
    }
}

fn at(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).unwrap()
}

#[test]
fn every_document_of_the_guide_is_read_or_known_to_be_of_no_account() {
    let mut names: Vec<_> =
        fs::read_dir(documents()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    assert_eq!(names.len(), 15);
    let mut others = Vec::new();
    for path in names {
        let text = fs::read_to_string(&path).unwrap();
        match parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            Document::Event(event) => assert_eq!(event.message, MessageTag::Absent),
            Document::Other(name) => others.push(name),
        }
    }
    others.sort_unstable();
    assert_eq!(others, ["Click", "Open", "Rendering Failure", "Subscription"]);
}

#[test]
fn both_forms_of_a_bounce_are_read() {
    let event = read(&guide("event-bounce-record.json"));
    assert_eq!(
        event.ses_message_id,
        "EXAMPLE7c191be45-e9aedb9a-02f9-4d12-a87d-dd0099a07f8a-000000"
    );
    assert_eq!(event.accepted_at, at("2017-08-05T00:40:02.012Z"));
    let expected = Event {
        occurred_at: at("2017-08-05T00:41:02.669Z"),
        recipients: vec!["recipient@example.com".to_owned()],
        detail: EventDetail::Bounce {
            bounce_type: BounceType::Permanent,
            sub_type: "General".to_owned(),
            diagnostic_code: Some("smtp; 550 5.1.1 user unknown".to_owned()),
        },
    };
    assert_eq!(event.kind, EventKind::Recipients(expected));
    let old = recipients_event(&guide("notification-bounce-notification-without-a-dsn.json"));
    assert_eq!(old.recipients, ["jane@example.com", "richard@example.com"]);
    let EventDetail::Bounce { diagnostic_code, .. } = old.detail else { panic!() };
    assert_eq!(diagnostic_code, None);
}

#[test]
fn complaints_deliveries_delays_and_rejects_are_read() {
    let complaint = recipients_event(&guide("event-complaint-record.json"));
    let detail = EventDetail::Complaint { feedback_type: Some("abuse".to_owned()), sub_type: None };
    assert_eq!(complaint.detail, detail);
    let delivery =
        recipients_event(&guide("notification-amazon-sns-delivery-notification-example.json"));
    assert_eq!(delivery.recipients, ["jane@example.com"]);
    let said = Some("250 ok:  Message 64111812 accepted".to_owned());
    assert_eq!(delivery.detail, EventDetail::Delivery { smtp_response: said });
    let delay = recipients_event(&guide("event-deliverydelay-record.json"));
    assert_eq!(delay.occurred_at, at("2020-06-16T00:25:40.095Z"));
    let detail = EventDetail::DeliveryDelay {
        delay_type: "TransientCommunicationFailure".to_owned(),
        diagnostic_code: Some("smtp; 421 4.4.1 Unable to connect to remote host".to_owned()),
    };
    assert_eq!(delay.detail, detail);
    let reject = recipients_event(&guide("event-reject-record.json"));
    assert_eq!(reject.occurred_at, at("2016-10-14T17:38:15.211Z"), "it has no time of its own");
    assert_eq!(reject.recipients, ["sender@example.com"]);
    assert_eq!(read(&guide("event-send-record.json")).kind, EventKind::Send);
}

#[test]
fn our_tags_come_back_from_lists_and_from_plain_words() {
    let id = "01980000-0000-7000-8000-000000000001";
    let mut document = guide("event-send-record.json");
    document["mail"]["tags"][MESSAGE_ID_TAG] = json!([id]);
    document["mail"]["tags"][ORGANISATION_TAG] = json!("acme");
    let event = read(&document);
    assert_eq!(event.message, MessageTag::Id(id.parse().unwrap()));
    assert_eq!(event.organisation.as_deref(), Some("acme"));
    document["mail"]["tags"][MESSAGE_ID_TAG] = json!(["made up"]);
    assert_eq!(read(&document).message, MessageTag::Foreign);
    document["mail"]["tags"][MESSAGE_ID_TAG] = json!({"not": "a tag"});
    assert_eq!(read(&document).message, MessageTag::Absent);
}

#[test]
fn envelopes_are_taken_off() {
    let document = guide("event-bounce-record.json");
    let plain = read(&document);
    let sns = |message: &str| {
        json!({
            "Type": "Notification", "MessageId": "m", "TopicArn": "arn:aws:sns:eu-west-1:1:t",
            "Subject": "Amazon SES Email Event Notification", "Message": message,
            "Timestamp": "2026-11-21T09:30:00.000Z", "SignatureVersion": "2",
        })
    };
    let bridge = json!({
        "version": "0", "id": "i", "detail-type": "Email Bounced", "source": "aws.ses",
        "account": "123456789012", "time": "2017-08-05T00:41:02Z", "region": "eu-west-1",
        "resources": [], "detail": document,
    });
    assert_eq!(read(&sns(&document.to_string())), plain);
    assert_eq!(read(&bridge), plain);
    assert_eq!(read(&sns(&bridge.to_string())), plain);
    let mut deep = document.to_string();
    for _ in 0..5 {
        deep = sns(&deep).to_string();
    }
    assert!(parse(&deep).is_err());
}

#[test]
fn what_belongs_on_the_way_is_no_dead_letter() {
    let greeting = "Successfully validated SNS topic for Amazon SES event publishing.";
    let documents = [
        json!({"Type": "Notification", "Message": greeting}),
        json!({"Type": "SubscriptionConfirmation", "Message": "You have chosen", "Token": "t"}),
        json!({"detail-type": "Sending Status Disabled", "source": "aws.ses", "detail": {}}),
        json!({"notificationType": "AmazonSnsSubscriptionSucceeded", "message": "You have"}),
        json!({"eventType": "Of the future", "mail": 7}),
    ];
    for document in documents {
        let read = parse(&document.to_string()).unwrap();
        assert!(matches!(read, Document::Other(_)), "{document}");
    }
}

#[test]
fn unknown_fields_do_not_matter_and_missing_ones_are_not_made_up() {
    let mut document = guide("event-bounce-record.json");
    document["ofTheFuture"] = json!({"a": [1]});
    document["bounce"]["ofTheFuture"] = json!(7);
    document["mail"]["ofTheFuture"] = json!(null);
    assert_eq!(recipients_event(&document), recipients_event(&guide("event-bounce-record.json")));
    let bare = json!({
        "eventType": "Bounce", "bounce": {},
        "mail": {"timestamp": "2017-08-05T00:40:02.012Z", "messageId": "ses-1"},
    });
    let event = recipients_event(&bare);
    assert_eq!(event.occurred_at, at("2017-08-05T00:40:02.012Z"));
    assert!(event.recipients.is_empty());
    assert!(event.suppresses().is_none());
    for (name, part) in [
        ("Delivery", "delivery"),
        ("Complaint", "complaint"),
        ("Reject", "reject"),
        ("DeliveryDelay", "deliveryDelay"),
    ] {
        let mut document = bare.clone();
        document["eventType"] = json!(name);
        document[part] = json!({});
        assert!(recipients_event(&document).recipients.is_empty(), "{name}");
    }
}

#[test]
fn several_recipients_keep_their_names_and_each_saying_is_kept_once() {
    let mut document = guide("event-bounce-record.json");
    document["bounce"]["bouncedRecipients"] = json!([
        {"emailAddress": "Jane Doe <jane@example.com>", "diagnosticCode": "smtp; 550 a"},
        {"emailAddress": "\"Doe, Mary\" <mary@example.com>", "diagnosticCode": "smtp; 550 a"},
        {"emailAddress": "richard@example.com", "diagnosticCode": "smtp; 550 b"},
        {"status": "5.1.1"},
    ]);
    let event = recipients_event(&document);
    let expected =
        ["Jane Doe <jane@example.com>", "\"Doe, Mary\" <mary@example.com>", "richard@example.com"];
    assert_eq!(event.recipients, expected);
    let EventDetail::Bounce { diagnostic_code, .. } = event.detail else { panic!() };
    assert_eq!(diagnostic_code.as_deref(), Some("smtp; 550 a / smtp; 550 b"));
}

#[test]
fn what_cannot_be_read_says_why_without_an_address() {
    let mail = json!({"timestamp": "2017-08-05T00:40:02.012Z", "messageId": "ses-1"});
    let unreadable = [
        "ann@example.com".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        json!({"eventType": "Bounce", "mail": mail}).to_string(),
        json!({"eventType": "Bounce", "bounce": {}}).to_string(),
        json!({"eventType": "Bounce", "bounce": "ann@example.com", "mail": mail}).to_string(),
        json!({"eventType": "Send", "mail": {"timestamp": "x", "messageId": "a"}}).to_string(),
        json!({"eventType": "Send", "mail": {"timestamp": "2017-08-05T00:40:02Z"}}).to_string(),
        json!({"eventType": "Send",
            "mail": {"timestamp": "2017-08-05T00:40:02Z", "messageId": "ann@example.com\0"}})
        .to_string(),
        json!({"Type": "Notification", "Message": "hello ann@example.com"}).to_string(),
    ];
    for document in unreadable {
        let reason = parse(&document).unwrap_err().to_string();
        assert!(!reason.is_empty() && !reason.contains("ann@"), "{reason}");
    }
}
