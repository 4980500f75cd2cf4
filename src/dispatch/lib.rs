//! The dispatcher: takes due messages out of the queue, sends them within the rate and the
//! concurrency that the provider allows, and records the outcomes.
//!
//! Knows nothing of HTTP clients on our own side. Every call it starts is one attempt, and every
//! attempt's outcome is recorded before anything else happens to the message.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info};

use pillarbox_body_store::Survivor;
use pillarbox_config::OnUnknown;
use pillarbox_domain::attempt::Provider;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::message::Transition;
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::retry::Backoff;
use pillarbox_queue::{Claim, Gate, MessageQueue, Next, Pending, PendingMessage, TakenUp};
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::in_flight::{InFlight, InFlightGuard};
use pillarbox_runtime::tasks::caught;
use pillarbox_store::{Health as StoreHealth, Store, StoreError};

use attempt::{Hold, KnownOutcome, Started};
use circuit_breaker::{BreakerState, Cause, Permit};
use metrics::SendingMetrics;
use paused_domains::PausedDomains;
use provider_health::{CallMarks, NextProbe, ProviderHealth};
use recent_calls::Recent;
use refusal_runs::RefusalRuns;
use throttle::Throttle;
use token_bucket::Rate;

pub use cancel::Cancelled;
pub use pauses::{PausedByOperator, PausedMessages};
pub use provider_health::Evidence;
pub use recent_calls::RecentCalls;
pub use throttle::DailyQuota;

mod attempt;
mod cancel;
pub mod circuit_breaker;
mod drain;
pub mod metrics;
mod paused_domains;
mod pauses;
mod provider_health;
pub mod quota;
pub mod recent_calls;
mod refusal_runs;
mod throttle;
pub mod token_bucket;

/// Number of messages that are started before other tasks get the thread.
const START_STEP: usize = 64;
/// Time that calls under way have to end, if another program goes on with what is pending.
pub const LAST_CALLS: Duration = Duration::from_secs(5);
/// Attempts in memory for each call that may be under way: the others have ended, and wait for
/// the store to take their outcome.
const ATTEMPTS_PER_CALL: usize = 2;
/// Calls under way at one time for all test organisations together.
const TEST_CALLS: usize = 32;
/// Interval between two checks whether the dispatcher's loop has gone round.
const TURN_POLL: Duration = Duration::from_millis(50);

/// Limits and delays of sending.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Calls under way at one time, at most.
    pub max_in_flight: usize,
    /// The delays between the attempts of one message, and between probes of a provider that is
    /// down.
    pub backoff: Backoff,
    /// The age at which a message that is not sent has failed.
    pub retry_for: Duration,
    /// Step after an attempt whose answer was lost.
    pub on_unknown: OnUnknown,
    /// The least wait after such an attempt, so that an event can resolve the doubt first.
    pub unknown_wait: Duration,
    /// Time for which sending goes on once the service stops.
    pub drain: Duration,
}

/// Sends what is in the queue.
#[derive(Debug)]
pub struct Dispatcher<P> {
    store: Store,
    queue: Arc<MessageQueue>,
    provider: P,
    clock: Clock,
    settings: RwLock<Arc<Settings>>,
    throttle: Mutex<Throttle>,
    /// Held from taking a message out to the start of its call, so that a cancellation finds it on
    /// either side of that. Locked before all others, and while the store is asked.
    starting: tokio::sync::Mutex<()>,
    /// Cancellations under way. They complete even if their caller has disconnected.
    cancelling: Mutex<JoinSet<()>>,
    domains: PausedDomains,
    refusals: RefusalRuns,
    /// Attempts for test organisations in memory.
    test_attempts: InFlight,
    /// Outcomes that the store has refused and not yet taken.
    unrecorded: InFlight,
    /// Messages of an earlier process whose end is known and not in the store yet.
    taken_up: Mutex<Vec<(Claim, Transition)>>,
    /// Outcomes that are known, and whose tasks ended before the store took them.
    unwritten: Mutex<Vec<KnownOutcome>>,
    /// Rounds of the loop that starts calls.
    rounds: AtomicU64,
    metrics: SendingMetrics,
    recent: Recent,
    /// Notified when rate or settings have changed.
    changed: Notify,
    /// Notified when the provider takes messages again.
    returned: Notify,
    /// Notified when calls begin to fail.
    doubted: Notify,
}

