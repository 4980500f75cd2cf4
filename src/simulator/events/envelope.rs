//! What events are wrapped in: SNS's notification, `EventBridge`'s event.
//!
//! Must not know what the events say.

use serde::Serialize;

use super::super::ACCOUNT;
use super::super::caught::CaughtMessage;
use super::{EventType, Publisher};
use crate::domain::time::Timestamp;

/// SES's subject for what it publishes through a configuration set.
const SUBJECT: &str = "Amazon SES Email Event Notification";
/// Not a signature: nobody who reads from a queue checks it, since the queue's policy decides who
/// may write there. "EXAMPLE" in base64.
const SIGNATURE: &str = "RVhBTVBMRQ==";
const CERTIFICATE: &str = "SimpleNotificationService-00000000000000000000000000000000.pem";

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Notification<'a> {
    r#type: &'static str,
    message_id: String,
    topic_arn: &'a str,
    subject: &'static str,
    message: &'a str,
    timestamp: String,
    signature_version: &'static str,
    signature: &'static str,
    #[serde(rename = "SigningCertURL")]
    signing_cert_url: String,
    #[serde(rename = "UnsubscribeURL")]
    unsubscribe_url: String,
}

/// An SNS notification with the event as its message.
pub(super) fn sns(publisher: Publisher<'_>, event: &str, at: Timestamp) -> String {
    let Publisher { ids, region, topic } = publisher;
    let host = format!("https://sns.{region}.amazonaws.com");
    let notification = Notification {
        r#type: "Notification",
        message_id: ids.uuid(),
        topic_arn: topic,
        subject: SUBJECT,
        message: event,
        timestamp: at.to_string(),
        signature_version: "2",
        signature: SIGNATURE,
        signing_cert_url: format!("{host}/{CERTIFICATE}"),
        unsubscribe_url: format!(
            "{host}/?Action=Unsubscribe&SubscriptionArn={topic}:{}",
            ids.uuid()
        ),
    };
    serde_json::to_string(&notification).expect("a notification is plain JSON")
}

/// An `EventBridge` event with the event as its detail.
pub(super) fn event_bridge(
    publisher: Publisher<'_>,
    event_type: EventType,
    message: &CaughtMessage,
    event: &str,
    at: Timestamp,
) -> String {
    let Publisher { ids, region, .. } = publisher;
    let detail_type = match event_type {
        EventType::Send => "Email Sent",
        EventType::Delivery => "Email Delivered",
        EventType::Bounce => "Email Bounced",
        EventType::Complaint => "Email Complaint Received",
    };
    let set = message.configuration_set.as_ref();
    let resources: Vec<_> = set
        .map(|name| format!("arn:aws:ses:{region}:{ACCOUNT}:configuration-set/{name}"))
        .into_iter()
        .collect();
    let detail: serde_json::Value = serde_json::from_str(event).expect("events are JSON");
    let seconds = at.to_string();
    let seconds = seconds.split('.').next().expect("a split has a first part");
    serde_json::json!({
        "version": "0",
        "id": ids.uuid(),
        "detail-type": detail_type,
        "source": "aws.ses",
        "account": ACCOUNT,
        "time": format!("{seconds}Z"),
        "region": region,
        "resources": resources,
        "detail": detail,
    })
    .to_string()
}
