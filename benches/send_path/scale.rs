//! Amount of work of the bench: a short run takes less of everything.

use std::time::Duration;

/// Amount of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Rounds of each comparison; of their figures, the median counts.
    pub(crate) rounds: usize,
    /// Duration of a load.
    pub(crate) load_time: Duration,
    /// Duration of the timing of single commits.
    pub(crate) commit_time: Duration,
    /// Records in the largest store.
    pub(crate) records: usize,
    /// Pending messages that are weighed.
    pub(crate) pending: usize,
}
