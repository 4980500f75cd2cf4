//! Signed calls over one HTTP client: what was answered, or how far the request got.
//!
//! Knows the AWS conventions that all calls share, and of no operation in particular.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use http::header::DATE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use reqwest::{Request, Response};

use crate::credentials::{Connector, CredentialCache};
use crate::error::{AwsError, RefusedCredentials, TransportError, is_clock};
use crate::request::{Call, CallOptions, MAX_ANSWER_BYTES, Reply, WatchedBody, read_bounded};
use crate::signing::Signer;
use crate::{SesError, SesOptions};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::error_chain::error_chain;
use pillarbox_runtime::proxy::{ProxyRule, UNAUTHORIZED};
use pillarbox_runtime::resolver::{Caller, HttpResolver, Resolver, ResolverLimits};

/// Time for which an idle connection is kept. AWS's front ends close theirs after about a minute; well
/// below that, a request is hardly ever written to a connection that is being closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// The most idle connections that are kept: as many as the default of calls in flight.
const MAX_IDLE_CONNECTIONS: usize = 256;
/// The slowest that a body may be written, beyond the time-out of any call, in bytes per second.
const BYTES_PER_SECOND: usize = 512 * 1024;
/// Names of AWS's services and of sources of credentials. A resolution ends before the time to
/// connect does, so that its error is reported.
const NAMES: ResolverLimits = ResolverLimits {
    max_lookups: 16,
    patience: Duration::from_secs(4),
    kept: Duration::from_mins(10),
};
/// Skew of AWS's clock against ours, from its last answer's `Date`, to about a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skew {
    /// Our clock is behind.
    Behind(Duration),
    /// Ours is ahead, or right.
    Ahead(Duration),
}

impl Skew {
    fn between(theirs: Timestamp, ours: Timestamp) -> Self {
        let apart = Duration::from_millis(theirs.unix_millis().abs_diff(ours.unix_millis()));
        if theirs > ours { Self::Behind(apart) } else { Self::Ahead(apart) }
    }

    /// Reads it from an answer's `Date`, if it has one, while our clock shows `ours`.
    pub(super) fn told(headers: &HeaderMap, ours: Timestamp) -> Option<Self> {
        let date = headers.get(DATE)?.to_str().ok()?;
        let date = DateTime::from_str(date, Format::HttpDate).ok()?;
        Some(Self::between(Timestamp::from(SystemTime::try_from(date).ok()?), ours))
    }

    /// Returns the distance, in either direction.
    pub const fn apart(self) -> Duration {
        match self {
            Self::Behind(apart) | Self::Ahead(apart) => apart,
        }
    }
}

/// The HTTP client and what signs its requests.
#[derive(Debug)]
pub(super) struct Transport {
    http: reqwest::Client,
    proxy: ProxyRule,
    request_timeout: Duration,
    credentials: CredentialCache,
    region: String,
    signer: Signer,
    clock: Clock,
    skew: Mutex<Option<Skew>>,
}

impl Transport {
    pub(super) fn new(options: &SesOptions, clock: Clock) -> Result<Self, SesError> {
        // An error says that a provider is installed already, and then that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let resolver = Resolver::new(NAMES);
        let client = |proxy: &ProxyRule| {
            let client = reqwest::Client::builder()
                .user_agent(concat!("pillarbox/", env!("CARGO_PKG_VERSION")))
                .http1_only()
                .redirect(reqwest::redirect::Policy::none())
                .retry(reqwest::retry::never())
                .connect_timeout(options.connect_timeout)
                .timeout(options.request_timeout)
                .pool_idle_timeout(POOL_IDLE_TIMEOUT)
                .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
                .dns_resolver(HttpResolver::new(resolver.clone(), || Caller {
                    holder: (),
                    guard: None,
                }));
            proxy.apply(client)?.build().map_err(SesError::Client)
        };
        let http = client(&options.proxy)?;
        let direct = match &options.proxy {
            ProxyRule::Direct => http.clone(),
            _ => client(&ProxyRule::Direct)?,
        };
        let connector = Connector::new(direct, http.clone(), options.proxy.clone());
        let credentials = CredentialCache::new(
            options.credentials.clone(),
            &options.region,
            connector,
            clock.clone(),
        );
        let skew = Mutex::new(None);
        Ok(Self {
            http,
            proxy: options.proxy.clone(),
            request_timeout: options.request_timeout,
            credentials,
            region: options.region.clone(),
            signer: Signer::default(),
            clock,
            skew,
        })
    }

