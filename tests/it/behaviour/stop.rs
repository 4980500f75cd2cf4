//! Exit codes and last words of a stop.

use std::time::Duration;

use pillarbox::simulator::Options;

use crate::kit::{PATIENCE, Server, Site, message};

const UNIT: &str = include_str!("../../../systemd/pillarbox.service");

/// Ends the service in order; gives its exit code and all that it logged.
async fn stop(server: Server) -> (Option<i32>, String) {
    server.signal("TERM");
    let ended = tokio::task::spawn_blocking(move || server.process.wait_at_most(PATIENCE));
    ended.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_loses_messages_exits_with_71_and_counts_them() {
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let site = Site::with("[sending]\ndrain = \"300ms\"", slow).await;
    let server = site.start();
    for _ in 0..3 {
        server.send(&message()).await;
    }
    let (code, log) = stop(server).await;
    assert_eq!(code, Some(71), "{log}");
    assert!(log.contains("stopped bodies_lost=3"), "{log}");
    assert!(log.contains("messages=3"), "{log}");
    assert!(log.contains("3 messages failed with body_lost_on_restart"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_sends_everything_exits_with_0() {
    let site = Site::new().await;
    let server = site.start();
    for _ in 0..3 {
        server.send(&message()).await;
    }
    let (code, log) = stop(server).await;
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("stopped bodies_lost=0"), "{log}");
}

#[test]
fn the_unit_takes_a_stop_that_lost_messages_for_a_stop() {
    for setting in ["SuccessExitStatus=", "RestartPreventExitStatus="] {
        let lines = UNIT.lines().filter_map(|line| line.strip_prefix(setting));
        let codes: Vec<&str> = lines.flat_map(|codes| codes.split(' ')).collect();
        assert!(codes.contains(&"71"), "{setting}{codes:?}");
    }
}
