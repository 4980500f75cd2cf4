//! The API in Resend's shape, on a listener of its own: a translation on both sides of the same
//! requests and records.
//!
//! What is accepted, and in which order it is checked, is `api`'s and `intake`'s matter. This knows
//! Resend's names, shapes and status codes, as its public API documents them and its SDKs read them,
//! and no rule of mail.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::sync::Arc;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;

use pillarbox_api::error::ApiError;
use pillarbox_api::{self as api, Api, RequestHandler};
use pillarbox_domain::id::KeyId;
use pillarbox_domain::limits::MAX_BATCH;
use pillarbox_domain::message::{Failure, FailureCode, Message};
use pillarbox_domain::organisation::Organisation;
use pillarbox_domain::request::{FieldError, IdempotencyKey, batch_key};
use pillarbox_domain::search::MessageFilter;
use pillarbox_http::body::ResponseBody;
use pillarbox_http::refusal_log::AnsweredTo;
use pillarbox_http::rejection::{Rejection, WrittenAnswer};
use pillarbox_http::request_id::RequestId;
use pillarbox_http::{Connection, Handler};
use pillarbox_records::listing::Listing;
use pillarbox_records::views::resend::EmailView;
use pillarbox_runtime::in_flight::InFlightGuard;
use pillarbox_store::{BatchMode, Client};

use error::KeyGiven;
use requests::{BatchDocument, EmailDocument, ListQuery};

mod answers;
mod error;
mod requests;

/// This API's own description, as an `OpenAPI` 3.1 document, and the path at which it is served
/// without a key. Tests hold it against the code.
const OPENAPI: &str = include_str!("openapi.json");
const OPENAPI_PATH: &str = "/openapi.json";

/// The paths, for the refusal of another path.
const PATHS: &str = "/emails, /emails/batch, /emails/{id}, /emails/{id}/cancel and /openapi.json";
/// The same for a request for the attachments of a message.
const NO_ATTACHMENTS: &str = "/emails, /emails/batch, /emails/{id}, /emails/{id}/cancel and \
                              /openapi.json; attachments are not kept, so they cannot be read";

/// Headers by which clients say how a request is to be taken.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const BATCH_VALIDATION: HeaderName = HeaderName::from_static("x-batch-validation");

/// Messages on a page, if the client does not say how many.
const DEFAULT_LIMIT: usize = 20;

/// The API in Resend's shape: a handler for [`pillarbox_http`]. Clones share everything.
#[derive(Debug, Clone)]
pub struct ResendApi {
    inner: Arc<RequestHandler>,
}

/// A path of this API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint<'a> {
    /// `/emails`
    Emails,
    /// `/emails/batch`
    Batch,
    /// `/emails/{id}`
    Email(&'a str),
    /// `/emails/{id}/cancel`
    Cancel(&'a str),
    /// `/openapi.json`
    Description,
}

impl<'a> Endpoint<'a> {
    fn of(path: &'a str) -> Result<Self, Rejection> {
        if path == OPENAPI_PATH {
            return Ok(Self::Description);
        }
        let unknown = Rejection::UnknownPath { paths: PATHS };
        let rest = path.strip_prefix("/emails").ok_or(unknown.clone())?;
        match rest.split('/').collect::<Vec<_>>()[..] {
            [""] => Ok(Self::Emails),
            ["", "batch"] => Ok(Self::Batch),
            ["", id] if !id.is_empty() => Ok(Self::Email(id)),
            ["", id, "cancel"] if !id.is_empty() => Ok(Self::Cancel(id)),
            ["", id, "attachments", ..] if !id.is_empty() => {
                Err(Rejection::UnknownPath { paths: NO_ATTACHMENTS })
            }
            _ => Err(unknown),
        }
    }

    const fn allow(self) -> &'static str {
        match self {
            Self::Emails => "GET, POST",
            Self::Batch | Self::Cancel(_) => "POST",
            Self::Email(_) | Self::Description => "GET",
        }
    }
}

impl Handler for ResendApi {
    async fn handle(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        connection: &Connection,
    ) -> Response<ResponseBody> {
        let key = if request.headers().contains_key(AUTHORIZATION) {
            KeyGiven::Yes
        } else {
            KeyGiven::No
        };
        let mut organisation = None;
        let answer = self.answer(request, id, connection, &mut organisation).await;
        let response = self.inner.answered(answer, organisation, |error| {
            let answer = error::written(&error, key);
            match &error {
                ApiError::Rejected(rejection) => rejection.respond(answer),
                _ => answer.into_response(),
            }
        });
        response.map(Into::into)
    }

    fn refused(&self, rejection: &Rejection) {
        self.inner.metrics.refuse(rejection.kind().1);
    }

    fn write(rejection: &Rejection) -> WrittenAnswer {
        error::written(&rejection.clone().into(), KeyGiven::Yes)
    }

    fn connected(&self) -> Option<InFlightGuard> {
        Some(self.inner.metrics.connections.enter())
    }
}

