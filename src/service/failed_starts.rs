//! Starts that fail though bodies were handed over. The service manager drops what it keeps once it
//! gives the unit up, so such a start ends as one to be repeated, and the starts come less and less
//! often.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::inherited::{ARENA, ArenaKeeper, own_name};
use crate::signals::Signals;
use pillarbox_body_store::{BodyStore, NotTaken};

/// Exit code of a start to be repeated: `EX_TEMPFAIL` of sysexits.h.
const EXIT_REPEAT: u8 = 75;
/// Exit code of a failed start that a signal ended while it waited: it was stopped.
const EXIT_STOPPED: u8 = 0;
/// The longest wait before a failed start ends.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// The longest cause in the status line, in characters.
const LONGEST_CAUSE: usize = 500;
/// File in the unit's runtime directory that counts failed starts.
const COUNT_FILE: &str = "failed-starts";
/// The number of the first descriptor that is handed over.
const FIRST_DESCRIPTOR: usize = 3;
/// Unit of the blocks in which the kernel counts memory (`stat(2)`).
const BLOCK_BYTES: u64 = 512;

/// Bodies that this process was handed.
#[derive(Debug)]
pub struct HandedBodies {
    /// The descriptors of their memory, which stay open until the process ends.
    paths: Vec<PathBuf>,
    keeper: ArenaKeeper,
}

impl HandedBodies {
    /// Returns them, by the process's environment, if there are any. To be called before anything else
    /// takes what was handed over.
    pub fn from_environment() -> Option<Self> {
        let process = env::var("LISTEN_PID").ok()?;
        if process.parse() != Ok(std::process::id()) {
            return None;
        }
        let names = env::var("LISTEN_FDNAMES").ok()?;
        // What the manager keeps outlives this process; what the program before has handed on does not.
        let keeper = if names.split(':').any(|name| name == ARENA) {
            ArenaKeeper::Manager
        } else {
            ArenaKeeper::Process
        };
        let wanted = match keeper {
            ArenaKeeper::Manager => ARENA.to_owned(),
            ArenaKeeper::Process => own_name(ARENA),
        };
        let arenas = names.split(':').enumerate().filter(|(_, name)| *name == wanted);
        let path =
            |index: usize| Path::new("/proc/self/fd").join((FIRST_DESCRIPTOR + index).to_string());
        let mut paths: Vec<PathBuf> = arenas.map(|(index, _)| path(index)).collect();
        // The service manager may have several descriptors of one memory.
        let mut seen = BTreeSet::new();
        paths.retain(|path| fs::metadata(path).is_ok_and(|found| seen.insert(found.ino())));
        (!paths.is_empty()).then_some(Self { paths, keeper })
    }

    /// Says how much is kept or lost, and of how many messages. The store is not asked, which may be
    /// the one that fails.
    fn summary(&self) -> String {
        let end = match self.keeper {
            ArenaKeeper::Manager => "are kept",
            ArenaKeeper::Process => "are lost, because the service manager does not keep them",
        };
        let bytes: u64 = self.paths.iter().map(|path| memory_bytes(path)).sum();
        let kib = bytes / 1024;
        let counted = self.paths.iter().map(|path| {
            let memory = File::open(path).map_err(NotTaken::from)?;
            BodyStore::count_waiting(memory.into())
        });
        let counted: Result<Vec<_>, _> = counted.collect();
        match counted {
            Ok(counts) => {
                let messages: usize = counts.iter().sum();
                format!("the bodies of at most {messages} pending messages {end} ({kib} KiB)")
            }
            Err(why) => format!(
                "{kib} KiB of bodies of pending messages {end}; the number of messages is unknown: \
                 {why}"
            ),
        }
    }

    /// Ends a start that failed by `error`: informs the service manager, waits, and returns the
    /// exit code. The wait is twice that of the failed start before, and at most [`LONGEST_WAIT`];
    /// a signal ends it.
    pub fn failed(&self, error: &str) -> u8 {
        let failures = count_failure();
        let wait = wait_after(failures);
        // A line break would begin a message of its own.
        let cause: Vec<_> = error.lines().map(str::trim).collect();
        let cause: String = cause.join(" ").chars().take(LONGEST_CAUSE).collect();
        let status = format!(
            "the start failed ({failures} in a row): {cause}; {}; this process ends in {} s, and a service \
             manager, if there is one, then starts it again",
            self.summary(),
            wait.as_secs()
        );
        // There may be no supervisor.
        let _ = sd_notify::notify(&[NotifyState::Status(&status)]);
        let _ = writeln!(io::stderr(), "pillarbox: {status}");
        match wait_or_signal(wait) {
            Waited::ToTheEnd => EXIT_REPEAT,
            Waited::UntilASignal => EXIT_STOPPED,
        }
    }
}

enum Waited {
    ToTheEnd,
    UntilASignal,
}

/// Waits. A signal that ends the process may have a handler by now, which stays until the end.
fn wait_or_signal(wait: Duration) -> Waited {
    let waiting = || {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async {
            let mut signals = Signals::new().ok()?;
            Some(match timeout(wait, signals.next()).await {
                Ok(()) => Waited::UntilASignal,
                Err(_) => Waited::ToTheEnd,
            })
        })
    };
    waiting().unwrap_or_else(|| {
        std::thread::sleep(wait);
        Waited::ToTheEnd
    })
}

fn memory_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.blocks() * BLOCK_BYTES)
}

/// The file that counts, in the first of the unit's runtime directories (`RuntimeDirectory=`).
fn count_file() -> Option<PathBuf> {
    let directories = env::var_os("RUNTIME_DIRECTORY")?;
    let directory = env::split_paths(&directories).next()?;
    Some(directory.join(COUNT_FILE))
}

/// Counts a failed start, and returns how many there were without one that succeeded.
fn count_failure() -> u32 {
    let Some(file) = count_file() else { return 1 };
    let counted = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let failures = counted.unwrap_or(0).saturating_add(1);
    // Without the file, the waits do not grow.
    let _ = fs::write(&file, failures.to_string());
    failures
}

fn wait_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(6);
    LONGEST_WAIT.min(Duration::from_secs(1) * (1 << doublings))
}

/// Forgets failed starts: one has succeeded.
pub(super) fn forget() {
    if let Some(file) = count_file() {
        // Usually there is none.
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute() {
        let waits = [1, 2, 3, 6, 7, 8, u32::MAX].map(|failures| wait_after(failures).as_secs());
        assert_eq!(waits, [1, 2, 4, 32, 60, 60, 60]);
    }
}
