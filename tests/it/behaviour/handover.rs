//! Restarts with the listening socket held from outside: no client notices.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::CONNECTION;
use hyper_util::rt::TokioIo;
use pillarbox_ses::send::MESSAGE_ID_TAG;
use pillarbox_simulator::Options;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::kit::{PATIENCE, Site, message};

const CLIENTS: usize = 16;
/// Messages accepted before a restart, at least.
const LOAD: usize = 200;

/// A client that keeps its connection for as long as it may, and repeats nothing.
struct Client {
    address: String,
    key: String,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// Posts a message; returns its id if it was accepted.
    async fn post(&mut self, body: &Value) -> Option<String> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(&self.address).await.expect("no connection is refused");
            let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            self.connection = Some(sender);
        }
        let request = Request::post("/emails")
            .header("host", &self.address)
            .header("authorization", format!("Bearer {}", self.key))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let sender = self.connection.as_mut().unwrap();
        let response = sender.send_request(request).await.expect("no request is broken");
        let closes = response.headers().get(CONNECTION).is_some_and(|value| value == "close");
        let status = response.status();
        let body = response.into_body().collect().await.expect("no answer is broken").to_bytes();
        if closes {
            self.connection = None;
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        if status == 503 {
            assert_eq!(body["error"]["code"], "ShuttingDown");
            return None;
        }
        assert_eq!(status, 200, "{body}");
        Some(body["id"].as_str().unwrap().to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_restarts_under_load_refuse_break_lose_and_repeat_nothing() {
    let latency = Duration::from_millis(20);
    let site = Site::with("", Options { latency, ..Options::default() }).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let ended = Arc::new(AtomicBool::new(false));
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let mut server = site.start_on(&listener);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (ended, accepted) = (Arc::clone(&ended), Arc::clone(&accepted));
        let mut client =
            Client { address: address.clone(), key: site.key.clone(), connection: None };
        clients.spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                let posted = timeout(PATIENCE, client.post(&message())).await;
                if let Some(id) = posted.expect("nobody hangs") {
                    accepted.lock().unwrap().push(id);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    // However busy the machine is, there is load before each restart and after the last one.
    let load = async || {
        let before = accepted.lock().unwrap().len();
        tokio::time::sleep(Duration::from_millis(700)).await;
        while accepted.lock().unwrap().len() < before + LOAD {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    for _ in 0..2 {
        timeout(PATIENCE, load()).await.expect("messages are accepted");
        server.terminate().await;
        server = site.start_on(&listener);
    }
    timeout(PATIENCE, load()).await.expect("messages are accepted");
    ended.store(true, Ordering::Relaxed);
    clients.join_all().await;
    server.terminate().await;

    let accepted = accepted.lock().unwrap().clone();
    assert_eq!(accepted.iter().collect::<HashSet<_>>().len(), accepted.len());
    let missing =
        accepted.iter().filter(|id| site.simulator.accepted_by_tag(MESSAGE_ID_TAG, id) != 1);
    assert_eq!(missing.count(), 0, "each was sent exactly once");
    assert_eq!(site.simulator.accepted_total(), accepted.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_drain_answers_those_who_wait_for_the_next_process() {
    let latency = Duration::from_secs(9);
    let site = Site::with("", Options { latency, ..Options::default() }).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = site.start_on(&listener);
    server.send(&message()).await;
    let address = listener.local_addr().unwrap().to_string();
    let ended = tokio::spawn(server.terminate());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut late = Client { address, key: site.key.clone(), connection: None };
    let waited = std::time::Instant::now();
    assert_eq!(late.post(&message()).await, None);
    assert!((3..8).contains(&waited.elapsed().as_secs()), "{:?}", waited.elapsed());
    ended.await.unwrap();
}
