//! The SES adapter: Amazon SES v2, or anything that speaks like it, over signed HTTPS.
//!
//! Turns an admitted message into the request SES takes, makes one call an attempt and says what
//! it came to; asks SES about the account and its identities. It must not know of the store, of
//! HTTP clients on our own side, or of when and in which order messages are sent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;

use crate::clock::Clock;
use crate::ses::limiter::CallSpacing;
use crate::ses::transport::Transport;

pub mod account;
mod aws_error;
pub mod call;
mod classify;
mod connector;
pub mod credentials;
pub mod event;
pub mod identity;
mod limiter;
mod redact;
pub mod send;
mod sign;
pub mod sqs;
pub mod suppression;
mod transport;

#[cfg(test)]
mod stub;

/// How to reach SES.
#[derive(Debug, Clone)]
pub struct SesOptions {
    /// The AWS region, such as `eu-west-1`.
    pub region: String,
    /// The endpoint's URL where it is not the region's own. Requests over `http` are signed, but
    /// their bodies travel in clear.
    pub endpoint: Option<String>,
    /// The configuration set that every message names.
    pub configuration_set: Option<String>,
    /// The longest that one call may take, from connecting to the last byte of the answer. Loading
    /// credentials comes before it, and is bounded by itself.
    pub request_timeout: Duration,
    /// The longest that connecting may take, TLS included.
    pub connect_timeout: Duration,
    /// Where the AWS credentials come from.
    pub credentials: credentials::Credentials,
}

/// Why there can be no client.
#[derive(Debug, thiserror::Error)]
pub enum SesError {
    /// The region's name could not be part of a host's name.
    #[error("the SES region {0:?} is not of a-z, 0-9 and -")]
    Region(String),
    /// The endpoint is no URL that requests can be sent to.
    #[error("the SES endpoint {0:?} is not an http or https URL without user, query and fragment")]
    Endpoint(String),
    /// The HTTP client could not be built; most often the system's root certificates are missing.
    #[error("the HTTP client for SES could not be built")]
    Client(#[source] reqwest::Error),
}

/// A client of SES. Clones are cheap and share connections, credentials and limits.
///
/// It goes to SES directly: the `HTTP_PROXY` family of variables has no effect on it.
#[derive(Clone)]
pub struct SesClient {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    base: String,
    outbound_emails: Url,
    configuration_set: Option<String>,
    spacing: CallSpacing,
}

impl fmt::Debug for SesClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SesClient").field("endpoint", &self.inner.base).finish_non_exhaustive()
    }
}

impl SesClient {
    /// A client; nothing is connected and no credential is loaded before the first call.
    pub fn new(options: SesOptions, clock: Clock) -> Result<Self, SesError> {
        let base = base_url(&options)?;
        let outbound_emails = joined(&base, "/v2/email/outbound-emails")?;
        let transport = Transport::new(&options, clock).map_err(SesError::Client)?;
        let configuration_set = options.configuration_set;
        let spacing = CallSpacing::default();
        let inner = Inner { transport, base, outbound_emails, configuration_set, spacing };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The configuration set that every message names.
    pub fn configuration_set(&self) -> Option<&str> {
        self.inner.configuration_set.as_deref()
    }
}

fn joined(base: &str, path: &str) -> Result<Url, SesError> {
    Url::parse(&format!("{base}{path}")).map_err(|_| SesError::Endpoint(base.to_owned()))
}

/// The endpoint without a slash at its end.
fn base_url(options: &SesOptions) -> Result<String, SesError> {
    let region = &options.region;
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if region.is_empty() || !region.bytes().all(allowed) {
        return Err(SesError::Region(region.clone()));
    }
    let Some(endpoint) = &options.endpoint else {
        // The AWS partition in China has its own top-level domain.
        let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        return Ok(format!("https://email.{region}.{suffix}"));
    };
    let usable = Url::parse(endpoint).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    });
    if !usable {
        // What stands before an `@` may be a password: it is not repeated.
        let shown = endpoint.rsplit('@').next().unwrap_or_default();
        return Err(SesError::Endpoint(shown.to_owned()));
    }
    Ok(endpoint.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(region: &str, endpoint: Option<&str>) -> SesOptions {
        let endpoint = endpoint.map(str::to_owned);
        SesOptions { region: region.to_owned(), endpoint, ..stub::options("http://unused") }
    }

    #[test]
    fn the_endpoint_is_the_regions_own_unless_one_is_given() {
        let base = |region, endpoint| base_url(&options(region, endpoint)).unwrap();
        assert_eq!(base("eu-west-1", None), "https://email.eu-west-1.amazonaws.com");
        assert_eq!(base("cn-north-1", None), "https://email.cn-north-1.amazonaws.com.cn");
        assert_eq!(base("eu-west-1", Some("http://[::1]:9100/")), "http://[::1]:9100");
        assert_eq!(base("eu-west-1", Some("https://x.org/ses/")), "https://x.org/ses");
    }

    #[test]
    fn what_cannot_be_an_endpoint_is_refused_without_repeating_a_password() {
        for endpoint in ["", "x.org", "ftp://x.org", "http://x.org?a", "http://x.org#a"] {
            assert!(base_url(&options("eu-west-1", Some(endpoint))).is_err(), "{endpoint}");
        }
        let error = base_url(&options("eu-west-1", Some("http://u:secret@x.org"))).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(matches!(base_url(&options("x.org/", None)), Err(SesError::Region(_))));
        assert!(matches!(base_url(&options("", None)), Err(SesError::Region(_))));
    }
}
