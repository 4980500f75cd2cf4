//! Limits of what the store keeps, the same in each engine.

use std::time::Duration;

/// How many dead letters are kept; beyond, the oldest go.
pub(super) const MAX_DEAD_LETTERS: usize = 1_000;
/// What dead letters are called in the log.
pub(super) const DEAD_LETTERS: &str = "unreadable documents";
/// How many unmatched events wait; beyond, the oldest go.
pub(super) const MAX_UNMATCHED: usize = 10_000;
/// What unmatched events are called in the log.
pub(super) const UNMATCHED: &str = "events without a message";
/// How long an unmatched event waits for its message (contract, section 3).
pub(super) const UNMATCHED_WAIT: Duration = Duration::from_hours(24);
/// How long after the last loss the count of lost messages is shown if nobody acknowledges it.
pub(super) const LOST_SHOWN: Duration = Duration::from_hours(24);
/// How many organisations have counts of their own in one hour of history. The others are in the
/// total alone, so that 90 days take at most about 10 MB.
pub(super) const MAX_COUNTED_ORGANISATIONS: usize = 100;
/// Number under which rows hold for all organisations: suppressions, and totals of history. No
/// organisation has it.
pub(super) const ALL_ORGANISATIONS: u32 = 0;

/// Tells the log how many of the oldest rows were removed because of a limit, if any.
pub(super) fn warn_removed(number: u64, what: &str) {
    if number > 0 {
        tracing::warn!(number, "too many {what} are kept: the oldest were removed");
    }
}
