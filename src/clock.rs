//! The wall clock: the one place that asks the system for the time, and its stand-in for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::domain::time::Timestamp;

/// A source of wall-clock time. Cheap to clone; clones of a manual clock move together.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's clock.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still until it is set.
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(start.unix_millis()))))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::from(SystemTime::now()),
            Source::Manual(millis) => Timestamp::from_unix_millis(millis.load(Ordering::SeqCst)),
        }
    }

    /// Sets a manual clock. The system's clock is not ours to set: that call does nothing.
    pub fn set(&self, now: Timestamp) {
        match &self.0 {
            Source::System => {}
            Source::Manual(millis) => millis.store(now.unix_millis(), Ordering::SeqCst),
        }
    }
}
