//! `ReceiveMessage`: at once, or as soon as a message is there.
//!
//! Must not know how a message is kept.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::super::ACCOUNT;
use super::super::answer::Refusal;
use super::super::md5::md5_hex;
use super::super::queue::Received;
use super::super::state::State;
use super::error::{invalid_parameter, rejected};
use super::{VISIBILITY_MAX_SECONDS, seconds};
use crate::domain::time::Timestamp;

/// SQS: messages per receive.
const MESSAGES_MAX: i64 = 10;
/// SQS: the longest long poll.
const WAIT_MAX_SECONDS: i64 = 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Wire {
    max_number_of_messages: Option<i64>,
    wait_time_seconds: Option<i64>,
    visibility_timeout: Option<i64>,
    #[serde(default)]
    attribute_names: BTreeSet<String>,
    #[serde(default)]
    message_system_attribute_names: BTreeSet<String>,
}

pub(super) async fn receive(state: &State, wire: Wire) -> Result<Option<Value>, Refusal> {
    let max = wire.max_number_of_messages.unwrap_or(1);
    let max = Some(max).filter(|max| (1..=MESSAGES_MAX).contains(max)).ok_or_else(|| {
        let reason = "Must be between 1 and 10, if provided.";
        invalid_parameter(&max.to_string(), "MaxNumberOfMessages", reason)
    })?;
    let wait = seconds("WaitTimeSeconds", wire.wait_time_seconds.unwrap_or(0), WAIT_MAX_SECONDS)?;
    let visibility = match wire.visibility_timeout {
        Some(value) => seconds("VisibilityTimeout", value, VISIBILITY_MAX_SECONDS)?,
        None => state.queue().options().visibility_timeout,
    };
    let max = usize::try_from(max).expect("1 to 10 fit");
    let received = poll(state, max, wait, visibility).await?;
    let mut wanted = wire.attribute_names;
    wanted.extend(wire.message_system_attribute_names);
    let shown: Vec<Value> =
        received.iter().map(|(message, handle)| show(message, handle, &wanted)).collect();
    // SQS leaves the member out where there is nothing.
    Ok(Some(if shown.is_empty() { json!({}) } else { json!({ "Messages": shown }) }))
}

/// Receives now or, if nothing is there, as soon as something is, until `wait` is over.
async fn poll(
    state: &State,
    max: usize,
    wait: Duration,
    visibility: Duration,
) -> Result<Vec<(Received, String)>, Refusal> {
    let deadline = Instant::now() + wait;
    let mut stop = state.stopped();
    loop {
        // Listening starts before looking, so that a message between the two wakes this up.
        let mut arrival = std::pin::pin!(state.queue_changed().notified());
        arrival.as_mut().enable();
        let now = Instant::now();
        let (received, next) = take(state, max, visibility, now)?;
        if !received.is_empty() || now >= deadline || stop.has_changed().unwrap_or(true) {
            return Ok(received);
        }
        let wake_at = next.map_or(deadline, |next| next.min(deadline));
        tokio::select! {
            () = arrival => {}
            () = tokio::time::sleep_until(wake_at) => {}
            _ = stop.changed() => return Ok(Vec::new()),
        }
    }
}

type Taken = (Vec<(Received, String)>, Option<Instant>);

/// What is there, with its handles, and when a hidden message may follow.
fn take(state: &State, max: usize, visibility: Duration, now: Instant) -> Result<Taken, Refusal> {
    let wall_clock = Timestamp::from(SystemTime::now());
    let mut queue = state.queue();
    let received = queue
        .receive(max, visibility, now, wall_clock)
        .map_err(|_| rejected("OverLimit", "Too many messages of this queue are in flight."))?;
    let with_handles = received.into_iter().map(|message| {
        let handle = queue.seal(message.receipt);
        (message, handle)
    });
    let received = with_handles.collect();
    let next = queue.next_ready_at();
    Ok((received, next))
}

fn show(message: &Received, handle: &str, wanted: &BTreeSet<String>) -> Value {
    let mut shown = json!({
        "MessageId": &*message.id,
        "ReceiptHandle": handle,
        "MD5OfBody": md5_hex(message.body.as_bytes()),
        "Body": &*message.body,
    });
    let known = [
        ("SenderId", ACCOUNT.to_owned()),
        ("SentTimestamp", message.sent_at.unix_millis().to_string()),
        ("ApproximateReceiveCount", message.receives.to_string()),
        ("ApproximateFirstReceiveTimestamp", message.first_received_at.unix_millis().to_string()),
    ];
    let attributes: Map<_, _> = known
        .into_iter()
        .filter(|(name, _)| wanted.contains("All") || wanted.contains(*name))
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    if !attributes.is_empty() {
        shown["Attributes"] = Value::Object(attributes);
    }
    shown
}
