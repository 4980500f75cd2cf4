//! One harness for the tests that run the real binary: a site with its own directory,
//! configuration, simulator and API key, and the server that runs on it.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pillarbox::domain::api_key::ApiKey;
use pillarbox::simulator::{Credentials, Options, Simulator};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// How long anything that happens by itself may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The simulator's key pair. The secret must appear nowhere.
pub(crate) const AWS_ACCESS_KEY: &str = "AKIDEXAMPLE";
pub(crate) const AWS_SECRET: &str = "PLANTED-SECRET-9e107d9d372bb6826bd81d3542a419d6";

/// A place where the service can run, also several times in a row.
pub(crate) struct Site {
    directory: TempDir,
    config: PathBuf,
    pub(crate) simulator: Simulator,
    pub(crate) key: String,
}

impl Site {
    /// A site with the organisation `acme`, its domain `example.com` and a key.
    pub(crate) async fn new() -> Self {
        Self::with("", Options::default()).await
    }

    /// A site with more configuration, as TOML to follow the basics, and a simulator of its own.
    pub(crate) async fn with(more: &str, options: Options) -> Self {
        install_crypto();
        let directory = tempfile::tempdir().unwrap();
        let credentials = Credentials::Only {
            access_key_id: AWS_ACCESS_KEY.to_owned(),
            secret_access_key: AWS_SECRET.to_owned(),
        };
        let verified = vec!["example.com".to_owned()];
        let options = Options { verified, credentials, ..options };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let simulator = Simulator::start(listener, options).await;
        let config = directory.path().join("pillarbox.toml");
        let root = directory.path().display();
        let text = format!(
            "listen = \"127.0.0.1:0\"\noperator_listen = \"127.0.0.1:0\"\n\
             data_dir = \"{root}/data\"\nadmin_socket = \"{root}/admin.sock\"\n{more}\n\
             [ses]\nendpoint = \"{}\"\n",
            simulator.endpoint()
        );
        std::fs::write(&config, text).unwrap();
        std::fs::create_dir(directory.path().join("data")).unwrap();
        let mut site = Self { directory, config, simulator, key: String::new() };
        site.key = site.add_organisation("acme", "example.com");
        site
    }

    /// Adds an organisation with a domain, by the command line; gives its key.
    pub(crate) fn add_organisation(&self, name: &str, domain: &str) -> String {
        self.done(&["org", "add", name]);
        self.done(&["domain", "add", "--org", name, domain, "--assume-verified"]);
        let output = self.done(&["key", "add", "--org", name, "--json"]);
        let key: Value = serde_json::from_slice(&output.stdout).unwrap();
        let key = key["key"].as_str().unwrap().to_owned();
        assert!(ApiKey::parse(&key).is_ok());
        key
    }

    /// Runs an administration command.
    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        command.args(arguments).arg("--config").arg(&self.config).output().unwrap()
    }

    /// Runs an administration command that must succeed.
    pub(crate) fn done(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output
    }

    /// Changes the configuration file.
    pub(crate) fn reconfigure(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.config).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&self.config, text.replace(from, to)).unwrap();
    }

    /// Has the service read the simulator's events.
    pub(crate) fn read_events(&self) {
        let mut text = std::fs::read_to_string(&self.config).unwrap();
        let queue = self.simulator.queue_url();
        text = format!("{text}[ses.events]\nqueue_url = \"{queue}\"\n");
        std::fs::write(&self.config, text).unwrap();
    }

    /// The directory of the data file.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Starts the service and waits until it listens.
    pub(crate) fn start(&self) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        command.args(["serve", "--config"]).arg(&self.config);
        self.spawn(command)
    }

    /// Starts the service with more in its environment.
    pub(crate) fn start_with(&self, variables: &[(&str, &str)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        command.args(["serve", "--config"]).arg(&self.config).envs(variables.iter().copied());
        self.spawn(command)
    }

    /// Starts the service with the AWS credentials of this shared file alone.
    pub(crate) fn start_with_credentials_file(&self, file: &std::path::Path) -> Server {
        let mut command = Command::new("sh");
        let script =
            "unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY; exec \"$0\" serve --config \"$1\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_pillarbox")]).arg(&self.config);
        command.env("AWS_SHARED_CREDENTIALS_FILE", file).env("AWS_CONFIG_FILE", "/dev/null");
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        self.spawn(command)
    }

    /// Starts the service by a program that ends in it, such as one that hands a socket over.
    #[cfg(feature = "interop")]
    pub(crate) fn start_by(&self, program: &str, arguments: &[&str]) -> Server {
        let mut command = Command::new(program);
        command.args(arguments).arg(env!("CARGO_BIN_EXE_pillarbox"));
        command.args(["serve", "--config"]).arg(&self.config);
        self.spawn(command)
    }

    /// The directory of everything.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Starts the service on a listening socket of ours, as systemd hands it over: as descriptor 3.
    pub(crate) fn start_on(&self, listener: &std::net::TcpListener) -> Server {
        let mut command = Command::new("sh");
        let script =
            "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" serve --config \"$1\" 3<&0 0</dev/null";
        command.args(["-c", script, env!("CARGO_BIN_EXE_pillarbox")]).arg(&self.config);
        command.stdin(OwnedFd::from(listener.try_clone().unwrap()));
        self.spawn(command)
    }

    /// Starts the service with this umask.
    pub(crate) fn start_with_umask(&self, umask: &str) -> Server {
        let mut command = Command::new("sh");
        let script = "umask \"$2\" && exec \"$0\" serve --config \"$1\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_pillarbox")]).arg(&self.config).arg(umask);
        self.spawn(command)
    }

    /// Starts the service with its standard error in the journal, as systemd says it.
    pub(crate) fn start_in_journal(&self) -> Server {
        let mut command = Command::new("sh");
        let script = "JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) \
                      exec \"$0\" serve --config \"$1\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_pillarbox")]).arg(&self.config);
        self.spawn(command)
    }

    /// Starts the service with its data on a file system of this size, which it alone sees.
    #[cfg(feature = "interop")]
    pub(crate) fn start_on_small_disk(&self, size: &str) -> Server {
        let script = "mount -t tmpfs -o size=$2 tmpfs \"$3\" && cp \"$4\" \"$3\" && \
                      exec \"$0\" serve --config \"$1\"";
        let data = self.data_dir();
        let copy = self.directory.path().join("pillarbox.redb");
        std::fs::copy(data.join("pillarbox.redb"), &copy).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]);
        command.arg(env!("CARGO_BIN_EXE_pillarbox")).arg(&self.config).arg(size);
        command.arg(data).arg(copy);
        self.spawn(command)
    }

    fn spawn(&self, mut command: Command) -> Server {
        let mut child = command
            .env("AWS_ACCESS_KEY_ID", AWS_ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", AWS_SECRET)
            .env("RUST_LOG", "trace")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let (found, address) = mpsc::channel();
        let lines = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
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
        // Its address is logged first.
        let operator = {
            let log = log.lock().unwrap();
            let (_, rest) = log.split_once("operators look at ").unwrap();
            format!("http://{}", rest.lines().next().unwrap().trim())
        };
        Server {
            base: format!("http://{address}"),
            operator,
            key: self.key.clone(),
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            child,
            log,
            reader: Some(reader),
        }
    }
}

