//! What a client is told when it does not get what it asked for.
//!
//! One enum for every answer that is not 2xx, with one body:
//! `{"error":{"code":"…","message":"…","field":"…"}}`. Knows nothing of causes inside the
//! service: those go to the log, under the request's id.

use std::borrow::Cow;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use crate::domain::request::{FieldError, RequestError};
use crate::http::overload::Overload;
#[cfg(test)]
use crate::http::overload::SharedLimit;
use crate::http::request_id::{REQUEST_ID_HEADER, RequestId};
#[cfg(test)]
use crate::share::Exhausted;

/// The media type of every body, sent and received.
pub const JSON: &str = "application/json";

/// The most characters of a client's own text that an answer repeats.
pub const MAX_ECHO_CHARS: usize = 100;
/// A path such as `headers.X-Foo`: our own words, and the client's at their longest.
const MAX_FIELD_CHARS: usize = MAX_ECHO_CHARS + 20;

const RETRY_SOON_SECONDS: u16 = 5;
const RETRY_LATER_SECONDS: u16 = 30;

/// Why a request is not answered with success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// The bytes are no HTTP request that can be trusted to end where it seems to.
    BadRequest {
        /// What is wrong, as a sentence's part for the client to read.
        reason: &'static str,
    },
    /// The body is not one JSON object.
    InvalidJson {
        /// What is wrong and where.
        message: String,
    },
    /// The key is missing, malformed, unknown or revoked: the client is not told which.
    Unauthorized,
    /// The `Host` header names a host that somebody else's page could have pointed here.
    ForeignHost,
    /// Nothing there that this key may see.
    NotFound,
    /// The path exists; the method is not one of its own.
    MethodNotAllowed {
        /// The methods that are, as the `Allow` header lists them.
        allow: &'static str,
    },
    /// The head or the body came too slowly.
    RequestTimeout,
    /// The body is over the limit.
    PayloadTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The request's target is over the limit.
    UriTooLong,
    /// The head is over its limit in bytes or fields.
    HeadersTooLarge,
    /// A POST whose content type is not JSON.
    UnsupportedMediaType,
    /// A field is missing, unknown, of the wrong type, or breaks a rule.
    Validation(FieldError),
    /// The tag is not `transactional`.
    UnsupportedTag,
    /// The sender's domain is not verified for the key's organisation.
    UnverifiedDomain {
        /// The domain, as given by the client.
        domain: String,
    },
    /// A recipient is suppressed.
    Suppressed {
        /// The recipient's field, such as `cc[1]`.
        field: String,
    },
    /// Our fault.
    Internal,
    /// A limit that organisations share, or the organisation's share of it, is used up.
    QueueFull(Overload),
    /// The record could not be made durable.
    StorageUnavailable,
    /// The service is draining.
    ShuttingDown,
    /// The connection limit is reached.
    TooManyConnections,
}

#[derive(Serialize)]
struct Body<'a> {
    error: Detail<'a>,
}

