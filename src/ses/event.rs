//! Events of messages as SES reports them: documents as they arrive from a queue or a topic, read
//! into the domain's events.
//!
//! Takes SES's event publishing and its older feedback notifications, as they are, in SNS's
//! envelope or in `EventBridge`'s. Knows nothing of how a document travels or what follows from it.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::redact;
use crate::send::{MESSAGE_ID_TAG, ORGANISATION_TAG};
use pillarbox_domain::event::{BounceType, Event, EventDetail};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;

/// The most envelopes that may be in each other: `EventBridge` in SNS is two.
const MAX_ENVELOPES: usize = 3;
/// Start of SES's plain words to a topic when it is made the destination of events.
const TOPIC_GREETING: &str = "Successfully validated SNS topic for Amazon SES";
/// The longest message id that is believed; SES's own have about 60 characters.
const MAX_ID_CHARS: usize = 200;
/// SES's own word for unknown, and ours if SES gives no type.
const UNDETERMINED: &str = "Undetermined";

/// A document of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// About a message that the provider accepted.
    Event(ProviderEvent),
    /// Of a type that is of no account here, such as `Open`, `Click` or `Rendering Failure`.
    Other(String),
}

/// Report of the provider about a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderEvent {
    /// Our own id for the message.
    pub message: MessageTag,
    /// The organisation's name, if the message carried it as a tag.
    pub organisation: Option<String>,
    /// SES's id for the message.
    pub ses_message_id: String,
    /// The time at which SES accepted the message.
    pub accepted_at: Timestamp,
    /// Kind of the event, with its details.
    pub kind: EventKind,
}

/// Our own id for a message, as its tag brings it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageTag {
    /// There is no such tag: feedback notifications carry none.
    Absent,
    /// Id of a message.
    Id(MessageId),
    /// Something that we never wrote.
    Foreign,
}

/// Event of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// SES accepted the message.
    Send,
    /// Something happened to recipients.
    Recipients(Event),
}

/// The document is none that SES sends. The reason names no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

impl Unreadable {
    fn new(reason: impl AsRef<str>) -> Self {
        Self(redact(reason.as_ref()))
    }
}

/// Reads a document of an event or a notification.
pub fn parse(text: &str) -> Result<Document, Unreadable> {
    let document = match open(text)? {
        Opened::Report(document) => document,
        Opened::Other(name) => return Ok(Document::Other(name)),
    };
    let Some(name) = event_name(&document) else {
        return Err(Unreadable::new("it has neither an eventType nor a notificationType"));
    };
    // Types of no account are reported before anything else of them is read.
    let Some(report) = ReportType::of(name) else {
        return Ok(Document::Other(shortened(name)));
    };
    let mail: Mail = part(&document, "mail")?;
    let accepted_at = mail.accepted_at()?;
    let kind = read_report(report, &document, &mail, accepted_at)?;
    let message = match mail.tag(MESSAGE_ID_TAG) {
        None => MessageTag::Absent,
        Some(text) => text.parse().map_or(MessageTag::Foreign, MessageTag::Id),
    };
    let organisation = mail.tag(ORGANISATION_TAG).map(str::to_owned);
    let ses_message_id = mail.ses_message_id()?.to_owned();
    let event = ProviderEvent { message, organisation, ses_message_id, accepted_at, kind };
    Ok(Document::Event(event))
}

/// Contents of an envelope.
enum Opened {
    /// A document that may be about a message.
    Report(Value),
    /// Something else that has its place on the way.
    Other(String),
}

/// Takes a document out of its envelopes.
fn open(text: &str) -> Result<Opened, Unreadable> {
    let mut document = json(text)?;
    for _ in 0..=MAX_ENVELOPES {
        if event_name(&document).is_some() {
            return Ok(Opened::Report(document));
        }
        let text = |key: &str| document.get(key).and_then(Value::as_str);
        if let (Some(kind), Some(message)) = (text("Type"), text("Message")) {
            if kind != "Notification" {
                return Ok(Opened::Other(shortened(kind)));
            }
            if message.starts_with(TOPIC_GREETING) {
                return Ok(Opened::Other("topic validation".to_owned()));
            }
            document = json(message)?;
        } else if let (Some(kind), Some(detail)) = (text("detail-type"), document.get("detail")) {
            if event_name(detail).is_none() {
                // Such as `Sending Status Disabled`: about the account, not about a message.
                return Ok(Opened::Other(shortened(kind)));
            }
            document = detail.clone();
        } else {
            return Ok(Opened::Report(document));
        }
    }
    Err(Unreadable::new("it is wrapped in too many SNS or EventBridge envelopes"))
}

