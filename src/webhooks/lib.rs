//! Webhooks: endpoints receive an organisation's events, each at its own pace.
//!
//! Every endpoint has a task of its own, which follows the feed from a durable cursor. Knows
//! nothing of the provider and of what happens before an event is in the feed.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tracing::{error, warn};

use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::webhook::{SigningSecret, Webhook, WebhookFormat, WebhookId, WebhookUrl};
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::proxy::ProxyRule;
use pillarbox_runtime::tasks::Task;
use pillarbox_store::Store;

use attempt::{Sender, SharedClient};
use endpoint::Endpoint;
use memory::DeliveryMemory;

pub use answer::Answer;
pub use attempt::{ATTEMPT_TIMEOUT, Attempt, BadEndpoint, Delivery};
pub use endpoint_status::{AttemptResult, Attempted, EndpointStatus, LastAnswer, RECENT};

mod answer;
mod attempt;
mod endpoint;
mod endpoint_status;
mod memory;
mod retry;
mod signature;
mod slot;

/// Pause between two searches for rows that are not needed any more, and before an endpoint that
/// cannot be called is tried again.
const UPKEEP_PAUSE: Duration = Duration::from_mins(1);
/// The most rows that are removed at one time.
const SWEEP_STEP: usize = 1_000;
/// Time limit of attempts under way once the service stops. One that is broken off is repeated
/// after the next start.
const LAST_ATTEMPTS: Duration = Duration::from_secs(5);
/// Time limit of the commit of their outcomes.
const LAST_COMMIT: Duration = Duration::from_secs(2);

/// Type of the event that a test sends.
const TEST_TYPE: &str = "email.test";

/// Sends events to endpoints.
#[derive(Debug)]
pub struct Webhooks {
    store: Store,
    clock: Clock,
    proxy: ProxyRule,
    /// Made for the first endpoint, because it reads the system's root certificates.
    client: Mutex<Option<SharedClient>>,
    memory: DeliveryMemory,
    statuses: Mutex<BTreeMap<WebhookId, EndpointStatus>>,
}

/// Answer to a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestAnswer {
    /// True if the endpoint accepted it.
    pub is_delivered: bool,
    /// Status, or what went wrong.
    pub answer: String,
    /// Time that it took.
    pub took: Duration,
    /// Beginning of the answer's body.
    pub body: String,
}

impl From<Attempt> for TestAnswer {
    fn from(Attempt { answer, took, body }: Attempt) -> Self {
        let is_delivered = matches!(answer, Answer::Taken(_));
        let body = String::from_utf8_lossy(&body).into_owned();
        Self { is_delivered, answer: answer.to_string(), took, body }
    }
}

/// Receiver of what concerns operators: no organisation's events.
#[derive(Debug)]
pub struct OperatorReceiver {
    sender: Sender,
    secret: SigningSecret,
}

impl OperatorReceiver {
    /// A receiver at this URL, called by this rule, whose posts this secret signs.
    pub fn new(
        url: &WebhookUrl,
        secret: SigningSecret,
        proxy: &ProxyRule,
    ) -> Result<Self, BadEndpoint> {
        Ok(Self { sender: Sender::new(url, None, &SharedClient::new(proxy)?)?, secret })
    }

    /// Posts something once, and waits for the answer.
    pub async fn post(&self, delivery: Delivery, clock: &Clock) -> Attempt {
        let secrets = std::iter::once(&self.secret);
        self.sender.attempt(None, secrets, delivery, clock.machine_time()).await
    }
}

/// Body of a test: an event about no message.
#[derive(Serialize)]
struct TestEvent<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    event_type: &'static str,
    timestamp: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    test: Option<bool>,
    data: TestData,
}

/// The same in Resend's form.
#[derive(Serialize)]
struct ResendTestEvent {
    #[serde(rename = "type")]
    event_type: &'static str,
    created_at: String,
    data: TestData,
}

#[derive(Serialize)]
struct TestData {}

impl Webhooks {
    /// Webhooks of the endpoints that `store` has, called by this rule.
    pub fn new(store: &Store, clock: &Clock, proxy: &ProxyRule) -> Self {
        let (store, clock, proxy) = (store.clone(), clock.clone(), proxy.clone());
        let (client, memory) = (Mutex::default(), DeliveryMemory::new());
        Self { store, clock, proxy, client, memory, statuses: Mutex::default() }
    }

    /// State of the deliveries to an endpoint; nothing is known before its task has begun.
    pub fn status(&self, id: WebhookId) -> EndpointStatus {
        self.statuses().get(&id).cloned().unwrap_or_default()
    }

    /// State of the deliveries to each endpoint, by number.
    pub fn all_statuses(&self) -> Vec<(Webhook, EndpointStatus)> {
        let webhooks = self.store.webhooks();
        let statuses = self.statuses();
        let status = |id| statuses.get(&id).cloned().unwrap_or_default();
        webhooks.into_iter().map(|webhook| (webhook.clone(), status(webhook.id))).collect()
    }

    /// Changes what is known of an endpoint.
    fn note(&self, id: WebhookId, change: impl FnOnce(&mut EndpointStatus)) {
        change(self.statuses().entry(id).or_default());
    }

