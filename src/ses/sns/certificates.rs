//! The signing certificates that are in use: fetched once, kept for a while, within bounds.
//!
//! A stranger who knows a topic's name can post as many certificate URLs as he likes: they must
//! cost AWS and us no more than a few requests. Knows nothing of what a URL or certificate must
//! be like; whoever asks has seen to the URL, and sees to the certificate.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::pki_types::{CertificateDer, TrustAnchor};
use webpki::anchor_from_trusted_cert;

use crate::clock::Clock;
use crate::domain::time::Timestamp;
use crate::ses::sns::certificate::{Certificate, CertificateError};
use crate::ses::transport::{chain, read_bounded};

/// The longest certificate file that is read; SNS's have 2 KiB.
const MAX_FILE_BYTES: usize = 64 * 1024;
/// The longest that one fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that connecting may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a certificate is used before it is fetched again.
const LIFETIME: Duration = Duration::from_hours(24);
/// How long a failed fetch is the answer to all who ask for the same.
const FAILURE_KEPT: Duration = Duration::from_secs(30);
/// The most certificates and failures that are kept.
const MAX_ENTRIES: usize = 32;
/// How many fetches may follow each other at once.
const BURST: u32 = 8;
/// How long it takes to be allowed one more.
const REFILL: Duration = Duration::from_secs(10);

/// What is trusted for the certificates, and where they are fetched.
#[derive(Debug, Clone)]
pub enum Trust {
    /// The system's root certificates, and the hosts that its resolver knows.
    System,
    /// These roots alone, and one address in place of every host: for tests and stand-ins.
    Only {
        /// The root certificates.
        roots: Vec<CertificateDer<'static>>,
        /// Where every connection goes.
        address: SocketAddr,
    },
}

/// There can be no client for the certificates.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client for SNS's certificates could not be built: {0}")]
pub struct NoClient(String);

/// Why a certificate cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// SNS has no such certificate.
    #[error("SNS's host answered {0} for the certificate")]
    Refused(u16),
    /// What it gave is none.
    #[error(transparent)]
    NoCertificate(#[from] CertificateError),
    /// It could not be asked, or gave no proper answer. Another time it may.
    #[error("SNS's certificate could not be fetched: {0}")]
    Unavailable(String),
    /// There were too many fetches lately.
    #[error("too many of SNS's certificates were asked for lately")]
    TooMany,
}

impl FetchError {
    /// Whether it may go well another time.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::TooMany => true,
            Self::Refused(_) | Self::NoCertificate(_) => false,
        }
    }
}

type Outcome = Result<Arc<Certificate>, FetchError>;

pub(super) struct Certificates {
    http: reqwest::Client,
    clock: Clock,
    cache: Mutex<Cache>,
    /// Held during a fetch: those who want the same wait for it, and there is one at a time.
    fetching: tokio::sync::Mutex<()>,
}

struct Cache {
    entries: HashMap<String, Entry>,
    /// How many fetches may still be made.
    allowed: u32,
    /// Since when that is so.
    counted: Timestamp,
}

struct Entry {
    outcome: Outcome,
    since: Timestamp,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    pub(super) fn new(trust: &Trust, clock: Clock) -> Result<Self, NoClient> {
        // An error says that a provider is installed already, and then that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder()
            .user_agent(concat!("pillarbox/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(FETCH_TIMEOUT);
        let no_client = |error: reqwest::Error| NoClient(chain(&error));
        let builder = match trust {
            Trust::System => builder,
            Trust::Only { roots, address } => {
                let roots: Result<Vec<_>, _> =
                    roots.iter().map(|root| reqwest::Certificate::from_der(root)).collect();
                builder
                    .tls_certs_only(roots.map_err(no_client)?)
                    .dns_resolver(Arc::new(OneAddress(*address)))
            }
        };
        let http = builder.build().map_err(no_client)?;
        let cache = Cache { entries: HashMap::new(), allowed: BURST, counted: clock.now() };
        Ok(Self { http, clock, cache: Mutex::new(cache), fetching: tokio::sync::Mutex::default() })
    }

    /// The certificate at this URL.
    pub(super) async fn get(&self, url: &str) -> Outcome {
        if let Some(outcome) = self.kept(url) {
            return outcome;
        }
        let _turn = self.fetching.lock().await;
        // Whoever had the turn before may have fetched it.
        if let Some(outcome) = self.kept(url) {
            return outcome;
        }
        let now = self.clock.now();
        let may_fetch = self.cache().may_fetch(now);
        let outcome =
            if may_fetch { self.fetch(url).await.map(Arc::new) } else { Err(FetchError::TooMany) };
        let mut cache = self.cache();
        if outcome.as_ref().is_err_and(FetchError::is_temporary)
            && let Some(good) = cache.prolong(url, now)
        {
            return Ok(good);
        }
        if may_fetch {
            cache.keep(url, Entry { outcome: outcome.clone(), since: now });
        }
        outcome
    }

    fn kept(&self, url: &str) -> Option<Outcome> {
        let now = self.clock.now();
        let cache = self.cache();
        let entry = cache.entries.get(url)?;
        let lifetime = if entry.outcome.is_ok() { LIFETIME } else { FAILURE_KEPT };
        (!entry.since.is_past(lifetime, now)).then(|| entry.outcome.clone())
    }

    async fn fetch(&self, url: &str) -> Result<Certificate, FetchError> {
        let response = self
            .http
            .get(url)
            .send()
            .await
            .map_err(|error| FetchError::Unavailable(chain(&error.without_url())))?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(FetchError::Unavailable(format!("status {}", status.as_u16())));
            }
            // Redirects too: nobody but SNS's own host is asked.
            status => return Err(FetchError::Refused(status.as_u16())),
        }
        let pem = read_bounded(response, MAX_FILE_BYTES).await.map_err(FetchError::Unavailable)?;
        Ok(Certificate::from_pem(&pem)?)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// Takes one from the fetches that may be made.
    fn may_fetch(&mut self, now: Timestamp) -> bool {
        if now < self.counted {
            // The clock was set back.
            self.counted = now;
        }
        let passed = now.unix_millis() - self.counted.unix_millis();
        let more = u128::from(passed) / REFILL.as_millis();
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(BURST);
            self.allowed = self.allowed.saturating_add(more).min(BURST);
            self.counted = now;
        }
        let may = self.allowed > 0;
        self.allowed = self.allowed.saturating_sub(1);
        may
    }

