//! The part of a document that says what happened, by its type (SES Developer Guide, "Contents of
//! event data" and "Amazon SNS notification contents").
//!
//! What SES leaves out is not made up: a bounce that names nobody concerns nobody.

use serde::Deserialize;
use serde_json::Value;

use crate::domain::event::{BounceType, Event, EventDetail};
use crate::domain::time::Timestamp;
use crate::ses::event::mail::Mail;
use crate::ses::event::{EventKind, Unreadable, bounded, instant, part};

/// SES's word where it cannot tell, and ours where it does not.
const UNDETERMINED: &str = "Undetermined";

/// The types of document that are about a message's way.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Send,
    Delivery,
    Bounce,
    Complaint,
    Reject,
    DeliveryDelay,
}

impl Kind {
    pub(super) fn of(name: &str) -> Option<Self> {
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

/// Reads what a document of this type says.
pub(super) fn read(
    kind: Kind,
    document: &Value,
    mail: &Mail<'_>,
    accepted_at: Timestamp,
) -> Result<EventKind, Unreadable> {
    // Where SES gives an event no time of its own, the message's counts.
    let at = |time: Option<&str>| time.map_or(Ok(accepted_at), |time| instant(time, "timestamp"));
    let (occurred_at, recipients, detail) = match kind {
        Kind::Send => return Ok(EventKind::Send),
        Kind::Delivery => {
            let delivery: Delivery<'_> = part(document, "delivery")?;
            let smtp_response = delivery.smtp_response.map(bounded);
            let recipients = owned(delivery.recipients.as_deref());
            (at(delivery.timestamp)?, recipients, EventDetail::Delivery { smtp_response })
        }
        Kind::Bounce => {
            let bounce: Bounce<'_> = part(document, "bounce")?;
            let recipients = bounce.bounced_recipients.unwrap_or_default();
            let detail = EventDetail::Bounce {
                bounce_type: bounce_type(bounce.kind),
                sub_type: bounded(bounce.sub_type.unwrap_or(UNDETERMINED)),
                diagnostic_code: diagnostic_code(&recipients),
            };
            (at(bounce.timestamp)?, addresses(&recipients), detail)
        }
        Kind::Complaint => {
            let complaint: Complaint<'_> = part(document, "complaint")?;
            let recipients = complaint.complained_recipients.unwrap_or_default();
            let detail = EventDetail::Complaint {
                feedback_type: complaint.feedback_type.map(bounded),
                sub_type: complaint.sub_type.map(bounded),
            };
            (at(complaint.timestamp)?, addresses(&recipients), detail)
        }
        Kind::Reject => {
            let reject: Reject<'_> = part(document, "reject")?;
            let reason = bounded(reject.reason.unwrap_or(UNDETERMINED));
            // A rejected message reaches none of its recipients.
            let recipients = owned(mail.destination.as_deref());
            (accepted_at, recipients, EventDetail::Reject { reason })
        }
        Kind::DeliveryDelay => {
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

/// What the recipients' servers said, each saying once.
fn diagnostic_code(recipients: &[Recipient<'_>]) -> Option<String> {
    let mut codes: Vec<&str> = Vec::new();
    for code in recipients.iter().filter_map(|recipient| recipient.diagnostic_code) {
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    (!codes.is_empty()).then(|| bounded(&codes.join(" / ")))
}
