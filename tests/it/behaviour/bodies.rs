//! Bodies that outlive their process: with a service manager that keeps them, and by `restart`.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pillarbox_simulator::{Fault, Faults, Options};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};

use crate::kit::{
    Finished, Manager, PATIENCE, Server, Site, is_on_postgres, look, message, message_with, metric,
    status,
};

/// Tries again soon, and answers slowly enough for a kill in between.
const SOON: &str = "[sending]\nretry_initial = \"50ms\"\nretry_max = \"100ms\"\ndrain = \"1s\"";

/// A site whose provider takes nothing for now, and the manager that keeps its bodies.
async fn site(more: &str, options: Options) -> (Site, Manager) {
    let site = Site::with(more, options).await;
    let manager = Manager::of(&site, 2, Vec::new());
    (site, manager)
}

/// Starts the service and waits until its bodies are kept.
fn start(site: &Site, manager: &Manager) -> Server {
    let server = manager.start(site);
    // It was reported before the first answer.
    let end = std::time::Instant::now() + PATIENCE;
    while !manager.kept().contains(&"arena".to_owned()) {
        assert!(std::time::Instant::now() < end, "{}", server.log());
        std::thread::sleep(Duration::from_millis(1));
    }
    server
}

async fn send(server: &Server, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for n in 0..count {
        let files =
            json!([{ "filename": "a.txt", "content": "aGVsbG8=", "content_type": "text/plain" }]);
        let body = if n % 5 == 0 { message_with("attachments", files) } else { message() };
        ids.push(server.send(&body).await);
    }
    ids
}

async fn all_sent(server: &Server, ids: &[String]) {
    for id in ids {
        server.wait_for(id, "sent").await;
    }
}

