//! The operator listener: is the process alive, can it do its work, how it goes in numbers, and a
//! page for people.
//!
//! It only reads: every path takes GET and HEAD alone, and nothing behind them changes anything.
//! `http` serves it; this part knows paths and what to show on them.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::sync::watch;

use crate::admin::bodies::BodyFacts;
use crate::admin::{self, Admin};
use crate::api::metrics::ClientMetrics;
use crate::clock::Clock;
use crate::dispatch::Dispatcher;
use crate::domain::id::OrganisationId;
use crate::domain::time::Timestamp;
use crate::events::EventProcessor;
use crate::history::HistoryKeeper;
use crate::http::body::ResponseBody;
use crate::http::connections::ClientConnections;
use crate::http::limits::Limits;
use crate::http::rejection::{JSON, Rejection};
use crate::http::request_id::RequestId;
use crate::http::tls::Tls;
use crate::http::{Connection, Handler};
use crate::intake::Intake;
use crate::quota::AccountCheck;
use crate::ses::SesClient;
use crate::smtp::metrics::SmtpMetrics;
use crate::store::{EventBacklog, LostMessages, Store, StoreError};
use crate::webhooks::Webhooks;

use captured_mail::Catcher;
use conditions::Condition;
use history::RecentHistory;
use key::PageKey;
use live::LiveUpdate;
use page::Path;

pub mod captured_mail;
pub mod conditions;
mod diagnosis;
mod health;
mod history;
pub mod key;
mod live;
mod metrics;
mod organisations;
mod page;
mod process;
mod trends;

/// The most connections of operators at one time: browsers, scrapers and probes.
const MAX_CONNECTIONS: usize = 64;
const ALLOW: &str = "GET, HEAD";
/// The listener's paths, for whoever asks for another one.
const PATHS: &str = "/ (the page), /healthz, /readyz and /metrics";
const TEXT: &str = "text/plain; charset=utf-8";
/// The media type of documents.
const HTML: &str = "text/html; charset=utf-8";
/// What the page may load: its own files, and its own data. Nothing inline, nothing from outside,
/// and nobody may frame it.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const PAGE_HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, PAGE_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
];

/// What is looked at.
#[derive(Debug)]
pub struct Parts {
    /// The store.
    pub store: Store,
    /// The wall clock.
    pub clock: Clock,
    /// What accepts messages.
    pub intake: Arc<Intake>,
    /// What sends them.
    pub dispatcher: Arc<Dispatcher<SesClient>>,
    /// Their bodies.
    pub bodies: Arc<BodyFacts>,
    /// Bytes that the configuration gives to pending messages.
    pub configured_pending_bytes: Arc<AtomicUsize>,
    /// What is known of the AWS credentials.
    pub account: watch::Receiver<AccountCheck>,
    /// What takes in events.
    pub events: Arc<EventProcessor>,
    /// What happened in the hours before this one.
    pub history: Arc<HistoryKeeper>,
    /// What delivers to endpoints.
    pub webhooks: Arc<Webhooks>,
    /// Metrics of the client listener.
    pub clients: Arc<ClientMetrics>,
    /// Metrics of SMTP submission.
    pub smtp: Arc<SmtpMetrics>,
    /// Client connections.
    pub connections: ClientConnections,
    /// The most client connections at one time, of HTTP and SMTP together.
    pub max_connections: usize,
    /// Names of this listener's host, besides its IP address and localhost.
    pub host_names: Vec<String>,
    /// The data file.
    pub file: PathBuf,
    /// When the service was started.
    pub started: SystemTime,
    /// What TLS is spoken with to clients, where it is.
    pub tls: Option<Arc<Tls>>,
    /// Where `status` learns what is wrong.
    pub conditions: Arc<admin::live::Conditions>,
    /// Who caught what was sent, where that is a stand-in in this process.
    pub catcher: OnceLock<Arc<dyn Catcher>>,
    /// Answers of the store, when it was last asked.
    pub stored: ArcSwap<StoredState>,
}

/// State that only the store knows. What it could not tell is `None`.
#[derive(Debug, Clone)]
pub struct StoredState {
    /// Reports of the provider that wait.
    backlog: Option<EventBacklog>,
    /// Id and reason of the newest document that could not be read.
    newest_letter: Option<String>,
    /// Messages whose body was lost, if there are any.
    lost: Result<Option<LostMessages>, StoreError>,
    /// Time of the oldest record, if there is one.
    oldest: Option<Timestamp>,
}

impl Default for StoredState {
    fn default() -> Self {
        Self {
            backlog: None,
            newest_letter: None,
            lost: Err(StoreError::Unavailable),
            oldest: None,
        }
    }
}

impl Parts {
    /// Asks the store, and keeps what it says for those who cannot wait for it.
    async fn ask_store(&self) -> StoredState {
        let window_now = self.clock.window_time();
        let backlog = self.store.event_backlog().await.ok();
        let stored = StoredState {
            backlog,
            newest_letter: self.newest_letter(backlog).await,
            lost: self.store.lost_messages(window_now.now()).await,
            oldest: self.store.oldest(window_now).await.ok().flatten(),
        };
        self.stored.store(Arc::new(stored.clone()));
        stored
    }

