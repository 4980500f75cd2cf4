//! pillarbox as a process: commands that end, and services that are killed with the test.
//!
//! Must not know configurations.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::PATIENCE;

/// Pause between two checks of an expected state.
const POLL: Duration = Duration::from_millis(2);

/// A command line of the binary under test, without the environment of the test.
pub(crate) fn pillarbox(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
    command.args(arguments).env_clear();
    command
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Finished {
    /// Runs a command to its end; what else the test runs goes on meanwhile.
    pub(crate) async fn run(mut command: Command) -> Self {
        let output = tokio::task::spawn_blocking(move || command.output().unwrap());
        Self::from(output.await.unwrap())
    }

    /// The one line of JSON that a command printed that succeeded.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A process that logs to its standard error. It is killed when dropped.
pub(crate) struct Process {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let lines = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().unwrap().extend([&line, "\n"]);
            }
        });
        Self { child, log, reader: Some(reader) }
    }

    /// Waits until the service listens; gives its address.
    pub(crate) fn listening(&self) -> String {
        self.wait_for("listening on ")
    }

    /// The address of the operator listener.
    pub(crate) fn operator_listening(&self) -> String {
        self.wait_for("operator's page at ")
    }

    /// The address at which SMTP sessions begin in plain text.
    pub(crate) fn smtp_listening(&self) -> String {
        self.wait_for("SMTP submission at ")
    }

    /// The address of the API in Resend's shape.
    pub(crate) fn resend_listening(&self) -> String {
        self.wait_for("Resend-compatible API at ")
    }

    /// Waits for a line of the log with these words; gives the rest of the line.
    fn wait_for(&self, words: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let has_ended = self.reader.as_ref().is_none_or(JoinHandle::is_finished);
            let log = self.log();
            if let Some((_, rest)) = log.split_once(words) {
                return rest.lines().next().unwrap().trim().to_owned();
            }
            assert!(!has_ended && Instant::now() < end, "it did not start: {log}");
            std::thread::sleep(POLL);
        }
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the process a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Sends SIGKILL and does not wait: a process on a disk that is frozen cannot end.
    pub(crate) fn begin_kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for the end of the process; gives its status and all that it logged.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        (status, self.log())
    }

    /// Waits so long for the end of the process, and kills it then; gives its exit code, if it ended
    /// by itself, and all that it logged.
    pub(crate) fn wait_at_most(mut self, patience: Duration) -> (Option<i32>, String) {
        let end = Instant::now() + patience;
        while self.child.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(POLL);
        }
        // Too late for one that has ended, and no harm.
        let _ = self.child.kill();
        let (status, log) = self.wait();
        (status.code(), log)
    }

    /// Ends the process as a crash does; gives all that it logged.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.wait().1
    }

    /// A path of the process's own file systems, as others reach it.
    pub(crate) fn seen_from_outside(&self, path: &std::path::Path) -> std::path::PathBuf {
        let root = std::path::PathBuf::from(format!("/proc/{}/root", self.id()));
        root.join(path.strip_prefix("/").unwrap())
    }

    /// The number of files that the process has open.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// The memory that the process has resident, and that of the bodies, in bytes.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.memory("VmRSS:") + self.arena_bytes()
    }

    /// The memory of the bodies, as the kernel counts it, in bytes: it belongs to no process, however
    /// many descriptors of it a process has.
    pub(crate) fn arena_bytes(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap();
        let arenas = files.filter_map(|file| {
            let path = file.unwrap().path();
            let target = std::fs::read_link(&path).ok()?;
            let is_arena = target.to_string_lossy().contains("memfd:pillarbox-bodies");
            is_arena.then(|| std::fs::metadata(&path).unwrap())
        });
        let blocks: BTreeMap<u64, u64> = arenas.map(|file| (file.ino(), file.blocks())).collect();
        usize::try_from(blocks.values().sum::<u64>() * 512).unwrap()
    }

    /// The most memory that the process had resident since [`Self::reset_peak`], in bytes.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.memory("VmHWM:")
    }

    /// Starts the measurement of the most memory anew.
    pub(crate) fn reset_peak(&self) {
        // proc_pid_clear_refs(5): 5 resets the peak to what is resident now.
        std::fs::write(format!("/proc/{}/clear_refs", self.id()), "5").unwrap();
    }

    fn memory(&self, line: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let size = status.lines().find_map(|one| one.strip_prefix(line)).unwrap();
        size.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
    }

    /// The processor time that the process has used, in ticks (100 a second on Linux).
    pub(crate) fn processor_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // proc(5): the name in brackets is the second field, utime and stime are 14 and 15.
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
