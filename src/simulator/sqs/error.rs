//! SQS's refusals: the names of its model, and the older codes beside them.
//!
//! Must not know why a call is refused.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use super::super::answer::{Refusal, Reply, json as json_reply};
use super::super::faults::Fault;
use super::CONTENT_TYPE;

/// Where an SQS client finds the code that the query protocol had.
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
const MODEL: &str = "com.amazonaws.sqs#";
const FRONT_END: &str = "com.amazon.coral.service#";

/// A refusal in SQS's form: its name is in the body, with the model's name space.
pub(in super::super) fn refuse(refusal: &Refusal) -> Reply {
    let name = refusal.name;
    let name_space = if is_front_end(name) { FRONT_END } else { MODEL };
    let body = json!({ "__type": format!("{name_space}{name}"), "message": refusal.message });
    let mut reply = json_reply(refusal.status, &body);
    let fault = if refusal.status.is_server_error() { "Receiver" } else { "Sender" };
    let value = HeaderValue::try_from(format!("{};{fault}", query_code(name)));
    let headers = reply.headers_mut();
    headers.insert(QUERY_ERROR, value.expect("the codes are header values"));
    headers.insert(http::header::CONTENT_TYPE, CONTENT_TYPE);
    reply
}

/// SQS's answer for a fault that refuses the call; those that only SES knows spare the queue.
pub(in super::super) fn refusal_of(fault: Fault) -> Option<Refusal> {
    let refusal = |status, name, message: &'static str| Some(Refusal::new(status, name, message));
    match fault {
        Fault::InternalError => refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalFailure",
            "The request processing has failed because of an unknown error.",
        ),
        Fault::Unavailable => refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "The request has failed due to a temporary failure of the server.",
        ),
        Fault::Throttled => refusal(StatusCode::BAD_REQUEST, "RequestThrottled", "Rate exceeded"),
        Fault::AccessDenied => refusal(
            StatusCode::FORBIDDEN,
            "AccessDeniedException",
            "User is not authorized to access the queue.",
        ),
        Fault::ExpiredToken => refusal(
            StatusCode::FORBIDDEN,
            "ExpiredTokenException",
            "The security token included in the request is expired",
        ),
        _ => None,
    }
}

pub(super) fn rejected(name: &'static str, message: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, name, message)
}

pub(super) fn no_such_queue() -> Refusal {
    rejected("QueueDoesNotExist", "The specified queue does not exist.")
}

pub(super) fn invalid_receipt() -> Refusal {
    rejected("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
}

pub(super) fn missing_parameter(name: &str) -> Refusal {
    let message = format!("The request must contain the parameter {name}.");
    rejected("MissingRequiredParameterException", message)
}

pub(super) fn invalid_parameter(value: &str, name: &str, reason: &str) -> Refusal {
    rejected(
        "InvalidParameterValueException",
        format!("Value {value} for parameter {name} is invalid. Reason: {reason}"),
    )
}

/// Names that AWS's front end gives before the service sees the call.
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

/// The code of a batch's failed entry, and of the header for clients of the query protocol.
pub(super) fn query_code(name: &'static str) -> Cow<'static, str> {
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
