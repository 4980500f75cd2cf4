//! `SendMessage`, with which tests and other programs put messages of their own into the queue.
//!
//! Message attributes are not kept. Must not know what messages say.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::answer::Refusal;
use super::super::md5::md5_hex;
use super::super::queue::NewMessage;
use super::super::state::State;
use super::error::{missing_parameter, rejected};
use super::{MESSAGE_MAX_BYTES, seconds};
use crate::domain::time::Timestamp;

/// SQS: how long a message may be held back.
const DELAY_MAX_SECONDS: i64 = 900;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Wire {
    message_body: Option<String>,
    delay_seconds: Option<i64>,
}

pub(super) fn send(state: &State, wire: Wire) -> Result<Option<Value>, Refusal> {
    let body = wire.message_body.filter(|body| !body.is_empty());
    let body = body.ok_or_else(|| missing_parameter("MessageBody"))?;
    let delay = seconds("DelaySeconds", wire.delay_seconds.unwrap_or(0), DELAY_MAX_SECONDS)?;
    if body.len() > MESSAGE_MAX_BYTES {
        return Err(rejected(
            "InvalidParameterValueException",
            format!(
                "One or more parameters are invalid. Reason: Message must be shorter than \
                 {MESSAGE_MAX_BYTES} bytes."
            ),
        ));
    }
    // XML's characters, which is what SQS allows; those of JSON that XML lacks are refused.
    let is_forbidden = |c: char| matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}');
    if body.contains(is_forbidden) {
        let message = "Invalid characters found in the message body.";
        return Err(rejected("InvalidMessageContents", message));
    }
    let digest = md5_hex(body.as_bytes());
    let id = state.ids.uuid();
    let sent_at = Timestamp::from(SystemTime::now());
    state
        .enqueue([NewMessage { id: id.clone(), body: body.into(), sent_at, delay }])
        .map_err(|full| rejected("OverLimit", full.to_string()))?;
    Ok(Some(json!({ "MD5OfMessageBody": digest, "MessageId": id })))
}
