//! The API: from a request to its answer, in the contract's order of checks.
//!
//! Authentication comes before everything but the API's own description, so that a stranger
//! learns nothing, not even which paths exist.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap,
    HeaderName,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::cancel::Canceller;
use crate::error::ApiError;
use crate::metrics::ClientMetrics;
use crate::requests::{BatchDocument, FeedQuery, ListQuery, SendDocument};
use pillarbox_domain::api_key::ApiKeyHash;
use pillarbox_domain::feed::{FeedCursor, FeedPosition};
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::message::Message;
use pillarbox_domain::organisation::{KeyRights, Organisation, Scope};
use pillarbox_domain::request::SendRequest;
use pillarbox_domain::search::MessageFilter;
use pillarbox_http::body::{BodyReader, RequestBody, ResponseBody, Responses};
use pillarbox_http::limits::Limits;
use pillarbox_http::refusal_log::{AnsweredTo, FailureCause};
use pillarbox_http::rejection::{JSON, Rejection};
use pillarbox_http::request_id::{REQUEST_ID_HEADER, RequestId};
use pillarbox_http::{Connection, Handler};
use pillarbox_intake::{Intake, PreparedBatch, PreparedMessage};
use pillarbox_queue::{Live, MessageQueue};
use pillarbox_records::listing::{self, Listing};
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::in_flight::InFlightGuard;
use pillarbox_runtime::shared_limits::{Budget, Exhausted};
use pillarbox_store::{Accepted, Client, FeedPage, Lister, Store, StoreError};

pub mod answers;
pub mod cancel;
pub mod error;
pub mod json;
pub mod metrics;
pub mod requests;

/// The API's own description, as an `OpenAPI` 3.1 document, and the path at which it is served
/// without a key. Written by hand, because it says more than types do; tests hold it against the
/// code.
const OPENAPI: &str = include_str!("openapi.json");
const OPENAPI_PATH: &str = "/openapi.json";

/// The API's paths, for the refusal of another path.
const PATHS: &str = "/emails, /emails/batch, /emails/{id}, /emails/{id}/cancel, \
                     /emails/{id}/events, /emails/{id}/timeline, /events, /usage and /openapi.json";
/// Media type of pages for people.
const HTML: &str = "text/html";
/// A page for people loads nothing, and its style is its own.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The header on the answer to a replay.
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Header that clients of other services send, and that is not implemented here.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Header on the answer to a request that has it.
const NOTICE: HeaderName = HeaderName::from_static("pillarbox-notice");

/// Messages or events on a page, if the client does not say how many.
const DEFAULT_LIMIT: usize = 50;

/// The API: a handler for [`pillarbox_http`]. Clones share everything.
#[derive(Debug, Clone)]
pub struct Api {
    inner: Arc<RequestHandler>,
}

/// Request handling of the API, independent of the shape: the listener in Resend's shape uses the
/// same with its own.
#[derive(Debug)]
pub struct RequestHandler {
    /// Admission of messages.
    pub intake: Arc<Intake>,
    store: Store,
    queue: Arc<MessageQueue>,
    clock: Clock,
    budgets: Budgets,
    /// Metrics of requests and connections.
    pub metrics: Arc<ClientMetrics>,
    /// Canceller of messages on all nodes. It is there before the first request.
    canceller: OnceLock<Arc<dyn Canceller>>,
    /// Page for a browser that opens the listener's address.
    welcome: OnceLock<Bytes>,
}

/// The memory of requests and responses, and connections, with a share for each organisation. Clones
/// share them.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// Budget of request bodies.
    pub bodies: BodyReader<OrganisationId>,
    /// Responses that clients have not read.
    pub responses: Responses<OrganisationId>,
    /// Connections that have brought a valid key.
    pub connections: Budget<OrganisationId>,
}

impl Budgets {
    /// Budgets with these limits.
    pub fn new(limits: &Limits) -> Self {
        Self {
            bodies: BodyReader::new(limits),
            responses: Responses::new(limits.max_writing_bytes),
            connections: Budget::new(limits.max_connections),
        }
    }
}

