//! A place where the process lives and is killed: its directory, its configuration, its provider.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pillarbox::simulator::{EventOptions, Events, Fault, Faults, Options, QueueOptions, Simulator};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// How long anything that happens by itself may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
/// How soon an event that was handed out and not deleted comes again.
const VISIBILITY: Duration = Duration::from_secs(2);

pub(crate) struct Site {
    directory: TempDir,
    config: PathBuf,
    pub(crate) simulator: Simulator,
}

impl Site {
    /// A site without a data file, whose provider loses, delays and refuses some of the calls.
    pub(crate) async fn new(seed: u64) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let faults = Faults::none()
            .with_probability(Fault::ResetAfter, 0.03)
            .and_then(|faults| faults.with_probability(Fault::ResetBefore, 0.03))
            .and_then(|faults| faults.with_probability(Fault::InternalErrorAfter, 0.02))
            .and_then(|faults| faults.with_probability(Fault::Unavailable, 0.02))
            .and_then(|faults| faults.with_probability(Fault::Throttled, 0.01))
            .and_then(|faults| faults.with_probability(Fault::Rejected, 0.02))
            .unwrap();
        let options = Options {
            latency: Duration::from_millis(5),
            verified: vec!["example.com".to_owned()],
            faults,
            seed,
            events: Events::On(EventOptions::after(Duration::from_millis(50))),
            queue: QueueOptions { visibility_timeout: VISIBILITY, ..QueueOptions::default() },
            ..Options::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let simulator = Simulator::start(listener, options).await;
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("pillarbox.toml");
        let root = directory.path().display();
        let text = format!(
            "listen = \"127.0.0.1:0\"\noperator_listen = \"127.0.0.1:0\"\n\
             data_dir = \"{root}/data\"\nadmin_socket = \"{root}/admin.sock\"\n\
             [sending]\non_unknown = \"fail\"\nretry_initial = \"100ms\"\nretry_max = \"500ms\"\n\
             [ses]\nendpoint = \"{}\"\n[ses.events]\nqueue_url = \"{}\"\n",
            simulator.endpoint(),
            simulator.queue_url()
        );
        std::fs::write(&config, text).unwrap();
        Self { directory, config, simulator }
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Begins to start the service.
    pub(crate) fn spawn(&self) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
            .args(["serve", "--config"])
            .arg(&self.config)
            .env("AWS_ACCESS_KEY_ID", "simulator")
            .env("AWS_SECRET_ACCESS_KEY", "simulator")
            .env("RUST_LOG", "warn,pillarbox::service=info")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (found, address) = mpsc::channel();
        let log = Arc::new(Mutex::new(String::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("listening on ") {
                    let _ = found.send(address.trim().to_owned());
                }
                let mut log = lines.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Process { child, address, log }
    }

    /// A command line of this site.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        command.args(arguments).arg("--config").arg(&self.config);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Makes the organisation with its domain; gives its key.
    pub(crate) fn found(&self) -> String {
        let done = |arguments: &[&str]| {
            let output = self.command(arguments).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            output.stdout
        };
        done(&["org", "add", "acme"]);
        done(&["domain", "add", "--org", "acme", "example.com", "--assume-verified"]);
        let key: Value =
            serde_json::from_slice(&done(&["key", "add", "--org", "acme", "--json"])).unwrap();
        key["key"].as_str().unwrap().to_owned()
    }
}

/// The process, killed when dropped.
pub(crate) struct Process {
    child: Child,
    address: mpsc::Receiver<String>,
    log: Arc<Mutex<String>>,
}

impl Process {
    /// Waits until it listens; gives its base address.
    pub(crate) fn listening(&self) -> String {
        let address = self.address.recv_timeout(PATIENCE);
        let address =
            address.unwrap_or_else(|_| panic!("does not start: {}", self.log.lock().unwrap()));
        format!("http://{address}")
    }

    /// The address of its operator listener, which it logs before it listens.
    pub(crate) fn operator(&self) -> String {
        let log = self.log();
        let (_, rest) = log.split_once("operators look at ").unwrap();
        format!("http://{}", rest.lines().next().unwrap().trim())
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
