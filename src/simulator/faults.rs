//! Faults to inject: which call goes wrong and how, decided from a seed.
//!
//! The n-th decision depends on the seed and n alone, so a run can be repeated. Must not know
//! HTTP connections or how a fault is carried out; it only says which one is due.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::answer::Refusal;

/// How long a slow answer takes unless told otherwise: beyond the usual client time-out of 10 s.
const DEFAULT_SLOW_FOR: Duration = Duration::from_secs(15);

/// One way in which a call goes wrong. In JSON the names are in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing goes wrong; for scripts.
    Pass,
    /// The host is gone: every AWS call, whatever the scope, is reset as it starts and is not
    /// counted. The simulator's own API stays, or the host could not come back.
    Down,
    /// The connection is reset before the call is handled.
    ResetBefore,
    /// The call is handled, then the connection is reset: the answer is lost.
    ResetAfter,
    /// The call is handled at once and answered late, by [`Faults::slow_for`].
    Slow,
    /// The call is handled, the answer breaks off half way.
    Truncated,
    /// The call is handled, then answered with 500.
    InternalErrorAfter,
    /// 500, not handled.
    InternalError,
    /// 503, not handled.
    Unavailable,
    /// 429 `TooManyRequestsException`.
    Throttled,
    /// 400 `MessageRejected`.
    Rejected,
    /// 400 `LimitExceededException`, the daily quota.
    QuotaExhausted,
    /// 400 `SendingPausedException`.
    SendingPaused,
    /// 400 `AccountSuspendedException`.
    AccountSuspended,
    /// 400 `MailFromDomainNotVerifiedException`.
    MailFromDomainNotVerified,
    /// 403 `AccessDeniedException`.
    AccessDenied,
    /// 403 `ExpiredTokenException`.
    ExpiredToken,
}

impl Fault {
    /// The answer, for a fault that refuses the call instead of spoiling its connection.
    pub(super) fn refusal(self) -> Option<Refusal> {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        Some(match self {
            Self::Pass
            | Self::Down
            | Self::ResetBefore
            | Self::ResetAfter
            | Self::Slow
            | Self::Truncated
            | Self::InternalErrorAfter => return None,
            Self::InternalError => internal_error(),
            Self::Unavailable => Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailableException",
                "Service is unavailable.",
            ),
            Self::Throttled => Refusal::too_many_requests("Maximum sending rate exceeded."),
            Self::Rejected => Refusal::rejected("Email content was rejected by the simulator."),
            Self::QuotaExhausted => Refusal::limit_exceeded("Daily message quota exceeded."),
            Self::SendingPaused => {
                Refusal::new(BAD, "SendingPausedException", "Sending is paused for this account.")
            }
            Self::AccountSuspended => Refusal::new(
                BAD,
                "AccountSuspendedException",
                "The account's ability to send email has been permanently restricted.",
            ),
            Self::MailFromDomainNotVerified => Refusal::new(
                BAD,
                "MailFromDomainNotVerifiedException",
                "The custom MAIL FROM domain is not verified.",
            ),
            Self::AccessDenied => Refusal::forbidden(
                "AccessDeniedException",
                "User: arn:aws:iam::123456789012:user/mailer is not authorized to perform: \
                 ses:SendEmail on resource: \
                 arn:aws:ses:eu-west-1:123456789012:identity/alpha.example because no \
                 identity-based policy allows the ses:SendEmail action",
            ),
            Self::ExpiredToken => Refusal::forbidden(
                "ExpiredTokenException",
                "The security token included in the request is expired",
            ),
        })
    }
}

pub(super) fn internal_error() -> Refusal {
    Refusal::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "InternalServiceErrorException",
        "The request processing has failed because of an unknown error.",
    )
}

/// Which calls faults may hit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultScope {
    /// `SendEmail` alone, so that other calls do not shift the sequence.
    #[default]
    Sends,
    /// Every AWS call. Faults that only SES knows leave SQS's calls alone.
    AllCalls,
    /// The calls of SQS alone.
    QueueCalls,
}

/// A probability is outside 0 to 1, or all of them together are over 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fault probabilities must be 0 to 1, and at most 1 together")]
pub struct NotAProbability;

/// What goes wrong from now on. The default is nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    always: Option<Fault>,
    chances: BTreeMap<Fault, f64>,
    slow_for: Duration,
    scope: FaultScope,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            always: None,
            chances: BTreeMap::new(),
            slow_for: DEFAULT_SLOW_FOR,
            scope: FaultScope::default(),
        }
    }
}

impl Faults {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self::default()
    }

    /// Every call goes wrong in one way.
    pub fn always(fault: Fault) -> Self {
        Self { always: Some(fault), ..Self::default() }
    }

    /// Adds a fault with its probability per call.
    pub fn with_chance(mut self, fault: Fault, probability: f64) -> Result<Self, NotAProbability> {
        self.chances.insert(fault, probability);
        let valid = self.chances.values().all(|p| (0.0..=1.0).contains(p))
            // Room for the rounding of sums such as ten times 0.1.
            && self.chances.values().sum::<f64>() <= 1.0 + 1e-9;
        if valid { Ok(self) } else { Err(NotAProbability) }
    }

    /// Sets how late a slow answer is.
    #[must_use]
    pub fn with_slow_for(mut self, slow_for: Duration) -> Self {
        self.slow_for = slow_for;
        self
    }

    /// Sets which calls are hit.
    #[must_use]
    pub fn with_scope(mut self, scope: FaultScope) -> Self {
        self.scope = scope;
        self
    }
}

