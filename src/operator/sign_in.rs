//! Sign-in of operators that outlives the process, beside the page's key: by a password, which is
//! answered with a cookie, or by a header of a proxy that has signed them in. Both are off by default.
//!
//! The page changes nothing, so a person who is signed in may read it and no more. A sign-in is
//! taken only if others on the network cannot read it: over TLS, which a proxy of
//! `operator_trusted_proxies` speaks and says so, or from this machine. The cookie is computed from
//! the password and holds its own end, so that it is still valid after a restart.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{COOKIE, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::key::only;
use pillarbox_config::OperatorSignIn;
use pillarbox_domain::time::Timestamp;

/// Duration of a sign-in by password.
const LASTS: Duration = Duration::from_hours(7 * 24);
/// Limit of password tries in a minute, over all clients.
const TRIES: usize = 10;
const TRIES_PERIOD: Duration = Duration::from_mins(1);
/// Rounds by which the key of cookies is made from the password (RFC 8018, section 5.2), so that
/// the owner of a cookie cannot try many passwords.
const ROUNDS: u32 = 20_000;
/// Salt of that key: one password has one key, before a restart and after it.
const SALT: &[u8] = b"pillarbox operators' page";
const COOKIE_NAME: &str = "pillarbox-page";
/// A browser accepts a cookie of such a name only from this host, over TLS (RFC 6265bis, section
/// 4.1.3.2).
const SECURE_COOKIE_NAME: &str = "__Host-pillarbox-page";

type Seal = Hmac<Sha256>;

/// Ways to sign in besides the page's key.
#[derive(Debug)]
pub(super) struct SignIn {
    ways: OperatorSignIn,
    /// Key of the cookies; `None` without a password.
    key: Option<[u8; 32]>,
    /// Times of wrong passwords.
    tries: Mutex<VecDeque<Instant>>,
}

/// Way of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    /// By a proxy to which its client speaks TLS.
    Tls,
    /// Connection from this machine.
    Loopback,
    /// Over a network on which others may read.
    Open,
}

/// Reason why a person is not signed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotSignedIn {
    /// There is no password, or it must not come this way.
    NotOffered,
    /// The request came from another page.
    ForeignOrigin,
    WrongPassword,
    TooManyTries,
}

impl NotSignedIn {
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::NotOffered => {
                "a password is accepted only if operator_password_file is set, and only from this \
                 machine or over TLS through a proxy in operator_trusted_proxies"
            }
            Self::ForeignOrigin => "the request came from another page",
            Self::WrongPassword => "the password is wrong",
            Self::TooManyTries => "too many wrong passwords; try again in a minute",
        }
    }
}

impl SignIn {
    pub(super) fn new(ways: OperatorSignIn) -> Self {
        let key = ways.password.as_ref().map(key_of);
        Self { ways, key, tries: Mutex::default() }
    }

