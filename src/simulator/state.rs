//! The simulator's options, and the state that all calls share.
//!
//! Each lock is held for one short step and never across an `.await`. Signatures and JSON are
//! worked on outside of the locks. Must not know calls or connections.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

use super::account::{SendingLimits, SuppressionList, TokenBucket};
use super::captured::{CapturedMail, CapturedMessage};
use super::configuration_sets::ConfigurationSets;
use super::events::{EventRoute, Events, Publisher, events_of};
use super::fault_injection::{FaultSequence, Faults};
use super::identities::{Identities, SenderCheck, VerifiedBy};
use super::protocol::ACCOUNT_ID;
use super::queue::{NewMessage, Queue, QueueFull, QueueOptions};
use super::random::IdGenerator;
use super::signature::{AwsService, Credentials, SignatureVerifier};
use pillarbox_domain::time::Timestamp;

/// AWS takes a signature within five minutes of its date.
const SIGNATURE_MAX_AGE: Duration = Duration::from_mins(5);
/// Default of [`Options::max_captured_messages`].
const MAX_CAPTURED_MESSAGES: usize = 1_000;
/// Default of [`Options::max_counted_tags`].
const MAX_COUNTED_TAGS: usize = 1_000_000;
/// Messages that a subscriber may fall behind.
const BROADCAST_CAPACITY: usize = 4_096;

/// The account's access to recipients, as `GetAccount` shows it. The simulator itself sends to all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AccountAccess {
    /// To all recipients.
    #[default]
    Production,
    /// To verified identities alone.
    Sandbox,
}

/// The simulator's behaviour from its start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time that every SES call takes before it is handled; SQS's take none.
    pub latency: Duration,
    /// Recipients per second, with one second's burst; `None` is unlimited.
    pub send_rate: Option<f64>,
    /// Recipients per 24 hours; `None` is unlimited.
    pub daily_quota: Option<u64>,
    /// SES calls per second of everything but `SendEmail` (SES: one); `None` is unlimited.
    pub other_call_rate: Option<f64>,
    /// The account's access to recipients.
    pub access: AccountAccess,
    /// Domains and addresses that are verified from the start.
    pub verified: Vec<String>,
    /// The senders that may send.
    pub sender_check: SenderCheck,
    /// Condition under which identities that are created over the API become verified.
    pub verified_by: VerifiedBy,
    /// The zone that Easy DKIM's records of new identities point into.
    pub dkim_zone: String,
    /// Configuration sets that exist from the start.
    pub configuration_sets: Vec<String>,
    /// The credentials that the simulator takes.
    pub credentials: Credentials,
    /// The region that calls must be signed for.
    pub region: String,
    /// The largest distance of a signature's date from now, both ways; `None` takes any date, for
    /// callers whose clock is not the system's.
    pub signature_max_age: Option<Duration>,
    /// The faults to inject.
    pub faults: Faults,
    /// Seed of the faults, and of the queue's disorder.
    pub seed: u64,
    /// The events of accepted messages.
    pub events: Events,
    /// The queue that events go to.
    pub queue: QueueOptions,
    /// The number of the last messages that are kept in full.
    pub max_captured_messages: usize,
    /// The number of distinct tag values that are counted. The status shows the number of others.
    pub max_counted_tags: usize,
}

impl Default for Options {
    /// No limit, no latency, no fault; nothing verified.
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            send_rate: None,
            daily_quota: None,
            other_call_rate: None,
            access: AccountAccess::default(),
            verified: Vec::new(),
            sender_check: SenderCheck::default(),
            verified_by: VerifiedBy::Lookup(2),
            dkim_zone: "dkim.amazonses.com".to_owned(),
            configuration_sets: Vec::new(),
            credentials: Credentials::default(),
            region: "eu-west-1".to_owned(),
            signature_max_age: Some(SIGNATURE_MAX_AGE),
            faults: Faults::none(),
            seed: 0,
            events: Events::default(),
            queue: QueueOptions::default(),
            max_captured_messages: MAX_CAPTURED_MESSAGES,
            max_counted_tags: MAX_COUNTED_TAGS,
        }
    }
}

/// One simulator's account, mail, queue and faults.
#[derive(Debug)]
pub(super) struct State {
    pub(super) signatures: SignatureVerifier,
    pub(super) region: String,
    pub(super) ids: IdGenerator,
    pub(super) access: AccountAccess,
    pub(super) captured: CapturedMail,
    faults: Mutex<FaultSequence>,
    limits: Mutex<SendingLimits>,
    other_calls: Option<Mutex<TokenBucket>>,
    identities: Mutex<Identities>,
    configuration_sets: Mutex<ConfigurationSets>,
    suppressed: Mutex<SuppressionList>,
    accepted: broadcast::Sender<Arc<CapturedMessage>>,
    latency_micros: AtomicU64,
    clock_ahead_seconds: AtomicI64,
    calls: AtomicU64,
    queue_calls: AtomicU64,
    events: Events,
    topic: String,
    queue: Mutex<Queue>,
    queue_changed: Notify,
    stopped: watch::Receiver<()>,
}

