//! The running service: its socket, what it says of itself, and whether its listeners answer.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use pillarbox_admin::Status;
use pillarbox_admin::bodies::Bodies;
use pillarbox_admin::checks::Finding;
use pillarbox_admin::client::{Client, ConnectError};
use pillarbox_admin::conditions::Condition;
use pillarbox_admin::snapshot::StoreHealth;
use pillarbox_admin::status::{
    Certificate, Damaged, Provider, Sending, ServiceStatus, SessionStart, SmtpListener,
    SocketOpener,
};
use pillarbox_config::{self as config, Config};
use pillarbox_domain::time::Timestamp;
use pillarbox_operator::key::reached;
use pillarbox_runtime::clock::Clock;

const SERVICE: &str = "service";
const SOCKET: &str = "admin socket";
const LISTENER: &str = "client listener";
const RESEND_API: &str = "Resend-compatible listener";
const CERTIFICATE: &str = "certificate";
const SMTP: &str = "SMTP listener";
/// The bits that let the group or others in.
const NOT_OWNER: u32 = 0o077;
/// Time limit for the listener's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A request without a key: every pillarbox refuses it in the same way.
const PROBE: &[u8] = b"GET /emails/doctor HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const REFUSAL: &[u8] = b"HTTP/1.1 401 ";
/// Beginning of every pillarbox's SMTP greeting.
const GREETING: &str = "220 pillarbox ";
/// First byte of a TLS record with an alert (RFC 8446, section 5.1): the answer to what is no TLS.
const ALERT: u8 = 0x15;
/// Most bytes that are read of what a listener of SMTP says.
const MAX_SAID_BYTES: u64 = 4 * 1024;
/// Advice if a listener of SMTP is not as the configuration says.
const READ_AT_START: &str = "restart the service, which reads [smtp] and [tls] when it starts; \
                             then look at its log, and check what else listens there";

pub(super) async fn look(config: &Config) -> (Result<Client, ConnectError>, Vec<Finding>) {
    let path = &config.admin_socket;
    let client = match Client::connect_to(path, &config.data_dir).await {
        Ok(client) => client,
        Err(error) => {
            let finding = match &error {
                ConnectError::Absent { .. } | ConnectError::Refused { .. } => Finding::warning(
                    SERVICE,
                    format!("not running: {error}"),
                    "start it: pillarbox serve --config FILE. The checks of AWS below use the \
                     credentials of this shell",
                ),
                ConnectError::OtherService { .. } | ConnectError::Silent { .. } => {
                    let advice = "find out which service listens there, and correct admin_socket";
                    Finding::not_ok(SOCKET, error.to_string(), advice)
                }
                ConnectError::Denied { .. } | ConnectError::Other { .. } => {
                    let advice = "run this as the service's user or as root";
                    Finding::not_ok(SOCKET, error.to_string(), advice)
                }
            };
            return (Err(error), vec![finding]);
        }
    };
    let mut findings = vec![rights(config)];
    // What a supervisor has handed over may be another socket than the configuration names.
    let mut serves = (config.listen.port() != 0).then_some(config.listen);
    let mut serves_resend = config.resend_listen.filter(|address| address.port() != 0);
    let mut smtp_listeners = Vec::new();
    match client.call(&Status {}).await {
        Ok(status) => {
            findings.extend(status_findings(&status));
            serves = status.client_address.or(serves);
            serves_resend = status.resend_address.or(serves_resend);
            smtp_listeners = status.smtp_listeners;
        }
        Err(error) => {
            let advice = "see the service's log";
            findings.push(Finding::not_ok(SERVICE, error.to_string(), advice));
        }
    }
    if let Some(address) = serves {
        findings.push(finding(LISTENER, listener(address).await));
    }
    if let Some(address) = serves_resend {
        findings.push(finding(RESEND_API, listener(address).await));
    }
    // Of the socket that a supervisor has handed over, or else of the configuration.
    let smtp_address = |begins, configured: Option<SocketAddr>| {
        let is_its =
            |one: &&SmtpListener| one.begins == begins && one.opened_by == SocketOpener::Supervisor;
        let handed_over = smtp_listeners.iter().find(is_its).map(|one| one.address);
        handed_over.or(configured.filter(|address| address.port() != 0))
    };
    if let Some(address) = smtp_address(SessionStart::PlainText, config.smtp.listen) {
        findings.push(finding(SMTP, submission(address, config.tls.as_ref()).await));
    }
    if let Some(address) = smtp_address(SessionStart::Tls, config.smtp.tls_listen) {
        findings.push(finding(SMTP, submission_over_tls(address).await));
    }
    (Ok(client), findings)
}

