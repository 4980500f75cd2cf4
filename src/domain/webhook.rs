//! Webhooks: endpoints that receive an organisation's events, their secrets, and the schedule of
//! attempts.
//!
//! Pure values: who calls an endpoint, and when, is not known here.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;

use crate::feed::{FeedPosition, FeedTypes};
use crate::id::OrganisationId;
use crate::time::Timestamp;
use crate::worded;

/// Longest URL of an endpoint, in characters.
const MAX_URL_CHARS: usize = 2_048;
/// Prefix of a secret's text (Standard Webhooks 1.0.0, "Signature scheme").
const SECRET_PREFIX: &str = "whsec_";
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Bytes that a secret may have (Standard Webhooks 1.0.0, "Signature scheme").
const ALLOWED_SECRET_BYTES: RangeInclusive<usize> = 24..=64;

/// Time for which a secret signs after it was replaced.
pub const ROTATION_OVERLAP: Duration = Duration::from_hours(24);
/// The most secrets that sign: each adds a signature to every delivery.
pub const MAX_SIGNING_SECRETS: usize = 5;

/// An endpoint's number, by which an operator names it. It is not given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WebhookId(pub u32);

impl fmt::Display for WebhookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Address of an endpoint: a URL of the scheme `http` or `https` with a host and without
/// credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookUrl(String);

/// The text is not the address of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadWebhookUrl {
    /// It is too long.
    #[error("it is longer than {MAX_URL_CHARS} characters")]
    TooLong,
    /// It is not a URL.
    #[error("it is not a URL; give one such as https://app.example.com/webhooks")]
    NotAUrl,
    /// Its scheme is neither `http` nor `https`.
    #[error("its scheme is neither https nor http")]
    Scheme,
    /// It has a user name or a password, which lists would show.
    #[error("it has a user name or a password; deliveries are signed and need none")]
    Credentials,
    /// It has a fragment, which no client sends to a server.
    #[error("it has a fragment; leave out the # and what follows it")]
    Fragment,
}

impl WebhookUrl {
    /// Reads the text of a URL.
    pub fn parse(text: &str) -> Result<Self, BadWebhookUrl> {
        if text.len() > MAX_URL_CHARS {
            return Err(BadWebhookUrl::TooLong);
        }
        if text.contains('#') {
            return Err(BadWebhookUrl::Fragment);
        }
        let url: Uri = text.parse().map_err(|_| BadWebhookUrl::NotAUrl)?;
        match (url.scheme_str(), url.authority()) {
            (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
                Err(BadWebhookUrl::Credentials)
            }
            (Some("http" | "https"), Some(authority)) if !authority.host().is_empty() => {
                Ok(Self(text.to_owned()))
            }
            (Some("http" | "https") | None, _) => Err(BadWebhookUrl::NotAUrl),
            (Some(_), _) => Err(BadWebhookUrl::Scheme),
        }
    }

    /// The URL's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The URL's scheme, host and port. The rest is a secret at some receivers.
    pub fn origin(&self) -> &str {
        let authority = self.0.find("://").map_or(0, |at| at + "://".len());
        let end = self.0[authority..].find(['/', '?']).map_or(self.0.len(), |at| authority + at);
        &self.0[..end]
    }
}

/// The text is not the secret of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret is {SECRET_PREFIX} followed by 24 to 64 bytes in base64")]
pub struct BadSecret;

/// Secret that signs an endpoint's deliveries. Neither `Debug` nor a log shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Vec<u8>);

impl SigningSecret {
    /// A new secret over the operating system's random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut secret = vec![0; SECRET_BYTES];
        getrandom::fill(&mut secret)?;
        Ok(Self(secret))
    }

    /// Reads the text of a secret.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let secret = text.strip_prefix(SECRET_PREFIX).ok_or(BadSecret)?;
        let secret = STANDARD.decode(secret).map_err(|_| BadSecret)?;
        if ALLOWED_SECRET_BYTES.contains(&secret.len()) { Ok(Self(secret)) } else { Err(BadSecret) }
    }

    /// The secret with these bytes, as stored.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// The bytes, as they are stored and as they sign.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text for the application. Its owner is shown it only once.
    pub fn reveal(&self) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(&self.0))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(..)")
    }
}

/// Secret that was replaced and still signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedSecret {
    /// Secret that a newer one replaced.
    pub secret: SigningSecret,
    /// Time from which it does not sign any more.
    pub until: Timestamp,
}