    /// Returns true if a password may be given by requests like this one.
    pub(super) fn offers_password(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> bool {
        self.key.is_some() && self.transport(headers, peer) != Transport::Open
    }

    /// Returns true if the request is from a person who is signed in.
    pub(super) fn opens(&self, headers: &HeaderMap, peer: Option<IpAddr>, now: Timestamp) -> bool {
        let transport = self.transport(headers, peer);
        if transport == Transport::Open || !is_of_this_page(headers, transport) {
            return false;
        }
        self.is_signed_in_by_proxy(headers, peer) || self.has_cookie(headers, transport, now)
    }

    /// Takes a password. Returns the cookie that the browser is to keep.
    pub(super) fn sign_in(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
        password: &str,
        now: Timestamp,
    ) -> Result<HeaderValue, NotSignedIn> {
        let (Some(wanted), Some(key), transport @ (Transport::Tls | Transport::Loopback)) =
            (&self.ways.password, &self.key, self.transport(headers, peer))
        else {
            return Err(NotSignedIn::NotOffered);
        };
        if !(headers.contains_key(ORIGIN) && is_of_this_page(headers, transport)) {
            return Err(NotSignedIn::ForeignOrigin);
        }
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        while tries.front().is_some_and(|at| at.elapsed() >= TRIES_PERIOD) {
            tries.pop_front();
        }
        if tries.len() >= TRIES {
            return Err(NotSignedIn::TooManyTries);
        }
        // Digests, so that the time does not depend on the length.
        let digest = |text: &str| Sha256::digest(text.as_bytes());
        if !bool::from(digest(password).ct_eq(&digest(wanted.expose_secret()))) {
            tries.push_back(Instant::now());
            return Err(NotSignedIn::WrongPassword);
        }
        let end = now.plus(LASTS).unix_millis() / 1_000;
        let value = format!("{end}.{}", URL_SAFE_NO_PAD.encode(seal(key, end)));
        Ok(set_cookie(transport, &value, LASTS))
    }

    /// Returns what makes the browser forget its cookie.
    pub(super) fn sign_out(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> HeaderValue {
        set_cookie(self.transport(headers, peer), "", Duration::ZERO)
    }

    fn is_proxy(&self, peer: Option<IpAddr>) -> bool {
        let peer = peer.map(|peer| peer.to_canonical());
        peer.is_some_and(|peer| self.ways.proxies.iter().any(|network| network.contains(&peer)))
    }

    fn transport(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Transport {
        const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
        if self.is_proxy(peer) {
            // A proxy on this machine may have clients elsewhere.
            return match only(headers, &FORWARDED_PROTO) {
                Some(scheme) if scheme.eq_ignore_ascii_case("https") => Transport::Tls,
                _ => Transport::Open,
            };
        }
        match peer {
            Some(peer) if peer.to_canonical().is_loopback() => Transport::Loopback,
            _ => Transport::Open,
        }
    }

    /// Returns true if a proxy names the person. The header of every other client is ignored.
    fn is_signed_in_by_proxy(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> bool {
        let Some(name) = &self.ways.user_header else { return false };
        self.is_proxy(peer) && only(headers, name).is_some_and(|user| !user.trim().is_empty())
    }

    fn has_cookie(&self, headers: &HeaderMap, transport: Transport, now: Timestamp) -> bool {
        let Some(key) = &self.key else { return false };
        let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut values = all.flat_map(|text| text.split("; ")).filter_map(|pair| {
            pair.strip_prefix(cookie_name(transport))?.strip_prefix('=')?.split_once('.')
        });
        values.any(|(end, given)| {
            let Ok(end) = end.parse::<u64>() else { return false };
            let Ok(given) = URL_SAFE_NO_PAD.decode(given) else { return false };
            now.unix_millis() / 1_000 < end && bool::from(given.ct_eq(&seal(key, end)))
        })
    }
}

/// Returns false if the browser says that another page makes the request. Pages on other ports of this
/// host count as others, although the browser sends the cookie with their requests.
fn is_of_this_page(headers: &HeaderMap, transport: Transport) -> bool {
    const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let scheme = if transport == Transport::Tls { "https" } else { "http" };
    let own = only(headers, &HOST).map(|host| format!("{scheme}://{host}"));
    let is_own = headers.get(ORIGIN).is_none_or(|_| only(headers, &ORIGIN) == own.as_deref());
    let site = only(headers, &FETCH_SITE);
    is_own && site.is_none_or(|site| matches!(site, "same-origin" | "none"))
}

const fn cookie_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tls => SECURE_COOKIE_NAME,
        Transport::Loopback | Transport::Open => COOKIE_NAME,
    }
}

fn set_cookie(transport: Transport, value: &str, lasts: Duration) -> HeaderValue {
    let (name, seconds) = (cookie_name(transport), lasts.as_secs());
    let secure = if transport == Transport::Tls { "; Secure" } else { "" };
    let text =
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(text).expect("names, numbers and base64 are printable ASCII")
}

fn key_of(password: &SecretString) -> [u8; 32] {
    pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password.expose_secret().as_bytes(), SALT, ROUNDS)
}

fn seal(key: &[u8; 32], end: u64) -> [u8; 32] {
    let mut mac = Seal::new_from_slice(key).expect("a key of any length is taken");
    mac.update(&end.to_be_bytes());
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "a password that nobody guesses";
    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
    const HERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    const PROXY: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3)));
    const ELSEWHERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));

    fn sign_in() -> SignIn {
        SignIn::new(OperatorSignIn {
            password: Some(PASSWORD.into()),
            user_header: Some(HeaderName::from_static("x-forwarded-user")),
            proxies: vec!["10.0.0.0/8".parse().unwrap()],
        })
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter().chain(&[("host", "page.example")]);
        fields
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    const LOCAL_ORIGIN: (&str, &str) = ("origin", "http://page.example");

    #[test]
    fn a_password_gives_a_cookie_that_opens_after_a_restart_and_ends() {
        let cookie = sign_in().sign_in(&headers(&[LOCAL_ORIGIN]), HERE, PASSWORD, NOON).unwrap();
        let text = cookie.to_str().unwrap();
        assert!(text.contains("; HttpOnly; SameSite=Strict") && !text.contains("Secure"), "{text}");
        let pair = text.split(';').next().unwrap();
        let with = |pair: &str| headers(&[("cookie", &format!("other=1; {pair}"))]);
        let another = sign_in();
        assert!(another.opens(&with(pair), HERE, NOON));
        let later = |by| another.opens(&with(pair), HERE, NOON.plus(by));
        assert!(later(LASTS.checked_sub(Duration::from_secs(1)).unwrap()) && !later(LASTS));
        assert!(!another.opens(&with(pair), ELSEWHERE, NOON), "others could have read it");
        let (name, value) = pair.split_once('=').unwrap();
        let end: u64 = value.split_once('.').unwrap().0.parse().unwrap();
        let longer = value.replace(&end.to_string(), &(end + 1).to_string());
        assert!(!another.opens(&with(&format!("{name}={longer}")), HERE, NOON));
        let other =
            SignIn::new(OperatorSignIn { password: Some("other".into()), ..sign_in().ways });
        assert!(!other.opens(&with(pair), HERE, NOON), "another password ends all sign-ins");
    }

    #[test]
    fn a_password_is_taken_over_tls_or_from_this_machine_and_from_this_page_alone() {
        let sign_in = sign_in();
        let tls = headers(&[("x-forwarded-proto", "https"), ("origin", "https://page.example")]);
        let cookie = sign_in.sign_in(&tls, PROXY, PASSWORD, NOON).unwrap();
        assert!(cookie.to_str().unwrap().starts_with(SECURE_COOKIE_NAME));
        assert!(cookie.to_str().unwrap().ends_with("; Secure"));
        let refused = |fields: &[_], peer| {
            sign_in.sign_in(&headers(fields), peer, PASSWORD, NOON).unwrap_err()
        };
        let plain = ("x-forwarded-proto", "http");
        assert_eq!(refused(&[plain, LOCAL_ORIGIN], PROXY), NotSignedIn::NotOffered);
        let told = ("x-forwarded-proto", "https");
        assert_eq!(refused(&[told, LOCAL_ORIGIN], ELSEWHERE), NotSignedIn::NotOffered);
        assert_eq!(refused(&[], HERE), NotSignedIn::ForeignOrigin);
        let other = ("origin", "http://page.example:8080");
        assert_eq!(refused(&[other], HERE), NotSignedIn::ForeignOrigin);
        let cross = ("sec-fetch-site", "same-site");
        assert_eq!(refused(&[LOCAL_ORIGIN, cross], HERE), NotSignedIn::ForeignOrigin);
    }

    #[test]
    fn ten_wrong_passwords_a_minute_are_enough() {
        let sign_in = sign_in();
        let try_one =
            |password| sign_in.sign_in(&headers(&[LOCAL_ORIGIN]), HERE, password, NOON).map(|_| ());
        for _ in 0..TRIES {
            assert_eq!(try_one("wrong"), Err(NotSignedIn::WrongPassword));
        }
        assert_eq!(try_one(PASSWORD), Err(NotSignedIn::TooManyTries));
    }

    #[test]
    fn a_header_signs_in_from_a_proxy_alone() {
        let sign_in = sign_in();
        let user = ("x-forwarded-user", "ann");
        let tls = ("x-forwarded-proto", "https");
        assert!(sign_in.opens(&headers(&[user, tls]), PROXY, NOON));
        for (fields, peer) in [
            (&[user, tls][..], ELSEWHERE),
            (&[user, tls], HERE),
            (&[user, tls], None),
            (&[user], PROXY),
            (&[tls, ("x-forwarded-user", " ")], PROXY),
            (&[tls, user, ("x-forwarded-user", "bob")], PROXY),
            (&[tls, user, ("origin", "https://other.example")], PROXY),
        ] {
            assert!(!sign_in.opens(&headers(fields), peer, NOON), "{fields:?} from {peer:?}");
        }
        let nothing = SignIn::new(OperatorSignIn::default());
        assert!(!nothing.opens(&headers(&[user, tls]), PROXY, NOON), "it is off by default");
        assert!(!nothing.offers_password(&headers(&[]), HERE));
    }
}
