//! AWS credentials: found as every AWS tool finds them, kept while they are valid, renewed early.
//!
//! Knows nothing of the calls that they sign. No secret shows in a `Debug` or an error.
//!
//! The chain is environment, shared profile (with roles to assume and `credential_process`), web
//! identity, container and instance metadata v2. A profile's `sso_…` and `login_session` are not
//! supported: no person can log in at a service.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_config::Region;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials as Keys;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http::Method;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::OnceCell;

use crate::error::{LoadError, redact};
use crate::request::{MAX_ANSWER_BYTES, read_bounded};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::error_chain::{error_chain, without_full_stop};
use pillarbox_runtime::proxy::ProxyRule;

/// The longest that finding credentials may take, all sources together.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time before their end at which temporary credentials are renewed.
const RENEW_BEFORE_EXPIRY: Duration = Duration::from_mins(5);
/// Up to this much earlier still, by chance, so that a fleet does not renew at one moment.
const RENEWAL_JITTER: Duration = Duration::from_mins(1);
/// The least time between two renewals, however soon the credentials end.
const LEAST_RENEWAL_INTERVAL: Duration = Duration::from_secs(30);
/// Time for which a failure to find any is the answer, so that a full queue does not ask in step.
const FAILURE_KEPT: Duration = Duration::from_secs(5);
/// The longest error text that is kept.
const MAX_REASON_CHARS: usize = 500;
/// The time limit of a call whose provider sets none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Source of the credentials.
#[derive(Debug, Clone)]
pub struct Credentials(Source);

#[derive(Debug, Clone)]
enum Source {
    Fixed { access_key: String, secret: SecretString },
    Aws,
}

impl Credentials {
    /// An access key as given, for development and tests.
    pub fn fixed(access_key: impl Into<String>, secret: SecretString) -> Self {
        Self(Source::Fixed { access_key: access_key.into(), secret })
    }

    /// The sources of every AWS tool, in their usual order.
    pub const fn aws() -> Self {
        Self(Source::Aws)
    }
}

/// Credentials that are loaded at first use, by one caller for all, and renewed before they end.
#[derive(Debug)]
pub(super) struct CredentialCache {
    loader: Arc<Loader>,
    clock: Clock,
    current: Mutex<Arc<Slot>>,
    unfinished: Mutex<Option<Load>>,
}

/// Load that took longer than its caller waited. The next caller waits for it, and begins no other:
/// a program that hangs runs once, and not once a call.
struct Load(Pin<Box<dyn Future<Output = Result<Keys, LoadError>> + Send>>);

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Load(..)")
    }
}

#[derive(Debug)]
enum Loader {
    Fixed(Keys),
    Aws {
        region: Region,
        connector: Connector,
    },
    #[cfg(test)]
    Scripted(tests::Script),
}

/// Result of one load; all who ask meanwhile wait for it.
#[derive(Debug, Default)]
struct Slot {
    /// The credentials before: still valid for a while if a renewal fails.
    previous: Option<Keys>,
    loaded: OnceCell<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    outcome: Result<Keys, LoadError>,
    since: Timestamp,
    /// The time to load again; `None` for never.
    renew_at: Option<Timestamp>,
}

impl CredentialCache {
    pub(super) fn new(
        source: Credentials,
        region: &str,
        connector: Connector,
        clock: Clock,
    ) -> Self {
        let loader = match source.0 {
            Source::Fixed { access_key, secret } => Loader::Fixed(Keys::new(
                access_key,
                secret.expose_secret(),
                None,
                None,
                "configuration",
            )),
            Source::Aws => Loader::Aws { region: Region::new(region.to_owned()), connector },
        };
        Self {
            loader: Arc::new(loader),
            clock,
            current: Mutex::default(),
            unfinished: Mutex::default(),
        }
    }

    /// The credentials to sign with now.
    pub(super) async fn get(&self) -> Result<Keys, LoadError> {
        let slot = self.slot();
        let loaded = slot.loaded.get_or_init(|| self.load(slot.previous.as_ref())).await;
        loaded.outcome.clone()
    }

