//! Proxy of outgoing calls: its server, the addresses that it is for, and the meaning of an error
//! behind it.
//!
//! The HTTP client never reads the environment: everything that it does follows from a
//! [`ProxyRule`]. Neither `Debug` nor a message shows a user or a password. Knows nothing of the
//! callers and their purposes.

use std::fmt;
use std::sync::Arc;

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use percent_encoding::percent_decode_str;
use reqwest::{ClientBuilder, NoProxy, Proxy, Url};

/// Addresses that do not go through a proxy of the environment: this machine, and link-local
/// addresses, such as those of instance metadata.
const NEVER: &str = "localhost,127.0.0.0/8,::1,169.254.0.0/16,fe80::/10";
/// Names of the environment's variables. Of both spellings, the first one that is given counts.
const SERVER: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const EXCEPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Error of a call whose proxy refuses the user and the password, in the HTTP client's words.
pub const UNAUTHORIZED: &str = "tunnel error: proxy authorization required";

/// Proxy server, with its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyServer {
    /// Its URL, with user and password if it wants them.
    url: Arc<Url>,
}

/// The text is not the address of a proxy. It may hold a password, and is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadProxy {
    /// Its scheme is not `http`.
    #[error("the URL of a proxy must begin with http://: pillarbox calls proxies over plain HTTP")]
    Scheme,
    /// It is not a URL, or has more than a server's address in it.
    #[error(
        "the URL of a proxy is http:// with a host, a port and, if needed, a user and a password; \
         percent-encode characters such as @, :, / and # in them"
    )]
    NotAServer,
}

/// The environment names a proxy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the proxy in the environment variable {variable} cannot be used: {reason}; correct it, or \
     give {key}, with \"none\" for no proxy"
)]
pub struct UnusableProxy {
    /// Configuration key that counts instead.
    key: &'static str,
    variable: &'static str,
    reason: BadProxy,
}

/// Proxy that the environment names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentProxy {
    variable: &'static str,
    server: Result<ProxyServer, BadProxy>,
    /// Value of `NO_PROXY`.
    except: String,
}

/// Rule that assigns calls to a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProxyRule {
    /// No call goes through a proxy.
    #[default]
    Direct,
    /// All calls go through one proxy.
    All {
        /// Configuration key that names the proxy.
        key: &'static str,
        /// The proxy.
        server: ProxyServer,
    },
    /// Calls over `https` go through the proxy, except those to the excepted addresses.
    Environment {
        /// Configuration key that would count instead.
        key: &'static str,
        /// Server and exceptions of the environment.
        proxy: Arc<EnvironmentProxy>,
    },
}

impl ProxyServer {
    /// Reads `http://[user[:password]@]host[:port]`.
    pub fn parse(text: &str) -> Result<Self, BadProxy> {
        match text.split_once("://") {
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") => {}
            Some(_) => return Err(BadProxy::Scheme),
            None => return Err(BadProxy::NotAServer),
        }
        let url = Url::parse(text).map_err(|_| BadProxy::NotAServer)?;
        let is_server = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        // What an HTTP client cannot put into a header has to be found now.
        let is_text = |part: &str| percent_decode_str(part).decode_utf8().is_ok();
        let is_shown = is_text(url.username()) && url.password().is_none_or(is_text);
        // The HTTP client reads it as a URI.
        if is_server && is_shown && url.as_str().parse::<Uri>().is_ok() {
            Ok(Self { url: Arc::new(url) })
        } else {
            Err(BadProxy::NotAServer)
        }
    }
}

/// Without its user.
impl fmt::Display for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host_str().unwrap_or_default();
        write!(f, "http://{host}:{}", self.url.port_or_known_default().unwrap_or_default())
    }
}

impl fmt::Debug for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl EnvironmentProxy {
    /// Finds the proxy in the environment. A variable without a value counts as not set.
    pub fn find(environment: &[(String, String)]) -> Option<Self> {
        let find = |names: [&'static str; 2]| {
            names.into_iter().find_map(|wanted| {
                let is_wanted =
                    |(name, value): &&(String, String)| name == wanted && !value.is_empty();
                environment.iter().find(is_wanted).map(|(_, value)| (wanted, value.trim()))
            })
        };
        let (variable, text) = find(SERVER)?;
        // As other programs read the variable.
        let server = if text.contains("://") {
            ProxyServer::parse(text)
        } else {
            ProxyServer::parse(&format!("http://{text}"))
        };
        let except = find(EXCEPT).map(|(_, value)| value.to_owned()).unwrap_or_default();
        Some(Self { variable, server, except })
    }