impl State {
    /// `stopped` changes when waiting calls must end.
    pub(super) fn new(options: Options, now: Instant, stopped: watch::Receiver<()>) -> Self {
        let Options { region, credentials, signature_max_age, .. } = options;
        let identities = Identities::new(
            &options.verified,
            options.verified_by,
            options.sender_check,
            options.dkim_zone,
        );
        let other_calls = options.other_call_rate.map(|rate| TokenBucket::new(rate, now));
        let captured = CapturedMail::new(options.max_captured_messages, options.max_counted_tags);
        let state = Self {
            topic: format!("arn:aws:sns:{region}:{ACCOUNT_ID}:{}", options.queue.name),
            queue: Mutex::new(Queue::new(options.queue, options.seed)),
            queue_changed: Notify::new(),
            events: options.events,
            stopped,
            ids: IdGenerator::new(),
            access: options.access,
            signatures: SignatureVerifier::new(credentials, region.clone(), signature_max_age),
            region,
            captured,
            faults: Mutex::new(FaultSequence::new(options.faults, options.seed)),
            limits: Mutex::new(SendingLimits::new(options.send_rate, options.daily_quota, now)),
            other_calls: other_calls.map(Mutex::new),
            identities: Mutex::new(identities),
            configuration_sets: Mutex::new(ConfigurationSets::new(options.configuration_sets)),
            suppressed: Mutex::default(),
            accepted: broadcast::Sender::new(BROADCAST_CAPACITY),
            latency_micros: AtomicU64::new(0),
            clock_ahead_seconds: AtomicI64::new(0),
            calls: AtomicU64::new(0),
            queue_calls: AtomicU64::new(0),
        };
        state.set_latency(options.latency);
        state
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, FaultSequence> {
        lock(&self.faults)
    }

    pub(super) fn limits(&self) -> MutexGuard<'_, SendingLimits> {
        lock(&self.limits)
    }

    pub(super) fn identities(&self) -> MutexGuard<'_, Identities> {
        lock(&self.identities)
    }

    pub(super) fn configuration_sets(&self) -> MutexGuard<'_, ConfigurationSets> {
        lock(&self.configuration_sets)
    }

    pub(super) fn suppressed(&self) -> MutexGuard<'_, SuppressionList> {
        lock(&self.suppressed)
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Takes a call other than `SendEmail` off its rate; `false` if the rate is exceeded.
    pub(super) fn admit_other_call(&self, now: Instant) -> bool {
        self.other_calls.as_ref().is_none_or(|bucket| lock(bucket).take(1.0, now))
    }

    /// Wakes the calls that wait for messages.
    pub(super) fn queue_changed(&self) -> &Notify {
        &self.queue_changed
    }

    /// Changes when the simulator shuts down.
    pub(super) fn stopped(&self) -> watch::Receiver<()> {
        self.stopped.clone()
    }

    /// Puts messages into the queue. If there is no room, they are dropped and counted.
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

    /// Puts any text into the queue.
    pub(super) fn publish(&self, body: Arc<str>) -> Result<(), QueueFull> {
        let sent_at = Timestamp::from(SystemTime::now());
        self.enqueue([NewMessage { id: self.ids.uuid(), body, sent_at, delay: Duration::ZERO }])
    }

    /// Puts an event document into the queue as SNS would.
    pub(super) fn publish_notification(&self, event: &str) -> Result<(), QueueFull> {
        let now = Timestamp::from(SystemTime::now());
        self.publish(self.publisher().sns_notification(event, now).to_string().into())
    }

    /// Counts and keeps an accepted message, publishes its events and notifies the subscribers.
    pub(super) fn accept(&self, message: CapturedMessage) {
        let message = Arc::new(message);
        self.captured.add(Arc::clone(&message));
        self.publish_events_of(&message);
        // An error means that there are no subscribers.
        let _ = self.accepted.send(message);
    }

    fn publish_events_of(&self, message: &CapturedMessage) {
        let Events::On(options) = self.events else { return };
        let set = message.configuration_set.as_deref();
        let events = events_of(self.publisher(), message, options, |event_type| {
            let name = event_type.matching_name();
            match options.route {
                EventRoute::EveryMessage => true,
                EventRoute::Destinations => {
                    set.is_some_and(|set| self.configuration_sets().publishes(set, name))
                }
            }
        });
        // The queue counts the events that find no room; the message was accepted all the same.
        let _ = self.enqueue(events);
    }

    fn publisher(&self) -> Publisher<'_> {
        Publisher { ids: &self.ids, region: &self.region, topic: &self.topic }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<CapturedMessage>> {
        self.accepted.subscribe()
    }

    pub(super) fn set_latency(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency_micros.store(micros, Ordering::Relaxed);
    }

    pub(super) fn latency(&self) -> Duration {
        Duration::from_micros(self.latency_micros.load(Ordering::Relaxed))
    }

    pub(super) fn set_clock_ahead(&self, seconds: i64) {
        self.clock_ahead_seconds.store(seconds, Ordering::Relaxed);
    }

    /// The time on the simulator's clock.
    pub(super) fn now(&self) -> SystemTime {
        let seconds = self.clock_ahead_seconds.load(Ordering::Relaxed);
        let offset = Duration::from_secs(seconds.unsigned_abs());
        let now = SystemTime::now();
        if seconds < 0 { now - offset } else { now + offset }
    }

    pub(super) fn count_call(&self, service: AwsService) {
        let counter = match service {
            AwsService::Ses | AwsService::Sts => &self.calls,
            AwsService::Sqs => &self.queue_calls,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}
