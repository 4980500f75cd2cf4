//! The dispatcher: takes due messages out of the outbox, sends them at the pace and within the
//! concurrency that the provider allows, and records what became of them.
//!
//! Knows nothing of HTTP clients on our own side. Every call it starts is one attempt, and every
//! attempt's outcome is recorded before anything else happens to the message.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::config::OnUnknown;
use crate::domain::attempt::{Outcome, ProblemKind, Provider};
use crate::domain::id::OrganisationId;
use crate::domain::message::{Acceptance, Failure, FailureCode, Transition};
use crate::domain::retry::Backoff;
use crate::outbox::{Claim, Next, Outbox, Pending};
use crate::store::{Health as StoreHealth, Store};

use domains::Domains;
use health::{Cause, Condition, Health, Permit, Signal};
use pace::{Pace, Rate};

mod attempt;
pub mod domains;
pub mod health;
pub mod pace;

/// How much room for calls beyond what rate and latency need, so that jitter does not starve the
/// pace.
const CONCURRENCY_HEADROOM: f64 = 2.0;
/// How quickly the measured latency and size of calls follow new ones.
const SMOOTHING: f64 = 0.05;
/// How often messages past `retry_for` are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// How many of them are given up in one step.
const EXPIRY_STEP: usize = 1_000;

/// How to send.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Calls under way at one time, at most.
    pub max_in_flight: usize,
    /// The delays between the attempts of one message, and between probes of a provider that is
    /// down.
    pub backoff: Backoff,
    /// The age at which a message that is not sent has failed.
    pub retry_for: Duration,
    /// What follows an attempt whose answer was lost.
    pub on_unknown: OnUnknown,
    /// The least wait after such an attempt, so that an event can settle the question first.
    pub unknown_wait: Duration,
}

/// Sends what is in the outbox.
#[derive(Debug)]
pub struct Dispatcher<P> {
    store: Store,
    outbox: Arc<Outbox>,
    provider: P,
    clock: Clock,
    settings: RwLock<Arc<Settings>>,
    flow: Mutex<Flow>,
    domains: Domains,
}

/// What the calls so far say of how fast and how many may go.
#[derive(Debug)]
struct Flow {
    pace: Pace,
    health: Health,
    /// Smoothed duration of a call, in seconds.
    latency: f64,
    /// Smoothed number of recipients of a call.
    recipients: f64,
}

/// How sending goes.
#[derive(Debug, Clone)]
pub struct SendingStatus {
    /// What is pending.
    pub pending: Pending,
    /// The byte budget, in bytes.
    pub max_pending_bytes: usize,
    /// The pace now.
    pub rate: Rate,
    /// The provider's condition.
    pub condition: Condition,
    /// Paused domains: whose, which, and what the provider said.
    pub paused_domains: Vec<(OrganisationId, String, String)>,
}

/// In which part of its life the dispatcher is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It sends what is due, until further notice.
    Running,
    /// It sends what is due and what can be brought forward, until nothing is left or this time.
    Draining {
        /// The end.
        until: Instant,
    },
}

/// What keeps the next call from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Until(Instant),
    ForACall,
    ForAMessage,
    ForTheStore,
}

impl<P: Provider> Dispatcher<P> {
    /// A dispatcher at a pace of `rate`; it does nothing before [`Dispatcher::run`].
    pub fn new(
        store: Store,
        outbox: Arc<Outbox>,
        provider: P,
        clock: Clock,
        settings: Settings,
        rate: Rate,
    ) -> Arc<Self> {
        let now = Instant::now();
        let flow = Flow {
            pace: Pace::new(rate, now),
            health: Health::new(settings.backoff, now),
            latency: 0.05,
            recipients: 1.0,
        };
        Arc::new(Self {
            store,
            outbox,
            provider,
            clock,
            settings: RwLock::new(Arc::new(settings)),
            flow: Mutex::new(flow),
            domains: Domains::default(),
        })
    }

