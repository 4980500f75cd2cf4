//! Configuration: a TOML file and the environment become one typed [`Config`].
//!
//! Everything wrong is reported at once, also in the file of a secret. Nothing here binds anything,
//! and [`set_texts`] alone writes; the environment is a parameter, and [`environment`] alone asks
//! the process for it.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod edit;
mod error;
mod reader;
mod reference;
mod sources;
mod values;

use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, Uri};
use ipnet::IpNet;
use secrecy::{ExposeSecret as _, SecretString};

pub use self::edit::{EditError, set_texts};
pub use self::error::{ConfigError, Inconsistency, Origin, Problem, Problems};
use self::reader::Reader;
pub use self::reference::{DefaultOrExample, KeyReference, reference};
use self::sources::Overruled;
pub use self::values::listen_address;
pub use pillarbox_domain::attempt::TrackingOverride;
use pillarbox_domain::retry::Backoff;
use pillarbox_domain::webhook::{SigningSecret, WebhookUrl};
use pillarbox_runtime::proxy::{EnvironmentProxy, ProxyRule};

/// A file with every key, its default and what it means.
pub const EXAMPLE: &str = include_str!("example.toml");

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const GIB: usize = 1024 * MIB;
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

const DEFAULT_RETRY_INITIAL: Duration = Duration::from_secs(1);
const DEFAULT_RETRY_MAX: Duration = Duration::from_mins(5);

/// A client has an answer before most clients' own time-outs of 10 s.
const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
const DEFAULT_DEAD_AFTER: Duration = Duration::from_mins(3);
/// A node starts no call 20 s after its last beat; the rest is for clocks and scheduling.
const LEASE_MARGIN: Duration = Duration::from_secs(50);
/// Bytes of a request that extend the time limit of a call to the provider by one second.
const CALL_BYTES_PER_SECOND: usize = 512 * KIB;

/// Keys that name a proxy. Their values may hold a password.
const SES_PROXY: &str = "ses.proxy";
const WEBHOOKS_PROXY: &str = "webhooks.proxy";

/// SES takes messages up to 40 MB.
const LARGEST_REQUEST: usize = 40 * MIB;
/// Beyond any machine's memory; only there to catch a slip.
const LARGEST_BUDGET: usize = 1024 * GIB;
/// Number of requests of the largest size that a budget must hold. One organisation gets about half
/// of it, and the other half must have room for others.
const REQUESTS_IN_BUDGET: usize = 4;
/// The longest page of records is a few mebibytes.
const LEAST_WRITING: usize = 16 * MIB;
const LONGEST_CALL: Duration = Duration::from_mins(10);
/// Well within the 90 days for which a record is kept.
const LONGEST_RETRY: Duration = Duration::from_hours(30 * 24);

/// The whole configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the API.
    pub listen: SocketAddr,
    /// Address of the operators' page, the health checks and the metrics.
    pub operator_listen: SocketAddr,
    /// Host names of the operator listener besides its IP address and localhost, in lower case.
    pub operator_hosts: Vec<String>,
    /// Ways to sign in to the operators' page besides its key.
    pub operator_sign_in: OperatorSignIn,
    /// The directory of the data file.
    pub data_dir: PathBuf,
    /// The Unix socket of the administration commands.
    pub admin_socket: PathBuf,
    /// The largest request body, in bytes.
    pub max_request_bytes: usize,
    /// Client connections open at one time, of HTTP and SMTP together.
    pub max_connections: usize,
    /// Networks of proxies, whose addresses have no share of the connections without a key.
    pub trusted_proxies: Vec<IpNet>,
    /// Request bodies being read, in bytes, all connections together; at least four of
    /// `max_request_bytes`.
    pub max_reading_bytes: usize,
    /// Responses that clients have not read yet, in bytes, all connections together.
    pub max_writing_bytes: usize,
    /// TLS of the client listener; plain HTTP if it is not given.
    pub tls: Option<Tls>,
    /// Listeners of SMTP submission.
    pub smtp: Smtp,
    /// Address of the API in Resend's shape; `None` if it is off.
    pub resend_listen: Option<SocketAddr>,
    /// Rate, time limits and drain of sending.
    pub sending: Sending,
    /// Handling of test organisations.
    pub test: Test,
    /// Region, configuration set and events of Amazon SES.
    pub ses: Ses,
    /// Delivery to webhooks.
    pub webhooks: Webhooks,
    /// Receiver of alerts, if operators have one.
    pub alerts: Option<Alerts>,
    /// Engine that stores everything.
    pub store: StoreConfig,
}

