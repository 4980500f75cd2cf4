//! The poll while the store refuses writes; all else is tested from outside, in `tests/it/events`.

use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;
use crate::clock::Clock;
use crate::domain::time::Timestamp;
use crate::events::metrics::DocumentType;
use crate::queue::MessageQueue;
use crate::ses::credentials::Credentials;
use crate::ses::{SesClient, SesOptions};
use crate::store::{DeadLetter, Health, Store};

const NOW: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

/// A queue that never ends: every receive brings one long document that nobody can read.
#[derive(Default)]
struct Endless {
    received: AtomicUsize,
    deleted: AtomicUsize,
}

impl Endless {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Value {
        let target = request.headers()["x-amz-target"].to_str().unwrap().to_owned();
        request.into_body().collect().await.unwrap();
        if target.ends_with("DeleteMessageBatch") {
            self.deleted.fetch_add(1, Ordering::SeqCst);
            return json!({});
        }
        let number = self.received.fetch_add(1, Ordering::SeqCst);
        let body = format!("{number} {}", "x".repeat(DeadLetter::MAX_DOCUMENT_BYTES));
        let receipt = number.to_string();
        json!({"Messages": [{"MessageId": receipt, "ReceiptHandle": receipt, "Body": body}]})
    }

    fn counts(&self) -> (usize, usize) {
        (self.received.load(Ordering::SeqCst), self.deleted.load(Ordering::SeqCst))
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let queue = Arc::clone(&self);
            let service = service_fn(move |request| {
                let queue = Arc::clone(&queue);
                async move {
                    let body = queue.answer(request).await.to_string();
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(body)))
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    }
}

fn queue_at(address: std::net::SocketAddr) -> SqsQueue {
    let options = SesOptions {
        region: "eu-west-1".to_owned(),
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        configuration_set: None,
        request_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(2),
        credentials: Credentials::fixed("AKIDEXAMPLE", SecretString::from("secret")),
    };
    let ses = SesClient::new(options, Clock::manual(NOW)).unwrap();
    SqsQueue::new(&ses, &format!("http://{address}/123456789012/pillarbox")).unwrap()
}

async fn until(is_so: impl Fn() -> bool) {
    let waited = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waited).await.unwrap();
}

#[tokio::test]
async fn nothing_is_received_or_deleted_while_the_store_refuses() {
    let (store, fill, free) = Store::on_small_disk(NOW);
    let queue = Arc::new(MessageQueue::new(1 << 20));
    let events = Arc::new(EventProcessor::new(store.clone(), queue, Clock::manual(NOW)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let queue = queue_at(listener.local_addr().unwrap());
    let endless = Arc::new(Endless::default());
    let serving = tokio::spawn(Arc::clone(&endless).serve(listener));
    let (stop, stopped) = oneshot::channel::<()>();
    let polling = tokio::spawn(run(queue, Arc::clone(&events), async move {
        let _ = stopped.await;
    }));
    until(|| endless.counts().1 >= 3).await;
    fill();
    until(|| store.health() == Health::Refusing).await;
    // What is under way comes to rest: one batch that is held, and no receive.
    sleep(Duration::from_millis(100)).await;
    let (received, deleted) = endless.counts();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(endless.counts(), (received, deleted));
    assert!(deleted < received, "the batch that the store refused is not deleted");
    free();
    until(|| endless.counts().1 > received).await;
    stop.send(()).unwrap();
    polling.await.unwrap();
    serving.abort();
    let kept = store.dead_letters(usize::MAX).unwrap().len();
    assert_eq!(kept, endless.counts().1, "all that was deleted is stored");
    assert_eq!(events.metrics().documents(DocumentType::Unreadable), u64::try_from(kept).unwrap());
}
