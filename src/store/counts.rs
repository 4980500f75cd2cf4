//! What the store counts of its own work since it was opened.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::domain::id::OrganisationId;
use crate::metrics::Counter;
use crate::metrics::histogram::Histogram;
use crate::metrics::organisations::{Increment, OrganisationCounters};
use crate::store::Purged;

/// Operations in a batch.
const BATCH_BOUNDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
/// Microseconds that a commit takes, from half a millisecond to five seconds.
const COMMIT_BOUNDS: &[u64] = &[
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000,
];

/// The store's counts. The writer's thread alone adds to them, once a commit.
#[derive(Debug)]
pub struct Counts {
    /// How many operations shared each commit.
    pub batch_operations: Histogram,
    /// How long each commit took, in microseconds, with the work of its operations.
    pub commit_micros: Histogram,
    /// Commits that failed.
    pub failed_commits: Counter,
    /// When the last of them failed.
    failed_at: Mutex<Option<Instant>>,
    /// Message records purged.
    pub purged_messages: Counter,
    /// Idempotency keys purged.
    pub purged_keys: Counter,
    /// What became of the organisations' messages.
    pub organisations: OrganisationCounters,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            batch_operations: Histogram::new(BATCH_BOUNDS),
            commit_micros: Histogram::new(COMMIT_BOUNDS),
            failed_commits: Counter::default(),
            failed_at: Mutex::default(),
            purged_messages: Counter::default(),
            purged_keys: Counter::default(),
            organisations: OrganisationCounters::default(),
        }
    }
}

impl Counts {
    /// A batch of so many operations, with these increments, became durable after so long.
    pub(in crate::store) fn committed(
        &self,
        operations: usize,
        took: Duration,
        increments: Vec<(OrganisationId, Increment)>,
    ) {
        self.batch_operations.note(operations as u64);
        self.commit_micros.note_micros(took);
        if !increments.is_empty() {
            self.organisations.add(increments);
        }
    }

    pub(in crate::store) fn commit_failed(&self) {
        self.failed_commits.one();
        *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a commit has failed in the time up to now.
    pub fn has_failed_within(&self, time: Duration) -> bool {
        let failed_at = *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        failed_at.is_some_and(|at| at.elapsed() < time)
    }

    pub(in crate::store) fn purged(&self, purged: Purged) {
        self.purged_messages.add(purged.messages as u64);
        self.purged_keys.add(purged.idempotency_keys as u64);
    }
}
