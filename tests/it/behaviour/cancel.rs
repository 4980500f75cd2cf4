//! Queued mail that an operator stops, on the real binary: `message cancel`, `org remove`,
//! `domain remove` and `key revoke`.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, Faults, Options};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::behaviour::RETRIES_AT_ONCE;
use crate::kit::{PATIENCE, Server, Site, answer, is_on_postgres, message, message_with, metric};

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    let output = site.done(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(site: &Site, arguments: &[&str]) -> String {
    String::from_utf8(site.done(arguments).stdout).unwrap()
}

/// Time after which a paused site calls the provider again, if the test waits for that.
const RETURN: &str = "15s";

/// Such a time for a test that does not.
const NEVER: &str = "1h";

/// A site whose provider takes nothing, so that everything waits. No call asks before this time
/// whether it takes messages again: that message would be under way, and not cancelled.
async fn paused_site(next_call: &str) -> Site {
    let retries =
        format!("[sending]\nretry_initial = \"{next_call}\"\nretry_max = \"{next_call}\"");
    let site = Site::with(&retries, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    site
}

/// Waits until the account was found paused and no call is under way.
async fn until_paused(site: &Site) {
    let end = Instant::now() + PATIENCE;
    loop {
        let sending = crate::kit::status(site)["sending"].take();
        if sending["provider"]["cause"] == "accountPaused" && sending["inFlight"] == 0 {
            return;
        }
        assert!(Instant::now() < end, "{sending}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Posts this many messages, many at a time; gives their ids.
async fn send_many(server: &Server, count: usize) -> Vec<String> {
    const AT_ONCE: usize = 64;
    let mut posts = JoinSet::new();
    let mut ids = Vec::with_capacity(count);
    let id_of = |body: (StatusCode, Value)| body.1["id"].as_str().unwrap().to_owned();
    for _ in 0..count {
        if posts.len() == AT_ONCE {
            ids.push(id_of(posts.join_next().await.unwrap().unwrap()));
        }
        let post = server.post(&message());
        posts.spawn(async move { answer(post.send().await.unwrap()).await });
    }
    ids.extend(posts.join_all().await.into_iter().map(id_of));
    ids
}

/// Number of messages by status and code, from the operator's list.
fn tally(site: &Site) -> std::collections::BTreeMap<String, usize> {
    let listed = json_of(site, &["message", "list", "--limit", "100000"]);
    let mut counts = std::collections::BTreeMap::new();
    for message in listed["messages"].as_array().unwrap() {
        let status = message["status"].as_str().unwrap();
        let code = message["error"]["code"].as_str().filter(|_| status == "failed");
        *counts.entry(code.unwrap_or(status).to_owned()).or_default() += 1;
    }
    counts
}

fn pending(site: &Site) -> u64 {
    // The account is paused, which is critical.
    crate::kit::status(site)["sending"]["pendingMessages"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_cancels_nothing_and_its_queued_mail_can_be_cancelled() {
    let site = paused_site(RETURN).await;
    let mut server = site.start();
    let by_first = server.send(&message()).await;
    until_paused(&site).await;
    let added = json_of(&site, &["key", "add", "--org", "acme"]);
    server.key = added["key"].as_str().unwrap().to_owned();
    let by_second = [server.send(&message()).await, server.send(&message()).await];
    let second = added["id"].to_string();
    site.done(&["key", "revoke", &second]);
    assert_eq!(server.post(&message()).send().await.unwrap().status(), 401);
    assert_eq!(pending(&site), 3);
    let cancelled = json_of(&site, &["message", "cancel", "--org", "acme", "--key", &second]);
    assert_eq!(cancelled, json!({"cancelled": 2, "callsUnderWay": 0, "notPending": 0}));
    server.key.clone_from(&site.key);
    for id in by_second {
        let record = server.record(&id).await;
        assert_eq!(
            (&record["status"], &record["error"]["code"]),
            (&json!("failed"), &json!("cancelled"))
        );
        assert!(record["error"]["message"].as_str().unwrap().contains("the operator cancelled"));
    }
    // What the operator wanted raises no alarm.
    let metrics = server.operator("/metrics").await.text().await.unwrap();
    for (name, count) in [("cancelled", 2), ("failed", 0)] {
        let line = format!(
            "pillarbox_organisation_{name}_messages_total{{organisation=\"acme\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{metrics}");
    }
    site.simulator.set_faults(Faults::none());
    server.wait_for(&by_first, "sent").await;
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_cancelled_by_id_organisation_and_domain() {
    let site = paused_site(NEVER).await;
    site.done(&["domain", "add", "--org", "acme", "b\u{fc}cher.example", "--assume-verified"]);
    let mut server = site.start();
    let ids = [server.send(&message()).await, server.send(&message()).await];
    until_paused(&site).await;
    let from = message_with("from", json!("ann@B\u{fc}cher.example"));
    let other_domain = server.send(&from).await;
    server.key = site.add_organisation("beta", "example.com");
    let others = server.send(&message()).await;
    server.key.clone_from(&site.key);

    let unknown = "019a5b7c-0000-7000-8000-000000000000";
    let shown = text(&site, &["message", "cancel", &ids[0], unknown]);
    assert_eq!(
        shown,
        "cancelled: 1; calls already under way, not tried again: 0; not pending: 1\n"
    );
    let by_domain = ["message", "cancel", "--org", "acme", "--domain", "xn--bcher-kva.example"];
    let shown = text(&site, &by_domain);
    assert_eq!(shown, "cancelled: 1; calls already under way, not tried again: 0\n");
    assert_eq!(server.record(&other_domain).await["error"]["code"], "cancelled");
    assert_eq!(server.record(&ids[1]).await["status"], "queued");
    assert_eq!(json_of(&site, &["message", "cancel", "--org", "acme"])["cancelled"], 1);
    assert_eq!(server.record(&ids[1]).await["error"]["code"], "cancelled");
    assert_eq!(pending(&site), 1, "the other organisation's");

    for (wrong, code) in [
        (&["message", "cancel"][..], 2),
        (&["message", "cancel", "--key", "1"], 2),
        (&["message", "cancel", "--org", "acme", &ids[0]], 2),
        (&["message", "cancel", "--org", "nobody"], 1),
        (&["message", "cancel", "--org", "acme", "--domain", "a b"], 1),
        (&["message", "cancel", "no-id", &others], 1),
    ] {
        assert_eq!(site.run(wrong).status.code(), Some(code), "{wrong:?}");
    }
    assert_eq!(pending(&site), 1);
    server.kill();
    let offline = site.run_alone(&["message", "cancel", "--org", "acme"]);
    assert_eq!(offline.status.code(), Some(1));
    let said = String::from_utf8(offline.stderr).unwrap();
    let expected = if is_on_postgres() {
        "commands go to a running node"
    } else {
        "no service is running, so nothing can be cancelled"
    };
    assert!(said.contains(expected), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_an_organisation_or_its_domain_ends_what_is_queued_at_once() {
    let site = paused_site(RETURN).await;
    site.done(&["domain", "add", "--org", "acme", "other.example", "--assume-verified"]);
    let mut server = site.start();
    let withdrawn = server.send(&message_with("from", json!("ann@other.example"))).await;
    let kept = server.send(&message()).await;
    until_paused(&site).await;
    let beta = site.add_organisation("beta", "example.com");
    site.done(&["domain", "add", "--org", "beta", "other.example", "--assume-verified"]);
    server.key.clone_from(&beta);
    let others = server.send(&message()).await;
    let same_domain = server.send(&message_with("from", json!("ann@other.example"))).await;
    server.key.clone_from(&site.key);

    let removed = json_of(&site, &["domain", "remove", "--org", "acme", "other.example"]);
    assert_eq!((&removed["messagesFailed"], &removed["callsUnderWay"]), (&json!(1), &json!(0)));
    let record = server.record(&withdrawn).await;
    assert_eq!(
        (&record["status"], &record["error"]["code"]),
        (&json!("failed"), &json!("domain_unverified"))
    );
    assert_eq!(server.record(&kept).await["status"], "queued");
    let removed = json_of(&site, &["org", "remove", "acme"]);
    assert_eq!((&removed["messagesCancelled"], &removed["callsUnderWay"]), (&json!(1), &json!(0)));
    let shown = json_of(&site, &["message", "show", &kept]);
    assert_eq!(
        (&shown["status"], &shown["error"]["code"]),
        (&json!("failed"), &json!("cancelled"))
    );
    assert!(shown["error"]["message"].as_str().unwrap().contains("removed the organisation"));

    server.key = beta;
    assert_eq!(server.record(&same_domain).await["status"], "queued");
    site.simulator.set_faults(Faults::none());
    server.wait_for(&others, "sent").await;
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_is_counted_and_not_tried_again() {
    let site = Site::with(RETRIES_AT_ONCE, Options::default()).await;
    site.simulator.set_faults(Faults::always(Fault::Unavailable));
    site.simulator.set_latency(Duration::from_secs(2));
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    let cancelled = json_of(&site, &["message", "cancel", &id]);
    assert_eq!(cancelled, json!({"cancelled": 0, "callsUnderWay": 1, "notPending": 0}));
    let record = server.wait_for(&id, "failed").await;
    assert_eq!((&record["error"]["code"], &record["attempts"]), (&json!("cancelled"), &json!(1)));
}

/// The operator stops a sender in the middle; what was printed is what happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_that_races_with_calls_counts_each_message_once() {
    const MESSAGES: usize = 1_500;
    let site = Site::with("[sending]\nmax_rate = 100", Options::default()).await;
    site.simulator.set_latency(Duration::from_millis(200));
    let server = site.start();
    let ids = send_many(&server, MESSAGES).await;
    let (mut cancelled, mut under_way) = (0, 0);
    for part in ids.chunks(MESSAGES / 3) {
        let names = part.iter().map(String::as_str);
        let arguments: Vec<&str> = ["message", "cancel"].into_iter().chain(names).collect();
        let printed = json_of(&site, &arguments);
        let [some, calls, others] = ["cancelled", "callsUnderWay", "notPending"]
            .map(|name| usize::try_from(printed[name].as_u64().unwrap()).unwrap());
        assert_eq!(some + calls + others, part.len(), "{printed}");
        (cancelled, under_way) = (cancelled + some, under_way + calls);
    }
    assert!(cancelled > 0 && under_way > 0, "{cancelled} cancelled, {under_way} under way");
    let end = Instant::now() + PATIENCE;
    while pending(&site) > 0 {
        assert!(Instant::now() < end, "the calls under way do not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let counts = tally(&site);
    let sent = MESSAGES - cancelled;
    assert_eq!((counts["cancelled"], counts["sent"]), (cancelled, sent), "{counts:?}");
    assert_eq!(site.simulator.accepted_total(), sent as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_are_cancelled_while_others_are_accepted() {
    const MESSAGES: usize = if cfg!(feature = "long") { 10_000 } else { 3_000 };
    let site = paused_site(NEVER).await;
    let mut server = site.start();
    send_many(&server, MESSAGES).await;
    until_paused(&site).await;
    server.key = site.add_organisation("beta", "example.com");
    let (began, mut slowest, mut accepted) = (Instant::now(), Duration::ZERO, 0);
    let (printed, took) = std::thread::scope(|scope| {
        let cancelling = scope.spawn(|| {
            let printed = json_of(&site, &["message", "cancel", "--org", "acme"]);
            (printed, began.elapsed())
        });
        let posting = async {
            while !cancelling.is_finished() {
                let start = Instant::now();
                server.send(&message()).await;
                slowest = slowest.max(start.elapsed());
                accepted += 1;
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(posting));
        cancelling.join().unwrap()
    });
    println!("cancelled in {took:?}; {accepted} accepted meanwhile, the slowest in {slowest:?}");
    assert_eq!(printed, json!({"cancelled": MESSAGES, "callsUnderWay": 0, "notPending": 0}));
    // Not a number of messages: on a busy machine each takes long, and so does the cancellation.
    assert!(
        slowest < took / 2,
        "the cancellation holds up what is accepted: {slowest:?} of {took:?}"
    );
    assert_eq!(pending(&site), accepted);
    assert_eq!(tally(&site)["cancelled"], MESSAGES);
    assert_eq!(site.simulator.accepted_total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_the_middle_of_a_cancellation_loses_no_message() {
    const MESSAGES: usize = 3_000;
    let site = paused_site(NEVER).await;
    let server = site.start();
    send_many(&server, MESSAGES).await;
    std::thread::scope(|scope| {
        let cancelling = scope.spawn(|| site.run(&["message", "cancel", "--org", "acme"]));
        let left = async {
            // Some are cancelled, and others are not.
            while metric(&server, "pillarbox_queue_messages").await.unwrap() > 2_500.0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            server.signal("KILL");
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(left));
        assert_eq!(cancelling.join().unwrap().status.code(), Some(1), "the service is gone");
    });
    server.process.wait();
    site.simulator.set_faults(Faults::none());
    let server = site.start();
    let counts = tally(&site);
    println!("{counts:?}");
    assert_eq!(counts["cancelled"] + counts["body_lost_on_restart"], MESSAGES, "{counts:?}");
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert_eq!((pending(&site), site.simulator.accepted_total()), (0, 0));
    server.kill();
}

/// Runs a command on a terminal, on which a person types this; returns the terminal's output.
fn on_terminal(site: &Site, arguments: &[&str], typed: &str) -> (bool, String) {
    let command = site.command(arguments);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = script.spawn().expect("script is part of util-linux");
    let mut keyboard = running.stdin.take().unwrap();
    keyboard.write_all(typed.as_bytes()).unwrap();
    let output = running.wait_with_output().unwrap();
    drop(keyboard);
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_end_messages_say_how_many_on_a_terminal_and_ask() {
    let site = paused_site(NEVER).await;
    let server = site.start();
    for _ in 0..3 {
        server.send(&message()).await;
    }
    until_paused(&site).await;
    let commands: [&[&str]; 3] = [
        &["message", "cancel", "--org", "acme"],
        &["domain", "remove", "--org", "acme", "example.com"],
        &["org", "remove", "acme"],
    ];
    for arguments in commands {
        for typed in ["n\n", "\n", "\x04"] {
            let (is_done, shown) = on_terminal(&site, arguments, typed);
            assert!(!is_done, "{shown}");
            assert!(shown.contains("stops 3 messages that are not sent yet"), "{shown}");
            assert!(shown.contains("nothing was changed"), "{shown}");
        }
    }
    for arguments in commands {
        let told = text(&site, &[arguments, &["--dry-run"]].concat());
        assert!(told.ends_with("stops 3 messages that are not sent yet.\n"), "{told}");
    }
    assert_eq!(pending(&site), 3);
    // What names its messages one by one does not ask.
    let unknown = "019a5b7c-0000-7000-8000-000000000000";
    let (is_done, shown) = on_terminal(&site, &["message", "cancel", unknown], "");
    assert!(is_done && !shown.contains("Continue?"), "{shown}");
    let (is_done, shown) = on_terminal(&site, commands[0], "y\n");
    assert!(is_done && shown.contains("cancelled: 3"), "{shown}");
    server.send(&message()).await;
    let (is_done, shown) = on_terminal(&site, &[commands[1], &["--yes"]].concat(), "");
    assert!(is_done && shown.contains("queued messages failed: 1"), "{shown}");
    assert!(!shown.contains("Continue?"), "{shown}");
    // Without a terminal, they go on.
    let removed = text(&site, commands[2]);
    assert!(removed.contains("removed acme"), "{removed}");
}