/// Waits for the last calls of a killed process, which the provider may still be about to read.
async fn calls_have_ended(site: &Site) {
    let mut calls = u64::MAX;
    while std::mem::replace(&mut calls, site.simulator.calls_total()) != calls {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn wait_until_tried(server: &Server, id: &str) -> Value {
    loop {
        let record = server.record(id).await;
        if record["attempts"].as_u64().unwrap() > 0 && record["status"] == "queued" {
            return record;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_loses_no_message_and_sends_none_twice() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let mut server = start(&site, &manager);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.extend(send(&server, 20).await);
        wait_until_tried(&server, &ids[0]).await;
        server.kill();
        server = start(&site, &manager);
        assert!(server.log().contains("kept the previous process's pending messages"));
    }
    // While it waits: a call under way could still be the one that is accepted.
    let attempts = wait_until_tried(&server, &ids[0]).await["attempts"].as_u64().unwrap();
    assert_eq!(manager.kept(), ["arena"]);
    site.simulator.set_faults(Faults::none());
    all_sent(&server, &ids).await;
    assert!(server.record(&ids[0]).await["attempts"].as_u64().unwrap() > attempts);
    assert_eq!(site.simulator.accepted_total(), ids.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_loses_no_message_without_any_manager() {
    let site = Site::with(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = site.start();
    let ids = send(&server, 50).await;
    for _ in 0..3 {
        Finished::run(site.command(&["restart", "--json"])).await.json();
        let status = &server.record(&ids[7]).await["status"];
        assert!(status == "queued" || status == "sending", "{status}");
    }
    site.simulator.set_faults(Faults::none());
    all_sent(&server, &ids).await;
    assert_eq!(site.simulator.accepted_total(), ids.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_leaves_what_it_could_not_send_to_the_next_start() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let ids = send(&server, 30).await;
    let log = server.terminate().await;
    assert!(log.contains("left_pending=30"), "{log}");
    site.simulator.set_faults(Faults::none());
    let server = start(&site, &manager);
    all_sent(&server, &ids).await;
    assert_eq!(site.simulator.accepted_total(), ids.len() as u64);
}

/// A restored data file has the name of the one before, so the bodies are its own. The arena knows
/// which of its messages were sent since the backup.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_sends_what_was_pending_in_it_if_the_body_is_kept_and_nothing_twice() {
    if is_on_postgres() {
        return;
    }
    for is_sent_since in [false, true] {
        let (site, manager) = site(SOON, Options::default()).await;
        site.simulator.set_faults(Faults::always(Fault::Throttled));
        let server = start(&site, &manager);
        let ids = send(&server, 3).await;
        let backup = site.directory().join("backup.redb");
        site.done(&["backup", backup.to_str().unwrap()]);
        if is_sent_since {
            site.simulator.set_faults(Faults::none());
            all_sent(&server, &ids).await;
        }
        let left = if is_sent_since { "left_pending=0" } else { "left_pending=3" };
        let log = server.terminate().await;
        assert!(log.contains(left), "{log}");
        site.done(&["restore", "--replace", backup.to_str().unwrap()]);
        site.simulator.set_faults(Faults::none());
        let server = start(&site, &manager);
        for id in &ids {
            let record = loop {
                let record = server.record(id).await;
                if record["status"] == "sent" || record["status"] == "failed" {
                    break record;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            // The room of what was sent may be free again. Then nothing knows that it was sent.
            let is_lost = is_sent_since && record["error"]["code"] == "body_lost_on_restart";
            assert!(record["status"] == "sent" || is_lost, "{record}");
        }
        assert_eq!(site.simulator.accepted_total(), 3, "sent since: {is_sent_since}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_at_a_kill_counts_as_one_whose_answer_was_lost() {
    for (on_unknown, status, code) in
        [("fail", "failed", "outcome_unknown"), ("retry", "queued", "outcome_unknown")]
    {
        let more = format!(
            "[sending]\nretry_initial = \"1h\"\nretry_max = \"1h\"\non_unknown = \"{on_unknown}\""
        );
        let slow = Options { latency: Duration::from_secs(3), ..Options::default() };
        let (site, manager) = site(&more, slow).await;
        let server = start(&site, &manager);
        let id = server.send(&message()).await;
        server.wait_for(&id, "sending").await;
        server.kill();
        let server = start(&site, &manager);
        let record = loop {
            let record = server.record(&id).await;
            if !record["error"].is_null() {
                break record;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(record["status"], status, "{record}");
        assert_eq!(record["error"]["code"], code, "{record}");
        assert_eq!(record["attempts"], 1, "{record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cancelled_before_a_kill_stays_cancelled() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let ids = send(&server, 2).await;
    site.done(&["message", "cancel", &ids[0]]);
    // A call that is under way ends first.
    server.wait_for(&ids[0], "failed").await;
    server.kill();
    calls_have_ended(&site).await;
    site.simulator.set_faults(Faults::none());
    let server = start(&site, &manager);
    all_sent(&server, &ids[1..]).await;
    let record = server.record(&ids[0]).await;
    assert_eq!(record["error"]["code"], "cancelled", "{record}");
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cancelled_during_its_call_is_not_tried_again_after_a_kill() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Slow));
    let server = start(&site, &manager);
    let ids = send(&server, 3).await;
    for id in &ids {
        server.wait_for(id, "sending").await;
    }
    let by_application = server.client.post(format!("{}/emails/{}/cancel", server.base, ids[2]));
    let by_application =
        by_application.bearer_auth(&server.key).header("content-type", "application/json");
    assert_eq!(by_application.body("{}").send().await.unwrap().status(), 200);
    let cancelled = site.done(&["message", "cancel", &ids[0], "--json"]);
    let cancelled: Value = serde_json::from_slice(&cancelled.stdout).unwrap();
    assert_eq!(cancelled, json!({"cancelled": 0, "callsUnderWay": 1, "notPending": 0}));
    assert_eq!(server.record(&ids[0]).await["status"], "sending", "its call is under way");
    server.kill();
    calls_have_ended(&site).await;
    site.simulator.set_faults(Faults::none());
    let server = start(&site, &manager);
    for (id, who) in [(&ids[0], "the operator"), (&ids[2], "your application")] {
        let record = server.wait_for(id, "failed").await;
        assert_eq!(record["error"]["code"], "cancelled", "{record}");
        let message = record["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(who), "{record}");
        assert!(message.contains("is unknown"), "the call's outcome: {record}");
        assert_eq!(record["attempts"], 1, "{record}");
    }
    all_sent(&server, &ids[1..2]).await;
    assert_eq!(site.simulator.accepted_total(), 4, "the other one is sent a second time");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_paused_organisation_wait_over_a_kill_and_go_when_it_is_resumed() {
    let (site, manager) = site(SOON, Options::default()).await;
    let server = start(&site, &manager);
    site.done(&["org", "pause", "acme"]);
    let ids = send(&server, 3).await;
    server.kill();
    let server = start(&site, &manager);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for id in &ids {
        assert_eq!(server.record(id).await["status"], "queued");
    }
    assert_eq!(site.simulator.accepted_total(), 0);
    site.done(&["org", "resume", "acme"]);
    all_sent(&server, &ids).await;
    assert_eq!(site.simulator.accepted_total(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_suppressed_before_a_kill_is_not_written_to_after_it() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let id = server.send(&message()).await;
    site.done(&["suppression", "add", "--org", "acme", "bob@example.org"]);
    server.kill();
    calls_have_ended(&site).await;
    site.simulator.set_faults(Faults::none());
    let server = start(&site, &manager);
    server.wait_for(&id, "suppressed").await;
    assert_eq!(site.simulator.accepted_total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_loses_nothing() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let ids = send(&server, 20).await;
    server.kill();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, there) = ("listen = \"127.0.0.1:0\"\noperator", taken.local_addr().unwrap());
    site.reconfigure(here, &format!("listen = \"{there}\"\noperator"));
    for _ in 0..2 {
        let failed = Finished::run(manager.command(&site)).await;
        assert_ne!(failed.code, 0, "{failed:?}");
    }
    site.reconfigure(&format!("listen = \"{there}\"\noperator"), here);
    site.simulator.set_faults(Faults::none());
    let server = start(&site, &manager);
    all_sent(&server, &ids).await;
    assert_eq!(site.simulator.accepted_total(), ids.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_keep_bodies_off_each_end_loses_the_bodies() {
    let more = SOON.replace("[sending]", "[sending]\nkeep_bodies = false");
    let (site, manager) = site(&more, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = manager.start(&site);
    let id = server.send(&message()).await;
    assert!(manager.kept().is_empty());
    server.kill();
    let server = manager.start(&site);
    let record = server.wait_for(&id, "failed").await;
    assert_eq!(record["error"]["code"], "body_lost_on_restart", "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_not_to_be_kept_any_more_are_given_up() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let id = server.send(&message()).await;
    server.kill();
    site.reconfigure("[sending]", "[sending]\nkeep_bodies = false");
    let server = manager.start(&site);
    let record = server.wait_for(&id, "failed").await;
    assert_eq!(record["error"]["code"], "body_lost_on_restart", "{record}");
    manager.wait_for("FDSTOREREMOVE=1", 1);
    let told = status(&site)["conditions"].to_string();
    assert!(!told.contains("bodies_unusable"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_another_data_directory_are_not_taken() {
    if is_on_postgres() {
        return;
    }
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    send(&server, 3).await;
    server.kill();
    std::fs::rename(site.data_dir(), site.directory().join("other")).unwrap();
    let server = manager.start(&site);
    assert!(server.log().contains("belong to another data directory"), "{}", server.log());
    server.kill();
    std::fs::remove_dir_all(site.data_dir()).unwrap();
    std::fs::rename(site.directory().join("other"), site.data_dir()).unwrap();
    let server = start(&site, &manager);
    assert!(server.log().contains("kept the previous process's pending messages messages=3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_how_many_bodies_there_are_and_what_they_survive() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    send(&server, 12).await;
    let shown =
        || -> Value { serde_json::from_slice(&site.done(&["bodies", "--json"]).stdout).unwrap() };
    let end = std::time::Instant::now() + PATIENCE;
    while shown()["keeper"]["kind"] != "serviceManager" {
        assert!(std::time::Instant::now() < end, "{}", shown());
    }
    let bodies = shown();
    assert_eq!((&bodies["count"], &bodies["unreadable"]), (&json!(12), &Value::Null), "{bodies}");
    assert!(bodies["bytes"].as_u64().unwrap() > 12 * 100, "{bodies}");
    assert!(bodies["memoryBytes"].as_u64() >= bodies["bytes"].as_u64(), "{bodies}");
    assert!(bodies["oldestAt"].as_str().unwrap().ends_with('Z'), "{bodies}");
    let survive = "12 bodies in 4 KiB of memory. They survive a restart and a crash";
    let survive =
        survive.replace('4', &(bodies["memoryBytes"].as_u64().unwrap() / 1024).to_string());
    let status = String::from_utf8(site.done(&["status"]).stdout).unwrap();
    assert!(status.contains(&survive), "{status}");
    let text = String::from_utf8(site.done(&["bodies"]).stdout).unwrap();
    let (bytes, memory) = (&bodies["bytes"], &bodies["memoryBytes"]);
    let bytes = format!("bytes   {bytes} in bodies, {memory} of memory used for them");
    assert!(text.contains(&survive) && text.contains(&bytes), "{text}");
    assert!(text.contains("stop    systemd 254"), "{text}");
    assert!(text.contains("reboot  the bodies are lost"), "{text}");
    let page = look(&site, &server).await;
    assert!(page.contains(&survive), "{page}");
    let doctor = site.run(&["doctor"]);
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains(&format!("bodies: {survive}")), "{doctor}");
    let kept = metric(&server, "pillarbox_bodies_kept").await;
    assert_eq!((metric(&server, "pillarbox_bodies").await, kept), (Some(12.0), Some(1.0)));
    for (name, member) in
        [("pillarbox_bodies_bytes", "bytes"), ("pillarbox_bodies_memory_bytes", "memoryBytes")]
    {
        assert_eq!(metric(&server, name).await, bodies[member].as_f64(), "{name}");
    }
    server.kill();
    let server = start(&site, &manager);
    assert_eq!(metric(&server, "pillarbox_start_survived_messages").await, Some(12.0));
    assert_eq!(shown()["survivedMessages"], 12);
    let said = "the service manager keeps the bodies of pending messages: they survive";
    let end = std::time::Instant::now() + PATIENCE;
    let line = loop {
        let log = server.log();
        if let Some(line) = log.lines().find(|line| line.contains(said)) {
            break line.to_owned();
        }
        assert!(std::time::Instant::now() < end, "{log}");
    };
    assert!(line.contains("bodies=12"), "{line}");
    server.kill();
    let server = site.start();
    let text = String::from_utf8(site.done(&["bodies"]).stdout).unwrap();
    assert!(text.contains("no service manager, such as systemd"), "{text}");
    assert!(text.contains("stop    bodies that the drain does not send are lost"), "{text}");
    assert_eq!(metric(&server, "pillarbox_bodies_kept").await, Some(0.0));
    server.kill();
    site.reconfigure("[sending]", "[sending]\nkeep_bodies = false");
    let server = site.start();
    let text = String::from_utf8(site.done(&["bodies"]).stdout).unwrap();
    assert!(
        text.contains("They are lost when the process ends: sending.keep_bodies is off"),
        "{text}"
    );
    drop(server);
}

/// Messages that a stop would leave are lost only if nothing keeps their bodies.
#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_what_a_stop_leaves_from_what_it_loses() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    let server = start(&site, &manager);
    let ids = send(&server, 2).await;
    wait_until_tried(&server, &ids[0]).await;
    wait_until_kept(&site).await;
    let status = status(&site);
    let loss = &status["sending"]["stopWouldLose"];
    assert_eq!((&loss["messages"], &loss["leftToNextStart"]), (&json!(0), &json!(2)), "{loss}");
    let text = String::from_utf8(site.run(&["status"]).stdout).unwrap();
    let said = "would lose no message and leave 2 to the next start: 2 waiting for the provider";
    assert!(text.contains(said), "{text}");
    let log = server.terminate().await;
    assert!(log.contains("bodies_lost=0 left_pending=2"), "{log}");
}

/// Bodies of another data directory stay with the manager until an operator gives them up.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_cannot_be_used_are_kept_until_they_are_given_up() {
    let (site, manager) = site(SOON, Options::default()).await;
    manager.keep("arena", foreign_memory());
    let server = manager.start(&site);
    let bodies = String::from_utf8(site.done(&["bodies"]).stdout).unwrap();
    assert!(bodies.contains("they were not made by pillarbox"), "{bodies}");
    assert_eq!(manager.kept(), ["arena"]);
    let said = "cannot be used: they were not made by pillarbox";
    let text = String::from_utf8(site.done(&["status"]).stdout).unwrap();
    assert!(text.contains(said) && text.contains("pillarbox bodies drop"), "{text}");
    let told = &status(&site)["conditions"];
    let codes: Vec<_> = told.as_array().unwrap().iter().map(|one| &one["code"]).collect();
    assert!(codes.contains(&&json!("bodies_unusable")), "{told}");
    assert!(look(&site, &server).await.contains(said));
    let doctor = String::from_utf8(site.run(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains(&format!("Those of an earlier process {said}")), "{doctor}");
    assert_eq!(metric(&server, "pillarbox_bodies_unusable").await, Some(1.0));
    let dropped = String::from_utf8(site.done(&["bodies", "drop"]).stdout).unwrap();
    assert!(dropped.contains("discarded;"), "{dropped}");
    manager.wait_for("FDSTOREREMOVE=1", 1);
    wait_until_kept(&site).await;
    assert_eq!(metric(&server, "pillarbox_bodies_unusable").await, Some(0.0));
    let text = String::from_utf8(site.done(&["status"]).stdout).unwrap();
    assert!(!text.contains("cannot be used"), "{text}");
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let ids = send(&server, 3).await;
    server.kill();
    calls_have_ended(&site).await;
    site.simulator.set_faults(Faults::none());
    let server = start(&site, &manager);
    all_sent(&server, &ids).await;
}

/// Two processes were killed while they asked the manager whether it keeps descriptors.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_start_has_left_with_the_manager_does_no_harm() {
    let (site, manager) = site(SOON, Options::default()).await;
    let mut theirs = Vec::new();
    for _ in 0..2 {
        let (ours, kept) = UnixStream::pair().unwrap();
        manager.keep("probe", kept.into());
        theirs.push(ours);
    }
    let server = start(&site, &manager);
    manager.wait_for("FDSTOREREMOVE=1", 2);
    let text = String::from_utf8(site.done(&["bodies"]).stdout).unwrap();
    assert!(text.contains("the service manager keeps them"), "{text}");
    assert_eq!(manager.kept(), ["arena"]);
    drop((server, theirs));
}

fn foreign_memory() -> OwnedFd {
    memfd_create("other", MemfdFlags::CLOEXEC).unwrap()
}

fn bodies(site: &Site) -> Value {
    serde_json::from_slice(&site.done(&["bodies", "--json"]).stdout).unwrap()
}

/// Waits until the service knows that the manager keeps its bodies, and no others.
async fn wait_until_kept(site: &Site) {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let shown = bodies(site);
        if shown["keeper"]["kind"] == "serviceManager" && shown["unreadable"].is_null() {
            return;
        }
        assert!(std::time::Instant::now() < end, "{shown}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The next program in the same process knows of the bodies that the manager keeps and it cannot
/// use, so that it stores none beside them.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_goes_on_to_say_which_bodies_cannot_be_used() {
    let (site, manager) = site(SOON, Options::default()).await;
    manager.keep("arena", foreign_memory());
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = manager.start(&site);
    let ids = send(&server, 3).await;
    for _ in 0..2 {
        Finished::run(site.command(&["restart", "--json"])).await.json();
        let said = String::from_utf8(site.done(&["bodies"]).stdout).unwrap();
        assert!(said.contains("they were not made by pillarbox"), "{said}");
        assert!(said.contains("pillarbox bodies drop"), "{said}");
        assert!(said.contains("still keeps bodies that this process cannot use"), "{said}");
        assert_eq!(manager.kept(), ["arena"]);
    }
    site.done(&["bodies", "drop"]);
    wait_until_kept(&site).await;
    assert_eq!(manager.kept(), ["arena"]);
    // From here on, it is known in each program that the manager keeps its bodies.
    Finished::run(site.command(&["restart", "--json"])).await.json();
    wait_until_kept(&site).await;
    assert_eq!(manager.kept(), ["arena"]);
    server.kill();
    calls_have_ended(&site).await;
    site.simulator.set_faults(Faults::none());
    let server = manager.start(&site);
    all_sent(&server, &ids).await;
    assert_eq!(site.simulator.accepted_total(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waited_over_a_restart_says_so_as_long_as_it_waits() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let old = send(&server, 1).await.remove(0);
    let shown = |id: &str| -> Value {
        let shown = site.done(&["message", "show", id, "--json"]);
        serde_json::from_slice(&shown.stdout).unwrap()
    };
    assert!(shown(&old)["restartedAt"].is_null());
    server.kill();
    let server = start(&site, &manager);
    let new = send(&server, 1).await.remove(0);
    let restarted_at = shown(&old)["restartedAt"].as_str().unwrap().to_owned();
    assert!(restarted_at.as_str() >= shown(&old)["createdAt"].as_str().unwrap());
    assert!(restarted_at.as_str() <= shown(&new)["createdAt"].as_str().unwrap());
    assert!(shown(&new)["restartedAt"].is_null());
    Finished::run(site.command(&["restart", "--json"])).await.json();
    assert!(shown(&old)["restartedAt"].as_str().unwrap() > restarted_at.as_str());
    let text = String::from_utf8(site.done(&["message", "show", &new]).stdout).unwrap();
    assert!(text.contains("restarted:"), "{text}");
    site.simulator.set_faults(Faults::none());
    all_sent(&server, &[old.clone(), new]).await;
    assert!(shown(&old)["restartedAt"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_arenas_a_start_takes_that_of_its_own_data() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let mut server = start(&site, &manager);
    let mut ids = send(&server, 5).await;
    server.kill();
    let own = manager.take("arena");
    manager.keep("arena", foreign_memory());
    for memory in own {
        manager.keep("arena", memory);
    }
    for life in 1..3 {
        server = manager.start(&site);
        let expected =
            format!("kept the previous process's pending messages messages={}", 5 * life);
        assert!(server.log().contains(&expected), "{}", server.log());
        let said = bodies(&site);
        assert!(said["unreadable"].as_str().unwrap().contains("not made by pillarbox"), "{said}");
        assert_eq!(said["keeper"]["kind"], "serviceManager", "{said}");
        Finished::run(site.command(&["restart", "--json"])).await.json();
        assert_eq!(bodies(&site)["unreadable"], said["unreadable"]);
        assert_eq!(manager.kept(), ["arena", "arena"]);
        ids.extend(send(&server, 5).await);
        server.kill();
    }
    server = manager.start(&site);
    site.done(&["bodies", "drop"]);
    wait_until_kept(&site).await;
    assert_eq!(manager.kept(), ["arena"]);
    server.kill();
    calls_have_ended(&site).await;
    site.simulator.set_faults(Faults::none());
    server = manager.start(&site);
    all_sent(&server, &ids).await;
    assert_eq!(site.simulator.accepted_total(), ids.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_arenas_of_one_store_a_start_takes_the_newest() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let lost = send(&server, 1).await;
    server.kill();
    let older = manager.take("arena").remove(0);
    let server = start(&site, &manager);
    server.wait_for(&lost[0], "failed").await;
    let ids = send(&server, 4).await;
    server.kill();
    let newer = manager.take("arena").remove(0);
    for order in [[&older, &newer], [&newer, &older]] {
        manager.take("arena");
        for memory in order {
            manager.keep("arena", memory.try_clone().unwrap());
        }
        let server = manager.start(&site);
        let log = server.log();
        assert!(log.contains("kept the previous process's pending messages messages=4"), "{log}");
        let said = bodies(&site);
        assert!(
            said["unreadable"].as_str().unwrap().contains("newer bodies of the same store"),
            "{said}"
        );
        server.kill();
    }
    site.simulator.set_faults(Faults::none());
    let server = manager.start(&site);
    all_sent(&server, &ids).await;
    assert_eq!(site.simulator.accepted_total(), 4);
}

/// A process that was killed right after its start may have left its question with the manager.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_does_not_mind_what_a_killed_one_has_asked_the_manager() {
    let (site, manager) = site(SOON, Options::default()).await;
    let server = start(&site, &manager);
    manager.wait_for("FDSTOREREMOVE=1", 1);
    server.kill();
    let (_, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    manager.keep("probe", theirs.into());
    let server = manager.start(&site);
    manager.wait_for("FDSTOREREMOVE=1", 2);
    assert_eq!(manager.kept(), ["arena"]);
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_says_how_many_messages_wait() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let ids = send(&server, 7).await;
    wait_until_tried(&server, &ids[0]).await;
    server.kill();
    // It counts once, however many descriptors the manager has of it.
    let memory = manager.take("arena").remove(0);
    manager.keep("arena", memory.try_clone().unwrap());
    manager.keep("arena", memory);
    site.reconfigure("operator_listen", "operator_lisen");
    let failed = Finished::run(manager.command(&site)).await;
    assert_eq!(failed.code, 75, "{failed:?}");
    let status = manager.wait_for("STATUS=the start failed", 1);
    assert!(status.contains("the bodies of at most 7 pending messages are kept ("), "{status}");
}

/// Runs the service so that it releases what the manager keeps.
const DROPS_BODIES: &str = "exec \"$0\" serve --config \"$1\" --drop-bodies;";

/// Starts the service with bodies of earlier processes to be given up.
fn start_and_drop_bodies(site: &Site, manager: &Manager) -> Server {
    site.start_by(manager.command_after(site, DROPS_BODIES))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_gives_up_the_bodies_that_the_manager_keeps_if_it_is_told_to() {
    let (site, manager) = site(SOON, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let server = start(&site, &manager);
    let given_up = send(&server, 2).await;
    server.kill();
    let kept = manager.take("arena");
    manager.keep("arena", foreign_memory());
    for memory in kept {
        manager.keep("arena", memory);
    }
    let server = start_and_drop_bodies(&site, &manager);
    wait_until_kept(&site).await;
    assert_eq!(manager.kept(), ["arena"]);
    for id in &given_up {
        let record = server.wait_for(id, "failed").await;
        assert_eq!(record["error"]["code"], "body_lost_on_restart", "{record}");
    }
    // The next program in its place does not have the option.
    let ids = send(&server, 3).await;
    Finished::run(site.command(&["restart", "--json"])).await.json();
    site.simulator.set_faults(Faults::none());
    all_sent(&server, &ids).await;
    assert_eq!(site.simulator.accepted_total(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_without_the_bodies_that_it_gave_up_is_not_repeated() {
    let (site, manager) = site(SOON, Options::default()).await;
    manager.keep("arena", foreign_memory());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, there) = ("listen = \"127.0.0.1:0\"\noperator", taken.local_addr().unwrap());
    site.reconfigure(here, &format!("listen = \"{there}\"\noperator"));
    let command = manager.command_after(&site, DROPS_BODIES);
    let failed = Finished::run(command).await;
    assert_eq!(failed.code, 1, "{failed:?}");
    manager.wait_for("FDSTOREREMOVE=1", 1);
    assert!(manager.kept().is_empty());
}