    /// The newest document that could not be read. The store is asked only after their number has
    /// changed, because it reads all of them.
    async fn newest_letter(&self, backlog: Option<EventBacklog>) -> Option<String> {
        const ID_CHARS: usize = 12;
        let number = |backlog: Option<EventBacklog>| backlog.map_or(0, |one| one.dead_letters);
        let before = self.stored.load_full();
        match number(backlog) {
            0 => None,
            now if now == number(before.backlog) => before.newest_letter.clone(),
            _ => {
                let newest = self.store.dead_letters(1).await.ok()?.into_iter().next()?;
                Some(format!("{:.ID_CHARS$}: {}", newest.id(), newest.reason))
            }
        }
    }

    /// Tells `status` what is wrong.
    fn tell_conditions(&self, found: &[Condition]) {
        let told = found.iter().cloned().map(admin::live::Condition::from);
        self.conditions.tell(told.collect());
    }

    /// The name of an organisation, or the number of one that was removed.
    fn organisation_name(&self, id: OrganisationId) -> String {
        admin::shown_name(&self.store, id)
    }
}

/// The task that looks.
pub type Looking = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Answers operators' requests.
pub struct Operator {
    parts: Arc<Parts>,
    registry: Registry,
    admin: Arc<Admin>,
    key: PageKey,
    told: watch::Receiver<LiveUpdate>,
    recent: Arc<RecentHistory>,
}

/// A path of the operator listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint<'a> {
    /// `/healthz`: the process and its writer answer.
    Health,
    /// `/readyz`: requests can be accepted, and its set-up lets it send them.
    Readiness,
    /// `/metrics`: the numbers.
    Metrics,
    /// The page and what it reads.
    Page(Path<'a>),
}

impl<'a> Endpoint<'a> {
    fn of(path: &'a str) -> Option<Self> {
        match path {
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Readiness),
            "/metrics" => Some(Self::Metrics),
            _ => Path::of(path).map(Self::Page),
        }
    }
}

impl Operator {
    /// A listener's handler that looks at these parts, and shows on its page what `admin` reads;
    /// and what begins the task that looks, for as long as the page is to be live.
    pub fn new(
        parts: Arc<Parts>,
        admin: Arc<Admin>,
        key: PageKey,
    ) -> (Self, impl Fn() -> Looking + Send + use<>) {
        let (teller, told) = watch::channel(LiveUpdate::default());
        let recent = Arc::new(RecentHistory::new(parts.clock.now()));
        let registry = metrics::registry(&parts);
        let (looked_at, kept) = (Arc::clone(&parts), Arc::clone(&recent));
        let looking = move || -> Looking {
            Box::pin(live::look(Arc::clone(&looked_at), teller.clone(), Arc::clone(&kept)))
        };
        (Self { parts, registry, admin, key, told, recent }, looking)
    }

    /// The limits of its listener.
    pub fn limits() -> Limits {
        Limits { max_connections: MAX_CONNECTIONS, ..Limits::default() }
    }

    async fn answer(
        &self,
        request: &Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Rejection> {
        // Before everything else: metrics and readiness name organisations and domains too.
        if !key::is_direct(request.headers(), &self.parts.host_names) {
            return Err(Rejection::ForeignHost);
        }
        let endpoint = Endpoint::of(request.uri().path());
        let endpoint = endpoint.ok_or(Rejection::UnknownPath { paths: PATHS })?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Rejection::MethodNotAllowed { allow: ALLOW });
        }
        let whole = match endpoint {
            Endpoint::Page(path) => {
                return self.page(path, request.uri(), request.headers()).await;
            }
            Endpoint::Health => health::health(self.parts.store.answered()).await,
            Endpoint::Readiness => health::readiness(&self.parts),
            Endpoint::Metrics => {
                self.parts.ask_store().await;
                response(StatusCode::OK, metrics::CONTENT_TYPE, metrics::encode(&self.registry))
            }
        };
        Ok(whole.map(ResponseBody::from))
    }
}

impl Handler for Operator {
    type Body = ResponseBody;

    async fn handle(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        _: &Connection,
    ) -> Response<ResponseBody> {
        self.answer(&request).await.unwrap_or_else(|rejection| {
            let (status, code) = rejection.kind();
            tracing::debug!(request_id = %id, status = status.as_u16(), code, "an operator's request was refused");
            rejection.into_response().map(ResponseBody::from)
        })
    }
}

fn response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns data for the page.
fn page_json(status: StatusCode, document: &impl Serialize) -> Response<ResponseBody> {
    let text = serde_json::to_vec(document).expect("texts and numbers serialize");
    page_response(status, JSON, Full::from(text).into())
}

/// Returns a part of the page, with the headers that keep everything else out of it.
fn page_response(
    status: StatusCode,
    media_type: &'static str,
    body: ResponseBody,
) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    for (name, value) in PAGE_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