fn json(text: &str) -> Result<Value, Unreadable> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        // The parser's own message may repeat what it read; its position is enough.
        let (line, column) = (error.line(), error.column());
        Unreadable::new(format!("it is not JSON at line {line}, column {column}"))
    })?;
    if value.is_object() { Ok(value) } else { Err(Unreadable::new("it is not a JSON object")) }
}

fn event_name(document: &Value) -> Option<&str> {
    ["eventType", "notificationType"].iter().find_map(|key| document.get(key)?.as_str())
}

/// The message, as far as we need it (SES Developer Guide, "The mail object").
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mail<'a> {
    timestamp: &'a str,
    message_id: &'a str,
    #[serde(default)]
    destination: Option<Vec<&'a str>>,
    #[serde(default, borrow)]
    tags: Option<HashMap<&'a str, Values<'a>>>,
}

/// A tag's values: a list, though a message carries each tag once.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values<'a> {
    List(#[serde(borrow)] Vec<&'a str>),
    One(&'a str),
    /// A form that no tag of ours has.
    Unknown(serde::de::IgnoredAny),
}

impl Mail<'_> {
    fn accepted_at(&self) -> Result<Timestamp, Unreadable> {
        instant(self.timestamp, "mail.timestamp")
    }

    fn ses_message_id(&self) -> Result<&str, Unreadable> {
        let id = self.message_id;
        if (1..=MAX_ID_CHARS).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(id)
        } else {
            Err(Unreadable::new("`mail.messageId` is not a message id"))
        }
    }

    fn tag(&self, name: &str) -> Option<&str> {
        match self.tags.as_ref()?.get(name)? {
            Values::List(values) => values.first().copied(),
            Values::One(value) => Some(value),
            Values::Unknown(_) => None,
        }
    }
}

/// Types of document that are about a message's way.
#[derive(Debug, Clone, Copy)]
enum ReportType {
    Send,
    Delivery,
    Bounce,
    Complaint,
    Reject,
    DeliveryDelay,
}

impl ReportType {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "Send" => Self::Send,
            "Delivery" => Self::Delivery,
            "Bounce" => Self::Bounce,
            "Complaint" => Self::Complaint,
            "Reject" => Self::Reject,
            "DeliveryDelay" => Self::DeliveryDelay,
            _ => return None,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delivery<'a> {
    timestamp: Option<&'a str>,
    recipients: Option<Vec<&'a str>>,
    smtp_response: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bounce<'a> {
    timestamp: Option<&'a str>,
    #[serde(rename = "bounceType")]
    kind: Option<&'a str>,
    #[serde(rename = "bounceSubType")]
    sub_type: Option<&'a str>,
    #[serde(borrow)]
    bounced_recipients: Option<Vec<Recipient<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Complaint<'a> {
    timestamp: Option<&'a str>,
    #[serde(rename = "complaintFeedbackType")]
    feedback_type: Option<&'a str>,
    #[serde(rename = "complaintSubType")]
    sub_type: Option<&'a str>,
    #[serde(borrow)]
    complained_recipients: Option<Vec<Recipient<'a>>>,
}

#[derive(Deserialize)]
struct Reject<'a> {
    reason: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeliveryDelay<'a> {
    timestamp: Option<&'a str>,
    delay_type: Option<&'a str>,
    #[serde(borrow)]
    delayed_recipients: Option<Vec<Recipient<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recipient<'a> {
    email_address: Option<&'a str>,
    diagnostic_code: Option<&'a str>,
}

