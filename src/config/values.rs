//! Parsers of the values: each function reads a value or returns what is allowed.
//!
//! In a file a number is a number and a text a text; in the environment everything is text.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use config::ValueKind;
use http::{HeaderName, Uri};
use ipnet::IpNet;
use secrecy::SecretString;

use crate::error::Origin;
use crate::sources::Given;
use crate::{Capture, Engine, KeepBodies, MaxRate, OnUnknown, TrackingOverride};
use pillarbox_domain::webhook::{SigningSecret, WebhookUrl};
use pillarbox_runtime::proxy::{EnvironmentProxy, ProxyRule, ProxyServer};

/// The space for a Unix socket's path in the kernel's address, without the closing zero byte
/// (`unix(7)`).
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// The most host names of the operator listener.
const MAX_HOST_NAMES: usize = 16;
/// The most of the file of a secret that is read.
const MAX_SECRET_FILE_BYTES: u64 = 1_024;
/// The fewest characters of a password of operators.
const MIN_PASSWORD_CHARS: usize = 16;
/// The most networks of proxies.
const MAX_NETWORKS: usize = 64;

impl Given {
    fn text(&self) -> Option<&str> {
        match &self.value {
            ValueKind::String(text) => Some(text),
            _ => None,
        }
    }

    /// The text, if it comes from the environment and so may be another type's.
    fn variable_text(&self) -> Option<&str> {
        match self.origin {
            Origin::Variable(_) => self.text(),
            Origin::File(_) | Origin::Default => None,
        }
    }
}

/// A whole number within a range.
pub(super) fn whole(range: RangeInclusive<usize>) -> impl FnOnce(&Given) -> Result<usize, String> {
    move |given| {
        let number = match (&given.value, given.variable_text()) {
            (_, Some(text)) => text.parse().ok(),
            (ValueKind::I64(number), None) => usize::try_from(*number).ok(),
            _ => None,
        };
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
    }
}

/// A length of time over zero, with its unit.
pub(super) fn duration(longest: Duration) -> impl FnOnce(&Given) -> Result<Duration, String> {
    move |given| {
        let duration = given.text().and_then(|text| humantime::parse_duration(text).ok());
        duration.filter(|duration| !duration.is_zero() && *duration <= longest).ok_or_else(|| {
            let longest = humantime::format_duration(longest);
            format!(
                "a duration over zero and up to {longest}, in quotes and with its unit, such as \
                 \"30s\" or \"1m 30s\" (a bare number is not enough)"
            )
        })
    }
}

/// Reads `auto` or a number of recipients per second.
#[expect(clippy::cast_precision_loss, reason = "a rate past 2^53 a second is not told apart")]
pub(super) fn max_rate(given: &Given) -> Result<MaxRate, String> {
    let number = match (&given.value, given.variable_text()) {
        (ValueKind::String(text), _) if text == "auto" => return Ok(MaxRate::Auto),
        (_, Some(text)) => text.parse().ok(),
        (ValueKind::I64(number), None) => Some(*number as f64),
        (ValueKind::Float(number), None) => Some(*number),
        _ => None,
    };
    number
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0)
        .map(MaxRate::PerSecond)
        .ok_or_else(|| "\"auto\", or a number over zero, without quotes".to_owned())
}

/// Reads the step after a lost answer.
pub(super) fn on_unknown(given: &Given) -> Result<OnUnknown, String> {
    match given.text() {
        Some("retry") => Ok(OnUnknown::Retry),
        Some("fail") => Ok(OnUnknown::Fail),
        _ => Err("\"retry\" or \"fail\"".to_owned()),
    }
}

/// Reads an address to listen on; see [`listen_address`].
pub(super) fn socket_address(given: &Given) -> Result<SocketAddr, String> {
    given.text().and_then(listen_address).ok_or_else(|| {
        "an IP address or localhost, and a port, such as \"127.0.0.1:8025\" or \"[::1]:8025\""
            .to_owned()
    })
}

/// Reads an address to listen on: an IP address and a port. `localhost` means 127.0.0.1, the
/// address that clients try for it (RFC 6761, section 6.3, allows both loopback addresses). No
/// other name is taken: its resolution could give several addresses, or none at a start.
pub fn listen_address(text: &str) -> Option<SocketAddr> {
    if let Some((host, port)) = text.rsplit_once(':')
        && host.eq_ignore_ascii_case("localhost")
    {
        return Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().ok()?)));
    }
    text.parse().ok()
}

/// The texts of a list. A variable separates them by commas.
fn texts(given: &Given) -> Option<Vec<&str>> {
    match (&given.value, given.variable_text()) {
        (_, Some(text)) => Some(text.split(',').map(str::trim).collect()),
        (ValueKind::Array(values), None) => values
            .iter()
            .map(|value| match &value.kind {
                ValueKind::String(text) => Some(text.as_str()),
                _ => None,
            })
            .collect(),
        _ => None,
    }
}

