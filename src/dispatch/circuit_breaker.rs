//! Circuit breaker: permits of calls by the provider's health: all (closed), one probe at a time
//! (open), or a gradual return. `provider_health` decides which calls are evidence.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use pillarbox_domain::attempt::ProblemKind;
use pillarbox_domain::message::Failure;
use pillarbox_domain::retry::Backoff;
use pillarbox_runtime::in_flight::{InFlight, InFlightGuard};

/// Calls that may be under way at which a gradual return is over.
const RETURNED: usize = 64;

/// Reason why only probes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// No call succeeds: the provider does not answer, or with errors alone.
    Unreachable,
    /// The account's daily quota is used up.
    QuotaExhausted,
    /// The account may not send.
    AccountPaused,
    /// The set-up is at fault: credentials, access or the configuration set.
    SetupFault,
    /// Our clock is wrong.
    ClockWrong,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 5] = [
        Self::Unreachable,
        Self::QuotaExhausted,
        Self::AccountPaused,
        Self::SetupFault,
        Self::ClockWrong,
    ];

    /// A name for programs, as in metrics.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::QuotaExhausted => "quota_exhausted",
            Self::AccountPaused => "account_paused",
            Self::SetupFault => "setup_fault",
            Self::ClockWrong => "clock_wrong",
        }
    }

    /// Meaning, and what to do.
    pub const fn explained(self) -> (&'static str, &'static str) {
        match self {
            Self::Unreachable => (
                "no call to the provider succeeds",
                "Check the network, ses.region and ses.endpoint; the service keeps trying",
            ),
            Self::QuotaExhausted => (
                "the account's daily quota is used up",
                "Sending continues when SES's 24-hour window has room again. If this happens \
                 often, ask AWS for a higher quota",
            ),
            Self::AccountPaused => (
                "the account is not allowed to send",
                "Check the account's status in the SES console and answer AWS there; sending \
                 then continues automatically",
            ),
            Self::SetupFault => (
                "credentials, permissions or the configuration set are at fault",
                "Correct them; after a change at AWS, sending continues automatically. If you \
                 change credentials on this machine, send SIGHUP; if you change \
                 ses.configuration_set, the environment or /etc/pillarbox/aws, restart the \
                 service",
            ),
            Self::ClockWrong => (
                "AWS refuses calls because this machine's clock is wrong",
                "Set the clock and keep it right, with chrony or systemd-timesyncd; sending then \
                 continues automatically",
            ),
        }
    }
}

/// State of the circuit breaker: whether the provider takes messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// The provider takes messages.
    #[default]
    Closed,
    /// It does not: one call at a time goes out to see whether it does again.
    Open {
        /// Kind of the failure.
        cause: Cause,
        /// Message of the provider, or the failure of the call.
        message: String,
    },
}

impl BreakerState {
    /// Failure that a message shows while it waits because of this state. It repeats nothing
    /// that the provider said, which may concern another organisation. A provider that does not
    /// answer shows on each message by its own attempts.
    pub fn obstacle(&self) -> Option<Failure> {
        let Self::Open { cause, .. } = self else { return None };
        let kind = match cause {
            Cause::Unreachable => return None,
            Cause::QuotaExhausted => ProblemKind::QuotaExhausted,
            Cause::AccountPaused => ProblemKind::AccountPaused,
            Cause::SetupFault => ProblemKind::SetupFault,
            Cause::ClockWrong => ProblemKind::ClockWrong,
        };
        Some(kind.failure())
    }
}

/// Evidence of a finished call about the provider.
#[derive(Debug)]
pub enum Signal<'a> {
    /// The provider works, even if it refused the message.
    Working,
    /// It does not: for every message, or, if it is unreachable, perhaps for this one alone.
    Failing {
        /// Kind of the failure.
        cause: Cause,
        /// Message of the provider, or the failure of the call.
        message: &'a str,
    },
}

impl<'a> Signal<'a> {
    /// Evidence of a problem of this kind.
    pub fn of(kind: ProblemKind, message: &'a str) -> Self {
        let cause = match kind {
            ProblemKind::Throttled | ProblemKind::Rejected | ProblemKind::DomainFault => {
                return Self::Working;
            }
            // A fault of our own in every call must not use up the queue either.
            ProblemKind::Unavailable | ProblemKind::Unknown | ProblemKind::Crashed => {
                Cause::Unreachable
            }
            ProblemKind::QuotaExhausted => Cause::QuotaExhausted,
            ProblemKind::AccountPaused => Cause::AccountPaused,
            ProblemKind::SetupFault => Cause::SetupFault,
            ProblemKind::ClockWrong => Cause::ClockWrong,
        };
        Self::Failing { cause, message }
    }
}

