//! Metrics of the calls to the provider.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use pillarbox_domain::attempt::{Outcome, ProblemKind};

/// Bounds of a call's duration, in seconds.
const CALL_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Outcome of a call by which the provider accepted a message.
const SENT: &str = "sent";

/// Metrics of calls since the start.
#[derive(Debug)]
pub struct SendingMetrics {
    attempts: Family<AttemptLabels, Counter>,
    duration: Histogram,
    /// Calls of test organisations, which a simulator answered.
    test_calls: Counter,
    /// The sum of the durations in microseconds: a histogram cannot be read.
    call_micros: Counter,
}

/// Labels of a finished call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    outcome: &'static str,
}

impl Default for SendingMetrics {
    fn default() -> Self {
        let attempts = Family::default();
        // A series that is there from the start shows its first call as an increase.
        for outcome in ProblemKind::ALL.iter().map(|kind| kind.as_str()).chain([SENT]) {
            drop(attempts.get_or_create(&AttemptLabels { outcome }));
        }
        let duration = Histogram::new(CALL_BOUNDS);
        let (test_calls, call_micros) = (Counter::default(), Counter::default());
        Self { attempts, duration, test_calls, call_micros }
    }
}

impl SendingMetrics {
    /// Adds these metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "pillarbox_attempts",
            "Finished calls to the provider",
            self.attempts.clone(),
        );
        registry.register(
            "pillarbox_attempt_duration_seconds",
            "Duration of calls to the provider",
            self.duration.clone(),
        );
        registry.register(
            "pillarbox_test_calls",
            "Calls of test organisations, answered by the simulator inside the process",
            self.test_calls.clone(),
        );
    }

    /// Calls by which the provider accepted a message.
    pub fn sent(&self) -> u64 {
        self.with_outcome(SENT)
    }

    /// Calls that ended with this problem.
    pub fn not_sent(&self, kind: ProblemKind) -> u64 {
        self.with_outcome(kind.as_str())
    }

    /// Calls that have finished, with any result.
    pub fn calls(&self) -> u64 {
        self.sent() + ProblemKind::ALL.map(|kind| self.not_sent(kind)).iter().sum::<u64>()
    }

    /// The sum of the calls' durations, in microseconds.
    pub fn call_micros(&self) -> u64 {
        self.call_micros.get()
    }

    /// Counts a call of a test organisation.
    pub(super) fn test_call(&self) {
        self.test_calls.inc();
    }

    /// Counts a call to the provider. One that never started is none.
    pub(super) fn call(&self, outcome: &Outcome, took: Duration) {
        let outcome = match outcome {
            Outcome::Sent { .. } => SENT,
            Outcome::NotSent(problem) => problem.kind.as_str(),
            Outcome::NotCalled(_) => return,
        };
        self.attempts.get_or_create(&AttemptLabels { outcome }).inc();
        self.duration.observe(took.as_secs_f64());
        self.call_micros.inc_by(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    fn with_outcome(&self, outcome: &'static str) -> u64 {
        self.attempts.get(&AttemptLabels { outcome }).map_or(0, |counter| counter.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::attempt::{Problem, ProviderAnswer};

    #[test]
    fn every_outcome_has_its_count() {
        let metrics = SendingMetrics::default();
        metrics.call(&Outcome::Sent { ses_message_id: "1".to_owned() }, Duration::from_millis(1));
        for kind in ProblemKind::ALL {
            let message = "no".to_owned();
            let answer = ProviderAnswer::Missing;
            let problem = Problem { kind, provider_code: None, message, retry_after: None, answer };
            metrics.call(&Outcome::NotSent(problem.clone()), Duration::from_secs(1));
            metrics.call(&Outcome::NotCalled(problem), Duration::from_secs(1));
        }
        assert_eq!(metrics.sent(), 1);
        assert!(ProblemKind::ALL.into_iter().all(|kind| metrics.not_sent(kind) == 1));
        assert_eq!((metrics.calls(), metrics.call_micros()), (11, 10_001_000));
    }
}