/// A path of the API.
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
    /// `/emails/{id}/events`
    Events(&'a str),
    /// `/emails/{id}/timeline`
    Timeline(&'a str),
    /// `/events`
    Feed,
    /// `/usage`
    Usage,
    /// `/openapi.json`
    Description,
}

impl<'a> Endpoint<'a> {
    fn of(path: &'a str) -> Option<Self> {
        match path {
            "/events" => return Some(Self::Feed),
            "/usage" => return Some(Self::Usage),
            OPENAPI_PATH => return Some(Self::Description),
            _ => {}
        }
        let rest = path.strip_prefix("/emails")?;
        if rest.is_empty() {
            return Some(Self::Emails);
        }
        let rest = rest.strip_prefix('/')?;
        if rest == "batch" {
            return Some(Self::Batch);
        }
        match rest.split_once('/') {
            None if !rest.is_empty() => Some(Self::Email(rest)),
            Some((id, "cancel")) if !id.is_empty() => Some(Self::Cancel(id)),
            Some((id, "events")) if !id.is_empty() => Some(Self::Events(id)),
            Some((id, "timeline")) if !id.is_empty() => Some(Self::Timeline(id)),
            _ => None,
        }
    }

    const fn allow(self) -> &'static str {
        match self {
            Self::Emails => "GET, POST",
            Self::Batch | Self::Cancel(_) => "POST",
            Self::Email(_)
            | Self::Events(_)
            | Self::Timeline(_)
            | Self::Feed
            | Self::Usage
            | Self::Description => "GET",
        }
    }
}

impl Handler for Api {
    async fn handle(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        connection: &Connection,
    ) -> Response<ResponseBody> {
        let has_ignored_key = request.headers().contains_key(IDEMPOTENCY_KEY);
        let mut organisation = None;
        let answer = self.inner.answer(request, id, connection, &mut organisation).await;
        let mut response = self.inner.answered(answer, organisation, ApiError::into_response);
        if has_ignored_key {
            self.inner.metrics.ignored_keys.inc();
            let notice = HeaderValue::from_static(requests::IDEMPOTENCY_KEY_NOTICE);
            response.headers_mut().insert(NOTICE, notice);
        }
        response.map(Into::into)
    }

    fn refused(&self, rejection: &Rejection) {
        self.inner.metrics.refuse(rejection.kind().1);
    }

    fn connected(&self) -> Option<InFlightGuard> {
        Some(self.inner.metrics.connections.enter())
    }
}