/// Permission to start a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// A call may start now.
    Now,
    /// No call may start before then.
    At(Instant),
    /// Not before a call that is under way has ended.
    AfterACall,
}

/// Circuit breaker: says how many calls may be under way.
#[derive(Debug)]
pub struct CircuitBreaker {
    state: BreakerState,
    backoff: Backoff,
    probes_failed: u32,
    next_probe: Instant,
    /// Time at which the provider was last found impaired.
    impaired_at: Option<Instant>,
    /// Time of the last evidence that it is impaired.
    failed_at: Option<Instant>,
    /// Calls under way that were started since then. Earlier ones are no evidence about the time
    /// after, and hold up neither a probe nor the provider's return.
    calls: InFlight,
    /// Such calls that may be under way: grows from one after the provider's return.
    window: usize,
}

impl CircuitBreaker {
    /// A provider that is taken to work; probes follow `backoff` when it does not.
    pub fn new(backoff: Backoff, now: Instant) -> Self {
        Self {
            state: BreakerState::Closed,
            backoff,
            probes_failed: 0,
            next_probe: now,
            impaired_at: None,
            failed_at: None,
            calls: InFlight::default(),
            window: usize::MAX,
        }
    }

    /// State of the provider, from the results of calls.
    pub fn state(&self) -> &BreakerState {
        &self.state
    }

    /// True if the provider takes messages, as far as the calls show.
    pub fn is_up(&self) -> bool {
        self.state == BreakerState::Closed
    }

    /// Since when the provider does not accept messages; `None` if it does.
    pub fn open_since(&self) -> Option<Instant> {
        self.impaired_at.filter(|_| !self.is_up())
    }

    /// Time of the last evidence that the provider does not accept messages.
    pub fn failed_at(&self) -> Option<Instant> {
        self.failed_at
    }

    /// Takes note that the provider still does not take messages, without a call.
    pub fn confirm(&mut self, now: Instant) {
        self.failed_at = Some(now);
    }

    /// Counts a call that starts as under way, until the mark is dropped.
    pub fn call(&self) -> InFlightGuard {
        self.calls.enter()
    }

    /// Permission for a call that would start now.
    pub fn permit(&self, now: Instant) -> Permit {
        let under_way = self.calls.count();
        match self.state {
            BreakerState::Closed if under_way < self.window => Permit::Now,
            BreakerState::Closed => Permit::AfterACall,
            BreakerState::Open { .. } if under_way > 0 => Permit::AfterACall,
            BreakerState::Open { .. } if now < self.next_probe => Permit::At(self.next_probe),
            BreakerState::Open { .. } => Permit::Now,
        }
    }

    /// Changes the delays between probes, from the next one on.
    pub fn set_backoff(&mut self, backoff: Backoff) {
        self.backoff = backoff;
    }

    /// Lets the next probe start at `now`.
    pub fn probe_at_once(&mut self, now: Instant) {
        self.next_probe = self.next_probe.min(now);
    }

    /// Time at which a call may start, if none is under way.
    pub fn permitted_at(&self, now: Instant) -> Instant {
        match self.state {
            BreakerState::Closed => now,
            BreakerState::Open { .. } => self.next_probe.max(now),
        }
    }

    /// Returns true if a call that was started then is evidence about the time since the provider
    /// was found impaired. An earlier one is no probe, with any result.
    pub fn heeds(&self, started: Instant) -> bool {
        self.impaired_at.is_none_or(|at| started > at)
    }

    /// Takes into account that a call showed that the provider works.
    pub fn succeed(&mut self) {
        match self.state {
            BreakerState::Closed => self.window = self.window.saturating_add(1),
            BreakerState::Open { .. } => {
                self.state = BreakerState::Closed;
                self.probes_failed = 0;
                self.window = 2;
            }
        }
    }

    /// Takes into account that a call showed that the provider does not accept messages.
    pub fn fail(&mut self, cause: Cause, message: &str, now: Instant) {
        match self.state {
            BreakerState::Closed => self.impair(cause, message, now),
            BreakerState::Open { .. } => {
                self.state = BreakerState::Open { cause, message: message.to_owned() };
                self.probes_failed = self.probes_failed.saturating_add(1);
                self.next_probe = now + self.probe_delay();
                self.failed_at = Some(now);
            }
        }
    }

    /// Returns true if the provider has returned for so many calls that the rest may follow.
    pub fn has_returned(&self) -> bool {
        self.is_up() && self.window >= RETURNED
    }