/// reqwest is built without a provider of cryptography; plain HTTP asks for one all the same.
pub(crate) fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The service as a process.
pub(crate) struct Server {
    pub(crate) base: String,
    /// Where operators look.
    pub(crate) operator: String,
    pub(crate) key: String,
    pub(crate) client: reqwest::Client,
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Server {
    /// A POST of JSON to `/emails` with the site's key.
    pub(crate) fn post(&self, body: &Value) -> RequestBuilder {
        self.post_bytes(body.to_string())
    }

    /// A POST of these bytes to `/emails` with the site's key.
    pub(crate) fn post_bytes(&self, body: impl Into<reqwest::Body>) -> RequestBuilder {
        let request = self.client.post(format!("{}/emails", self.base)).bearer_auth(&self.key);
        request.header("content-type", "application/json").body(body)
    }

    /// A GET with the site's key.
    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.base)).bearer_auth(&self.key)
    }

    /// A GET on the operator listener.
    pub(crate) async fn operator(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.operator)).send().await.unwrap()
    }

    /// Sends a message that must be accepted; gives its id.
    pub(crate) async fn send(&self, body: &Value) -> String {
        let response = self.post(body).send().await.unwrap();
        let (status, body) = answer(response).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    /// Reads a record that must be there.
    pub(crate) async fn record(&self, id: &str) -> Value {
        let (status, body) = answer(self.get(&format!("/emails/{id}")).send().await.unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }

    /// Waits until a message has this status.
    pub(crate) async fn wait_for(&self, id: &str, status: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let record = self.record(id).await;
            if record["status"] == status {
                return record;
            }
            assert!(Instant::now() < end, "still no {status}: {record}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The memory that the process has resident, in bytes.
    pub(crate) fn resident_bytes(&self) -> usize {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
    }

    /// A path of the process's own file systems, as others reach it.
    #[cfg(feature = "interop")]
    pub(crate) fn seen_from_outside(&self, path: &std::path::Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.child.id()));
        root.join(path.strip_prefix("/").unwrap())
    }

    /// Sends the process a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Ends the process as a crash does.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.finish()
    }

    /// What was logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Ends the process in order, and gives all that it logged. The simulator goes on meanwhile.
    pub(crate) async fn terminate(mut self) -> String {
        self.signal("TERM");
        tokio::task::spawn_blocking(move || {
            let status = self.child.wait().unwrap();
            assert!(status.success(), "{status}: {}", self.log.lock().unwrap());
            self.finish()
        })
        .await
        .unwrap()
    }

    /// Waits for the end of the process, however it comes.
    pub(crate) fn wait(mut self) {
        let _ = self.finish();
    }

    fn finish(&mut self) -> String {
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A message that is accepted.
pub(crate) fn message() -> Value {
    json!({
        "from": "Ann <ann@example.com>",
        "to": ["bob@example.org"],
        "subject": "Hello",
        "text": "How are you?",
    })
}

/// A message with one field changed; `null` takes the field out.
pub(crate) fn message_with(field: &str, value: Value) -> Value {
    let mut message = message();
    let fields = message.as_object_mut().unwrap();
    fields.insert(field.to_owned(), value);
    fields.retain(|_, value| !value.is_null());
    message
}

/// A response's status and JSON body.
pub(crate) async fn answer(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text:?}"));
    (status, body)
}

/// A refusal's status, code and field, after the shape of the answer has been checked.
pub(crate) async fn refusal(response: Response) -> (u16, String, Option<String>) {
    assert!(response.headers().contains_key("x-request-id"));
    assert_eq!(response.headers()["content-type"], "application/json");
    let (status, body) = answer(response).await;
    let error = &body["error"];
    assert!(!error["message"].as_str().unwrap().is_empty(), "{body}");
    let field = error.get("field").map(|field| field.as_str().unwrap().to_owned());
    let members = if field.is_some() { 3 } else { 2 };
    assert_eq!(error.as_object().unwrap().len(), members, "{body}");
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    (status.as_u16(), error["code"].as_str().unwrap().to_owned(), field)
}
