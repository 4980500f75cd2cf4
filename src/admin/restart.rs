//! Restart: the service has the installed program checked, and executes it in its own place.
//!
//! The call only asks for it. The part that runs the service carries it out.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tracing::info;

use crate::{Admin, AskRunningProgram, Refusal, Restart, Result, ServiceFacts};
use pillarbox_body_store::ARENA_FORMAT;
use pillarbox_runtime::detached_thread;
use pillarbox_store::DATA_FORMAT;

/// Longest time that the check of the installed program may take.
const CHECK_TIMEOUT: Duration = Duration::from_mins(1);
/// Suffix of the path of a program whose file was replaced, by the kernel (proc(5), `/proc/PID/exe`).
const DELETED: &[u8] = b" (deleted)";
/// Option of `serve` for one start alone: the next program must not give up what this one leaves.
const DROP_BODIES: &str = "--drop-bodies";
/// Variables by which the service manager speaks to this process alone.
const OF_THIS_PROCESS: [&str; 6] = [
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// Program that answers on the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningProgram {
    pub version: String,
    pub process: u32,
    /// Random number of the start.
    pub start: String,
    pub pending_messages: usize,
}

/// Beginning of a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartBegun {
    pub from: RunningProgram,
    pub to_version: String,
    /// True if a service manager starts the service again if the installed program fails.
    pub is_supervised: bool,
}

/// Answer of the installed program to `--check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramCheck {
    pub version: String,
    pub data_format: u64,
    #[serde(default = "first_arena_format")]
    pub arena_format: u32,
    /// True if it goes on with the bodies of pending messages.
    #[serde(default = "keeps")]
    pub keeps_bodies: bool,
    /// The database of several nodes that its store is on, if any.
    pub database: Option<NodeDatabase>,
    /// The data directory; `None` if each start makes one.
    pub data_dir: Option<PathBuf>,
}

/// Database that a node works on, and the node's name there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDatabase {
    pub hosts: Vec<String>,
    pub name: String,
    pub node: String,
}

/// Answer of programs that do not report whether they keep bodies.
const fn keeps() -> bool {
    true
}

/// Format that all programs read which know of `--check`.
const fn first_arena_format() -> u32 {
    1
}

/// Restarts of a service: the call asks here for one, and the service waits here to be asked.
#[derive(Debug)]
pub struct Restarts {
    start: String,
    keeps_bodies: bool,
    database: Option<NodeDatabase>,
    asked: watch::Sender<bool>,
}

impl Restarts {
    /// Restarts of a process that begins. `keeps_bodies`: what is pending goes over to the next
    /// program. `database`: what the store is on.
    pub fn new(
        keeps_bodies: bool,
        database: Option<NodeDatabase>,
    ) -> Result<Self, getrandom::Error> {
        let start = format!("{:016x}", getrandom::u64()?);
        Ok(Self { start, keeps_bodies, database, asked: watch::Sender::new(false) })
    }

    /// Ends once a restart was asked for.
    pub async fn asked(&self) {
        // Its sender is here, so it does not end.
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }
}

pub(super) fn running(admin: &Admin, _: &AskRunningProgram) -> Result<RunningProgram> {
    Ok(admin.facts()?.program())
}

pub(super) async fn begin(admin: &Admin, _: Restart) -> Result<RestartBegun> {
    let facts = admin.facts()?;
    let from = facts.program();
    let restarts = &facts.restarts;
    let check = check_installed_program().await?;
    facts.judge(&check)?;
    let pending = facts.bodies.queue.pending().messages;
    if pending > 0 && !(restarts.keeps_bodies && check.keeps_bodies) {
        return Err(Refusal::new(format!(
            "messages are pending ({pending}), and their bodies cannot be kept for the next \
             program; wait until they are sent, or stop the service: it sends what it can"
        )));
    }
    if restarts.asked.send_replace(true) {
        return Err(Refusal::new("a restart is already under way"));
    }
    info!(version = check.version, "restarting: the installed program replaces this one");
    let is_supervised = std::env::var_os("NOTIFY_SOCKET").is_some();
    Ok(RestartBegun { from, to_version: check.version, is_supervised })
}

impl ServiceFacts {
    fn program(&self) -> RunningProgram {
        RunningProgram {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: std::process::id(),
            start: self.restarts.start.clone(),
            pending_messages: self.bodies.queue.pending().messages,
        }
    }