    /// The provider does not accept messages: by the calls, or by its answer to a question without a
    /// message.
    pub fn impair(&mut self, cause: Cause, message: &str, now: Instant) {
        self.state = BreakerState::Open { cause, message: message.to_owned() };
        self.impaired_at = Some(now);
        self.failed_at = Some(now);
        self.calls = InFlight::default();
        self.probes_failed = 1;
        self.next_probe = now + self.probe_delay();
    }

    fn probe_delay(&self) -> Duration {
        self.backoff.ceiling(self.probes_failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::message::FailureCode;

    fn breaker(now: Instant) -> CircuitBreaker {
        let backoff = Backoff::try_new(Duration::from_secs(1), Duration::from_mins(5)).unwrap();
        CircuitBreaker::new(backoff, now)
    }

    #[test]
    fn a_cause_has_the_word_of_metrics_and_says_what_to_do() {
        let codes = Cause::ALL.map(Cause::code);
        let words =
            ["unreachable", "quota_exhausted", "account_paused", "setup_fault", "clock_wrong"];
        assert_eq!(codes, words);
        let meanings = Cause::ALL.map(|cause| cause.explained().0);
        let distinct: std::collections::BTreeSet<_> = meanings.into_iter().collect();
        assert_eq!(distinct.len(), Cause::ALL.len());
        assert!(Cause::ALL.iter().all(|cause| cause.explained().1.contains(' ')));
    }

    #[test]
    fn waiting_messages_show_the_cause_and_nothing_that_the_provider_said() {
        let said = "arn:aws:iam::123456789012:user/mailer may not send for other.example";
        for (cause, code) in [
            (Cause::Unreachable, None),
            (Cause::QuotaExhausted, Some(FailureCode::ProviderQuotaExhausted)),
            (Cause::AccountPaused, Some(FailureCode::SendingPaused)),
            (Cause::SetupFault, Some(FailureCode::SendingPaused)),
        ] {
            let obstacle = BreakerState::Open { cause, message: said.to_owned() }.obstacle();
            assert_eq!(obstacle.as_ref().map(|failure| failure.code), code);
            let shown = obstacle.map(|failure| failure.message).unwrap_or_default();
            for part in ["arn", "123456789012", "other.example", "may not send for"] {
                assert!(!shown.contains(part), "{cause:?}: {shown}");
            }
        }
    }

    #[test]
    fn a_provider_that_is_down_is_probed_by_one_call_at_a_time_and_ever_more_rarely() {
        let mut now = Instant::now();
        let start = now;
        let mut breaker = breaker(now);
        breaker.fail(Cause::Unreachable, "down", now);
        let mut probes = 0;
        while now - start < Duration::from_hours(3) {
            match breaker.permit(now) {
                Permit::At(later) => now = later,
                Permit::Now => {
                    let probe = breaker.call();
                    assert_eq!(breaker.permit(now), Permit::AfterACall);
                    drop(probe);
                    breaker.fail(Cause::Unreachable, "down", now);
                    probes += 1;
                }
                Permit::AfterACall => panic!("no call is under way"),
            }
        }
        assert!((36..=46).contains(&probes), "{probes} probes in three hours");
    }

    #[test]
    fn a_provider_that_returns_is_opened_up_gradually() {
        let now = Instant::now();
        let mut breaker = breaker(now);
        assert_eq!(breaker.open_since(), None);
        breaker.fail(Cause::AccountPaused, "no", now);
        assert!(matches!(breaker.state(), BreakerState::Open { .. }));
        assert_eq!(breaker.open_since(), Some(now));
        breaker.succeed();
        assert_eq!(breaker.state(), &BreakerState::Closed);
        assert_eq!(breaker.open_since(), None);
        let _first = breaker.call();
        assert_eq!(breaker.permit(now), Permit::Now);
        let _second = breaker.call();
        assert_eq!(breaker.permit(now), Permit::AfterACall);
        breaker.succeed();
        assert_eq!(breaker.permit(now), Permit::Now);
    }

    #[test]
    fn calls_from_before_the_outage_hold_up_neither_the_probe_nor_the_return() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut breaker = breaker(now);
        let _unanswered: Vec<InFlightGuard> = (0..10).map(|_| breaker.call()).collect();
        breaker.fail(Cause::AccountPaused, "no", now);
        assert!(!breaker.heeds(now));
        assert_eq!(breaker.permit(later), Permit::Now);
        breaker.succeed();
        assert_eq!(breaker.permit(later), Permit::Now);
    }
}
