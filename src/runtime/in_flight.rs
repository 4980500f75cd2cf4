//! Count of things in flight, such as calls or connections. Each holds a guard.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::sync::atomic::{AtomicUsize, Ordering};

/// Number of guards that live. Wakes those that wait if one is dropped.
#[derive(Debug, Default)]
pub struct InFlight(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    guards: AtomicUsize,
    lowered: Notify,
}

/// Guard that is counted until it is dropped. Every end of its holder drops it, a panic included.
#[derive(Debug)]
pub struct InFlightGuard(Arc<Inner>);

impl InFlight {
    /// Counts one more, until the guard is dropped.
    pub fn enter(&self) -> InFlightGuard {
        // Ordered against any flag that the caller checks next.
        self.0.guards.fetch_add(1, Ordering::SeqCst);
        InFlightGuard(Arc::clone(&self.0))
    }

    /// Number of guards that live now.
    pub fn count(&self) -> usize {
        self.0.guards.load(Ordering::SeqCst)
    }

    /// Waits until a guard has gone since the last wait.
    pub async fn lowered(&self) {
        self.0.lowered.notified().await;
    }

    /// Waits until nothing is counted.
    pub async fn cleared(&self) {
        while self.count() > 0 {
            self.lowered().await;
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.guards.fetch_sub(1, Ordering::SeqCst);
        self.0.lowered.notify_one();
    }
}
