//! What is wrapped around a document on its way: SNS's envelope, `EventBridge`'s, or nothing.

use serde_json::Value;

use crate::ses::event::{Unreadable, event_name, shortened};

/// How many envelopes may be in each other: `EventBridge` in SNS is two.
const MAX_ENVELOPES: usize = 3;
/// How SES's plain words to a topic begin when it is made the destination of events.
const TOPIC_GREETING: &str = "Successfully validated SNS topic for Amazon SES";

/// What was in the envelope.
pub(super) enum Opened {
    /// A document that may be about a message.
    Report(Value),
    /// Something else that has its place on the way.
    Other(String),
}

/// Takes a document out of its envelopes.
pub(super) fn open(text: &str) -> Result<Opened, Unreadable> {
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
    Err(Unreadable::new("it is in too many envelopes"))
}

fn json(text: &str) -> Result<Value, Unreadable> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        // The parser's own message may repeat what it read; where it stopped is enough.
        let (line, column) = (error.line(), error.column());
        Unreadable::new(format!("it is not JSON at line {line}, column {column}"))
    })?;
    if value.is_object() { Ok(value) } else { Err(Unreadable::new("it is not a JSON object")) }
}
