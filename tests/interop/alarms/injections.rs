//! Injections of faults: most functions make something go wrong at a site, and keep it so.

use std::fs::File;
use std::future::pending;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use pillarbox_simulator::{Fault as Call, Faults};
use redb::{Database, TableDefinition};
use reqwest::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;
use uuid::{Builder, Uuid};

use crate::Program;
use crate::alarms::site::{Monitored, Place, Setup, impaired, is, message};
use crate::kit::{Receiver, Reply, SmtpClient};
use crate::nodes::{self, psql};

/// Beginning of the names of databases, one for each site that has one.
const DATABASE: &str = "alarms";
const WAITS_FOR_STANDBY: &str = "pillarbox_postgres_waits_for_standby";
/// Limit of open files of the service if these are few.
pub(super) const FILES: usize = 100;

/// Adds an endpoint of `acme` that always answers so, and goes on sending.
pub(super) async fn add_webhook(site: &mut Monitored, status: u16) {
    let receiver = Receiver::start(Reply::Status(status)).await;
    site.done(&["webhook", "add", "--org", "acme", &receiver.url]);
    site.keep_sending(2.0).await;
}

/// Has operators have a receiver that takes no alert.
pub(super) async fn refuse_alerts(site: &mut Monitored) {
    let receiver = Receiver::start(Reply::Status(500)).await;
    site.post_alerts_to(&receiver.url);
    site.keep_sending(2.0).await;
}

pub(super) async fn stop(site: &mut Monitored) {
    site.send().await;
    site.until(|metrics| is(metrics, "pillarbox_queue_in_flight_messages", 1)).await;
    site.signal("TERM");
    pending::<()>().await;
}

pub(super) async fn kill(site: &mut Monitored) {
    site.send().await;
    site.until(|metrics| is(metrics, "pillarbox_queue_in_flight_messages", 1)).await;
    site.kill();
    site.start().await;
    pending::<()>().await;
}

/// Has every call for a message fail like this. Enough are sent to find out.
pub(super) async fn calls_fail(site: &mut Monitored, call: Call) {
    site.simulator().set_faults(Faults::always(call));
    for _ in 0..6 {
        site.send().await;
    }
    pending::<()>().await;
}

/// Pauses `acme`, which then has a message.
pub(super) async fn pause_and_send(site: &mut Monitored) {
    site.done(&["org", "pause", "acme"]);
    site.send().await;
    pending::<()>().await;
}

/// Has enough calls for `acme` fail, and answers one for another organisation. The first probe comes
/// after minutes, and fails too.
pub(super) async fn answer_another(site: &mut Monitored) {
    let mut calls = vec![Call::InternalError; 100];
    calls[5] = Call::Pass;
    site.simulator().script(calls);
    for _ in 0..5 {
        site.send().await;
    }
    site.until(|metrics| impaired(metrics, "unreachable")).await;
    let (status, answer) = site.post("other", &message(&["bob@example.org"])).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    pending::<()>().await;
}

pub(super) async fn use_quota(site: &mut Monitored) {
    site.until(|metrics| metrics.contains_key("pillarbox_quota_recipients")).await;
    for _ in 0..95 {
        site.send().await;
    }
    pending::<()>().await;
}

/// Fills the queue, first with large messages, then with the least that there are.
pub(super) async fn fill_queue(site: &mut Monitored) {
    site.simulator().set_faults(Faults::always(Call::SendingPaused));
    let mut large = message(&["bob@example.org"]);
    large["text"] = json!("x".repeat(10_000));
    let until_refused = async |message| {
        while site.post("acme", &message).await.0 == StatusCode::OK {}
    };
    until_refused(large).await;
    sleep(Duration::from_secs(3)).await;
    let mut small = message(&["b@example.org"]);
    small["subject"] = json!("x");
    small["text"] = json!("x");
    until_refused(small).await;
    site.keep_sending(2.0).await;
}

