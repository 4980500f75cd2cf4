//! The SES adapter: Amazon SES v2, or anything that speaks like it, over signed HTTPS.
//!
//! Turns an admitted message into the request SES takes, makes one call for each attempt and
//! returns its outcome; asks SES about the account and its identities. It must not know of the
//! store, of HTTP clients on our own side, or of when and in which order messages are sent.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Url;

use crate::call::CallSpacing;
use crate::endpoint::Endpoints;
use crate::transport::Transport;
use pillarbox_domain::attempt::TrackingOverride;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::proxy::{ProxyRule, UnusableProxy};

pub use crate::call::{SharedSlots, TakingSlot};
pub use crate::transport::Skew;

pub mod account;
pub mod aws_setup;
mod call;
mod classify;
pub mod configuration_set;
pub mod credentials;
mod endpoint;
pub mod error;
pub mod event;
pub mod identity;
mod query;
mod request;
pub mod send;
mod signing;
pub mod sns;
pub mod sqs;
mod transport;

#[cfg(test)]
pub(crate) mod stub;

/// Settings for reaching SES.
#[derive(Debug, Clone)]
pub struct SesOptions {
    /// The AWS region, such as `eu-west-1`.
    pub region: String,
    /// The endpoint's URL if it is not the region's own. One that is not AWS's stands in for SNS,
    /// SQS and STS too. Requests over `http` are signed, but their bodies travel in clear.
    pub endpoint: Option<String>,
    /// The configuration set that every message names.
    pub configuration_set: Option<String>,
    /// Decision whether each request turns open and click tracking off for its message.
    pub tracking_override: TrackingOverride,
    /// The longest that one call may take, from connecting to the last byte of the answer. Loading
    /// credentials comes before it, and is bounded by itself.
    pub request_timeout: Duration,
    /// The longest that connecting may take, TLS included.
    pub connect_timeout: Duration,
    /// The proxy of calls to SES, SNS, SQS and STS.
    pub proxy: ProxyRule,
    /// The source of the AWS credentials.
    pub credentials: credentials::Credentials,
}

/// Reason why there can be no client.
#[derive(Debug, thiserror::Error)]
pub enum SesError {
    /// The region's name could not be part of a host's name.
    #[error("the SES region {0:?} must consist of a-z, 0-9 and -")]
    Region(String),
    /// The endpoint is no URL that requests can be sent to.
    #[error("the SES endpoint {0:?} must be an http or https URL without user, query or fragment")]
    Endpoint(String),
    /// The HTTP client could not be built; most often the system's root certificates are missing.
    #[error("the HTTP client for SES could not be built")]
    Client(#[source] reqwest::Error),
    /// The proxy of the environment is not one that can be asked.
    #[error(transparent)]
    Proxy(#[from] UnusableProxy),
}

/// A client of SES. Clones are cheap and share connections, credentials and limits.
#[derive(Clone)]
pub struct SesClient {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    endpoints: Endpoints,
    outbound_emails: Url,
    configuration_set: Option<String>,
    tracking_override: TrackingOverride,
    /// True if the last message that was accepted went without the override, because the endpoint
    /// refused it.
    went_without_override: AtomicBool,
    spacing: CallSpacing,
}

impl fmt::Debug for SesClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SesClient")
            .field("endpoint", &self.inner.endpoints.ses())
            .finish_non_exhaustive()
    }
}

impl SesClient {
    /// A client; nothing is connected and no credential is loaded before the first call.
    pub fn new(options: SesOptions, clock: Clock) -> Result<Self, SesError> {
        let endpoints = Endpoints::new(&options)?;
        let outbound_emails = joined(endpoints.ses(), "/v2/email/outbound-emails")?;
        let transport = Transport::new(&options, clock)?;
        let configuration_set = options.configuration_set;
        let spacing = CallSpacing::default();
        let inner = Inner {
            transport,
            endpoints,
            outbound_emails,
            configuration_set,
            tracking_override: options.tracking_override,
            went_without_override: AtomicBool::new(false),
            spacing,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The region that is asked.
    pub fn region(&self) -> &str {
        self.inner.transport.options().region
    }

    /// Has the next call load the credentials from their sources anew: a shared profile, a token or
    /// a role may have changed. The environment cannot.
    pub fn reload_credentials(&self) {
        self.inner.transport.reload_credentials();
    }

    /// Returns the skew of AWS's clock against ours, from its last answer.
    pub fn clock_skew(&self) -> Option<Skew> {
        self.inner.transport.skew()
    }

    /// Returns how calls to AWS leave this machine.
    pub fn route(&self) -> String {
        let (proxy, endpoints) = (self.inner.transport.proxy(), &self.inner.endpoints);
        let (ses, others) = (endpoints.ses(), ["sqs", "sns", "sts"]);
        let others = others.map(|service| endpoints.of(service, self.region()));
        let (through, directly): (Vec<_>, Vec<_>) = std::iter::once(ses.to_owned())
            .chain(others)
            .partition(|url| proxy.proxy_for(url).is_some());
        match (through.first(), directly.first()) {
            (None, _) => {
                let exception = proxy.exception_for(ses).map(|why| format!("; {why}"));
                format!("calls to AWS do not go through a proxy{}", exception.unwrap_or_default())
            }
            (Some(url), excepted) => {
                let proxy = proxy.proxy_for(url).unwrap_or_default();
                let excepted =
                    excepted.map(|_| format!(", except those to {}", directly.join(", ")));
                format!("calls to AWS go through {proxy}{}", excepted.unwrap_or_default())
            }
        }
    }

    /// The configuration set that every message names.
    pub fn configuration_set(&self) -> Option<&str> {
        self.inner.configuration_set.as_deref()
    }

    /// Returns the decision whether each request turns open and click tracking off.
    pub fn tracking_override(&self) -> TrackingOverride {
        self.inner.tracking_override
    }

    /// Returns true if the last accepted message went without the override of tracking, because
    /// the endpoint refused it.
    pub fn went_without_override(&self) -> bool {
        self.inner.went_without_override.load(Ordering::Relaxed)
    }
}

fn joined(base: &str, path: &str) -> Result<Url, SesError> {
    Url::parse(&format!("{base}{path}")).map_err(|_| SesError::Endpoint(base.to_owned()))
}
