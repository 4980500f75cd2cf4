//! A provider with scripted answers, on simulated time, around the real store, intake, queue and
//! dispatcher.
//!
//! Time stands still but for [`Sim::run`]: a blocking task that never ends while the simulation
//! lives keeps tokio from moving its paused clock by itself, which it would also do while the
//! store's thread is at work. After each step, the simulation waits for everything to finish: a
//! write that changes nothing goes through the store's queue until no outcome is on its way any
//! more.

use crate::kit;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep};

use pillarbox_body_store::BodyStore;
use pillarbox_config::OnUnknown;
use pillarbox_dispatch::token_bucket::Rate;
use pillarbox_dispatch::{Dispatcher, Phase, Rest, Settings};
use pillarbox_domain::attempt::{
    Outcome, Problem, ProblemKind, Provider, ProviderAnswer, RequestBody,
};
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::mailbox::{DomainName, Mailbox};
use pillarbox_domain::message::{FailureCode, Message, Status};
use pillarbox_domain::organisation::{DomainState, Organisation, OrganisationKind};
use pillarbox_domain::request::{Draft, SendRequest};
use pillarbox_domain::retry::Backoff;
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_domain::time::Timestamp;
use pillarbox_intake::Intake;
use pillarbox_queue::MessageQueue;
use pillarbox_runtime::clock::Clock;
use pillarbox_ses::send::{MESSAGE_ID_TAG, ORGANISATION_TAG, RequestOptions};
use pillarbox_store::{Accepted, Reference, Report, Store};

const START: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
/// Rounds of the scheduler without any change after which everything has finished.
const QUIET_ROUNDS: u32 = 4;
/// Writes awaited without any change before a step is given up as stuck.
const STUCK_WRITES: u32 = 20;
/// Time after which the simulated transport gives a slow answer up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// The domains that every organisation of the simulation may send from.
pub(crate) const DOMAINS: [&str; 2] = ["example.com", "other.example"];

/// Reaction of the provider to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Accepts, and says so.
    Accept,
    /// Accepts, and the answer is lost.
    AcceptAndLose,
    /// Does not accept, and the caller does not learn that.
    Lose,
    /// Accepts, and answers too late.
    AcceptSlowly,
    /// Refuses with this kind of problem.
    Refuse(ProblemKind),
    /// The provider never answers.
    Hang,
    /// Is no provider's doing: our own code panics before the call.
    Panic,
}

impl Answer {
    pub(crate) fn is_acceptance(self) -> bool {
        matches!(self, Self::Accept | Self::AcceptAndLose | Self::AcceptSlowly)
    }

    pub(crate) fn is_lost(self) -> bool {
        matches!(self, Self::AcceptAndLose | Self::Lose | Self::AcceptSlowly)
    }
}

/// One call as the provider saw it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) at: Instant,
    pub(crate) message: MessageId,
    pub(crate) organisation: String,
    pub(crate) from: String,
    pub(crate) recipients: u32,
    /// Number of this call among the message's calls, from 1.
    pub(crate) nth: u32,
    pub(crate) answer: Answer,
}

/// Unit in which the provider counts what it lets through.
#[derive(Debug, Clone)]
pub(crate) enum Limit {
    None,
    /// A bucket that holds one second of the rate.
    Bucket {
        rate: f64,
        tokens: f64,
        at: Instant,
    },
    /// Never more than the rate in any window of one second.
    Window {
        rate: f64,
        seen: Vec<(Instant, u32)>,
    },
}

impl Limit {
    pub(crate) fn bucket(rate: f64) -> Self {
        Self::Bucket { rate, tokens: rate, at: Instant::now() }
    }

    pub(crate) fn window(rate: f64) -> Self {
        Self::Window { rate, seen: Vec::new() }
    }

    fn lets_through(&mut self, recipients: u32) -> bool {
        let now = Instant::now();
        match self {
            Self::None => true,
            Self::Bucket { rate, tokens, at } => {
                *tokens = (*tokens + *rate * (now - *at).as_secs_f64()).min(*rate);
                *at = now;
                let enough = *tokens >= f64::from(recipients);
                if enough {
                    *tokens -= f64::from(recipients);
                }
                enough
            }
            Self::Window { rate, seen } => {
                seen.retain(|(at, _)| now - *at < Duration::from_secs(1));
                let sum: u32 = seen.iter().map(|(_, n)| n).sum();
                let enough = f64::from(sum + recipients) <= *rate;
                if enough {
                    seen.push((now, recipients));
                }
                enough
            }
        }
    }
}

type Script = Box<dyn FnMut(&Call) -> Answer + Send>;