/// Sends each organisation's mail, of which some bounces or gets complaints. The rest goes first,
/// so that no rate is ever above its final value.
pub(super) async fn bounce_and_complain(site: &mut Monitored) {
    let shares = [
        ("bounces-some", 200, "bounce", 7),
        ("bounces-many", 200, "bounce", 20),
        ("complaints-some", 1_500, "complaint", 1),
        ("complaints-many", 1_500, "complaint", 3),
        ("small", 10, "bounce", 5),
    ];
    for is_bad in [false, true] {
        for (organisation, recipients, fate, bad) in shares {
            let (fate, number) = if is_bad { (fate, bad) } else { ("success", recipients) };
            let to = (0..number).map(|n| format!("{fate}+{n}@simulator.amazonses.com"));
            let to: Vec<_> = to.collect();
            // Complaints in one event are one complaint.
            for to in to.chunks(if is_bad { 1 } else { 50 }) {
                let to: Vec<_> = to.iter().map(String::as_str).collect();
                let (status, answer) = site.post(organisation, &message(&to)).await;
                assert_eq!(status, StatusCode::OK, "{answer}");
            }
        }
        site.until_settled().await;
    }
    pending::<()>().await;
}

/// Has a message accepted 92 days ago, and then sets the clock right at once.
pub(super) async fn jump(site: &mut Monitored) {
    site.send().await;
    site.until_settled().await;
    std::fs::write(site.clock(), "+0d").unwrap();
    pending::<()>().await;
}

/// A site with a database of its own.
pub(super) fn on_database() -> Setup {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let name = format!("{DATABASE}{}", MADE.fetch_add(1, Ordering::Relaxed));
    psql("postgres", &format!("CREATE DATABASE {name}"));
    Setup {
        more: nodes::configuration("a", &name).leak(),
        organisations: &[],
        place: Place::ClockOff("+0s"),
        ..Setup::default()
    }
}

/// Takes the database its standby, puts the clock ahead of the database's, and adds a node that never
/// gives a sign of life.
pub(super) async fn disturb_database(site: &mut Monitored) {
    let standby = nodes::Standby::start("alarms", &site.path("standby")).await;
    site.until(|metrics| metrics.get(WAITS_FOR_STANDBY) == Some(&1.0)).await;
    drop(standby);
    std::fs::write(site.clock(), "+30s").unwrap();
    let text = std::fs::read_to_string(site.path("pillarbox.toml")).unwrap();
    let (_, rest) = text.split_once("database = \"").unwrap();
    psql(
        rest.split('"').next().unwrap(),
        "INSERT INTO node (name, directory, version, started_at) VALUES ('gone', '', '0.1.0', 0)",
    );
    pending::<()>().await;
}

