//! The operators' page: files that anybody may have, and data behind the page's key.
//!
//! What it reads goes the way of the administration commands, of which it uses those alone that
//! change nothing.

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use http_body_util::Full;
use serde::Serialize;

use crate::admin::wire::{self, Request, SuppressionCursor};
use crate::http::rejection::{JSON, Rejection};
use crate::operator::live::PageBody;
use crate::operator::{Operator, caught};

/// What the page may load: its own files, and its own data. Nothing inline, nothing from outside,
/// and nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";
const EVENT_STREAM: &str = "text/event-stream";
/// The media type of documents.
pub(super) const HTML: &str = "text/html; charset=utf-8";
const SVG: &str = "image/svg+xml";
/// Messages in one answer.
const MESSAGES: usize = 50;

/// A path of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path<'a> {
    File { media_type: &'static str, text: &'static str },
    Live,
    Messages,
    Message(&'a str),
    Suppressions,
    Caught(caught::Path<'a>),
}

impl<'a> Path<'a> {
    pub(super) fn of(path: &'a str) -> Option<Self> {
        let file = |media_type, text| Some(Self::File { media_type, text });
        match path {
            "/" => file(HTML, include_str!("page/index.html")),
            "/page.css" => file("text/css; charset=utf-8", include_str!("page/page.css")),
            "/page.js" => file(SCRIPT, include_str!("page/page.js")),
            "/caught.js" => file(SCRIPT, include_str!("page/caught.js")),
            "/nodes.js" => file(SCRIPT, include_str!("page/nodes.js")),
            "/plot.js" => file(SCRIPT, include_str!("page/plot.js")),
            "/icon.svg" => file(SVG, include_str!("page/icon.svg")),
            "/page/live" => Some(Self::Live),
            "/page/messages" => Some(Self::Messages),
            "/page/suppressions" => Some(Self::Suppressions),
            _ => match path.strip_prefix("/page/caught") {
                Some(rest) => caught::Path::of(rest).map(Self::Caught),
                None => path.strip_prefix("/page/messages/").map(Self::Message),
            },
        }
    }
}

impl Operator {
    /// Answers a request for the page or its data.
    pub(super) async fn page(
        &self,
        path: Path<'_>,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Response<PageBody>, Rejection> {
        if let Path::File { media_type, text } = path {
            return Ok(response(StatusCode::OK, media_type, Full::from(text).into()));
        }
        let is_opened = match path {
            Path::Caught(caught::Path::Frame { id, ticket }) => self.key.opens_frame(id, ticket),
            _ => self.key.opens(headers),
        };
        if !is_opened {
            return Err(Rejection::Unauthorized);
        }
        let request = match path {
            Path::File { .. } => unreachable!("answered above"),
            Path::Live => {
                let body = PageBody::live(self.told.clone());
                return Ok(response(StatusCode::OK, EVENT_STREAM, body));
            }
            Path::Caught(path) => return caught::answer(path, self.parts.catcher.get(), &self.key),
            Path::Message(id) => Request::MessageShow { id: id.to_owned() },
            Path::Messages => Request::MessageList {
                organisation: parameter(uri, "organisation"),
                status: parameter(uri, "status"),
                recipient: parameter(uri, "recipient"),
                before: parameter(uri, "before"),
                limit: MESSAGES,
            },
            Path::Suppressions => Request::SuppressionList { scope: None, after: cursor(uri) },
        };
        Ok(match self.admin.handle(request).await {
            wire::Response::Message(message) => json(StatusCode::OK, &message),
            wire::Response::Messages(messages) => json(StatusCode::OK, &messages),
            wire::Response::Suppressions(suppressions) => json(StatusCode::OK, &suppressions),
            wire::Response::Refused(refusal) => json(StatusCode::BAD_REQUEST, &refusal),
            _ => return Err(Rejection::Internal),
        })
    }
}

/// Where a list of suppressions goes on.
fn cursor(uri: &Uri) -> Option<SuppressionCursor> {
    let address = parameter(uri, "address")?;
    let organisation = parameter(uri, "organisation").and_then(|number| number.parse().ok());
    Some(SuppressionCursor { organisation, address })
}

/// A parameter's value; nothing where it is absent or empty.
fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = form_urlencoded::parse(uri.query()?.as_bytes());
    let mut values = pairs.filter(|(key, _)| key == name).map(|(_, value)| value.trim().to_owned());
    values.next().filter(|value| !value.is_empty())
}

pub(super) fn json(status: StatusCode, document: &impl Serialize) -> Response<PageBody> {
    let text = serde_json::to_vec(document).expect("texts and numbers serialize");
    response(status, JSON, Full::from(text).into())
}

pub(super) fn response(
    status: StatusCode,
    media_type: &'static str,
    body: PageBody,
) -> Response<PageBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
