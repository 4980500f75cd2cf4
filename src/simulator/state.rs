//! What all calls share: one simulator's account.
//!
//! Each lock is held for one short step and never across an `.await`; signatures and JSON are
//! worked on outside of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

use super::caught::{Caught, CaughtMessage};
use super::configuration_sets::ConfigurationSets;
use super::events::{EventRoute, Events, Publisher, topic_arn};
use super::faults::FaultSequence;
use super::identities::Identities;
use super::ids::Ids;
use super::limits::{SendingLimits, TokenBucket};
use super::queue::{NewMessage, Queue, QueueFull};
use super::signature::{Service, Verifier};
use super::skew::ClockOffset;
use super::suppression::SuppressionList;
use super::{AccountAccess, Options};
use crate::domain::time::Timestamp;

/// Messages that a subscriber may fall behind.
const BROADCAST_CAPACITY: usize = 4_096;
/// No lock's holder calls anything that may panic.
const UNPOISONED: &str = "no holder of this lock panics";

#[derive(Debug)]
pub(super) struct State {
    pub(super) verifier: Verifier,
    pub(super) region: String,
    pub(super) ids: Ids,
    pub(super) clock: ClockOffset,
    pub(super) access: AccountAccess,
    faults: Mutex<FaultSequence>,
    limits: Mutex<SendingLimits>,
    other_calls: Option<Mutex<TokenBucket>>,
    identities: RwLock<Identities>,
    configuration_sets: RwLock<ConfigurationSets>,
    suppressed: Mutex<SuppressionList>,
    caught: Mutex<Caught>,
    accepted: broadcast::Sender<Arc<CaughtMessage>>,
    latency_micros: AtomicU64,
    calls: AtomicU64,
    queue_calls: AtomicU64,
    events: Events,
    topic: String,
    queue: Mutex<Queue>,
    queue_changed: Notify,
    stopped: watch::Receiver<()>,
}

impl State {
    /// `stopped` says when calls that wait are to come to an end.
    pub(super) fn new(options: Options, now: Instant, stopped: watch::Receiver<()>) -> Self {
        let Options { region, credentials, signature_max_age, .. } = options;
        let identities = Identities::new(
            &options.verified,
            options.verified_by,
            options.sender_check,
            options.dkim_zone,
        );
        let other_calls = options.other_call_rate.map(|rate| TokenBucket::new(rate, now));
        // The same for no two simulators, or they would take each other's receipt handles.
        let key = getrandom::u64().unwrap_or_default();
        let state = Self {
            topic: topic_arn(&region, &options.queue.name),
            queue: Mutex::new(Queue::new(options.queue, options.seed, key)),
            queue_changed: Notify::new(),
            events: options.events,
            stopped,
            ids: Ids::new(),
            clock: ClockOffset::default(),
            access: options.access,
            verifier: Verifier::new(credentials, region.clone(), signature_max_age),
            region,
            faults: Mutex::new(FaultSequence::new(options.faults, options.seed)),
            limits: Mutex::new(SendingLimits::new(options.send_rate, options.daily_quota, now)),
            other_calls: other_calls.map(Mutex::new),
            identities: RwLock::new(identities),
            configuration_sets: RwLock::new(ConfigurationSets::new(options.configuration_sets)),
            suppressed: Mutex::default(),
            caught: Mutex::new(Caught::new(options.kept_messages, options.counted_tags)),
            accepted: broadcast::Sender::new(BROADCAST_CAPACITY),
            latency_micros: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            queue_calls: AtomicU64::new(0),
        };
        state.set_latency(options.latency);
        state
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, FaultSequence> {
        self.faults.lock().expect(UNPOISONED)
    }

    pub(super) fn limits(&self) -> MutexGuard<'_, SendingLimits> {
        self.limits.lock().expect(UNPOISONED)
    }

    /// Whether a call other than `SendEmail` is within its rate.
    pub(super) fn admit_other_call(&self, now: Instant) -> bool {
        let bucket = self.other_calls.as_ref();
        bucket.is_none_or(|bucket| bucket.lock().expect(UNPOISONED).take(1.0, now))
    }

