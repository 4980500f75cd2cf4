//! API keys: made here, shown once, stored as a hash only.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::time::Timestamp;

const PREFIX: &str = "pb_";
/// 256 bits in unpadded base64url.
const SECRET_CHARS: usize = 43;
/// Time before the end of an API key at which operators are informed of it.
pub const EXPIRY_NOTICE: Duration = Duration::from_hours(7 * 24);

/// An API key in clear: `pb_` and 43 base64url characters (256 random bits).
///
/// Neither `Debug` nor a log shows it.
#[derive(Debug, Clone)]
pub struct ApiKey(SecretString);

/// The text does not have an API key's form.
#[derive(Debug, thiserror::Error)]
#[error("an API key is pb_ followed by 43 characters of A-Z, a-z, 0-9, _ and -")]
pub struct NotAnApiKey;

impl ApiKey {
    /// A new key over the operating system's random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
        Ok(Self(SecretString::from(text)))
    }

    /// Reads a key's text: `pb_` and 43 base64url characters.
    pub fn parse(text: &str) -> Result<Self, NotAnApiKey> {
        check(text)?;
        Ok(Self(SecretString::from(text)))
    }

    /// Hash that is stored and compared in the key's place. A fast hash is enough: 256 random bits
    /// cannot be guessed.
    pub fn hash(&self) -> ApiKeyHash {
        ApiKeyHash::of_valid(self.reveal())
    }

    /// The key in clear, which its owner is shown only once.
    pub fn reveal(&self) -> &str {
        self.0.expose_secret()
    }
}

/// SHA-256 of an API key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ApiKeyHash(pub [u8; 32]);

impl ApiKeyHash {
    /// The hash of a key's text. No copy of the text is made.
    pub fn of(text: &str) -> Result<Self, NotAnApiKey> {
        check(text)?;
        Ok(Self::of_valid(text))
    }

    fn of_valid(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

fn check(text: &str) -> Result<(), NotAnApiKey> {
    let secret = text.strip_prefix(PREFIX).ok_or(NotAnApiKey)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let is_key = secret.len() == SECRET_CHARS && secret.bytes().all(allowed);
    if is_key { Ok(()) } else { Err(NotAnApiKey) }
}

/// Time from which operators are informed that a key ends.
pub fn expiry_notice_at(created_at: Timestamp, expires_at: Timestamp) -> Timestamp {
    expires_at.minus(EXPIRY_NOTICE).max(created_at)
}

impl fmt::Debug for ApiKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKeyHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_reads_back_and_is_not_shown_in_debug() {
        let key = ApiKey::generate().unwrap();
        assert_eq!(ApiKey::parse(key.reveal()).unwrap().hash(), key.hash());
        assert_eq!(ApiKeyHash::of(key.reveal()).unwrap(), key.hash());
        assert!(!format!("{key:?}").contains(&key.reveal()[3..]));
    }

    #[test]
    fn other_forms_are_refused() {
        let good = format!("pb_{}", "A".repeat(43));
        assert!(ApiKey::parse(&good).is_ok());
        for bad in ["", "pb_", &good[..45], &format!("{good}A"), &good.replace("pb", "sk")] {
            assert!(ApiKey::parse(bad).is_err(), "{bad}");
            assert!(ApiKeyHash::of(bad).is_err(), "{bad}");
        }
        assert!(ApiKey::parse(&good.replacen('A', "=", 1)).is_err());
    }

    #[test]
    fn a_key_of_less_than_a_week_is_told_of_when_it_is_made() {
        const MADE: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
        let end = MADE.plus(Duration::from_hours(24 * 90));
        assert_eq!(expiry_notice_at(MADE, end), MADE.plus(Duration::from_hours(24 * 83)));
        assert_eq!(expiry_notice_at(MADE, MADE.plus(Duration::from_hours(1))), MADE);
    }
}
