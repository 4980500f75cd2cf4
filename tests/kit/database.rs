//! A site's database on `PostgreSQL`, if `TEST_ENGINE=postgres` says that sites have one instead of a
//! data file. `tests/with-postgres.sh` starts the server.
//!
//! Must not know what a site is.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pillarbox_domain::time::Timestamp;
use pillarbox_store::{ACCEPTING_CONNECTIONS, NodeIdentity, NodePlace, PostgresServer, Store};

/// Name of the only node of a site.
const NODE: &str = "a";
const USER: &str = "pillarbox";

/// True if sites have their store on `PostgreSQL`.
pub(crate) fn is_on_postgres() -> bool {
    std::env::var("TEST_ENGINE").is_ok_and(|engine| engine == "postgres")
}

/// Database of a site.
#[derive(Debug)]
pub(crate) struct Database {
    port: u16,
    name: String,
}

impl Database {
    /// The database of the site in this directory. It is made by [`Self::create`].
    pub(crate) fn of(directory: &Path) -> Self {
        let port = std::env::var("TEST_POSTGRES_PORT");
        let port = port.expect("run this with tests/with-postgres.sh").parse().unwrap();
        let name = directory.file_name().unwrap().to_str().unwrap();
        // Letters of both cases and dots: as numbers, so that no two sites have one database.
        let numbers: Vec<String> = name.bytes().map(|byte| byte.to_string()).collect();
        Self { port, name: format!("site_{}", numbers.join("_")) }
    }

    /// Makes it, unless it is there.
    pub(crate) fn create(&self) {
        let name = &self.name;
        let there = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
        if self.ask("postgres", &there) == "0" {
            self.ask("postgres", &format!("CREATE DATABASE {name}"));
        }
    }

    /// Configuration of a node on it.
    pub(crate) fn configuration(&self) -> String {
        let Self { port, name } = self;
        format!(
            "\n[store]\nengine = \"postgres\"\n[store.postgres]\nhosts = [\"127.0.0.1:{port}\"]\n\
             database = \"{name}\"\n[cluster]\nnode = \"{NODE}\"\n"
        )
    }

    /// Runs a statement; returns its answer as text.
    pub(crate) fn run(&self, sql: &str) -> String {
        self.ask(&self.name, sql)
    }

    /// Makes a backup by the server's own program.
    pub(crate) fn back_up(&self, path: &Path) {
        let mut dump = self.program("pg_dump");
        finished(dump.args(["--format=custom", "--file"]).arg(path).arg(&self.name));
    }

    /// Puts a backup in the place of everything.
    pub(crate) fn restore(&self, path: &Path) {
        let name = &self.name;
        self.ask("postgres", &format!("DROP DATABASE {name} WITH (FORCE)"));
        self.create();
        let mut restore = self.program("pg_restore");
        finished(restore.args(["--exit-on-error", "--dbname", name]).arg(path));
    }

    /// Closes all connections and refuses new ones.
    pub(crate) fn cut_off(&self) {
        let name = &self.name;
        self.ask("postgres", &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
        let of_it = format!("FROM pg_stat_activity WHERE datname = '{name}'");
        self.ask("postgres", &format!("SELECT pg_terminate_backend(pid) {of_it}"));
    }

    /// Allows connections again.
    pub(crate) fn let_in(&self) {
        self.ask("postgres", &format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", self.name));
    }

    /// Joins it in the test's own process, as the node whose data directory this is. The node's next
    /// start takes its place.
    pub(crate) async fn open(&self, data_dir: &Path, now: Timestamp) -> Store {
        let file = data_dir.join("node");
        if !file.exists() {
            std::fs::write(&file, [1; 16]).unwrap();
        }
        let place = NodePlace::of(&std::fs::File::open(&file).unwrap()).unwrap();
        let directory = std::fs::read(file).unwrap().try_into().unwrap();
        let identity = NodeIdentity {
            name: NODE.to_owned(),
            directory,
            place,
            dead_after: Duration::from_mins(3),
            least_dead_after: Duration::ZERO,
        };
        let server = PostgresServer {
            hosts: vec![("127.0.0.1".to_owned(), self.port)],
            database: self.name.clone(),
            user: USER.to_owned(),
            password: None,
            authorities: None,
            accepting_connections: ACCEPTING_CONNECTIONS,
        };
        Store::connect(&server, identity, Duration::from_secs(8), |_| now).await.unwrap().0
    }

    fn ask(&self, database: &str, sql: &str) -> String {
        finished(self.program("psql").args(["-qAt", database, "-c", sql]))
    }

    /// One of the programs beside the server.
    fn program(&self, name: &str) -> Command {
        let mut program = Command::new(name);
        program.args(["-h", "127.0.0.1", "-U", USER, "-p", &self.port.to_string()]);
        program
    }
}

fn finished(program: &mut Command) -> String {
    let output = program.output().expect("the server's programs are beside it");
    assert!(output.status.success(), "{program:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}
