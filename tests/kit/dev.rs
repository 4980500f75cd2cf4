//! `pillarbox dev` as a process, and the lines that it prints.
//!
//! Must not know how the lines are used.

use std::io::{BufRead, BufReader, Lines, PipeReader, PipeWriter, pipe};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::process::pillarbox;

/// A `dev` process on free ports. It is killed when dropped, and ends if its output is not read.
pub(crate) struct DevProcess {
    child: Child,
    output: Lines<BufReader<PipeReader>>,
    /// Place of its temporary files: a process that is killed removes none.
    _temporary: TempDir,
}

impl DevProcess {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with_errors_to(arguments, |_| Stdio::null())
    }

    /// The same with its log among its lines. It waits if they are not read.
    pub(crate) fn start_with_log(arguments: &[&str]) -> Self {
        Self::start_with_errors_to(arguments, Stdio::from)
    }

    /// A `dev` by a command line of its own.
    pub(crate) fn of(command: Command) -> Self {
        Self::spawn(command, |_| Stdio::null())
    }

    fn start_with_errors_to(arguments: &[&str], errors: impl FnOnce(PipeWriter) -> Stdio) -> Self {
        let mut command = pillarbox(&["dev", "--listen", "127.0.0.1:0"]);
        command.args(["--operator-listen", "127.0.0.1:0"]);
        command.args(["--smtp-listen", "127.0.0.1:0", "--resend-listen", "127.0.0.1:0"]);
        command.args(arguments);
        Self::spawn(command, errors)
    }

    fn spawn(mut command: Command, errors: impl FnOnce(PipeWriter) -> Stdio) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let (output, writer) = pipe().unwrap();
        command.env("TMPDIR", temporary.path());
        command.stderr(errors(writer.try_clone().unwrap())).stdout(writer);
        let child = command.spawn().unwrap();
        Self { child, output: BufReader::new(output).lines(), _temporary: temporary }
    }

    /// The last word on the line that starts with this, in the order in which they are printed.
    pub(crate) fn told(&mut self, name: &str) -> String {
        let line = self.line(|line| line.starts_with(&format!("  {name} ")));
        line.split_whitespace().last().unwrap().to_owned()
    }

    /// The next line that is like this.
    pub(crate) fn line(&mut self, is_wanted: impl Fn(&str) -> bool) -> String {
        let mut lines = self.output.by_ref().map_while(Result::ok);
        lines.find(|line| is_wanted(line)).expect("dev tells where everything is")
    }
}

impl DevProcess {
    /// Asks the process to end, as Ctrl-C does, and returns the time that it took and its exit
    /// status.
    pub(crate) fn interrupt(mut self) -> (Duration, ExitStatus) {
        let asked_at = Instant::now();
        self.press_ctrl_c();
        let status = self.child.wait().unwrap();
        (asked_at.elapsed(), status)
    }

    /// Sends the signal that Ctrl-C sends, and waits for nothing.
    pub(crate) fn press_ctrl_c(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    }
}

impl Drop for DevProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
