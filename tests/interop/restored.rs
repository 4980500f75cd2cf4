//! Data directories that come twice, and writes that the database refuses. `tests/with-postgres.sh`
//! starts the server.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::kit::{PATIENCE, Process, message};
use crate::nodes::{Nodes, psql};

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
    assert!(refused.1.contains("works on this database from another place"), "{}", refused.1);
    let id = first.send(&message()).await;
    first.wait_for(&id, "sent").await;

    // The original itself is there again at once after a crash.
    first.kill();
    let began = Instant::now();
    let first = nodes.start(0);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let id = first.send(&message()).await;
    first.wait_for(&id, "sent").await;

    // Once it is gone, the copy takes its place after a while.
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
