//! The HTTP edge's transport over real sockets: what a client reads for every kind of request,
//! the malformed and the slow included.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use pillarbox_domain::id::OrganisationId;
use pillarbox_http::body::{BodyReader, ResponseBody};
use pillarbox_http::drain::Drain;
use pillarbox_http::limits::{Limits, Linger};
use pillarbox_http::rejection::Rejection;
use pillarbox_http::request_id::RequestId;
use pillarbox_http::{Connection, Drained, Handler, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const GET: &str = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
const CLOSE: &str = "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
/// Longer than anything here takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Echoes method, path and body, but for the paths that do something else.
struct Echo {
    bodies: BodyReader<OrganisationId>,
    /// Requests to `/gate` wait for a permit.
    gate: Arc<Semaphore>,
}

impl Handler for Echo {
    async fn handle(
        &self,
        request: Request<Incoming>,
        id: RequestId,
        _: &Connection,
    ) -> Response<ResponseBody> {
        self.echo(request, id).await.map(Into::into)
    }
}

impl Echo {
    async fn echo(&self, request: Request<Incoming>, id: RequestId) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        match head.uri.path() {
            "/panic" => panic!("as asked"),
            "/early" => return Rejection::Unauthorized.into_response(),
            "/id" => return Response::new(Full::from(id.to_string())),
            "/big" => return Response::new(Full::from(vec![b'x'; 64 * 1024 * 1024])),
            "/gate" => self.gate.acquire().await.unwrap().forget(),
            _ => {}
        }
        match self.bodies.read(OrganisationId(1), body).await {
            Ok(body) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                let shown = if text.len() > 100 { text.len().to_string() } else { text };
                let echo = format!("{} {} {shown};", head.method, head.uri.path());
                Response::new(Full::from(echo))
            }
            Err(error) => error.into_response(),
        }
    }
}

struct Server {
    address: SocketAddr,
    drain: Drain,
    gate: Arc<Semaphore>,
    task: JoinHandle<Drained>,
}

/// Short timeouts, for tests that wait for none of them and for those that wait for one.
fn limits() -> Limits {
    Limits {
        head_timeout: Duration::from_secs(5),
        max_request_bytes: 1_000_000,
        linger: Linger { idle_timeout: Duration::from_millis(300), ..Linger::default() },
        ..Limits::default()
    }
}

async fn start(limits: Limits) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (drain, signal) = Drain::new();
    let gate = Arc::new(Semaphore::new(0));
    let handler = Echo { bodies: BodyReader::new(&limits), gate: Arc::clone(&gate) };
    let task = tokio::spawn(async move { serve(listener, handler, limits, signal).await.unwrap() });
    Server { address, drain, gate, task }
}

/// A client's connection and what was read of it beyond the last response.
struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    async fn connect(server: &Server) -> Self {
        Self { stream: TcpStream::connect(server.address).await.unwrap(), unread: Vec::new() }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads one response: head and body.
    async fn response(&mut self) -> (String, String) {
        loop {
            let text = String::from_utf8_lossy(&self.unread).into_owned();
            if let Some((head, rest)) = text.split_once("\r\n\r\n") {
                let length = header(head, "content-length").parse::<usize>().unwrap();
                if rest.len() >= length {
                    let (head, body) = (head.to_owned(), rest[..length].to_owned());
                    self.unread.drain(..head.len() + 4 + length);
                    return (head, body);
                }
            }
            let count = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await;
            assert_ne!(count.expect("a response in time").unwrap(), 0, "closed after {text:?}");
        }
    }

    /// Reads until the server closes, which must not be by a reset.
    async fn rest(mut self) -> String {
        let read = timeout(PATIENCE, self.stream.read_to_end(&mut self.unread)).await;
        read.expect("closed in time").expect("closed, not reset");
        String::from_utf8(self.unread).unwrap()
    }
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
}

/// Sends `bytes` and returns all that comes until the server closes.
async fn exchange(limits: Limits, bytes: impl AsRef<[u8]>) -> String {
    let server = start(limits).await;
    let mut client = Client::connect(&server).await;
    client.send(bytes).await;
    client.rest().await
}