/// State of sending.
#[derive(Debug, Clone, Default)]
pub struct SendingStatus {
    /// Messages that are not final.
    pub pending: Pending,
    /// The byte budget, in bytes.
    pub max_pending_bytes: usize,
    /// Organisations whose share of the budget is used up.
    pub full_for: Vec<OrganisationId>,
    /// The part of its share that the organisation with the most pending bytes has in use.
    pub greatest_share: f64,
    /// Rate that applies now.
    pub rate: Rate,
    /// Limit of the rate without throttling.
    pub rate_limit: Rate,
    /// The daily quota, if it is known.
    pub quota: Option<DailyQuota>,
    /// Outcomes that wait for the store to take them.
    pub unrecorded: usize,
    /// The provider's condition, as it is reported to operators.
    pub condition: BreakerState,
    /// Organisations whose calls fail while others' do not, and what went wrong.
    pub paused_organisations: Vec<(OrganisationId, String)>,
    /// Paused domains: whose, which, and what the provider said.
    pub paused_domains: Vec<(OrganisationId, String, String)>,
    /// Organisations whose messages the provider refuses one after the other, so that they wait,
    /// and its message.
    pub held_refusals: Vec<(OrganisationId, String)>,
    /// The calls of the last five minutes.
    pub recent_calls: RecentCalls,
    /// Names of their answers that nothing is known of.
    pub unexpected_answers: Vec<String>,
    /// Messages that the provider has accepted since the start.
    pub sent: u64,
}

/// In which part of its life the dispatcher is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It sends what is due, until further notice.
    Running,
    /// It sends what is due and what can be brought forward, until nothing is left or this time. If the
    /// rest is kept, a handover follows then, of [`LAST_CALLS`].
    Draining {
        /// End of the drain.
        until: Instant,
        /// Fate of the rest.
        rest: Rest,
    },
    /// It starts no call, and waits for those under way until this time at most: another program
    /// goes on with what is pending.
    Handover {
        /// End of the handover.
        until: Instant,
    },
}

/// Messages that a drain leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Their bodies end with the process.
    Lost,
    /// A later process goes on with them.
    Kept,
}

/// Reason why the next call cannot start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Nothing: there may be more to start.
    Not,
    Until(Instant),
    ForACall,
    /// A call, a message of another organisation, or this time.
    ForAShare(Option<Instant>),
    ForAMessage,
    ForTheStore,
    /// The outcomes that the store has refused are stored first.
    ForRecords,
}

impl<P: Provider> Dispatcher<P> {
    /// A dispatcher at a pace of `rate`; it does nothing before [`Dispatcher::run`].
    pub fn new(
        store: Store,
        queue: Arc<MessageQueue>,
        provider: P,
        clock: Clock,
        settings: Settings,
        rate: Rate,
    ) -> Arc<Self> {
        let throttle = Throttle::new(rate, settings.backoff, Instant::now());
        let domains = PausedDomains::new(Arc::clone(&queue));
        Arc::new(Self {
            store,
            queue,
            provider,
            clock,
            settings: RwLock::new(Arc::new(settings)),
            throttle: Mutex::new(throttle),
            starting: tokio::sync::Mutex::default(),
            cancelling: Mutex::default(),
            domains,
            refusals: RefusalRuns::default(),
            test_attempts: InFlight::default(),
            unrecorded: InFlight::default(),
            taken_up: Mutex::default(),
            unwritten: Mutex::default(),
            rounds: AtomicU64::new(0),
            metrics: SendingMetrics::default(),
            recent: Recent::default(),
            changed: Notify::new(),
            returned: Notify::new(),
            doubted: Notify::new(),
        })
    }

