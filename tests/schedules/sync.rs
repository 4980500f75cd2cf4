//! Takes the place of `src/runtime/sync.rs`: the scheduler chooses at each operation which thread
//! runs next, and time passes only when somebody looks at the clock.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::ops::Add;
use std::time::Duration;

pub use shuttle::future::spawn;
pub use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};

/// Time that passes from one look at the clock to the next.
const TICK: Duration = Duration::from_millis(50);

/// Threads of the scheduler.
pub mod thread {
    use std::time::Duration;

    pub use shuttle::thread::{Builder, JoinHandle, Thread, current, park, yield_now};

    /// Lets others run first.
    pub fn sleep(_: Duration) {
        yield_now();
    }

    /// Returns at once, as every wait may, so that its caller looks at the clock again.
    pub fn park_timeout(_: Duration) {
        yield_now();
    }
}

/// Lets another thread run here.
pub fn between_accesses() {
    // Not `yield_now`, after which some schedulers always choose another one.
    atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
}

/// Does the work on the caller's thread.
pub fn spawn_blocking<T>(work: impl FnOnce() -> T) -> Ready<Result<T, Infallible>> {
    ready(Ok(work()))
}

/// Instant of a clock that depends on nothing but the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// Looks at the clock.
    pub fn now() -> Self {
        thread_local! { static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) }; }
        NOW.set(NOW.get() + TICK);
        Self(NOW.get())
    }

    /// Time since this instant.
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    /// Time from an instant to this one, or zero.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0 + after)
    }
}
