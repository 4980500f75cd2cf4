//! Times at which messages of the queue are due.

use std::time::Duration;

use tokio::time::Instant;

/// Time at which a message is due: at once, or at a time, in nanoseconds since the queue was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due(u64);

impl Due {
    pub(super) const AT_ONCE: Self = Self(0);
}

/// The measure of a queue's times: they count from when it was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct DueTimes(Instant);

impl Default for DueTimes {
    /// Times from now on.
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl DueTimes {
    /// A message is due at `time`.
    pub(super) fn at(self, time: Instant) -> Due {
        let nanos = time.saturating_duration_since(self.0).as_nanos();
        Due(u64::try_from(nanos).expect("no process runs for 584 years").max(Due::AT_ONCE.0 + 1))
    }

    /// The time at which a message is due.
    pub(super) fn instant(self, due: Due) -> Instant {
        self.0 + Duration::from_nanos(due.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_never_taken_for_at_once() {
        let times = DueTimes::default();
        let start = times.instant(Due::AT_ONCE);
        assert!(times.at(start) > Due::AT_ONCE);
        let later = start + Duration::from_secs(7);
        assert_eq!(times.instant(times.at(later)), later);
    }
}