/// The simulated provider; clones are the same one.
#[derive(Clone)]
pub(crate) struct Simulated(Arc<Mutex<Inner>>);

struct Inner {
    calls: Vec<Call>,
    nth: HashMap<MessageId, u32>,
    accepted: HashMap<MessageId, u32>,
    under_way: usize,
    most_under_way: usize,
    ended: usize,
    latency: Duration,
    limit: Limit,
    script: Script,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulated").finish_non_exhaustive()
    }
}

impl Simulated {
    pub(crate) fn new(latency: Duration, limit: Limit) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            calls: Vec::new(),
            nth: HashMap::new(),
            accepted: HashMap::new(),
            under_way: 0,
            most_under_way: 0,
            ended: 0,
            latency,
            limit,
            script: Box::new(|_| Answer::Accept),
        })))
    }

    /// Answers by this script from the next call on.
    pub(crate) fn script(&self, script: impl FnMut(&Call) -> Answer + Send + 'static) {
        self.lock().script = Box::new(script);
    }

    /// Answers every call like this from the next one on.
    pub(crate) fn always(&self, answer: Answer) {
        self.script(move |_| answer);
    }

    pub(crate) fn set_latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    pub(crate) fn call_count(&self) -> usize {
        self.lock().calls.len()
    }

    /// Number of calls for the organisation with this name.
    pub(crate) fn call_count_of(&self, organisation: &str) -> usize {
        self.lock().calls.iter().filter(|call| call.organisation == organisation).count()
    }

    pub(crate) fn calls_of(&self, message: MessageId) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.message == message).collect()
    }

    /// Number of times that a message was accepted.
    pub(crate) fn accepted(&self, message: MessageId) -> u32 {
        self.lock().accepted.get(&message).copied().unwrap_or(0)
    }

    pub(crate) fn under_way(&self) -> usize {
        self.lock().under_way
    }

    /// The most calls under way at one time, since the last time that this was asked.
    pub(crate) fn most_under_way(&self) -> usize {
        let mut inner = self.lock();
        std::mem::replace(&mut inner.most_under_way, 0)
    }

    /// The most recipients whose calls started within any second from `from` on.
    pub(crate) fn most_in_a_second(&self, from: Instant) -> u32 {
        let calls = self.calls();
        let calls: Vec<&Call> = calls.iter().filter(|call| call.at >= from).collect();
        let (mut most, mut sum, mut first) = (0, 0, 0);
        for call in &calls {
            sum += call.recipients;
            while call.at - calls[first].at >= Duration::from_secs(1) {
                sum -= calls[first].recipients;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides on a call and writes it down.
    fn take(&self, request: &[u8]) -> (Call, Duration) {
        let request: serde_json::Value = serde_json::from_slice(request).unwrap();
        let tag = |name: &str| {
            let tags = request["EmailTags"].as_array().unwrap();
            let tag = tags.iter().find(|tag| tag["Name"] == name).unwrap();
            tag["Value"].as_str().unwrap().to_owned()
        };
        let fields = request["Destination"].as_object().unwrap();
        let recipients: usize = fields.values().map(|field| field.as_array().unwrap().len()).sum();
        let mut inner = self.lock();
        let message: MessageId = tag(MESSAGE_ID_TAG).parse().unwrap();
        let nth = inner.nth.entry(message).or_insert(0);
        *nth += 1;
        let mut call = Call {
            at: Instant::now(),
            message,
            organisation: tag(ORGANISATION_TAG),
            from: request["FromEmailAddress"].as_str().unwrap().to_owned(),
            recipients: u32::try_from(recipients).unwrap(),
            nth: *nth,
            answer: Answer::Accept,
        };
        call.answer = (inner.script)(&call);
        if call.answer.is_acceptance() && !inner.limit.lets_through(call.recipients) {
            call.answer = Answer::Refuse(ProblemKind::Throttled);
        }
        if call.answer.is_acceptance() {
            *inner.accepted.entry(message).or_insert(0) += 1;
        }
        inner.calls.push(call.clone());
        inner.under_way += 1;
        inner.most_under_way = inner.most_under_way.max(inner.under_way);
        (call, inner.latency)
    }
}

/// Counts a call as ended, also if it is aborted or panics.
struct UnderWay<'a>(&'a Simulated);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.under_way -= 1;
        inner.ended += 1;
    }
}

