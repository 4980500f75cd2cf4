//! Connections that bring no valid key: they leave room for those that do, of HTTP and SMTP, and
//! none of which a byte of a request was read is closed without an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::{Client, get, post};
use crate::kit::{PATIENCE, SmtpClient};
use crate::secure::Certificate;
use crate::site::{Running, Target};

const SMTP: &str = "[smtp]\nlisten = \"127.0.0.1:0\"\n";
const WITHOUT_KEY: &str = "GET /emails HTTP/1.1\r\nHost: x\r\n\r\n";
const DESCRIPTION: &str = "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n";
const PART: &str = "GET /emails HTTP/1.1\r\nHo";
/// Shorter than the service waits for the first byte of a request.
const MOMENT: Duration = Duration::from_millis(300);

async fn silent(target: &Target, connections: usize) -> Vec<Client> {
    let mut silent = Vec::new();
    for _ in 0..connections {
        silent.push(Client::connect(target).await.unwrap());
    }
    // Until they are accepted.
    sleep(MOMENT).await;
    silent
}

/// Sends a message on a new connection, which must be served.
async fn send(target: &Target) -> Client {
    let mut client = Client::connect(target).await.unwrap();
    let answer = client.ask(post(target, "Hello")).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    client
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(timeout(MOMENT, stream.read(&mut [0; 64])).await, Ok(Ok(0) | Err(_)))
}

async fn count_closed(clients: &mut [Client]) -> usize {
    let mut closed = 0;
    for client in clients {
        let read = timeout(Duration::from_millis(5), client.stream.read(&mut [0; 64])).await;
        closed += usize::from(matches!(read, Ok(Ok(0) | Err(_))));
    }
    closed
}