#[derive(Serialize)]
struct Detail<'a> {
    code: &'static str,
    message: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl ApiError {
    /// The response's status and the code in its body.
    pub const fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest { .. } => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::InvalidJson { .. } => (StatusCode::BAD_REQUEST, "InvalidJson"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::ForeignHost => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::NotFound => (StatusCode::NOT_FOUND, "NotFound"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "RequestTimeout"),
            Self::PayloadTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLarge"),
            Self::UriTooLong => (StatusCode::URI_TOO_LONG, "UriTooLong"),
            Self::HeadersTooLarge => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "HeadersTooLarge")
            }
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType")
            }
            Self::Validation(_) => (StatusCode::UNPROCESSABLE_ENTITY, "ValidationError"),
            Self::UnsupportedTag => (StatusCode::UNPROCESSABLE_ENTITY, "UnsupportedTag"),
            Self::UnverifiedDomain { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "UnverifiedDomain"),
            Self::Suppressed { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "Suppressed"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            Self::QueueFull(_) => (StatusCode::SERVICE_UNAVAILABLE, "QueueFull"),
            Self::StorageUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "StorageUnavailable"),
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "ShuttingDown"),
            Self::TooManyConnections => (StatusCode::SERVICE_UNAVAILABLE, "TooManyConnections"),
        }
    }

    /// One error of each kind.
    #[cfg(test)]
    pub(in crate::http) fn one_of_each() -> Vec<Self> {
        let text = String::new;
        vec![
            Self::BadRequest { reason: "" },
            Self::InvalidJson { message: text() },
            Self::Unauthorized,
            Self::NotFound,
            Self::MethodNotAllowed { allow: "" },
            Self::RequestTimeout,
            Self::PayloadTooLarge { limit: 0 },
            Self::UriTooLong,
            Self::HeadersTooLarge,
            Self::UnsupportedMediaType,
            Self::Validation(FieldError::new("", "")),
            Self::UnsupportedTag,
            Self::UnverifiedDomain { domain: text() },
            Self::Suppressed { field: text() },
            Self::Internal,
            Self::QueueFull(Overload::short(SharedLimit::Pending, Exhausted::Whole)),
            Self::StorageUnavailable,
            Self::ShuttingDown,
            Self::TooManyConnections,
        ]
    }

    fn message(&self) -> Cow<'_, str> {
        match self {
            Self::BadRequest { reason } => Cow::Borrowed(reason),
            Self::InvalidJson { message } => Cow::Borrowed(message),
            Self::Unauthorized => {
                "the request needs a valid API key, as Authorization: Bearer <API_KEY>".into()
            }
            Self::ForeignHost => {
                "the Host header names another host; use the listener's IP address or localhost".into()
            }
            Self::NotFound => "nothing was found here".into(),
            Self::MethodNotAllowed { allow } => {
                format!("this path does not take the method; it takes {allow}").into()
            }
            Self::RequestTimeout => "the request came too slowly".into(),
            Self::PayloadTooLarge { limit } => {
                format!("the body must be at most {limit} bytes").into()
            }
            Self::UriTooLong => "the request's target is too long".into(),
            Self::HeadersTooLarge => "the request's header fields are too large or too many".into(),
            Self::UnsupportedMediaType => {
                "the Content-Type must be application/json, in UTF-8".into()
            }
            Self::Validation(FieldError { field: None, rule }) => Cow::Borrowed(rule),
            Self::Validation(FieldError { field: Some(field), rule }) => {
                format!("{}: {rule}", clip(field, MAX_FIELD_CHARS)).into()
            }
            Self::UnsupportedTag => {
                "tag: only transactional messages are sent; leave it out or say transactional"
                    .into()
            }
            Self::UnverifiedDomain { domain } => {
                let domain = clip(domain, MAX_ECHO_CHARS);
                format!("from: the domain {domain} is not verified for your organisation").into()
            }
            Self::Suppressed { field } => {
                format!("{field}: this recipient is suppressed after a bounce, a complaint or by the operator").into()
            }
            Self::Internal => "something went wrong on our side".into(),
            Self::QueueFull(overload) => overload.message().into(),
            Self::StorageUnavailable => {
                "the service cannot reach its storage for now: nothing was stored; try again later".into()
            }
            Self::ShuttingDown => "the service is restarting; try again".into(),
            Self::TooManyConnections => "too many connections are open; try again later".into(),
        }
    }

    fn field(&self) -> Option<&str> {
        match self {
            Self::Validation(error) => {
                error.field.as_deref().map(|field| clip(field, MAX_FIELD_CHARS))
            }
            Self::UnsupportedTag => Some("tag"),
            Self::UnverifiedDomain { .. } => Some("from"),
            Self::Suppressed { field } => Some(field),
            _ => None,
        }
    }

    /// The one header that the status asks for, besides those of every answer.
    fn extra_header(&self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::Unauthorized => Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            Self::MethodNotAllowed { allow } => Some((ALLOW, HeaderValue::from_static(allow))),
            Self::QueueFull(overload) => Some((RETRY_AFTER, overload.retry_after.as_secs().into())),
            Self::ShuttingDown | Self::TooManyConnections => {
                Some((RETRY_AFTER, RETRY_SOON_SECONDS.into()))
            }
            Self::StorageUnavailable => Some((RETRY_AFTER, RETRY_LATER_SECONDS.into())),
            _ => None,
        }
    }

    fn body(&self) -> Vec<u8> {
        let (_, code) = self.kind();
        let body = Body { error: Detail { code, message: self.message(), field: self.field() } };
        serde_json::to_vec(&body).expect("strings serialize")
    }

    /// The response for hyper to send.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body())));
        *response.status_mut() = self.kind().0;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        if let Some((name, value)) = self.extra_header() {
            headers.insert(name, value);
        }
        if self == Self::ShuttingDown {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The response as bytes, for a connection on which hyper cannot send it. It is the
    /// connection's last.
    pub fn to_raw(&self, id: RequestId, now: SystemTime) -> Vec<u8> {
        let (status, _) = self.kind();
        let body = self.body();
        let mut raw = Vec::with_capacity(body.len() + 256);
        let reason = status.canonical_reason().unwrap_or_default();
        write!(
            raw,
            "HTTP/1.1 {} {reason}\r\ncontent-type: {JSON}\r\ncontent-length: {}\r\n\
             connection: close\r\ndate: {}\r\n{REQUEST_ID_HEADER}: {id}\r\n",
            status.as_u16(),
            body.len(),
            http_date(now),
        )
        .expect("a Vec takes every write");
        if let Some((name, value)) = self.extra_header() {
            raw.extend_from_slice(name.as_str().as_bytes());
            raw.extend_from_slice(b": ");
            raw.extend_from_slice(value.as_bytes());
            raw.extend_from_slice(b"\r\n");
        }
        raw.extend_from_slice(b"\r\n");
        raw.extend_from_slice(&body);
        raw
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Self::Validation(error)
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Invalid(error) => Self::Validation(error),
            RequestError::UnsupportedTag => Self::UnsupportedTag,
        }
    }
}

