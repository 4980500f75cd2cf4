//! A site: the directory, the configuration and the simulated provider of a service that runs as a
//! process, also several times in a row.
//!
//! Must not know requests.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::time::Timestamp;
use pillarbox_simulator::{Credentials, Options, Simulator};
use pillarbox_store::Store;
use serde_json::Value;
use tempfile::TempDir;

use super::database::{Database, is_on_postgres};
use super::local::open_store;
use super::process::{Process, pillarbox};
use super::server::Server;
use super::start_simulator;

/// The simulator's key pair. The secret must appear nowhere.
pub(crate) const AWS_ACCESS_KEY: &str = "AKIDEXAMPLE";
pub(crate) const AWS_SECRET: &str = "PLANTED-SECRET-9e107d9d372bb6826bd81d3542a419d6";
/// Ends a shell script in the service: the binary is its argument 0, the configuration argument 1.
const EXEC: &str = "exec \"$0\" serve --config \"$1\"";

pub(crate) struct Site {
    directory: TempDir,
    data: PathBuf,
    pub(crate) simulator: Simulator,
    /// The key of `acme`.
    pub(crate) key: String,
}

impl Site {
    /// A site with the organisation `acme`, its domain `example.com` and a key.
    pub(crate) async fn new() -> Self {
        Self::with("", Options::default()).await
    }

    /// The same with more configuration, as TOML to follow the basics, and other options of the
    /// simulator.
    pub(crate) async fn with(more: &str, options: Options) -> Self {
        let mut site = Self::empty(more, options).await;
        site.key = site.add_organisation("acme", "example.com");
        site
    }

    /// A site without organisations.
    pub(crate) async fn empty(more: &str, options: Options) -> Self {
        let credentials = Credentials::Only {
            access_key_id: AWS_ACCESS_KEY.to_owned(),
            secret_access_key: AWS_SECRET.to_owned(),
        };
        let verified = vec!["example.com".to_owned()];
        let simulator = start_simulator(Options { verified, credentials, ..options }).await;
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let site = Self { directory, data, simulator, key: String::new() };
        site.configure(more, &format!("endpoint = \"{}\"\n", site.simulator.endpoint()));
        site
    }

    /// Writes the configuration: `more` as TOML to follow the basics, `ses` for the table `[ses]`.
    pub(crate) fn configure(&self, more: &str, ses: &str) {
        let (root, data) = (self.directory.path().display(), self.data.display());
        let text = format!(
            "listen = \"127.0.0.1:0\"\noperator_listen = \"127.0.0.1:0\"\n\
             data_dir = \"{data}\"\nadmin_socket = \"{root}/admin.sock\"\n{more}\n\
             [ses]\n{ses}"
        );
        let database = self.database().filter(|_| !text.contains("[store]"));
        let store = database.map(|database| {
            database.create();
            database.configuration()
        });
        std::fs::write(self.config(), text + &store.unwrap_or_default()).unwrap();
    }