/// Ways to sign in to the operators' page besides its key; none by default.
#[derive(Debug, Clone, Default)]
pub struct OperatorSignIn {
    /// Password, as it was read from its file.
    pub password: Option<SecretString>,
    /// Header in which a proxy names the person that it has signed in.
    pub user_header: Option<HeaderName>,
    /// Networks of the proxies whose header counts. The limits of connections know nothing of them.
    pub proxies: Vec<IpNet>,
}

/// Receiver of alerts (`alerts`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alerts {
    /// Address that alerts are posted to.
    pub url: WebhookUrl,
    /// Secret that signs, as it was read from its file.
    pub secret: SigningSecret,
}

/// Engine that stores everything: a data file of this node, or a database for several nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StoreConfig {
    /// A file in `data_dir`.
    #[default]
    Redb,
    /// A database on which several nodes work.
    Postgres(Postgres),
}

/// Name of what stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Redb,
    Postgres,
}

/// A database, and this node's place on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postgres {
    /// Hosts with their ports. The writable one is found.
    pub hosts: Vec<(String, u16)>,
    /// Name of the database.
    pub database: String,
    /// Name of the user.
    pub user: String,
    /// File with the user's password, if it needs one.
    pub password_file: Option<PathBuf>,
    /// Certificates, as PEM, that the server's own is checked against. TLS is off without them.
    pub ca_file: Option<PathBuf>,
    /// Time limit of a client's acceptance; after it the client gets 503.
    pub answer_timeout: Duration,
    /// This node's name; no other live node has it.
    pub node: String,
    /// Silence after which the other nodes take a node for dead.
    pub dead_after: Duration,
    /// The least that this may be for this node's own calls.
    pub least_dead_after: Duration,
}

/// Certificate and private key of the client listener: two files, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, followed by those of its issuers.
    pub certificate: PathBuf,
    /// File of its private key.
    pub key: PathBuf,
}

/// Listeners of SMTP submission; there is none if neither address is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Smtp {
    /// The address at which a session begins in plain text.
    pub listen: Option<SocketAddr>,
    /// The address at which a session begins with TLS.
    pub tls_listen: Option<SocketAddr>,
}

/// Sending to the provider (`sending`).
#[derive(Debug, Clone)]
pub struct Sending {
    /// Pending bodies in memory, in bytes; at least four of `max_request_bytes`.
    pub max_pending_bytes: usize,
    /// Calls to the provider under way at one time.
    pub max_in_flight: usize,
    /// Limit of recipients per second.
    pub max_rate: MaxRate,
    /// Time limit of one call.
    pub request_timeout: Duration,
    /// The delays between the attempts of one message.
    pub backoff: Backoff,
    /// The age at which a message that is not sent has failed.
    pub retry_for: Duration,
    /// Step after an attempt whose answer was lost.
    pub on_unknown: OnUnknown,
    /// Time for which a stopping process goes on sending.
    pub drain: Duration,
    /// Yes if the bodies of pending messages are to outlive the process.
    pub keep_bodies: KeepBodies,
}

/// Handling of test organisations (`test`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Test {
    /// Yes if the last messages of each are to be kept for the operators' page.
    pub capture: Capture,
}

/// Decision whether mail of test organisations is kept for the operators' page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Capture {
    /// It is, in memory.
    Yes,
    /// It is not kept.
    #[default]
    No,
}

/// Rate in recipients per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MaxRate {
    /// The rate that the provider allows the account.
    Auto,
    /// At most this; over zero and finite.
    PerSecond(f64),
}