    /// The provider.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Metrics of the calls.
    pub fn metrics(&self) -> &SendingMetrics {
        &self.metrics
    }

    /// Changes how to send from the next decision on.
    pub fn set_settings(&self, settings: Settings) {
        self.throttle().health.set_backoff(settings.backoff);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.changed.notify_one();
    }

    /// Changes the limit of the rate.
    pub fn set_rate(&self, rate: Rate) {
        let mut throttle = self.throttle();
        throttle.rate = rate;
        throttle.limit_pace(Instant::now());
        drop(throttle);
        self.changed.notify_one();
    }

    /// Changes this node's part of the rate, from 0 to 1.
    pub fn set_share(&self, share: f64) {
        let mut throttle = self.throttle();
        throttle.share = share;
        throttle.limit_pace(Instant::now());
        drop(throttle);
        self.changed.notify_one();
    }

    /// Takes over the account's daily quota by the provider's own count; `None` if there is none.
    /// From here on, sent recipients count against it.
    pub fn set_quota(&self, quota: Option<DailyQuota>) {
        let mut throttle = self.throttle();
        let before = throttle.health.state().clone();
        throttle.set_quota(quota, Instant::now());
        self.tell_change(&before, throttle.health.state());
    }

    /// Takes into account what the provider answered to a question without a message that was asked
    /// at `asked`; `error` says why it could not be asked.
    pub fn answered(&self, asked: Instant, said: impl Fn(Cause) -> Evidence, error: Option<&str>) {
        let (now, next) = (Instant::now(), self.next_probe());
        let mut throttle = self.throttle();
        let before = throttle.health.state().clone();
        let changed = throttle.health.answered(said, error, asked, now, next);
        self.set_gates(&throttle.health, changed, now);
        self.tell_change(&before, throttle.health.state());
        drop(throttle);
        self.changed.notify_one();
    }

    /// Time since the provider was reported as taking no messages; `None` if it is reported as up.
    pub fn impaired_for(&self) -> Option<Duration> {
        let (now, next) = (Instant::now(), self.next_probe());
        let reported = self.throttle().health.reported(now, next);
        reported.since.map(|since| now.saturating_duration_since(since))
    }

    /// Returns true while an answer to a question without a message could change the state.
    pub fn is_doubted(&self) -> bool {
        self.throttle().health.is_doubted()
    }

    /// Ends when calls begin to say that the provider does not accept messages.
    pub async fn doubted(&self) {
        self.doubted.notified().await;
    }

    /// Next probe of a provider that does not take messages.
    fn next_probe(&self) -> NextProbe {
        let max = self.settings().max_in_flight;
        match self.queue.next(OrganisationKind::Production, Instant::now(), max) {
            Next::Now | Next::AfterACall(_) => NextProbe::Message,
            Next::At(_) | Next::Never => {
                let pending = self.queue.pending();
                let taken_out = pending.in_flight - pending.test_in_flight;
                if taken_out > 0 { NextProbe::Message } else { NextProbe::None }
            }
        }
    }

    /// Ends when the provider takes messages again after it did not.
    pub async fn returned(&self) {
        self.returned.notified().await;
    }

    /// Tries at once what waits for the next probe or retry: what was wrong with the set-up may have
    /// been put right.
    pub fn try_again(&self) {
        let now = Instant::now();
        let mut throttle = self.throttle();
        let changed = throttle.health.probe_at_once(now);
        self.set_gates(&throttle.health, changed, now);
        drop(throttle);
        self.queue.bring_forward(now);
        self.changed.notify_one();
    }

