//! The running service: its socket, what it says of itself, and whether its listener answers.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::admin::checks::Finding;
use crate::admin::client::{Client, ConnectError};
use crate::admin::status::{Damaged, Provider, Sending, ServiceStatus, Status, StoreHealth};
use crate::config::Config;

const SERVICE: &str = "service";
const SOCKET: &str = "admin socket";
const LISTENER: &str = "client listener";
const SMTP: &str = "SMTP listener";
/// The bits that let the group or others in.
const NOT_OWNER: u32 = 0o077;
/// How long the listener may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A request without a key: every pillarbox refuses it alike.
const PROBE: &[u8] = b"GET /emails/doctor HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const REFUSAL: &[u8] = b"HTTP/1.1 401 ";
/// What every pillarbox says first over SMTP.
const GREETING: &[u8] = b"220 pillarbox ";
/// First byte of a TLS record with an alert (RFC 8446, section 5.1): the answer to what is no TLS.
const ALERT: &[u8] = b"\x15";

pub(super) async fn look(config: &Config) -> (Result<Client, ConnectError>, Vec<Finding>) {
    let path = &config.admin_socket;
    let client = match Client::connect_to(path, &config.data_dir).await {
        Ok(client) => client,
        Err(error @ (ConnectError::Absent { .. } | ConnectError::Refused { .. })) => {
            let message = format!("not running: {error}");
            let advice = "start it: pillarbox serve --config FILE. AWS is asked with the credentials \
                          of this shell";
            return (Err(error), vec![Finding::warning(SERVICE, message, advice)]);
        }
        Err(error @ (ConnectError::OtherService { .. } | ConnectError::Silent { .. })) => {
            let message = error.to_string();
            let advice = "see which service listens there, and correct admin_socket";
            return (Err(error), vec![Finding::not_ok(SOCKET, message, advice)]);
        }
        Err(error) => {
            let message = error.to_string();
            let advice = "run this as the service's user or as root";
            return (Err(error), vec![Finding::not_ok(SOCKET, message, advice)]);
        }
    };
    let mut findings = vec![rights(config)];
    // What a supervisor has handed over may be another socket than the configuration names.
    let mut serves = (config.listen.port() != 0).then_some(config.listen);
    match client.call(&Status {}).await {
        Ok(status) => {
            findings.extend(status_findings(&status));
            serves = status.client_address.or(serves);
        }
        Err(error) => {
            let advice = "see the service's log";
            findings.push(Finding::not_ok(SERVICE, error.to_string(), advice));
        }
    }
    if let Some(address) = serves {
        findings.push(listener(LISTENER, address, PROBE, REFUSAL, "asks for a key").await);
    }
    // What begins a session in plain text, and what answers nonsense as TLS does.
    let smtp =
        [(config.smtp.listen, &b""[..], GREETING), (config.smtp.tls_listen, b"NOOP\r\n", ALERT)];
    for (address, says, answers) in smtp {
        if let Some(address) = address.filter(|address| address.port() != 0) {
            findings.push(listener(SMTP, address, says, answers, "takes submissions").await);
        }
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
                let advice = "who may open it may administer; restart the service, which makes it \
                              anew with mode 0600";
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
        let advice = "make room on the disk, or repair it; the store then goes on by itself";
        findings.push(Finding::not_ok("store", "it refuses writes", advice));
    }
    if let Some((what, advice)) = status.store.file_loss() {
        findings.push(Finding::not_ok("data file", what, advice));
    }
    findings.extend(damaged(&status.damaged));
    if let Some(jump) = &status.clock_jump {
        findings.push(Finding::not_ok(
            "clock",
            format!(
                "it {}. Since {} nothing is purged and no idempotency key expires",
                jump.explanation, jump.since
            ),
            "set it right; if it is right, confirm it: pillarbox clock confirm",
        ));
    }
    findings.extend(status.sending.iter().flat_map(sending_findings));
    findings
}

/// What to say of rows that cannot be read.
pub(super) fn damaged(damaged: &Damaged) -> Option<Finding> {
    let Damaged { count, rows } = damaged;
    let first = rows.first()?;
    let message = format!(
        "{count} of its rows cannot be read, the first in table {}: {} ({})",
        first.table, first.id, first.reason
    );
    let advice = "see them with pillarbox status; check the disk, then restore a backup, or add \
                  again what is missing";
    Some(Finding::not_ok("data file", message, advice))
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

/// A listener on all addresses is reached on the machine's own.
fn reached(address: SocketAddr) -> SocketAddr {
    let mut reached = address;
    if address.ip().is_unspecified() {
        reached.set_ip(if address.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    reached
}

/// Looks whether a listener's answer to these first bytes begins as pillarbox's does; `good` says
/// what that shows.
async fn listener(
    check: &'static str,
    address: SocketAddr,
    says: &[u8],
    answers: &[u8],
    good: &str,
) -> Finding {
    let probe = async {
        let mut stream = TcpStream::connect(reached(address)).await?;
        stream.write_all(says).await?;
        let mut start = vec![0; answers.len()];
        stream.read_exact(&mut start).await?;
        std::io::Result::Ok(start)
    };
    let advice = "see the service's log, and what else listens there";
    match timeout(PATIENCE, probe).await {
        Ok(Ok(start)) if start == answers => {
            Finding::ok(check, format!("{address} answers, and {good}"))
        }
        Ok(Ok(_)) => {
            Finding::not_ok(check, format!("{address} answers, but not as pillarbox"), advice)
        }
        Ok(Err(error)) => Finding::not_ok(check, format!("{address}: {error}"), advice),
        Err(_) => Finding::not_ok(check, format!("{address} does not answer"), advice),
    }
}
