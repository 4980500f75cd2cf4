//! Limits of the rows that the store keeps, the same in each engine.

use std::time::Duration;

/// Largest number of dead letters that are kept; beyond it, the oldest are deleted.
pub(super) const MAX_DEAD_LETTERS: usize = 1_000;
/// Name of dead letters in the log.
pub(super) const DEAD_LETTERS: &str = "dead letters";
/// Largest number of unmatched events that wait; beyond it, the oldest are deleted.
pub(super) const MAX_UNMATCHED: usize = 10_000;
/// Name of unmatched events in the log.
pub(super) const UNMATCHED: &str = "events without a message";
/// Time after the last loss for which the count of lost messages is shown if nobody acknowledges
/// it.
pub(super) const LOST_SHOWN: Duration = Duration::from_hours(24);
/// Largest number of organisations that have counts of their own in one hour of history. The others
/// are only in the total, so that 90 days take at most about 10 MB.
pub(super) const MAX_COUNTED_ORGANISATIONS: usize = 100;
/// Number under which rows hold for all organisations: suppressions, and totals of history. No
/// organisation has it.
pub(super) const ALL_ORGANISATIONS: u32 = 0;

/// Logs how many of the oldest rows were removed because of a limit, if any.
pub(super) fn warn_removed(number: u64, what: &str) {
    if number > 0 {
        tracing::warn!(number, "there were too many {what}: the oldest were removed");
    }
}
