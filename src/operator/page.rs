//! The operators' page: files that anybody may have, and data behind the page's key.
//!
//! What it reads goes the way of the administration commands, of which it uses those alone that
//! change nothing.

use std::net::IpAddr;
use std::time::Duration;

use http::header::{RETRY_AFTER, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::key::reached;
use crate::sign_in::NotSignedIn;
use crate::{
    HTML, Operator, Parts, captured_mail, history, live, organisations, page_json, page_response,
};
use pillarbox_admin::suppression::SuppressionCursor;
use pillarbox_admin::{
    Admin, Call, DeadLetterList, DeadLetterShow, KeyList, MessageList, MessageShow, Refusal,
    SuppressionList, WebhookList, WebhookShow, conditions, failure_explanations,
};
use pillarbox_http::body::ResponseBody;
use pillarbox_http::rejection::Rejection;

const SCRIPT: &str = "text/javascript; charset=utf-8";
const EVENT_STREAM: &str = "text/event-stream";
const SVG: &str = "image/svg+xml";
/// The most bytes of a password, and how long it may take to come.
const MAX_PASSWORD_BYTES: usize = 1_024;
const PASSWORD_PATIENCE: Duration = Duration::from_secs(5);
/// Messages in one answer.
const MESSAGES: usize = 50;

/// The files of the page: path, media type and text.
const FILES: [(&str, &str, &str); 25] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/captured.js", SCRIPT, include_str!("page/captured.js")),
    ("/conditions.js", SCRIPT, include_str!("page/conditions.js")),
    ("/counts.js", SCRIPT, include_str!("page/counts.js")),
    ("/csv.js", SCRIPT, include_str!("page/csv.js")),
    ("/documents.js", SCRIPT, include_str!("page/documents.js")),
    ("/domains.js", SCRIPT, include_str!("page/domains.js")),
    ("/first_steps.js", SCRIPT, include_str!("page/first_steps.js")),
    ("/help.js", SCRIPT, include_str!("page/help.js")),
    ("/keys.js", SCRIPT, include_str!("page/keys.js")),
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
    Counts,
    Suppressions,
    Webhooks,
    Webhook(&'a str),
    Organisations,
    Keys,
    Domains,
    Domain(&'a str),
    Documents,
    Document(&'a str),
    History,
    FirstSteps,
    Help,
    Session,
    Caught(captured_mail::Path<'a>),
}

impl<'a> Path<'a> {
    pub(super) fn of(path: &'a str) -> Option<Self> {
        if let Some(&(_, media_type, text)) = FILES.iter().find(|(known, ..)| *known == path) {
            return Some(Self::File { media_type, text });
        }
        let rest = path.strip_prefix("/page/")?;
        let (kind, name) =
            rest.split_once('/').map_or((rest, None), |(kind, one)| (kind, Some(one)));
        Some(match (kind, name) {
            ("live", None) => Self::Live,
            ("messages", None) => Self::Messages,
            ("messages", Some(id)) => Self::Message(id),
            ("counts", None) => Self::Counts,
            ("suppressions", None) => Self::Suppressions,
            ("webhooks", None) => Self::Webhooks,
            ("webhooks", Some(id)) => Self::Webhook(id),
            ("organisations", None) => Self::Organisations,
            ("keys", None) => Self::Keys,
            ("domains", None) => Self::Domains,
            ("domains", Some(name)) => Self::Domain(name),
            ("documents", None) => Self::Documents,
            ("documents", Some(id)) => Self::Document(id),
            ("history", None) => Self::History,
            ("first-steps", None) => Self::FirstSteps,
            ("help", None) => Self::Help,
            ("session", None) => Self::Session,
            ("caught", rest) => Self::Caught(captured_mail::Path::of(rest)),
            _ => return None,
        })
    }
}

impl Operator {
    /// Answers a request for the page or its data.
    pub(super) async fn page(
        &self,
        path: Path<'_>,
        uri: &Uri,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Response<ResponseBody>, Rejection> {
        if let Path::File { media_type, text } = path {
            return Ok(page_response(StatusCode::OK, media_type, Full::from(text).into()));
        }
        let is_opened = match path {
            Path::Caught(
                captured_mail::Path::Frame { id: place, ticket }
                | captured_mail::Path::File { place, ticket },
            ) => self.key.opens_with_ticket(place, ticket),
            _ => self.is_opened(headers, peer),
        };
        if !is_opened {
            return Err(Rejection::Unauthorized);
        }
        let (parts, admin) = (&self.observer.parts, &self.admin);
        Ok(match path {
            Path::File { .. } | Path::Session => unreachable!("answered above"),
            Path::Live => {
                let body = live::events(self.told.clone());
                page_response(StatusCode::OK, EVENT_STREAM, body)
            }
            Path::Caught(path) => {
                let (only, catcher) = (parameter(uri, "organisation"), parts.catcher.get());
                return captured_mail::answer(path, only.as_deref(), catcher, &self.key);
            }
            Path::Message(id) => answered(&MessageShow { id: id.to_owned() }.answer(admin).await),
            Path::Messages => {
                let others = &[("limit", MESSAGES.into())];
                answered(&self.query::<MessageList>(uri, others).await)
            }
            Path::Counts => {
                let others = &[("limit", MESSAGES.into()), ("count", true.into())];
                answered(&self.query::<MessageList>(uri, others).await)
            }
            Path::Webhooks => answered(&self.query::<WebhookList>(uri, &[]).await),
            Path::Webhook(id) => answered(&match id.parse() {
                Ok(id) => WebhookShow { id }.answer(admin).await,
                Err(_) => {
                    Err(Refusal { message: format!("{id:?} is not the number of an endpoint") })
                }
            }),
            Path::Keys => answered(&self.query::<KeyList>(uri, &[]).await),
            Path::Domain(name) => answered(&admin.domain_at_ses(name).await),
            Path::Documents => answered(&DeadLetterList {}.answer(admin).await),
            Path::Document(id) => {
                answered(&DeadLetterShow { id: id.to_owned() }.answer(admin).await)
            }
            Path::FirstSteps => page_json(StatusCode::OK, &first_steps(parts, admin)),
            Path::Help => page_json(StatusCode::OK, &help()),
            Path::Organisations => {
                let after = parameter(uri, "after").and_then(|number| number.parse().ok());
                let only = parameter(uri, "organisation");
                let page = organisations::organisations(parts, admin, only.as_deref(), after).await;
                answered(&page.map_err(Refusal::from))
            }
            Path::Domains => {
                let (only, after) = (parameter(uri, "organisation"), parameter(uri, "after"));
                let page = organisations::domains(parts, admin, only.as_deref(), after.as_deref());
                page_json(StatusCode::OK, &page)
            }
            Path::History => {
                let range = parameter(uri, "range").unwrap_or_else(|| "1d".to_owned());
                answered(&history::answer(parts, &self.observer.history, &range).await)
            }
            Path::Suppressions => {
                let search = parameter(uri, "search");
                let call = SuppressionList { scope: None, search, after: cursor(uri) };
                answered(&call.answer(admin).await)
            }
        })
    }

    /// Returns true if the request brings the page's key, or is from a person who is signed in.
    fn is_opened(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> bool {
        self.key.opens(headers)
            || self.sign_in.opens(headers, peer, self.observer.parts.clock.now())
    }

    /// Answers a request for the sign-in: how it stands, a password, or its end.
    pub(super) async fn session(
        &self,
        request: Request<Incoming>,
        peer: Option<IpAddr>,
    ) -> Result<Response<ResponseBody>, Rejection> {
        const ALLOW: &str = "GET, HEAD, POST, DELETE";
        let (head, body) = request.into_parts();
        let (headers, now) = (&head.headers, self.observer.parts.clock.now());
        let shown = |is_open| {
            let password = self.sign_in.offers_password(headers, peer);
            page_json(StatusCode::OK, &json!({ "open": is_open, "password": password }))
        };
        match head.method {
            Method::GET | Method::HEAD => Ok(shown(self.is_opened(headers, peer))),
            Method::POST => {
                let given =
                    timeout(PASSWORD_PATIENCE, Limited::new(body, MAX_PASSWORD_BYTES).collect());
                let given = given.await.map_err(|_| Rejection::RequestTimeout)?;
                let limit = MAX_PASSWORD_BYTES;
                let given = given.map_err(|_| Rejection::PayloadTooLarge { limit })?.to_bytes();
                let given = String::from_utf8_lossy(&given);
                Ok(match self.sign_in.sign_in(headers, peer, &given, now) {
                    Ok(cookie) => with_header(shown(true), SET_COOKIE, cookie),
                    Err(reason) => not_signed_in(reason),
                })
            }
            Method::DELETE => {
                Ok(with_header(shown(false), SET_COOKIE, self.sign_in.sign_out(headers, peer)))
            }
            _ => Err(Rejection::MethodNotAllowed { allow: ALLOW }),
        }
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

fn not_signed_in(reason: NotSignedIn) -> Response<ResponseBody> {
    let told = Refusal { message: reason.message().to_owned() };
    match reason {
        NotSignedIn::TooManyTries => {
            let response = page_json(StatusCode::TOO_MANY_REQUESTS, &told);
            with_header(response, RETRY_AFTER, HeaderValue::from_static("60"))
        }
        NotSignedIn::NotOffered | NotSignedIn::ForeignOrigin | NotSignedIn::WrongPassword => {
            page_json(StatusCode::FORBIDDEN, &told)
        }
    }
}

fn with_header(
    mut response: Response<ResponseBody>,
    name: HeaderName,
    value: HeaderValue,
) -> Response<ResponseBody> {
    response.headers_mut().insert(name, value);
    response
}

fn answered(answer: &Result<impl Serialize, Refusal>) -> Response<ResponseBody> {
    match answer {
        Ok(answer) => page_json(StatusCode::OK, answer),
        Err(refusal) => page_json(StatusCode::BAD_REQUEST, refusal),
    }
}

/// Data that the page needs for the steps to a first message.
fn first_steps(parts: &Parts, admin: &Admin) -> Value {
    let scheme = if parts.tls.is_some() { "https" } else { "http" };
    let api = admin.client_address().map(|address| format!("{scheme}://{}", reached(address)));
    let organisations = parts.store.organisations();
    let first = organisations.iter().min_by_key(|organisation| organisation.id.0);
    let domains = parts.store.domains();
    let own = first.and_then(|first| domains.iter().find(|one| one.organisation == first.id));
    json!({
        "api": api.unwrap_or_default(),
        "organisation": first.map(|organisation| organisation.name.as_str()),
        "domain": own.map(|domain| &domain.name),
    })
}

/// Everything that the page links to an explanation of.
fn help() -> Value {
    let conditions = conditions::definitions().map(|one| {
        json!({
            "code": one.code,
            "severity": one.severity.as_str(),
            "meaning": one.meaning,
            "advice": one.advice,
        })
    });
    let messages = failure_explanations::all()
        .map(|one| json!({ "topic": one.topic, "cause": one.cause, "advice": one.advice }));
    json!({
        "conditions": conditions.collect::<Vec<_>>(),
        "messages": messages.collect::<Vec<_>>(),
    })
}

/// Position at which a list of suppressions goes on.
fn cursor(uri: &Uri) -> Option<SuppressionCursor> {
    let address = parameter(uri, "address")?;
    let organisation = parameter(uri, "organisation").and_then(|number| number.parse().ok());
    Some(SuppressionCursor { organisation, address })
}

/// A parameter's value; `None` if it is absent or empty.
fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = form_urlencoded::parse(uri.query()?.as_bytes());
    let mut values = pairs.filter(|(key, _)| key == name).map(|(_, value)| value.trim().to_owned());
    values.next().filter(|value| !value.is_empty())
}
