//! SQS over its JSON protocol: one queue, with SQS's own limits, words and error names.
//!
//! The shapes are those of the SQS service model (2012-11-05). Must not know what the messages
//! say, or how a message is kept.
//! Source: <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/Welcome.html>

use http::StatusCode;
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::ACCOUNT;
use super::answer::{Refusal, Reply};
use super::queue::{QueueCounts, QueueOptions};
use super::state::State;

mod batch;
mod change;
mod error;
mod receive;
mod send;

pub(super) use error::{refusal_of, refuse};

use error::{invalid_parameter, missing_parameter, no_such_queue, rejected};

const TARGET_PREFIX: &str = "AmazonSQS.";
const CONTENT_TYPE: http::HeaderValue =
    http::HeaderValue::from_static("application/x-amz-json-1.0");
/// SQS: how long a message may stay hidden.
const VISIBILITY_MAX_SECONDS: i64 = 12 * 60 * 60;
/// SQS: bytes of a message.
const MESSAGE_MAX_BYTES: usize = 1024 * 1024;
/// What SQS keeps messages for by default; the simulator keeps them as long as it runs.
const RETENTION_SECONDS: u32 = 4 * 24 * 60 * 60;

/// The operations, as found from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    ReceiveMessage,
    DeleteMessage,
    DeleteMessageBatch,
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    SendMessage,
    GetQueueUrl,
    GetQueueAttributes,
    PurgeQueue,
    Unknown,
}

impl Action {
    /// The operation, if this is a call of SQS.
    pub(super) fn of(parts: &Parts) -> Option<Self> {
        let target = parts.headers.get("x-amz-target")?.to_str().ok()?;
        Some(match target.strip_prefix(TARGET_PREFIX)? {
            "ReceiveMessage" => Self::ReceiveMessage,
            "DeleteMessage" => Self::DeleteMessage,
            "DeleteMessageBatch" => Self::DeleteMessageBatch,
            "ChangeMessageVisibility" => Self::ChangeMessageVisibility,
            "ChangeMessageVisibilityBatch" => Self::ChangeMessageVisibilityBatch,
            "SendMessage" => Self::SendMessage,
            "GetQueueUrl" => Self::GetQueueUrl,
            "GetQueueAttributes" => Self::GetQueueAttributes,
            "PurgeQueue" => Self::PurgeQueue,
            _ => Self::Unknown,
        })
    }
}

/// Carries out one call whose signature has been checked.
pub(super) async fn answer(
    state: &State,
    action: Action,
    parts: &Parts,
    body: &[u8],
) -> Result<Reply, Refusal> {
    if action == Action::Unknown {
        return Err(rejected("UnknownOperationException", "The operation is not known."));
    }
    if action == Action::GetQueueUrl {
        return queue_url(state, parts, body).map(|value| reply(&value));
    }
    check_queue(state, parts, body)?;
    let value = match action {
        Action::ReceiveMessage => receive::receive(state, read(body)?).await?,
        Action::DeleteMessage => change::delete(state, read(body)?)?,
        Action::DeleteMessageBatch => change::delete_batch(state, read(body)?)?,
        Action::ChangeMessageVisibility => change::visibility(state, read(body)?)?,
        Action::ChangeMessageVisibilityBatch => change::visibility_batch(state, read(body)?)?,
        Action::SendMessage => send::send(state, read(body)?)?,
        Action::GetQueueAttributes => attributes(state, read(body)?)?,
        Action::PurgeQueue => {
            state.queue().purge();
            return Ok(empty());
        }
        Action::GetQueueUrl | Action::Unknown => unreachable!("answered above"),
    };
    Ok(value.map_or_else(empty, |value| reply(&value)))
}

fn reply(value: &Value) -> Reply {
    let mut reply = super::answer::json(StatusCode::OK, value);
    reply.headers_mut().insert(http::header::CONTENT_TYPE, CONTENT_TYPE);
    reply
}

