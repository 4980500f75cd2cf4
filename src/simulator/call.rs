//! One AWS call from request to response: its fault, its signature and its operation, in AWS's
//! order.
//!
//! Carries out STS's one operation itself. Must not know how connections are accepted, or how SES
//! and SQS carry out theirs.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, DATE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::fault_injection::{CallKind, Fault, PlannedFault};
use super::protocol::{ACCOUNT_ID, ErrorResponse, HttpResponse, ResponseBody, read_body};
use super::server::ResetConnection;
use super::ses::{self, SesOperation};
use super::signature::{AwsService, signed_service};
use super::sqs::{self, SqsOperation};
use super::state::State;

/// SES v2: the longest message, and so more than the longest request that can succeed.
const MAX_BODY_BYTES: usize = 40 * 1024 * 1024;
/// Bytes of a longer body that are read and thrown away.
const MAX_DISCARDED_BYTES: usize = 40 * 1024 * 1024;

/// Media type of a form.
const FORM: &str = "application/x-www-form-urlencoded";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
/// The one call of STS that the simulator knows.
/// Source: <https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html>
const GET_CALLER_IDENTITY: &[u8] = b"Action=GetCallerIdentity&Version=2011-06-15";

#[derive(Debug)]
enum Call {
    Ses(SesOperation),
    Sqs(SqsOperation),
    Sts,
}

impl Call {
    fn of(parts: &Parts) -> Self {
        let path = parts.uri.path();
        if path == "/" && has_form(parts) {
            return Self::Sts;
        }
        SqsOperation::of(parts)
            .map_or_else(|| Self::Ses(SesOperation::of(&parts.method, path)), Self::Sqs)
    }

    fn kind(&self) -> CallKind {
        match self {
            Self::Ses(operation) => operation.kind(),
            Self::Sqs(_) => CallKind::Queue,
            Self::Sts => CallKind::Other,
        }
    }

    fn service(&self) -> AwsService {
        match self {
            Self::Ses(_) => AwsService::Ses,
            Self::Sqs(_) => AwsService::Sqs,
            Self::Sts => AwsService::Sts,
        }
    }

    /// The service's error for a fault that refuses the call.
    fn fault_error(&self, planned: &PlannedFault, body: &[u8]) -> Option<ErrorResponse> {
        match (self, planned.fault) {
            (Self::Sqs(_), fault) => sqs::fault_error(fault),
            // An endpoint refuses a member that it does not know, and takes a request without it.
            (_, Fault::UnknownMember) if !has_overrides(body) => None,
            (Self::Ses(_) | Self::Sts, Fault::Error) => planned.error.as_ref().map(Into::into),
            (Self::Ses(_) | Self::Sts, fault) => fault.ses_error(),
        }
    }

    /// Writes an error in the service's form.
    fn error(&self, error: &ErrorResponse) -> HttpResponse {
        match self {
            Self::Ses(_) => error.to_response(),
            Self::Sqs(_) => sqs::error(error),
            Self::Sts => sts_error(error),
        }
    }
}

/// Answers one call, or resets its connection.
pub(super) async fn handle(
    state: &State,
    request: Request<Incoming>,
) -> Result<HttpResponse, ResetConnection> {
    let (parts, body) = request.into_parts();
    if let Some(error) = not_stood_in_for(&parts) {
        // Read, so that the client reads the answer and not a reset. Any result of the read will
        // do.
        let _ = read_body(body, MAX_BODY_BYTES, MAX_DISCARDED_BYTES).await;
        return Ok(if has_form(&parts) { sts_error(&error) } else { error.to_response() });
    }
    let call = Call::of(&parts);
    let planned = state.faults().next(call.kind());
    if planned.fault == Fault::Down {
        return Err(ResetConnection);
    }
    state.count_call(call.service());
    if planned.fault == Fault::ResetBefore {
        return Err(ResetConnection);
    }
    let mut response = carry_out(state, &call, &planned, parts, body)
        .await
        .unwrap_or_else(|error| call.error(&error));
    let headers = response.headers_mut();
    let id = HeaderValue::try_from(state.ids.uuid());
    headers.insert(REQUEST_ID, id.expect("a UUID is a header value"));
    let date = HeaderValue::try_from(httpdate::fmt_http_date(state.now()));
    headers.insert(DATE, date.expect("a date is a header value"));
    apply_late_fault(response, &call, &planned).await
}