/// Names of hosts, in lower case.
pub(super) fn host_names(given: &Given) -> Result<Vec<String>, String> {
    let names = texts(given);
    names
        .filter(|names| names.len() <= MAX_HOST_NAMES && names.iter().all(|name| is_host_name(name)))
        .map(|names| names.into_iter().map(str::to_ascii_lowercase).collect())
        .ok_or_else(|| {
            format!("a list of at most {MAX_HOST_NAMES} host names without ports, such as [\"pillarbox\"]")
        })
}

/// Networks, each as an IP address or in CIDR notation (RFC 4632, section 3.1).
pub(super) fn networks(given: &Given) -> Result<Vec<IpNet>, String> {
    let network = |text: &str| match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(address)),
        Err(_) => text.parse().ok(),
    };
    let networks = texts(given).filter(|texts| texts.len() <= MAX_NETWORKS);
    networks.and_then(|texts| texts.into_iter().map(network).collect()).ok_or_else(|| {
        format!(
            "a list of at most {MAX_NETWORKS} IP addresses or networks, such as [\"10.0.0.0/8\"]"
        )
    })
}

/// Returns true if a text is a host name (RFC 1123, section 2.1); container names have underscores
/// as well.
fn is_host_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let mut labels = text.split('.');
    text.len() <= 253
        && labels.all(|label| (1..=63).contains(&label.len()) && label.bytes().all(allowed))
}

pub(super) fn engine(given: &Given) -> Result<Engine, String> {
    match given.text() {
        Some("redb") => Ok(Engine::Redb),
        Some("postgres") => Ok(Engine::Postgres),
        _ => Err("\"redb\" or \"postgres\"".to_owned()),
    }
}

/// Hosts with their ports.
pub(super) fn servers(given: &Given) -> Result<Vec<(String, u16)>, String> {
    let server = |text: &str| {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_host = is_host_name(host) || host.parse::<std::net::IpAddr>().is_ok();
        Some((is_host.then(|| host.to_owned())?, port.parse().ok()?))
    };
    texts(given)
        .filter(|texts| (1..=MAX_HOST_NAMES).contains(&texts.len()))
        .and_then(|texts| texts.into_iter().map(server).collect())
        .ok_or_else(|| {
            format!("a list of 1 to {MAX_HOST_NAMES} hosts with ports, such as [\"db1:5432\"]")
        })
}

/// A name of a database, of its user or of a node.
pub(super) fn name(given: &Given) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let text = given.text().filter(|text| (1..=63).contains(&text.len()));
    text.filter(|text| text.bytes().all(allowed))
        .map(str::to_owned)
        .ok_or_else(|| "1 to 63 letters, digits, hyphens, underscores and dots".to_owned())
}

/// A path that a file or directory can have. The replacement character takes the place of bytes
/// that were not UTF-8: such a path is not the intended one.
pub(super) fn path(given: &Given) -> Result<PathBuf, String> {
    given
        .text()
        .filter(|text| !text.is_empty() && !text.contains(['\0', char::REPLACEMENT_CHARACTER]))
        .map(PathBuf::from)
        .ok_or_else(|| "a path in UTF-8".to_owned())
}

/// Address of a receiver of alerts.
pub(super) fn receiver_url(given: &Given) -> Result<WebhookUrl, String> {
    let allowed = "a URL such as \"https://hooks.example.com/pillarbox\"";
    let text = given.text().filter(|text| !text.contains('\0')).ok_or(allowed)?;
    WebhookUrl::parse(text).map_err(|error| format!("{allowed}; {error}"))
}

/// Path of a file with a secret that signs. Returns the secret.
pub(super) fn signing_secret(given: &Given) -> Result<SigningSecret, String> {
    let allowed = "the path of a file with a secret";
    let text = secret_text(given, allowed)?;
    // Some editors put a mark before it.
    SigningSecret::parse(text.trim_start_matches('\u{feff}').trim())
        .map_err(|rule| format!("{allowed}; {rule}"))
}

/// Path of a file with a password of operators. Returns the password.
pub(super) fn password(given: &Given) -> Result<SecretString, String> {
    let allowed =
        format!("the path of a file with a password of {MIN_PASSWORD_CHARS} characters or more");
    let text = secret_text(given, &allowed)?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.chars().count() < MIN_PASSWORD_CHARS {
        return Err(format!("{allowed}; the password in this file is shorter"));
    }
    Ok(password.into())
}

