//! Access to the operators' page: it takes a key of this process alone, and a request that cannot
//! come from a foreign page.
//!
//! The key travels in the page's address behind `#`, which browsers do not send, and then in a
//! header of the page's own requests. A cookie would go to every other server on the same host, on
//! every port (RFC 6265 section 8.5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, Uri, Version};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Random key of the operators' page.
#[derive(Debug)]
pub struct PageKey(SecretString);

impl PageKey {
    /// A new key, of 256 random bits.
    fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes).into()))
    }

    /// A new key, with the address that opens the page on a listener.
    pub fn for_listener(listener: SocketAddr) -> Result<(Self, SecretString), getrandom::Error> {
        let key = Self::generate()?;
        let url = key.url(listener);
        Ok((key, url))
    }

    /// The address that opens the page on a listener.
    fn url(&self, listener: SocketAddr) -> SecretString {
        let address = reached(listener);
        format!("http://{address}/#{}", self.0.expose_secret()).into()
    }

    /// True if the request carries the key. Takes the same time for every difference.
    pub(super) fn opens(&self, headers: &HeaderMap) -> bool {
        let given = only(headers, &AUTHORIZATION).and_then(|text| text.strip_prefix("Bearer "));
        let key = self.0.expose_secret().as_bytes();
        given.is_some_and(|given| given.as_bytes().ct_eq(key).into())
    }

    /// Ticket that opens one caught message in a frame, or one of its files as a download, which
    /// cannot send the key in a header. It does not reveal the key, and opens nothing else.
    pub(super) fn ticket(&self, id: &str) -> String {
        let key = self.0.expose_secret().as_bytes();
        let parts = [key, id.as_bytes(), key];
        URL_SAFE_NO_PAD.encode(Sha256::digest(parts.concat()))
    }

    /// True if this ticket is for this message or file.
    pub(super) fn opens_with_ticket(&self, id: &str, ticket: &str) -> bool {
        ticket.as_bytes().ct_eq(self.ticket(id).as_bytes()).into()
    }
}

/// The address by which a listener is reached on its own machine.
pub fn reached(mut listener: SocketAddr) -> SocketAddr {
    listener.set_ip(match listener.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    });
    listener
}

/// The one value of a header, if it is text.
pub(super) fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

/// True if a request names this machine by an IP address, as `localhost` or by one of these names.
/// A foreign page whose name was pointed here (DNS rebinding) names itself. A request of HTTP/1.0
/// without Host, as some probes send it, is no browser's.
pub(super) fn is_direct(version: Version, headers: &HeaderMap, names: &[String]) -> bool {
    if version < Version::HTTP_11 && !headers.contains_key(HOST) {
        return true;
    }
    let host = only(headers, &HOST).and_then(|text| text.parse::<Uri>().ok());
    let Some(host) = host.as_ref().and_then(Uri::host) else { return false };
    let number = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || number.parse::<IpAddr>().is_ok()
        || names.iter().any(|name| host.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn only_the_whole_key_opens() {
        let key = PageKey::generate().unwrap();
        let text = key.0.expose_secret();
        assert!(key.opens(&headers(AUTHORIZATION, &format!("Bearer {text}"))));
        for other in [text.to_owned(), format!("Bearer {}", &text[1..]), "Bearer ".to_owned()] {
            assert!(!key.opens(&headers(AUTHORIZATION, &other)), "{other}");
        }
        assert!(!key.opens(&HeaderMap::new()));
        assert!(!PageKey::generate().unwrap().opens(&headers(AUTHORIZATION, text)));
    }

    #[test]
    fn a_ticket_opens_one_message_of_one_process() {
        let key = PageKey::generate().unwrap();
        let ticket = key.ticket("a");
        assert!(key.opens_with_ticket("a", &ticket));
        assert!(!key.opens_with_ticket("b", &ticket));
        assert!(!key.opens_with_ticket("a", ""));
        assert!(!PageKey::generate().unwrap().opens_with_ticket("a", &ticket));
        assert!(!key.opens(&headers(AUTHORIZATION, &format!("Bearer {ticket}"))));
    }

    #[test]
    fn a_name_that_somebody_can_point_here_is_not_direct() {
        for host in ["127.0.0.1:8026", "localhost", "LOCALHOST:1", "[::1]:8026", "10.0.0.7"] {
            assert!(is_direct(Version::HTTP_11, &headers(HOST, host), &[]), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:8026", "localhost.evil.example", ""] {
            for version in [Version::HTTP_10, Version::HTTP_11] {
                assert!(!is_direct(version, &headers(HOST, host), &[]), "{host}");
            }
        }
        assert!(is_direct(Version::HTTP_10, &HeaderMap::new(), &[]));
        assert!(!is_direct(Version::HTTP_11, &HeaderMap::new(), &[]));
    }

    #[test]
    fn a_name_that_the_operator_has_given_is_direct() {
        let names = ["pillarbox".to_owned()];
        let is_direct = |host| is_direct(Version::HTTP_11, &headers(HOST, host), &names);
        assert!(is_direct("pillarbox:8026") && is_direct("Pillarbox") && is_direct("127.0.0.1"));
        for host in ["pillarbox.evil.example:8026", "evil.example", "xpillarbox", "pillarbox@evil"]
        {
            assert!(!is_direct(host), "{host}");
        }
    }

    #[test]
    fn the_address_can_be_opened_where_every_address_is_listened_on() {
        let key = PageKey::generate().unwrap();
        let url = key.url("0.0.0.0:8026".parse().unwrap());
        assert!(url.expose_secret().starts_with("http://127.0.0.1:8026/#"));
        assert!(!format!("{key:?}").contains(key.0.expose_secret()));
    }
}
