//! A disk that loses what was not synced: the program of `tests/lossy_disk`, mounted.
//!
//! Must not know what is on it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A mounted disk. It is unmounted when dropped.
pub(crate) struct LossyDisk {
    program: Child,
    /// `None` once it is to end.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    cuts: u32,
}

impl LossyDisk {
    /// Mounts an empty disk that ignores these syncs (`LOSSY_DISK_IGNORE_SYNC`).
    pub(crate) fn mount(directory: &Path, seed: u64, ignored: &str) -> Self {
        let path =
            Path::new(env!("CARGO_BIN_EXE_pillarbox")).with_file_name("pillarbox-lossy-disk");
        let mut program = Command::new(&path)
            .arg(directory)
            .arg(seed.to_string())
            .env("LOSSY_DISK_IGNORE_SYNC", ignored)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error}; run `cargo build -p pillarbox-lossy-disk`", path.display())
            });
        let commands = program.stdin.take();
        let answers = BufReader::new(program.stdout.take().unwrap());
        let mut disk = Self { program, commands, answers, cuts: 0 };
        let answer = disk.answer();
        assert_eq!(answer, "mounted", "the lossy disk needs root and /dev/fuse");
        disk
    }

    /// Begins a cut in the middle of the operation after so many others, or soon if there are no more:
    /// nothing becomes durable any more, and no process gets an answer.
    pub(crate) fn freeze_after(&mut self, operations: u64) {
        assert_eq!(self.ask(&format!("freeze {operations}")), "ok");
    }

    /// Ends a cut whose processes were killed; gives what was lost, as text.
    pub(crate) fn cut(&mut self, seed: u64) -> String {
        self.cuts += 1;
        self.ask(&format!("cut {seed}"))
    }

    /// Serves what survived. The processes from before must have ended.
    pub(crate) fn start(&mut self) {
        assert_eq!(self.ask("start"), "ok");
    }

    /// Gives the disk a fault until the next cut.
    pub(crate) fn fault(&mut self, fault: &str) {
        assert_eq!(self.ask(&format!("fault {fault}")), "ok");
    }

    /// Number of cuts so far.
    pub(crate) fn cuts(&self) -> u32 {
        self.cuts
    }

    fn ask(&mut self, command: &str) -> String {
        let commands = self.commands.as_mut().unwrap();
        writeln!(commands, "{command}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for LossyDisk {
    fn drop(&mut self) {
        // It unmounts at the end of its input.
        drop(self.commands.take());
        let _ = self.program.wait();
    }
}
