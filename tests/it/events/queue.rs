//! A queue that does as much of SQS as the poll needs: visibility, redelivery, and failures on
//! demand.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The longest that a receive waits, so that an idle poll's last receives end within a test.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deleting {
    Works,
    Fails,
    /// The call is never answered.
    Hangs,
}

pub(crate) struct StubQueue {
    port: u16,
    state: Arc<State>,
    task: JoinHandle<()>,
}

/// Says of a deleted message's body whether it was applied before.
type Watcher = Box<dyn Fn(&str) -> bool + Send + Sync>;

struct State {
    content: Mutex<Content>,
    visibility: Duration,
    watcher: Watcher,
}

struct Content {
    visible: VecDeque<Arc<str>>,
    in_flight: HashMap<u64, (Instant, Arc<str>)>,
    receipts: u64,
    deleted: usize,
    /// Of these, the ones that were not applied before.
    deleted_too_early: usize,
    deleting: Deleting,
    failing_receives: usize,
    receiving: usize,
    most_receiving: usize,
}

impl StubQueue {
    pub(crate) async fn start(visibility: Duration) -> Self {
        Self::watched(visibility, |_| true).await
    }

    pub(crate) async fn watched(
        visibility: Duration,
        watcher: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let content = Content {
            visible: VecDeque::new(),
            in_flight: HashMap::new(),
            receipts: 0,
            deleted: 0,
            deleted_too_early: 0,
            deleting: Deleting::Works,
            failing_receives: 0,
            receiving: 0,
            most_receiving: 0,
        };
        let watcher = Box::new(watcher);
        let state = Arc::new(State { content: Mutex::new(content), visibility, watcher });
        let served = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let state = Arc::clone(&served);
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    let _ = connection.await;
                });
            }
        });
        Self { port, state, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/123456789012/pillarbox", self.port)
    }

    pub(crate) fn put(&self, body: impl Into<String>) {
        self.content().visible.push_back(body.into().into());
    }

    pub(crate) fn set_deleting(&self, deleting: Deleting) {
        self.content().deleting = deleting;
    }

    pub(crate) fn fail_receives(&self, number: usize) {
        self.content().failing_receives = number;
    }

    pub(crate) fn deleted(&self) -> usize {
        self.content().deleted
    }

    pub(crate) fn deleted_too_early(&self) -> usize {
        self.content().deleted_too_early
    }

    /// The messages that are not deleted, received or not.
    pub(crate) fn left(&self) -> usize {
        let content = self.content();
        content.visible.len() + content.in_flight.len()
    }

    /// Number of receives that are waiting now, and the most that there were.
    pub(crate) fn receiving(&self) -> (usize, usize) {
        let content = self.content();
        (content.receiving, content.most_receiving)
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.state.content.lock().unwrap()
    }
}

impl Drop for StubQueue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let target = request.headers()["x-amz-target"].to_str().unwrap().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let answered = match target.as_str() {
        "AmazonSQS.ReceiveMessage" => state.receive(&body).await,
        "AmazonSQS.DeleteMessageBatch" => state.delete(&body).await,
        other => panic!("{other}"),
    };
    let (status, body) = match answered {
        Some(body) => (200, body),
        None => (500, json!({"__type": "com.amazonaws.sqs#InternalFailure"})),
    };
    let response = Response::builder().status(status);
    Ok(response.body(Full::from(body.to_string())).unwrap())
}

/// Counts a receive for as long as it waits, also if its connection ends.
struct Receiving<'a>(&'a State);

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.0.content.lock().unwrap().receiving -= 1;
    }
}

impl State {
    async fn receive(&self, request: &Value) -> Option<Value> {
        let max = usize::try_from(request["MaxNumberOfMessages"].as_u64().unwrap()).unwrap();
        {
            let mut content = self.content.lock().unwrap();
            if content.failing_receives > 0 {
                content.failing_receives -= 1;
                return None;
            }
            content.receiving += 1;
            content.most_receiving = content.most_receiving.max(content.receiving);
        }
        let _receiving = Receiving(self);
        let end = Instant::now() + LONGEST_WAIT;
        loop {
            let messages = self.content.lock().unwrap().take(max, self.visibility);
            if !messages.is_empty() || Instant::now() > end {
                return Some(json!({ "Messages": messages }));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn delete(&self, request: &Value) -> Option<Value> {
        let deleting = self.content.lock().unwrap().deleting;
        match deleting {
            Deleting::Works => {}
            Deleting::Fails => return None,
            Deleting::Hangs => std::future::pending().await,
        }
        let entries = request["Entries"].as_array().unwrap();
        assert!((1..=10).contains(&entries.len()));
        let mut deleted = Vec::new();
        for entry in entries {
            let receipt = entry["ReceiptHandle"].as_str().unwrap().parse().unwrap();
            let mut content = self.content.lock().unwrap();
            if let Some((_, body)) = content.in_flight.remove(&receipt) {
                content.deleted += 1;
                content.deleted_too_early += usize::from(!(self.watcher)(&body));
            }
            deleted.push(json!({ "Id": entry["Id"] }));
        }
        Some(json!({ "Successful": deleted }))
    }
}

impl Content {
    fn take(&mut self, max: usize, visibility: Duration) -> Vec<Value> {
        let now = Instant::now();
        let expired: Vec<u64> = self
            .in_flight
            .iter()
            .filter_map(|(receipt, (until, _))| (*until <= now).then_some(*receipt))
            .collect();
        for receipt in expired {
            let (_, body) = self.in_flight.remove(&receipt).unwrap();
            self.visible.push_back(body);
        }
        let number = max.min(self.visible.len());
        let taken: Vec<Arc<str>> = self.visible.drain(..number).collect();
        let mut messages = Vec::with_capacity(number);
        for body in taken {
            self.receipts += 1;
            let receipt = self.receipts.to_string();
            messages.push(json!({ "MessageId": receipt, "ReceiptHandle": receipt, "Body": *body }));
            self.in_flight.insert(self.receipts, (now + visibility, body));
        }
        messages
    }
}
