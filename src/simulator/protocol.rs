//! The wire format that SES, SQS and STS share: request bodies, JSON, and errors by name.
//!
//! Knows the names and status codes of AWS's errors. Must not know why a call is refused.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderName, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use serde::{Deserialize, Serialize};

/// The AWS account that owns everything in the simulator.
pub(super) const ACCOUNT_ID: &str = "000000000000";
/// The header with the error's name. AWS clients read the name here and not in the body.
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
/// Time that a request body may take to arrive.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) type HttpResponse = Response<ResponseBody>;

/// An error as AWS answers it: status, name, message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ErrorResponse {
    pub(super) status: StatusCode,
    pub(super) name: Cow<'static, str>,
    pub(super) message: Cow<'static, str>,
    pub(super) place: NamePlace,
}

/// Place of an error's name in an answer (AWS restJson1 protocol, "Operation error serialization").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamePlace {
    /// The header `x-amzn-errortype`.
    #[default]
    Header,
    /// The member `__type` of the body.
    Body,
}

impl ErrorResponse {
    pub(super) fn new(
        status: StatusCode,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, name: name.into(), message: message.into(), place: NamePlace::Header }
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

    /// The value at `path` breaks a constraint of the service model.
    pub(super) fn constraint(path: &str, rule: &str) -> Self {
        Self::bad_request(format!(
            "1 validation error detected: Value at '{path}' failed to satisfy constraint: {rule}"
        ))
    }

    pub(super) fn to_response(&self) -> HttpResponse {
        #[derive(Serialize)]
        struct Wire<'a> {
            #[serde(rename = "__type", skip_serializing_if = "Option::is_none")]
            name: Option<&'a str>,
            message: &'a str,
        }
        let name = (self.place == NamePlace::Body).then_some(&*self.name);
        let mut response = json(self.status, &Wire { name, message: &self.message });
        if self.place == NamePlace::Header
            && !self.name.is_empty()
            && let Ok(name) = HeaderValue::try_from(&*self.name)
        {
            response.headers_mut().insert(ERROR_TYPE, name);
        }
        response
    }
}

/// Returns the member, or the error that AWS's front end gives if a required member is absent.
pub(super) fn required<T>(member: Option<T>, path: &str) -> Result<T, ErrorResponse> {
    member.ok_or_else(|| ErrorResponse::constraint(path, "Member must not be null"))
}

/// Reads a JSON body.
pub(super) fn read_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ErrorResponse> {
    serde_json::from_slice(body).map_err(|error| {
        ErrorResponse::new(
            StatusCode::BAD_REQUEST,
            "SerializationException",
            format!("The request body is not the expected JSON: {error}"),
        )
    })
}

/// Builds a response with a JSON body.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> HttpResponse {
    let bytes = serde_json::to_vec(value).expect("the simulator's responses are plain JSON values");
    let mut response = Response::new(ResponseBody::Whole(Some(bytes.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Reads a body of at most `max` bytes. Of a longer one, up to `discard_max` more bytes are read
/// and thrown away, so that the client reads the error and not a reset.
pub(super) async fn read_body(
    body: Incoming,
    max: usize,
    discard_max: usize,
) -> Result<Bytes, ErrorResponse> {
    let read = tokio::time::timeout(BODY_READ_TIMEOUT, collect(body, max, discard_max)).await;
    read.unwrap_or_else(|_| {
        Err(ErrorResponse::new(
            StatusCode::REQUEST_TIMEOUT,
            "RequestTimeoutException",
            "The request body came too slowly.",
        ))
    })
}

async fn collect(
    mut body: Incoming,
    max: usize,
    discard_max: usize,
) -> Result<Bytes, ErrorResponse> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut collected = BytesMut::with_capacity(if announced > max { 0 } else { announced });
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| ErrorResponse::bad_request("The request body ended early."))?;
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
        return Err(ErrorResponse::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLargeException",
            format!("Message length is more than {max} bytes long."),
        ));
    }
    Ok(collected.freeze())
}

/// A response body that may end before its announced length.
#[derive(Debug)]
pub(super) enum ResponseBody {
    /// The whole body; `None` once taken.
    Whole(Option<Bytes>),
    /// The first part of a longer body, after which the connection breaks.
    Truncated { first: Option<Bytes>, announced: u64, flush: Flush },
}

/// A truncated body's one pause, in which the connection writes out the first part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    Due,
    Done,
}

impl ResponseBody {
    /// Cuts the body off half way.
    pub(super) fn truncate(self) -> Self {
        let Self::Whole(Some(bytes)) = self else { return self };
        let announced = bytes.len() as u64;
        let first = Some(bytes.slice(..bytes.len() / 2));
        Self::Truncated { first, announced, flush: Flush::Due }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Truncated { first, flush, .. } => {
                if let Some(bytes) = first.take() {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                if *flush == Flush::Due {
                    // One poll without data makes the connection write out its buffer, so that
                    // the client sees a started response and not merely a closed connection.
                    *flush = Flush::Done;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Some(Err(io::Error::other("the response is truncated on purpose"))))
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