/// What operations without output are answered with: no body at all.
fn empty() -> Reply {
    let mut reply = Reply::new(super::answer::AnswerBody::Whole(None));
    reply.headers_mut().insert(http::header::CONTENT_TYPE, CONTENT_TYPE);
    reply
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    super::send::read_json(body)
}

/// The path of the simulator's one queue.
pub(super) fn queue_path(options: &QueueOptions) -> String {
    format!("/{ACCOUNT}/{}", options.name)
}

/// The queue that a call names must be the one there is. Its URL is compared by path alone: the
/// same host has many names.
fn check_queue(state: &State, parts: &Parts, body: &[u8]) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Wire {
        queue_url: Option<String>,
    }
    let wire: Wire = read(body)?;
    let path = match &wire.queue_url {
        Some(url) => {
            let after_scheme = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
            after_scheme.find('/').map_or("", |at| &after_scheme[at..])
        }
        None if parts.uri.path() != "/" => parts.uri.path(),
        None => return Err(missing_parameter("QueueUrl")),
    };
    if path == queue_path(state.queue().options()) { Ok(()) } else { Err(no_such_queue()) }
}

fn queue_url(state: &State, parts: &Parts, body: &[u8]) -> Result<Value, Refusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Wire {
        queue_name: Option<String>,
    }
    let wire: Wire = read(body)?;
    let name = wire.queue_name.ok_or_else(|| missing_parameter("QueueName"))?;
    let queue = state.queue();
    if name != queue.options().name {
        return Err(no_such_queue());
    }
    // The host by which the caller reached the simulator is one that works for it.
    let host = parts.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    Ok(json!({ "QueueUrl": format!("http://{host}{}", queue_path(queue.options())) }))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AttributesWire {
    #[serde(default)]
    attribute_names: Vec<String>,
}

fn attributes(state: &State, wire: AttributesWire) -> Result<Option<Value>, Refusal> {
    let mut queue = state.queue();
    let counts = queue.counts(Instant::now());
    let known = known_attributes(queue.options(), counts, &state.region);
    drop(queue);
    let mut shown = Map::new();
    for name in wire.attribute_names {
        if name == "All" {
            shown.extend(known.iter().map(|(n, v)| ((*n).to_owned(), json!(v))));
            continue;
        }
        let found = known.iter().find(|(known, _)| *known == name);
        let (name, value) = found.ok_or_else(|| {
            rejected("InvalidAttributeName", format!("Unknown Attribute {name}."))
        })?;
        shown.insert((*name).to_owned(), json!(value));
    }
    Ok(Some(json!({ "Attributes": shown })))
}

fn known_attributes(
    options: &QueueOptions,
    counts: QueueCounts,
    region: &str,
) -> [(&'static str, String); 9] {
    [
        ("ApproximateNumberOfMessages", counts.queued.to_string()),
        ("ApproximateNumberOfMessagesDelayed", counts.delayed.to_string()),
        ("ApproximateNumberOfMessagesNotVisible", counts.in_flight.to_string()),
        ("DelaySeconds", "0".to_owned()),
        ("MaximumMessageSize", MESSAGE_MAX_BYTES.to_string()),
        ("MessageRetentionPeriod", RETENTION_SECONDS.to_string()),
        ("QueueArn", format!("arn:aws:sqs:{region}:{ACCOUNT}:{}", options.name)),
        ("ReceiveMessageWaitTimeSeconds", "0".to_owned()),
        ("VisibilityTimeout", options.visibility_timeout.as_secs().to_string()),
    ]
}

/// A number of seconds that must be within SQS's bounds.
fn seconds(name: &str, value: i64, max: i64) -> Result<std::time::Duration, Refusal> {
    let within = (0..=max).contains(&value).then_some(value);
    let seconds = within.and_then(|value| u64::try_from(value).ok());
    let reason = format!("Must be >= 0 and <= {max}, if provided.");
    seconds
        .map(std::time::Duration::from_secs)
        .ok_or_else(|| invalid_parameter(&value.to_string(), name, &reason))
}