/// Step after an attempt whose answer was lost, so that the provider may have accepted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// Another attempt: the message may be sent twice.
    Retry,
    /// The message fails: it may not be sent at all.
    Fail,
}

/// Decision whether the bodies of pending messages outlive the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepBodies {
    /// They do, if anything keeps them.
    Yes,
    /// They end with the process.
    No,
}

/// Amazon SES: region, configuration set and events (`ses`).
#[derive(Debug, Clone)]
pub struct Ses {
    /// AWS region, such as `eu-west-1`.
    pub region: String,
    /// An endpoint in place of the region's own: `http` or `https`, without query or user.
    pub endpoint: Option<Uri>,
    /// The configuration set that messages are sent with.
    pub configuration_set: Option<String>,
    /// Decision whether each request turns open and click tracking off for its message.
    pub tracking_override: TrackingOverride,
    /// Proxy of calls to AWS.
    pub proxy: ProxyRule,
    /// Source of delivery events.
    pub events: Events,
}

/// Delivery to webhooks (`webhooks`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Webhooks {
    /// Proxy of calls to endpoints, and to the receiver of alerts.
    pub proxy: ProxyRule,
}

/// Source of delivery events (`ses.events`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    /// The SQS queue to poll.
    pub queue_url: Option<Uri>,
}

/// The process's environment, for [`Config::load`]. Bytes that are not UTF-8 are replaced;
/// `std::env::vars` would panic.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    })
}

impl Config {
    /// Reads the file, if one is named, and the environment's `PILLARBOX_…` variables over it.
    pub fn load(
        path: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::load_and_compare(path, environment)?.0)
    }

    /// The same; and if the file names another `data_dir` or `admin_socket` than a variable, which
    /// wins, a text that says so: a stale variable of another service is easily overlooked. A file
    /// that has the default there names none, since packages and images bring such files.
    pub fn load_and_compare(
        path: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<(Self, Option<String>), ConfigError> {
        let environment: Vec<_> = environment.collect();
        let proxy = EnvironmentProxy::find(&environment);
        let (sources, overruled) = sources::merge(path, environment.into_iter())?;
        let mut reader = Reader::new(sources);
        let config = Self::read(&mut reader, proxy.as_ref());
        reader.finish()?;
        let differs = path.and_then(|path| config.overruled_place(path, &overruled));
        Ok((config, differs))
    }

    fn overruled_place(&self, path: &Path, overruled: &Overruled) -> Option<String> {
        let default = Self::default();
        let places = [
            ("data_dir", &self.data_dir, default.data_dir),
            ("admin_socket", &self.admin_socket, default.admin_socket),
        ];
        places.into_iter().find_map(|(key, used, default)| {
            let written = Path::new(overruled.get(key)?);
            (written != default && written != used).then(|| {
                let (variable, path) = (sources::variable(key), path.display());
                let (written, used) = (written.display(), used.display());
                format!("{key} is {written} in {path}, and the variable {variable} says {used}")
            })
        })
    }

    fn read(reader: &mut Reader, proxy: Option<&EnvironmentProxy>) -> Self {
        let default = Self::default();
        let max_request_bytes = reader.take(
            "max_request_bytes",
            default.max_request_bytes,
            values::whole(KIB..=LARGEST_REQUEST),
        );
        let tls = Tls::read(reader);
        let sending = Sending::read(reader, &default.sending, max_request_bytes);
        Self {
            listen: reader.take("listen", default.listen, values::socket_address),
            operator_listen: reader.take(
                "operator_listen",
                default.operator_listen,
                values::socket_address,
            ),
            operator_hosts: reader.take(
                "operator_hosts",
                default.operator_hosts,
                values::host_names,
            ),
            operator_sign_in: OperatorSignIn::read(reader),
            data_dir: reader.take("data_dir", default.data_dir, values::path),
            admin_socket: reader.take("admin_socket", default.admin_socket, values::socket_path),
            max_request_bytes,
            max_connections: reader.take(
                "max_connections",
                default.max_connections,
                values::whole(1..=1_000_000),
            ),
            trusted_proxies: reader.take(
                "trusted_proxies",
                default.trusted_proxies,
                values::networks,
            ),
            max_reading_bytes: read_budget(
                reader,
                "max_reading_bytes",
                default.max_reading_bytes,
                max_request_bytes,
            ),
            max_writing_bytes: reader.take(
                "max_writing_bytes",
                default.max_writing_bytes,
                values::whole(LEAST_WRITING..=LARGEST_BUDGET),
            ),
            smtp: Smtp::read(reader, tls.as_ref()),
            resend_listen: read_resend_listen(reader, tls.as_ref()),
            tls,
            test: Test {
                capture: reader.take("test.capture", default.test.capture, values::capture),
            },
            ses: Ses::read(reader, default.ses, proxy),
            webhooks: Webhooks {
                proxy: reader.take(
                    WEBHOOKS_PROXY,
                    ProxyRule::Direct,
                    values::proxy(WEBHOOKS_PROXY, proxy),
                ),
            },
            alerts: Alerts::read(reader),
            store: StoreConfig::read(reader, &sending, max_request_bytes),
            sending,
        }
    }
}