    /// Refuses a program that cannot go on with what this one has.
    fn judge(&self, check: &ProgramCheck) -> Result<()> {
        let is_other = check.data_dir.as_ref().is_some_and(|dir| !self.identity.works_on(dir));
        let (own, next) = (&self.restarts.database, &check.database);
        let is_same_database = match (own, next) {
            // Hosts come and go.
            (Some(own), Some(next)) => {
                (&own.name, &own.node) == (&next.name, &next.node)
                    && own.hosts.iter().any(|host| next.hosts.contains(host))
            }
            (own, next) => own == next,
        };
        if is_other || !is_same_database {
            return Err(Refusal::new(
                "the configuration now names another store, node or data directory, so pending \
                 messages would be lost; nothing was changed. Undo that change, or stop and start \
                 the service",
            ));
        }
        if own.is_none() && check.data_format < DATA_FORMAT {
            return Err(Refusal::new(format!(
                "the installed program, version {}, does not read the data file: it reads formats up \
                 to {}, and the file has {DATA_FORMAT}; nothing was changed. To go back, restore a \
                 backup from before the upgrade",
                check.version, check.data_format
            )));
        }
        if self.restarts.keeps_bodies && check.arena_format < ARENA_FORMAT {
            return Err(Refusal::new(format!(
                "the installed program, version {}, does not read the bodies of pending messages: it \
                 reads formats up to {}, and they have {ARENA_FORMAT}; nothing was changed. To go \
                 back, stop the service, which sends what it can, and start it again",
                check.version, check.arena_format
            )));
        }
        Ok(())
    }
}

/// Returns the command line of this process for the installed program: at the path of the program that
/// this process executes, another file may be now.
pub fn own_command_line() -> io::Result<Command> {
    let path = std::env::current_exe()?.into_os_string();
    let path = path.as_bytes().strip_suffix(DELETED).unwrap_or(path.as_bytes());
    let mut arguments = std::env::args_os().filter(|argument| argument != DROP_BODIES);
    let name = arguments.next();
    let mut command = Command::new(OsStr::from_bytes(path));
    command.arg0(name.unwrap_or_default()).args(arguments);
    Ok(command)
}

/// Has the installed program check itself, by the command line of this process.
async fn check_installed_program() -> Result<ProgramCheck> {
    let failed = |error: io::Error| {
        Refusal::new(format!(
            "the installed program cannot be run: {error}; nothing was changed. Install pillarbox \
             again, then repeat the command"
        ))
    };
    let mut command = own_command_line().map_err(failed)?;
    let name = command.get_program().display().to_string();
    command.args(["--check", "--json"]).stdin(Stdio::null());
    for variable in OF_THIS_PROCESS {
        command.env_remove(variable);
    }
    let output = timeout(CHECK_TIMEOUT, output_of(command)).await;
    let output = output.map_err(|_| {
        Refusal::new(format!(
            "the check of {name} took longer than {} s and was stopped; nothing was changed. Run pillarbox \
             serve --check to see what it waits for",
            CHECK_TIMEOUT.as_secs()
        ))
    })?;
    let output = output.map_err(failed)?;
    read(&output).map_err(|problem| {
        Refusal::new(format!("{name} would not start, so nothing was changed: {problem}"))
    })
}

/// Runs a program, and kills it if the returned future is dropped.
async fn output_of(mut command: Command) -> io::Result<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (started, process) = oneshot::channel();
    let _running = KilledOnDrop(process);
    let output = detached_thread::run("program check", move || {
        let mut child = command.spawn()?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        if process.is_ok_and(|process| started.send(process).is_err()) {
            child.kill()?;
        }
        child.wait_with_output()
    });
    output.await?
}

/// Program that is killed if its caller does not wait any more.
struct KilledOnDrop(oneshot::Receiver<OwnedFd>);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // A thread that starts the program later sees that this is closed, and kills it.
        self.0.close();
        if let Ok(process) = self.0.try_recv() {
            // It fails if the program has ended.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

fn read(output: &Output) -> Result<ProgramCheck, String> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim();
        let said = said.strip_prefix("pillarbox: ").unwrap_or(said);
        return Err(if said.is_empty() { output.status.to_string() } else { said.to_owned() });
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("its answer to --check cannot be read ({error})"))
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write as _};
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Returns once the other end of the pipe, which a program holds, is closed.
    fn wait_for_end(mut pipe: io::PipeWriter) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            match pipe.write(b"x") {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return,
                result => assert_eq!(result.unwrap(), 1),
            }
            assert!(Instant::now() < end, "the program still runs");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[tokio::test]
    async fn a_program_that_nobody_waits_for_any_more_is_killed() {
        // Dropped before it is started, at about that time, and while it runs.
        for patience in [0, 1, 200].map(Duration::from_millis) {
            let (held, pipe) = io::pipe().unwrap();
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(held);
            assert!(timeout(patience, output_of(command)).await.is_err(), "{patience:?}");
            wait_for_end(pipe);
        }
        let mut command = Command::new("echo");
        command.arg("done");
        assert_eq!(output_of(command).await.unwrap().stdout, b"done\n");
    }
}