impl Provider for Simulated {
    async fn send(&self, _: OrganisationKind, _: &Envelope<'_>, request: RequestBody) -> Outcome {
        let (call, latency) = self.take(&request.whole().unwrap());
        let _under_way = UnderWay(self);
        let kind = match call.answer {
            Answer::Accept => {
                sleep(latency).await;
                let ses_message_id = format!("ses-{}-{}", call.message, call.nth);
                return Outcome::Sent { ses_message_id };
            }
            Answer::AcceptSlowly => {
                sleep(TIMEOUT).await;
                ProblemKind::Unknown
            }
            Answer::AcceptAndLose | Answer::Lose => {
                sleep(latency).await;
                ProblemKind::Unknown
            }
            Answer::Refuse(kind) => {
                sleep(latency).await;
                kind
            }
            Answer::Hang => std::future::pending().await,
            Answer::Panic => panic!("as the test wants it"),
        };
        Outcome::NotSent(Problem {
            kind,
            provider_code: None,
            message: format!("{kind:?}"),
            retry_after: None,
            answer: ProviderAnswer::Missing,
        })
    }
}

/// A message to accept.
#[derive(Debug, Clone)]
pub(crate) struct Mail {
    pub(crate) from: String,
    pub(crate) to: Vec<String>,
    pub(crate) expires_in: Option<&'static str>,
}

impl Mail {
    /// One with this many recipients.
    pub(crate) fn to_many(recipients: usize) -> Self {
        Self {
            from: format!("Ann <ann@{}>", DOMAINS[0]),
            to: (0..recipients).map(|n| format!("r{n}@example.org")).collect(),
            expires_in: None,
        }
    }

    pub(crate) fn from_domain(domain: &str) -> Self {
        Self { from: format!("ann@{domain}"), ..Self::to_many(1) }
    }
}

/// Settings as the configuration's defaults have them, without events.
pub(crate) fn settings() -> Settings {
    Settings {
        max_in_flight: 256,
        backoff: Backoff::try_new(Duration::from_secs(1), Duration::from_mins(5)).unwrap(),
        retry_for: Duration::from_hours(12),
        on_unknown: OnUnknown::Retry,
        unknown_wait: Duration::ZERO,
        drain: Duration::from_mins(1),
    }
}

/// The whole sending side on simulated time.
pub(crate) struct Sim {
    pub(crate) store: Store,
    pub(crate) queue: Arc<MessageQueue>,
    pub(crate) provider: Simulated,
    pub(crate) dispatcher: Arc<Dispatcher<Simulated>>,
    pub(crate) clock: Clock,
    pub(crate) organisations: Vec<Organisation>,
    intake: Arc<Intake>,
    phase: watch::Sender<Phase>,
    running: Option<JoinHandle<()>>,
    /// While this lives, tokio does not move the clock by itself.
    _clock_hold: std::sync::mpsc::Sender<()>,
    _directory: tempfile::TempDir,
}