    /// Lets operators and readers know of a change in what holds up every message.
    fn tell_change(&self, before: &BreakerState, now: &BreakerState) {
        match (before, now) {
            (BreakerState::Closed, BreakerState::Closed) => return,
            (BreakerState::Closed, BreakerState::Open { cause, message }) => {
                error!(?cause, message, "sending is paused; single calls test the provider");
                self.doubted.notify_one();
            }
            (BreakerState::Open { .. }, BreakerState::Closed) => {
                info!("the provider works again; sending continues");
                self.returned.notify_one();
            }
            (BreakerState::Open { .. }, BreakerState::Open { .. }) => {}
        }
        self.queue.set_obstacle(now.obstacle());
    }

    /// Returns the state of sending.
    pub fn status(&self) -> SendingStatus {
        let (now, next) = (Instant::now(), self.next_probe());
        let throttle = self.throttle();
        let reported = throttle.health.reported(now, next);
        let paused_organisations = match reported.state {
            BreakerState::Closed => self.paused_organisations(&throttle.health, now),
            // All are released together.
            BreakerState::Open { .. } => Vec::new(),
        };
        SendingStatus {
            pending: self.queue.pending(),
            max_pending_bytes: self.queue.budget().max(),
            full_for: self.queue.budget().full_for(),
            greatest_share: self.queue.budget().greatest_share(),
            rate: throttle.bucket.rate_at(now),
            rate_limit: throttle.bucket.limit(),
            quota: throttle.quota(),
            unrecorded: self.unrecorded.count(),
            condition: reported.state,
            paused_organisations,
            paused_domains: self.paused_domains(),
            held_refusals: self.held_refusals(),
            recent_calls: self.recent.read(now),
            unexpected_answers: self.recent.unexpected(now),
            sent: self.metrics.sent(),
        }
    }

    /// The organisations whose time is not over yet, or whose messages still wait.
    fn paused_organisations(
        &self,
        health: &ProviderHealth,
        now: Instant,
    ) -> Vec<(OrganisationId, String)> {
        let paused = health.paused(now).into_iter();
        let told = paused.filter(|one| one.probe > now || self.queue.is_waiting(one.id));
        told.map(|one| (one.id, one.message)).collect()
    }

    /// The domains whose time is not over yet, or whose messages still wait.
    fn paused_domains(&self) -> Vec<(OrganisationId, String, String)> {
        let now = Instant::now();
        self.reconsider_domains();
        let mut paused = self.domains.paused();
        paused.retain(|(organisation, domain, pause)| {
            pause.until > now || self.queue.is_held(*organisation, domain)
        });
        let told = paused.into_iter().map(|(organisation, domain, pause)| {
            (organisation, domain.as_str().to_owned(), pause.message)
        });
        told.collect()
    }

    /// Checks the paused domains once more, because a domain may have been verified, or removed and
    /// added again.
    fn reconsider_domains(&self) {
        self.domains.reconsider(|| self.store.domains(), Instant::now());
    }

    /// The organisations of which messages wait after equal refusals.
    fn held_refusals(&self) -> Vec<(OrganisationId, String)> {
        let mut held = self.refusals.held();
        held.retain(|(organisation, _)| self.queue.is_waiting(*organisation));
        held
    }

    /// Ends once the loop that starts calls has gone round again: it is alive.
    pub async fn turned(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        while self.rounds.load(Ordering::Relaxed) == before {
            self.changed.notify_one();
            sleep(TURN_POLL).await;
        }
    }

    /// Goes on with messages that outlived their process and are still pending in the store, before
    /// [`Dispatcher::run`]. Returns how many there were.
    pub fn take_up(&self, survivors: Vec<Survivor>) -> usize {
        let count = survivors.len();
        let mut ended = self.taken_up.lock().unwrap_or_else(PoisonError::into_inner);
        for survivor in survivors {
            let id = survivor.id;
            // If its organisation is removed, its message ends without a call. Should there be one all
            // the same, it must not reach the provider.
            let kind = self.store.organisation_kind(survivor.organisation);
            let kind = kind.unwrap_or(OrganisationKind::Test);
            match self.queue.take_up(survivor, kind) {
                Ok(TakenUp::Waits) => {}
                Ok(TakenUp::Ends(claim, end)) => ended.push((claim, end)),
                // Its mark in the store stays, and the next start recovers it.
                Err(error) => error!(%id, %error, "the body of a pending message cannot be read"),
            }
        }
        count
    }