    pub(super) fn identities(&self) -> RwLockWriteGuard<'_, Identities> {
        self.identities.write().expect(UNPOISONED)
    }

    pub(super) fn read_identities(&self) -> RwLockReadGuard<'_, Identities> {
        self.identities.read().expect(UNPOISONED)
    }

    pub(super) fn configuration_sets(&self) -> RwLockWriteGuard<'_, ConfigurationSets> {
        self.configuration_sets.write().expect(UNPOISONED)
    }

    pub(super) fn read_configuration_sets(&self) -> RwLockReadGuard<'_, ConfigurationSets> {
        self.configuration_sets.read().expect(UNPOISONED)
    }

    pub(super) fn suppressed(&self) -> MutexGuard<'_, SuppressionList> {
        self.suppressed.lock().expect(UNPOISONED)
    }

    pub(super) fn caught(&self) -> MutexGuard<'_, Caught> {
        self.caught.lock().expect(UNPOISONED)
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect(UNPOISONED)
    }

    /// Wakes those that wait for messages.
    pub(super) fn queue_changed(&self) -> &Notify {
        &self.queue_changed
    }

    /// Puts messages into the queue; those that find no room are dropped and
    /// counted.
    pub(super) fn enqueue(
        &self,
        messages: impl IntoIterator<Item = NewMessage>,
    ) -> Result<(), QueueFull> {
        let now = Instant::now();
        let mut queue = self.queue();
        let sent = messages.into_iter().map(|message| queue.send(message, now));
        let all = sent.fold(Ok(()), Result::and);
        drop(queue);
        self.queue_changed.notify_waiters();
        all
    }

    /// Puts an event that somebody else wrote into the queue, as SNS would.
    pub(super) fn notify(&self, event: &str, now: Timestamp) -> Result<(), QueueFull> {
        let body = self.publisher().notification(event, now);
        self.publish(body, now)
    }

    /// Puts any text into the queue.
    pub(super) fn publish(&self, body: Arc<str>, now: Timestamp) -> Result<(), QueueFull> {
        self.enqueue([NewMessage {
            id: self.ids.uuid(),
            body,
            sent_at: now,
            delay: Duration::ZERO,
        }])
    }

    fn publisher(&self) -> Publisher<'_> {
        Publisher { ids: &self.ids, region: &self.region, topic: &self.topic }
    }

    fn publish_events_of(&self, message: &CaughtMessage) {
        let Events::On(options) = self.events else { return };
        let set = message.configuration_set.as_deref();
        let events = self.publisher().events_of(message, options, |event_type| {
            let name = event_type.matching_name();
            match options.route {
                EventRoute::EveryMessage => true,
                EventRoute::Destinations => {
                    set.is_some_and(|set| self.read_configuration_sets().publishes(set, name))
                }
            }
        });
        // What finds no room is counted by the queue; the message was accepted all the same.
        let _ = self.enqueue(events);
    }

    /// Changes when the simulator shuts down.
    pub(super) fn stopped(&self) -> watch::Receiver<()> {
        self.stopped.clone()
    }

    /// Counts and keeps an accepted message, publishes its events and tells the subscribers.
    pub(super) fn accept(&self, message: CaughtMessage) {
        let message = Arc::new(message);
        self.caught().add(Arc::clone(&message));
        self.publish_events_of(&message);
        // An error says that nobody subscribes.
        let _ = self.accepted.send(message);
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<CaughtMessage>> {
        self.accepted.subscribe()
    }

    pub(super) fn set_latency(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency_micros.store(micros, Ordering::Relaxed);
    }

    pub(super) fn latency(&self) -> Duration {
        Duration::from_micros(self.latency_micros.load(Ordering::Relaxed))
    }

    pub(super) fn count_call(&self, service: Service) {
        let counter = match service {
            Service::Ses | Service::Sts => &self.calls,
            Service::Sqs => &self.queue_calls,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn calls_total(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn queue_calls_total(&self) -> u64 {
        self.queue_calls.load(Ordering::Relaxed)
    }
}