impl Api {
    /// An API over these parts.
    pub fn new(
        intake: &Arc<Intake>,
        store: &Store,
        queue: &Arc<MessageQueue>,
        clock: &Clock,
        budgets: &Budgets,
    ) -> Self {
        let inner = RequestHandler {
            intake: Arc::clone(intake),
            store: store.clone(),
            queue: Arc::clone(queue),
            clock: clock.clone(),
            budgets: budgets.clone(),
            metrics: Arc::default(),
            canceller: OnceLock::new(),
            welcome: OnceLock::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Stops messages by this from now on. The first one stays.
    pub fn cancel_by(&self, canceller: Arc<dyn Canceller>) {
        let _ = self.inner.canceller.set(canceller);
    }

    /// Shows a page, as HTML, to a browser that opens the listener's address. The first page stays.
    /// Without one, a browser gets 401 there, as every client without a key.
    pub fn show_welcome(&self, page: String) {
        // The one that came first stays.
        let _ = self.inner.welcome.set(page.into());
    }

    /// Metrics of requests and connections.
    pub fn metrics(&self) -> &Arc<ClientMetrics> {
        &self.inner.metrics
    }

    /// Handling of requests, for a listener in another shape.
    pub fn handler(&self) -> &Arc<RequestHandler> {
        &self.inner
    }
}

impl RequestHandler {
    async fn answer(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        connection: &Connection,
        whose: &mut Option<AnsweredTo>,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        if request.method() == Method::GET && request.uri().path() == OPENAPI_PATH {
            self.note_keyless(&request, connection);
            return Ok(json(Bytes::from_static(OPENAPI.as_bytes())));
        }
        if let Some(page) = self.welcome.get().filter(|_| is_browser_at_root(&request)) {
            self.note_keyless(&request, connection);
            return Ok(welcome(page));
        }
        let client = self.client(request.headers(), connection)?;
        let Client { organisation, key, rights } = client;
        *whose = Some(AnsweredTo(organisation.name.to_string()));
        let (head, body) = request.into_parts();
        let endpoint = Endpoint::of(head.uri.path());
        let endpoint = endpoint.ok_or(Rejection::UnknownPath { paths: PATHS })?;
        require_scope(&rights, endpoint.allow(), &head.method)?;
        match (endpoint, &head.method) {
            (Endpoint::Emails, &Method::POST) => {
                require_json(&head.headers)?;
                let body = self.read_body(&organisation, body).await?;
                self.send(&organisation, key, body, id).await
            }
            (Endpoint::Batch, &Method::POST) => {
                require_json(&head.headers)?;
                let body = self.read_body(&organisation, body).await?;
                self.send_batch(&organisation, key, body, id).await
            }
            (Endpoint::Cancel(text), &Method::POST) => {
                require_json(&head.headers)?;
                let body = self.read_body(&organisation, body).await?;
                requests::require_no_fields(&body)?;
                let (message, live) = self.cancel(&organisation, text).await?;
                self.record(&organisation, message, live.as_ref())
            }
            (Endpoint::Emails, &Method::GET) => {
                self.list(&organisation, head.uri.query().unwrap_or_default()).await
            }
            (Endpoint::Email(text), &Method::GET) => self.read(&organisation, text).await,
            (Endpoint::Events(text), &Method::GET) => self.events(&organisation, text).await,
            (Endpoint::Timeline(text), &Method::GET) => self.timeline(&organisation, text).await,
            (Endpoint::Feed, &Method::GET) => {
                self.feed(&organisation, head.uri.query().unwrap_or_default()).await
            }
            (Endpoint::Usage, &Method::GET) => self.usage(&organisation).await,
            (endpoint, _) => Err(Rejection::MethodNotAllowed { allow: endpoint.allow() }.into()),
        }
    }

    /// The client of a request's key, whose connection this is from now on.
    pub fn client(
        &self,
        headers: &HeaderMap,
        connection: &Connection,
    ) -> Result<Client, Rejection> {
        let client = self.authenticate(headers).inspect_err(|_| connection.refuse_key())?;
        connection.accept_key();
        self.count_connection(client.organisation.id, connection);
        Ok(client)
    }

    /// The response to a request, with what the log says of it. One that is refused is counted, and
    /// `refusal` makes its response.
    pub fn answered(
        &self,
        answer: Result<Response<Full<Bytes>>, ApiError>,
        organisation: Option<AnsweredTo>,
        refusal: impl FnOnce(ApiError) -> Response<Full<Bytes>>,
    ) -> Response<Full<Bytes>> {
        let mut response = answer.unwrap_or_else(|error| {
            let (status, code) = error.kind();
            self.metrics.refuse(code);
            let mut response = refusal(error);
            if status == StatusCode::INTERNAL_SERVER_ERROR {
                // A row that cannot be read is the one way to fail here.
                let cause = FailureCause(StoreError::Damaged.to_string());
                response.extensions_mut().insert(cause);
            }
            response
        });
        if let Some(organisation) = organisation {
            response.extensions_mut().insert(organisation);
        }
        response
    }

    /// The client of the request's key. Missing, malformed, unknown, revoked and expired are one.
    fn authenticate(&self, headers: &HeaderMap) -> Result<Client, Rejection> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(Rejection::Unauthorized);
        };
        let text = value.to_str().map_err(|_| Rejection::Unauthorized)?;
        let (scheme, key) = text.split_once(' ').ok_or(Rejection::Unauthorized)?;
        if !scheme.eq_ignore_ascii_case("Bearer") {
            return Err(Rejection::Unauthorized);
        }
        let hash = ApiKeyHash::of(key.trim()).map_err(|_| Rejection::Unauthorized)?;
        self.store.authenticate(&hash, self.clock.now()).ok_or(Rejection::Unauthorized)
    }