fn rights(config: &Config) -> Finding {
    let path = config.admin_socket.display();
    match std::fs::symlink_metadata(&config.admin_socket) {
        Ok(found) => {
            let mode = found.permissions().mode() & 0o777;
            if mode & NOT_OWNER == 0 {
                Finding::ok(SOCKET, format!("{path}, mode {mode:04o}"))
            } else {
                let message = format!("{path} is open to others (mode {mode:04o})");
                let advice = "everyone who can open it can administer the service; restart the \
                              service, which creates the socket again with mode 0600";
                Finding::not_ok(SOCKET, message, advice)
            }
        }
        Err(error) => Finding::warning(SOCKET, format!("{path}: {error}"), "try again"),
    }
}

fn status_findings(status: &ServiceStatus) -> Vec<Finding> {
    let own = env!("CARGO_PKG_VERSION");
    let running = format!("version {} is running and answers", status.version);
    let mut findings = vec![if status.version == own {
        Finding::ok(SERVICE, running)
    } else {
        let message = format!("{running}; this is version {own}");
        Finding::warning(SERVICE, message, "restart the service")
    }];
    if status.store == StoreHealth::Refusing {
        let advice = "make room on the disk, or repair it; with PostgreSQL, check the database and \
                      the network to it. The store then continues automatically";
        findings.push(Finding::not_ok("store", "it refuses writes", advice));
    }
    if let Some((what, advice)) = status.store.file_loss() {
        findings.push(Finding::not_ok("data file", what, advice));
    }
    findings.extend(damaged(&status.damaged));
    findings.extend(status.certificate.iter().flat_map(certificate_findings));
    if let Some(jump) = &status.clock_jump {
        findings.push(Finding::not_ok(
            "clock",
            format!(
                "it {}. Since {} nothing has been purged and no idempotency key has expired",
                jump.explanation, jump.since
            ),
            "if it is wrong, set it (on PostgreSQL: the database's clock); if it is right, confirm \
             it: pillarbox clock confirm",
        ));
    }
    findings.extend(status.bodies.iter().map(bodies));
    let is_lowered = |one: &&Condition| one.code == "queue_lowered";
    let lowered = status.conditions.iter().filter(is_lowered);
    findings.extend(lowered.map(|one| Finding::warning("memory", &*one.message, &*one.advice)));
    findings.extend(status.sending.iter().flat_map(sending_findings));
    findings
}

/// Finding about the bodies of pending messages. In a trial or a container nothing keeps them, which
/// is no fault.
fn bodies(bodies: &Bodies) -> Finding {
    const ABOUT: &str = "bodies";
    let summary = bodies.summary();
    match &bodies.unreadable {
        Some(why) => Finding::warning(
            ABOUT,
            format!("{summary}. Those of an earlier process cannot be used: {why}"),
            "if they belong to another data directory, database or node, start the service with \
             the configuration of that directory, database or node, so that it sends their \
             messages; otherwise discard them: pillarbox bodies drop. Until then, the service \
             manager keeps no bodies of this process",
        ),
        None => Finding::ok(ABOUT, summary),
    }
}

/// Finding about rows that cannot be read.
pub(super) fn damaged(damaged: &Damaged) -> Option<Finding> {
    let Damaged { count, rows } = damaged;
    let first = rows.first()?;
    let message = format!(
        "{count} of its rows cannot be read, the first in table {}: {} ({})",
        first.table, first.id, first.reason
    );
    let advice = "see them with pillarbox status; check the disk, then restore a backup, or add the \
                  missing entries again";
    Some(Finding::not_ok("store", message, advice))
}

/// Findings about the certificate that clients are shown, over HTTPS and over SMTP.
fn certificate_findings(certificate: &Certificate) -> Vec<Finding> {
    let Certificate { expires_at, troubles } = certificate;
    let until = expires_at.as_deref().unwrap_or("an unknown time");
    if troubles.is_empty() {
        return vec![Finding::ok(CERTIFICATE, format!("in use, and valid until {until}"))];
    }
    let end = expires_at.as_deref().and_then(|end| Timestamp::parse_rfc3339(end).ok());
    let has_ended = end.is_some_and(|end| end <= Clock::system().now());
    let about = |trouble: &String| {
        let (what, advice) = trouble.split_once(". ").unwrap_or((trouble.as_str(), "renew it"));
        if has_ended {
            Finding::not_ok(CERTIFICATE, what, advice)
        } else {
            Finding::warning(CERTIFICATE, what, advice)
        }
    };
    troubles.iter().map(about).collect()
}

fn sending_findings(sending: &Sending) -> Vec<Finding> {
    const ADVICE: &str = "see pillarbox status, and the checks below";
    let mut findings = Vec::new();
    if let Provider::Impaired { message, .. } = &sending.provider {
        findings.push(Finding::not_ok("sending", format!("paused: {message}"), ADVICE));
    }
    for paused in &sending.paused_domains {
        let message = format!("paused for {}: {}", paused.domain, paused.message);
        findings.push(Finding::not_ok("sending", message, ADVICE));
    }
    findings
}