impl Tls {
    fn read(reader: &mut Reader) -> Option<Self> {
        let certificate = reader.take_optional("tls.certificate", values::path);
        let key = reader.take_optional("tls.key", values::path);
        match (certificate, key) {
            (Some(certificate), Some(key)) => Some(Self { certificate, key }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                let rule = "give both or neither: a certificate is of no use without its key";
                reader.inconsistent(&["tls.certificate", "tls.key"], rule);
                None
            }
        }
    }
}

/// Files without which keys would travel in clear.
const TLS_FILES: [&str; 2] = ["tls.certificate", "tls.key"];

fn read_resend_listen(reader: &mut Reader, tls: Option<&Tls>) -> Option<SocketAddr> {
    const KEY: &str = "resend_api.listen";
    let listen = reader.take_optional(KEY, values::socket_address)?;
    if tls.is_none() && !listen.ip().is_loopback() {
        let rule = "without a certificate, the Resend-compatible API may listen only on a \
                    loopback address, because API keys would be sent unencrypted; give \
                    tls.certificate and tls.key, or an address such as \"127.0.0.1:8028\"";
        reader.inconsistent(&[KEY, TLS_FILES[0], TLS_FILES[1]], rule);
    }
    Some(listen)
}

impl Smtp {
    fn read(reader: &mut Reader, tls: Option<&Tls>) -> Self {
        let smtp = Self {
            listen: reader.take_optional("smtp.listen", values::socket_address),
            tls_listen: reader.take_optional("smtp.tls_listen", values::socket_address),
        };
        if tls.is_none() {
            if smtp.listen.is_some_and(|address| !address.ip().is_loopback()) {
                let rule = "without a certificate, SMTP may listen only on a loopback address, \
                            because API keys would be sent unencrypted; give tls.certificate and \
                            tls.key, or an address such as \"127.0.0.1:587\"";
                reader.inconsistent(&["smtp.listen", TLS_FILES[0], TLS_FILES[1]], rule);
            }
            if smtp.tls_listen.is_some() {
                let rule = "TLS needs a certificate; give tls.certificate and tls.key";
                reader.inconsistent(&["smtp.tls_listen", TLS_FILES[0], TLS_FILES[1]], rule);
            }
        }
        smtp
    }
}

impl Sending {
    fn read(reader: &mut Reader, default: &Self, max_request_bytes: usize) -> Self {
        Self {
            max_pending_bytes: read_budget(
                reader,
                "sending.max_pending_bytes",
                default.max_pending_bytes,
                max_request_bytes,
            ),
            max_in_flight: reader.take(
                "sending.max_in_flight",
                default.max_in_flight,
                values::whole(1..=10_000),
            ),
            max_rate: reader.take("sending.max_rate", default.max_rate, values::max_rate),
            request_timeout: reader.take(
                "sending.request_timeout",
                default.request_timeout,
                values::duration(LONGEST_CALL),
            ),
            backoff: read_backoff(reader, default.backoff),
            retry_for: reader.take(
                "sending.retry_for",
                default.retry_for,
                values::duration(LONGEST_RETRY),
            ),
            on_unknown: reader.take("sending.on_unknown", default.on_unknown, values::on_unknown),
            drain: reader.take("sending.drain", default.drain, values::duration(HOUR)),
            keep_bodies: reader.take(
                "sending.keep_bodies",
                default.keep_bodies,
                values::keep_bodies,
            ),
        }
    }
}

