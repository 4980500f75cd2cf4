//! Kernel's state of synchronisation, as systemd's `timedatectl` reports it.
//!
//! The kernel keeps the largest error that its clock may have (`adjtimex(2)`). A time daemon keeps
//! it small. Without one it grows, and from 16 seconds on the clock is not synchronised.
//! `ProtectClock=` of the systemd unit forbids that call, also to read. `timedatectl` asks
//! `systemd-timedated`, which is outside of the sandbox.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::timeout;

use crate::detached_thread;

/// Time-out of a question to systemd.
const SYSTEMD_TIMEOUT: Duration = Duration::from_secs(5);

/// Kernel's state of synchronisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Synchronisation {
    /// The clock is synchronised.
    Yes,
    /// The clock is not synchronised.
    No,
    /// Nobody could be asked.
    Unknown {
        /// Reason for which nobody could be asked.
        reason: String,
    },
}

/// Asks systemd. Runs a process, so it takes some milliseconds.
pub(super) async fn ask() -> Synchronisation {
    let asked = detached_thread::run("timedatectl", || {
        let mut command = Command::new("timedatectl");
        command.args(["show", "--property=NTPSynchronized", "--value"]);
        // With our own NOTIFY_SOCKET it would report its failures to our supervisor.
        command.env_clear().stdin(Stdio::null()).stderr(Stdio::null()).output()
    });
    // After the time-out, the thread still waits for the end of the process.
    let reason = match timeout(SYSTEMD_TIMEOUT, asked).await {
        Err(_) => "timedatectl does not answer".to_owned(),
        Ok(output) => match output.and_then(|output| output) {
            Ok(output) => return read(&output.stdout),
            Err(error) => format!("timedatectl cannot be run ({error})"),
        },
    };
    Synchronisation::Unknown { reason }
}

fn read(answer: &[u8]) -> Synchronisation {
    match answer.trim_ascii() {
        b"yes" => Synchronisation::Yes,
        b"no" => Synchronisation::No,
        _ => Synchronisation::Unknown { reason: "timedatectl gave no answer".to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_systemd_is_one_word() {
        assert_eq!(read(b"yes\n"), Synchronisation::Yes);
        assert_eq!(read(b"no\n"), Synchronisation::No);
        assert!(matches!(read(b""), Synchronisation::Unknown { .. }));
    }
}
