//! What SES reports of messages: documents as they arrive from a queue or a topic, read into the
//! domain's events.
//!
//! Takes SES's event publishing and its older feedback notifications, as they are, in SNS's
//! envelope or in `EventBridge`'s. Knows nothing of how a document travels or what follows from it.

use serde::Deserialize;
use serde_json::Value;

use crate::domain::event::Event;
use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::ses::redact::redact;
use crate::ses::send::{MESSAGE_ID_TAG, ORGANISATION_TAG};

use envelope::{Opened, open};
use mail::Mail;

mod detail;
mod envelope;
mod mail;

/// A document of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// About a message that the provider accepted.
    Event(ProviderEvent),
    /// Of a type that is of no account here, such as `Open`, `Click` or `Rendering Failure`.
    Other(String),
}

/// What the provider reports of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderEvent {
    /// Our own id for the message.
    pub message: MessageTag,
    /// The organisation's name, where the message carried it as a tag.
    pub organisation: Option<String>,
    /// SES's id for the message.
    pub ses_message_id: String,
    /// When SES accepted the message.
    pub accepted_at: Timestamp,
    /// What happened.
    pub kind: EventKind,
}

/// Our own id for a message, as its tag brings it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageTag {
    /// There is no such tag: feedback notifications carry none.
    Absent,
    /// A message id.
    Id(MessageId),
    /// Something that we never wrote.
    Foreign,
}

/// What happened to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// SES accepted it.
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

/// Reads a document.
pub fn parse(text: &str) -> Result<Document, Unreadable> {
    let document = match open(text)? {
        Opened::Report(document) => document,
        Opened::Other(name) => return Ok(Document::Other(name)),
    };
    let Some(name) = event_name(&document) else {
        return Err(Unreadable::new("it has neither an eventType nor a notificationType"));
    };
    // Types of no account are told before anything else of them is read.
    let Some(kind) = detail::Kind::of(name) else {
        return Ok(Document::Other(shortened(name)));
    };
    let mail: Mail = part(&document, "mail")?;
    let accepted_at = mail.accepted_at()?;
    let kind = detail::read(kind, &document, &mail, accepted_at)?;
    let message = match mail.tag(MESSAGE_ID_TAG) {
        None => MessageTag::Absent,
        Some(text) => text.parse().map_or(MessageTag::Foreign, MessageTag::Id),
    };
    let organisation = mail.tag(ORGANISATION_TAG).map(str::to_owned);
    let ses_message_id = mail.ses_message_id()?.to_owned();
    let event = ProviderEvent { message, organisation, ses_message_id, accepted_at, kind };
    Ok(Document::Event(event))
}

fn event_name(document: &Value) -> Option<&str> {
    ["eventType", "notificationType"].iter().find_map(|key| document.get(key)?.as_str())
}

/// Reads the object at `key`.
fn part<'a, T: Deserialize<'a>>(document: &'a Value, key: &str) -> Result<T, Unreadable> {
    let value = document.get(key).ok_or_else(|| Unreadable::new(format!("`{key}` is missing")))?;
    T::deserialize(value).map_err(|error| Unreadable::new(format!("in `{key}`: {error}")))
}

/// Reads an instant of SES's: RFC 3339 in UTC.
fn instant(text: &str, what: &str) -> Result<Timestamp, Unreadable> {
    let utc = text.strip_suffix("+00:00").or_else(|| text.strip_suffix("+0000"));
    let time = match utc {
        Some(utc) => Timestamp::parse_rfc3339(&format!("{utc}Z")),
        None => Timestamp::parse_rfc3339(text),
    };
    time.map_err(|_| Unreadable::new(format!("`{what}` is not a time")))
}

/// A text of the provider's for a record, cut where it is longer than any real one.
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
