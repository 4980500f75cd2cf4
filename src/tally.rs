//! Tallies: what is under way, counted by what each of it holds, and what has been, counted in
//! ways that cost the counted next to nothing. Knows nothing of who reads them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

pub mod count;
pub mod histogram;
pub mod ledger;

/// Counts marks, and tells when one is gone.
#[derive(Debug, Default)]
pub struct Tally(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    marks: AtomicUsize,
    lowered: Notify,
}

/// Counted until it is dropped: whatever ends its holder, a panic included, takes it off.
#[derive(Debug)]
pub struct Mark(Arc<Inner>);

impl Tally {
    /// Counts one more, until the mark is dropped.
    pub fn mark(&self) -> Mark {
        // Ordered against whatever flag the caller looks at next.
        self.0.marks.fetch_add(1, Ordering::SeqCst);
        Mark(Arc::clone(&self.0))
    }

    /// How many are counted.
    pub fn count(&self) -> usize {
        self.0.marks.load(Ordering::SeqCst)
    }

    /// Waits until a mark has gone since the last wait.
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

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.marks.fetch_sub(1, Ordering::SeqCst);
        self.0.lowered.notify_one();
    }
}