/// Problem with a listener, and what to do.
type Fault = (String, &'static str);

fn finding(about: &'static str, seen: Result<String, Fault>) -> Finding {
    match seen {
        Ok(message) => Finding::ok(about, message),
        Err((message, advice)) => Finding::not_ok(about, message, advice),
    }
}

/// Result of a check of a listener, or a fault if it takes longer than [`PATIENCE`].
async fn seen<T>(
    address: SocketAddr,
    advice: &'static str,
    look: impl Future<Output = io::Result<T>>,
) -> Result<T, Fault> {
    match timeout(PATIENCE, look).await {
        Ok(seen) => seen.map_err(|error| (format!("{address}: {error}"), advice)),
        Err(_) => Err((format!("{address} does not answer"), advice)),
    }
}

/// Checks that the client listener refuses a request without a key as pillarbox does.
async fn listener(address: SocketAddr) -> Result<String, Fault> {
    let probe = async {
        let mut stream = TcpStream::connect(reached(address)).await?;
        stream.write_all(PROBE).await?;
        let mut start = vec![0; REFUSAL.len()];
        stream.read_exact(&mut start).await?;
        Ok(start)
    };
    let advice = "see the service's log, and what else listens there";
    if seen(address, advice, probe).await? == REFUSAL {
        Ok(format!("{address} answers, and asks for a key"))
    } else {
        Err((format!("{address} answers, but not as pillarbox does"), advice))
    }
}

/// Checks that sessions begin in plain text as pillarbox's do, and that TLS is offered if there is
/// a certificate.
async fn submission(address: SocketAddr, tls: Option<&config::Tls>) -> Result<String, Fault> {
    let (greeting, extensions) = match seen(address, READ_AT_START, say_hello(address)).await {
        Ok(said) => said,
        // Who waits for the client to begin may speak TLS.
        Err(fault) => {
            return Err(match timeout(PATIENCE, first_byte(address)).await {
                Ok(Ok(ALERT)) => (
                    format!("smtp.listen = {address} speaks TLS from the first byte"),
                    "give that address as smtp.tls_listen, and restart the service",
                ),
                _ => fault,
            });
        }
    };
    if !greeting.starts_with(GREETING) {
        let greeting = greeting.trim_end();
        let message = format!("{address} answers, but not as pillarbox does: {greeting}");
        return Err((message, READ_AT_START));
    }
    let (wanted, taken, otherwise) = match tls {
        Some(_) => {
            ("STARTTLS", "after STARTTLS", "offers no STARTTLS, although there is a certificate")
        }
        None => ("AUTH ", "without TLS", "asks for STARTTLS, although [tls] is not given"),
    };
    let mut offered = extensions.lines().filter_map(|line| line.get(4..));
    if offered.any(|offered| offered.starts_with(wanted)) {
        Ok(format!("{address} answers, and takes submissions {taken}"))
    } else {
        Err((format!("{address} {otherwise}"), READ_AT_START))
    }
}

/// The lines that an SMTP listener sends to a new client: its greeting, and its reply to EHLO.
async fn say_hello(address: SocketAddr) -> io::Result<(String, String)> {
    let mut stream = TcpStream::connect(reached(address)).await?;
    let (read, mut write) = stream.split();
    let mut read = BufReader::new(read.take(MAX_SAID_BYTES));
    let greeting = reply(&mut read).await?;
    if !greeting.starts_with(GREETING) {
        return Ok((greeting, String::new()));
    }
    write.write_all(b"EHLO doctor\r\n").await?;
    Ok((greeting, reply(&mut read).await?))
}

/// Reads a reply of one line or several (RFC 5321, section 4.2.1).
async fn reply(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut reply = String::new();
    loop {
        let start = reply.len();
        stream.read_line(&mut reply).await?;
        match (reply.get(start..start + 4), reply.as_bytes().get(start + 3)) {
            (Some(_), Some(b'-')) => {}
            (Some(_), _) => return Ok(reply),
            (None, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Checks that sessions begin with TLS.
async fn submission_over_tls(address: SocketAddr) -> Result<String, Fault> {
    match seen(address, READ_AT_START, first_byte(address)).await? {
        ALERT => Ok(format!("{address} answers, and takes submissions over TLS")),
        // The first digit of a greeting.
        b'2' => Err((
            format!("smtp.tls_listen = {address} begins in plain text"),
            "give that address as smtp.listen, and restart the service",
        )),
        _ => Err((format!("{address} answers, but not as pillarbox does"), READ_AT_START)),
    }
}

/// The first byte of the answer to what is no TLS.
async fn first_byte(address: SocketAddr) -> io::Result<u8> {
    let mut stream = TcpStream::connect(reached(address)).await?;
    stream.write_all(b"NOOP\r\n").await?;
    stream.read_u8().await
}
