//! Mounts a lossy disk, and takes commands from standard input: `pillarbox-lossy-disk DIRECTORY SEED`.
//!
//! | Command | Effect |
//! |---|---|
//! | `freeze OPERATIONS` | after so many operations, or soon, nothing becomes durable and no caller gets an answer |
//! | `cut SEED` | loses what was not synced; all callers get EIO |
//! | `start` | serves what survived |
//! | `fault WORD` | `eio-on-sync`, `eio-on-write`, `full`, `short-write` or `slow-sync` |
//! | `quit` | unmounts; the end of the input does the same |
//!
//! It prints one line for each, and one once it is mounted. `LOSSY_DISK_IGNORE_SYNC` lists the names
//! of files whose syncs it ignores, with commas; `directory` stands for those of all directories, and
//! `NAME@OFFSET` for synchronous writes from this offset on.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use fuser::{Config, MountOption};
use pillarbox_lossy_disk::{Attributes, Disk, IgnoredSyncs, Mount, Power};

/// Threads that serve requests: those in the middle of a cut wait.
const THREADS: usize = 16;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seed = |text: String| text.parse().ok();
    let (Some(directory), Some(seed)) = (arguments.next(), arguments.next().and_then(seed)) else {
        eprintln!("usage: pillarbox-lossy-disk DIRECTORY SEED");
        return ExitCode::FAILURE;
    };
    let ignored = std::env::var("LOSSY_DISK_IGNORE_SYNC").unwrap_or_default();
    let disk = Disk::new(Attributes::new(0o755, 0, 0));
    let power = Arc::new(Power::new(disk, seed, IgnoredSyncs::of(&ignored)));
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("lossy-disk".to_owned())];
    config.n_threads = Some(THREADS);
    let session = match fuser::spawn_mount(Mount::of(Arc::clone(&power)), &directory, &config) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("{directory} cannot be mounted: {error}");
            return ExitCode::FAILURE;
        }
    };
    answer("mounted");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == "quit" {
            break;
        }
        answer(&run(&power, &line));
    }
    // Callers must not wait for a disk that is frozen.
    power.cut(0);
    unmount(Path::new(&directory));
    drop(session);
    ExitCode::SUCCESS
}

fn run(power: &Power, line: &str) -> String {
    let (command, argument) = line.split_once(' ').unwrap_or((line, ""));
    match command {
        "freeze" => match argument.parse() {
            Ok(operations) => power.freeze_after(operations),
            Err(_) => return "freeze takes a number of operations".to_owned(),
        },
        "cut" => {
            let Ok(seed) = argument.parse() else { return "cut takes a seed".to_owned() };
            let loss = power.cut(seed);
            return format!(
                "{} sectors pending, {} of {} entries lost",
                loss.sectors, loss.changes_lost, loss.changes
            );
        }
        "start" => power.start(),
        "fault" => match argument.parse() {
            Ok(fault) => power.add_fault(fault),
            Err(_) => return format!("no such fault: {argument}"),
        },
        _ => return format!("no such command: {command}"),
    }
    "ok".to_owned()
}

fn answer(line: &str) {
    let mut out = std::io::stdout();
    // A caller that has gone closes the input as well.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Unmounts, also if a process has a file open. The session cannot: it gives up then.
fn unmount(directory: &Path) {
    let unmounted = Command::new("umount").arg("--lazy").arg(directory).status();
    if !unmounted.is_ok_and(|status| status.success()) {
        eprintln!("{} stays mounted", directory.display());
    }
}
