//! A store with an organisation and its messages, and what takes in events for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::clock::Clock;
use pillarbox::domain::admission::admit;
use pillarbox::domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox::domain::mailbox::DomainName;
use pillarbox::domain::organisation::DomainState;
use pillarbox::domain::request::{Draft, SendRequest};
use pillarbox::domain::time::Timestamp;
use pillarbox::feedback::{Feedback, poll};
use pillarbox::outbox::Outbox;
use pillarbox::ses::credentials::Credentials;
use pillarbox::ses::sqs::Queue;
use pillarbox::ses::{SesClient, SesOptions};
use pillarbox::store::{Accepted, Store};
use secrecy::SecretString;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::queue::StubQueue;

pub(crate) const NOW: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
/// How long anything that happens by itself may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// How many acceptances are under way at once.
const ACCEPTING: usize = 256;

#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) store: Store,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) feedback: Arc<Feedback>,
    pub(crate) organisation: OrganisationId,
    pub(crate) clock: Clock,
    ids: Arc<MessageIds>,
}

/// A poll that runs until it is told to stop.
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

impl Site {
    /// A site in this directory with the organisation `acme` and its domain `example.com`.
    pub(crate) async fn in_directory(directory: &Path) -> Self {
        let store = Store::open(directory, NOW).unwrap().0;
        let name = || "acme".parse().unwrap();
        let organisation = match store.organisation(&name()) {
            Some(organisation) => organisation,
            None => store.add_organisation(name()).await.unwrap().unwrap(),
        };
        let domain = DomainName::parse("example.com").unwrap();
        store.put_domain(organisation.id, domain, DomainState::Assumed, NOW).await.unwrap();
        let outbox = Arc::new(Outbox::new(1 << 20));
        let clock = Clock::manual(NOW);
        let feedback = Arc::new(Feedback::new(store.clone(), Arc::clone(&outbox), clock.clone()));
        let ids = Arc::new(MessageIds::new());
        Self { store, outbox, feedback, organisation: organisation.id, ids, clock }
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
        let facts = self.store.facts(self.organisation);
        let admitted = admit(SendRequest::parse(draft).unwrap(), &facts).unwrap();
        let id = self.ids.next(NOW);
        let accepted = self.store.accept(id, self.organisation, &admitted, NOW, NOW, || {});
        assert_eq!(accepted.await.unwrap(), Accepted::New(id));
        id
    }

    pub(crate) async fn new_messages(&self, number: usize) -> Vec<MessageId> {
        let mut tasks = JoinSet::new();
        let mut ids = Vec::with_capacity(number);
        for _ in 0..number {
            if tasks.len() == ACCEPTING {
                ids.push(tasks.join_next().await.unwrap().unwrap());
            }
            let site = self.clone();
            tasks.spawn(async move { site.new_message().await });
        }
        ids.extend(tasks.join_all().await);
        ids
    }

    /// Starts to poll the queue.
    pub(crate) fn poll(&self, queue: &StubQueue) -> Polling {
        let options = SesOptions {
            region: "eu-west-1".to_owned(),
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            configuration_set: None,
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            credentials: Credentials::fixed("AKIDEXAMPLE", SecretString::from("secret")),
        };
        let ses = SesClient::new(options, self.clock.clone()).unwrap();
        let queue = Queue::new(&ses, &queue.url()).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let feedback = Arc::clone(&self.feedback);
        let task = tokio::spawn(poll::run(queue, feedback, async move {
            let _ = stopped.await;
        }));
        Polling { stop, task }
    }

    /// How many events are on a message's timeline.
    pub(crate) fn events(&self, id: MessageId) -> usize {
        self.store.events(id).unwrap().len()
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