/// A budget of bytes that is large enough for an organisation's share of it to take in requests of
/// the largest size.
fn read_budget(
    reader: &mut Reader,
    key: &'static str,
    default: usize,
    max_request_bytes: usize,
) -> usize {
    let budget = reader.take(key, default, values::whole(KIB..=LARGEST_BUDGET));
    let least = REQUESTS_IN_BUDGET * max_request_bytes;
    if budget < least {
        let rule = format!(
            "the budget must be at least {REQUESTS_IN_BUDGET} times the largest request, because \
             each organisation has only a share of it; raise {key} to {least} or lower \
             max_request_bytes"
        );
        reader.inconsistent(&[key, "max_request_bytes"], &rule);
    }
    budget
}

fn read_backoff(reader: &mut Reader, default: Backoff) -> Backoff {
    const KEYS: [&str; 2] = ["sending.retry_initial", "sending.retry_max"];
    let initial = reader.take(KEYS[0], DEFAULT_RETRY_INITIAL, values::duration(DAY));
    let max = reader.take(KEYS[1], DEFAULT_RETRY_MAX, values::duration(DAY));
    Backoff::try_new(initial, max).unwrap_or_else(|error| {
        reader.inconsistent(&KEYS, &error.to_string());
        default
    })
}

impl Ses {
    fn read(reader: &mut Reader, default: Self, proxy: Option<&EnvironmentProxy>) -> Self {
        Self {
            region: reader.take("ses.region", default.region, values::region),
            endpoint: reader.take_optional("ses.endpoint", values::url),
            configuration_set: reader
                .take_optional("ses.configuration_set", values::configuration_set),
            tracking_override: reader.take(
                "ses.tracking_override",
                default.tracking_override,
                values::tracking_override,
            ),
            proxy: reader.take(
                SES_PROXY,
                ProxyRule::of_environment(SES_PROXY, proxy),
                values::proxy(SES_PROXY, proxy),
            ),
            events: Events { queue_url: reader.take_optional("ses.events.queue_url", values::url) },
        }
    }
}

impl OperatorSignIn {
    fn read(reader: &mut Reader) -> Self {
        const KEYS: [&str; 2] = ["operator_user_header", "operator_trusted_proxies"];
        let password = reader.take_optional("operator_password_file", values::password);
        let user_header = reader.take_optional(KEYS[0], values::header_name);
        let proxies = reader.take(KEYS[1], Vec::new(), values::networks);
        if user_header.is_some() && proxies.is_empty() {
            reader.inconsistent(
                &KEYS,
                "pillarbox accepts the header only from these proxies: list them",
            );
        }
        Self { password, user_header, proxies }
    }
}

impl PartialEq for OperatorSignIn {
    fn eq(&self, other: &Self) -> bool {
        let password = |one: &Self| one.password.as_ref().map(|it| it.expose_secret().to_owned());
        password(self) == password(other)
            && (&self.user_header, &self.proxies) == (&other.user_header, &other.proxies)
    }
}

impl Alerts {
    fn read(reader: &mut Reader) -> Option<Self> {
        const KEYS: [&str; 2] = ["alerts.url", "alerts.secret_file"];
        let url = reader.take_optional(KEYS[0], values::receiver_url);
        let secret = reader.take_optional(KEYS[1], values::signing_secret);
        match (url, secret) {
            (Some(url), Some(secret)) => Some(Self { url, secret }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                let rule = "give both or neither: each post is signed";
                reader.inconsistent(&KEYS, rule);
                None
            }
        }
    }
}

