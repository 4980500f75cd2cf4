//! SQS over its JSON protocol: one queue, with SQS's own limits and rules.
//!
//! The shapes are those of the SQS service model (2012-11-05). Message attributes are not kept.
//! Must not know what the messages say, or how the queue keeps them.
//! Source: <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/Welcome.html>

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, SystemTime};

use super::fault_injection::Fault;
use super::protocol::{
    ACCOUNT_ID, ErrorResponse, HttpResponse, ResponseBody, json as json_response, read_json,
};
use super::queue::{NewMessage, QueueOptions, ReceivedMessage, VisibilityChange};
use super::state::State;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use md5::{Digest, Md5};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use pillarbox_domain::time::Timestamp;

const TARGET_PREFIX: &str = "AmazonSQS.";
/// SQS: how long a message may stay hidden.
const MAX_VISIBILITY_SECONDS: i64 = 12 * 60 * 60;
/// SQS: the longest long poll.
const MAX_WAIT_SECONDS: i64 = 20;
/// SQS: the longest delay of a message.
const MAX_DELAY_SECONDS: i64 = 900;
/// SQS: messages per receive.
const MAX_RECEIVED_MESSAGES: i64 = 10;
/// SQS: bytes of a message.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// SQS: entries per batch, and characters of an entry's id.
const MAX_BATCH_ENTRIES: usize = 10;
const MAX_BATCH_ID_LENGTH: usize = 80;
/// SQS's default; the simulator keeps messages as long as it runs.
const RETENTION_SECONDS: u32 = 4 * 24 * 60 * 60;
const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");
/// The header with the query protocol's code of an error.
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
const MODEL: &str = "com.amazonaws.sqs#";
const FRONT_END: &str = "com.amazon.coral.service#";

/// The operations, as the target header names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SqsOperation {
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

impl SqsOperation {
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

/// The path of the simulator's one queue.
pub(super) fn queue_path(options: &QueueOptions) -> String {
    format!("/{ACCOUNT_ID}/{}", options.name)
}

/// Carries out one call whose signature has been checked.
pub(super) async fn handle(
    state: &State,
    operation: SqsOperation,
    parts: &Parts,
    body: &[u8],
) -> Result<HttpResponse, ErrorResponse> {
    let input = Input { state, parts, body };
    let output = match operation {
        SqsOperation::ReceiveMessage => Some(receive(state, input.read()?).await?),
        SqsOperation::DeleteMessage => {
            delete(state, input.read()?)?;
            None
        }
        SqsOperation::DeleteMessageBatch => Some(delete_batch(state, input.read()?)?),
        SqsOperation::ChangeMessageVisibility => {
            change_visibility(state, input.read()?)?;
            None
        }
        SqsOperation::ChangeMessageVisibilityBatch => {
            Some(batch(input.read()?, |change| change_visibility(state, change))?)
        }
        SqsOperation::SendMessage => Some(send(state, input.read()?)?),
        SqsOperation::GetQueueUrl => Some(queue_url(state, parts, body)?),
        SqsOperation::GetQueueAttributes => Some(queue_attributes(state, input.read()?)?),
        SqsOperation::PurgeQueue => {
            let IgnoredAny = input.read()?;
            state.queue().purge();
            None
        }
        SqsOperation::Unknown => {
            let message = format!(
                "The simulator does not have this operation. It has one queue from the start, at \
                 the path {}.",
                queue_path(state.queue().options())
            );
            return Err(rejected("UnknownOperationException", message));
        }
    };
    Ok(output.as_ref().map_or_else(empty, success))
}

/// The input of an operation on the queue.
struct Input<'a> {
    state: &'a State,
    parts: &'a Parts,
    body: &'a [u8],
}