/// The first `max_chars` characters.
pub fn clip(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).map_or(text, |(end, _)| &text[..end])
}

/// An instant as the `Date` header shows it (RFC 9110 section 5.6.7).
fn http_date(now: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    // The Unix epoch was a Thursday.
    let day_name = DAYS[usize::try_from(days % 7).expect("under seven")];
    // `2026-11-21T09:30:00Z`
    let text = humantime::format_rfc3339_seconds(now.max(UNIX_EPOCH)).to_string();
    let month = text[5..7].parse::<usize>().expect("two digits");
    let (year, day, time) = (&text[..4], &text[8..10], &text[11..19]);
    format!("{day_name}, {day} {} {year} {time} GMT", MONTHS[month - 1])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt as _;

    use super::*;
    use crate::http::request_id::RequestIds;

    #[test]
    fn the_date_is_in_the_one_form_of_http() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(http_date(at(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(at(0)), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[tokio::test]
    async fn both_renderings_say_the_same() {
        let error = ApiError::Validation(FieldError::new("to[2]", "is no address"));
        let raw = error.to_raw(RequestIds::new().unwrap().next(), SystemTime::now());
        let raw = String::from_utf8(raw).unwrap();
        let (head, raw_body) = raw.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 422 Unprocessable Entity\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}", raw_body.len())), "{head}");
        let response = error.into_response();
        assert_eq!(response.status(), 422);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, raw_body);
        assert_eq!(
            body,
            r#"{"error":{"code":"ValidationError","message":"to[2]: is no address","field":"to[2]"}}"#
        );
    }

    #[test]
    fn statuses_carry_the_headers_they_ask_for() {
        let headers = |error: ApiError| error.into_response().headers().clone();
        assert_eq!(headers(ApiError::Unauthorized)["www-authenticate"], "Bearer");
        assert_eq!(headers(ApiError::MethodNotAllowed { allow: "GET" })["allow"], "GET");
        let draining = headers(ApiError::ShuttingDown);
        assert_eq!(draining["connection"], "close");
        for error in [
            ApiError::QueueFull(Overload::short(SharedLimit::Pending, Exhausted::Share)),
            ApiError::StorageUnavailable,
            ApiError::ShuttingDown,
        ] {
            assert!(headers(error).contains_key("retry-after"));
        }
    }

    #[test]
    fn a_clients_text_is_repeated_in_part_alone() {
        let field = format!("headers.X-{}", "é".repeat(10_000));
        let body = ApiError::Validation(FieldError::new(field, "is wrong")).body();
        assert!(body.len() < 1_000, "{}", body.len());
    }
}
