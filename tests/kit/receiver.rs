//! An endpoint of webhooks: it keeps what it was sent, and answers as a test says.
//!
//! Must not know the service.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Sleep, sleep};

use super::PATIENCE;

/// Pause between two pieces of a body without an end.
const ENDLESS_PAUSE: Duration = Duration::from_millis(1);

/// Answer of an endpoint.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// With this status at once.
    Status(u16),
    /// With this status, after a while.
    Slow(Duration, u16),
    /// With this status and header.
    With(u16, &'static str, String),
    /// With this status and body.
    Saying(u16, &'static str),
    /// The endpoint never answers.
    Silence,
    /// 200, and then bytes without an end.
    Endless,
}

/// A request that an endpoint was sent.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) at: Instant,
    pub(crate) id: String,
    pub(crate) timestamp: String,
    pub(crate) signature: String,
    /// The same three by svix's names.
    pub(crate) svix: [String; 3],
    pub(crate) content_type: String,
    pub(crate) body: String,
}

impl Received {
    /// Returns the event, parsed.
    pub(crate) fn event(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// True if one of the signatures is by this secret (Standard Webhooks 1.0.0).
    pub(crate) fn is_signed_by(&self, secret: &str) -> bool {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{}.{}.{}", self.id, self.timestamp, self.body).as_bytes());
        let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        self.signature.split(' ').any(|signature| signature == expected)
    }
}

#[derive(Debug)]
struct Inner {
    received: Vec<Received>,
    /// Answers to the next requests, before `reply`.
    next: VecDeque<Reply>,
    reply: Reply,
    open: usize,
    most_open: usize,
}

/// An endpoint on a port of its own. It ends with the test.
pub(crate) struct Receiver {
    pub(crate) url: String,
    inner: Arc<Mutex<Inner>>,
    serving: JoinHandle<()>,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl Receiver {
    pub(crate) async fn start(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hooks?tenant=7", listener.local_addr().unwrap());
        let inner =
            Inner { received: Vec::new(), next: VecDeque::new(), reply, open: 0, most_open: 0 };
        let inner = Arc::new(Mutex::new(inner));
        let serving = tokio::spawn(serve(listener, Arc::clone(&inner)));
        Self { url, inner, serving }
    }

    /// Answers so from now on.
    pub(crate) fn set(&self, reply: Reply) {
        self.inner.lock().unwrap().reply = reply;
    }

    /// Answers the next requests so, and then as before.
    pub(crate) fn next(&self, replies: impl IntoIterator<Item = Reply>) {
        self.inner.lock().unwrap().next.extend(replies);
    }

    /// All requests so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.inner.lock().unwrap().received.clone()
    }

    /// Number of requests so far.
    pub(crate) fn count(&self) -> usize {
        self.inner.lock().unwrap().received.len()
    }

    /// The most requests that were being answered at one time.
    pub(crate) fn most_open(&self) -> usize {
        self.inner.lock().unwrap().most_open
    }

    /// Waits until there were so many requests.
    pub(crate) async fn wait_for(&self, count: usize) -> Vec<Received> {
        let end = Instant::now() + PATIENCE;
        while self.count() < count {
            assert!(Instant::now() < end, "{} of {count} requests came", self.count());
            sleep(Duration::from_millis(5)).await;
        }
        self.received()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, inner: Arc<Mutex<Inner>>) {
    // They end with this task.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let inner = Arc::clone(&inner);
        let service = service_fn(move |request| answer(request, Arc::clone(&inner)));
        connections.spawn(async move {
            // A connection that the other side breaks off is its end.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    request: Request<Incoming>,
    inner: Arc<Mutex<Inner>>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    if head.method != "POST" {
        return Ok(status(405));
    }
    let Ok(body) = body.collect().await else { return Ok(status(400)) };
    let header = |name: &str| {
        head.headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    assert_eq!(head.uri, "/hooks?tenant=7");
    let received = Received {
        at: Instant::now(),
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
        svix: ["svix-id", "svix-timestamp", "svix-signature"].map(header),
        content_type: header("content-type"),
        body: String::from_utf8(body.to_bytes().to_vec()).unwrap(),
    };
    let reply = {
        let mut inner = inner.lock().unwrap();
        inner.received.push(received);
        inner.open += 1;
        inner.most_open = inner.most_open.max(inner.open);
        let next = inner.next.pop_front();
        next.unwrap_or_else(|| inner.reply.clone())
    };
    let _open = Open(inner);
    Ok(match reply {
        Reply::Status(code) => status(code),
        Reply::Slow(time, code) => {
            sleep(time).await;
            status(code)
        }
        Reply::With(code, name, value) => {
            let mut response = status(code);
            response.headers_mut().insert(name, value.parse().unwrap());
            response
        }
        Reply::Saying(code, text) => {
            Response::builder().status(code).body(Full::from(text).boxed_unsync()).unwrap()
        }
        Reply::Silence => std::future::pending().await,
        Reply::Endless => Response::new(Endless::new().boxed_unsync()),
    })
}

/// A body without an end: a piece every millisecond.
struct Endless(Pin<Box<Sleep>>);

impl Endless {
    fn new() -> Self {
        Self(Box::pin(sleep(ENDLESS_PAUSE)))
    }
}

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        ready!(self.0.as_mut().poll(context));
        self.0 = Box::pin(sleep(ENDLESS_PAUSE));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 1_024])))))
    }
}

/// Counts a request as open until it is dropped.
struct Open(Arc<Mutex<Inner>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().unwrap().open -= 1;
    }
}

fn status(code: u16) -> Response<Body> {
    let mut response = Response::new(BodyExt::boxed_unsync(Full::new(Bytes::from("noted"))));
    *response.status_mut() = code.try_into().unwrap();
    response
}