    /// Notes a request that needs no key, if it has none.
    pub fn note_keyless<B>(&self, request: &Request<B>, connection: &Connection) {
        if self.authenticate(request.headers()).is_err() {
            connection.refuse_key();
        }
    }

    /// Counts a connection as the organisation's for as long as it is open. Beyond the organisation's
    /// share, it is closed after this request: idle connections of one must not keep out the others.
    fn count_connection(&self, organisation: OrganisationId, connection: &Connection) {
        if !connection.is_marked() {
            match self.budgets.connections.reserve(organisation, 1) {
                Ok(one) => connection.mark(one),
                Err(Exhausted::Share | Exhausted::Whole) => connection.end(),
            }
        }
    }

    /// Reads a request's body, within the organisation's share of the memory for them.
    pub async fn read_body(
        &self,
        organisation: &Organisation,
        body: Incoming,
    ) -> Result<RequestBody<OrganisationId>, Rejection> {
        self.budgets.bodies.read(organisation.id, body).await
    }

    async fn send(
        &self,
        organisation: &Organisation,
        key: KeyId,
        body: RequestBody<OrganisationId>,
        request_id: RequestId,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let prepared = {
            let document = SendDocument::parse(&body)?;
            let request = SendRequest::parse(document.draft()?)?;
            self.intake.prepare(organisation, Some(key), request, None::<RequestId>).await?
        };
        // What is sent is encoded by now: the memory of what was read is free again.
        drop(body);
        self.accept(prepared, request_id).await
    }

    /// Accepts a prepared message, and answers with its id.
    pub async fn accept(
        &self,
        prepared: PreparedMessage,
        request_id: RequestId,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let accepted = self.intake.accept(prepared).await?;
        let id = accepted.id();
        let mut response = json(answers::accepted(id));
        self.count(&accepted);
        match accepted {
            Accepted::New(_) => {
                tracing::debug!(request_id = %id, %id, "accepted");
                name_by_message(&mut response, id);
            }
            Accepted::Replayed(_) => {
                tracing::debug!(%request_id, %id, "accepted");
                let replayed = HeaderValue::from_static("true");
                response.headers_mut().insert(IDEMPOTENT_REPLAYED, replayed);
            }
        }
        Ok(response)
    }

    async fn send_batch(
        &self,
        organisation: &Organisation,
        key: KeyId,
        body: RequestBody<OrganisationId>,
        request_id: RequestId,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let prepared = {
            let document = BatchDocument::parse(&body)?;
            let (mode, drafts) = document.drafts()?;
            let requests = drafts.map(|draft| SendRequest::parse(draft?));
            self.intake.prepare_batch(organisation, Some(key), mode, requests, request_id).await?
        };
        // What is sent is encoded by now: the memory of what was read is free again.
        drop(body);
        self.accept_batch(prepared, request_id, answers::accepted_batch).await
    }

    /// Accepts a prepared batch, and answers with the outcome of each of its messages, as `write`
    /// has it. The id of the first new message is that of the request, so that one leads to the
    /// other.
    pub async fn accept_batch(
        &self,
        prepared: PreparedBatch,
        request_id: RequestId,
        write: impl FnOnce(&[Result<Accepted, ApiError>]) -> Bytes,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let told = self.intake.accept_batch(prepared).await?;
        tracing::debug!(%request_id, messages = told.len(), "accepted a batch");
        let answers: Vec<_> = answers::batch_answers(told).collect();
        for answer in &answers {
            match answer {
                Ok(accepted) => self.count(accepted),
                Err(error) => self.metrics.refuse(error.kind().1),
            }
        }
        let mut response = json(write(&answers));
        let new = answers.iter().find_map(|answer| match answer {
            Ok(Accepted::New(id)) => Some(*id),
            Ok(Accepted::Replayed(_)) | Err(_) => None,
        });
        if let Some(id) = new {
            name_by_message(&mut response, id);
        }
        Ok(response)
    }

