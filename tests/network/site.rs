//! The real process with its provider, as a client on the network sees it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pillarbox::simulator::{Options, Simulator};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// How long anything that happens by itself may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Where clients connect, and with which key.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
}

pub(crate) struct Site {
    target: Target,
    config: PathBuf,
    child: Child,
    log: Arc<Mutex<String>>,
    pub(crate) simulator: Simulator,
    _directory: TempDir,
}

impl Site {
    /// Starts the service with more configuration, and with at most so many files open.
    pub(crate) async fn start(more: &str, files: Option<u32>) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let verified = vec!["example.com".to_owned()];
        let options = Options { verified, ..Options::default() };
        let simulator = Simulator::start(listener, options).await;
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("pillarbox.toml");
        let root = directory.path().display();
        let text = format!(
            "listen = \"127.0.0.1:0\"\noperator_listen = \"127.0.0.1:0\"\n\
             data_dir = \"{root}/data\"\nadmin_socket = \"{root}/admin.sock\"\n{more}\
             [ses]\nendpoint = \"{}\"\n",
            simulator.endpoint()
        );
        std::fs::write(&config, text).unwrap();
        std::fs::create_dir(directory.path().join("data")).unwrap();
        let key = found(&config, "acme", "example.com");
        let (child, address, log) = spawn(&config, files);
        let target = Target { address, key };
        Self { target, config, child, log, simulator, _directory: directory }
    }

    pub(crate) fn target(&self) -> Target {
        self.target.clone()
    }

    /// Adds an organisation of its own, which may send from `example.com` as well; gives the same
    /// address with its key.
    pub(crate) fn add_organisation(&self, name: &str) -> Target {
        let key = found(&self.config, name, "example.com");
        Target { address: self.target.address, key }
    }

    /// What was logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// How many files the process has open.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// The memory that the process takes, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let size = status.lines().find_map(|one| one.strip_prefix(line)).unwrap();
        size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// The most memory that the process has taken since [`Self::forget_peak`], in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Begins to look for the greatest memory anew.
    pub(crate) fn forget_peak(&self) {
        // proc_pid_clear_refs(5): 5 resets the peak to what is resident now.
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    /// The processor time that the process has used, in ticks (100 a second on Linux).
    pub(crate) fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // proc(5): the name in brackets is the second field, utime and stime are 14 and 15.
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Waits until hardly more files are open than so many: connections to the provider stay.
    pub(crate) async fn until_open_files_are(&self, before: usize) {
        let end = Instant::now() + PATIENCE;
        while self.open_files() > before + 40 {
            assert!(Instant::now() < end, "{} open, {before} before", self.open_files());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes an organisation with its domain; gives its key.
fn found(config: &PathBuf, name: &str, domain: &str) -> String {
    let done = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        let output = command.args(arguments).arg("--config").arg(config).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output.stdout
    };
    done(&["org", "add", name]);
    done(&["domain", "add", "--org", name, domain, "--assume-verified"]);
    let key: Value =
        serde_json::from_slice(&done(&["key", "add", "--org", name, "--json"])).unwrap();
    key["key"].as_str().unwrap().to_owned()
}

fn spawn(config: &PathBuf, files: Option<u32>) -> (Child, SocketAddr, Arc<Mutex<String>>) {
    let mut command = Command::new("sh");
    let limit = files.map_or_else(String::new, |files| format!("ulimit -n {files} && "));
    command.args(["-c", &format!("{limit}exec \"$0\" serve --config \"$1\"")]);
    let mut child = command
        .arg(env!("CARGO_BIN_EXE_pillarbox"))
        .arg(config)
        .env("AWS_ACCESS_KEY_ID", "simulator")
        .env("AWS_SECRET_ACCESS_KEY", "simulator")
        .env("RUST_LOG", "warn,pillarbox::service=info")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let log = Arc::new(Mutex::new(String::new()));
    let (found, address) = mpsc::channel();
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
    let address = address.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let _ = child.kill();
        panic!("the service did not start: {}", log.lock().unwrap())
    });
    (child, address.parse().unwrap(), log)
}
