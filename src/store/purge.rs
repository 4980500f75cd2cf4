//! The purge: what is past its window goes, oldest first, a bounded step at a time. Each window is
//! stated here; an engine removes what it is told.

use std::ops::Range;
use std::time::Duration;

use crate::limits::UNMATCHED_WAIT;
use crate::{Purged, Store, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::history::Hour;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::policy::{IDEMPOTENCY_WINDOW, RECORD_RETENTION};
use pillarbox_domain::time::Timestamp;

/// What one step of the purge removes, in runs of stored instants.
pub(super) struct PurgeStep {
    /// The time by which windows are judged.
    pub(super) window_now: WindowTime,
    /// Ids of the messages whose records, events and entries in the feed go.
    pub(super) records: Vec<Range<Timestamp>>,
    /// Messages whose idempotency keys go.
    pub(super) keys: Vec<Range<Timestamp>>,
    /// When unmatched events arrived that go.
    pub(super) unmatched: Vec<Range<Timestamp>>,
    /// When dead letters arrived that go.
    pub(super) letters: Vec<Range<Timestamp>>,
    /// The first hour of history that stays.
    pub(super) first_hour: Hour,
    /// How many rows go at most, of each kind.
    pub(super) limit: usize,
}

impl PurgeStep {
    fn new(window_now: WindowTime, limit: usize) -> Self {
        let retained = window_now.now().minus(RECORD_RETENTION);
        // What is exactly so old goes too.
        let kept_since = |window| {
            let end = window_now.now().minus(window).plus(Duration::from_millis(1));
            window_now.before(end)
        };
        Self {
            records: window_now.past(RECORD_RETENTION),
            keys: window_now.past(IDEMPOTENCY_WINDOW),
            unmatched: kept_since(UNMATCHED_WAIT),
            letters: kept_since(RECORD_RETENTION),
            first_hour: Hour::of(retained),
            window_now,
            limit,
        }
    }
}

/// Returns the ids of the instants of a run. An id carries the stored time of acceptance or a later
/// one, so nothing goes too early.
pub(super) fn ids(run: &Range<Timestamp>) -> Range<MessageId> {
    MessageId::first_of(run.start)..MessageId::first_of(run.end)
}

impl Store {
    /// Removes a bounded part of what is past its window at `window_now`: at most `limit` messages
    /// with their events, at most `limit` idempotency keys and at most `limit` entries of the feed.
    pub async fn purge(
        &self,
        window_now: impl Into<WindowTime>,
        limit: usize,
    ) -> Result<Purged, StoreError> {
        let step = PurgeStep::new(window_now.into(), limit);
        let ids = |runs: &[Range<Timestamp>]| runs.iter().map(ids).collect::<Vec<_>>();
        let (records, keys) = (ids(&step.records), ids(&step.keys));
        let purged = ask_engine!(self, engine => engine.purge(step))?;
        self.damage().forget(&records, &keys);
        self.metrics().purged(purged);
        Ok(purged)
    }
}