/// The error of a call to a service, or an API of SES, that the simulator does not stand in for.
fn not_stood_in_for(parts: &Parts) -> Option<ErrorResponse> {
    const WHAT_IT_HAS: &str = "The simulator has SES's API v2, one SQS queue, and STS's \
                               GetCallerIdentity";
    let message = match signed_service(parts)? {
        "ses" if has_form(parts) => format!("{WHAT_IT_HAS}. It does not have SES's API v1."),
        "ses" | "sqs" | "sts" => return None,
        other => format!("{WHAT_IT_HAS}. It does not have the service {other}."),
    };
    Some(ErrorResponse::new(StatusCode::BAD_REQUEST, "UnknownOperationException", message))
}

/// Returns whether a body is a form, as in calls of AWS's query protocol.
fn has_form(parts: &Parts) -> bool {
    let media_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.is_some_and(|text| text.split(';').next().unwrap_or_default().trim() == FORM)
}

async fn carry_out(
    state: &State,
    call: &Call,
    planned: &PlannedFault,
    parts: Parts,
    body: Incoming,
) -> Result<HttpResponse, ErrorResponse> {
    let body = read_body(body, MAX_BODY_BYTES, MAX_DISCARDED_BYTES).await?;
    state.signatures.verify(call.service(), &parts, &body, state.now())?;
    let latency = match call {
        Call::Ses(_) => state.latency(),
        Call::Sqs(_) | Call::Sts => Duration::ZERO,
    };
    if latency > Duration::ZERO {
        tokio::time::sleep(latency).await;
    }
    if let Some(error) = call.fault_error(planned, &body) {
        return Err(error);
    }
    match call {
        Call::Ses(operation) => ses::handle(state, operation, &body),
        Call::Sqs(operation) => sqs::handle(state, *operation, &parts, &body).await,
        Call::Sts => caller_identity(&body),
    }
}

/// Carries out the faults that come after the call has been handled.
async fn apply_late_fault(
    response: HttpResponse,
    call: &Call,
    planned: &PlannedFault,
) -> Result<HttpResponse, ResetConnection> {
    match planned.fault {
        Fault::ResetAfter => Err(ResetConnection),
        Fault::Slow => {
            tokio::time::sleep(planned.slow_for).await;
            Ok(response)
        }
        Fault::Truncated => Ok(response.map(ResponseBody::truncate)),
        Fault::InternalErrorAfter => {
            let internal = PlannedFault { fault: Fault::InternalError, ..planned.clone() };
            let error = call.fault_error(&internal, &[]);
            Ok(call.error(&error.expect("every service has an internal error")))
        }
        _ => Ok(response),
    }
}

/// Returns true if a request of `SendEmail` has the member that older endpoints do not know.
fn has_overrides(body: &[u8]) -> bool {
    let request: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    request.is_some_and(|request| request.get("ConfigurationOverrides").is_some())
}

fn caller_identity(body: &[u8]) -> Result<HttpResponse, ErrorResponse> {
    if body != GET_CALLER_IDENTITY {
        return Err(ErrorResponse::bad_request("The simulator's STS has only GetCallerIdentity."));
    }
    let arn = format!("arn:aws:iam::{ACCOUNT_ID}:user/simulator");
    Ok(xml(format!(
        "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <GetCallerIdentityResult><Arn>{arn}</Arn><UserId>AIDASIMULATOR</UserId>\
         <Account>{ACCOUNT_ID}</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"
    )))
}

/// An error in the form of the query protocol: the name without `Exception`.
fn sts_error(error: &ErrorResponse) -> HttpResponse {
    let name = error.name.strip_suffix("Exception").unwrap_or(&error.name);
    let message = error.message.replace('&', "&amp;").replace('<', "&lt;");
    let mut response = xml(format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error>\
         <Type>Sender</Type><Code>{name}</Code><Message>{message}</Message></Error></ErrorResponse>"
    ));
    *response.status_mut() = error.status;
    response
}

fn xml(text: String) -> HttpResponse {
    let mut response = Response::new(ResponseBody::Whole(Some(Bytes::from(text))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/xml"));
    response
}
