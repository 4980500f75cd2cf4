//! The engine on PostgreSQL under faults of its own. `tests/with-postgres.sh` starts the server.

use pillarbox::simulator::Options;

use crate::kit::{PATIENCE, Server, Site, message};
use crate::nodes::{configuration, psql};

/// A node on a database of its own.
async fn node(database: &str) -> (Site, Server) {
    psql("postgres", &format!("CREATE DATABASE {database}"));
    let mut site = Site::empty(&configuration("a", database), Options::default()).await;
    let server = site.start();
    site.key = site.add_organisation("acme", "example.com");
    let server = Server { key: site.key.clone(), ..server };
    (site, server)
}

/// A column gets a type that the node does not know, so that the task that reads it panics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_engine_panics_ends_with_70() {
    let (_site, server) = node("engine_panic").await;
    server.send(&message()).await;
    psql("engine_panic", "ALTER TABLE cluster ALTER directory_version TYPE integer");
    psql(
        "engine_panic",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    let ended = tokio::task::spawn_blocking(move || server.process.wait_at_most(PATIENCE));
    let (code, log) = ended.await.unwrap();
    assert_eq!(code, Some(70), "{log}");
    assert!(log.contains("changes of other nodes"), "{log}");
}