    /// The provider.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Changes how to send from the next decision on.
    pub fn set_settings(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Changes the pace's limit.
    pub fn set_rate(&self, rate: Rate) {
        self.flow().pace.set_limit(rate, Instant::now());
    }

    /// The account's daily quota is used up, by the provider's own count: sending pauses before
    /// the provider has to refuse.
    pub fn quota_used_up(&self, quota: f64) {
        let mut flow = self.flow();
        if *flow.health.condition() == Condition::Up {
            let message =
                format!("the account's quota of {quota} recipients in 24 hours is used up");
            error!(message, "sending is paused; the provider is probed until it works");
            flow.health.impair(Cause::QuotaExhausted, &message, Instant::now());
            self.outbox.set_obstacle(flow.health.condition().obstacle());
        }
    }

    /// How sending goes.
    pub fn status(&self) -> SendingStatus {
        let flow = self.flow();
        SendingStatus {
            pending: self.outbox.pending(),
            max_pending_bytes: self.outbox.budget().max(),
            rate: flow.pace.rate(),
            condition: flow.health.condition().clone(),
            paused_domains: self.domains.paused(Instant::now()),
        }
    }

    /// Sends until the phase's end, then records what is left as lost.
    pub async fn run(self: Arc<Self>, mut phase: watch::Receiver<Phase>) {
        let mut calls = JoinSet::new();
        let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
        loop {
            let now_phase = *phase.borrow_and_update();
            if let Phase::Draining { until } = now_phase
                && (Instant::now() >= until || self.is_drained())
            {
                break;
            }
            let wait = self.start_calls(&mut calls);
            let wake = match (wait, now_phase) {
                (Wait::Until(at), Phase::Draining { until }) => at.min(until),
                (Wait::Until(at), Phase::Running) => at,
                (_, Phase::Draining { until }) => until,
                (_, Phase::Running) => Instant::now() + EXPIRY_INTERVAL,
            };
            tokio::select! {
                Some(ended) = calls.join_next(), if !calls.is_empty() => Self::ended(ended),
                () = self.outbox.changed(), if matches!(wait, Wait::ForAMessage | Wait::Until(_)) => {}
                () = self.store.writable(), if wait == Wait::ForTheStore => {}
                () = sleep_until(wake) => {}
                _ = expiry.tick() => self.expire_old(&mut calls),
                Ok(()) = phase.changed() => self.enter(*phase.borrow()),
            }
        }
        self.abandon(calls).await;
    }

    /// Starts every call that may start now, and says what the next one waits for.
    fn start_calls(self: &Arc<Self>, calls: &mut JoinSet<()>) -> Wait {
        loop {
            if self.store.health() == StoreHealth::Refusing {
                return Wait::ForTheStore;
            }
            let now = Instant::now();
            match self.outbox.next(now) {
                Next::Now => {}
                Next::At(due) => return Wait::Until(due),
                Next::Never => return Wait::ForAMessage,
            }
            let mut flow = self.flow();
            let in_flight = calls.len();
            if in_flight >= flow.concurrency(self.settings().max_in_flight) {
                return Wait::ForACall;
            }
            match flow.health.permit(now, in_flight) {
                Permit::Now => {}
                Permit::At(later) => return Wait::Until(later),
                Permit::AfterACall => return Wait::ForACall,
            }
            let ready = flow.pace.ready_at(now);
            if ready > now {
                return Wait::Until(ready);
            }
            let Some(claim) = self.outbox.claim(now) else { return Wait::ForAMessage };
            flow.pace.take(claim.recipients);
            drop(flow);
            let dispatcher = Arc::clone(self);
            calls.spawn(async move { dispatcher.attempt(claim).await });
        }
    }

    fn expire_old(self: &Arc<Self>, calls: &mut JoinSet<()>) {
        if self.store.health() == StoreHealth::Refusing {
            return;
        }
        let Some(end) = Instant::now().checked_sub(self.settings().retry_for) else { return };
        for claim in self.outbox.claim_older_than(end, EXPIRY_STEP) {
            let dispatcher = Arc::clone(self);
            calls.spawn(async move { dispatcher.expire(claim).await });
        }
    }

    /// Learns from a finished call.
    fn observe(&self, outcome: &Outcome, claim: &Claim, started: Instant) {
        let now = Instant::now();
        let mut flow = self.flow();
        let was_up = *flow.health.condition() == Condition::Up;
        match outcome {
            Outcome::Sent { .. } => {
                flow.learn(now.duration_since(started), claim.recipients);
                flow.health.observe(&Signal::Working, now);
            }
            Outcome::NotSent(problem) => {
                if problem.kind == ProblemKind::Throttled {
                    flow.pace.throttled(now);
                }
                flow.health.observe(&Signal::of(problem.kind, &problem.message), now);
            }
        }
        let is_up = *flow.health.condition() == Condition::Up;
        if !(was_up && is_up) {
            self.outbox.set_obstacle(flow.health.condition().obstacle());
        }
        match (was_up, flow.health.condition()) {
            (true, Condition::Impaired { cause, message }) => {
                error!(?cause, message, "sending is paused; the provider is probed until it works");
            }
            (false, Condition::Up) => info!("the provider works again; sending goes on"),
            _ => {}
        }
    }

    fn enter(&self, phase: Phase) {
        if matches!(phase, Phase::Draining { .. })
            && *self.flow().health.condition() == Condition::Up
        {
            self.outbox.make_all_due(Instant::now());
        }
    }

    /// Whether nothing is left that this process can still send.
    fn is_drained(&self) -> bool {
        let pending = self.outbox.pending();
        if pending.in_flight > 0 {
            return false;
        }
        let impaired = *self.flow().health.condition() != Condition::Up;
        impaired || !matches!(self.outbox.next(Instant::now()), Next::Now)
    }

    /// Ends what is still under way and records every message that is left as lost.
    async fn abandon(&self, mut calls: JoinSet<()>) {
        calls.shutdown().await;
        let left = self.outbox.remaining();
        if left.is_empty() {
            return;
        }
        warn!(
            messages = left.len(),
            "messages are left unsent; their bodies end with this process"
        );
        for (id, attempts, call) in left {
            let (message, acceptance) = match call {
                Acceptance::Possible => (
                    "the service stopped while the outcome of a call to the provider was open, so \
                     whether the message was accepted is unknown",
                    Acceptance::Possible,
                ),
                Acceptance::Excluded => (
                    "the service stopped before the message was sent, and bodies are kept in \
                     memory only; no call to the provider was under way",
                    Acceptance::Excluded,
                ),
            };
            let failure = Failure::new(FailureCode::BodyLostOnRestart, message);
            let transition = Transition::Failed { failure, acceptance };
            if let Err(error) = self.store.record(id, attempts, transition).await {
                // The pending mark stays, and the next start settles it.
                error!(%id, %error, "an unsent message could not be recorded");
                break;
            }
        }
    }

    fn ended(ended: Result<(), tokio::task::JoinError>) {
        if let Err(error) = ended
            && error.is_panic()
        {
            error!("an attempt panicked; its message stays pending until the next restart");
        }
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flow {
    /// How many calls the rate needs at the observed latency.
    fn concurrency(&self, max: usize) -> usize {
        let Rate::PerSecond(rate) = self.pace.rate() else { return max };
        let calls = rate / self.recipients * self.latency * CONCURRENCY_HEADROOM;
        // A float beyond the range saturates.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let calls = calls.ceil().max(0.0) as usize;
        calls.saturating_add(1).clamp(1, max)
    }

    fn learn(&mut self, latency: Duration, recipients: u32) {
        self.latency += SMOOTHING * (latency.as_secs_f64() - self.latency);
        self.recipients += SMOOTHING * (f64::from(recipients) - self.recipients);
    }
}
