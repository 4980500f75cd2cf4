//! The operator listener: is the process alive, can it do its work, how it goes in numbers, and a
//! page for people.
//!
//! It only reads: every path but that of the sign-in takes GET and HEAD alone, and nothing behind them
//! changes anything.
//! `http` serves it; this part knows paths and what to show on them.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::fs;
use std::future::Future;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

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

use pillarbox_admin::Admin;
use pillarbox_admin::bodies::BodyFacts;
use pillarbox_alerts::Alerts;
use pillarbox_api::metrics::ClientMetrics;
use pillarbox_config::OperatorSignIn;
use pillarbox_dispatch::Dispatcher;
use pillarbox_dispatch::quota::AccountCheck;
use pillarbox_events::EventProcessor;
use pillarbox_http::body::ResponseBody;
use pillarbox_http::connections::ClientConnections;
use pillarbox_http::limits::Limits;
use pillarbox_http::rejection::{JSON, Rejection};
use pillarbox_http::request_id::RequestId;
use pillarbox_http::tls::Tls;
use pillarbox_http::{Connection, Handler};
use pillarbox_intake::Intake;
use pillarbox_maintenance::history::HistoryKeeper;
use pillarbox_providers::Providers;
use pillarbox_runtime::clock::Clock;
use pillarbox_smtp::metrics::SmtpMetrics;
use pillarbox_store::Store;
use pillarbox_webhooks::Webhooks;

use captured_mail::Catcher;
use key::PageKey;
use live::LiveUpdate;
use observer::Observer;
use page::Path;
use sign_in::SignIn;

pub mod captured_mail;
mod health;
mod history;
pub mod key;
mod live;
mod metrics;
pub mod observer;
mod organisations;
mod page;
mod sign_in;
mod trends;

/// The most connections of operators at one time: browsers, scrapers and probes.
const MAX_CONNECTIONS: usize = 64;
const ALLOW: &str = "GET, HEAD";
/// The listener's paths, for the refusal of another path.
const PATHS: &str = "/ (the page), /healthz, /readyz and /metrics";
const TEXT: &str = "text/plain; charset=utf-8";
/// The media type of documents.
const HTML: &str = "text/html; charset=utf-8";
/// Policy of the page: it may load its own files, and its own data. Nothing inline, nothing from
/// outside, and no page may frame it.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const PAGE_HEADERS: [(HeaderName, &str); 3] = [
    (CONTENT_SECURITY_POLICY, PAGE_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
];

/// Parts of the service that are observed.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names and types say what most of them are")]
pub struct Parts {
    pub store: Store,
    pub clock: Clock,
    pub intake: Arc<Intake>,
    pub dispatcher: Arc<Dispatcher<Providers>>,
    pub bodies: Arc<BodyFacts>,
    /// Bytes that the configuration gives to pending messages.
    pub configured_pending_bytes: Arc<AtomicUsize>,
    /// State of the AWS credentials.
    pub account: watch::Receiver<AccountCheck>,
    pub events: Arc<EventProcessor>,
    /// True if something brings events.
    pub has_events: bool,
    /// Counts of the hours before this one.
    pub history: Arc<HistoryKeeper>,
    pub webhooks: Arc<Webhooks>,
    pub alerts: Arc<Alerts>,
    pub clients: Arc<ClientMetrics>,
    pub smtp: Arc<SmtpMetrics>,
    pub connections: ClientConnections,
    /// The most client connections at one time, of HTTP and SMTP together.
    pub max_connections: usize,
    /// Names of this listener's host, besides its IP address and localhost.
    pub host_names: Vec<String>,
    /// Ways to sign in besides the page's key.
    pub sign_in: OperatorSignIn,
    /// Path of the data file.
    pub file: PathBuf,
    /// Start of the service, in seconds since the Unix epoch.
    pub started: f64,
    /// TLS of the client listeners; `None` if they have none.
    pub tls: Option<Arc<Tls>>,
    /// Keeper of caught messages, if a stand-in in this process has one.
    pub catcher: OnceLock<Arc<dyn Catcher>>,
}

/// Task that observes the service.
pub type Looking = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Handler of operators' requests.
pub struct Operator {
    observer: Arc<Observer>,
    metrics: Registry,
    admin: Arc<Admin>,
    key: PageKey,
    sign_in: SignIn,
    told: watch::Receiver<LiveUpdate>,
}

/// A path of the operator listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint<'a> {
    /// `/healthz`: the process and its writer answer.
    Health,
    /// `/readyz`: requests can be accepted, and its set-up lets it send them.
    Readiness,
    /// `/metrics`: the metrics as Prometheus reads them.
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
    /// A listener's handler that shows what the observer sees, and on its page what `admin` reads;
    /// and what begins the task that observes, for as long as the page is to be live.
    pub fn new(
        observer: Arc<Observer>,
        admin: Arc<Admin>,
        key: PageKey,
    ) -> (Self, impl Fn() -> Looking + Send + use<>) {
        let (teller, told) = watch::channel(LiveUpdate::default());
        let metrics = metrics::registry(&observer.parts);
        let observed = Arc::clone(&observer);
        let observing = move || -> Looking { Box::pin(Arc::clone(&observed).run(teller.clone())) };
        let sign_in = SignIn::new(observer.parts.sign_in.clone());
        (Self { observer, metrics, admin, key, sign_in, told }, observing)
    }

    /// The limits of its listener.
    pub fn limits() -> Limits {
        Limits { max_connections: MAX_CONNECTIONS, ..Limits::default() }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        peer: Option<IpAddr>,
    ) -> Result<Response<ResponseBody>, Rejection> {
        // Before everything else: metrics and readiness name organisations and domains too.
        let names = &self.observer.parts.host_names;
        if !key::is_direct(request.version(), request.headers(), names) {
            return Err(Rejection::ForeignHost);
        }
        let endpoint = Endpoint::of(request.uri().path());
        let endpoint = endpoint.ok_or(Rejection::UnknownPath { paths: PATHS })?;
        if endpoint == Endpoint::Page(Path::Session) {
            return self.session(request, peer).await;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Rejection::MethodNotAllowed { allow: ALLOW });
        }
        let whole = match endpoint {
            Endpoint::Page(path) => {
                return self.page(path, request.uri(), request.headers(), peer).await;
            }
            Endpoint::Health => health::health(self.observer.parts.store.answered()).await,
            Endpoint::Readiness => health::readiness(&self.observer.immediate()),
            Endpoint::Metrics => {
                let mut snapshot = self.observer.observe().await;
                let file = fs::metadata(&self.observer.parts.file);
                snapshot.file_bytes = file.ok().map(|file| file.len());
                let text = metrics::encode(&self.metrics, snapshot);
                response(StatusCode::OK, metrics::CONTENT_TYPE, Full::from(text))
            }
        };
        Ok(whole.map(ResponseBody::from))
    }
}

impl Handler for Operator {
    async fn handle(
        &self,
        request: Request<Incoming>,
        _: RequestId,
        connection: &Connection,
    ) -> Response<ResponseBody> {
        let answer = self.answer(request, connection.peer()).await;
        answer.unwrap_or_else(|rejection| rejection.into_response().map(ResponseBody::from))
    }
}

fn response<B>(status: StatusCode, content_type: &'static str, body: B) -> Response<B> {
    let mut response = Response::new(body);
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
    let mut response = response(status, media_type, body);
    for (name, value) in PAGE_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