impl ResendApi {
    /// The same API in Resend's shape: it shares everything with `api`.
    pub fn new(api: &Api) -> Self {
        Self { inner: Arc::clone(api.handler()) }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        connection: &Connection,
        whose: &mut Option<AnsweredTo>,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        if request.method() == Method::GET && request.uri().path() == OPENAPI_PATH {
            self.inner.note_keyless(&request, connection);
            return Ok(api::json(Bytes::from_static(OPENAPI.as_bytes())));
        }
        let client = self.inner.client(request.headers(), connection)?;
        let Client { organisation, key, rights } = client;
        *whose = Some(AnsweredTo(organisation.name.to_string()));
        let (head, body) = request.into_parts();
        let endpoint = Endpoint::of(head.uri.path())?;
        api::require_scope(&rights, endpoint.allow(), &head.method)?;
        match (endpoint, &head.method) {
            (Endpoint::Emails, &Method::POST) => {
                self.send((&organisation, key), &head.headers, body, id).await
            }
            (Endpoint::Batch, &Method::POST) => {
                self.send_batch((&organisation, key), &head.headers, body, id).await
            }
            (Endpoint::Cancel(text), &Method::POST) => {
                let body = self.inner.read_body(&organisation, body).await?;
                // Some clients send no body, and then no type of one.
                if !body.is_empty() {
                    api::require_json(&head.headers)?;
                    api::requests::require_no_fields(&body)?;
                }
                self.cancel(&organisation, text).await
            }
            (Endpoint::Emails, &Method::GET) => {
                let ListQuery { filter, limit } =
                    ListQuery::parse(head.uri.query().unwrap_or_default())?;
                self.list(&organisation, filter, limit.unwrap_or(DEFAULT_LIMIT)).await
            }
            (Endpoint::Email(text), &Method::GET) => {
                let (message, _) = self.inner.current(&organisation, text).await?;
                self.inner.counted(&organisation, answers::record(message))
            }
            (endpoint, _) => Err(Rejection::MethodNotAllowed { allow: endpoint.allow() }.into()),
        }
    }

    async fn send(
        &self,
        (organisation, key): (&Organisation, KeyId),
        headers: &HeaderMap,
        body: Incoming,
        request_id: RequestId,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        api::require_json(headers)?;
        let idempotency_key = idempotency_key(headers)?;
        let body = self.inner.read_body(organisation, body).await?;
        let prepared = {
            let document = EmailDocument::parse(&body)?;
            let mut request = requests::request(document.draft()?)?;
            if let Some(key) = idempotency_key {
                request = request.identified_by(key);
            }
            self.inner.intake.prepare(organisation, Some(key), request, None::<RequestId>).await?
        };
        // What is sent is encoded by now: the memory of what was read is free again.
        drop(body);
        self.inner.accept(prepared, request_id).await
    }

    async fn send_batch(
        &self,
        (organisation, key): (&Organisation, KeyId),
        headers: &HeaderMap,
        body: Incoming,
        request_id: RequestId,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        api::require_json(headers)?;
        let idempotency_key = idempotency_key(headers)?;
        let mode = batch_mode(headers)?;
        let body = self.inner.read_body(organisation, body).await?;
        let prepared = {
            let document = BatchDocument::parse(&body)?;
            let drafts = document.drafts()?;
            let keys = idempotency_key.map(|key| (0..MAX_BATCH).map(move |n| batch_key(key, n)));
            let keys: Vec<_> = keys.into_iter().flatten().collect();
            let requests = drafts.enumerate().map(|(index, draft)| {
                let request = requests::request(draft?)?;
                Ok(match keys.get(index) {
                    Some(key) => request.identified_by(key.as_key()),
                    None => request,
                })
            });
            let intake = &self.inner.intake;
            intake.prepare_batch(organisation, Some(key), mode, requests, request_id).await?
        };
        // What is sent is encoded by now: the memory of what was read is free again.
        drop(body);
        let write = |answers: &[_]| answers::accepted_batch(mode, answers);
        self.inner.accept_batch(prepared, request_id, write).await
    }

    async fn cancel(
        &self,
        organisation: &Organisation,
        text: &str,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let (message, _) = self.inner.cancel(organisation, text).await?;
        if !is_cancelled(&message) {
            // The answer has no member that could say so.
            let rule = "the message cannot be cancelled any more: it is final, or a call to SES is \
                        under way; after that call, it is not tried again";
            return Err(FieldError { field: None, rule: rule.to_owned() }.into());
        }
        self.inner.counted(organisation, answers::cancelled(message.id))
    }

    async fn list(
        &self,
        organisation: &Organisation,
        filter: MessageFilter,
        limit: usize,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let write = |listing: Listing| {
            let has_more = listing.next.is_some();
            let emails = listing.messages.into_iter().map(|(message, _)| EmailView::new(message));
            answers::list(emails.collect(), has_more)
        };
        self.inner.list_messages(organisation, filter, limit, write).await
    }
}

/// The key of a request that has the header.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey<'_>>, FieldError> {
    let wrong = |rule: String| FieldError::new(IDEMPOTENCY_KEY.as_str(), rule);
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(wrong("is given twice".to_owned()));
    }
    let text = std::str::from_utf8(value.as_bytes());
    let text = text.map_err(|_| wrong("must be UTF-8".to_owned()))?;
    IdempotencyKey::parse(text).map(Some).map_err(|error| wrong(error.rule))
}

fn batch_mode(headers: &HeaderMap) -> Result<BatchMode, FieldError> {
    match headers.get(BATCH_VALIDATION).map(http::HeaderValue::as_bytes) {
        None | Some(b"strict") => Ok(BatchMode::Whole),
        Some(b"permissive") => Ok(BatchMode::Partial),
        Some(_) => Err(FieldError::new(BATCH_VALIDATION.as_str(), "must be strict or permissive")),
    }
}

fn is_cancelled(message: &Message) -> bool {
    message.failure().is_some_and(|Failure { code, .. }| *code == FailureCode::Cancelled)
}

#[cfg(test)]
mod tests;
