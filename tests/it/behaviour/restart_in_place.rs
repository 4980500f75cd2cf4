//! `pillarbox restart`: the installed program goes on in the service's process, with its sockets.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};

use crate::behaviour::dev::Dev;
use crate::kit::{
    Finished, Manager, PATIENCE, Process, Server, Site, answer, is_on_postgres, message, pillarbox,
};

/// Restarts a service that must restart; returns the output of the command.
pub(crate) async fn restart(site: &Site) -> Value {
    Finished::run(site.command(&["restart", "--json"])).await.json()
}

async fn wait_until_idle(server: &Server) {
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
}

/// A service that sends nothing within the time of a test.
fn slow() -> Options {
    Options { latency: Duration::from_mins(5), ..Options::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_in_the_same_process_at_the_same_addresses() {
    let site = Site::with("[smtp]\nlisten = \"127.0.0.1:0\"", Options::default()).await;
    let server = site.start();
    wait_until_idle(&server).await;
    let socket = fs::metadata(site.directory().join("admin.sock")).unwrap().ino();
    let smtp = server.process.smtp_listening();
    let mut start = String::new();
    for _ in 0..3 {
        let restarted = restart(&site).await;
        let (from, to) = (&restarted["from"], &restarted["to"]);
        assert_eq!(from["process"], json!(server.process.id()), "{restarted}");
        assert_eq!(to["process"], json!(server.process.id()), "{restarted}");
        assert_ne!(from["start"], to["start"], "{restarted}");
        if !start.is_empty() {
            assert_eq!(from["start"], json!(start), "each restart is one start");
        }
        start = to["start"].as_str().unwrap().to_owned();
        wait_until_idle(&server).await;
        assert_eq!(server.operator("/healthz").await.status(), 200);
        std::net::TcpStream::connect(&smtp).unwrap();
    }
    assert_eq!(fs::metadata(site.directory().join("admin.sock")).unwrap().ino(), socket);
    let files = server.process.open_files();
    restart(&site).await;
    wait_until_idle(&server).await;
    assert!(server.process.open_files() <= files + 2, "descriptors do not add up");
    server.terminate().await;
    assert!(!site.directory().join("admin.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_come_during_a_restart_wait_and_get_answers() {
    let site = Site::new().await;
    let server = site.start();
    wait_until_idle(&server).await;
    let restarting = tokio::spawn(Finished::run(site.command(&["restart", "--json"])));
    let mut answered = 0;
    let end = Instant::now() + PATIENCE;
    while !restarting.is_finished() {
        assert!(Instant::now() < end);
        // A connection of its own each time, as of a client that was asked to come back.
        let response = crate::kit::http_client()
            .get(format!("{}/emails", server.base))
            .bearer_auth(&server.key)
            .send()
            .await
            .expect("no connection is refused or reset");
        assert_eq!(response.status(), 200);
        answered += 1;
    }
    restarting.await.unwrap().json();
    assert!(answered > 0);
    wait_until_idle(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_would_not_start_refuses_the_restart() {
    let site = Site::new().await;
    let server = site.start();
    for (from, to, reason) in [
        ("operator_listen", "operator_lisen", "operator_lisen"),
        ("[ses]", "[tls]\ncertificate = \"/none.crt\"\nkey = \"/none.key\"\n[ses]", "/none.crt"),
        ("/data\"", "/other\"", "another store, node or data directory"),
    ] {
        site.reconfigure(from, to);
        let socket = site.directory().join("admin.sock");
        let mut command = pillarbox(&["restart", "--socket"]);
        command.arg(socket);
        let refused = Finished::run(command).await;
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.err.contains(reason), "{refused:?}");
        assert!(refused.err.contains("nothing was changed"), "{refused:?}");
        wait_until_idle(&server).await;
        site.reconfigure(to, from);
    }
    assert!(!site.directory().join("other").exists(), "a check leaves nothing behind");
    restart(&site).await;
    wait_until_idle(&server).await;
}

/// A copy of the program that a test can replace, and a service by it.
fn start_replaceable(site: &Site) -> (PathBuf, Server) {
    let program = site.directory().join("pillarbox");
    install(&program);
    let server = site.start_by(site.service_by(program.to_str().unwrap()));
    (program, server)
}

/// The answer of this program to `--check`.
async fn checked(site: &Site) -> Value {
    let mut command = pillarbox(&["serve", "--check", "--json", "--config"]);
    command.arg(site.config());
    Finished::run(command).await.json()
}

/// Copies this program. Another process does so: a file that this one writes could not be executed while
/// a process that another test starts has the open file, too.
fn install(program: &Path) {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_pillarbox")).arg(program).status();
    assert!(copied.unwrap().success());
}

/// Puts a script in the place of a program, as a package does: by another file of its name.
fn replace(program: &Path, script: &str) {
    let new = program.with_extension("new");
    let written = Command::new("sh")
        .args(["-c", "printf '%s\\n' '#!/bin/sh' \"$1\" > \"$0\""])
        .arg(&new)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
    fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
    fs::rename(new, program).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_go_on_refuses_the_restart() {
    let site = Site::new().await;
    let (program, server) = start_replaceable(&site);
    let own = checked(&site).await;
    let check = |member: &str, value: Value| {
        let mut document = own.clone();
        document["version"] = json!("9.9.9");
        document[member] = value;
        format!("echo '{document}'")
    };
    let other = |member: &str, value: &str| {
        let mut database = own["database"].clone();
        database[member] = json!(value);
        check("database", database)
    };
    let mut cases = vec![
        (
            "echo 'unexpected argument --check' >&2; exit 2".to_owned(),
            "unexpected argument --check",
        ),
        ("echo started".to_owned(), "cannot be read"),
        (check("dataDir", json!("/elsewhere")), "another store, node or data directory"),
        (check("arenaFormat", json!(0)), "9.9.9, does not read the bodies of pending messages"),
    ];
    if is_on_postgres() {
        let refused = "another store, node or data directory";
        cases.push((check("database", Value::Null), refused));
        cases.push((other("name", "other"), refused));
        cases.push((other("node", "other"), refused));
        let hosts = json!({"hosts": ["192.0.2.1:5432"], "name": own["database"]["name"],
            "node": own["database"]["node"]});
        cases.push((check("database", hosts), refused));
    } else {
        cases.push((check("dataFormat", json!(1)), "9.9.9, does not read the data file"));
    }
    for (script, reason) in cases {
        replace(&program, &script);
        let refused = Finished::run(site.command(&["restart"])).await;
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.err.contains(reason), "{refused:?}");
        wait_until_idle(&server).await;
    }
    fs::remove_file(&program).unwrap();
    let refused = Finished::run(site.command(&["restart"])).await;
    assert!(refused.err.contains("cannot be run"), "{refused:?}");
    wait_until_idle(&server).await;
    // The program that is installed in the end is executed, although the file of the process was
    // deleted long ago.
    install(&program);
    restart(&site).await;
    wait_until_idle(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_executed_ends_the_service_as_a_failed_start() {
    let site = Site::new().await;
    let (program, server) = start_replaceable(&site);
    let mut report = checked(&site).await;
    report["version"] = json!("9.9.9");
    replace(&program, &format!("rm \"$0\"; echo '{report}'"));
    let failed = Finished::run(site.command(&["restart"])).await;
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.err.contains("9.9.9 ended before it answered"), "{failed:?}");
    let (code, log) = server.process.wait_at_most(PATIENCE);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the installed program cannot be executed"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_a_restart_makes_a_stop_of_it() {
    let latency = Duration::from_secs(3);
    let site = Site::with("", Options { latency, ..Options::default() }).await;
    let manager = Manager::of(&site, 2, Vec::new());
    let server = manager.start(&site);
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    let restarting = tokio::spawn(Finished::run(site.command(&["restart", "--json"])));
    until_logged(&server, "handing over").await;
    server.terminate().await;
    assert_eq!(site.simulator.accepted_total(), 1);
    let server = site.start();
    assert_eq!(server.record(&id).await["status"], "sent");
    // A service manager would start another process, for which the command waits.
    restarting.await.unwrap().json();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_hangs_delays_a_restart_for_some_seconds_and_no_other_starts() {
    let site = Site::with("", slow()).await;
    let manager = Manager::of(&site, 2, Vec::new());
    let server = manager.start(&site);
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    let begun = Instant::now();
    let restarting = tokio::spawn(Finished::run(site.command(&["restart", "--json"])));
    until_logged(&server, "handing over").await;
    let read = crate::kit::http_client().get(format!("{}/emails/{id}", server.base));
    let (status, record) = answer(read.bearer_auth(&server.key).send().await.unwrap()).await;
    assert_eq!(status, 200, "{record}");
    let restarted = restarting.await.unwrap().json();
    assert!((5..60).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(restarted["to"]["process"], json!(server.process.id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_managers_sockets_and_memory_go_over_and_are_stored_once() {
    let site = Site::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let manager = Manager::of(&site, 2, vec![("clients", listener.into())]);
    let server = manager.start(&site);
    assert_eq!(server.base, format!("http://{address}"));
    manager.wait_for("READY=1", 1);
    for restarts in 1..3 {
        wait_until_idle(&server).await;
        restart(&site).await;
        manager.wait_for("READY=1", restarts + 1);
        assert_eq!(manager.kept(), ["arena"]);
        let memory = fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap();
        let memory = memory.filter_map(|link| fs::read_link(link.unwrap().path()).ok());
        assert!(
            memory.filter(|path| path.starts_with("/memfd:pillarbox-bodies (deleted)")).count()
                >= 1
        );
        let status = site.done(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!(status["clientAddress"], json!(address.to_string()));
    }
    // The manager's socket is still taken for its own: at a stop, connections wait in it.
    wait_until_idle(&server).await;
    server.terminate().await;
    assert!(std::net::TcpStream::connect(address).is_ok());
}

/// Sees a restart refused that would lose a message whose call is under way, which goes on.
async fn would_lose(site: &Site, server: &Server, id: &str) {
    let refused = Finished::run(site.command(&["restart"])).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("their bodies cannot be kept"), "{refused:?}");
    assert_eq!(server.record(id).await["status"], "sending");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_would_lose_messages_is_refused() {
    let site = Site::with("[sending]\nkeep_bodies = false", slow()).await;
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    would_lose(&site, &server, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_into_a_configuration_that_keeps_no_bodies_waits_until_none_is_pending() {
    let site = Site::with("[sending]", slow()).await;
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    site.reconfigure("[sending]", "[sending]\nkeep_bodies = false");
    would_lose(&site, &server, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_stop_that_a_signal_during_a_restart_has_begun() {
    let site = Site::with("", slow()).await;
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sending").await;
    let restarting = tokio::spawn(Finished::run(site.command(&["restart", "--json"])));
    until_logged(&server, "handing over").await;
    server.signal("TERM");
    until_logged(&server, "A second signal (Ctrl-C again) stops at once").await;
    server.signal("TERM");
    let begun = Instant::now();
    let (code, log) = server.process.wait_at_most(PATIENCE);
    assert_eq!(code, Some(1), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{log}");
    restarting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_with_bodies_is_repeated_and_says_why() {
    let site = Site::new().await;
    let manager = Manager::of(&site, 2, Vec::new());
    let memory = memfd_create("arena", MemfdFlags::CLOEXEC).unwrap();
    fs::File::from(memory.try_clone().unwrap()).write_all(&[1; 10_000]).unwrap();
    manager.keep("arena", memory);
    let runtime = site.directory().join("run");
    fs::create_dir(&runtime).unwrap();
    let start_after = |script| {
        let mut command = manager.command_after(&site, script);
        command.env("RUNTIME_DIRECTORY", &runtime);
        command
    };
    site.reconfigure("operator_listen", "operator_lisen");
    for (failures, wait) in [(1, 1), (2, 2)] {
        let begun = Instant::now();
        let failed = Finished::run(start_after("")).await;
        assert_eq!(failed.code, 75, "{failed:?}");
        assert!(failed.err.contains("operator_lisen"), "{failed:?}");
        assert!(begun.elapsed() >= Duration::from_secs(wait));
        let status = manager.wait_for("STATUS=the start failed", failures);
        let expected = format!("({failures} in a row): ");
        assert!(status.contains(&expected) && status.contains("operator_lisen"), "{status}");
        assert!(status.contains("12 KiB"), "{status}");
        let unread = "the number of messages is unknown: they were not made by pillarbox";
        assert!(status.contains(unread), "{status}");
        assert!(status.contains(&format!("this process ends in {wait} s")), "{status}");
    }
    site.reconfigure("operator_lisen", "operator_listen");
    let wrong = "exec \"$0\" serve --no-such-option;";
    let failed = Finished::run(start_after(wrong)).await;
    assert_eq!(failed.code, 75, "{failed:?}");
    // One that waits ends as soon as it is to, also if it has got as far as to wait for signals.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = format!("operator_listen = \"{}\"", taken.local_addr().unwrap());
    site.reconfigure("operator_listen = \"127.0.0.1:0\"", &there);
    let waiting = Process::spawn(start_after(""));
    manager.wait_for("STATUS=the start failed (4 in a row)", 1);
    let begun = Instant::now();
    waiting.signal("TERM");
    let (code, log) = waiting.wait_at_most(PATIENCE);
    assert_eq!(code, Some(0), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{log}");
    site.reconfigure(&there, "operator_listen = \"127.0.0.1:0\"");
    let server = site.start_by(start_after(""));
    wait_until_idle(&server).await;
    manager.wait_for("READY=1", 1);
    let counted = runtime.join("failed-starts");
    let end = Instant::now() + PATIENCE;
    while counted.exists() {
        assert!(Instant::now() < end, "a good start forgets the failed ones");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It is kept all the time.
    assert_eq!(manager.kept(), ["arena"]);
    server.terminate().await;
    // Without bodies, a wrong configuration ends it for good.
    site.reconfigure("operator_listen", "operator_lisen");
    let failed = Finished::run(site.service()).await;
    assert_eq!(failed.code, 78, "{failed:?}");
}

#[test]
fn the_unit_has_systemd_keep_the_bodies() {
    let unit = include_str!("../../../systemd/pillarbox.service");
    for line in [
        "FileDescriptorStoreMax=2",
        "FileDescriptorStorePreserve=yes",
        "RestartForceExitStatus=75",
        "RuntimeDirectoryPreserve=restart",
        "Slice=pillarbox.slice",
        // systemd never gives up a start that fails, and drops no bodies by that.
        "StartLimitIntervalSec=0",
    ] {
        assert!(unit.lines().any(|one| one == line), "{line}");
    }
    let slice = include_str!("../../../systemd/pillarbox.slice");
    assert!(slice.lines().any(|line| line == "MemorySwapMax=0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_keeps_descriptors_is_given_the_memory_once() {
    let site = Site::new().await;
    let manager = Manager::of(&site, 2, Vec::new());
    let server = manager.start(&site);
    manager.wait_for("FDSTOREREMOVE=1", 1);
    assert_eq!(manager.kept(), ["arena"]);
    until_logged(&server, "the service manager keeps the bodies").await;
    restart(&site).await;
    wait_until_idle(&server).await;
    assert_eq!(manager.kept(), ["arena"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_said_if_nobody_keeps_the_memory() {
    let site = Site::new().await;
    let manager = Manager::of(&site, 0, Vec::new());
    let server = manager.start(&site);
    until_logged(&server, "needs FileDescriptorStoreMax=2").await;
    assert!(manager.kept().is_empty());
    server.terminate().await;
    let mut command = manager.command(&site);
    command.env_remove("NOTIFY_SOCKET");
    let server = site.start_by(command);
    until_logged(&server, "no service manager, such as systemd").await;
}

async fn until_logged(server: &Server, words: &str) {
    let end = Instant::now() + PATIENCE;
    while !server.log().contains(words) {
        assert!(Instant::now() < end, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_of_an_unknown_name_is_refused_with_advice() {
    let site = Site::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let manager = Manager::of(&site, 0, vec![("metrics", listener.into())]);
    let output = manager.command(&site).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("metrics") && error.contains("FileDescriptorName="), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trial_restarts_with_its_data_and_its_addresses() {
    let dev = Dev::start(&[]);
    let (status, sent) = dev.post_its_line().await;
    assert_eq!(status, 200, "{sent}");
    let id = sent["id"].as_str().unwrap();
    let socket = Path::new(&dev.data).join("admin.sock");
    let command = |arguments: &[&str]| {
        let mut command: Command = pillarbox(arguments);
        command.arg("--socket").arg(&socket);
        command
    };
    let end = Instant::now() + PATIENCE;
    loop {
        let shown = Finished::run(command(&["message", "show", id, "--json"])).await;
        if shown.json()["status"] == "sent" {
            break;
        }
        assert!(Instant::now() < end, "{shown:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let restarted = Finished::run(command(&["restart", "--json"])).await.json();
    assert_eq!(restarted["from"]["process"], restarted["to"]["process"]);
    let shown = Finished::run(command(&["message", "show", id, "--json"])).await.json();
    assert_eq!(shown["status"], "sent");
    let (status, sent) = dev.post_its_line().await;
    assert_eq!(status, 200, "the printed line still works: {sent}");
    let data = dev.data.clone();
    dev.end();
    assert!(!Path::new(&data).exists(), "{data}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_whether_the_service_would_start() {
    let site = Site::new().await;
    let report = Finished::run(site.command(&["serve", "--check", "--json"])).await.json();
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["dataDir"], json!(site.data_dir()));
    assert_eq!(report["arenaFormat"], 2);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("listen = \"{}\"\noperator", taken.local_addr().unwrap());
    site.reconfigure("listen = \"127.0.0.1:0\"\noperator", &listen);
    let checked = Finished::run(site.command(&["serve", "--check"])).await;
    assert_eq!(checked.code, 0, "it listens nowhere: {checked:?}");
    site.reconfigure("operator_listen", "operator_lisen");
    let checked = Finished::run(site.command(&["serve", "--check"])).await;
    assert_eq!(checked.code, 78, "{checked:?}");
}