/// Takes up all the room while calls are under way, whose outcomes then find none.
pub(super) async fn fill_disk(site: &mut Monitored) {
    site.simulator().set_latency(Duration::from_millis(300));
    let mut ballast = File::create(site.data().join("ballast")).unwrap();
    while ballast.write_all(&[0; 4_096]).is_ok() {}
    // Long records, so that what is left in the file fills up soon.
    let to: Vec<_> = (0..50).map(|n| format!("{}{n}@example.org", "x".repeat(60))).collect();
    let to: Vec<_> = to.iter().map(String::as_str).collect();
    loop {
        if site.post("acme", &message(&to)).await.0 != StatusCode::OK {
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Deletes the data file under the running service.
pub(super) async fn delete_data_file(site: &mut Monitored) {
    std::fs::remove_file(site.data().join("pillarbox.redb")).unwrap();
    pending::<()>().await;
}

/// Has every sync take over half a second.
pub(super) async fn slow_disk(site: &mut Monitored) {
    let mut slow = Command::new("strace");
    slow.args(["--follow-forks", "--output=/dev/null", "--trace=fsync,fdatasync"]);
    slow.args(["--inject=fsync,fdatasync:delay_enter=600ms", "--attach", &site.id().to_string()]);
    let slow = slow.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let _slow = Program(slow.expect("strace is installed"));
    site.keep_sending(2.0).await;
}

/// Opens connections until files are near their limit: operators', and of clients with a key those
/// that are missing.
pub(super) async fn use_files(site: &mut Monitored) {
    const OF_CLIENTS: usize = 16;
    let open = std::fs::read_dir(format!("/proc/{}/fd", site.id())).unwrap().count();
    let clients = site.base.strip_prefix("http://").unwrap();
    let keys = [(site.key("acme"), OF_CLIENTS)];
    tokio::join!(
        hold(&site.operator.address, FILES * 9 / 10 - open - OF_CLIENTS),
        hold_with_keys(clients, &keys)
    );
}

/// Connects so often, and holds the connections by a request now and then.
pub(super) async fn hold(address: &str, connections: usize) {
    // At one time: on a busy machine, the first would be closed before the last is asked.
    let held = (0..connections).map(async |_| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        loop {
            ask(&mut stream, "HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
            sleep(Duration::from_secs(5)).await;
        }
    });
    join_all(held).await;
}

/// The same with keys, one after the other: connections without a key have half of the limit, and
/// the share of each organisation depends on what is free.
pub(super) async fn hold_with_keys(address: &str, keys: &[(&str, usize)]) {
    let mut held = Vec::new();
    for (key, connections) in keys {
        for _ in 0..*connections {
            let mut stream = TcpStream::connect(address).await.unwrap();
            read_with_key(&mut stream, key).await;
            held.push((stream, *key));
        }
    }
    let held = held.iter_mut().map(async |(stream, key)| {
        loop {
            sleep(Duration::from_secs(5)).await;
            read_with_key(stream, key).await;
        }
    });
    join_all(held).await;
}

async fn read_with_key(stream: &mut TcpStream, key: &str) {
    let head = "GET /emails/none HTTP/1.1\r\nhost: x\r\n";
    ask(stream, &format!("{head}authorization: Bearer {key}\r\n\r\n")).await;
}

/// Sends a request and waits for the beginning of its answer.
async fn ask(stream: &mut TcpStream, request: &str) {
    stream.write_all(request.as_bytes()).await.unwrap();
    assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0, "the connection was closed");
}

/// The same with sessions of SMTP, which stay only if they have authenticated.
pub(super) async fn hold_sessions(address: &str, keys: &[(&str, usize)]) {
    let mut held = Vec::new();
    for (key, sessions) in keys {
        for _ in 0..*sessions {
            held.push(SmtpClient::login(address, key).await.unwrap());
        }
    }
    let held = held.iter_mut().map(async |client| {
        loop {
            sleep(Duration::from_secs(5)).await;
            client.ask_for("NOOP", "250 ").await.unwrap();
        }
    });
    join_all(held).await;
}

const MESSAGES: TableDefinition<[u8; 16], &[u8]> = TableDefinition::new("messages");

const DAY_MILLIS: u64 = 24 * 60 * 60 * 1_000;

/// The message whose row is damaged. It is of yesterday, because the page counts the messages of the
/// last minutes by itself and would find it before anybody asks for it.
pub(super) static DAMAGED: LazyLock<Uuid> = LazyLock::new(|| {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let millis = u64::try_from(now).unwrap() - DAY_MILLIS;
    Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
});

/// Puts a row among the messages that is none, as a disk does.
pub(super) fn damage(data: &Path) {
    let file = Database::open(data.join("pillarbox.redb")).unwrap();
    let writing = file.begin_write().unwrap();
    let mut messages = writing.open_table(MESSAGES).unwrap();
    messages.insert(*DAMAGED.as_bytes(), &[0xff; 9][..]).unwrap();
    drop(messages);
    writing.commit().unwrap();
}
