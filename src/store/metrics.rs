//! Metrics of the store's own work since it was opened.

use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::Purged;
use crate::locks::{Mutex, locked};
use crate::organisation_counts::{Increment, OrganisationCounters};
use pillarbox_domain::id::OrganisationId;

/// Bounds of the number of operations in a batch.
const BATCH_BOUNDS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
/// Bounds of a commit's duration, in seconds.
const COMMIT_BOUNDS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// A commit that takes longer is slow.
pub const SLOW_COMMIT: Duration = Duration::from_millis(500);

/// Metrics of the store. Only the writer's thread adds to them, once a commit.
#[derive(Debug)]
pub struct StoreMetrics {
    batch_operations: Histogram,
    commit_duration: Histogram,
    checkpoint_duration: Histogram,
    failed_commits: Counter,
    purged_messages: Counter,
    purged_keys: Counter,
    /// Number of messages that failed with their bodies, which the end of the service reports.
    bodies_lost: Counter,
    /// Number of commits, and of slow commits, because a histogram cannot be read.
    commits: Counter,
    slow_commits: Counter,
    committed_at: Mutex<Option<Instant>>,
    failed_at: Mutex<Option<Instant>>,
    /// Counts of the organisations' messages.
    pub organisations: OrganisationCounters,
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            batch_operations: Histogram::new(BATCH_BOUNDS),
            commit_duration: Histogram::new(COMMIT_BOUNDS),
            checkpoint_duration: Histogram::new(COMMIT_BOUNDS),
            failed_commits: Counter::default(),
            purged_messages: Counter::default(),
            purged_keys: Counter::default(),
            bodies_lost: Counter::default(),
            commits: Counter::default(),
            slow_commits: Counter::default(),
            committed_at: Mutex::default(),
            failed_at: Mutex::default(),
            organisations: OrganisationCounters::default(),
        }
    }
}

impl StoreMetrics {
    /// Adds these metrics to a registry, except those of the organisations, which have names and a
    /// limit.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "pillarbox_store_commit_duration_seconds",
            "Duration of commits (with the work of their operations) and of checkpoints",
            self.commit_duration.clone(),
        );
        registry.register(
            "pillarbox_store_commit_operations",
            "Operations in each commit",
            self.batch_operations.clone(),
        );
        registry.register(
            "pillarbox_store_checkpoint_duration_seconds",
            "Duration of checkpoints, which move the content of the journal into the data file",
            self.checkpoint_duration.clone(),
        );
        registry.register(
            "pillarbox_store_failed_commits",
            "Failed commits",
            self.failed_commits.clone(),
        );
        registry.register(
            "pillarbox_purged_messages",
            "Records deleted at the end of their retention",
            self.purged_messages.clone(),
        );
        registry.register(
            "pillarbox_purged_idempotency_keys",
            "Idempotency keys deleted at the end of their window",
            self.purged_keys.clone(),
        );
    }

    /// Number of commits since the store was opened.
    pub fn commits(&self) -> u64 {
        self.commits.get()
    }

    /// Returns true if there was a commit in the time up to now.
    pub(super) fn has_committed_within(&self, time: Duration) -> bool {
        is_within(&self.committed_at, time)
    }

    /// Commits and checkpoints that took longer than [`SLOW_COMMIT`].
    pub fn slow_commits(&self) -> u64 {
        self.slow_commits.get()
    }

    /// Number of messages that this process recorded as failed because the process that held their
    /// bodies ended.
    pub fn bodies_lost(&self) -> u64 {
        self.bodies_lost.get()
    }

    /// Records that a batch of `operations`, with these increments, became durable after this time.
    pub(super) fn committed(
        &self,
        operations: usize,
        took: Duration,
        increments: Vec<(OrganisationId, Increment)>,
    ) {
        #[expect(clippy::cast_precision_loss, reason = "a batch has few operations")]
        self.batch_operations.observe(operations as f64);
        self.commit_duration.observe(took.as_secs_f64());
        self.commits.inc();
        *locked(&self.committed_at) = Some(Instant::now());
        self.slow_commits.inc_by(u64::from(took > SLOW_COMMIT));
        let lost = increments.iter().filter(|(_, increment)| *increment == Increment::BodyLost);
        self.bodies_lost.inc_by(lost.count() as u64);
        self.organisations.add(increments);
    }

    /// Records that a checkpoint became durable after this time. Batches wait for it as for a
    /// commit.
    pub(super) fn checkpointed(&self, took: Duration) {
        self.checkpoint_duration.observe(took.as_secs_f64());
        self.commit_duration.observe(took.as_secs_f64());
        self.slow_commits.inc_by(u64::from(took > SLOW_COMMIT));
    }

    pub(super) fn commit_failed(&self) {
        self.failed_commits.inc();
        *locked(&self.failed_at) = Some(Instant::now());
    }

    /// Returns true if a commit has failed in the time up to now.
    pub fn has_failed_within(&self, time: Duration) -> bool {
        is_within(&self.failed_at, time)
    }

    pub(super) fn purged(&self, purged: Purged) {
        self.purged_messages.inc_by(purged.messages as u64);
        self.purged_keys.inc_by(purged.idempotency_keys as u64);
    }
}

fn is_within(at: &Mutex<Option<Instant>>, time: Duration) -> bool {
    locked(at).is_some_and(|at| at.elapsed() < time)
}
