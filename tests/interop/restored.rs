//! Servers and data directories that come back, or come twice. `tests/with-postgres.sh` starts the
//! server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use crate::kit::{PATIENCE, Process, Server, Site, free_port, message};
use crate::nodes::{Nodes, configuration, psql};

/// A machine was cloned with a node that runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_live_nodes_data_directory_does_not_take_its_place() {
    let (nodes, first) = Nodes::new("copied_directory").await;
    let [one, two] = &nodes.sites;
    let original = one.data_dir().join("node");
    std::fs::copy(&original, two.data_dir().join("node")).unwrap();
    two.reconfigure("node = \"b\"", "node = \"a\"");
    let refused = Process::spawn(two.service()).wait_at_most(PATIENCE);
    assert_eq!(refused.0, Some(1), "{}", refused.1);
    assert!(refused.1.contains("uses this database, from another machine"), "{}", refused.1);
    let id = first.send(&message()).await;
    first.wait_for(&id, "sent").await;

    // The original itself is there again at once after a crash.
    first.kill();
    let began = Instant::now();
    let first = nodes.start(0);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let id = first.send(&message()).await;
    first.wait_for(&id, "sent").await;

    // Once it has ended, the copy takes its place after a while.
    first.kill();
    let began = Instant::now();
    let copy = nodes.start(1);
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(24) && took < Duration::from_secs(50), "{took:?}");
    let id = copy.send(&message()).await;
    copy.wait_for(&id, "sent").await;
}

/// The server refuses an outcome, and takes everything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_is_tried_again_more_and_more_rarely_and_is_a_line_a_minute() {
    let (nodes, _first) = Nodes::new("refused_writes").await;
    let second = nodes.start(1);
    psql(
        "refused_writes",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'refused by the test'; END $$; \
         CREATE SEQUENCE refused; \
         CREATE TRIGGER refuse BEFORE UPDATE ON message FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
    );
    let id = second.send(&message()).await;
    sleep(Duration::from_secs(12)).await;
    let log = second.log();
    let lines = log.lines().filter(|line| line.contains("PostgreSQL refused a request")).count();
    assert_eq!(lines, 1, "{log}");
    assert!(log.lines().filter(|line| line.contains("refused by the test")).count() <= 3, "{log}");
    psql("refused_writes", "DROP TRIGGER refuse ON message");
    second.wait_for(&id, "sent").await;
    assert_eq!(nodes.sites[0].simulator.accepted_total(), 1, "it was sent once");
}

/// A standby of the tests' server, which takes over from it for one of its databases' nodes.
struct Standby {
    directory: TempDir,
    bin: PathBuf,
    port: u16,
}

impl Standby {
    /// Copies the server, and starts the copy as its standby.
    fn start() -> Self {
        let primary = std::env::var("TEST_POSTGRES_PORT").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let bin = newest_server();
        let standby = Self { directory, bin, port: free_port() };
        let owned = Command::new("chown").arg("nobody").arg(standby.root()).status().unwrap();
        assert!(owned.success());
        let data = standby.data();
        standby.run(
            "pg_basebackup",
            &["-h", "127.0.0.1", "-p", &primary, "-U", "pillarbox", "-R", "-D", &data],
            &["--checkpoint=fast", "--no-sync"],
        );
        let log = format!("{}/log", standby.root().display());
        let options = format!(
            "-p {} -k {} -c listen_addresses=127.0.0.1 -c hot_standby=on -c fsync=off \
             -c max_connections=1000",
            standby.port,
            standby.root().display()
        );
        standby.run("pg_ctl", &["-D", &data, "-l", &log, "-w", "-o", &options], &["start"]);
        standby
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    fn data(&self) -> String {
        format!("{}/data", self.root().display())
    }

    fn psql(&self, database: &str, sql: &str) -> String {
        let port = self.port.to_string();
        let run = Command::new("psql")
            .args(["-h", "127.0.0.1", "-p", &port, "-U", "pillarbox", "-qAt", database, "-c", sql])
            .output()
            .unwrap();
        String::from_utf8(run.stdout).unwrap()
    }

    fn promote(&self) {
        self.run("pg_ctl", &["-D", &self.data(), "-w"], &["promote"]);
    }

    fn run(&self, program: &str, arguments: &[&str], more: &[&str]) {
        let mut command = as_nobody(self.bin.join(program).to_str().unwrap(), arguments);
        let output = command.args(more).current_dir(self.root()).output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let data = self.data();
        let mut stop = as_nobody(self.bin.join("pg_ctl").to_str().unwrap(), &["-D", &data]);
        let _ = stop.args(["-m", "immediate", "stop"]).stdout(Stdio::null()).status();
    }
}

/// A program of the server, which does not run as root.
fn as_nobody(program: &str, arguments: &[&str]) -> Command {
    let mut command = if rustix::process::getuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", program]);
        command
    } else {
        Command::new(program)
    };
    command.args(arguments);
    command
}