    /// Sends until the phase's end, then records what is left as lost.
    pub async fn run(self: Arc<Self>, mut phase: watch::Receiver<Phase>) {
        let mut attempts = JoinSet::new();
        let mut entered = Phase::Running;
        let mut directory = self.store.webhook_changes();
        let taken_up =
            std::mem::take(&mut *self.taken_up.lock().unwrap_or_else(PoisonError::into_inner));
        for (claim, end) in taken_up {
            self.end(claim, end, &mut attempts);
        }
        self.follow_pauses().await;
        {
            let expiry = self.expire();
            let over = over(phase.clone());
            tokio::pin!(expiry, over);
            loop {
                self.rounds.fetch_add(1, Ordering::Relaxed);
                let now_phase = phase.borrow_and_update().at(Instant::now());
                self.enter(entered, now_phase);
                entered = now_phase;
                while let Some(ended) = attempts.try_join_next() {
                    Self::ended(ended);
                }
                if self.is_over(entered, &attempts) {
                    break;
                }
                let wait = tokio::select! {
                    biased;
                    wait = self.start_calls(entered, &mut attempts) => wait,
                    // The store may not answer what it is asked before a call.
                    () = &mut over => break,
                    () = &mut expiry => unreachable!("expiry goes on for as long as it is polled"),
                };
                if wait == Wait::Not {
                    tokio::select! {
                        biased;
                        () = &mut expiry => unreachable!("expiry goes on for as long as it is polled"),
                        () = yield_now() => continue,
                    }
                }
                tokio::select! {
                    Some(ended) = attempts.join_next() => Self::ended(ended),
                    () = self.queue.call_ended(), if wait.ends_with_a_call() => {}
                    () = self.queue.changed(), if wait != Wait::ForACall => {}
                    () = self.unrecorded.lowered(), if wait == Wait::ForRecords => {}
                    () = self.store.writable(), if wait == Wait::ForTheStore => {}
                    () = wake_at(wait, entered) => {}
                    () = self.changed.notified() => {}
                    Ok(()) = directory.changed() => {
                        self.reconsider_domains();
                        self.follow_pauses().await;
                    }
                    () = &mut expiry => unreachable!("expiry goes on for as long as it is polled"),
                    Ok(()) = phase.changed() => {}
                }
            }
        }
        self.end_cancellations().await;
        let end = Instant::now() + drain::LAST_RECORDS;
        let last_phase = *phase.borrow();
        match last_phase {
            Phase::Handover { .. } | Phase::Draining { rest: Rest::Kept, .. } => {
                self.let_go(attempts, end).await;
            }
            Phase::Running | Phase::Draining { rest: Rest::Lost, .. } => {
                self.abandon(attempts, end).await;
            }
        }
    }

    /// Starts the calls that may start now, and says what the next one waits for.
    async fn start_calls(self: &Arc<Self>, phase: Phase, attempts: &mut JoinSet<()>) -> Wait {
        if matches!(phase, Phase::Handover { .. }) {
            return Wait::ForACall;
        }
        for _ in 0..START_STEP {
            if self.store.health() == StoreHealth::Refusing {
                return Wait::ForTheStore;
            }
            if self.unrecorded.count() > 0 {
                return Wait::ForRecords;
            }
            // Neither kind waits for the other.
            let production = self.start_next(OrganisationKind::Production, attempts).await;
            let test = self.start_next(OrganisationKind::Test, attempts).await;
            match production.both(test) {
                Wait::Not => {}
                wait => return wait,
            }
        }
        Wait::Not
    }

