//! One AWS call: its fault, its signature, its operation and its answer, in AWS's order.
//!
//! Must not know how connections are accepted, or what the operations do.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::DATE;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::answer::{AnswerBody, Refusal, Reply};
use super::control;
use super::faults::{CallKind, Fault, Planned, internal_error};
use super::server::{Cut, Severed};
use super::ses::{self, Operation};
use super::signature::Service;
use super::skew::http_date;
use super::sqs::{self, Action};
use super::state::State;
use super::sts;

/// SES v2: the longest message, and so more than the longest request that can succeed.
const BODY_MAX_BYTES: usize = 40 * 1024 * 1024;
/// What is read and thrown away beyond it, so that the client reads the refusal, not a reset.
const BODY_DISCARD_MAX_BYTES: usize = 40 * 1024 * 1024;
/// How long a body may take to arrive.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(30);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");

/// What is called.
#[derive(Debug)]
enum Call {
    Ses(Operation),
    Sqs(Action),
    Sts,
}

impl Call {
    fn of(parts: &Parts) -> Self {
        if sts::is_call(parts) {
            return Self::Sts;
        }
        Action::of(parts)
            .map_or_else(|| Self::Ses(Operation::of(&parts.method, parts.uri.path())), Self::Sqs)
    }

    fn kind(&self) -> CallKind {
        match self {
            Self::Ses(operation) => operation.kind(),
            Self::Sqs(_) => CallKind::Queue,
            Self::Sts => CallKind::Other,
        }
    }

    fn service(&self) -> Service {
        match self {
            Self::Ses(_) => Service::Ses,
            Self::Sqs(_) => Service::Sqs,
            Self::Sts => Service::Sts,
        }
    }

    /// The refusal that a fault stands for, in the service's words.
    fn refusal_of(&self, fault: Fault) -> Option<Refusal> {
        match self {
            Self::Ses(_) | Self::Sts => fault.refusal(),
            Self::Sqs(_) => sqs::refusal_of(fault),
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Reply {
        match self {
            Self::Ses(_) => refusal.to_reply(),
            Self::Sqs(_) => sqs::refuse(refusal),
            Self::Sts => sts::refuse(refusal),
        }
    }
}

/// Answers one request, or severs its connection.
pub(super) async fn answer(
    state: &State,
    cut: &Cut,
    request: Request<Incoming>,
) -> Result<Reply, Severed> {
    if request.uri().path().starts_with(control::PREFIX) {
        return Ok(control::answer(state, request).await);
    }
    let (parts, body) = request.into_parts();
    let call = Call::of(&parts);
    let planned = state.faults().next(call.kind());
    if planned.fault == Fault::Down {
        return Err(cut.sever());
    }
    state.count_call(call.service());
    if planned.fault == Fault::ResetBefore {
        return Err(cut.sever());
    }
    let mut reply = handle(state, &call, planned, parts, body)
        .await
        .unwrap_or_else(|refusal| call.refuse(&refusal));
    let id = HeaderValue::try_from(state.ids.uuid()).expect("a UUID is a header value");
    reply.headers_mut().insert(REQUEST_ID, id);
    let date = HeaderValue::try_from(http_date(state.clock.now()));
    reply.headers_mut().insert(DATE, date.expect("a date is a header value"));
    spoil(reply, &call, planned, cut).await
}

async fn handle(
    state: &State,
    call: &Call,
    planned: Planned,
    parts: Parts,
    body: Incoming,
) -> Result<Reply, Refusal> {
    let body = read_body(body, BODY_MAX_BYTES, BODY_DISCARD_MAX_BYTES).await?;
    state.verifier.verify(call.service(), &parts, &body, state.clock.now())?;
    let latency = match call {
        Call::Ses(_) => state.latency(),
        Call::Sqs(_) | Call::Sts => Duration::ZERO,
    };
    if latency > Duration::ZERO {
        tokio::time::sleep(latency).await;
    }
    if let Some(refusal) = call.refusal_of(planned.fault) {
        return Err(refusal);
    }
    match call {
        Call::Ses(operation) => ses::answer(state, operation, &body),
        Call::Sts => sts::answer(&body),
        Call::Sqs(action) => sqs::answer(state, *action, &parts, &body).await,
    }
}

/// Carries out the faults that strike after the call has been handled.
async fn spoil(reply: Reply, call: &Call, planned: Planned, cut: &Cut) -> Result<Reply, Severed> {
    match planned.fault {
        Fault::ResetAfter => Err(cut.sever()),
        Fault::Slow => {
            tokio::time::sleep(planned.slow_for).await;
            Ok(reply)
        }
        Fault::Truncated => Ok(reply.map(AnswerBody::truncate)),
        Fault::InternalErrorAfter => {
            let refusal = call.refusal_of(Fault::InternalError).unwrap_or_else(internal_error);
            Ok(call.refuse(&refusal))
        }
        _ => Ok(reply),
    }
}

/// Reads a body of at most `max` bytes; of a longer one, `discard_max` more are thrown away.
pub(super) async fn read_body(
    body: Incoming,
    max: usize,
    discard_max: usize,
) -> Result<Bytes, Refusal> {
    tokio::time::timeout(BODY_READ_TIMEOUT, collect(body, max, discard_max)).await.map_err(
        |_| {
            Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "RequestTimeoutException",
                "The request body came too slowly.",
            )
        },
    )?
}

async fn collect(mut body: Incoming, max: usize, discard_max: usize) -> Result<Bytes, Refusal> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut collected = BytesMut::with_capacity(if announced > max { 0 } else { announced });
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::bad_request("The request body broke off."))?;
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(data.len());
        if length <= max {
            collected.extend_from_slice(&data);
        } else {
            collected = BytesMut::new();
            if length - max > discard_max {
                break;
            }
        }
    }
    if length > max {
        return Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLargeException",
            format!("Message length is more than {max} bytes long."),
        ));
    }
    Ok(collected.freeze())
}
