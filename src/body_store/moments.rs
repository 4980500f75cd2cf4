//! Times in the arena, which all processes of a boot measure in the same way.
//!
//! A message ages while the machine is suspended too, but the instants of timers stand still
//! meanwhile. So a moment is the sum of both: the monotonic clock, and the time that the machine
//! has been suspended since the arena was made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Less than any suspension takes, and more than the interval between two readings of the clocks.
const NOISE: Duration = Duration::from_secs(1);

/// A time in the arena, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub(super) u64);

impl Moment {
    /// The moment that is so much later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

/// Measure of the times in an arena.
#[derive(Debug, Clone, Copy)]
pub struct Moments {
    base: Instant,
    base_nanos: u64,
    /// For how long the machine had been suspended when the arena was made, in nanoseconds.
    origin: u64,
}

impl Moments {
    /// Measure of an arena; `origin` is [`Moments::origin`] of the one that made it.
    pub(super) fn new(origin: Option<u64>) -> Self {
        Self {
            base_nanos: nanos(time_of(ClockId::Monotonic)),
            base: Instant::now(),
            origin: origin.unwrap_or_else(|| nanos(suspended())),
        }
    }

    pub(super) fn origin(self) -> u64 {
        self.origin
    }

    /// The moment of an instant, which is not long ago or far ahead.
    pub fn moment(self, time: Instant) -> Moment {
        let after = nanos(time.saturating_duration_since(self.base));
        let before = nanos(self.base.saturating_duration_since(time));
        let suspended = nanos(suspended()).saturating_sub(self.origin);
        Moment((self.base_nanos + suspended).saturating_add(after).saturating_sub(before))
    }

    /// The instant that lies as far from now as the moment does.
    pub fn instant(self, Moment(moment): Moment) -> Instant {
        let base = self.base_nanos + nanos(suspended()).saturating_sub(self.origin);
        let after = Duration::from_nanos(moment.saturating_sub(base));
        let before = Duration::from_nanos(base.saturating_sub(moment));
        let later = self.base.checked_add(after).unwrap_or(self.base);
        later.checked_sub(before).unwrap_or(later)
    }
}

/// For how long this machine has been suspended since its boot. Two calls between which it was not
/// say the same.
fn suspended() -> Duration {
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let known = Duration::from_nanos(KNOWN.load(Ordering::Relaxed));
    let running = time_of(ClockId::Monotonic);
    let mut suspended = time_of(ClockId::Boottime).saturating_sub(running);
    if suspended.abs_diff(known) < NOISE {
        suspended = known;
    } else {
        KNOWN.store(nanos(suspended), Ordering::Relaxed);
    }
    #[cfg(any(test, feature = "testing"))]
    let suspended = suspended + suspension::SO_FAR.get();
    suspended
}

fn time_of(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("a time since boot is not before it")
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Suspensions as tests want them.
#[cfg(any(test, feature = "testing"))]
pub mod suspension {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        pub(super) static SO_FAR: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Lets this thread's machine have been suspended for this long.
    pub fn add(span: Duration) {
        SO_FAR.set(SO_FAR.get() + span);
    }
}
