//! Rejections: what the server and its services refuse for reasons of HTTP, and the form of every
//! error answer.
//!
//! Every answer that names an error has one body, unless a handler writes another one:
//! `{"error":{"code":"…","message":"…","field":"…"}}`. Knows nothing of causes inside the
//! service: those go to the log, under the request's id.

use std::borrow::Cow;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::{Serialize, Serializer};

use crate::refusal_log::RefusalCode;
use crate::request_id::{REQUEST_ID_HEADER, RequestId};
use pillarbox_runtime::shared_limits::Exhausted;

/// The media type of every body, sent and received.
pub const JSON: &str = "application/json";

/// Seconds after which memory of the server is free again: most requests take less than one.
pub const RETRY_AT_ONCE_SECONDS: u64 = 1;
const RETRY_SOON_SECONDS: u64 = 5;

/// Reason why a request is refused before its content is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// The bytes are no HTTP request whose end can be trusted.
    BadRequest {
        /// The problem, as a part of a sentence for the client.
        reason: &'static str,
    },
    /// The key is missing, malformed, unknown or revoked; the response does not say which.
    Unauthorized,
    /// The `Host` header names a host that a foreign page could have pointed here.
    ForeignHost,
    /// Nothing there that the client may see.
    NotFound,
    /// The listener has no such path.
    UnknownPath {
        /// The paths that it has, as a part of a sentence for the client.
        paths: &'static str,
    },
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
    /// An error of pillarbox itself.
    Internal,
    /// Memory of the server that its clients share, or the client's share of it, is used up.
    MemoryFull {
        /// Memory that is used up.
        memory: Memory,
        /// All of it, or the share.
        exhausted: Exhausted,
    },
    /// The service is draining.
    ShuttingDown,
    /// The connection limit is reached.
    TooManyConnections,
}

/// Memory of the server that its clients share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Bodies of requests that are being read.
    Requests,
    /// Responses that clients have not read.
    Responses,
}

impl Rejection {
    /// Returns the response's status and the code in its body.
    pub const fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest { .. } => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::ForeignHost => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::NotFound | Self::UnknownPath { .. } => (StatusCode::NOT_FOUND, "NotFound"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "RequestTimeout"),
            Self::PayloadTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLarge"),
            Self::UriTooLong => (StatusCode::URI_TOO_LONG, "UriTooLong"),
            Self::HeadersTooLarge => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "HeadersTooLarge")
            }
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            Self::MemoryFull { .. } => (StatusCode::SERVICE_UNAVAILABLE, "QueueFull"),
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "ShuttingDown"),
            Self::TooManyConnections => (StatusCode::SERVICE_UNAVAILABLE, "TooManyConnections"),
        }
    }

    fn message(&self) -> Cow<'static, str> {
        match self {
            Self::BadRequest { reason } => (*reason).into(),
            Self::Unauthorized => {
                "the API key is missing or not valid; send a key that is not revoked or expired, as \
                 Authorization: Bearer pb_…"
                    .into()
            }
            Self::ForeignHost => {
                "the Host header names another host; use the listener's IP address or localhost, \
                 or add the name to operator_hosts"
                    .into()
            }
            Self::NotFound => "there is nothing here".into(),
            Self::UnknownPath { paths } => {
                format!("there is no such path here; the paths are {paths}").into()
            }
            Self::MethodNotAllowed { allow } => {
                format!("this path does not allow the method; it allows {allow}").into()
            }
            Self::RequestTimeout => "the request came too slowly".into(),
            Self::PayloadTooLarge { limit } => {
                format!("the body must be at most {limit} bytes").into()
            }
            Self::UriTooLong => "the request's target is too long".into(),
            Self::HeadersTooLarge => "the request's header fields are too large or too many".into(),
            Self::Internal => "something went wrong on our side".into(),
            Self::MemoryFull { memory, exhausted } => match (memory, exhausted) {
                (Memory::Requests, Exhausted::Whole) => {
                    "the service's memory for request bodies is used up; try again later"
                }
                (Memory::Requests, Exhausted::Share) => {
                    "your organisation's share of the memory for request bodies is used up; \
                     finish the requests under way, or try again later"
                }
                (Memory::Responses, Exhausted::Whole) => {
                    "the service's memory for responses that clients have not read is used up; try \
                     again later"
                }
                (Memory::Responses, Exhausted::Share) => {
                    "your organisation's share of the memory for responses is used up; read the \
                     responses under way, then try again"
                }
            }
            .into(),
            Self::ShuttingDown => "the service is stopping or being drained; try again".into(),
            Self::TooManyConnections => "too many connections are open; try again later".into(),
        }
    }

    /// Returns the one header that the status asks for, besides those of every answer.
    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::Unauthorized => Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            Self::MethodNotAllowed { allow } => Some((ALLOW, HeaderValue::from_static(allow))),
            Self::MemoryFull { .. } => Some((RETRY_AFTER, RETRY_AT_ONCE_SECONDS.into())),
            Self::ShuttingDown | Self::TooManyConnections => {
                Some((RETRY_AFTER, RETRY_SOON_SECONDS.into()))
            }
            Self::BadRequest { .. }
            | Self::ForeignHost
            | Self::NotFound
            | Self::UnknownPath { .. }
            | Self::RequestTimeout
            | Self::PayloadTooLarge { .. }
            | Self::UriTooLong
            | Self::HeadersTooLarge
            | Self::Internal => None,
        }
    }

    /// Returns the answer for the client.
    pub fn answer(&self) -> ErrorAnswer<'static> {
        let (status, code) = self.kind();
        let (message, header) = (self.message(), self.header());
        ErrorAnswer { status, code, message, field: None, header }
    }

    /// Returns the response for hyper to send.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        self.respond(self.answer().written())
    }

    /// Returns the response with this answer for hyper to send.
    pub fn respond(&self, answer: WrittenAnswer) -> Response<Full<Bytes>> {
        let mut response = answer.into_response();
        if *self == Self::ShuttingDown {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Answer to a request that is refused, as it is sent.
#[derive(Debug)]
pub struct WrittenAnswer {
    /// The response's status.
    pub status: StatusCode,
    /// A name for the log.
    pub code: &'static str,
    /// Body of the response, as JSON.
    pub body: Vec<u8>,
    /// The one header that the status asks for.
    pub header: Option<(HeaderName, HeaderValue)>,
}

impl WrittenAnswer {
    /// Returns the response for hyper to send.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        response.extensions_mut().insert(RefusalCode(self.code));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers.extend(self.header);
        response
    }

    /// Returns the response as bytes, for a connection on which hyper cannot send it. It is the
    /// connection's last.
    pub(super) fn to_raw(&self, id: RequestId, now: SystemTime) -> Vec<u8> {
        let Self { status, code: _, body, header } = self;
        let mut raw = Vec::with_capacity(body.len() + 256);
        write!(
            raw,
            "HTTP/1.1 {} {}\r\ncontent-type: {JSON}\r\ncontent-length: {}\r\n\
             connection: close\r\ndate: {}\r\n{REQUEST_ID_HEADER}: {id}\r\n",
            status.as_str(),
            status.canonical_reason().unwrap_or_default(),
            body.len(),
            // A clock before 1970 has no date in HTTP.
            httpdate::fmt_http_date(now.max(UNIX_EPOCH)),
        )
        .expect("a Vec takes every write");
        if let Some((name, value)) = header {
            raw.extend_from_slice(name.as_str().as_bytes());
            raw.extend_from_slice(b": ");
            raw.extend_from_slice(value.as_bytes());
            raw.extend_from_slice(b"\r\n");
        }
        raw.extend_from_slice(b"\r\n");
        raw.extend_from_slice(body);
        raw
    }
}

/// Answer to a request that is refused. It serializes as `{"error":{…}}`.
#[derive(Debug)]
pub struct ErrorAnswer<'a> {
    /// The response's status.
    pub status: StatusCode,
    /// A name for programs.
    pub code: &'static str,
    /// A sentence for people.
    pub message: Cow<'a, str>,
    /// The part of the request's body that is wrong, if it is one.
    pub field: Option<&'a str>,
    /// The one header that the status asks for.
    pub header: Option<(HeaderName, HeaderValue)>,
}

