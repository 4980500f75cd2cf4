//! A stand-in for SES in this module's tests: answers every request in one given way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::credentials::Credentials;
use crate::{SesClient, SesOptions};
use pillarbox_domain::attempt::TrackingOverride;
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::proxy::ProxyRule;

/// Answer to a request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// These bytes, and the connection stays open.
    Keep(String),
    /// These bytes, and the connection ends.
    Close(String),
    /// The request is read, and the connection ends in a reset.
    Reset,
    /// The request is read, and nothing more happens.
    Stall,
    /// The connection is taken, and nothing is ever read or written.
    Silence,
}

impl Answer {
    pub(crate) fn with_type(status: u16, content_type: &str, body: &str) -> Self {
        Self::with_headers(status, &format!("content-type: {content_type}\r\n"), body)
    }

    pub(crate) fn with_headers(status: u16, headers: &str, body: &str) -> Self {
        let length = body.len();
        Self::Keep(format!(
            "HTTP/1.1 {status} Status\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ))
    }

    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self::with_type(status, "application/json", body)
    }

    /// An error as SES words it.
    pub(crate) fn error(status: u16, name: &str, message: &str) -> Self {
        let body = serde_json::json!({ "message": message }).to_string();
        let headers = format!("x-amzn-errortype: {name}:http://internal.amazon.com/coral/x/\r\n");
        Self::with_headers(status, &headers, &body)
    }
}

/// A request as it came over the wire.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A server on a port of its own; ends when dropped.
pub(crate) struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    /// Answers every request in the same way.
    pub(crate) async fn start(answer: Answer) -> Self {
        Self::with(move |_| answer.clone()).await
    }

    /// Answers as the function says.
    pub(crate) async fn with(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, Arc::clone(&seen), Arc::clone(&answer)));
            }
        });
        Self { port, requests, connections, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Number of connections that were made.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: Arc<Mutex<Vec<Request>>>,
    answer: Arc<impl Fn(&Request) -> Answer>,
) {
    let nothing = Request { head: String::new(), body: Vec::new() };
    if matches!(answer(&nothing), Answer::Silence) {
        std::future::pending::<()>().await;
    }
    while let Some(request) = read_request(&mut stream).await {
        seen.lock().unwrap().push(request.clone());
        match answer(&request) {
            Answer::Keep(bytes) => stream.write_all(bytes.as_bytes()).await.unwrap(),
            Answer::Close(bytes) => return stream.write_all(bytes.as_bytes()).await.unwrap(),
            Answer::Reset => return stream.set_zero_linger().unwrap(),
            Answer::Stall | Answer::Silence => std::future::pending::<()>().await,
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut request = Request { head, body: bytes.split_off(head_end) };
    let length = request.header("content-length").map_or(0, |text| text.parse().unwrap());
    while request.body.len() < length {
        if stream.read_buf(&mut request.body).await.ok()? == 0 {
            return None;
        }
    }
    Some(request)
}

pub(crate) fn options(endpoint: &str) -> SesOptions {
    SesOptions {
        region: "eu-west-1".to_owned(),
        endpoint: Some(endpoint.to_owned()),
        configuration_set: None,
        tracking_override: TrackingOverride::Always,
        request_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(2),
        proxy: ProxyRule::Direct,
        credentials: Credentials::fixed("AKIDEXAMPLE", SecretString::from("secret")),
    }
}

pub(crate) fn client(endpoint: &str) -> SesClient {
    SesClient::new(options(endpoint), Clock::system()).unwrap()
}