    /// Has a certificate used for a while longer where it cannot be fetched again now, lest
    /// strangers, who use up the fetches, keep SNS's own posts away; nothing where it is not kept.
    /// Its dates are checked at each use all the same.
    fn prolong(&mut self, url: &str, now: Timestamp) -> Option<Arc<Certificate>> {
        let entry = self.entries.get_mut(url)?;
        let certificate = entry.outcome.clone().ok()?;
        entry.since = now.minus(LIFETIME).plus(FAILURE_KEPT);
        Some(certificate)
    }

    /// Keeps an entry; where there is no room, in place of the oldest failure or, where all is
    /// good, of the oldest certificate.
    fn keep(&mut self, url: &str, entry: Entry) {
        if self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(url) {
            let oldest =
                self.entries.iter().min_by_key(|(_, entry)| (entry.outcome.is_ok(), entry.since));
            if let Some(oldest) = oldest.map(|(url, _)| url.clone()) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(url.to_owned(), entry);
    }
}

impl Trust {
    /// The roots that certificates may lead to. A root of the system's that cannot be read is
    /// none.
    pub(super) fn anchors(&self) -> Vec<TrustAnchor<'static>> {
        let system;
        let roots = match self {
            Self::System => {
                system = rustls_native_certs::load_native_certs().certs;
                &system
            }
            Self::Only { roots, .. } => roots,
        };
        let anchor = |root| anchor_from_trusted_cert(root).map(|anchor| anchor.to_owned());
        roots.iter().filter_map(|root| anchor(root).ok()).collect()
    }
}

/// Resolves every name to one address.
struct OneAddress(SocketAddr);

impl Resolve for OneAddress {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(std::iter::once(self.0));
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn cache() -> Cache {
        Cache { entries: HashMap::new(), allowed: BURST, counted: NOW }
    }

    fn failed(since: Timestamp) -> Entry {
        Entry { outcome: Err(FetchError::Refused(404)), since }
    }

    #[test]
    fn fetches_come_back_one_by_one() {
        let mut cache = cache();
        for _ in 0..BURST {
            assert!(cache.may_fetch(NOW));
        }
        assert!(!cache.may_fetch(NOW.plus(REFILL).minus(Duration::from_millis(1))));
        assert!(cache.may_fetch(NOW.plus(REFILL)));
        assert!(!cache.may_fetch(NOW.plus(REFILL)));
        let later = NOW.plus(Duration::from_hours(24));
        for _ in 0..BURST {
            assert!(cache.may_fetch(later));
        }
        assert!(!cache.may_fetch(later));
        // A clock that is set back starts to count there.
        assert!(!cache.may_fetch(NOW));
        assert!(cache.may_fetch(NOW.plus(REFILL)));
    }

    #[test]
    fn failures_go_before_certificates_and_the_oldest_first() {
        let mut cache = cache();
        for number in 0..100_u64 {
            let since = NOW.plus(Duration::from_secs(number));
            cache.keep(&format!("https://x/{number}.pem"), failed(since));
        }
        assert_eq!(cache.entries.len(), MAX_ENTRIES);
        assert!(cache.entries.contains_key("https://x/99.pem"));
        assert!(!cache.entries.contains_key("https://x/67.pem"));
        // Kept anew, it takes nobody's place.
        cache.keep("https://x/99.pem", failed(NOW));
        assert_eq!(cache.entries.len(), MAX_ENTRIES);
    }
}
