//! Counts what is under way by what each of it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts marks, and tells when one is gone.
#[derive(Debug, Default)]
pub(super) struct Tally(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    marks: AtomicUsize,
    lowered: Notify,
}

/// Counted until it is dropped: whatever ends its holder, a panic included, takes it off.
#[derive(Debug)]
pub(super) struct Mark(Arc<Inner>);

impl Tally {
    pub(super) fn mark(&self) -> Mark {
        self.0.marks.fetch_add(1, Ordering::AcqRel);
        Mark(Arc::clone(&self.0))
    }

    pub(super) fn count(&self) -> usize {
        self.0.marks.load(Ordering::Acquire)
    }

    /// Waits until a mark has gone since the last wait.
    pub(super) async fn lowered(&self) {
        self.0.lowered.notified().await;
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.marks.fetch_sub(1, Ordering::AcqRel);
        self.0.lowered.notify_one();
    }
}