/// Effect of a new secret on the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlierSecrets {
    /// They sign as well, for [`ROTATION_OVERLAP`].
    Sign,
    /// They stop signing now.
    End,
}

worded! {
    /// Form of the events that an endpoint receives.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum WebhookFormat {
        /// Events as in the feed, by Standard Webhooks.
        #[default]
        Standard = "standard",
        /// Events as Resend posts them, with its headers besides those of the standard.
        Resend = "resend",
    }
}

/// Endpoint of an organisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Number by which an operator names it.
    pub id: WebhookId,
    /// Organisation of the events.
    pub organisation: OrganisationId,
    /// URL that the events are posted to.
    pub url: WebhookUrl,
    /// Types of the events that it receives.
    pub types: FeedTypes,
    /// Form of the events.
    pub format: WebhookFormat,
    /// Certificates, as PEM, against which its own is checked; `None` for the system's roots.
    pub authority: Option<String>,
    /// Time at which it was added.
    pub created_at: Timestamp,
    /// Secret that signs deliveries.
    pub secret: SigningSecret,
    /// Secrets before that one that may still sign, the newest first.
    pub replaced: Vec<ReplacedSecret>,
    /// Delivery state: active or paused.
    pub state: WebhookState,
}

impl Webhook {
    /// Gives the endpoint a new secret. Earlier secrets sign for [`ROTATION_OVERLAP`] after the
    /// rotation that replaced them, the newest [`MAX_SIGNING_SECRETS`] of all; or they end now.
    pub fn rotate(&mut self, secret: SigningSecret, earlier: EarlierSecrets, now: Timestamp) {
        let secret = std::mem::replace(&mut self.secret, secret);
        match earlier {
            EarlierSecrets::Sign => {
                self.replaced.retain(|replaced| now < replaced.until);
                let until = now.plus(ROTATION_OVERLAP);
                self.replaced.insert(0, ReplacedSecret { secret, until });
                self.replaced.truncate(MAX_SIGNING_SECRETS - 1);
            }
            EarlierSecrets::End => self.replaced.clear(),
        }
    }

    /// The secrets that sign at `now`, the newest first.
    pub fn secrets(&self, now: Timestamp) -> impl Iterator<Item = &SigningSecret> {
        let replaced = self.replaced.iter().filter(move |replaced| now < replaced.until);
        std::iter::once(&self.secret).chain(replaced.map(|replaced| &replaced.secret))
    }
}

/// Delivery state of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookState {
    /// Its events are delivered.
    Active,
    /// Its events wait until an operator resumes it.
    Paused {
        /// Cause of the pause.
        by: PausedBy,
        /// Time of the pause.
        since: Timestamp,
    },
}

/// Cause of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PausedBy {
    /// An operator paused it.
    Operator,
    /// The endpoint answered 410 (Standard Webhooks 1.0.0, "Responding to webhooks").
    Endpoint,
}

/// Progress of an endpoint's deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebhookCursor {
    /// Generation of the cursor. It grows if an operator moves the cursor, so that deliveries that
    /// began before do not count.
    pub generation: u32,
    /// Every event up to here is delivered or waits for its next attempt.
    pub position: FeedPosition,
}

/// Failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The answer had this status.
    Status(u16),
    /// No answer came in time.
    TimedOut,
    /// The connection could not be made, or broke.
    Unreachable,
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Unreachable => f.write_str("not reachable"),
        }
    }
}

/// Delivery that failed at least once, or that an operator requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redelivery {
    /// Place of its event in the feed.
    pub position: FeedPosition,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Time of the last attempt, with its failure; `None` if an operator requested the delivery.
    pub last: Option<(Timestamp, AttemptFailure)>,
}

/// Delivery that waits for its next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingDelivery {
    /// Time of the next attempt.
    pub due: Timestamp,
    /// The delivery that waits.
    pub delivery: Redelivery,
}