    /// Forgets these credentials, which AWS refused; the next caller loads anew. Those just loaded
    /// stay: asking again at once would yield the same.
    pub(super) fn discard(&self, refused: &Keys) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.machine_time();
        let forget = current.loaded.get().is_some_and(|loaded| {
            loaded.outcome.as_ref() == Ok(refused) && loaded.since.is_past(FAILURE_KEPT, now)
        });
        if forget {
            *current = Arc::default();
        }
    }

    /// Has the next caller load anew. If that fails, the credentials before stay for as long as they
    /// are good.
    pub(super) fn reload(&self) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = match current.loaded.get() {
            Some(loaded) => loaded.outcome.as_ref().ok().cloned(),
            None => current.previous.clone(),
        };
        *current = Arc::new(Slot { previous, loaded: OnceCell::new() });
        *self.unfinished() = None;
    }

    fn unfinished(&self) -> MutexGuard<'_, Option<Load>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self) -> Arc<Slot> {
        let now = self.clock.machine_time();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = current.loaded.get()
            && loaded.renew_at.is_some_and(|renew_at| now >= renew_at)
        {
            let previous = loaded.outcome.as_ref().ok().cloned();
            *current = Arc::new(Slot { previous, loaded: OnceCell::new() });
        }
        Arc::clone(&current)
    }

    async fn load(&self, previous: Option<&Keys>) -> Loaded {
        let unfinished = self.unfinished().take();
        let mut load = unfinished.unwrap_or_else(|| {
            let loader = Arc::clone(&self.loader);
            Load(Box::pin(async move { loader.load().await }))
        });
        let loaded = tokio::time::timeout(LOAD_TIMEOUT, &mut load.0).await;
        let outcome = loaded.unwrap_or_else(|_| {
            *self.unfinished() = Some(load);
            Err(LoadError::Failed(format!("no answer within {LOAD_TIMEOUT:?}")))
        });
        let now = self.clock.machine_time();
        let (outcome, renew_at) = match outcome {
            Ok(credentials) => {
                let renew_at = renewal(&credentials, now);
                (Ok(credentials), renew_at)
            }
            Err(error) => {
                tracing::warn!(%error, "AWS cannot be called; pillarbox doctor checks the credentials");
                let good = previous.filter(|previous| {
                    previous.expiry().is_none_or(|expiry| Timestamp::from(expiry) > now)
                });
                match good {
                    Some(good) => (Ok(good.clone()), Some(now.plus(LEAST_RENEWAL_INTERVAL))),
                    None => (Err(error), Some(now.plus(FAILURE_KEPT))),
                }
            }
        };
        Loaded { outcome, since: now, renew_at }
    }
}

fn renewal(credentials: &Keys, now: Timestamp) -> Option<Timestamp> {
    let expiry = Timestamp::from(credentials.expiry()?);
    // Without randomness there is no jitter, which does no harm.
    let draw = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    let due = expiry.minus(RENEW_BEFORE_EXPIRY).minus(RENEWAL_JITTER.mul_f64(draw));
    Some(due.max(now.plus(LEAST_RENEWAL_INTERVAL)))
}

impl Loader {
    async fn load(&self) -> Result<Keys, LoadError> {
        let (region, connector) = match self {
            Self::Fixed(credentials) => return Ok(credentials.clone()),
            Self::Aws { region, connector } => (region.clone(), connector.clone()),
            #[cfg(test)]
            Self::Scripted(script) => return script.next().await,
        };
        // Built anew each time, because a chain reads the profile files once and keeps them.
        let config = ProviderConfig::without_region().with_http_client(connector);
        let chain =
            DefaultCredentialsChain::builder().configure(config).region(region).build().await;
        chain.provide_credentials().await.map_err(LoadError::from)
    }
}

impl From<CredentialsError> for LoadError {
    fn from(error: CredentialsError) -> Self {
        match error {
            CredentialsError::CredentialsNotLoaded(_) => Self::None,
            error => {
                let text = error_chain(&error);
                let reason = unsupported(&text).map_or_else(
                    || {
                        // A program's errors may have many lines.
                        let text = redact(&text);
                        let words: Vec<_> = text.split_whitespace().collect();
                        words.join(" ").chars().take(MAX_REASON_CHARS).collect()
                    },
                    str::to_owned,
                );
                Self::Failed(without_full_stop(&reason).to_owned())
            }
        }
    }
}

