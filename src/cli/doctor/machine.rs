//! Checks of this machine: the configuration, the data directory and the data file.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::connect;
use crate::doctor::socket::damaged;
use crate::error::CliError;
use pillarbox_admin::checks::Finding;
use pillarbox_admin::checks::database::findings;
use pillarbox_admin::domain::Domain;
use pillarbox_admin::{Admin, Call, DomainList, Status};
use pillarbox_config::{Config, StoreConfig};
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::error_chain::error_chain;
use pillarbox_service as service;
use pillarbox_store::{FILE_NAME, JOURNAL_NAME, OpenError, Store};

const DIRECTORY: &str = "data directory";
const FILE: &str = "data file";
const JOURNAL: &str = "journal";
const MIB: u64 = 1 << 20;
/// Below this the store is about to refuse writes.
const LITTLE_ROOM: u64 = 64 * MIB;
/// Free space below which there is a warning: a day's messages of a small site.
const SOME_ROOM: u64 = 1_024 * MIB;
/// The bits that let the group or others in.
const NOT_OWNER: u32 = 0o077;
/// The bits that let the group or others write.
const OTHERS_WRITE: u32 = 0o022;

/// The data directory and the data file: their presence, owner, rights, and room on the disk.
pub(super) fn files(config: &Config) -> Vec<Finding> {
    let (path, shown) = (&config.data_dir, config.data_dir.display());
    let directory = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => found,
        Ok(_) => {
            let message = format!("{shown} is not a directory");
            return vec![Finding::not_ok(DIRECTORY, message, "correct data_dir")];
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let message = format!("{shown} does not exist yet");
            let advice = "the service creates it when it first starts, if its user is allowed to; \
                          if the service has run before, correct data_dir";
            return vec![Finding::warning(DIRECTORY, message, advice)];
        }
        Err(error) => {
            let advice = "run this as the service's user or as root, or correct data_dir";
            return vec![Finding::not_ok(DIRECTORY, format!("{shown}: {error}"), advice)];
        }
    };
    let mut findings = vec![directory_rights(path, &directory)];
    if config.store != StoreConfig::Redb {
        return findings;
    }
    findings.push(file(FILE, &path.join(FILE_NAME), &directory));
    let journal = path.join(JOURNAL_NAME);
    if journal.exists() {
        findings.push(file(JOURNAL, &journal, &directory));
    }
    findings.extend(room(path));
    findings
}

fn directory_rights(path: &Path, found: &Metadata) -> Finding {
    let (shown, mode) = (path.display(), found.permissions().mode() & 0o7777);
    if mode & OTHERS_WRITE != 0 {
        let message = format!("other users can write to {shown} (mode {mode:04o})");
        return Finding::not_ok(DIRECTORY, message, format!("chmod 0700 {shown}"));
    }
    Finding::ok(DIRECTORY, format!("{shown}, mode {mode:04o}, owned by user {}", found.uid()))
}

fn file(about: &'static str, path: &Path, directory: &Metadata) -> Finding {
    let shown = path.display();
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let message = format!("{shown} does not exist yet");
            return Finding::warning(about, message, "the service creates it when it first starts");
        }
        Err(error) => {
            let advice = "run this as the service's user or as root";
            return Finding::not_ok(about, format!("{shown}: {error}"), advice);
        }
    };
    let mode = found.permissions().mode() & 0o7777;
    if mode & NOT_OWNER != 0 {
        let message = format!(
            "{shown} is open to others (mode {mode:04o}); it holds recipients and subjects"
        );
        return Finding::not_ok(about, message, format!("chmod 0600 {shown}"));
    }
    if found.uid() != directory.uid() {
        return Finding::not_ok(
            about,
            format!(
                "{shown} belongs to user {}, its directory to user {}",
                found.uid(),
                directory.uid()
            ),
            format!(
                "make the service's user own both: chown USER {} {shown}",
                path.parent().unwrap_or(path).display()
            ),
        );
    }
    let size = found.len().div_ceil(MIB);
    let owner = found.uid();
    Finding::ok(about, format!("{shown}, {size} MiB, mode {mode:04o}, owned by user {owner}"))
}

fn room(path: &Path) -> Option<Finding> {
    const ABOUT: &str = "disk space";
    let stat = rustix::fs::statvfs(path).ok()?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let message = format!("{} MiB free for {}", free / MIB, path.display());
    let advice = "make room; if the disk is full, new messages get 503 StorageUnavailable";
    Some(if free < LITTLE_ROOM {
        Finding::not_ok(ABOUT, message, advice)
    } else if free < SOME_ROOM {
        Finding::warning(ABOUT, message, advice)
    } else {
        Finding::ok(ABOUT, message)
    })
}

