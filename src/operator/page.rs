//! The operators' page: files that anybody may have, and data behind the page's key.
//!
//! What it reads goes the way of the administration commands, of which it uses those alone that
//! change nothing.

use http::{HeaderMap, Response, StatusCode, Uri};
use http_body_util::Full;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::admin::suppression::SuppressionCursor;
use crate::admin::{Call, MessageList, MessageShow, Refusal, SuppressionList, WebhookList};
use crate::http::body::ResponseBody;
use crate::http::rejection::Rejection;
use crate::operator::history::{self, Range};
use crate::operator::{
    HTML, Operator, captured_mail, live, organisations, page_json, page_response,
};

const SCRIPT: &str = "text/javascript; charset=utf-8";
const EVENT_STREAM: &str = "text/event-stream";
const SVG: &str = "image/svg+xml";
/// Messages in one answer.
const MESSAGES: usize = 50;

/// The files of the page: path, media type and text.
const FILES: [(&str, &str, &str); 19] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/captured.js", SCRIPT, include_str!("page/captured.js")),
    ("/csv.js", SCRIPT, include_str!("page/csv.js")),
    ("/domains.js", SCRIPT, include_str!("page/domains.js")),
    ("/listing.js", SCRIPT, include_str!("page/listing.js")),
    ("/message.js", SCRIPT, include_str!("page/message.js")),
    ("/messages.js", SCRIPT, include_str!("page/messages.js")),
    ("/nodes.js", SCRIPT, include_str!("page/nodes.js")),
    ("/organisations.js", SCRIPT, include_str!("page/organisations.js")),
    ("/outcomes.js", SCRIPT, include_str!("page/outcomes.js")),
    ("/overview.js", SCRIPT, include_str!("page/overview.js")),
    ("/plot.js", SCRIPT, include_str!("page/plot.js")),
    ("/router.js", SCRIPT, include_str!("page/router.js")),
    ("/session.js", SCRIPT, include_str!("page/session.js")),
    ("/suppressions.js", SCRIPT, include_str!("page/suppressions.js")),
    ("/webhooks.js", SCRIPT, include_str!("page/webhooks.js")),
    ("/icon.svg", SVG, include_str!("page/icon.svg")),
];

/// A path of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path<'a> {
    File { media_type: &'static str, text: &'static str },
    Live,
    Messages,
    Message(&'a str),
    Suppressions,
    Webhooks,
    Organisations,
    Domains,
    History,
    Caught(captured_mail::Path<'a>),
}

impl<'a> Path<'a> {
    pub(super) fn of(path: &'a str) -> Option<Self> {
        if let Some(&(_, media_type, text)) = FILES.iter().find(|(known, ..)| *known == path) {
            return Some(Self::File { media_type, text });
        }
        match path {
            "/page/live" => Some(Self::Live),
            "/page/messages" => Some(Self::Messages),
            "/page/suppressions" => Some(Self::Suppressions),
            "/page/webhooks" => Some(Self::Webhooks),
            "/page/organisations" => Some(Self::Organisations),
            "/page/domains" => Some(Self::Domains),
            "/page/history" => Some(Self::History),
            _ => match path.strip_prefix("/page/caught") {
                Some(rest) => captured_mail::Path::of(rest).map(Self::Caught),
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
    ) -> Result<Response<ResponseBody>, Rejection> {
        if let Path::File { media_type, text } = path {
            return Ok(page_response(StatusCode::OK, media_type, Full::from(text).into()));
        }
        let is_opened = match path {
            Path::Caught(captured_mail::Path::Frame { id, ticket }) => {
                self.key.opens_with_ticket(id, ticket)
            }
            Path::Caught(captured_mail::Path::File { place, ticket }) => {
                self.key.opens_with_ticket(place, ticket)
            }
            _ => self.key.opens(headers),
        };
        if !is_opened {
            return Err(Rejection::Unauthorized);
        }
        let (parts, admin) = (&self.observer.parts, &self.admin);
        Ok(match path {
            Path::File { .. } => unreachable!("answered above"),
            Path::Live => {
                let body = live::events(self.told.clone());
                page_response(StatusCode::OK, EVENT_STREAM, body)
            }
            Path::Caught(path) => {
                let (only, catcher) =
                    (parameter(uri, "organisation"), self.observer.parts.catcher.get());
                return captured_mail::answer(path, only.as_deref(), catcher, &self.key);
            }
            Path::Message(id) => answered(&MessageShow { id: id.to_owned() }.answer(admin).await),
            Path::Messages => {
                let others = &[("limit", MESSAGES.into())];
                answered(&self.query::<MessageList>(uri, others).await)
            }
            Path::Webhooks => answered(&self.query::<WebhookList>(uri, &[]).await),
            Path::Organisations => {
                let after = parameter(uri, "after").and_then(|number| number.parse().ok());
                let page = organisations::organisations(parts, admin, after).await;
                answered(&page.map_err(Refusal::from))
            }
            Path::Domains => {
                let (only, after) = (parameter(uri, "organisation"), parameter(uri, "after"));
                let page = organisations::domains(parts, admin, only.as_deref(), after.as_deref());
                page_json(StatusCode::OK, &page)
            }
            Path::History => {
                let range = parameter(uri, "range").unwrap_or_else(|| "1d".to_owned());
                answered(&match Range::parse(&range) {
                    Ok(range) => {
                        let history = history::answer(parts, &self.observer.history, range).await;
                        history.map_err(Refusal::from)
                    }
                    Err(message) => Err(Refusal { message }),
                })
            }
            Path::Suppressions => {
                answered(&SuppressionList { scope: None, after: cursor(uri) }.answer(admin).await)
            }
        })
    }

    /// Makes a call with a query's parameters, and with others that it cannot have.
    async fn query<C: Call>(
        &self,
        uri: &Uri,
        others: &[(&str, Value)],
    ) -> Result<C::Answer, Refusal> {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        let mut members = Map::new();
        for (name, value) in pairs {
            // Of a parameter that is there twice, the first counts. An empty one counts as absent.
            members.entry(name).or_insert_with(|| value.trim().into());
        }
        members.retain(|_, value| value != "");
        members.extend(others.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let call: Result<C, _> = serde_json::from_value(Value::Object(members));
        let call = call.map_err(|error| Refusal { message: format!("{error} in the query") })?;
        call.answer(&self.admin).await
    }
}

fn answered(answer: &Result<impl Serialize, Refusal>) -> Response<ResponseBody> {
    match answer {
        Ok(answer) => page_json(StatusCode::OK, answer),
        Err(refusal) => page_json(StatusCode::BAD_REQUEST, refusal),
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