impl Sim {
    /// Starts with two organisations, `a` and `b`, and an empty queue.
    pub(crate) async fn start(provider: Simulated, settings: Settings, rate: Rate) -> Self {
        let (clock_hold, released) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || released.recv());
        // Memory, if there is such a directory: these tests are not about the disk.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let (store, _) = Store::open(directory.path(), START).unwrap();
        let mut organisations = Vec::new();
        for name in ["a", "b"] {
            let organisation =
                store.add_organisation(name.parse().unwrap()).await.unwrap().unwrap();
            for domain in DOMAINS {
                let domain = DomainName::parse(domain).unwrap();
                store
                    .put_domain(organisation.id, domain, DomainState::Assumed, START)
                    .await
                    .unwrap();
            }
            organisations.push(organisation);
        }
        let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 30));
        let clock = Clock::manual(START);
        let intake = Intake::new(
            store.clone(),
            Arc::clone(&queue),
            clock.clone(),
            RequestOptions::default(),
        );
        let dispatcher = Dispatcher::new(
            store.clone(),
            Arc::clone(&queue),
            provider.clone(),
            clock.clone(),
            settings,
            rate,
        );
        let (phase, watched) = watch::channel(Phase::Running);
        let running = tokio::spawn(Arc::clone(&dispatcher).run(watched));
        Self {
            store,
            queue,
            provider,
            dispatcher,
            clock,
            organisations,
            intake: Arc::new(intake),
            phase,
            running: Some(running),
            _clock_hold: clock_hold,
            _directory: directory,
        }
    }

    /// Accepts messages of organisation number `organisation`, at this one instant.
    pub(crate) async fn accept(&self, organisation: usize, mails: Vec<Mail>) -> Vec<MessageId> {
        let mut accepting = JoinSet::new();
        for mail in mails {
            let intake = Arc::clone(&self.intake);
            let organisation = self.organisations[organisation].clone();
            accepting.spawn(async move {
                let draft = Draft {
                    from: Some(&mail.from),
                    to: Some(mail.to.iter().map(String::as_str).collect()),
                    subject: Some("Hello"),
                    text: Some("Body".into()),
                    expires_in: mail.expires_in,
                    ..Draft::default()
                };
                let request = SendRequest::parse(draft).unwrap();
                let prepared =
                    intake.prepare(&organisation, None, request, Some("test")).await.unwrap();
                match intake.accept(prepared).await.unwrap() {
                    Accepted::New(id) => id,
                    Accepted::Replayed(_) => panic!("a message without a key is new"),
                }
            });
        }
        let mut ids = accepting.join_all().await;
        ids.sort_unstable();
        self.settle().await;
        ids
    }

    pub(crate) async fn accept_singles(&self, organisation: usize, count: usize) -> Vec<MessageId> {
        self.accept(organisation, vec![Mail::to_many(1); count]).await
    }

    /// Lets this much time pass, in steps.
    pub(crate) async fn run(&self, time: Duration, step: Duration) {
        self.run_until(time, step, || false).await;
    }

    /// Lets time pass in steps until `done`, and says how long that took; panics after `limit`
    /// unless nothing was to be reached.
    pub(crate) async fn run_until(
        &self,
        limit: Duration,
        step: Duration,
        mut done: impl FnMut() -> bool,
    ) -> Duration {
        let start = Instant::now();
        self.settle().await;
        while !done() && start.elapsed() < limit {
            tokio::time::advance(step).await;
            self.clock.advance(step);
            self.settle().await;
        }
        start.elapsed()
    }

    /// Lets time pass until nothing is pending.
    pub(crate) async fn run_until_empty(&self, limit: Duration, step: Duration) -> Duration {
        let took = self.run_until(limit, step, || self.queue.pending().messages == 0).await;
        let left = self.queue.pending().messages;
        assert_eq!(left, 0, "{left} messages are pending after {took:?}");
        took
    }

    /// Waits until nothing more happens at this instant.
    pub(crate) async fn settle(&self) {
        let (mut quiet, mut writes) = (0, 0);
        let mut last = self.progress();
        // What a drain leaves is recorded without being taken out.
        let draining = *self.phase.borrow() != Phase::Running && !self.has_ended();
        while quiet < QUIET_ROUNDS && writes < STUCK_WRITES {
            yield_now().await;
            let recording = self.queue.pending().in_flight > self.provider.under_way();
            if recording || (draining && quiet == 0) {
                self.write_nothing().await;
                writes += 1;
            }
            if recording {
                quiet = 0;
            }
            let now = self.progress();
            if now == last {
                quiet += 1;
            } else {
                (quiet, writes, last) = (0, 0, now);
            }
        }
    }

    /// Goes through the store's queue, behind all of its content.
    async fn write_nothing(&self) {
        let nobody = Mailbox::parse("nobody@example.net").unwrap();
        let nobody = SuppressedAddress::from(nobody.address());
        self.store.unsuppress(None, nobody).await.unwrap();
    }

    fn progress(&self) -> (usize, usize, usize, usize) {
        let pending = self.queue.pending();
        let inner = self.provider.lock();
        (inner.calls.len(), inner.ended, pending.messages, pending.in_flight)
    }

    pub(crate) fn message(&self, id: MessageId) -> Message {
        kit::at_once(self.store.message(id, START)).unwrap().unwrap()
    }

    pub(crate) fn status(&self, id: MessageId) -> Status {
        self.message(id).status()
    }

    pub(crate) fn failure(&self, id: MessageId) -> Option<FailureCode> {
        self.message(id).failure().map(|failure| failure.code)
    }

    /// SES's `Send` event for a message arrives.
    pub(crate) async fn prove_sent(&self, id: MessageId) {
        self.store_proof(id).await;
        self.queue.proved_sent(id);
    }

    /// The same, and the queue has not heard of it yet.
    pub(crate) async fn store_proof(&self, id: MessageId) {
        let report = Report {
            message: Reference::Tag(id),
            organisation: None,
            ses_message_id: format!("ses-{id}-proved"),
            accepted_at: self.clock.now(),
            event: None,
        };
        self.store.apply(report, self.clock.now()).await.unwrap();
    }

    /// Begins to drain, for at most this long.
    pub(crate) async fn drain(&self, time: Duration) {
        let until = Instant::now() + time;
        self.phase.send(Phase::Draining { until, rest: Rest::Lost }).unwrap();
        self.settle().await;
    }

    /// True if the dispatcher has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.running.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the dispatcher's end, which must need no more simulated time.
    pub(crate) async fn ended(&mut self) {
        self.running.take().unwrap().await.unwrap();
    }
}
