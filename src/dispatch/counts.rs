//! What the dispatcher counts of its calls since the start.

use std::time::Duration;

use crate::domain::attempt::{Outcome, ProblemKind};
use crate::metrics::CounterByName;
use crate::metrics::histogram::Histogram;

/// What calls can come to, by name.
const OUTCOMES: [&str; 10] = [
    "sent",
    "throttled",
    "quota_exhausted",
    "account_paused",
    "setup_fault",
    "domain_fault",
    "rejected",
    "unavailable",
    "unknown",
    "crashed",
];
/// Microseconds that a call takes, from five milliseconds to ten seconds.
const CALL_BOUNDS: &[u64] = &[
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];

/// The dispatcher's counts.
#[derive(Debug)]
pub struct Counts {
    /// Calls by what they came to.
    pub outcomes: CounterByName<{ OUTCOMES.len() }>,
    /// How long calls took, in microseconds, whatever they came to.
    pub call_micros: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        Self { outcomes: CounterByName::new(OUTCOMES), call_micros: Histogram::new(CALL_BOUNDS) }
    }
}

impl Counts {
    /// Calls by which the provider accepted a message.
    pub(super) fn sent(&self) -> u64 {
        self.outcomes.of("sent")
    }

    /// Counts a call. One that never started is none.
    pub(super) fn call(&self, outcome: &Outcome, took: Duration) {
        let kind = match outcome {
            Outcome::Sent { .. } => None,
            Outcome::NotSent(problem) => Some(problem.kind),
            Outcome::NotCalled(_) => return,
        };
        self.outcomes.one(kind.map_or("sent", name));
        self.call_micros.note_micros(took);
    }
}

fn name(kind: ProblemKind) -> &'static str {
    match kind {
        ProblemKind::Throttled => "throttled",
        ProblemKind::QuotaExhausted => "quota_exhausted",
        ProblemKind::AccountPaused => "account_paused",
        ProblemKind::SetupFault => "setup_fault",
        ProblemKind::DomainFault => "domain_fault",
        ProblemKind::Rejected => "rejected",
        ProblemKind::Unavailable => "unavailable",
        ProblemKind::Unknown => "unknown",
        ProblemKind::Crashed => "crashed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::attempt::Problem;

    #[test]
    fn every_outcome_has_its_count() {
        let counts = Counts::default();
        counts.call(&Outcome::Sent { ses_message_id: "1".to_owned() }, Duration::from_millis(1));
        let kinds = [
            ProblemKind::Throttled,
            ProblemKind::QuotaExhausted,
            ProblemKind::AccountPaused,
            ProblemKind::SetupFault,
            ProblemKind::DomainFault,
            ProblemKind::Rejected,
            ProblemKind::Unavailable,
            ProblemKind::Unknown,
            ProblemKind::Crashed,
        ];
        for kind in kinds {
            let message = "no".to_owned();
            let problem = Problem { kind, provider_code: None, message, retry_after: None };
            counts.call(&Outcome::NotSent(problem.clone()), Duration::from_mins(1));
            counts.call(&Outcome::NotCalled(problem), Duration::from_mins(1));
        }
        assert!(counts.outcomes.get().all(|(_, count)| count == 1));
        let reading = counts.call_micros.read();
        assert_eq!((reading.count(), reading.above), (10, 9));
    }
}
