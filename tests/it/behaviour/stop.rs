//! Exit codes and last words of a stop, and exit codes of `status`.

use std::time::Duration;

use pillarbox_simulator::{Fault, Faults, Options};
use serde_json::Value;

use crate::kit::{Finished, PATIENCE, Server, Site, is_on_postgres, message};

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
async fn a_stop_that_waits_says_what_a_second_signal_does() {
    let site = Site::new().await;
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    let server = site.start();
    server.send(&message()).await;
    server.signal("INT");
    let end = std::time::Instant::now() + PATIENCE;
    while !server.process.log().contains("A second signal (Ctrl-C again) stops at once") {
        assert!(std::time::Instant::now() < end, "{}", server.process.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (code, log) = stop(server).await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the next start marks all that is not sent as failed unsent=1"), "{log}");
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

#[tokio::test(flavor = "multi_thread")]
async fn status_exits_with_1_if_no_service_runs_or_a_critical_condition_holds() {
    let site = Site::new().await;
    let status = async |arguments: &[&str]| {
        Finished::run(site.command(&[&["status"], arguments].concat())).await
    };
    let none = status(&[]).await;
    assert_eq!(none.code, 1, "{none:?}");
    if !is_on_postgres() {
        assert!(none.out.contains("no service is running"), "{none:?}");
        let none = status(&["--json"]).await;
        assert_eq!(none.code, 1, "{none:?}");
        let document: Value = serde_json::from_str(&none.out).unwrap();
        assert_eq!(document["uptimeSeconds"], Value::Null);
    }

    let server = site.start();
    crate::behaviour::operator::wait_until_ready(&server).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let well = status(&[]).await;
    assert_eq!(well.code, 0, "{well:?}");

    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    server.send(&message()).await;
    let end = std::time::Instant::now() + PATIENCE;
    let ill = loop {
        let ill = status(&["--json"]).await;
        if ill.code != 0 {
            break ill;
        }
        assert!(std::time::Instant::now() < end, "{ill:?}");
    };
    assert_eq!(ill.code, 1, "{ill:?}");
    let document: Value = serde_json::from_str(&ill.out).unwrap();
    let paused = document["conditions"].as_array().unwrap().iter();
    let paused: Vec<_> = paused.filter(|one| one["code"] == "account_paused").collect();
    assert_eq!(paused.len(), 1, "{document}");
    assert_eq!(paused[0]["severity"], "critical");
    assert!(ill.err.contains("account_paused"), "{ill:?}");
}
