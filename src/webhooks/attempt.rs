//! One attempt: a signed POST to an endpoint, and its answer, within limits of time and bytes.
//!
//! Knows nothing of cursors and retries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method};
use reqwest::{Certificate, Client, ClientBuilder, Request, Response, Url};
use tokio::task_local;
use tokio::time::timeout;

use crate::answer::{Answer, judge};
use crate::signature::signatures;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{AttemptFailure, SigningSecret, WebhookFormat, WebhookUrl};
use pillarbox_runtime::error_chain::error_chain;
use pillarbox_runtime::in_flight::InFlight;
use pillarbox_runtime::pem;
use pillarbox_runtime::proxy::{ProxyRule, UnusableProxy};
use pillarbox_runtime::resolver::{Caller, HttpResolver, Resolver, ResolverLimits};

/// The longest that an attempt may take, from the connection to the answer's head.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest that an answer's body is read for, so that the connection can be used again.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// The most of an answer's body that is read. A connection with more to read is closed.
const MAX_BODY_BYTES: usize = 4 * 1024;
/// Time for which an idle connection is kept: shorter than servers and proxies do by default.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// The most idle connections to one endpoint: as many as attempts at one time.
const MAX_IDLE_CONNECTIONS: usize = 16;
/// Names of endpoints. Each organisation has a share of the look-ups.
const NAMES: ResolverLimits = ResolverLimits {
    max_lookups: 64,
    patience: Duration::from_secs(10),
    kept: Duration::from_mins(10),
};

/// Headers of a delivery (Standard Webhooks 1.0.0, "Webhook headers").
const WEBHOOK_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("webhook-id"),
    HeaderName::from_static("webhook-timestamp"),
    HeaderName::from_static("webhook-signature"),
];
/// The same by the names that Resend gives them.
const SVIX_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("svix-id"),
    HeaderName::from_static("svix-timestamp"),
    HeaderName::from_static("svix-signature"),
];

task_local! {
    /// The organisation whose endpoint is called in this task, `None` for operators, and the number
    /// of the endpoint's resolutions.
    static CALLER: (Option<OrganisationId>, Arc<InFlight>);
}

/// Names are resolved for the organisation of the attempt. The HTTP client resolves them in the
/// task of the request; a name resolved in another task would use the share of operators.
fn caller() -> Caller<Option<OrganisationId>> {
    let caller = CALLER.try_with(|(organisation, lookups)| (*organisation, lookups.enter())).ok();
    let (holder, guard) = caller.unzip();
    Caller { holder: holder.flatten(), guard }
}

/// Reason why an endpoint cannot be called at all.
#[derive(Debug, thiserror::Error)]
pub enum BadEndpoint {
    /// Its address is none for the HTTP client.
    #[error("the URL cannot be called: {0}")]
    Url(String),
    /// The certificates against which its own is to be checked cannot be used.
    #[error("the certificates cannot be used: {0}; give a file with PEM certificates")]
    Authority(String),
    /// There is no client without the system's root certificates.
    #[error("the HTTP client could not be built: {0}; install the root certificates")]
    Client(String),
    /// The proxy of the environment is not one that can be asked.
    #[error(transparent)]
    Proxy(#[from] UnusableProxy),
}

/// Client that endpoints without certificates of their own share.
#[derive(Debug, Clone)]
pub(super) struct SharedClient {
    client: Client,
    /// Resolver of all endpoints' names.
    resolver: Resolver<Option<OrganisationId>>,
    proxy: ProxyRule,
}

/// Caller of one endpoint.
#[derive(Debug)]
pub(super) struct Sender {
    client: Client,
    url: Url,
    proxy: ProxyRule,
    lookups: Arc<InFlight>,
}

/// Delivery, apart from its signature.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The event's id: the same at every attempt.
    pub id: String,
    /// The event as JSON.
    pub body: Bytes,
    /// Form of the event.
    pub format: WebhookFormat,
}

/// An attempt that has ended.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Answer, or what came in its place.
    pub answer: Answer,
    /// Time that it took.
    pub took: Duration,
    /// Beginning of the answer's body.
    pub body: Bytes,
}

impl SharedClient {
    pub(super) fn new(proxy: &ProxyRule) -> Result<Self, BadEndpoint> {
        let resolver = Resolver::new(NAMES);
        let client = builder(&resolver, proxy)?.build();
        let client = client.map_err(|error| BadEndpoint::Client(error_chain(&error)))?;
        Ok(Self { client, resolver, proxy: proxy.clone() })
    }
}

fn builder(
    resolver: &Resolver<Option<OrganisationId>>,
    proxy: &ProxyRule,
) -> Result<ClientBuilder, UnusableProxy> {
    // An error says that a provider is installed already, and then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .user_agent(concat!("pillarbox/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(ATTEMPT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .dns_resolver(HttpResolver::new(resolver.clone(), caller));
    proxy.apply(client)
}

impl Sender {
    pub(super) fn new(
        url: &WebhookUrl,
        authority: Option<&str>,
        shared: &SharedClient,
    ) -> Result<Self, BadEndpoint> {
        let url = Url::parse(url.as_str()).map_err(|error| BadEndpoint::Url(error.to_string()))?;
        let client = match authority {
            None => shared.client.clone(),
            Some(file) => {
                let unusable = |error: reqwest::Error| BadEndpoint::Authority(error_chain(&error));
                let roots = pem::certificates(file.as_bytes()).map_err(BadEndpoint::Authority)?;
                let roots: Result<Vec<_>, _> =
                    roots.iter().map(|root| Certificate::from_der(root)).collect();
                let roots = roots.map_err(unusable)?;
                let client = builder(&shared.resolver, &shared.proxy)?;
                client.tls_certs_only(roots).build().map_err(unusable)?
            }
        };
        Ok(Self { client, url, proxy: shared.proxy.clone(), lookups: Arc::default() })
    }