    /// The proxy of calls.
    pub(super) fn proxy(&self) -> &ProxyRule {
        &self.proxy
    }

    /// The options of SES's own calls.
    pub(super) fn options(&self) -> CallOptions<'_> {
        CallOptions { region: &self.region, timeout: None, max_answer_bytes: MAX_ANSWER_BYTES }
    }

    /// The options of a call whose body has this many bytes: a large one takes longer to write.
    pub(super) fn options_of(&self, body_bytes: usize) -> CallOptions<'_> {
        let millis = body_bytes.saturating_mul(1_000) / BYTES_PER_SECOND;
        let more = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        CallOptions { timeout: Some(self.request_timeout.saturating_add(more)), ..self.options() }
    }

    /// Makes a call on SES's own options.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Reply, TransportError> {
        self.call_on(self.options(), call).await
    }

    /// Makes the call once. It is repeated only if AWS refused it for expired credentials, and so
    /// before it was acted on, and other credentials could be had.
    pub(super) async fn call_on(
        &self,
        options: CallOptions<'_>,
        call: &Call<'_>,
    ) -> Result<Reply, TransportError> {
        let credentials = self.credentials.get().await?;
        let reply = self.attempt(options, call, &credentials).await?;
        let refused = refused_credentials(&reply);
        if refused != RefusedCredentials::No {
            self.credentials.discard(&credentials);
        }
        if refused == RefusedCredentials::Expired
            && let Ok(renewed) = self.credentials.get().await
            && renewed != credentials
        {
            return self.attempt(options, call, &renewed).await;
        }
        Ok(reply)
    }

    /// Has the next call load the credentials anew.
    pub(super) fn reload_credentials(&self) {
        self.credentials.reload();
    }

    /// Returns the skew of AWS's clock against ours, if any answer had a date.
    pub(super) fn skew(&self) -> Option<Skew> {
        *self.skew.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_date(&self, headers: &HeaderMap) {
        if let Some(skew) = Skew::told(headers, self.clock.machine_time()) {
            *self.skew.lock().unwrap_or_else(PoisonError::into_inner) = Some(skew);
        }
    }

    async fn attempt(
        &self,
        options: CallOptions<'_>,
        call: &Call<'_>,
        credentials: &aws_credential_types::Credentials,
    ) -> Result<Reply, TransportError> {
        let now = self.clock.machine_time();
        let signed = self
            .signer
            .sign(call, options.region, credentials, now)
            .map_err(|error| TransportError::Signing(error.to_string()))?;
        let mut request = Request::new(call.method.clone(), call.url.clone());
        *request.timeout_mut() = options.timeout;
        request.headers_mut().extend(signed);
        request.headers_mut().extend(
            call.headers.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            }),
        );
        let written = Arc::new(AtomicBool::new(call.body.len_bytes() == 0));
        if call.body.len_bytes() > 0 {
            let body = WatchedBody::new(call.body.clone(), Arc::clone(&written));
            *request.body_mut() = Some(reqwest::Body::wrap(body));
        }
        match self.http.execute(request).await {
            // By the proxy, and so the request went no further.
            Ok(response) if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                let text = self.proxy.explained(call.url.as_str(), UNAUTHORIZED.to_owned());
                Err(TransportError::NotWritten(text))
            }
            Ok(response) => {
                self.note_date(response.headers());
                Ok(read(response, options.max_answer_bytes).await)
            }
            Err(error) => {
                // Of a call without a body, nothing is written to be counted.
                let is_unconnected = error.is_connect();
                let text = error_chain(&error.without_url());
                let text = self.proxy.explained(call.url.as_str(), text);
                Err(if written.load(Ordering::Acquire) && !is_unconnected {
                    TransportError::NoAnswer(text)
                } else {
                    TransportError::NotWritten(text)
                })
            }
        }
    }
}