/// Text of the file at a path, which is not shown.
fn secret_text(given: &Given, allowed: &str) -> Result<String, String> {
    let path = path(given)?;
    let mut text = String::new();
    let read = File::open(&path);
    let read = read.and_then(|file| file.take(MAX_SECRET_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|error| format!("{allowed}; this one cannot be read: {error}"))?;
    Ok(text)
}

/// Name of a header.
pub(super) fn header_name(given: &Given) -> Result<HeaderName, String> {
    let read = given.text().and_then(|text| text.parse().ok());
    read.ok_or_else(|| "the name of a header, such as \"X-Forwarded-User\"".to_owned())
}

/// A path that a Unix socket can have.
pub(super) fn socket_path(given: &Given) -> Result<PathBuf, String> {
    path(given)
        .ok()
        .filter(|path| path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES)
        .ok_or_else(|| format!("a path in UTF-8 of at most {MAX_SOCKET_PATH_BYTES} bytes"))
}

/// A service's address on the web.
pub(super) fn url(given: &Given) -> Result<Uri, String> {
    given.text().and_then(parse_url).ok_or_else(|| {
        "an http or https URL with a host, and without user, query or fragment".to_owned()
    })
}

/// Proxy of calls for which this key says it.
pub(super) fn proxy(
    key: &'static str,
    environment: Option<&EnvironmentProxy>,
) -> impl FnOnce(&Given) -> Result<ProxyRule, String> {
    move |given| match given.text() {
        Some("none") => Ok(ProxyRule::Direct),
        Some("environment") => Ok(ProxyRule::of_environment(key, environment)),
        text => match ProxyServer::parse(text.unwrap_or_default()) {
            Ok(server) => Ok(ProxyRule::All { key, server }),
            Err(rule) => Err(format!(
                "a URL such as \"http://user:password@proxy.example.com:3128\", \"environment\" for \
                 HTTPS_PROXY and NO_PROXY, or \"none\"; {rule}"
            )),
        },
    }
}

fn parse_url(text: &str) -> Option<Uri> {
    // `Uri` drops a fragment without a word.
    let uri: Uri = (!text.contains('#')).then(|| text.parse().ok())??;
    let authority = uri.authority()?;
    // Neither a user nor a port out of range is left over beside these two.
    let plain = match authority.port_u16() {
        Some(port) => format!("{}:{port}", authority.host()),
        None => authority.host().to_owned(),
    };
    let is_plain = !authority.host().is_empty() && plain == authority.as_str();
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    (is_web && is_plain && uri.query().is_none()).then_some(uri)
}

/// An AWS region's name. It becomes part of host names.
pub(super) fn region(given: &Given) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    given
        .text()
        .filter(|text| (1..=63).contains(&text.len()) && text.bytes().all(allowed))
        .filter(|text| !text.starts_with('-') && !text.ends_with('-'))
        .map(str::to_owned)
        .ok_or_else(|| "an AWS region's name, such as \"eu-west-1\"".to_owned())
}

/// Reads the key that has the bodies of pending messages outlive the process.
pub(super) fn keep_bodies(given: &Given) -> Result<KeepBodies, String> {
    Ok(if flag(given)? { KeepBodies::Yes } else { KeepBodies::No })
}

pub(super) fn capture(given: &Given) -> Result<Capture, String> {
    Ok(if flag(given)? { Capture::Yes } else { Capture::No })
}

fn flag(given: &Given) -> Result<bool, String> {
    match (&given.value, given.variable_text()) {
        (ValueKind::Boolean(true), _) | (_, Some("true")) => Ok(true),
        (ValueKind::Boolean(false), _) | (_, Some("false")) => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

pub(super) fn tracking_override(given: &Given) -> Result<TrackingOverride, String> {
    match (&given.value, given.text(), given.variable_text()) {
        (ValueKind::Boolean(true), ..) | (.., Some("true")) => Ok(TrackingOverride::Always),
        (ValueKind::Boolean(false), ..) | (.., Some("false")) => Ok(TrackingOverride::Never),
        (_, Some("auto"), _) => Ok(TrackingOverride::Auto),
        _ => Err("true, \"auto\" or false".to_owned()),
    }
}

/// A configuration set's name, by the rule of SES's `CreateConfigurationSet`.
pub(super) fn configuration_set(given: &Given) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    given
        .text()
        .filter(|text| (1..=64).contains(&text.len()) && text.bytes().all(allowed))
        .map(str::to_owned)
        .ok_or_else(|| "1 to 64 characters of A-Z, a-z, 0-9, _ and -".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_the_loopback_and_no_other_name_is_an_address() {
        for text in ["localhost:8080", "LOCALHOST:8080", "127.0.0.1:8080"] {
            assert_eq!(
                listen_address(text),
                Some(SocketAddr::from(([127, 0, 0, 1], 8080))),
                "{text}"
            );
        }
        assert!(listen_address("[::1]:0").is_some());
        for text in
            ["localhost", "localhost:", "localhost:65536", "example.com:80", "8080", ":8080"]
        {
            assert_eq!(listen_address(text), None, "{text}");
        }
    }
}
