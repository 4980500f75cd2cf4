//! `pillarbox dev`, and what it tells of itself.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{ChildStdout, Command, Stdio};

use crate::Process;

/// The process. It ends where nobody can read what it prints.
pub(crate) struct Dev {
    _process: Process,
    output: Lines<BufReader<ChildStdout>>,
}

impl Dev {
    pub(crate) fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
            .args(["dev", "--listen", "127.0.0.1:0", "--operator-listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _process: Process(child), output }
    }

    /// The last word on the line that starts with this, in the order in which they are printed.
    pub(crate) fn told(&mut self, name: &str) -> String {
        let name = format!("  {name} ");
        let line = self.output.find(|line| line.as_ref().unwrap().starts_with(&name));
        let line = line.expect("dev tells where everything is").unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    }
}