/// What the faults make of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) fault: Fault,
    pub(super) slow_for: Duration,
}

/// The faults in their order: first the script, call by call, then what the seed draws.
#[derive(Debug)]
pub(super) struct FaultSequence {
    faults: Faults,
    script: VecDeque<Fault>,
    seed: u64,
    drawn: u64,
}

impl FaultSequence {
    pub(super) fn new(faults: Faults, seed: u64) -> Self {
        Self { faults, script: VecDeque::new(), seed, drawn: 0 }
    }

    pub(super) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub(super) fn set_script(&mut self, script: Vec<Fault>) {
        self.script = script.into();
    }

    pub(super) fn restart(&mut self, seed: u64) {
        self.seed = seed;
        self.drawn = 0;
    }

    /// What happens to the next call, which is of this kind.
    pub(super) fn next(&mut self, call: CallKind) -> Planned {
        let slow_for = self.faults.slow_for;
        let spared = match self.faults.scope {
            FaultScope::Sends => call != CallKind::Send,
            FaultScope::AllCalls => false,
            FaultScope::QueueCalls => call != CallKind::Queue,
        };
        let fault = match self.faults.always {
            // A host that is down is down for everybody.
            Some(Fault::Down) => Fault::Down,
            _ if spared => Fault::Pass,
            always => self.script.pop_front().or(always).unwrap_or_else(|| self.draw()),
        };
        Planned { fault, slow_for }
    }

    fn draw(&mut self) -> Fault {
        if self.faults.chances.is_empty() {
            return Fault::Pass;
        }
        self.drawn += 1;
        let mut point = unit_interval(nth_random(self.seed, self.drawn));
        for (fault, probability) in &self.faults.chances {
            if point < *probability {
                return *fault;
            }
            point -= probability;
        }
        Fault::Pass
    }
}

/// The kinds of calls that limits and faults tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// SES's `SendEmail`.
    Send,
    /// SES's other calls.
    Other,
    /// SQS's calls.
    Queue,
}

/// The n-th number of the splitmix64 sequence that starts at `seed`.
pub(super) fn nth_random(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The upper 53 bits as a number from 0 to below 1.
pub(super) fn unit_interval(random: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
    let numerator = (random >> 11) as f64;
    #[expect(clippy::cast_precision_loss, reason = "a power of two is exact in an f64")]
    let denominator = (1_u64 << 53) as f64;
    numerator / denominator
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(seed: u64, count: usize) -> Vec<Fault> {
        let faults = Faults::none()
            .with_chance(Fault::Throttled, 0.25)
            .and_then(|f| f.with_chance(Fault::ResetAfter, 0.25))
            .unwrap();
        let mut sequence = FaultSequence::new(faults, seed);
        (0..count).map(|_| sequence.next(CallKind::Send).fault).collect()
    }

    #[test]
    fn splitmix64_gives_its_published_numbers() {
        // Reference output of splitmix64.c for the seed 1234567.
        assert_eq!(nth_random(1_234_567, 1), 6_457_827_717_110_365_317);
        assert_eq!(nth_random(1_234_567, 2), 3_203_168_211_198_807_973);
    }

    #[test]
    fn the_seed_alone_decides_the_sequence() {
        assert_eq!(draws(7, 200), draws(7, 200));
        assert_ne!(draws(7, 200), draws(8, 200));
    }

    #[test]
    fn faults_come_as_often_as_asked() {
        let all = draws(1, 10_000);
        let passed = all.iter().filter(|f| **f == Fault::Pass).count();
        let throttled = all.iter().filter(|f| **f == Fault::Throttled).count();
        assert!((4_700..5_300).contains(&passed), "{passed} of 10,000 at 0.5");
        assert!((2_200..2_800).contains(&throttled), "{throttled} of 10,000 at 0.25");
    }

    #[test]
    fn a_script_comes_first_and_spares_other_calls() {
        let mut sequence = FaultSequence::new(Faults::always(Fault::Rejected), 0);
        sequence.set_script(vec![Fault::Pass, Fault::ResetAfter]);
        assert_eq!(sequence.next(CallKind::Other).fault, Fault::Pass);
        assert_eq!(sequence.next(CallKind::Send).fault, Fault::Pass);
        assert_eq!(sequence.next(CallKind::Send).fault, Fault::ResetAfter);
        assert_eq!(sequence.next(CallKind::Send).fault, Fault::Rejected);
        sequence.set_faults(Faults::always(Fault::Down));
        assert_eq!(sequence.next(CallKind::Other).fault, Fault::Down);
    }

    #[test]
    fn what_is_no_probability_is_refused() {
        for p in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Faults::none().with_chance(Fault::Slow, p), Err(NotAProbability));
        }
        let half = Faults::none().with_chance(Fault::Slow, 0.6).unwrap();
        assert_eq!(half.with_chance(Fault::Rejected, 0.6), Err(NotAProbability));
    }
}