    fn count(&self, accepted: &Accepted) {
        match accepted {
            Accepted::New(_) => self.metrics.accepted.inc(),
            Accepted::Replayed(_) => self.metrics.replayed.inc(),
        };
    }

    async fn list(
        &self,
        organisation: &Organisation,
        query: &str,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let ListQuery { filter, limit } = ListQuery::parse(query)?;
        let kind = organisation.kind;
        let write = move |listing| answers::emails(kind, listing);
        self.list_messages(organisation, filter, limit.unwrap_or(DEFAULT_LIMIT), write).await
    }

    /// A page of the organisation's messages, as `write` has it.
    pub async fn list_messages(
        &self,
        organisation: &Organisation,
        mut filter: MessageFilter,
        limit: usize,
        write: impl FnOnce(Listing) -> Bytes + Send + 'static,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        filter.organisation = Some(organisation.id);
        self.budgets.responses.require_room(organisation.id)?;
        let queue = Arc::clone(&self.queue);
        let live = move |id| queue.live(id);
        let responses = self.budgets.responses.clone();
        let organisation = organisation.id;
        // In the task that reads the rows: a long page must not hold a worker.
        let write = move |listing: Listing| responses.count(organisation, write(listing));
        let now = self.clock.window_time();
        let lister = Lister::Organisation(organisation);
        Ok(json(listing::list(&self.store, lister, live, filter, limit, now, write).await??))
    }

    async fn read(
        &self,
        organisation: &Organisation,
        text: &str,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let (message, live) = self.current(organisation, text).await?;
        self.record(organisation, message, live.as_ref())
    }

    /// A message as it is now: its row, and what memory knows of it if it is pending here.
    pub async fn current(
        &self,
        organisation: &Organisation,
        text: &str,
    ) -> Result<(Message, Option<Live>), ApiError> {
        // Before the row: a call that ends or fails in between is shown as ended.
        let live = text.parse().ok().and_then(|id| self.queue.live(id));
        Ok((self.message_of(organisation, text).await?, live))
    }

    fn record(
        &self,
        organisation: &Organisation,
        message: Message,
        live: Option<&Live>,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        self.counted(organisation, answers::message(organisation.kind, message, live))
    }

    async fn events(
        &self,
        organisation: &Organisation,
        text: &str,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let message = self.message_of(organisation, text).await?;
        self.counted(organisation, answers::events(&self.store.events(message.id).await?))
    }

    async fn timeline(
        &self,
        organisation: &Organisation,
        text: &str,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let message = self.message_of(organisation, text).await?;
        let events = self.store.events(message.id).await?;
        let now = self.clock.window_time();
        let entries = self.store.timeline(&message, events, now).await?;
        self.counted(organisation, answers::timeline(entries))
    }

    async fn usage(&self, organisation: &Organisation) -> Result<Response<Full<Bytes>>, ApiError> {
        let usage = self.store.usage(&[organisation.id], self.clock.period_time()).await?;
        let usage = usage.first().copied().unwrap_or_default();
        self.counted(organisation, answers::usage(&organisation.limits, &usage))
    }