impl StoreConfig {
    fn read(reader: &mut Reader, sending: &Sending, max_request_bytes: usize) -> Self {
        const HOSTS: &str = "store.postgres.hosts";
        let engine = reader.take("store.engine", Engine::Redb, values::engine);
        let local = || vec![("127.0.0.1".to_owned(), 5432)];
        let hosts = reader.take_optional(HOSTS, values::servers).unwrap_or_else(local);
        let named = || "pillarbox".to_owned();
        let mut postgres = Postgres {
            database: reader.take("store.postgres.database", named(), values::name),
            user: reader.take("store.postgres.user", named(), values::name),
            password_file: reader.take_optional("store.postgres.password_file", values::path),
            ca_file: reader.take_optional("store.postgres.ca_file", values::path),
            answer_timeout: reader.take(
                "store.postgres.answer_timeout",
                DEFAULT_ANSWER_TIMEOUT,
                values::duration(MINUTE),
            ),
            node: reader.take("cluster.node", String::new(), values::name),
            dead_after: reader.take(
                "cluster.dead_after",
                DEFAULT_DEAD_AFTER,
                values::duration(HOUR),
            ),
            least_dead_after: Duration::ZERO,
            hosts,
        };
        if engine == Engine::Redb {
            return Self::Redb;
        }
        if postgres.node.is_empty() {
            let rule = "each node on one database needs its own name; give cluster.node";
            reader.inconsistent(&["store.engine", "cluster.node"], rule);
        }
        let is_here = |host: &String| {
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        };
        if postgres.ca_file.is_none() && !postgres.hosts.iter().all(|(host, _)| is_here(host)) {
            let rule = "without a certificate, the server must be on this machine, because \
                        recipients and subjects would be unencrypted; give store.postgres.ca_file";
            reader.inconsistent(&[HOSTS, "store.postgres.ca_file"], rule);
        }
        let upload = max_request_bytes.div_ceil(3) * 4 / CALL_BYTES_PER_SECOND;
        let call = sending.request_timeout + Duration::from_secs(upload as u64);
        postgres.least_dead_after = LEASE_MARGIN + call;
        if postgres.dead_after < postgres.least_dead_after {
            let least = humantime::format_duration(postgres.least_dead_after);
            let rule = format!(
                "a node may be treated as dead only when none of its calls can still be under way; \
                 raise cluster.dead_after to {least}; a shorter sending.request_timeout or a smaller \
                 max_request_bytes lowers this minimum"
            );
            reader.inconsistent(&["cluster.dead_after", "sending.request_timeout"], &rule);
        }
        Self::Postgres(postgres)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8025)),
            operator_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8026)),
            operator_hosts: Vec::new(),
            operator_sign_in: OperatorSignIn::default(),
            data_dir: PathBuf::from("/var/lib/pillarbox"),
            admin_socket: PathBuf::from("/run/pillarbox/admin.sock"),
            max_request_bytes: 10 * MIB,
            max_connections: 10_000,
            trusted_proxies: Vec::new(),
            max_reading_bytes: 256 * MIB,
            max_writing_bytes: 256 * MIB,
            tls: None,
            smtp: Smtp::default(),
            resend_listen: None,
            sending: Sending::default(),
            test: Test::default(),
            ses: Ses::default(),
            webhooks: Webhooks::default(),
            alerts: None,
            store: StoreConfig::Redb,
        }
    }
}

impl Default for Sending {
    fn default() -> Self {
        Self {
            max_pending_bytes: GIB,
            max_in_flight: 256,
            max_rate: MaxRate::Auto,
            request_timeout: Duration::from_secs(10),
            backoff: Backoff::try_new(DEFAULT_RETRY_INITIAL, DEFAULT_RETRY_MAX)
                .expect("a second is less than five minutes"),
            retry_for: Duration::from_hours(12),
            on_unknown: OnUnknown::Retry,
            drain: MINUTE,
            keep_bodies: KeepBodies::Yes,
        }
    }
}

impl Default for Ses {
    fn default() -> Self {
        Self {
            region: "eu-west-1".to_owned(),
            endpoint: None,
            configuration_set: None,
            tracking_override: TrackingOverride::default(),
            proxy: ProxyRule::Direct,
            events: Events { queue_url: None },
        }
    }
}

#[cfg(test)]
mod tests;
