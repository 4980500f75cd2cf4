//! The real process with its provider, as a client on the network sees it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pillarbox_simulator::{Options, Simulator};

use crate::kit::{self, History, PATIENCE, Process};

/// Address that clients connect to, with their key.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
}

/// A site whose service runs.
pub(crate) struct Running {
    site: kit::Site,
    pub(crate) process: Process,
    address: SocketAddr,
    /// Answers to the clients that behave, for the judge.
    pub(crate) history: Option<History>,
}

impl Running {
    /// Starts the service with more configuration, and with at most so many files open.
    pub(crate) async fn start(more: &str, files: Option<u32>) -> Self {
        let site = kit::Site::with(more, Options::default()).await;
        let limit = files.map_or_else(String::new, |files| format!("ulimit -n {files} &&"));
        let mut command = site.service_after(&limit);
        command.env("RUST_LOG", "warn,pillarbox_service=info");
        let process = Process::spawn(command);
        let address = process.listening().parse().unwrap();
        Self { site, process, address, history: None }
    }

    /// Has the clients that behave write a history of this name from now on.
    pub(crate) fn write_history(&mut self, name: &str) {
        let name = format!("network-{name}");
        self.history = Some(History::by_default(&name, &self.site.simulator));
    }

    /// Ends the history, and has it judged: each message of these clients was sent, and no other.
    pub(crate) async fn judge(&self) {
        let history = self.history.as_ref().expect("it was begun");
        let base = format!("http://{}", self.address);
        let summary = history.finish(&base, &self.site.key, &self.site.simulator).await;
        println!("{summary:?}");
        assert!(summary.messages > 0 && summary.sent == summary.messages, "{summary:?}");
        assert_eq!(summary.entries, summary.messages, "{summary:?}");
    }

    pub(crate) fn simulator(&self) -> &Simulator {
        &self.site.simulator
    }

    pub(crate) fn target(&self) -> Target {
        Target { address: self.address, key: self.site.key.clone() }
    }

    /// The listener in Resend's shape, if it is configured.
    pub(crate) fn resend_target(&self) -> Target {
        let address = self.process.resend_listening().parse().unwrap();
        Target { address, key: self.site.key.clone() }
    }

    /// Adds an organisation of its own, which may send from `example.com` as well; gives the same
    /// address with its key.
    pub(crate) fn add_organisation(&self, name: &str) -> Target {
        Target { address: self.address, key: self.site.add_organisation(name, "example.com") }
    }

    /// Waits until hardly more files are open than so many: connections to the provider stay.
    pub(crate) async fn until_open_files_are(&self, before: usize) {
        let end = Instant::now() + PATIENCE;
        while self.process.open_files() > before + 40 {
            assert!(Instant::now() < end, "{} open, {before} before", self.process.open_files());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
