//! The poll of the queue: receives, has the documents taken in, and deletes them only after that.
//!
//! Knows nothing of what is in a document. Ended at any moment, it loses nothing: what is not
//! deleted comes again, and what comes again changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info, warn};

use crate::EventProcessor;
use pillarbox_domain::retry::Backoff;
use pillarbox_ses::error::CallError;
use pillarbox_ses::sqs::{MAX_MESSAGES, Received, SqsQueue};
use pillarbox_store::StoreError;

/// Limit of batches under way at once while there is a backlog.
const MAX_ROUNDS: usize = 32;
/// The delays after failed receives.
const RETRY_INITIAL: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_mins(1);
/// The least time between receives that bring nothing: for queues that do not wait.
const EMPTY_PAUSE: Duration = Duration::from_secs(1);
/// Wait before a batch that the store refused is offered to it again.
const INGEST_AGAIN: Duration = Duration::from_millis(100);
/// Number of times that a batch's deletion is tried; the rest is delivered again.
const DELETE_TRIES: u32 = 3;

/// Result of one receive.
#[derive(Debug)]
enum Round {
    /// As many messages as were asked for: there will be more.
    Full,
    /// Fewer messages than were asked for.
    Short,
    /// No message.
    Empty,
    /// The queue could not be asked.
    Failed(CallError),
    /// The poll ended before there was an answer.
    Ended,
}

/// State of the poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Ending,
}

struct Poller {
    queue: SqsQueue,
    events: Arc<EventProcessor>,
    backoff: Backoff,
    /// Number of messages to ask for.
    batch: AtomicUsize,
}

/// Number of rounds to have under way, and the time from which on.
struct Demand {
    rounds: usize,
    failures: u32,
    not_before: Instant,
}

/// Polls until `stop` is ready, and then ends with the batches that are under way.
pub async fn run(queue: SqsQueue, events: Arc<EventProcessor>, stop: impl Future) {
    let backoff = Backoff::try_new(RETRY_INITIAL, RETRY_MAX).expect("the bounds are in order");
    let batch = AtomicUsize::new(MAX_MESSAGES);
    let poller = Arc::new(Poller { queue, events, backoff, batch });
    let (phase, phases) = watch::channel(Phase::Running);
    let mut rounds = JoinSet::new();
    let mut demand = Demand { rounds: 1, failures: 0, not_before: Instant::now() };
    tokio::pin!(stop);
    loop {
        let now = Instant::now();
        while rounds.len() < demand.rounds && now >= demand.not_before {
            rounds.spawn(Arc::clone(&poller).round(phases.clone()));
        }
        let waits = rounds.len() < demand.rounds;
        tokio::select! {
            _ = &mut stop => break,
            Some(done) = rounds.join_next() => poller.follow(&mut demand, done),
            () = sleep_until(demand.not_before), if waits => {}
        }
    }
    phase.send_replace(Phase::Ending);
    while rounds.join_next().await.is_some() {}
}

impl Poller {
    /// One batch: received, taken in, deleted.
    async fn round(self: Arc<Self>, mut phases: watch::Receiver<Phase>) -> (Round, Duration) {
        let started = Instant::now();
        let asked = self.batch.load(Ordering::Relaxed);
        let received = tokio::select! {
            () = ending(&mut phases) => return (Round::Ended, started.elapsed()),
            received = self.receive(asked) => received,
        };
        let round = match received {
            Err(error) => {
                if matches!(error, CallError::Unreadable(_)) {
                    // Perhaps the answer was too long: one large message must not hide behind nine.
                    self.batch.store(1, Ordering::Relaxed);
                }
                Round::Failed(error)
            }
            Ok(messages) if messages.is_empty() => Round::Empty,
            Ok(messages) => {
                self.batch.store((asked * 2).min(MAX_MESSAGES), Ordering::Relaxed);
                self.take_in(&messages, &mut phases).await;
                if messages.len() >= asked { Round::Full } else { Round::Short }
            }
        };
        (round, started.elapsed())
    }

    async fn receive(&self, max: usize) -> Result<Vec<Received>, CallError> {
        // What cannot be stored is better off in the queue.
        self.events.store.writable().await;
        self.queue.receive(max).await
    }