/// The newest programs of a `PostgreSQL` server on this machine.
fn newest_server() -> PathBuf {
    if let Some(directory) = std::env::var_os("POSTGRES_BIN") {
        return PathBuf::from(directory);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.unwrap().path()).max_by_key(number);
    newest.unwrap().join("bin")
}

/// A standby took over. Then the old primary is there again, and takes writes, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_comes_back_is_left_alone() {
    const DATABASE: &str = "old_primary";
    psql("postgres", &format!("CREATE DATABASE {DATABASE}"));
    let old: u16 = std::env::var("TEST_POSTGRES_PORT").unwrap().parse().unwrap();
    // In front of the old primary, which all other tests use.
    let door = Door::open(old);
    let mut site = Site::empty(&configuration("a", DATABASE), Options::default()).await;
    let standby = Standby::start();
    let hosts =
        |first: u16, second: u16| format!("[\"127.0.0.1:{first}\", \"127.0.0.1:{second}\"]");
    site.reconfigure(&format!("[\"127.0.0.1:{old}\"]"), &hosts(door.port, standby.port));
    let server = site.start();
    site.key = site.add_organisation("acme", "example.com");
    let server = Server { key: site.key.clone(), ..server };
    let mut ids = vec![server.send(&message()).await];
    server.wait_for(&ids[0], "sent").await;
    until_copied(&standby, DATABASE);

    door.shut();
    standby.promote();
    ids.push(send_patiently(&server).await);
    door.reopen();
    // New connections, again and again.
    for round in 0..40 {
        standby.psql(
            DATABASE,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = \
             current_database() AND pid <> pg_backend_pid()",
        );
        sleep(Duration::from_millis(50)).await;
        for id in &ids {
            let answer = server.get(&format!("/emails/{id}")).send().await.unwrap();
            let status = answer.status();
            assert!(status == 200 || status == 503, "{round}: {status}: {}", server.log());
        }
    }
    for _ in 0..5 {
        ids.push(send_patiently(&server).await);
    }
    for id in &ids {
        let record = server.wait_for(id, "sent").await;
        assert_eq!(record["attempts"], 1, "{record}");
    }
    let here = standby.psql(DATABASE, "SELECT count(*) FROM message");
    assert_eq!(here.trim(), ids.len().to_string());
    let log = server.log();
    assert!(log.contains("older than that of the server that this node used last"), "{log}");

    // A start finds the right one as well, though both take writes.
    server.terminate().await;
    let server = site.start();
    let server = Server { key: site.key.clone(), ..server };
    for id in &ids {
        assert_eq!(server.record(id).await["status"], "sent");
    }
}

/// Posts a message until it is accepted.
async fn send_patiently(server: &Server) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = server.post(&message()).send().await.unwrap();
        if answer.status() == 200 {
            let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
            return answer["id"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < end, "it does not go on: {}", server.log());
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until a standby has the outcome of the one message.
fn until_copied(standby: &Standby, database: &str) {
    let end = Instant::now() + PATIENCE;
    while standby.psql(database, "SELECT count(*) FROM feed").trim() != "1" {
        assert!(Instant::now() < end, "the standby does not follow");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Way to a server that can be shut: a machine that is paused takes connections and answers nothing.
struct Door {
    port: u16,
    is_shut: tokio::sync::watch::Sender<bool>,
}

impl Door {
    fn open(server: u16) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let is_shut = tokio::sync::watch::Sender::new(false);
        let door = is_shut.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = tokio::net::TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(from_client, to_server, door.subscribe()));
                tokio::spawn(pass(from_server, to_client, door.subscribe()));
            }
        });
        Self { port, is_shut }
    }

    fn shut(&self) {
        self.is_shut.send_replace(true);
    }

    fn reopen(&self) {
        self.is_shut.send_replace(false);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut is_shut: tokio::sync::watch::Receiver<bool>,
) {
    let mut bytes = [0; 8192];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if is_shut.wait_for(|is_shut| !is_shut).await.is_err() {
            return;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