    async fn feed(
        &self,
        organisation: &Organisation,
        query: &str,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let (feed, kind) = (self.store.feed_id(), organisation.kind);
        let organisation = organisation.id;
        let (window_now, given_at) = (self.clock.window_time(), self.clock.record_time());
        let cursor = |text: &str| FeedCursor::parse(text, feed, organisation, &window_now);
        let FeedQuery { after, types, limit } = FeedQuery::parse(query, cursor)?;
        let after = after.map_or(FeedPosition::START, |cursor| cursor.after);
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        self.budgets.responses.require_room(organisation)?;
        let responses = self.budgets.responses.clone();
        // In the task that reads the rows, as a listing is written.
        let write = move |page: FeedPage| {
            let next = FeedCursor { after: page.next, given_at }.encode(feed, organisation);
            responses.count(organisation, answers::feed(kind, &page.entries, next))
        };
        let written = self.store.list_feed(organisation, after, types, limit, window_now, write);
        Ok(json(written.await??))
    }

    /// A response of an organisation, counted until it is read. The answer to a send request is
    /// not: it is small, a connection holds only a few, and what was accepted must be said.
    pub fn counted(
        &self,
        organisation: &Organisation,
        body: Bytes,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        Ok(json(self.budgets.responses.count(organisation.id, body)?))
    }

    /// A message of this organisation that is within its retention; anything else is not found,
    /// in one and the same way.
    async fn message_of(&self, organisation: &Organisation, id: &str) -> Result<Message, ApiError> {
        let id: MessageId = id.parse().map_err(|_| ApiError::NoMessage)?;
        self.store
            .message(id, self.clock.window_time())
            .await?
            .filter(|message| message.organisation == organisation.id)
            .ok_or(ApiError::NoMessage)
    }
}

/// Makes the id of a new message that of the request, so that one leads to the other.
fn name_by_message(response: &mut Response<Full<Bytes>>, id: MessageId) {
    let id = HeaderValue::try_from(id.to_string()).expect("an id is ASCII");
    response.headers_mut().insert(REQUEST_ID_HEADER, id);
}

/// Requires the scope that a key needs for a request to a path with the methods of `allow`, unless the
/// path does not take the method.
pub fn require_scope(rights: &KeyRights, allow: &str, method: &Method) -> Result<(), ApiError> {
    let scope = if method == Method::GET { Scope::Read } else { Scope::Send };
    let is_taken = allow.split(", ").any(|taken| taken == method.as_str());
    if is_taken && !rights.scopes.contains(&scope) {
        return Err(ApiError::MissingScope(scope));
    }
    Ok(())
}

/// Requires `application/json`, with no parameter but `charset=utf-8`, and not compressed. The
/// standard's name of the charset is `utf-8`; some clients write `utf8`, which means the same
/// (WHATWG Encoding, section 4.2).
pub fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(ApiError::UnsupportedMediaType);
    };
    let text = value.to_str().map_err(|_| ApiError::UnsupportedMediaType)?;
    let mut parts = text.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|media| media.eq_ignore_ascii_case(JSON));
    // Nothing may stand behind a semicolon (RFC 9110 section 5.6.6).
    let is_utf8 = parts.filter(|parameter| !parameter.is_empty()).all(|parameter| {
        parameter.split_once('=').is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("charset")
                && ["utf-8", "utf8"]
                    .iter()
                    .any(|name| value.trim_matches('"').eq_ignore_ascii_case(name))
        })
    });
    if !is_json || !is_utf8 {
        return Err(ApiError::UnsupportedMediaType);
    }
    let is_plain = |value: &HeaderValue| {
        let codings = value.to_str().ok().map(|codings| codings.split(','));
        codings.is_some_and(|mut codings| {
            codings.all(|coding| {
                coding.trim().is_empty() || coding.trim().eq_ignore_ascii_case("identity")
            })
        })
    };
    if headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        Ok(())
    } else {
        Err(ApiError::EncodedBody)
    }
}

/// True if a person opened the listener's address: only a browser asks for HTML.
fn is_browser_at_root<B>(request: &Request<B>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    request.method() == Method::GET
        && request.uri().path() == "/"
        && accepted.any(|types| types.to_ascii_lowercase().contains(HTML))
}

fn welcome(page: &Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(page.clone()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    response
}

/// Response with a JSON document.
pub fn json(body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

#[cfg(test)]
mod tests;
