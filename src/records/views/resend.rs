//! Messages and their events in Resend's words: the records that its SDKs read, and the events that
//! they receive.
//!
//! One table maps our events to Resend's.

use std::collections::BTreeMap;

use serde::Serialize;

use pillarbox_domain::event::{BounceType, Event, EventDetail, EventType};
use pillarbox_domain::feed::{FeedChange, FeedEntry, FeedEventType};
use pillarbox_domain::message::{FailureCode, Message, State, Status};
use pillarbox_domain::suppression::is_stopped_at_ses;

/// A message's record, as `GET /emails/{id}` of Resend's API has it.
#[derive(Debug, Serialize)]
pub struct EmailView {
    object: &'static str,
    id: String,
    from: String,
    /// All recipients: which of them had a copy is not kept.
    to: Vec<String>,
    cc: [String; 0],
    bcc: [String; 0],
    reply_to: [String; 0],
    created_at: String,
    subject: String,
    /// Bodies are not kept.
    html: Option<String>,
    text: Option<String>,
    last_event: &'static str,
    scheduled_at: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<TagView>,
}

#[derive(Debug, Serialize)]
struct TagView {
    name: String,
    value: String,
}

impl EmailView {
    /// The view of a message.
    pub fn new(message: Message) -> Self {
        let last_event = last_event(&message);
        let tags = message.metadata.unwrap_or_default().into_iter();
        Self {
            object: "email",
            id: message.id.to_string(),
            from: message.from,
            to: message.recipients,
            cc: [],
            bcc: [],
            reply_to: [],
            created_at: message.created_at.to_string(),
            subject: message.subject,
            html: None,
            text: None,
            last_event,
            scheduled_at: None,
            tags: tags.map(|(name, value)| TagView { name, value }).collect(),
        }
    }
}

/// Resend's word for how a message stands: that of its latest event, or of its status.
pub fn last_event(message: &Message) -> &'static str {
    if let Some(event) = message.last_event {
        return observed(event.event_type);
    }
    match message.status() {
        // Resend has no word for a call that is under way.
        Status::Queued | Status::Sending => "queued",
        Status::Sent => "sent",
        Status::Suppressed => "suppressed",
        Status::Failed => match &message.state {
            State::Failed { failure, .. } if failure.code == FailureCode::Cancelled => "canceled",
            _ => "failed",
        },
    }
}

/// Resend's name for the events of a type.
pub fn event_name(event: FeedEventType) -> String {
    let word = match event {
        FeedEventType::Sent => "sent",
        FeedEventType::Failed => "failed",
        FeedEventType::Suppressed => "suppressed",
        FeedEventType::Delivery => observed(EventType::Delivery),
        FeedEventType::Bounce => observed(EventType::Bounce),
        FeedEventType::Complaint => observed(EventType::Complaint),
        FeedEventType::Reject => observed(EventType::Reject),
        FeedEventType::DeliveryDelay => observed(EventType::DeliveryDelay),
    };
    format!("email.{word}")
}

/// Resend's word for an event of a recipient.
const fn observed(event: EventType) -> &'static str {
    match event {
        EventType::Delivery => "delivered",
        EventType::Bounce => "bounced",
        EventType::Complaint => "complained",
        EventType::Reject => "failed",
        EventType::DeliveryDelay => "delivery_delayed",
    }
}

/// An event, as Resend posts it to endpoints.
#[derive(Debug, Serialize)]
pub struct ResendEventView {
    #[serde(rename = "type")]
    event_type: String,
    created_at: String,
    data: DataView,
}

#[derive(Debug, Default, Serialize)]
struct DataView {
    email_id: String,
    created_at: String,
    from: String,
    to: Vec<String>,
    subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bounce: Option<BounceView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<FailedView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed: Option<SuppressedView>,
}

#[derive(Debug, Serialize)]
struct BounceView {
    message: String,
    #[serde(rename = "type")]
    bounce_type: &'static str,
    #[serde(rename = "subType")]
    sub_type: String,
}

#[derive(Debug, Serialize)]
struct FailedView {
    reason: String,
}

#[derive(Debug, Serialize)]
struct SuppressedView {
    message: String,
    #[serde(rename = "type")]
    reason: &'static str,
}

impl ResendEventView {
    /// The view of an entry of the feed.
    pub fn new(entry: &FeedEntry) -> Self {
        let FeedEntry { position: _, recorded_at, message, change } = entry;
        let mut data = DataView {
            email_id: message.id.to_string(),
            created_at: message.created_at.to_string(),
            from: message.from.clone(),
            to: message.recipients.clone(),
            subject: message.subject.clone(),
            tags: message.metadata.clone(),
            ..DataView::default()
        };
        let reason = || message.failure().map_or_else(String::new, |one| one.message.clone());
        let mut at = recorded_at;
        match change {
            FeedChange::Sent => {}
            FeedChange::Failed => data.failed = Some(FailedView { reason: reason() }),
            FeedChange::Suppressed => {
                let code = message.failure().map_or("", |one| one.code.as_str());
                data.suppressed = Some(SuppressedView { message: reason(), reason: code });
            }
            FeedChange::Observed(event) => {
                data.observe(event);
                at = &event.occurred_at;
            }
        }
        let event_type = event_name(entry.event_type());
        Self { event_type, created_at: at.to_string(), data }
    }
}

impl DataView {
    /// Adds the details of an event. It concerns the recipients that it names: a program that acts
    /// on the first one must not act on another one's event.
    fn observe(&mut self, event: &Event) {
        if !event.recipients.is_empty() {
            self.to.clone_from(&event.recipients);
        }
        match &event.detail {
            EventDetail::Bounce { bounce_type, sub_type, diagnostic_code } => {
                let message = bounce_message(*bounce_type, sub_type, diagnostic_code.as_deref());
                let (bounce_type, sub_type) = (bounce_type.as_str(), sub_type.clone());
                self.bounce = Some(BounceView { message, bounce_type, sub_type });
            }
            EventDetail::Reject { reason } => {
                self.failed = Some(FailedView { reason: reason.clone() });
            }
            EventDetail::Delivery { .. }
            | EventDetail::Complaint { .. }
            | EventDetail::DeliveryDelay { .. } => {}
        }
    }
}

/// A sentence about a bounce. Clients distinguish a suppressed address from a bounce by Resend's
/// words "suppressed sending" and "bounce message", because it has no member for that.
fn bounce_message(bounce_type: BounceType, sub_type: &str, diagnostic: Option<&str>) -> String {
    let sentence = if is_stopped_at_ses(sub_type) {
        "Amazon SES has suppressed sending to this address, which is on a suppression list"
    } else {
        match bounce_type {
            BounceType::Permanent => "The recipient's mail server sent a hard bounce message",
            BounceType::Transient => "The recipient's mail server sent a soft bounce message",
            BounceType::Undetermined => "The recipient's mail server sent a bounce message",
        }
    };
    match diagnostic {
        Some(diagnostic) => format!("{sentence}: {diagnostic}"),
        None => format!("{sentence}."),
    }
}

#[cfg(test)]
mod tests;