    /// Starts the next call for an organisation of this kind if it may start now, and says what it
    /// waits for otherwise. Those of test organisations have slots of their own, and wait neither for
    /// the account's pace nor for the provider.
    async fn start_next(
        self: &Arc<Self>,
        kind: OrganisationKind,
        attempts: &mut JoinSet<()>,
    ) -> Wait {
        let now = Instant::now();
        let test_attempts = self.test_attempts.count();
        let (max, of_kind) = match kind {
            OrganisationKind::Production => {
                (self.settings().max_in_flight, attempts.len().saturating_sub(test_attempts))
            }
            OrganisationKind::Test => (TEST_CALLS, test_attempts),
        };
        match self.queue.next(kind, now, max) {
            Next::Now => {}
            Next::AfterACall(later) => return Wait::ForAShare(later),
            Next::At(due) => return Wait::Until(due),
            Next::Never => return Wait::ForAMessage,
        }
        if of_kind >= max.saturating_mul(ATTEMPTS_PER_CALL) {
            return Wait::ForACall;
        }
        if kind == OrganisationKind::Production
            && let Some(wait) = self.throttle().wait(now)
        {
            return wait;
        }
        let starting = self.starting.lock().await;
        let Some(claim) = self.queue.claim(kind, now, max) else { return Wait::ForAMessage };
        self.start(claim, now, attempts, &starting).await;
        Wait::Not
    }

    /// Starts the call of a message whose attempt is due, unless something forbids or delays it. A
    /// message that is not sent takes nothing of the rate. The call counts as started at `now`,
    /// when it was permitted, even if its task runs later: later findings were not known to it.
    async fn start(
        self: &Arc<Self>,
        mut claim: Claim,
        now: Instant,
        attempts: &mut JoinSet<()>,
        starting: &tokio::sync::MutexGuard<'_, ()>,
    ) {
        let dispatcher = Arc::clone(self);
        // A panic costs this message one attempt, and does not end the dispatcher.
        let hold = caught(self.hold_up(&claim)).await;
        match hold.unwrap_or(Err(StoreError::Damaged)) {
            // Last, because the store may have taken long to say all else.
            Ok(Hold::None(_)) if self.store.pause(claim.message.organisation).is_some() => {
                self.follow_pauses_while(starting);
                if let Some((claim, end)) = claim.put_back_as_new() {
                    self.end(claim, end, attempts);
                }
            }
            // On several nodes, this one may miss changes that the others received.
            Ok(Hold::None(_)) if self.store.health() == StoreHealth::Refusing => {
                if let Some((claim, end)) = claim.put_back_untried(now) {
                    self.end(claim, end, attempts);
                }
            }
            Ok(Hold::None(envelope)) => {
                let marks = match claim.message.kind {
                    OrganisationKind::Production => Some(self.take(&claim, now)),
                    OrganisationKind::Test => None,
                };
                let counted = self.count_test_attempt(claim.message.kind);
                let call = claim.start_call();
                let started = Started { at: now, marks, call, envelope };
                // In a box: it is large, and the runtime moves what it is given several times.
                attempts.spawn(Box::pin(async move {
                    dispatcher.attempt(claim, started).await;
                    drop(counted);
                }));
            }
            Ok(Hold::End(transition)) => self.end(claim, transition, attempts),
            Ok(Hold::Final) => claim.finish(),
            Ok(Hold::AnswerLost) => {
                attempts.spawn(async move { dispatcher.answer_lost(claim).await });
            }
            Ok(Hold::DomainUnverified(domain)) => {
                if let Some((claim, end)) = self.wait_for_verification(claim, &domain, now) {
                    self.end(claim, end, attempts);
                }
            }
            Err(error) => {
                error!(id = %claim.id(), %error, "the store cannot be read; the message waits");
                let due = Instant::now() + self.settings().backoff.ceiling(1);
                if let Some((claim, end)) = claim.put_back_untried(due) {
                    self.end(claim, end, attempts);
                }
            }
        }
    }

    /// Counts an attempt for a test organisation until the mark is dropped.
    fn count_test_attempt(&self, kind: OrganisationKind) -> Option<InFlightGuard> {
        (kind == OrganisationKind::Test).then(|| self.test_attempts.enter())
    }