/// The database, if the store is on one and no service runs.
pub(super) async fn database(config: &Config) -> Vec<Finding> {
    const ABOUT: &str = "database";
    let StoreConfig::Postgres(postgres) = &config.store else { return Vec::new() };
    let server = match service::postgres_server(postgres) {
        Ok(server) => server,
        Err(error) => {
            let advice = "correct the file; if only the service's user may read it, run this as \
                          that user";
            return vec![Finding::not_ok(ABOUT, error_chain(&error), advice)];
        }
    };
    match Store::look_at(&server).await {
        Ok(database) => findings(&database, &[]),
        Err(error) => {
            let advice = "check store.postgres.hosts, the network, the user and its password, and \
                          whether one of the hosts accepts writes";
            vec![Finding::not_ok(ABOUT, error.to_string(), advice)]
        }
    }
}

/// The sender domains in the file, if no service runs. A missing file is not created.
pub(super) async fn domains(config: &Config) -> (Vec<Domain>, Option<Finding>) {
    if !config.data_dir.join(FILE_NAME).is_file() {
        return (Vec::new(), None);
    }
    let clock = Clock::system();
    let store = match connect::observe(&config.data_dir, clock.now()) {
        Ok(store) => store,
        Err(error) => {
            let (error, advice) = match error {
                CliError::Open { file, source: OpenError::InUse } => (
                    CliError::InUse { file, socket: config.admin_socket.clone() },
                    "a running service uses it but does not answer: is admin_socket right?",
                ),
                error => (
                    error,
                    "run this as the service's user; if the file is damaged, restore a backup",
                ),
            };
            return (Vec::new(), Some(Finding::not_ok(FILE, error.to_string(), advice)));
        }
    };
    let admin = Admin::on_file(store, clock);
    let status = Status {}.answer(&admin).await;
    let list = DomainList { organisation: None }.answer(&admin).await;
    let finding = status.ok().and_then(|status| damaged(&status.damaged));
    (list.map_or(Vec::new(), |list| list.domains), finding)
}

/// The configuration: it has been read, so what is left is what is allowed and still unwise.
pub(super) fn settings(config: &Config) -> Vec<Finding> {
    const ABOUT: &str = "configuration";
    let mut findings = vec![Finding::ok(ABOUT, "can be read, and every value is allowed")];
    if !config.listen.ip().is_loopback() && config.tls.is_none() {
        findings.push(Finding::warning(
            ABOUT,
            format!("listen = {}: keys and messages are sent there unencrypted", config.listen),
            "set tls.certificate and tls.key, or listen on a loopback or private address behind a \
             proxy that speaks TLS",
        ));
    }
    findings.extend(certificate(config));
    let endpoint = config.ses.endpoint.as_ref();
    if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.scheme_str() == Some("http")) {
        let host = endpoint.host().unwrap_or_default();
        if !matches!(host, "localhost" | "[::1]") && !host.starts_with("127.") {
            findings.push(Finding::warning(
                ABOUT,
                format!("ses.endpoint = {endpoint}: messages are sent there unencrypted"),
                "use https",
            ));
        }
    }
    if let Some(memory) = memory()
        && config.sending.max_pending_bytes > memory
    {
        findings.push(Finding::warning(
            ABOUT,
            format!(
                "sending.max_pending_bytes = {} is more than the machine's memory of {memory} bytes",
                config.sending.max_pending_bytes
            ),
            "lower it, so that a long outage ends in 503 QueueFull and not in a killed process",
        ));
    }
    findings
}

/// The files of the certificate, as a start of the service would read them.
fn certificate(config: &Config) -> Option<Finding> {
    const ABOUT: &str = "certificate file";
    let shown = format!("{}, with its key", config.tls.as_ref()?.certificate.display());
    Some(match service::load_tls(config) {
        Ok(_) => Finding::ok(ABOUT, shown),
        Err(error) => {
            let advice = "correct the files, and send SIGHUP (systemctl reload pillarbox); if only \
                          the service's user may read them, run this as that user";
            Finding::not_ok(ABOUT, error.to_string(), advice)
        }
    })
}

/// The machine's memory in bytes; `None` if the system does not report it.
fn memory() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}
