//! `pillarbox dev` as a process, and the lines that it prints.
//!
//! Must not know how the lines are used.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use super::process::pillarbox;

/// A `dev` process on free ports. It is killed when dropped, and ends if nobody reads its output.
pub(crate) struct DevProcess {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl DevProcess {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = pillarbox(&["dev", "--listen", "127.0.0.1:0"]);
        command.args(["--operator-listen", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output }
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

impl Drop for DevProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
