//! The data directory and the data file: there, the right user's, nobody else's to read, and with
//! room on the disk.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::admin::Admin;
use crate::admin::wire::{Domain, Finding, Request, Response};
use crate::cli::doctor::socket::damaged;
use crate::cli::error::CliError;
use crate::clock::Clock;
use crate::config::Config;
use crate::store::{FILE_NAME, OpenError, Store};

const DIRECTORY: &str = "data directory";
const FILE: &str = "data file";
const MIB: u64 = 1 << 20;
/// Below this the store is about to refuse writes.
const LITTLE_ROOM: u64 = 64 * MIB;
/// Below this it deserves a look: a day's messages of a small site.
const SOME_ROOM: u64 = 1_024 * MIB;
/// The bits that let the group or others in.
const NOT_OWNER: u32 = 0o077;
/// The bits that let the group or others write.
const OTHERS_WRITE: u32 = 0o022;

pub(super) fn look(config: &Config) -> Vec<Finding> {
    let path = &config.data_dir;
    let directory = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => found,
        Ok(_) => {
            let message = format!("{} is no directory", path.display());
            return vec![Finding::not_ok(DIRECTORY, message, "correct data_dir")];
        }
        Err(error) => {
            let message = format!("{}: {error}", path.display());
            let advice = "correct data_dir, or create it for the service's user, mode 0700";
            return vec![Finding::not_ok(DIRECTORY, message, advice)];
        }
    };
    let mut findings = vec![directory_rights(path, &directory)];
    findings.push(file(&path.join(FILE_NAME), &directory));
    findings.extend(room(path));
    findings
}

fn directory_rights(path: &Path, found: &Metadata) -> Finding {
    let (shown, mode) = (path.display(), found.permissions().mode() & 0o7777);
    if mode & OTHERS_WRITE != 0 {
        let message = format!("{shown} may be written by others (mode {mode:04o})");
        return Finding::not_ok(DIRECTORY, message, format!("chmod 0700 {shown}"));
    }
    Finding::ok(DIRECTORY, format!("{shown}, mode {mode:04o}, of user {}", found.uid()))
}

fn file(path: &Path, directory: &Metadata) -> Finding {
    let shown = path.display();
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!("{shown} is not there yet");
            return Finding::warning(FILE, message, "the service makes it when it first starts");
        }
        Err(error) => {
            let advice = "run this as the service's user or as root";
            return Finding::not_ok(FILE, format!("{shown}: {error}"), advice);
        }
    };
    let mode = found.permissions().mode() & 0o7777;
    if mode & NOT_OWNER != 0 {
        return Finding::not_ok(
            FILE,
            format!(
                "{shown} is open to others (mode {mode:04o}); it holds recipients and subjects"
            ),
            format!("chmod 0600 {shown}"),
        );
    }
    if found.uid() != directory.uid() {
        return Finding::not_ok(
            FILE,
            format!("{shown} is user {}'s, its directory user {}'s", found.uid(), directory.uid()),
            format!("give both to the service's user: chown USER {shown}"),
        );
    }
    let size = found.len().div_ceil(MIB);
    Finding::ok(FILE, format!("{shown}, {size} MiB, mode {mode:04o}, of user {}", found.uid()))
}

fn room(path: &Path) -> Option<Finding> {
    const ABOUT: &str = "disk space";
    let stat = rustix::fs::statvfs(path).ok()?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let message = format!("{} MiB free for {}", free / MIB, path.display());
    let advice = "make room; where the disk is full, new messages get 503 StorageUnavailable";
    Some(if free < LITTLE_ROOM {
        Finding::not_ok(ABOUT, message, advice)
    } else if free < SOME_ROOM {
        Finding::warning(ABOUT, message, advice)
    } else {
        Finding::ok(ABOUT, message)
    })
}

/// The sender domains in the file, where no service runs. A file that is not there is not made.
pub(super) async fn domains(config: &Config) -> (Vec<Domain>, Option<Finding>) {
    let file = config.data_dir.join(FILE_NAME);
    if !file.is_file() {
        return (Vec::new(), None);
    }
    let clock = Clock::system();
    let store = match Store::open(&config.data_dir, clock.now()) {
        Ok((store, _)) => store,
        Err(source) => {
            let advice = match source {
                OpenError::InUse => {
                    "a service runs on it and does not answer: is admin_socket right?"
                }
                _ => "run this as the service's user; where the file is damaged, restore a backup",
            };
            let socket = config.admin_socket.clone();
            let error = match source {
                OpenError::InUse => CliError::InUse { file, socket },
                source => CliError::Open { file, source },
            };
            return (Vec::new(), Some(Finding::not_ok(FILE, error.to_string(), advice)));
        }
    };
    let admin = Admin::on_file(store, clock);
    let finding = match admin.handle(Request::Status {}).await {
        Response::Status(status) => damaged(&status.damaged),
        _ => None,
    };
    match admin.handle(Request::DomainList { organisation: None }).await {
        Response::Domains(list) => (list.domains, finding),
        _ => (Vec::new(), finding),
    }
}