impl WaitingDelivery {
    /// Its time and its event's position, which identify it.
    pub const fn key(&self) -> (Timestamp, FeedPosition) {
        (self.due, self.delivery.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_http_urls_without_credentials() {
        for text in [
            "https://app.example.com/webhooks?tenant=7",
            "http://127.0.0.1:8080",
            "http://[::1]:80/x",
            "https://localhost/",
        ] {
            assert_eq!(WebhookUrl::parse(text).unwrap().as_str(), text);
        }
        for (text, origin) in [
            ("https://app.example.com/webhooks?tenant=7", "https://app.example.com"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:80?x", "http://[::1]:80"),
            ("http://a/b/c", "http://a"),
        ] {
            assert_eq!(WebhookUrl::parse(text).unwrap().origin(), origin);
        }
        for (text, error) in [
            ("ftp://example.com/", BadWebhookUrl::Scheme),
            ("app.example.com", BadWebhookUrl::NotAUrl),
            ("/webhooks", BadWebhookUrl::NotAUrl),
            ("https://", BadWebhookUrl::NotAUrl),
            ("https:///x", BadWebhookUrl::NotAUrl),
            ("https://:443/x", BadWebhookUrl::NotAUrl),
            ("https://b\u{fc}cher.example/", BadWebhookUrl::NotAUrl),
            ("https://user:secret@example.com/", BadWebhookUrl::Credentials),
            ("https://example.com/#top", BadWebhookUrl::Fragment),
        ] {
            assert_eq!(WebhookUrl::parse(text), Err(error), "{text}");
        }
        let long = |chars| format!("{:a<chars$}", "https://example.com/");
        assert!(WebhookUrl::parse(&long(MAX_URL_CHARS)).is_ok());
        assert_eq!(WebhookUrl::parse(&long(MAX_URL_CHARS + 1)), Err(BadWebhookUrl::TooLong));
    }

    #[test]
    fn a_failed_attempt_says_why() {
        for (failure, text) in [
            (AttemptFailure::Status(503), "status 503"),
            (AttemptFailure::TimedOut, "no answer in time"),
            (AttemptFailure::Unreachable, "not reachable"),
        ] {
            assert_eq!(failure.to_string(), text);
        }
    }

    #[test]
    fn replaced_secrets_sign_for_a_day_and_at_most_five_sign() {
        let secret = |byte| SigningSecret::from_bytes(&[byte; SECRET_BYTES]);
        let noon = Timestamp::from_unix_millis(1_800_000_000_000);
        let mut webhook = Webhook {
            id: WebhookId(18),
            organisation: OrganisationId(1),
            url: WebhookUrl::parse("https://example.com").unwrap(),
            types: FeedTypes::ALL,
            format: WebhookFormat::Standard,
            authority: None,
            created_at: noon,
            secret: secret(0),
            replaced: Vec::new(),
            state: WebhookState::Active,
        };
        assert_eq!(webhook.id.to_string(), "18");
        let signing = |webhook: &Webhook, now| {
            webhook.secrets(now).map(|one| one.bytes()[0]).collect::<Vec<_>>()
        };
        let hours = |hours| noon.plus(Duration::from_hours(hours));
        for hour in 1..=5 {
            let byte = u8::try_from(hour).unwrap();
            webhook.rotate(secret(byte), EarlierSecrets::Sign, hours(hour));
        }
        assert_eq!(signing(&webhook, hours(5)), [5, 4, 3, 2, 1]);
        assert_eq!(signing(&webhook, hours(26)), [5, 4, 3, 2], "the first one's day is over");
        webhook.rotate(secret(6), EarlierSecrets::Sign, hours(27));
        assert_eq!(webhook.replaced.len(), 3, "those whose time is over are forgotten");
        webhook.rotate(secret(7), EarlierSecrets::End, hours(27));
        assert_eq!(signing(&webhook, hours(27)), [7]);
    }

    #[test]
    fn a_secret_has_the_standards_form_and_is_not_shown_in_debug() {
        let secret = SigningSecret::generate().unwrap();
        let text = secret.reveal();
        let bytes = STANDARD.decode(text.strip_prefix("whsec_").unwrap()).unwrap();
        assert!((24..=64).contains(&bytes.len()));
        assert_eq!(bytes, secret.bytes());
        assert_eq!(SigningSecret::parse(&text), Ok(secret.clone()));
        assert_eq!(format!("{secret:?}"), "SigningSecret(..)");
    }

    #[test]
    fn a_secret_has_24_to_64_bytes() {
        let parse = |bytes| {
            let text = SigningSecret::from_bytes(&vec![7; bytes]).reveal();
            SigningSecret::parse(&text).map(|secret| secret.bytes().len())
        };
        assert_eq!((parse(24), parse(64)), (Ok(24), Ok(64)));
        assert_eq!((parse(23), parse(65)), (Err(BadSecret), Err(BadSecret)));
        for text in ["", "whsec_", "whsec_?", &STANDARD.encode([7; 32])] {
            assert_eq!(SigningSecret::parse(text), Err(BadSecret), "{text}");
        }
    }
}
