//! What a call is answered with: SES's refusals by name, and response bodies that can break off.
//!
//! Knows SES's error names and status codes. Must not know why a call is refused.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderName, Response, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use serde::Serialize;

/// The header that names the error; an AWS client reads the error's name here, not in the body.
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");

pub(super) type Reply = Response<AnswerBody>;

/// A refusal as SES words it: status, error name, message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) name: &'static str,
    pub(super) message: Cow<'static, str>,
}

impl Refusal {
    pub(super) fn new(
        status: StatusCode,
        name: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, name, message: message.into() }
    }

    pub(super) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestException", message)
    }

    pub(super) fn rejected(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "MessageRejected", message)
    }

    pub(super) fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFoundException", message)
    }

    pub(super) fn already_exists(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "AlreadyExistsException", message)
    }

    pub(super) fn too_many_requests(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequestsException", message)
    }

    pub(super) fn limit_exceeded(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "LimitExceededException", message)
    }

    pub(super) fn forbidden(name: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, name, message)
    }

    /// The constraint that AWS's front end names when a required member is absent.
    pub(super) fn missing_member(path: &str) -> Self {
        Self::constraint(path, "Member must not be null")
    }

    /// A constraint of the service model that the value at `path` breaks.
    pub(super) fn constraint(path: &str, rule: &str) -> Self {
        Self::bad_request(format!(
            "1 validation error detected: Value at '{path}' failed to satisfy constraint: {rule}"
        ))
    }

    pub(super) fn to_reply(&self) -> Reply {
        #[derive(Serialize)]
        struct Wire<'a> {
            message: &'a str,
        }
        let mut reply = json(self.status, &Wire { message: &self.message });
        reply.headers_mut().insert(ERROR_TYPE, HeaderValue::from_static(self.name));
        reply
    }
}

/// A JSON answer.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let bytes = serde_json::to_vec(value).expect("the simulator's answers are plain JSON values");
    let mut reply = Response::new(AnswerBody::Whole(Some(bytes.into())));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// A response body that may end before its announced length.
#[derive(Debug)]
pub(super) enum AnswerBody {
    /// All of it; `None` once taken.
    Whole(Option<Bytes>),
    /// The first part of a longer body, after which the connection breaks.
    Truncated { first: Option<Bytes>, announced: u64, flushed: Flushed },
}

/// Whether the truncated body has let the connection flush what it gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    No,
    Yes,
}

impl AnswerBody {
    /// The same body, broken off half way.
    pub(super) fn truncate(self) -> Self {
        let Self::Whole(Some(bytes)) = self else { return self };
        let announced = bytes.len() as u64;
        let first = Some(bytes.slice(..bytes.len() / 2));
        Self::Truncated { first, announced, flushed: Flushed::No }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Truncated { first, flushed, .. } => {
                if let Some(bytes) = first.take() {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                if *flushed == Flushed::No {
                    // One turn without data makes the connection write out what it holds, so
                    // that the client sees a started answer and not merely a closed connection.
                    *flushed = Flushed::Yes;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Some(Err(io::Error::other("the answer is truncated on purpose"))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Self::Truncated { announced, .. } => SizeHint::with_exact(*announced),
        }
    }
}