impl<'a> Input<'a> {
    /// Checks that the call names the simulator's queue, and reads its parameters. The queue's URL
    /// is compared by path alone: the same host has many names.
    fn read<T: Deserialize<'a>>(&self) -> Result<T, ErrorResponse> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire {
            queue_url: Option<String>,
        }
        let wire: Wire = read_json(self.body)?;
        let request_path = Some(self.parts.uri.path()).filter(|path| *path != "/");
        let path = match &wire.queue_url {
            Some(url) => {
                let after_scheme = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
                after_scheme.find('/').map_or("", |at| &after_scheme[at..])
            }
            None => required(request_path, "QueueUrl")?,
        };
        if path != queue_path(self.state.queue().options()) {
            return Err(no_such_queue());
        }
        read_json(self.body)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveWire {
    max_number_of_messages: Option<i64>,
    wait_time_seconds: Option<i64>,
    visibility_timeout: Option<i64>,
    #[serde(default)]
    attribute_names: BTreeSet<String>,
    #[serde(default)]
    message_system_attribute_names: BTreeSet<String>,
}

async fn receive(state: &State, wire: ReceiveWire) -> Result<Value, ErrorResponse> {
    let max = wire.max_number_of_messages.unwrap_or(1);
    let max =
        Some(max).filter(|max| (1..=MAX_RECEIVED_MESSAGES).contains(max)).ok_or_else(|| {
            let reason = "Must be between 1 and 10, if provided.";
            invalid_parameter(&max.to_string(), "MaxNumberOfMessages", reason)
        })?;
    let wait = seconds("WaitTimeSeconds", wire.wait_time_seconds.unwrap_or(0), MAX_WAIT_SECONDS)?;
    let visibility_timeout = match wire.visibility_timeout {
        Some(value) => seconds("VisibilityTimeout", value, MAX_VISIBILITY_SECONDS)?,
        None => state.queue().options().visibility_timeout,
    };
    let max = usize::try_from(max).expect("1 to 10 fit");
    let received = poll(state, max, wait, visibility_timeout).await?;
    let mut wanted = wire.attribute_names;
    wanted.extend(wire.message_system_attribute_names);
    let shown: Vec<Value> = received.iter().map(|message| shown(message, &wanted)).collect();
    // SQS leaves the member out if there are no messages.
    Ok(if shown.is_empty() { json!({}) } else { json!({ "Messages": shown }) })
}