/// Asserts that `answers` is one complete error response, the connection's last.
fn assert_error(answers: &str, status: u16, code: &str) {
    let (head, body) = answers.split_once("\r\n\r\n").expect(answers);
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answers}");
    assert!(body.starts_with(&format!(r#"{{"error":{{"code":"{code}","message":""#)), "{answers}");
    assert_eq!(header(head, "content-length"), body.len().to_string(), "{answers}");
    assert_eq!(header(head, "content-type"), "application/json", "{answers}");
    assert_eq!(header(head, "connection"), "close", "{answers}");
    assert_eq!(header(head, "x-request-id").len(), 16, "{answers}");
    assert!(header(head, "date").ends_with("GMT"), "{answers}");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let post = "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
    let answers = exchange(limits(), [GET, post, GET, post, CLOSE].concat()).await;
    let bodies: Vec<_> = answers.split("\r\n\r\n").skip(1).map(|s| s.split(';').next()).collect();
    let expected = ["GET /a ", "POST /b hello", "GET /a ", "POST /b hello", "GET /last "];
    assert_eq!(bodies, expected.map(Some));
}

#[tokio::test]
async fn many_pipelined_bodies_across_reads_keep_the_connection() {
    let server = start(limits()).await;
    let mut client = Client::connect(&server).await;
    let body = "y".repeat(7_001);
    let post = format!("POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 7001\r\n\r\n{body}");
    client.send(post.repeat(50)).await;
    for _ in 0..50 {
        assert_eq!(client.response().await.1, "POST /b 7001;");
    }
}

#[tokio::test]
async fn a_connection_serves_many_requests_each_with_its_own_id() {
    let server = start(limits()).await;
    let mut client = Client::connect(&server).await;
    let mut last = String::new();
    for _ in 0..3 {
        client.send("GET /id HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let (head, body) = client.response().await;
        assert_eq!(header(&head, "x-request-id"), body, "header and handler have the same id");
        assert_eq!(header(&head, "connection"), "");
        assert_ne!(body, last);
        last = body;
    }
}

#[tokio::test]
async fn a_client_that_ends_its_side_still_gets_its_responses() {
    let server = start(limits()).await;
    let mut client = Client::connect(&server).await;
    client.send([GET, GET].concat()).await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.rest().await.matches("GET /a ;").count(), 2);
}

#[tokio::test]
async fn http_1_0_is_answered_and_closed() {
    let answers = exchange(limits(), "GET /a HTTP/1.0\r\n\r\n").await;
    assert!(answers.ends_with("GET /a ;"), "{answers}");
}

#[tokio::test]
async fn a_slow_head_is_answered_with_408_and_earlier_requests_as_usual() {
    let limits = Limits { head_timeout: Duration::from_millis(100), ..limits() };
    let answers = exchange(limits, [GET, "GET / HTTP/1.1\r\nHos"].concat()).await;
    let (first, second) = answers.split_once("GET /a ;").expect("the first response");
    assert!(first.starts_with("HTTP/1.1 200 OK"), "{answers}");
    assert_error(second, 408, "RequestTimeout");
}

#[tokio::test]
async fn silent_connections_are_closed_without_a_word() {
    let short = Duration::from_millis(100);
    let limits = Limits { head_timeout: short, idle_timeout: short, ..limits() };
    assert_eq!(exchange(limits.clone(), "").await, "");
    let answers = exchange(limits, GET).await;
    assert!(answers.starts_with("HTTP/1.1 200 OK") && answers.ends_with("GET /a ;"), "{answers}");
}

#[tokio::test]
async fn malformed_requests_are_answered_with_400() {
    for request in [
        "nonsense\r\n\r\n",
        "\rGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1 \r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}",
        "GET /<> HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\nabc",
        "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    ] {
        assert_error(&exchange(limits(), request).await, 400, "BadRequest");
    }
}

#[tokio::test]
async fn a_malformed_request_ends_the_connection_after_the_responses_before_it() {
    let answers = exchange(limits(), [GET, "GET / HTTP/1.1\r\n\r\n", GET].concat()).await;
    let (first, second) = answers.split_once("GET /a ;").expect("the first response");
    assert!(first.starts_with("HTTP/1.1 200 OK"), "{answers}");
    assert_error(second, 400, "BadRequest");
}

#[tokio::test]
async fn a_refusal_waits_for_the_request_before_it() {
    let server = start(limits()).await;
    let mut client = Client::connect(&server).await;
    client.send("GET /gate HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.gate.add_permits(1);
    let (head, body) = client.response().await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert_eq!(body, "GET /gate ;");
    assert_error(&client.rest().await, 400, "BadRequest");
}

#[tokio::test]
async fn nothing_follows_a_response_that_closes() {
    let answers = exchange(limits(), [CLOSE, "nonsense\r\n\r\n"].concat()).await;
    assert!(answers.ends_with("GET /last ;"), "{answers}");
}

#[tokio::test]
async fn heads_over_their_limits_are_answered_with_431_and_414() {
    let long = "y".repeat(20_000);
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {long}\r\n\r\n");
    assert_error(&exchange(limits(), request).await, 431, "HeadersTooLarge");
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(64));
    assert_error(&exchange(limits(), request).await, 431, "HeadersTooLarge");
    let request = format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_error(&exchange(limits(), request).await, 414, "UriTooLong");
    let fields = "A: b\r\n".repeat(62);
    let request = format!("GET /a HTTP/1.1\r\nHost: x\r\n{fields}Connection: close\r\n\r\n");
    assert!(exchange(limits(), request).await.ends_with("GET /a ;"));
    let nearly = "y".repeat(16_000);
    let request = format!("{GET}GET /b HTTP/1.0\r\nA: {nearly}\r\n\r\n");
    assert!(exchange(limits(), request).await.ends_with("GET /b ;"));
}

#[tokio::test]
async fn a_body_over_the_limit_gets_its_413_though_the_client_writes_first_and_reads_later() {
    let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n";
    let request = [head.as_bytes(), &vec![b'x'; 30_000_000]].concat();
    assert_error(&exchange(limits(), request).await, 413, "PayloadTooLarge");
    let chunk = format!("{:x}\r\n{}\r\n", 100_000, "x".repeat(100_000));
    let head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let request = format!("{head}{}0\r\n\r\n", chunk.repeat(300));
    assert_error(&exchange(limits(), request).await, 413, "PayloadTooLarge");
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let head = "POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n";
    let request = [head.as_bytes(), &vec![b'x'; 20_000_000]].concat();
    assert_error(&exchange(limits(), request).await, 401, "Unauthorized");
}

#[tokio::test]
async fn an_early_answer_to_a_body_that_came_whole_keeps_the_connection() {
    let server = start(limits()).await;
    let mut client = Client::connect(&server).await;
    client.send("POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello").await;
    let (head, _) = client.response().await;
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    assert_eq!(header(&head, "connection"), "");
    client.send(GET).await;
    assert_eq!(client.response().await.1, "GET /a ;");
}

#[tokio::test]
async fn a_client_that_expects_to_be_asked_is_asked_or_told_no() {
    let server = start(limits()).await;
    let expect = |length: usize| {
        format!(
            "POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
        )
    };
    let mut client = Client::connect(&server).await;
    client.send(expect(5)).await;
    let mut asked = [0; 25];
    client.stream.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello").await;
    assert_eq!(client.response().await.1, "POST /e hello;");
    client.send(expect(2_000_000)).await;
    assert_error(&client.rest().await, 413, "PayloadTooLarge");
}

#[tokio::test]
async fn a_stalled_body_is_answered_with_408() {
    let limits = Limits { body_stall_timeout: Duration::from_millis(100), ..limits() };
    for framing in ["Content-Length: 10\r\n\r\nhel", "Transfer-Encoding: chunked\r\n\r\n9\r\nhel"] {
        let request = format!("POST / HTTP/1.1\r\nHost: x\r\n{framing}");
        assert_error(&exchange(limits.clone(), request).await, 408, "RequestTimeout");
    }
}

#[tokio::test]
async fn a_body_cut_off_by_the_client_is_answered_with_400_and_gives_its_memory_back() {
    let limits = Limits { max_reading_bytes: 2_000_000, ..limits() };
    let server = start(limits).await;
    for _ in 0..3 {
        let mut client = Client::connect(&server).await;
        client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\nhel").await;
        client.stream.shutdown().await.unwrap();
        assert_error(&client.rest().await, 400, "BadRequest");
    }
}

#[tokio::test]
async fn a_chunked_body_is_read_and_its_response_closes() {
    let chunked = "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\nTrailer: x\r\n\r\n";
    let answers = exchange(limits(), [GET, chunked, GET].concat()).await;
    let (_, last) = answers.split_once("GET /a ;").expect("the first response");
    let (head, body) = last.split_once("\r\n\r\n").expect("the second response");
    assert_eq!(header(head, "connection"), "close");
    assert_eq!(body, "POST /c hello;", "and nothing after it");
}

#[tokio::test]
async fn malformed_chunks_are_answered_with_400() {
    for chunks in ["x\r\n", "-1\r\n", "5\r\nhelloworld\r\n", "fffffffffffffffff\r\n"] {
        let request =
            format!("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        assert_error(&exchange(limits(), request).await, 400, "BadRequest");
    }
}

#[tokio::test]
async fn beyond_the_connection_limit_clients_are_told_and_others_go_on() {
    let server = start(Limits { max_connections: 2, ..limits() }).await;
    let mut first = Client::connect(&server).await;
    first.send(GET).await;
    first.response().await;
    let mut second = Client::connect(&server).await;
    second.send(GET).await;
    second.response().await;
    let mut third = Client::connect(&server).await;
    third.send(GET).await;
    let answer = third.rest().await;
    assert_error(&answer, 503, "TooManyConnections");
    assert!(answer.to_lowercase().contains("\r\nretry-after: "), "{answer}");
    first.send(GET).await;
    assert_eq!(first.response().await.1, "GET /a ;");
    drop(second);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut next = Client::connect(&server).await;
        next.send(CLOSE).await;
        if next.rest().await.ends_with("GET /last ;") {
            break;
        }
        assert!(Instant::now() < deadline, "a freed place is never given");
    }
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let server = start(limits()).await;
    let mut client = Client::connect(&server).await;
    client.send("GET /panic HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let (head, body) = client.response().await;
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    assert!(body.contains("InternalError") && !body.contains("as asked"), "{body}");
    client.send(GET).await;
    assert_eq!(client.response().await.1, "GET /a ;");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_let_go() {
    let server = start(Limits { write_timeout: Duration::from_millis(200), ..limits() }).await;
    let mut client = Client::connect(&server).await;
    client.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n").await;
    server.drain.close_connections();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.drain.stop(tokio::time::Instant::now() + PATIENCE);
    let start = Instant::now();
    assert_eq!(server.task.await.unwrap(), Drained { cut_off: 0 });
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_drain_asks_clients_to_leave_then_finishes_what_is_in_flight() {
    let server = start(limits()).await;
    let mut busy = Client::connect(&server).await;
    busy.send("GET /gate HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut idle = Client::connect(&server).await;
    idle.send(GET).await;
    idle.response().await;
    let silent = Client::connect(&server).await;
    let mut leaving = Client::connect(&server).await;
    leaving.send(GET).await;
    leaving.response().await;
    let mut halfway = Client::connect(&server).await;
    halfway.send("GET / HTTP/1.1\r\nHos").await;
    server.drain.close_connections();
    leaving.send(GET).await;
    let (head, _) = leaving.response().await;
    assert_eq!(header(&head, "connection"), "close");
    assert_eq!(leaving.rest().await, "");

    server.drain.stop(tokio::time::Instant::now() + PATIENCE);
    let start = Instant::now();
    assert_eq!(idle.rest().await, "");
    assert_eq!(silent.rest().await, "");
    assert_error(&halfway.rest().await, 503, "ShuttingDown");
    assert!(TcpStream::connect(server.address).await.is_err(), "the listener is closed");
    assert!(!server.task.is_finished());
    server.gate.add_permits(1);
    let answer = busy.rest().await;
    assert!(answer.ends_with("GET /gate ;"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    assert_eq!(server.task.await.unwrap(), Drained { cut_off: 0 });
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_drain_ends_at_its_deadline() {
    let server = start(limits()).await;
    let mut busy = Client::connect(&server).await;
    busy.send("GET /gate HTTP/1.1\r\nHost: x\r\n\r\n").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.drain.stop(tokio::time::Instant::now() + Duration::from_millis(100));
    let drained = timeout(PATIENCE, server.task).await.expect("in time").unwrap();
    assert_eq!(drained, Drained { cut_off: 1 });
}