    /// All exceptions, in the form of the HTTP client: `*.example.com` means `.example.com` to
    /// other programs, and some separate by spaces.
    fn exceptions(&self) -> String {
        let given = self.except.split([',', ' ']).map(|one| one.strip_prefix("*.").unwrap_or(one));
        given.fold(NEVER.to_owned(), |all, one| all + "," + one)
    }
}

impl ProxyRule {
    /// The rule of the environment, for calls for which this key may say otherwise.
    pub fn of_environment(key: &'static str, proxy: Option<&EnvironmentProxy>) -> Self {
        proxy
            .map_or(Self::Direct, |proxy| Self::Environment { key, proxy: Arc::new(proxy.clone()) })
    }

    /// Makes an HTTP client follow only this rule.
    pub fn apply(&self, client: ClientBuilder) -> Result<ClientBuilder, UnusableProxy> {
        let client = client.no_proxy();
        Ok(match self {
            Self::Direct => client,
            Self::All { server, .. } => client.proxy(accepted(Proxy::all((*server.url).clone()))),
            Self::Environment { key, proxy } => {
                let unusable = |&reason| UnusableProxy { key, variable: proxy.variable, reason };
                let server = proxy.server.as_ref().map_err(unusable)?;
                let except = NoProxy::from_string(&proxy.exceptions());
                client.proxy(accepted(Proxy::https((*server.url).clone())).no_proxy(except))
            }
        })
    }

    /// The server that a call to this URL goes through.
    fn server_for(&self, url: &str) -> Option<&ProxyServer> {
        match self {
            Self::Direct => None,
            Self::All { server, .. } => Some(server),
            Self::Environment { proxy, .. } => {
                let server = proxy.server.as_ref().ok()?;
                // The one that the HTTP client has as well.
                let matcher = Matcher::builder().https(server.url.as_str()).no(proxy.exceptions());
                matcher.build().intercept(&url.parse().ok()?).map(|_| server)
            }
        }
    }

    /// The proxy of calls to this URL with the source of its name; `None` if they go directly.
    pub fn proxy_for(&self, url: &str) -> Option<String> {
        self.server_for(url).map(|_| self.to_string())
    }

    /// Reason why a call to this URL that would go through the environment's proxy goes directly;
    /// `None` if there is no such reason.
    pub fn exception_for(&self, url: &str) -> Option<String> {
        match self {
            Self::Environment { proxy, .. } if self.server_for(url).is_none() => Some(format!(
                "{} does not apply to {url}, because it applies only to https, and never to this \
                 machine, link-local addresses or the hosts in NO_PROXY",
                proxy.variable
            )),
            _ => None,
        }
    }

    /// The error of a call to this URL, with the part that the proxy has in it.
    pub fn explained(&self, url: &str, error: String) -> String {
        let Some(proxy) = self.proxy_for(url) else { return error };
        let url: Option<Uri> = url.parse().ok();
        let host = url.as_ref().and_then(Uri::host).unwrap_or("the host");
        if error.contains(UNAUTHORIZED) {
            format!("{proxy} refuses the user and the password, or was given none (407)")
        } else if error.contains("tunnel error: unsuccessful") {
            format!(
                "{proxy} did not connect to {host}; check that it allows and reaches {host}, and \
                 check the user and the password"
            )
        } else if error.contains("tunnel error: unexpected end of file") {
            format!("{proxy} closed the connection; is it a proxy for HTTP?")
        } else {
            format!("{error}; the call goes through {proxy}")
        }
    }
}

/// The proxy, and the source of its name.
impl fmt::Display for ProxyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("no proxy"),
            Self::All { key, server } => write!(f, "the proxy {server} ({key})"),
            Self::Environment { proxy, .. } => {
                let variable = proxy.variable;
                match &proxy.server {
                    Ok(server) => write!(f, "the proxy {server} ({variable})"),
                    Err(reason) => write!(f, "no proxy, because of {variable}: {reason}"),
                }
            }
        }
    }
}

