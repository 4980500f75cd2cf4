//! The purge: removes rows that are past their window, oldest first, a bounded step at a time. Each
//! window is stated here; an engine removes the rows of the step that it gets.

use std::ops::Range;
use std::time::Duration;

use crate::{Purged, Store, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::history::Hour;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::limits::{IDEMPOTENCY_WINDOW, RECORD_RETENTION};
use pillarbox_domain::time::Timestamp;

/// Time for which an unmatched event waits for its message (contract, section 3).
const UNMATCHED_WAIT: Duration = Duration::from_hours(24);

/// Rows that one step of the purge removes, in runs of stored instants.
pub(super) struct PurgeStep {
    /// The time by which windows are judged.
    pub(super) window_now: WindowTime,
    /// Messages whose records and events are removed.
    pub(super) records: Vec<Range<MessageId>>,
    /// Entries of feeds that are removed.
    pub(super) feed: Vec<Range<FeedPosition>>,
    /// Messages whose idempotency keys are removed.
    pub(super) keys: Vec<Range<MessageId>>,
    /// Arrival times of the unmatched events that are removed.
    pub(super) unmatched: Vec<Range<Timestamp>>,
    /// Arrival times of the dead letters that are removed.
    pub(super) letters: Vec<Range<Timestamp>>,
    /// The first hour of history that stays.
    pub(super) first_hour: Hour,
    /// Largest number of rows that are removed, of each kind.
    pub(super) limit: usize,
}

impl PurgeStep {
    fn new(window_now: WindowTime, limit: usize) -> Self {
        let retained = window_now.now().minus(RECORD_RETENTION);
        // A row of exactly this age is removed too.
        let kept_since = |window| {
            let end = window_now.now().minus(window).plus(Duration::from_millis(1));
            window_now.before(end)
        };
        let past = window_now.past(RECORD_RETENTION);
        let first_of = FeedPosition::first_of;
        Self {
            records: ids(&past),
            feed: past.iter().map(|run| first_of(run.start)..first_of(run.end)).collect(),
            keys: ids(&window_now.past(IDEMPOTENCY_WINDOW)),
            unmatched: kept_since(UNMATCHED_WAIT),
            letters: kept_since(RECORD_RETENTION),
            first_hour: Hour::of(retained),
            window_now,
            limit,
        }
    }
}

/// Returns the ids of the instants of runs. An id carries the stored time of acceptance or a later
/// one, so nothing is removed too early.
fn ids(runs: &[Range<Timestamp>]) -> Vec<Range<MessageId>> {
    runs.iter().map(|run| MessageId::first_of(run.start)..MessageId::first_of(run.end)).collect()
}

impl Store {
    /// Removes a bounded part of the rows that are past their window at `window_now`: at most
    /// `limit` messages with their events, at most `limit` idempotency keys and at most `limit`
    /// entries of the feed.
    pub async fn purge(
        &self,
        window_now: impl Into<WindowTime>,
        limit: usize,
    ) -> Result<Purged, StoreError> {
        let step = PurgeStep::new(window_now.into(), limit);
        let (records, keys) = (step.records.clone(), step.keys.clone());
        let purged = ask_engine!(self, engine => engine.purge(step))?;
        self.damage().forget(&records, &keys);
        self.metrics().purged(purged);
        Ok(purged)
    }
}