    /// Changes the configuration file.
    pub(crate) fn reconfigure(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.config()).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(self.config(), text.replace(from, to)).unwrap();
    }

    /// Puts the data directory to another place. What is in it stays behind.
    pub(crate) fn move_data_to(&mut self, data: PathBuf) {
        let line = |data: &Path| format!("data_dir = \"{}\"", data.display());
        self.reconfigure(&line(&self.data), &line(&data));
        self.data = data;
    }

    /// Has the service read the simulator's events.
    pub(crate) fn read_events(&self) {
        let text = std::fs::read_to_string(self.config()).unwrap();
        let queue = self.simulator.queue_url();
        std::fs::write(self.config(), format!("{text}[ses.events]\nqueue_url = \"{queue}\"\n"))
            .unwrap();
    }

    /// The directory of everything.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Path of the configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.directory.path().join("pillarbox.toml")
    }

    /// The directory of the data file.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.data.clone()
    }

    /// The site's database, if its store is on `PostgreSQL`.
    pub(crate) fn database(&self) -> Option<Database> {
        is_on_postgres().then(|| Database::of(self.directory.path()))
    }

    /// Opens the store in the test's own process, while no service runs.
    pub(crate) async fn open_store(&self, now: Timestamp) -> Store {
        match self.database() {
            Some(database) => database.open(&self.data_dir(), now).await,
            None => open_store(&self.data_dir(), now),
        }
    }

    /// Makes a backup, also of a service that runs.
    pub(crate) fn back_up(&self, path: &Path) {
        match self.database() {
            Some(database) => database.back_up(path),
            None => drop(self.done(&["backup", path.to_str().unwrap()])),
        }
    }

    /// Puts a backup in the place of the store, while no service runs.
    pub(crate) fn restore(&self, path: &Path) {
        match self.database() {
            Some(database) => database.restore(path),
            None => drop(self.done(&["restore", "--replace", path.to_str().unwrap()])),
        }
    }

    /// Takes the store away from the running service.
    pub(crate) fn take_store_away(&self) {
        match self.database() {
            Some(database) => database.cut_off(),
            None => std::fs::rename(self.data_file(), self.data_file_away()).unwrap(),
        }
    }

    /// Gives the service the store back.
    pub(crate) fn give_store_back(&self) {
        match self.database() {
            Some(database) => database.let_in(),
            None => std::fs::rename(self.data_file_away(), self.data_file()).unwrap(),
        }
    }

    fn data_file(&self) -> PathBuf {
        self.data_dir().join("pillarbox.redb")
    }

    fn data_file_away(&self) -> PathBuf {
        self.directory.path().join("away")
    }

    /// A command line of this site.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = pillarbox(arguments);
        command.arg("--config").arg(self.config());
        command.env("AWS_ACCESS_KEY_ID", AWS_ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", AWS_SECRET);
        command
    }

    /// Runs an administration command; on `PostgreSQL` beside a service.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let socket = self.directory.path().join("admin.sock");
        if UnixStream::connect(socket).is_ok() {
            return self.run_alone(arguments);
        }
        let server = self.start_for_commands();
        let output = self.run_alone(arguments);
        if let Some(server) = server {
            server.signal("TERM");
            server.process.wait();
        }
        output
    }

    /// Runs an administration command, and starts no service for it.
    pub(crate) fn run_alone(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts the service if administration commands need one: on `PostgreSQL` there is no file that
    /// they could work on by themselves.
    pub(crate) fn start_for_commands(&self) -> Option<Server> {
        is_on_postgres().then(|| self.start())
    }

    /// Runs an administration command that must succeed.
    pub(crate) fn done(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output
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

    /// Starts the service and waits until it listens.
    pub(crate) fn start(&self) -> Server {
        self.start_by(self.service())
    }

    /// Starts the service by a command line made from [`Self::service`] or its like.
    pub(crate) fn start_by(&self, command: Command) -> Server {
        Server::new(Process::spawn(command), &self.key)
    }

    /// Starts the service with more in its environment.
    pub(crate) fn start_with(&self, variables: &[(&str, &str)]) -> Server {
        let mut command = self.service();
        command.envs(variables.iter().copied());
        self.start_by(command)
    }

    /// Starts the service on a listening socket of ours, as systemd hands it over: as descriptor 3.
    pub(crate) fn start_on(&self, listener: &std::net::TcpListener) -> Server {
        self.start_on_named(listener, "")
    }

    /// The same with a name for the socket (`FileDescriptorName=`).
    pub(crate) fn start_on_named(&self, listener: &std::net::TcpListener, name: &str) -> Server {
        let script = format!(
            "exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_FDNAMES={name} LISTEN_PID=$$;"
        );
        let mut command = self.service_after(&script);
        command.stdin(OwnedFd::from(listener.try_clone().unwrap()));
        self.start_by(command)
    }

    /// The command line of the service.
    pub(crate) fn service(&self) -> Command {
        self.service_after("")
    }

    /// The command line of the service by another binary.
    pub(crate) fn service_by(&self, binary: &str) -> Command {
        self.service_in("sh", &["-c", EXEC, binary])
    }

    /// The command line of the service in a shell, after a script such as `umask 077 &&`.
    pub(crate) fn service_after(&self, script: &str) -> Command {
        let script = format!("{script} {EXEC}");
        self.service_in("sh", &["-c", &script, env!("CARGO_BIN_EXE_pillarbox")])
    }

    /// The command line of the service with its data on a file system of this size, which it alone
    /// sees.
    pub(crate) fn service_on_small_disk(&self, size: &str) -> Command {
        let (data, copy) = (self.data_dir(), self.directory.path().join("pillarbox.redb"));
        std::fs::copy(data.join("pillarbox.redb"), &copy).unwrap();
        let (data, copy) = (data.display(), copy.display());
        let script = format!(
            "mount -t tmpfs -o size={size} tmpfs '{data}' && cp '{copy}' '{data}' && {EXEC}"
        );
        self.service_apart(&script)
    }

    /// The same with all that its data directory holds now, after a script such as `: > file &&` that
    /// runs in the data directory.
    pub(crate) fn service_on_small_disk_after(&self, size: &str, script: &str) -> Command {
        let (data, copy) = (self.data_dir(), self.directory.path().join("copy"));
        let (data, copy) = (data.display(), copy.display());
        self.service_apart(&format!(
            "cp -r '{data}' '{copy}' && mount -t tmpfs -o size={size} tmpfs '{data}' && cd '{data}' && \
             cp '{copy}'/* . && {script} cd / && {EXEC}"
        ))
    }

    /// The command line of the service in a group with this memory limit, as far as it can see.
    pub(crate) fn service_with_memory_limit(&self, bytes: u64) -> Command {
        self.service_apart(&format!(
            "mount -t tmpfs tmpfs /sys/fs/cgroup && echo {bytes} > /sys/fs/cgroup/memory.max && {EXEC}"
        ))
    }

    fn service_apart(&self, script: &str) -> Command {
        let binary = env!("CARGO_BIN_EXE_pillarbox");
        self.service_in("unshare", &["--map-root-user", "--mount", "sh", "-c", script, binary])
    }

    /// The command line of a program that ends in the service, with the configuration as its last
    /// argument. It has nothing of the test's environment that configures it.
    pub(crate) fn service_in(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).arg(self.config());
        // One by one: with another path of programs, std forks, and until the child becomes its
        // program it keeps the files that other tests have locked.
        for (name, _) in std::env::vars_os() {
            let bytes = name.as_encoded_bytes();
            let is_proxy = bytes.to_ascii_uppercase().ends_with(b"_PROXY");
            if is_proxy || bytes.starts_with(b"PILLARBOX_") || bytes.starts_with(b"AWS_") {
                command.env_remove(name);
            }
        }
        command.env("AWS_ACCESS_KEY_ID", AWS_ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", AWS_SECRET);
        command.env("RUST_LOG", "trace");
        command
    }
}