async fn metrics(site: &Running) -> String {
    let address = site.process.operator_listening();
    let mut stream = TcpStream::connect(address.as_str()).await.unwrap();
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_shut_an_organisation_out() {
    let site = Running::start(&format!("max_connections = 8\n{SMTP}"), None).await;
    let target = site.target();
    let address = site.process.smtp_listening();
    let mut kept = send(&target).await;
    let mut session = SmtpClient::login(&*address, &target.key).await.unwrap();
    let mut strangers = silent(&target, 8).await;
    send(&target).await;
    let mut sessions = Vec::new();
    for _ in 0..8 {
        sessions.push(TcpStream::connect(&address).await.unwrap());
    }
    sleep(MOMENT).await;
    send(&target).await;
    SmtpClient::login(&*address, &target.key).await.unwrap();
    assert!(count_closed(&mut strangers).await >= 4, "at most half of the limit is theirs");
    // Who has a key stays.
    assert_eq!(kept.ask(get(&target, "/emails")).await.unwrap().status, 200);
    session.ask_for("NOOP", "250 ").await.unwrap();
    let metrics = metrics(&site).await;
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name}: {metrics}")).trim().parse::<f64>().unwrap()
    };
    assert!(value("pillarbox_keyless_connections ") <= 4.0);
    assert!(value("pillarbox_closed_keyless_connections_total{reason=\"idle\"} ") >= 8.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_do_not_end_make_room_before_silent_connections() {
    let certificate = Arc::new(Certificate::new());
    let more = format!("max_connections = 40\n{}", certificate.configuration());
    let site = Running::start(&more, None).await;
    let target = site.target();
    let mut first = certificate.connect(&target, b"http/1.1").await.unwrap();
    // The client ends its handshake before the service has its last message.
    sleep(MOMENT).await;
    let mut strangers = silent(&target, 30).await;
    certificate.serve(&target, MOMENT).await;
    // One address may have 16.
    assert!(count_closed(&mut strangers).await >= 15);
    let read = timeout(MOMENT, first.read(&mut [0; 64])).await;
    assert!(read.is_err(), "one that has ended its handshake stays: {read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_has_begun_is_closed_with_408_alone_and_after_2_seconds() {
    let site = Running::start("max_connections = 8\n", None).await;
    let target = site.target();
    let mut halves = silent(&target, 4).await;
    for half in &mut halves {
        half.send(PART).await.unwrap();
    }
    sleep(MOMENT).await;
    let mut new = Client::connect(&target).await.unwrap();
    let answer = new.ask(WITHOUT_KEY).await.unwrap();
    assert_eq!(answer.status, 503, "nobody can make room: {}", answer.body);
    sleep(Duration::from_millis(2_100)).await;
    send(&target).await;
    // All began within the same instant, so that it may be any of them.
    let answers = halves
        .iter_mut()
        .enumerate()
        .map(|(number, half)| Box::pin(async move { (number, half.answer().await.unwrap()) }));
    let ((number, answer), _, _) = timeout(PATIENCE, select_all(answers)).await.unwrap();
    assert_eq!(answer.status, 408, "{}", answer.body);
    halves.swap_remove(number);
    // The others had no need to go, and may end their request.
    for half in &mut halves {
        half.send("st: x\r\n\r\n").await.unwrap();
        assert_eq!(half.answer().await.unwrap().status, 401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_a_key_makes_room_after_2_seconds() {
    let site = Running::start(&format!("max_connections = 8\n{SMTP}"), None).await;
    let target = site.target();
    let address = site.process.smtp_listening();
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let mut session = SmtpClient::connect(&*address).await.unwrap();
        session.ask_for("EHLO client", "250").await.unwrap();
        sessions.push(session);
    }
    let mut refused = Client::connect(&target).await.unwrap();
    assert_eq!(refused.ask(WITHOUT_KEY).await.unwrap().status, 503);
    sleep(Duration::from_millis(2_400)).await;
    send(&target).await;
    let reply = sessions[0].reply().await.unwrap();
    assert!(reply.starts_with("421 4.3.2 "), "{reply}");
    sessions[1].ask_for("NOOP", "250 ").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_key_ends_its_connection_once_room_is_short() {
    let site = Running::start(&format!("max_connections = 16\n{SMTP}"), None).await;
    let target = site.target();
    let address = site.process.smtp_listening();
    let closes = async |request: &str| {
        let mut client = Client::connect(&target).await.unwrap();
        let answer = client.ask(request).await.unwrap();
        let is_told = answer.header("connection") == Some("close");
        assert_eq!(is_told, is_closed(&mut client.stream).await);
        is_told
    };
    let refuses = async || {
        let mut session = SmtpClient::connect(&*address).await.unwrap();
        session.ask_for("EHLO client", "250").await.unwrap();
        session.ask_for("MAIL FROM:<ann@example.com>", "530 ").await.unwrap();
        session.ask("NOOP").await.is_err()
    };
    for request in [WITHOUT_KEY, DESCRIPTION] {
        assert!(!closes(request).await, "there is room: {request}");
    }
    assert!(!refuses().await);
    // Four of eight with the next one.
    let _strangers = silent(&target, 3).await;
    for request in [WITHOUT_KEY, DESCRIPTION, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
        assert!(closes(request).await, "{request}");
    }
    assert!(refuses().await);
    assert!(!closes(&get(&target, "/emails")).await, "one with a key stays");
    // So it is with a key that is not valid.
    let target = Target { key: "pb_none".to_owned(), ..target.clone() };
    assert!(closes(&get(&target, "/emails")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_has_a_quarter_of_the_half_unless_it_is_a_trusted_proxys() {
    for (more, least, most) in [("", 50, 50), ("trusted_proxies = [\"127.0.0.0/8\"]\n", 70, 70)] {
        let site = Running::start(&format!("max_connections = 400\n{more}"), None).await;
        let target = site.target();
        let mut strangers = silent(&target, 70).await;
        let open = 70 - count_closed(&mut strangers).await;
        assert!((least..=most).contains(&open), "{more}: {open} are open");
        send(&target).await;
    }
}

/// Half of the limit cannot be taken by who opens connections faster than they are served.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_connections_leaves_new_clients_with_a_key_in() {
    let site = Running::start("max_connections = 100\n", None).await;
    let target = site.target();
    let flood = {
        let target = target.clone();
        tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                held.extend(Client::connect(&target).await);
                if held.len() > 300 {
                    held.drain(..100);
                }
            }
        })
    };
    let end = Instant::now() + Duration::from_secs(3);
    let (mut served, mut tried) = (0, 0);
    while Instant::now() < end {
        tried += 1;
        let Ok(mut client) = Client::connect(&target).await else { continue };
        let answer = timeout(PATIENCE, client.ask(post(&target, "Hello"))).await.unwrap();
        served += usize::from(answer.is_ok_and(|answer| answer.status == 200));
    }
    flood.abort();
    assert!(served * 10 >= tried * 9 && tried > 10, "{served} of {tried} were served");
}
