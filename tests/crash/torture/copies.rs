//! Copies of the data file, broken off: what has a backup's name is a whole backup, and the data
//! file is the old one or the new one.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pillarbox_store::{Candidate, Existing, FILE_NAME, Unclosed};
use tokio::time::sleep;

use crate::kit::{Process, open_store};
use crate::old;
use crate::torture::Torture;

/// A copy is cut at any moment of so many times as long as the last one took, so that some are
/// whole all the same.
pub(super) const AS_LONG: u32 = 2;

/// A backup that is being made, and what was acknowledged before it began.
pub(super) struct Backup {
    file: PathBuf,
    command: Child,
    acknowledged: BTreeSet<String>,
}

/// Results of the copies.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Commands that were killed, and those whose service was.
    pub(super) broken_off: u32,
    /// Backups that were completed after all, and were read from end to end.
    pub(super) whole: u32,
}

/// The names in a directory that are those of files in the making.
pub(super) fn strays(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".pillarbox-")).collect()
}

impl Torture {
    /// Begins a backup, of a running service or of the file.
    pub(super) fn begin_backup(&mut self) -> Backup {
        let file = self.site.data_dir().with_file_name("backup.redb");
        let acknowledged = self.ledger.lock().unwrap().ids.keys().cloned().collect();
        let command = begin(self.site.command(&["backup", file.to_str().unwrap()]));
        Backup { file, command, acknowledged }
    }

    /// Kills the service, and a backup of it at the same time or not at all.
    pub(super) async fn kill_during(
        &mut self,
        mut backup: Backup,
        process: Process,
        command: &mut Child,
    ) {
        self.copies.broken_off += 1;
        if self.random.bool() {
            backup.command.kill().unwrap();
            // The service goes on for a while.
            sleep(self.up_to(Duration::from_millis(50))).await;
        }
        self.end(Some(process), &mut [command, &mut backup.command]);
        self.look_at(backup).await;
    }

    /// A command that copies the file while no service runs, killed at any moment.
    pub(super) async fn cut_copy(&mut self) {
        self.copies.broken_off += 1;
        match self.random.u8(0..3) {
            0 => {
                let mut backup = self.begin_backup();
                self.cut(&mut backup.command).await;
                self.look_at(backup).await;
            }
            1 => {
                let mut command = begin(self.site.command(&["compact"]));
                self.cut(&mut command).await;
                command.wait().unwrap();
            }
            _ => {
                let backup = self.begin_backup();
                let began = Instant::now();
                let file = backup.file.clone();
                let output = ended(backup.command).await;
                assert!(output.status.success(), "{output:?}");
                self.copy_took = began.elapsed();
                let arguments = ["restore", "--replace", file.to_str().unwrap()];
                let mut command = begin(self.site.command(&arguments));
                self.cut(&mut command).await;
                command.wait().unwrap();
                remove(&file);
            }
        }
        let data = self.site.data_dir();
        assert!(data.join(FILE_NAME).exists(), "there is a moment without a data file");
        for entry in std::fs::read_dir(data).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().contains(".replaced-") {
                remove(&path);
            }
        }
    }

    async fn cut(&mut self, command: &mut Child) {
        sleep(self.up_to(AS_LONG * self.copy_took)).await;
        if self.disk.is_some() {
            self.end(None, &mut [command]);
        } else {
            command.kill().unwrap();
        }
    }

    /// Checks that a file with the backup's name holds all that was acknowledged before it began.
    async fn look_at(&mut self, backup: Backup) {
        let output = ended(backup.command).await;
        if !backup.file.exists() {
            assert!(!output.status.success(), "{output:?}");
            return;
        }
        self.copies.whole += 1;
        let scratch = tempfile::tempdir().unwrap();
        let candidate =
            Candidate::check(&backup.file, scratch.path(), Unclosed::Refuse, |_| {}).unwrap();
        candidate.install(Existing::Keep, old::now()).unwrap();
        let all = old::all(&open_store(scratch.path(), old::now())).await;
        let all: BTreeSet<String> = all.iter().map(|message| message.id.to_string()).collect();
        let missing = backup.acknowledged.difference(&all).count();
        assert_eq!(missing, 0, "messages that were acknowledged before the backup began");
        remove(&backup.file);
    }
}

/// Removes a file for good: a power cut does not bring it back.
fn remove(file: &Path) {
    std::fs::remove_file(file).unwrap();
    File::open(file.parent().unwrap()).unwrap().sync_all().unwrap();
}

/// Starts a command whose output is read when it has ended.
pub(super) fn begin(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

async fn ended(command: Child) -> Output {
    tokio::task::spawn_blocking(|| command.wait_with_output().unwrap()).await.unwrap()
}