    /// Charges a call that is about to start to the rate and to the daily quota.
    fn take(&self, claim: &Claim, now: Instant) -> CallMarks {
        let PendingMessage { organisation, recipients, .. } = claim.message;
        let mut throttle = self.throttle();
        throttle.bucket.take(recipients);
        // Before the quota is: the call that uses up the last of it is no probe of what follows.
        let marks = throttle.health.call(organisation);
        if throttle.health.permit_of(organisation, now).is_some() {
            self.set_gates(&throttle.health, [organisation], now);
        }
        let before = throttle.health.state().clone();
        throttle.spend(recipients, now);
        self.tell_change(&before, throttle.health.state());
        marks
    }

    /// Has the queue let these organisations' messages go as their breakers do.
    fn set_gates(
        &self,
        health: &ProviderHealth,
        organisations: impl IntoIterator<Item = OrganisationId>,
        now: Instant,
    ) {
        for organisation in organisations {
            let gate = match health.permit_of(organisation, now) {
                None | Some(Permit::Now) => Gate::Open,
                Some(Permit::At(probe)) => Gate::OpensAt(probe),
                Some(Permit::AfterACall) => Gate::Closed,
            };
            self.queue.set_gate(organisation, gate);
        }
    }

    fn ended(ended: Result<(), JoinError>) {
        if let Err(error) = ended
            && error.is_panic()
        {
            error!("a fault in pillarbox: recording an outcome panicked; its message fails later");
        }
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Phase {
    /// Returns the phase at a time. A drain whose rest is kept cuts off no call that is about to end,
    /// because its message would be sent again.
    fn at(self, now: Instant) -> Self {
        match self {
            Self::Draining { until, rest: Rest::Kept } if now >= until => {
                Self::Handover { until: until + LAST_CALLS }
            }
            phase => phase,
        }
    }

    /// The time at which it ends by the clock.
    fn end(self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::Draining { until, .. } | Self::Handover { until } => Some(until),
        }
    }

    /// The time at which the last one that follows from it ends by the clock.
    fn last_end(self) -> Option<Instant> {
        let end = self.end()?;
        self.at(end).end()
    }
}

impl Wait {
    fn ends_with_a_call(self) -> bool {
        matches!(self, Self::ForACall | Self::ForAShare(_))
    }

    /// Returns the wait of two that both have something to wait for: it ends with the first of them.
    fn both(self, other: Self) -> Self {
        match (self, other) {
            (Self::Not, _) | (_, Self::Not) => Self::Not,
            (Self::ForTheStore, _) | (_, Self::ForTheStore) => Self::ForTheStore,
            (Self::ForRecords, _) | (_, Self::ForRecords) => Self::ForRecords,
            (Self::ForACall, Self::ForACall) => Self::ForACall,
            (one, other) => {
                let end = one.end().into_iter().chain(other.end()).min();
                match end {
                    end if one.ends_with_a_call() || other.ends_with_a_call() => {
                        Self::ForAShare(end)
                    }
                    Some(end) => Self::Until(end),
                    None => Self::ForAMessage,
                }
            }
        }
    }

    /// The time at which it ends by the clock.
    fn end(self) -> Option<Instant> {
        match self {
            Self::Until(at) => Some(at),
            Self::ForAShare(at) => at,
            Self::Not
            | Self::ForACall
            | Self::ForAMessage
            | Self::ForTheStore
            | Self::ForRecords => None,
        }
    }
}

/// Ends when a wait or the phase is over by the clock; never, if neither has an end.
async fn wake_at(wait: Wait, phase: Phase) {
    match wait.end().into_iter().chain(phase.end()).min() {
        Some(wake) => sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

/// Ends with the time to drain or to hand over.
async fn over(mut phase: watch::Receiver<Phase>) {
    loop {
        let end = phase.borrow_and_update().last_end();
        let ends = async {
            match end {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        // A stop during a restart ends later.
        tokio::select! {
            () = ends => return,
            Ok(()) = phase.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests;