async fn read(mut response: Response, max_bytes: usize) -> Reply {
    let status = response.status();
    let headers = std::mem::take(response.headers_mut());
    Reply { status, headers, body: read_bounded(response, max_bytes).await }
}

fn refused_credentials(reply: &Reply) -> RefusedCredentials {
    if !reply.status.is_client_error() {
        return RefusedCredentials::No;
    }
    let error = AwsError::read(reply);
    // Other credentials would be refused as well.
    if is_clock(error.stem(), error.message.as_deref().unwrap_or_default()) {
        return RefusedCredentials::No;
    }
    RefusedCredentials::by(error.stem())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Method;
    use reqwest::Url;

    use super::*;
    use crate::credentials::tests::keys;
    use crate::request::JSON;
    use crate::stub::{Answer, Server, options};

    /// Calls once, with credentials that were loaded an hour ago; the answer's status, and the
    /// access key of each request that was made.
    async fn called(server: &Server, loads: [&str; 2]) -> (u16, Vec<String>) {
        let clock = Clock::manual(Timestamp::from_unix_millis(1_800_000_000_000));
        let mut transport = Transport::new(&options(&server.url()), clock.clone()).unwrap();
        let loads = loads.map(|name| Ok(keys(name, None)));
        transport.credentials = CredentialCache::scripted(loads, clock.clone());
        transport.credentials.get().await.unwrap();
        clock.set(clock.now().plus(Duration::from_hours(1)));
        let url = Url::parse(&server.url()).unwrap();
        let call = Call {
            service: "ses",
            method: Method::POST,
            url: &url,
            headers: &[JSON],
            body: Bytes::from_static(b"{}").into(),
        };
        let status = transport.call(&call).await.unwrap().status.as_u16();
        let requests = server.requests();
        let keys = requests.iter().map(|request| {
            let (_, rest) =
                request.header("authorization").unwrap().split_once("Credential=").unwrap();
            rest.split('/').next().unwrap().to_owned()
        });
        (status, keys.collect())
    }

    /// Refuses the key `OLD`.
    async fn refusing(name: &'static str) -> Server {
        Server::with(move |request| {
            if request.head.contains("Credential=OLD/") {
                Answer::error(403, name, "refused")
            } else {
                Answer::json(200, "{}")
            }
        })
        .await
    }

    #[tokio::test]
    async fn expired_credentials_are_renewed_and_the_call_is_repeated() {
        let server = refusing("ExpiredTokenException").await;
        assert_eq!(called(&server, ["OLD", "NEW"]).await, (200, vec!["OLD".into(), "NEW".into()]));
    }

    #[tokio::test]
    async fn renewed_credentials_that_are_the_same_are_not_tried_again() {
        let server = refusing("ExpiredTokenException").await;
        assert_eq!(called(&server, ["OLD", "OLD"]).await, (403, vec!["OLD".into()]));
    }

    #[tokio::test]
    async fn no_other_refusal_is_repeated() {
        for name in ["UnrecognizedClientException", "AccessDeniedException"] {
            let server = refusing(name).await;
            assert_eq!(called(&server, ["OLD", "NEW"]).await, (403, vec!["OLD".into()]), "{name}");
        }
    }

    #[tokio::test]
    async fn an_answers_date_tells_how_far_the_clocks_are_apart() {
        let noon = Timestamp::parse_rfc3339("2026-11-21T12:00:00Z").unwrap();
        let date = "date: Sat, 21 Nov 2026 12:07:00 GMT\r\n";
        let server = Server::start(Answer::with_headers(200, date, "{}")).await;
        let transport = Transport::new(&options(&server.url()), Clock::manual(noon)).unwrap();
        assert_eq!(transport.skew(), None);
        let url = Url::parse(&server.url()).unwrap();
        let call = Call {
            service: "ses",
            method: Method::GET,
            url: &url,
            headers: &[],
            body: Bytes::new().into(),
        };
        transport.call(&call).await.unwrap();
        assert_eq!(transport.skew(), Some(Skew::Behind(Duration::from_mins(7))));
    }
}