impl Serialize for ErrorAnswer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            error: Detail<'a>,
        }
        #[derive(Serialize)]
        struct Detail<'a> {
            code: &'static str,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
        }
        let error = Detail { code: self.code, message: &self.message, field: self.field };
        Body { error }.serialize(serializer)
    }
}

impl ErrorAnswer<'_> {
    /// Returns the body, with a line break at its end as every answer of the API has it.
    pub fn body(&self) -> Vec<u8> {
        let mut body = serde_json::to_vec(self).expect("strings serialize");
        body.push(b'\n');
        body
    }

    /// Returns the answer as it is sent.
    pub fn written(self) -> WrittenAnswer {
        let body = self.body();
        WrittenAnswer { status: self.status, code: self.code, body, header: self.header }
    }

    /// Returns the response for hyper to send.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        self.written().into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt as _;

    use super::*;
    use crate::request_id::RequestIds;

    fn raw(rejection: &Rejection, now: SystemTime) -> String {
        let id = RequestIds::new().unwrap().next();
        String::from_utf8(rejection.answer().written().to_raw(id, now)).unwrap()
    }

    #[test]
    fn the_date_is_in_the_one_form_of_http() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let written = raw(&Rejection::NotFound, now);
        assert!(written.contains("\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), "{written}");
        let written = raw(&Rejection::NotFound, UNIX_EPOCH - Duration::from_secs(1));
        assert!(written.contains("\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"), "{written}");
    }

    #[tokio::test]
    async fn both_renderings_say_the_same() {
        let rejection = Rejection::PayloadTooLarge { limit: 10 };
        let raw = raw(&rejection, SystemTime::now());
        let (head, raw_body) = raw.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}", raw_body.len())), "{head}");
        let response = rejection.into_response();
        assert_eq!(response.status(), 413);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, raw_body);
        assert_eq!(
            body,
            "{\"error\":{\"code\":\"PayloadTooLarge\",\"message\":\"the body must be at most 10 \
             bytes\"}}\n"
        );
    }

    #[test]
    fn statuses_carry_the_headers_they_ask_for() {
        let headers = |rejection: Rejection| rejection.into_response().headers().clone();
        assert_eq!(headers(Rejection::Unauthorized)["www-authenticate"], "Bearer");
        assert_eq!(headers(Rejection::MethodNotAllowed { allow: "GET" })["allow"], "GET");
        let draining = headers(Rejection::ShuttingDown);
        assert_eq!(
            (&draining["connection"], &draining["retry-after"]),
            (&"close".parse().unwrap(), &"5".parse().unwrap())
        );
        let full = Rejection::MemoryFull { memory: Memory::Requests, exhausted: Exhausted::Share };
        assert_eq!(headers(full)["retry-after"], "1");
    }
}
