//! When messages of the queue are due.

use std::time::Duration;

use tokio::time::Instant;

/// When a message is due: a time, and whether the message is new. At the same time a new one comes
/// before a retry.
///
/// Twice the nanoseconds since the queue was made, and one more for a retry: a third of what an
/// `Instant` and a kind take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due(u64);

impl Due {
    /// The one after this.
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
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

/// A time, before or after a queue was made: half of what an `Instant` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(i64);

impl Moment {
    /// The moment that is so much later.
    pub(super) fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)))
    }
}

impl DueTimes {
    pub(super) fn moment(self, time: Instant) -> Moment {
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        let after = nanos(time.saturating_duration_since(self.0));
        Moment(after - nanos(self.0.saturating_duration_since(time)))
    }

    pub(super) fn of_moment(self, moment: Moment) -> Instant {
        let span = Duration::from_nanos(moment.0.unsigned_abs());
        let time = if moment.0 < 0 { self.0.checked_sub(span) } else { self.0.checked_add(span) };
        time.unwrap_or(self.0)
    }

    /// A new message that was accepted at `time` is due then.
    pub(super) fn of_new(self, time: Instant) -> Due {
        let nanos = time.saturating_duration_since(self.0).as_nanos();
        Due(u64::try_from(nanos * 2).expect("no process runs for 292 years"))
    }

    /// A retry is due at `time`, behind all that is new by then. At `time` nothing that is due has
    /// a later place.
    pub(super) fn of_retry(self, time: Instant) -> Due {
        self.of_new(time).next()
    }

    /// The time at which a message is due.
    pub(super) fn instant(self, due: Due) -> Instant {
        self.0 + Duration::from_nanos(due.0 / 2)
    }
}