/// Receives now or, if there is no message, as soon as there is one, until `wait` is over.
async fn poll(
    state: &State,
    max: usize,
    wait: Duration,
    visibility_timeout: Duration,
) -> Result<Vec<ReceivedMessage>, ErrorResponse> {
    let deadline = Instant::now() + wait;
    let mut stop = state.stopped();
    loop {
        // Listening starts before the check, so that a message between the two wakes this up.
        let mut arrival = std::pin::pin!(state.queue_changed().notified());
        arrival.as_mut().enable();
        let now = Instant::now();
        let (received, next) = {
            let mut queue = state.queue();
            let wall_clock = Timestamp::from(SystemTime::now());
            let received = queue.receive(max, visibility_timeout, now, wall_clock);
            (received, queue.next_visible_at())
        };
        let received = received
            .map_err(|_| rejected("OverLimit", "Too many messages of this queue are in flight."))?;
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

fn shown(message: &ReceivedMessage, wanted: &BTreeSet<String>) -> Value {
    let mut shown = json!({
        "MessageId": &*message.id,
        "ReceiptHandle": message.receipt_handle,
        "MD5OfBody": md5_hex(&message.body),
        "Body": &*message.body,
    });
    let known = [
        ("SenderId", ACCOUNT_ID.to_owned()),
        ("SentTimestamp", message.sent_at.unix_millis().to_string()),
        ("ApproximateReceiveCount", message.receive_count.to_string()),
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

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteWire {
    receipt_handle: Option<String>,
}

fn delete(state: &State, wire: DeleteWire) -> Result<(), ErrorResponse> {
    let handle = required(wire.receipt_handle, "ReceiptHandle")?;
    state.queue().delete(&handle, Instant::now()).map_err(|_| invalid_receipt())
}

fn delete_batch(state: &State, wire: BatchWire<DeleteWire>) -> Result<Value, ErrorResponse> {
    batch(wire, |entry| {
        if state.queue().fails_delete() {
            return Err(ErrorResponse::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "We encountered an internal error. Please try again.",
            ));
        }
        delete(state, entry)
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct VisibilityWire {
    receipt_handle: Option<String>,
    visibility_timeout: Option<i64>,
}

fn change_visibility(state: &State, wire: VisibilityWire) -> Result<(), ErrorResponse> {
    let handle = required(wire.receipt_handle, "ReceiptHandle")?;
    let value = required(wire.visibility_timeout, "VisibilityTimeout")?;
    let timeout = seconds("VisibilityTimeout", value, MAX_VISIBILITY_SECONDS)?;
    let changed = state.queue().change_visibility(&handle, timeout, Instant::now());
    match changed.map_err(|_| invalid_receipt())? {
        VisibilityChange::Done => {
            state.queue_changed().notify_waiters();
            Ok(())
        }
        VisibilityChange::NotInFlight => {
            Err(rejected("MessageNotInflight", "The message is not in flight."))
        }
        VisibilityChange::Gone => {
            let reason =
                "Message does not exist or is not available for visibility timeout change.";
            Err(invalid_parameter(&handle, "ReceiptHandle", reason))
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BatchWire<T> {
    #[serde(default = "Vec::new")]
    entries: Vec<BatchEntry<T>>,
}

#[derive(Deserialize)]
struct BatchEntry<T> {
    #[serde(rename = "Id", default)]
    id: String,
    #[serde(flatten)]
    parameters: T,
}

/// Carries out each entry of a batch by itself.
fn batch<T>(
    wire: BatchWire<T>,
    carry_out: impl Fn(T) -> Result<(), ErrorResponse>,
) -> Result<Value, ErrorResponse> {
    check_batch(&wire.entries)?;
    let entries = wire.entries.into_iter();
    let results = entries.map(|entry| (entry.id, carry_out(entry.parameters)));
    Ok(batch_output(results.collect()))
}

fn check_batch<T>(entries: &[BatchEntry<T>]) -> Result<(), ErrorResponse> {
    let count = entries.len();
    if count == 0 {
        let message = "There should be at least one entry in the request.";
        return Err(rejected("EmptyBatchRequest", message));
    }
    if count > MAX_BATCH_ENTRIES {
        return Err(rejected(
            "TooManyEntriesInBatchRequest",
            format!(
                "Maximum number of entries per request are {MAX_BATCH_ENTRIES}. You have sent \
                 {count}."
            ),
        ));
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let mut known = HashSet::new();
    for BatchEntry { id, .. } in entries {
        if id.is_empty() || id.len() > MAX_BATCH_ID_LENGTH || !id.bytes().all(allowed) {
            return Err(rejected(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and \
                 underscores. It can be at most 80 letters long.",
            ));
        }
        if !known.insert(id) {
            return Err(rejected("BatchEntryIdsNotDistinct", format!("Id {id} repeated.")));
        }
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SendWire {
    message_body: Option<String>,
    delay_seconds: Option<i64>,
}

fn send(state: &State, wire: SendWire) -> Result<Value, ErrorResponse> {
    let body = required(wire.message_body.filter(|body| !body.is_empty()), "MessageBody")?;
    let delay = seconds("DelaySeconds", wire.delay_seconds.unwrap_or(0), MAX_DELAY_SECONDS)?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(rejected(
            "InvalidParameterValueException",
            format!(
                "One or more parameters are invalid. Reason: Message must be shorter than \
                 {MAX_MESSAGE_BYTES} bytes."
            ),
        ));
    }
    // SQS allows XML's characters; those of JSON that XML lacks are refused.
    let is_forbidden = |c: char| matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}');
    if body.contains(is_forbidden) {
        let message = "Invalid characters found in the message body.";
        return Err(rejected("InvalidMessageContents", message));
    }
    let digest = md5_hex(&body);
    let id = state.ids.uuid();
    let sent_at = Timestamp::from(SystemTime::now());
    state
        .enqueue([NewMessage { id: id.clone(), body: body.into(), sent_at, delay }])
        .map_err(|full| rejected("OverLimit", full.to_string()))?;
    Ok(json!({ "MD5OfMessageBody": digest, "MessageId": id }))
}

fn queue_url(state: &State, parts: &Parts, body: &[u8]) -> Result<Value, ErrorResponse> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Wire {
        queue_name: Option<String>,
    }
    let wire: Wire = read_json(body)?;
    let name = required(wire.queue_name, "QueueName")?;
    let queue = state.queue();
    if name != queue.options().name {
        return Err(no_such_queue());
    }
    // The host by which the caller reached the simulator works for the caller.
    let host = parts.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    Ok(json!({ "QueueUrl": format!("http://{host}{}", queue_path(queue.options())) }))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AttributesWire {
    #[serde(default)]
    attribute_names: Vec<String>,
}

fn queue_attributes(state: &State, wire: AttributesWire) -> Result<Value, ErrorResponse> {
    let known = known_attributes(state);
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
    Ok(json!({ "Attributes": shown }))
}

fn known_attributes(state: &State) -> [(&'static str, String); 9] {
    let mut queue = state.queue();
    let counts = queue.counts(Instant::now());
    let QueueOptions { name, visibility_timeout, .. } = queue.options();
    [
        ("ApproximateNumberOfMessages", counts.queued.to_string()),
        ("ApproximateNumberOfMessagesDelayed", counts.delayed.to_string()),
        ("ApproximateNumberOfMessagesNotVisible", counts.in_flight.to_string()),
        ("DelaySeconds", "0".to_owned()),
        ("MaximumMessageSize", MAX_MESSAGE_BYTES.to_string()),
        ("MessageRetentionPeriod", RETENTION_SECONDS.to_string()),
        ("QueueArn", format!("arn:aws:sqs:{}:{ACCOUNT_ID}:{name}", state.region)),
        ("ReceiveMessageWaitTimeSeconds", "0".to_owned()),
        ("VisibilityTimeout", visibility_timeout.as_secs().to_string()),
    ]
}

/// Reads a number of seconds that must be within SQS's bounds.
fn seconds(name: &str, value: i64, max: i64) -> Result<Duration, ErrorResponse> {
    let within = (0..=max).contains(&value).then_some(value);
    let seconds = within.and_then(|value| u64::try_from(value).ok());
    let reason = format!("Must be >= 0 and <= {max}, if provided.");
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| invalid_parameter(&value.to_string(), name, &reason))
}

/// The MD5 with which SQS's clients check a body (RFC 1321). Not for security.
fn md5_hex(body: &str) -> String {
    hex::encode(Md5::digest(body))
}

fn success(value: &Value) -> HttpResponse {
    with_json_type(json_response(StatusCode::OK, value))
}

/// The response of operations without output: no body at all.
fn empty() -> HttpResponse {
    with_json_type(HttpResponse::new(ResponseBody::Whole(None)))
}

/// An error in SQS's form: its name is in the body, with the model's name space.
pub(super) fn error(error: &ErrorResponse) -> HttpResponse {
    let name = &*error.name;
    let name_space = if is_front_end(name) { FRONT_END } else { MODEL };
    let body = json!({ "__type": format!("{name_space}{name}"), "message": error.message });
    let mut response = with_json_type(json_response(error.status, &body));
    let fault = if error.status.is_server_error() { "Receiver" } else { "Sender" };
    let value = HeaderValue::try_from(format!("{};{fault}", query_code(name)));
    response.headers_mut().insert(QUERY_ERROR, value.expect("the codes are header values"));
    response
}

/// The response of a batch: the successful entries, and the failed ones with their errors.
fn batch_output(results: Vec<(String, Result<(), ErrorResponse>)>) -> Value {
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (id, result) in results {
        match result {
            Ok(()) => successful.push(json!({ "Id": id })),
            Err(error) => failed.push(json!({
                "Id": id,
                "SenderFault": error.status.is_client_error(),
                "Code": query_code(&error.name),
                "Message": error.message,
            })),
        }
    }
    json!({ "Successful": successful, "Failed": failed })
}

/// SQS's error for a fault that refuses the call. Faults that only SES knows spare the queue.
pub(super) fn fault_error(fault: Fault) -> Option<ErrorResponse> {
    let (status, name, message) = match fault {
        Fault::InternalError => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalFailure",
            "The request processing has failed because of an unknown error.",
        ),
        Fault::Unavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "The request has failed due to a temporary failure of the server.",
        ),
        Fault::Throttled => (StatusCode::BAD_REQUEST, "RequestThrottled", "Rate exceeded"),
        Fault::AccessDenied => (
            StatusCode::FORBIDDEN,
            "AccessDeniedException",
            "User is not authorized to access the queue.",
        ),
        Fault::ExpiredToken => (
            StatusCode::FORBIDDEN,
            "ExpiredTokenException",
            "The security token included in the request is expired",
        ),
        Fault::Pass
        | Fault::Down
        | Fault::ResetBefore
        | Fault::ResetAfter
        | Fault::Slow
        | Fault::Truncated
        | Fault::InternalErrorAfter
        | Fault::Rejected
        | Fault::QuotaExhausted
        | Fault::SendingPaused
        | Fault::AccountSuspended
        | Fault::MailFromDomainNotVerified
        | Fault::BadRequest
        | Fault::ValidationError
        | Fault::UnknownMember
        | Fault::TooLarge
        | Fault::RequestTimeTooSkewed
        | Fault::RequestInTheFuture
        | Fault::RequestExpired
        | Fault::SignatureExpired
        | Fault::AuthFailure
        | Fault::RequestAborted
        | Fault::RequestLimitExceeded
        | Fault::MalformedRequest
        | Fault::Error => return None,
    };
    Some(ErrorResponse::new(status, name, message))
}

fn rejected(name: &'static str, message: impl Into<Cow<'static, str>>) -> ErrorResponse {
    ErrorResponse::new(StatusCode::BAD_REQUEST, name, message)
}

fn no_such_queue() -> ErrorResponse {
    rejected("QueueDoesNotExist", "The specified queue does not exist.")
}

fn invalid_receipt() -> ErrorResponse {
    rejected("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
}

/// Returns the parameter, or SQS's error if it is absent.
fn required<T>(parameter: Option<T>, name: &str) -> Result<T, ErrorResponse> {
    parameter.ok_or_else(|| {
        let message = format!("The request must contain the parameter {name}.");
        rejected("MissingRequiredParameterException", message)
    })
}

fn invalid_parameter(value: &str, name: &str, reason: &str) -> ErrorResponse {
    rejected(
        "InvalidParameterValueException",
        format!("Value {value} for parameter {name} is invalid. Reason: {reason}"),
    )
}

/// AWS's front end gives these names before SQS sees the call.
fn is_front_end(name: &str) -> bool {
    matches!(
        name,
        "UnknownOperationException"
            | "SerializationException"
            | "InvalidSignatureException"
            | "IncompleteSignatureException"
            | "MissingAuthenticationTokenException"
            | "UnrecognizedClientException"
            | "AccessDeniedException"
            | "ExpiredTokenException"
            | "InternalFailure"
            | "ServiceUnavailable"
    )
}

/// The query protocol's code of an error.
fn query_code(name: &str) -> Cow<'_, str> {
    match name {
        "QueueDoesNotExist" => "AWS.SimpleQueueService.NonExistentQueue".into(),
        "MessageNotInflight"
        | "EmptyBatchRequest"
        | "TooManyEntriesInBatchRequest"
        | "BatchEntryIdsNotDistinct"
        | "InvalidBatchEntryId" => format!("AWS.SimpleQueueService.{name}").into(),
        "InvalidParameterValueException" => "InvalidParameterValue".into(),
        "MissingRequiredParameterException" => "MissingParameter".into(),
        other => other.into(),
    }
}

fn with_json_type(mut response: HttpResponse) -> HttpResponse {
    response.headers_mut().insert(CONTENT_TYPE, JSON_TYPE);
    response
}