/// Reason why a profile's source is not one for a service, if that is the problem. The chain's own
/// error names parts of it that are not built in.
fn unsupported(error: &str) -> Option<&'static str> {
    let (_, part) = error.split_once("cargo feature(s) enabled: ")?;
    Some(if part.starts_with("sso") {
        "the profile gets its credentials from IAM Identity Center (sso_...), where a person has \
         to log in, which a service cannot do; use a role or an access key, or set AWS_PROFILE to \
         another profile that has: credential_process = aws configure export-credentials --profile \
         NAME --format process"
    } else if part.starts_with("credentials-login") {
        "the profile gets its credentials from a person's login (login_session), and a service \
         cannot log in; use a role or an access key"
    } else {
        "the profile gets its credentials from a source that a service cannot use; use a role or \
         an access key"
    })
}

/// `HttpClient` for the AWS credential providers: their few calls go over our own HTTP clients.
/// Without it they would bring a second HTTP and TLS stack.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    /// For endpoints of containers and instances, which no proxy reaches.
    direct: reqwest::Client,
    /// Client for calls to STS.
    http: reqwest::Client,
    proxy: ProxyRule,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(direct: reqwest::Client, http: reqwest::Client, proxy: ProxyRule) -> Self {
        Self { direct, http, proxy, timeout: DEFAULT_TIMEOUT }
    }
}

impl HttpClient for Connector {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        // One limit serves for both: a provider that allows a second to connect and one to answer
        // (instance metadata) waits two at most if nothing is there.
        let timeout = match (settings.connect_timeout(), settings.read_timeout()) {
            (Some(connect), Some(read)) => connect + read,
            (Some(limit), None) | (None, Some(limit)) => limit.max(DEFAULT_TIMEOUT),
            (None, None) => DEFAULT_TIMEOUT,
        };
        SharedHttpConnector::new(Self { timeout, ..self.clone() })
    }
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let Self { direct, http, proxy, timeout } = self.clone();
        HttpConnectorFuture::new(async move {
            let mut request = converted(request)?;
            *request.timeout_mut() = Some(timeout);
            // STS alone is called by POST: the others by GET, and PUT for a session's token.
            let (http, proxy) = match *request.method() {
                Method::POST => (http, proxy),
                _ => (direct, ProxyRule::Direct),
            };
            let url = request.url().to_string();
            let response = http.execute(request).await;
            let response = response.map_err(|error| failed(error, &proxy, &url))?;
            let status = response.status();
            let headers = response.headers().clone();
            let body = read_bounded(response, MAX_ANSWER_BYTES)
                .await
                .map_err(|error| ConnectorError::io(error.into()))?;
            let mut answer = http::Response::new(SdkBody::from(body));
            *answer.status_mut() = status;
            *answer.headers_mut() = headers;
            HttpResponse::try_from(answer).map_err(|error| ConnectorError::user(error.into()))
        })
    }
}

fn converted(request: HttpRequest) -> Result<reqwest::Request, ConnectorError> {
    let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
    let (parts, body) = request.into_parts();
    // A streamed body has no bytes; no credential provider sends one.
    let body = body.bytes().map(Bytes::copy_from_slice).ok_or_else(|| {
        ConnectorError::user("a streamed body, which credential providers do not send".into())
    })?;
    reqwest::Request::try_from(http::Request::from_parts(parts, body))
        .map_err(|error| ConnectorError::user(error.into()))
}

fn failed(error: reqwest::Error, proxy: &ProxyRule, url: &str) -> ConnectorError {
    let (timed_out, unconnected) = (error.is_timeout(), error.is_connect());
    // The URL may hold a secret that is meant for the provider.
    let source = proxy.explained(url, error_chain(&error.without_url())).into();
    let error =
        if timed_out { ConnectorError::timeout(source) } else { ConnectorError::io(source) };
    if unconnected { error.never_connected() } else { error }
}

#[cfg(test)]
pub(super) mod tests;
