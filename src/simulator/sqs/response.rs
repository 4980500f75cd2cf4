//! SQS's responses: JSON, the entries of a batch, and errors with SQS's names and codes.
//!
//! SQS has two names for each error: that of its service model, and the older code of the query
//! protocol. Must not know why a call is refused.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::super::faults::Fault;
use super::super::protocol::{ErrorResponse, HttpResponse, ResponseBody, json as json_response};

const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");
/// The header with the query protocol's code of an error.
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
const MODEL: &str = "com.amazonaws.sqs#";
const FRONT_END: &str = "com.amazon.coral.service#";

pub(super) fn success(value: &Value) -> HttpResponse {
    with_json_type(json_response(StatusCode::OK, value))
}

/// The response of operations without output: no body at all.
pub(super) fn empty() -> HttpResponse {
    with_json_type(HttpResponse::new(ResponseBody::Whole(None)))
}

/// An error in SQS's form: its name is in the body, with the model's name space.
pub(in super::super) fn error(error: &ErrorResponse) -> HttpResponse {
    let name = error.name;
    let name_space = if is_front_end(name) { FRONT_END } else { MODEL };
    let body = json!({ "__type": format!("{name_space}{name}"), "message": error.message });
    let mut response = with_json_type(json_response(error.status, &body));
    let fault = if error.status.is_server_error() { "Receiver" } else { "Sender" };
    let value = HeaderValue::try_from(format!("{};{fault}", query_code(name)));
    response.headers_mut().insert(QUERY_ERROR, value.expect("the codes are header values"));
    response
}

/// The response of a batch: the successful entries, and the failed ones with their errors.
pub(super) fn batch(results: Vec<(String, Result<(), ErrorResponse>)>) -> Value {
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (id, result) in results {
        match result {
            Ok(()) => successful.push(json!({ "Id": id })),
            Err(error) => failed.push(json!({
                "Id": id,
                "SenderFault": error.status.is_client_error(),
                "Code": query_code(error.name),
                "Message": error.message,
            })),
        }
    }
    json!({ "Successful": successful, "Failed": failed })
}

/// SQS's error for a fault that refuses the call. Faults that only SES knows spare the queue.
pub(in super::super) fn fault_error(fault: Fault) -> Option<ErrorResponse> {
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
        | Fault::MailFromDomainNotVerified => return None,
    };
    Some(ErrorResponse::new(status, name, message))
}

pub(super) fn rejected(name: &'static str, message: impl Into<Cow<'static, str>>) -> ErrorResponse {
    ErrorResponse::new(StatusCode::BAD_REQUEST, name, message)
}

pub(super) fn no_such_queue() -> ErrorResponse {
    rejected("QueueDoesNotExist", "The specified queue does not exist.")
}

pub(super) fn invalid_receipt() -> ErrorResponse {
    rejected("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
}

/// Returns the parameter, or SQS's error if it is absent.
pub(super) fn required<T>(parameter: Option<T>, name: &str) -> Result<T, ErrorResponse> {
    parameter.ok_or_else(|| {
        let message = format!("The request must contain the parameter {name}.");
        rejected("MissingRequiredParameterException", message)
    })
}

pub(super) fn invalid_parameter(value: &str, name: &str, reason: &str) -> ErrorResponse {
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
fn query_code(name: &'static str) -> Cow<'static, str> {
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