    /// Attempts whose endpoint's name is being resolved: nothing was sent by them.
    pub(super) fn lookups(&self) -> usize {
        self.lookups.count()
    }

    /// Calls the endpoint of an organisation once, or that of operators. The secrets sign.
    pub(super) async fn attempt<'a>(
        &self,
        organisation: Option<OrganisationId>,
        secrets: impl Iterator<Item = &'a SigningSecret>,
        delivery: Delivery,
        now: Timestamp,
    ) -> Attempt {
        let started = Instant::now();
        let request = self.request(secrets, delivery, now);
        let caller = (organisation, Arc::clone(&self.lookups));
        let answered = CALLER.scope(caller, self.client.execute(request));
        let answered = timeout(ATTEMPT_TIMEOUT, answered).await;
        let took = started.elapsed();
        let failed = |failure, message| {
            let answer = Answer::Failed { failure, message, retry_after: None };
            Attempt { answer, took, body: Bytes::new() }
        };
        match answered {
            Ok(Ok(response)) => {
                let answer = judge(response.status(), response.headers(), now);
                Attempt { answer, took, body: beginning(response).await }
            }
            Ok(Err(error)) if error.is_timeout() => timed_out(failed),
            Ok(Err(error)) => failed(AttemptFailure::Unreachable, self.explained(error)),
            Err(_) => timed_out(failed),
        }
    }

    /// Sends a HEAD request, which changes nothing at the endpoint; returns the answer's status, or
    /// why there is none.
    pub(super) async fn reach(&self) -> Result<u16, String> {
        let request = Request::new(Method::HEAD, self.url.clone());
        match timeout(ATTEMPT_TIMEOUT, self.client.execute(request)).await {
            Ok(Ok(response)) => Ok(response.status().as_u16()),
            Ok(Err(error)) => Err(self.explained(error)),
            Err(_) => Err(format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs())),
        }
    }

    /// The proxy that attempts go through, if there is one.
    pub(super) fn proxy(&self) -> Option<String> {
        self.proxy.proxy_for(self.url.as_str())
    }

    /// Text of the error, without the URL.
    fn explained(&self, error: reqwest::Error) -> String {
        self.proxy.explained(self.url.as_str(), error_chain(&error.without_url()))
    }

    fn request<'a>(
        &self,
        secrets: impl Iterator<Item = &'a SigningSecret>,
        delivery: Delivery,
        now: Timestamp,
    ) -> Request {
        let Delivery { id, body, format } = delivery;
        let timestamp = now.unix_millis() / 1_000;
        let signature = signatures(secrets, &id, timestamp, &body);
        let mut request = Request::new(Method::POST, self.url.clone());
        let headers = request.headers_mut();
        let text = |text: String| {
            HeaderValue::try_from(text).expect("ids, numbers and base64 are printable ASCII")
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let values = [text(id), timestamp.into(), text(signature)];
        if format == WebhookFormat::Resend {
            headers.extend(SVIX_HEADERS.into_iter().zip(values.clone()));
        }
        headers.extend(WEBHOOK_HEADERS.into_iter().zip(values));
        *request.body_mut() = Some(body.into());
        request
    }
}

fn timed_out(failed: impl FnOnce(AttemptFailure, String) -> Attempt) -> Attempt {
    let message = format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs());
    failed(AttemptFailure::TimedOut, message)
}

/// Reads the beginning of a body, or the whole of a short one. One that is long, slow or endless is
/// left, and its connection closed.
async fn beginning(mut response: Response) -> Bytes {
    let mut body = BytesMut::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = MAX_BODY_BYTES - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                break;
            }
        }
    };
    // The part that came in time is enough.
    let _ = timeout(BODY_TIMEOUT, read).await;
    body.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::id::OrganisationId;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_never_answers_or_is_not_there_costs_an_attempt_and_no_more() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let attempted = async |address: std::net::SocketAddr| {
            let url = WebhookUrl::parse(&format!("http://{address}/?token=hidden")).unwrap();
            let secret = SigningSecret::generate().unwrap();
            let sender =
                Sender::new(&url, None, &SharedClient::new(&ProxyRule::Direct).unwrap()).unwrap();
            let delivery = Delivery {
                id: "evt_1".to_owned(),
                body: Bytes::from_static(b"{}"),
                format: WebhookFormat::Standard,
            };
            let started = tokio::time::Instant::now();
            let secrets = std::iter::once(&secret);
            let attempt = sender.attempt(Some(OrganisationId(1)), secrets, delivery, NOON).await;
            let answer = attempt.answer;
            let Answer::Failed { failure, message, .. } = answer else { panic!("{answer:?}") };
            assert!(!message.contains("hidden"), "{message}");
            (failure, started.elapsed())
        };
        let (failure, took) = attempted(silent.local_addr().unwrap()).await;
        assert_eq!(failure, AttemptFailure::TimedOut);
        assert!(took >= ATTEMPT_TIMEOUT && took < ATTEMPT_TIMEOUT + BODY_TIMEOUT);
        let (failure, _) = attempted(closed).await;
        assert_eq!(failure, AttemptFailure::Unreachable);
    }
}