    /// Has a batch taken in, however long the store needs for it, then deletes it.
    async fn take_in(&self, messages: &[Received], phases: &mut watch::Receiver<Phase>) {
        let documents: Vec<&str> = messages.iter().map(|message| message.body.as_str()).collect();
        loop {
            match self.events.ingest(&documents).await {
                Ok(()) => break,
                Err(StoreError::Damaged) => {
                    error!(
                        "a batch of events stays in the queue, because it concerns a damaged row"
                    );
                    return;
                }
                Err(StoreError::Unavailable | StoreError::OutcomeOpen | StoreError::FileLost) => {
                    tokio::select! {
                        () = ending(phases) => return,
                        () = self.store_again() => {}
                    }
                }
            }
        }
        let receipts: Vec<&str> = messages.iter().map(|message| message.receipt.as_str()).collect();
        self.delete(receipts, phases).await;
    }

    async fn store_again(&self) {
        sleep(INGEST_AGAIN).await;
        self.events.store.writable().await;
    }

    async fn delete(&self, mut receipts: Vec<&str>, phases: &mut watch::Receiver<Phase>) {
        for attempt in 1..=DELETE_TRIES {
            match self.queue.delete(&receipts).await {
                Ok(left) if left.is_empty() => return,
                Ok(left) => receipts = left,
                Err(error) => warn!(%error, "stored events could not be deleted from the queue"),
            }
            tokio::select! {
                () = ending(phases) => break,
                () = sleep(self.backoff.delay(attempt, fastrand::f64())) => {}
            }
        }
        info!(
            messages = receipts.len(),
            "stored events stay in the queue: they arrive again and change nothing"
        );
    }

    /// Adjusts the demand to a finished round.
    fn follow(&self, demand: &mut Demand, done: Result<(Round, Duration), JoinError>) {
        let (round, took) = match done {
            Ok(done) => done,
            Err(error) => {
                error!(%error, "handling a batch of events panicked; the batch stays in the queue");
                demand.fail(self.backoff);
                return;
            }
        };
        if let Round::Failed(error) = &round {
            warn!(%error, "the queue of events cannot be read");
            self.events.set_trouble(error.to_string());
            demand.fail(self.backoff);
            return;
        }
        if demand.failures > 0 {
            info!("the queue of events can be read again");
        }
        self.events.clear_trouble();
        demand.failures = 0;
        match round {
            Round::Full => demand.rounds = (demand.rounds * 2).min(MAX_ROUNDS),
            Round::Short => demand.rounds = (demand.rounds - 1).max(1),
            Round::Empty | Round::Ended | Round::Failed(_) => {
                demand.rounds = 1;
                demand.not_before = Instant::now() + EMPTY_PAUSE.saturating_sub(took);
            }
        }
    }
}

impl Demand {
    fn fail(&mut self, backoff: Backoff) {
        self.rounds = 1;
        self.failures = self.failures.saturating_add(1);
        self.not_before = Instant::now() + backoff.delay(self.failures, fastrand::f64());
    }
}

/// Waits for the end.
async fn ending(phases: &mut watch::Receiver<Phase>) {
    // The sender's end means the same.
    let _ = phases.wait_for(|phase| *phase == Phase::Ending).await;
}

#[cfg(test)]
mod tests {
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
    use crate::metrics::DocumentType;
    use pillarbox_body_store::BodyStore;
    use pillarbox_config::TrackingOverride;
    use pillarbox_domain::time::Timestamp;
    use pillarbox_queue::MessageQueue;
    use pillarbox_runtime::clock::Clock;
    use pillarbox_runtime::proxy::ProxyRule;
    use pillarbox_ses::credentials::Credentials;
    use pillarbox_ses::{SesClient, SesOptions};
    use pillarbox_store::{DeadLetter, Health, Store};

    const NOW: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    /// A queue that never ends: every receive brings one long document that cannot be read.
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
            tracking_override: TrackingOverride::Always,
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            proxy: ProxyRule::Direct,
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
        let (store, fail, work) = Store::on_failing_disk(NOW);
        let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 20));
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
        fail();
        until(|| store.health() == Health::Refusing).await;
        // The rounds under way come to rest: one batch that is held, and no receive.
        sleep(Duration::from_millis(100)).await;
        let (received, deleted) = endless.counts();
        sleep(Duration::from_millis(500)).await;
        assert_eq!(endless.counts(), (received, deleted));
        assert!(deleted < received, "the batch that the store refused is not deleted");
        work();
        until(|| endless.counts().1 > received).await;
        stop.send(()).unwrap();
        polling.await.unwrap();
        serving.abort();
        let kept = store.dead_letters(usize::MAX).await.unwrap().len();
        assert_eq!(kept, endless.counts().1, "all that was deleted is stored");
        assert_eq!(
            events.metrics().documents(DocumentType::Unreadable),
            u64::try_from(kept).unwrap()
        );
    }
}