    fn statuses(&self) -> MutexGuard<'_, BTreeMap<WebhookId, EndpointStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sender(&self, webhook: &Webhook) -> Result<Sender, BadEndpoint> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match &mut *client {
            Some(client) => client,
            none => none.insert(SharedClient::new(&self.proxy)?),
        };
        Sender::new(&webhook.url, webhook.authority.as_deref(), client)
    }

    /// Delivers until `stop` ends; then waits for what is under way, but not for long.
    pub async fn run(self: Arc<Self>, stop: impl Future<Output = ()>) {
        let mut changes = self.store.webhook_changes();
        let (stopping, stopped) = watch::channel(());
        let (mut running, mut tasks) = (JoinSet::new(), HashMap::new());
        let mut upkeep = interval(UPKEEP_PAUSE);
        upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        loop {
            changes.mark_unchanged();
            self.keep_tasks(&mut running, &mut tasks, &stopped);
            tokio::select! {
                () = &mut stop => break,
                changed = changes.changed() => changed.expect("the store outlives its users"),
                _ = upkeep.tick() => self.sweep().await,
            }
        }
        drop(stopping);
        let end = Instant::now() + LAST_ATTEMPTS + 2 * LAST_COMMIT;
        // What is left then is aborted.
        let _ = timeout_at(end, async { while running.join_next().await.is_some() {} }).await;
        running.shutdown().await;
        // Another node may deliver from now on: what this one knew is not so any more.
        self.statuses().clear();
    }

    /// Has a task for each endpoint, and none for another.
    fn keep_tasks(
        self: &Arc<Self>,
        running: &mut JoinSet<()>,
        tasks: &mut HashMap<WebhookId, AbortHandle>,
        stopped: &watch::Receiver<()>,
    ) {
        let webhooks = self.store.webhooks();
        let is_there = |id| webhooks.binary_search_by_key(&id, |webhook| webhook.id).is_ok();
        tasks.retain(|id, task| {
            let stays = is_there(*id);
            if !stays {
                task.abort();
            }
            stays
        });
        // Those that were aborted.
        while running.try_join_next().is_some() {}
        self.statuses().retain(|id, _| is_there(*id));
        for webhook in webhooks {
            let id = webhook.id;
            tasks.entry(id).or_insert_with(|| {
                let (webhooks, stopped) = (Arc::clone(self), stopped.clone());
                let mut stop = stopped.clone();
                let stop = async move { stop.changed().await };
                running.spawn(Task::WebhookEndpoint.again_until(stop, move || {
                    Arc::clone(&webhooks).deliver(webhook.clone(), stopped.clone())
                }))
            });
        }
    }

    /// Delivers to an endpoint, until `stopped` has no sender any more.
    async fn deliver(self: Arc<Self>, webhook: Webhook, mut stopped: watch::Receiver<()>) {
        loop {
            match self.sender(&webhook) {
                Ok(sender) => {
                    let endpoint = Endpoint::new(Arc::clone(&self), webhook.clone(), sender);
                    endpoint.run(stopped.clone()).await;
                }
                Err(error) => {
                    error!(webhook = %webhook.id, %error, "an endpoint cannot be called");
                    self.note(webhook.id, |status| status.cannot_be_called(error.to_string()));
                }
            }
            // The task of a removed endpoint is aborted by then.
            if timeout(UPKEEP_PAUSE, stopped.changed()).await.is_ok() {
                return;
            }
        }
    }

    async fn sweep(&self) {
        loop {
            match self.store.sweep_webhooks(self.clock.window_time(), SWEEP_STEP).await {
                Ok(swept) if swept < SWEEP_STEP => return,
                Ok(_) => {}
                Err(error) => {
                    warn!(%error, "old rows of webhooks could not be deleted; pillarbox tries again later");
                    return;
                }
            }
        }
    }
}

/// Checks that an endpoint can be called: its URL, and the certificates that its own is checked
/// against.
pub fn check(url: &WebhookUrl, authority: Option<&str>) -> Result<(), BadEndpoint> {
    Sender::new(url, authority, &SharedClient::new(&ProxyRule::Direct)?).map(|_| ())
}

/// Asks an endpoint whether it is there, without an event: any answer will do. Returns the answer,
/// or why there is none, and the proxy that was asked.
pub async fn reach(
    webhook: &Webhook,
    proxy: &ProxyRule,
) -> Result<(Result<u16, String>, Option<String>), BadEndpoint> {
    let client = SharedClient::new(proxy)?;
    let sender = Sender::new(&webhook.url, webhook.authority.as_deref(), &client)?;
    Ok((sender.reach().await, sender.proxy()))
}

/// Sends one event about no message to an endpoint of an organisation of this kind, in every state
/// of the endpoint, and waits for the answer.
pub async fn test(
    webhook: &Webhook,
    kind: OrganisationKind,
    clock: &Clock,
    proxy: &ProxyRule,
) -> Result<TestAnswer, BadEndpoint> {
    let client = SharedClient::new(proxy)?;
    let sender = Sender::new(&webhook.url, webhook.authority.as_deref(), &client)?;
    let now = clock.machine_time();
    let id = format!("evt_test_{:016x}", fastrand::u64(..));
    let (data, timestamp, format) = (TestData {}, now.to_string(), webhook.format);
    let body = match format {
        WebhookFormat::Standard => {
            let test = (kind == OrganisationKind::Test).then_some(true);
            let event = TestEvent { id: &id, event_type: TEST_TYPE, timestamp, test, data };
            serde_json::to_vec(&event)
        }
        WebhookFormat::Resend => serde_json::to_vec(&ResendTestEvent {
            event_type: TEST_TYPE,
            created_at: timestamp,
            data,
        }),
    };
    let body = body.expect("texts serialize").into();
    let delivery = Delivery { id, body, format };
    let (organisation, secrets) = (Some(webhook.organisation), webhook.secrets(now));
    Ok(sender.attempt(organisation, secrets, delivery, now).await.into())
}
