//! A store with an organisation and its messages, and what takes in events for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_body_store::BodyStore;
use pillarbox_domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox_domain::request::Draft;
use pillarbox_events::{EventProcessor, poll};
use pillarbox_queue::MessageQueue;
use pillarbox_runtime::clock::Clock;
use pillarbox_ses::sqs::SqsQueue;
use pillarbox_store::Store;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::events::queue::StubQueue;
use crate::kit;
pub(crate) use crate::kit::NOON as NOW;
use crate::kit::PATIENCE;

/// Number of acceptances under way at once.
const ACCEPTING: usize = 256;

#[derive(Clone)]
pub(crate) struct EventSink {
    pub(crate) store: Store,
    pub(crate) queue: Arc<MessageQueue>,
    pub(crate) events: Arc<EventProcessor>,
    pub(crate) organisation: OrganisationId,
    pub(crate) clock: Clock,
    ids: Arc<MessageIds>,
}

/// A poll that runs until it is stopped.
pub(crate) struct Polling {
    stop: oneshot::Sender<()>,
    pub(crate) task: JoinHandle<()>,
}

impl Polling {
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

impl EventSink {
    /// A sink in this directory with the organisation `acme` and its domain `example.com`.
    pub(crate) async fn in_directory(directory: &Path) -> Self {
        Self::in_store(kit::open_store(directory, NOW)).await
    }

    /// The same in this store.
    pub(crate) async fn in_store(store: Store) -> Self {
        let organisation = match store.organisation(&"acme".parse().unwrap()) {
            Some(organisation) => organisation.id,
            None => kit::add_organisation(&store, "acme", NOW).await,
        };
        let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 20));
        let clock = Clock::manual(NOW);
        let events =
            Arc::new(EventProcessor::new(store.clone(), Arc::clone(&queue), clock.clone()));
        let ids = Arc::new(MessageIds::new());
        Self { store, queue, events, organisation, clock, ids }
    }

    /// An accepted message to `bob@example.org`.
    pub(crate) async fn new_message(&self) -> MessageId {
        let draft = Draft {
            from: Some("ann@example.com"),
            to: Some(vec!["bob@example.org"]),
            subject: Some("Hello"),
            text: Some("Body".into()),
            ..Draft::default()
        };
        let id = self.ids.next(NOW);
        kit::accept(&self.store, self.organisation, draft, id, NOW).await;
        id
    }

    pub(crate) async fn new_messages(&self, number: usize) -> Vec<MessageId> {
        let mut tasks = JoinSet::new();
        let mut ids = Vec::with_capacity(number);
        for _ in 0..number {
            if tasks.len() == ACCEPTING {
                ids.push(tasks.join_next().await.unwrap().unwrap());
            }
            let sink = self.clone();
            tasks.spawn(async move { sink.new_message().await });
        }
        ids.extend(tasks.join_all().await);
        ids
    }

    /// Starts to poll the queue.
    pub(crate) fn poll(&self, queue: &StubQueue) -> Polling {
        let ses = kit::ses_client("http://127.0.0.1:1", &self.clock);
        let queue = SqsQueue::new(&ses, &queue.url()).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let events = Arc::clone(&self.events);
        let task = tokio::spawn(poll::run(queue, events, async move {
            let _ = stopped.await;
        }));
        Polling { stop, task }
    }

    /// Number of events on a message's timeline.
    pub(crate) fn events(&self, id: MessageId) -> usize {
        kit::at_once(self.store.events(id)).unwrap().len()
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(tokio::time::Instant::now() < end, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
