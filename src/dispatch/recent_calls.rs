//! Calls of the last minutes: how many there were, and how many were slow or got no answer. The
//! one definition of a slow provider, for the page, `status`, readiness and the alarm.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::attempt::{Outcome, ProblemKind, ProviderAnswer};

/// How far back calls count.
pub const WINDOW: Duration = Duration::from_mins(5);
/// Calls are counted together for so long, so the window is longer by this at most.
const STEP: Duration = Duration::from_secs(10);
/// A call that takes longer is slow. Those that got no answer until their time-out are slow too.
pub const SLOW: Duration = Duration::from_millis(2_500);
/// Fewer slow calls than this are no trend.
pub const FEW: u64 = 3;
/// The most names of unexpected answers that are kept.
const MAX_NAMES: usize = 20;
/// The provider is slow if more than one call in so many is.
pub const ONE_IN: u64 = 20;

/// What the calls of the last five minutes came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentCalls {
    /// Calls that ended.
    pub calls: u64,
    /// Of these, the ones that took over 2.5 seconds.
    pub slow: u64,
    /// Of these, the ones that got no answer, so that it is not known whether the provider accepted
    /// the message.
    pub unanswered: u64,
    /// Of these, the ones that got an error after which that is not known either.
    pub unclear: u64,
}

impl RecentCalls {
    /// Whether the provider is slow.
    pub fn are_slow(&self) -> bool {
        self.slow >= FEW && self.slow * ONE_IN > self.calls
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.slow += other.slow;
        self.unanswered += other.unanswered;
        self.unclear += other.unclear;
    }
}

/// Counts of the last five minutes, step by step, and answers that nothing is known of.
#[derive(Debug, Default)]
pub(super) struct Recent {
    steps: Mutex<VecDeque<(Instant, RecentCalls)>>,
    /// Names, and when each came last.
    unexpected: Mutex<BTreeMap<String, Instant>>,
}

impl Recent {
    /// Counts a call that ended at `now`.
    pub(super) fn note(&self, outcome: &Outcome, took: Duration, now: Instant) {
        let mut call = RecentCalls { calls: 1, slow: u64::from(took > SLOW), ..Default::default() };
        if let Outcome::NotSent(problem) = outcome {
            if problem.kind == ProblemKind::Unknown {
                let is_answered = problem.answer != ProviderAnswer::Missing;
                call.unclear = u64::from(is_answered);
                call.unanswered = u64::from(!is_answered);
            }
            if let Some(name) = problem.unexpected_name() {
                self.note_unexpected(name, now);
            }
        }
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        match steps.back_mut() {
            Some((begun, counts)) if now < *begun + STEP => counts.add(&call),
            _ => steps.push_back((now, call)),
        }
        forget(&mut steps, now);
    }

    pub(super) fn read(&self, now: Instant) -> RecentCalls {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut steps, now);
        let mut all = RecentCalls::default();
        steps.iter().for_each(|(_, counts)| all.add(counts));
        all
    }

    /// Names of the last minutes' answers that nothing is known of.
    pub(super) fn unexpected(&self, now: Instant) -> Vec<String> {
        let mut names = self.unexpected.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|_, last| *last + WINDOW > now);
        names.keys().cloned().collect()
    }

    fn note_unexpected(&self, name: String, now: Instant) {
        let mut names = self.unexpected.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_NAMES
            && !names.contains_key(&name)
            && let Some(oldest) = names.iter().min_by_key(|(_, last)| **last)
        {
            let oldest = oldest.0.clone();
            names.remove(&oldest);
        }
        names.insert(name, now);
    }
}

/// Drops the steps that ended before the window.
fn forget(steps: &mut VecDeque<(Instant, RecentCalls)>, now: Instant) {
    while steps.front().is_some_and(|(begun, _)| *begun + STEP + WINDOW <= now) {
        steps.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::attempt::Problem;

    const LATE: Duration = Duration::from_secs(3);

    fn sent() -> Outcome {
        Outcome::Sent { ses_message_id: "1".to_owned() }
    }

    fn lost() -> Outcome {
        let (kind, message) = (ProblemKind::Unknown, "lost".to_owned());
        let answer = ProviderAnswer::Missing;
        Outcome::NotSent(Problem { kind, provider_code: None, message, retry_after: None, answer })
    }

    #[test]
    fn a_few_slow_calls_or_few_among_many_make_no_slow_provider() {
        let slow = |slow, calls| RecentCalls { calls, slow, ..RecentCalls::default() }.are_slow();
        assert!(!slow(2, 2));
        assert!(slow(3, 3));
        assert!(!slow(5, 100));
        assert!(slow(6, 100));
    }

    #[test]
    fn calls_count_for_five_minutes() {
        let recent = Recent::default();
        let start = Instant::now();
        recent.note(&lost(), LATE, start);
        for second in 0..600 {
            recent.note(&sent(), SLOW, start + Duration::from_secs(second));
        }
        let read = |seconds| recent.read(start + Duration::from_secs(seconds));
        let now = read(599);
        assert!((300..=310).contains(&now.calls), "{now:?}");
        assert_eq!((now.slow, now.unanswered), (0, 0));
        assert_eq!(read(2_000), RecentCalls::default());
        recent.note(&lost(), LATE, start + Duration::from_secs(2_000));
        assert_eq!(read(2_299), RecentCalls { calls: 1, slow: 1, unanswered: 1, unclear: 0 });
    }
}