/// Reads the event of a document of this type (SES Developer Guide, "Contents of event data" and
/// "Amazon SNS notification contents"). Missing data stays missing: a bounce without recipients
/// concerns no recipient.
fn read_report(
    report: ReportType,
    document: &Value,
    mail: &Mail<'_>,
    accepted_at: Timestamp,
) -> Result<EventKind, Unreadable> {
    // If SES gives an event no time of its own, the message's counts.
    let at = |time: Option<&str>| time.map_or(Ok(accepted_at), |time| instant(time, "timestamp"));
    let (occurred_at, recipients, detail) = match report {
        ReportType::Send => return Ok(EventKind::Send),
        ReportType::Delivery => {
            let delivery: Delivery<'_> = part(document, "delivery")?;
            let smtp_response = delivery.smtp_response.map(bounded);
            let recipients = owned(delivery.recipients.as_deref());
            (at(delivery.timestamp)?, recipients, EventDetail::Delivery { smtp_response })
        }
        ReportType::Bounce => {
            let bounce: Bounce<'_> = part(document, "bounce")?;
            let recipients = bounce.bounced_recipients.unwrap_or_default();
            let detail = EventDetail::Bounce {
                bounce_type: bounce_type(bounce.kind),
                sub_type: bounded(bounce.sub_type.unwrap_or(UNDETERMINED)),
                diagnostic_code: diagnostic_code(&recipients),
            };
            (at(bounce.timestamp)?, addresses(&recipients), detail)
        }
        ReportType::Complaint => {
            let complaint: Complaint<'_> = part(document, "complaint")?;
            let recipients = complaint.complained_recipients.unwrap_or_default();
            let detail = EventDetail::Complaint {
                feedback_type: complaint.feedback_type.map(bounded),
                sub_type: complaint.sub_type.map(bounded),
            };
            (at(complaint.timestamp)?, addresses(&recipients), detail)
        }
        ReportType::Reject => {
            let reject: Reject<'_> = part(document, "reject")?;
            let reason = bounded(reject.reason.unwrap_or(UNDETERMINED));
            // A rejected message reaches none of its recipients.
            let recipients = owned(mail.destination.as_deref());
            (accepted_at, recipients, EventDetail::Reject { reason })
        }
        ReportType::DeliveryDelay => {
            let delay: DeliveryDelay<'_> = part(document, "deliveryDelay")?;
            let recipients = delay.delayed_recipients.unwrap_or_default();
            let detail = EventDetail::DeliveryDelay {
                delay_type: bounded(delay.delay_type.unwrap_or(UNDETERMINED)),
                diagnostic_code: diagnostic_code(&recipients),
            };
            (at(delay.timestamp)?, addresses(&recipients), detail)
        }
    };
    Ok(EventKind::Recipients(Event { occurred_at, recipients, detail }))
}

fn bounce_type(word: Option<&str>) -> BounceType {
    match word {
        Some("Permanent") => BounceType::Permanent,
        Some("Transient") => BounceType::Transient,
        // A word that is not known must not suppress anybody.
        _ => BounceType::Undetermined,
    }
}

fn owned(recipients: Option<&[&str]>) -> Vec<String> {
    recipients.unwrap_or_default().iter().map(|text| bounded(text)).collect()
}

fn addresses(recipients: &[Recipient<'_>]) -> Vec<String> {
    recipients.iter().filter_map(|recipient| recipient.email_address).map(bounded).collect()
}

/// Joins what the recipients' servers said, without repeats.
fn diagnostic_code(recipients: &[Recipient<'_>]) -> Option<String> {
    let mut codes: Vec<&str> = Vec::new();
    for code in recipients.iter().filter_map(|recipient| recipient.diagnostic_code) {
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    (!codes.is_empty()).then(|| bounded(&codes.join(" / ")))
}

/// Reads the object at `key`.
fn part<'a, T: Deserialize<'a>>(document: &'a Value, key: &str) -> Result<T, Unreadable> {
    let value = document.get(key).ok_or_else(|| Unreadable::new(format!("`{key}` is missing")))?;
    T::deserialize(value).map_err(|error| Unreadable::new(format!("in `{key}`: {error}")))
}

/// Reads an instant of SES's: RFC 3339, with any offset.
fn instant(text: &str, what: &str) -> Result<Timestamp, Unreadable> {
    Timestamp::parse_rfc3339_with_offset(text.trim())
        .map_err(|_| Unreadable::new(format!("`{what}` is not a time")))
}

/// A text of the provider's for a record, cut if it is longer than any real one.
fn bounded(text: &str) -> String {
    const MAX_BYTES: usize = 2_048;
    text[..text.floor_char_boundary(MAX_BYTES)].to_owned()
}

/// A name of the provider's for a log.
fn shortened(name: &str) -> String {
    const MAX_CHARS: usize = 64;
    name.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests;
