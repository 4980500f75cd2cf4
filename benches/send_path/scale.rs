//! How much the bench measures: a short run takes less of everything.

use std::time::Duration;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Rounds of each comparison; of their figures, the median counts.
    pub(crate) rounds: usize,
    /// How long a load lasts.
    pub(crate) load_time: Duration,
    /// How long single commits are timed.
    pub(crate) commit_time: Duration,
    /// Records in the largest store.
    pub(crate) records: usize,
    /// Pending messages that are weighed.
    pub(crate) pending: usize,
}
