//! Documents as SES would send them about messages of ours.

use std::path::{Path, PathBuf};

use pillarbox_domain::id::MessageId;
use pillarbox_ses::send::{MESSAGE_ID_TAG, ORGANISATION_TAG};
use serde_json::{Value, json};

/// Directory of the documents of SES's guide.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/events/documents")
}

/// A document of SES's guide.
pub(crate) fn guide(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(directory().join(name)).unwrap()).unwrap()
}

/// A document of the guide, as it would be for a message of `acme`.
pub(crate) fn about(id: MessageId, name: &str) -> Value {
    let mut document = guide(name);
    document["mail"]["messageId"] = json!(format!("ses-{id}"));
    document["mail"]["tags"][MESSAGE_ID_TAG] = json!([id.to_string()]);
    document["mail"]["tags"][ORGANISATION_TAG] = json!(["acme"]);
    document
}

/// Event of SES: the message was delivered.
pub(crate) fn delivery(id: MessageId) -> Value {
    about(id, "event-delivery-record.json")
}

/// Event of SES: SES accepted the message.
pub(crate) fn send(id: MessageId) -> Value {
    about(id, "event-send-record.json")
}

/// Puts a document into SNS's envelope.
pub(crate) fn in_sns(document: &Value) -> Value {
    json!({
        "Type": "Notification",
        "MessageId": "5dc2e5d1-0000-5000-8000-000000000000",
        "TopicArn": "arn:aws:sns:eu-west-1:123456789012:pillarbox",
        "Subject": "Amazon SES Email Event Notification",
        "Message": document.to_string(),
        "Timestamp": "2026-11-21T09:30:00.000Z",
        "SignatureVersion": "2",
        "Signature": "AA==",
    })
}

/// Puts a document into `EventBridge`'s envelope.
pub(crate) fn in_event_bridge(document: &Value) -> Value {
    json!({
        "version": "0",
        "id": "12345678-1234-1234-1234-123456789012",
        "detail-type": "Email Delivered",
        "source": "aws.ses",
        "account": "123456789012",
        "region": "eu-west-1",
        "detail": document,
    })
}

/// The message that a document's tag names, through SNS's envelope.
pub(crate) fn message_of(body: &str) -> Option<MessageId> {
    let mut document: Value = serde_json::from_str(body).ok()?;
    if let Some(message) = document["Message"].as_str() {
        document = serde_json::from_str(message).ok()?;
    }
    document["mail"]["tags"][MESSAGE_ID_TAG][0].as_str()?.parse().ok()
}