/// The server was found to be one when it was read.
fn accepted(proxy: reqwest::Result<Proxy>) -> Proxy {
    proxy.expect("a server's address is a proxy")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SES: &str = "https://email.eu-west-1.amazonaws.com/v2/email/account";

    fn rule(variables: &[(&str, &str)]) -> ProxyRule {
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        ProxyRule::of_environment("ses.proxy", EnvironmentProxy::find(&variables).as_ref())
    }

    #[test]
    fn a_server_is_a_plain_address_with_or_without_a_user() {
        for (text, shown) in [
            ("http://proxy.example.com:3128", "http://proxy.example.com:3128"),
            ("http://proxy.example.com:3128/", "http://proxy.example.com:3128"),
            ("HTTP://proxy", "http://proxy:80"),
            ("http://mail:secret@10.0.0.1:3128", "http://10.0.0.1:3128"),
            ("http://mail:p%40ss%3A%2F@[::1]:3128", "http://[::1]:3128"),
            ("http://mail@proxy:3128", "http://proxy:3128"),
        ] {
            let server = ProxyServer::parse(text).unwrap();
            assert_eq!((server.to_string(), format!("{server:?}")), (shown.into(), shown.into()));
        }
        for text in ["https://proxy:3128", "socks5://proxy:1080", "socks5h://u:secret@proxy:1080"] {
            assert_eq!(ProxyServer::parse(text), Err(BadProxy::Scheme), "{text}");
        }
        for text in [
            "",
            "proxy:3128",
            "http://",
            "http://proxy:port",
            "http://proxy:3128/path",
            "http://proxy:3128?a",
            "http://u:a#b@proxy:3128",
            "http://u:12/b@proxy:3128",
            "http://u:%ff@proxy:3128",
        ] {
            assert_eq!(ProxyServer::parse(text), Err(BadProxy::NotAServer), "{text}");
        }
    }

    #[test]
    fn the_environments_proxy_is_for_https_and_not_for_what_is_excepted() {
        let proxied = |rule: &ProxyRule, url: &str| rule.proxy_for(url).is_some();
        let alone = rule(&[("HTTPS_PROXY", "http://proxy:3128")]);
        assert!(proxied(&alone, SES));
        for url in [
            "http://email.eu-west-1.amazonaws.com/",
            "https://localhost:9100/",
            "https://127.3.4.5/",
            "https://[::1]:9100/",
            "https://169.254.169.254/latest",
            "https://[fe80::1]/",
        ] {
            assert!(!proxied(&alone, url) && alone.exception_for(url).is_some(), "{url}");
        }
        for (except, is_proxied) in [
            ("*", false),
            ("amazonaws.com", false),
            (".amazonaws.com", false),
            ("internal, *.amazonaws.com", false),
            ("internal email.eu-west-1.amazonaws.com", false),
            ("zonaws.com,10.0.0.0/8", true),
            ("", true),
        ] {
            let rule = rule(&[("https_proxy", "proxy:3128"), ("no_proxy", except)]);
            assert_eq!(proxied(&rule, SES), is_proxied, "{except}");
        }
        assert!(!proxied(
            &rule(&[("HTTPS_PROXY", "proxy"), ("NO_PROXY", "10.0.0.0/8")]),
            "https://10.1.2.3/"
        ));
        assert_eq!(
            rule(&[("HTTPS_PROXY", ""), ("HTTP_PROXY", "http://other:1")]),
            ProxyRule::Direct
        );
        let both = rule(&[("https_proxy", "http://lower:1"), ("HTTPS_PROXY", "http://upper:1")]);
        assert_eq!(both.proxy_for(SES).unwrap(), "the proxy http://upper:1 (HTTPS_PROXY)");
    }

    #[test]
    fn a_proxy_of_the_environment_that_cannot_be_used_is_named_without_its_password() {
        let rule = rule(&[("HTTPS_PROXY", "socks5://u:secret@proxy:1080")]);
        let error = rule.apply(reqwest::Client::builder()).unwrap_err().to_string();
        assert!(error.contains("HTTPS_PROXY") && error.contains("ses.proxy"), "{error}");
        assert!(!error.contains("secret") && !format!("{rule:?}").contains("secret"), "{error}");
    }
}
