//! The wall clock: the one place that asks the system for the time, and its stand-in for tests.
//!
//! A wall clock can jump. The windows of 24 hours and 90 days are judged by the settled time,
//! which stands still from a jump of over an hour against monotonic time until the two agree
//! again or an operator confirms the new time: a wrong clock must purge nothing and expire no key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::domain::time::Timestamp;

/// How far the wall clock may move against monotonic time before it is doubted.
const LARGEST_DRIFT: Duration = Duration::from_hours(1);

/// A source of wall-clock time. Cheap to clone; clones share their state.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Source,
    agreed: Mutex<Agreement>,
}

#[derive(Debug)]
enum Source {
    System,
    Manual { wall: AtomicU64, monotonic_millis: AtomicU64, start: Instant },
}

/// The last moment at which wall clock and monotonic time agreed.
#[derive(Debug, Clone, Copy)]
struct Agreement {
    wall: Timestamp,
    monotonic: Instant,
    jump: Option<Jump>,
}

/// The wall clock jumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    /// Where it should be by monotonic time, as of the last look.
    pub expected: Timestamp,
    /// Where it is, as of the last look.
    pub wall: Timestamp,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::new(Source::System)
    }

    /// A clock that stands still until it is set or moved on.
    pub fn manual(start: Timestamp) -> Self {
        Self::new(Source::Manual {
            wall: AtomicU64::new(start.unix_millis()),
            monotonic_millis: AtomicU64::new(0),
            start: Instant::now(),
        })
    }

    fn new(source: Source) -> Self {
        let agreed = Agreement { wall: source.wall(), monotonic: source.monotonic(), jump: None };
        Self(Arc::new(Inner { source, agreed: Mutex::new(agreed) }))
    }

    /// The wall clock's time now.
    pub fn now(&self) -> Timestamp {
        self.0.source.wall()
    }

    /// The time by which windows are judged: now, unless the wall clock has jumped.
    pub fn settled(&self) -> Timestamp {
        self.look().wall
    }

    /// The jump that holds the settled time back, where there is one.
    pub fn jump(&self) -> Option<Jump> {
        self.look().jump
    }

    /// Takes the wall clock's time as right, whatever it was before: an operator's decision.
    pub fn confirm(&self) {
        let source = &self.0.source;
        *self.agreed() =
            Agreement { wall: source.wall(), monotonic: source.monotonic(), jump: None };
    }

    fn look(&self) -> Agreement {
        let (wall, monotonic) = (self.0.source.wall(), self.0.source.monotonic());
        let mut agreed = self.agreed();
        let expected = agreed.wall.plus(monotonic.saturating_duration_since(agreed.monotonic));
        let drift = wall.unix_millis().abs_diff(expected.unix_millis());
        if u128::from(drift) <= LARGEST_DRIFT.as_millis() {
            // Small corrections are taken over as they come.
            *agreed = Agreement { wall, monotonic, jump: None };
        } else {
            agreed.jump = Some(Jump { expected, wall });
        }
        *agreed
    }

    /// Moves a manual clock on, wall and monotonic time together. The system's clock is not ours
    /// to move: that call does nothing.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual { wall, monotonic_millis, .. } = &self.0.source {
            let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
            wall.fetch_add(millis, Ordering::SeqCst);
            monotonic_millis.fetch_add(millis, Ordering::SeqCst);
        }
    }

    /// Sets a manual clock's wall time alone, as someone who sets a wrong date does. The system's
    /// clock is not ours to set: that call does nothing.
    pub fn set(&self, now: Timestamp) {
        if let Source::Manual { wall, .. } = &self.0.source {
            wall.store(now.unix_millis(), Ordering::SeqCst);
        }
    }

    fn agreed(&self) -> MutexGuard<'_, Agreement> {
        self.0.agreed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    fn wall(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::from(SystemTime::now()),
            Self::Manual { wall, .. } => Timestamp::from_unix_millis(wall.load(Ordering::SeqCst)),
        }
    }

    fn monotonic(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            Self::Manual { monotonic_millis, start, .. } => {
                *start + Duration::from_millis(monotonic_millis.load(Ordering::SeqCst))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn settled_time_follows_the_clock_and_its_small_corrections() {
        let clock = Clock::manual(NOON);
        clock.advance(DAY);
        assert_eq!(clock.settled(), NOON.plus(DAY));
        clock.set(clock.now().minus(Duration::from_mins(59)));
        assert_eq!(clock.settled(), clock.now());
        assert_eq!(clock.jump(), None);
    }

    #[test]
    fn a_jump_holds_settled_time_back_until_the_clock_agrees_again() {
        let clock = Clock::manual(NOON);
        clock.set(NOON.plus(DAY));
        assert_eq!(clock.settled(), NOON);
        assert_eq!(clock.jump(), Some(Jump { expected: NOON, wall: NOON.plus(DAY) }));
        clock.advance(Duration::from_hours(2));
        assert_eq!(clock.settled(), NOON);
        clock.set(NOON.plus(Duration::from_hours(2)));
        assert_eq!(clock.settled(), NOON.plus(Duration::from_hours(2)));
        assert_eq!(clock.jump(), None);
    }

    #[test]
    fn an_operator_can_confirm_the_new_time() {
        let clock = Clock::manual(NOON);
        clock.set(NOON.minus(DAY));
        assert_eq!(clock.settled(), NOON);
        clock.confirm();
        assert_eq!(clock.settled(), NOON.minus(DAY));
    }
}
