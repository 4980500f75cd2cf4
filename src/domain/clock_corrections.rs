//! Timeline: corrects stored instants that a wrong clock left behind.
//!
//! Stored instants are never changed, because ids carry them and tables are in their order. Beside
//! them the file keeps their errors as corrections, and windows are judged by corrected instants.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::time::Timestamp;

/// Largest number of corrections that a file keeps. If there are more, the two oldest become one.
const MAX_CORRECTIONS: usize = 64;

/// Run of stored instants with the same error. It ends at the beginning of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Correction {
    /// First stored instant of the run.
    pub from: Timestamp,
    /// Milliseconds to add to each stored instant.
    pub shift_millis: i64,
}

/// History of confirmations of the clock since the file was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assurance {
    /// Nobody has confirmed the clock: it may have been wrong all the time.
    Never,
    /// The kernel or an operator has confirmed the clock.
    Given,
}

/// Doubt of the clock, as the file keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredDoubt {
    /// Corrected instant at which window time has stopped.
    pub frozen_at: Timestamp,
    /// First stored instant that may have the clock's error.
    pub unsure_from: Timestamp,
}

/// Record of the clock that a file keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeRecord {
    /// Time stamp: the stored instant at which the record was written.
    pub stamp: Timestamp,
    /// Present doubt, if there is one.
    pub doubt: Option<StoredDoubt>,
    /// Record of confirmations of the clock so far.
    pub assurance: Assurance,
    /// Corrections, in the order of their beginnings.
    pub corrections: Vec<Correction>,
}

impl TimeRecord {
    /// Returns the record of a clock that was right at an instant.
    pub fn at(stamp: Timestamp) -> Self {
        Self { stamp, doubt: None, assurance: Assurance::Given, corrections: Vec::new() }
    }

    /// Returns the time of the stamp, to judge windows by.
    pub fn reached(self) -> WindowTime {
        WindowTime::new(corrected(&self.corrections, self.stamp), &self.corrections.into())
    }
}

/// Adjustment of the clock at the end of a doubt.
#[derive(Debug, Clone, Copy)]
pub struct Adjustment {
    /// First stored instant with the error.
    pub unsure_from: Timestamp,
    /// Present instant, as it would be stored.
    pub stored: Timestamp,
    /// Present instant by the clock that is right.
    pub right: Timestamp,
    /// Record of confirmations of the clock before this one.
    pub assurance: Assurance,
}

/// Time by which windows are judged, with the corrections of stored instants.
#[derive(Debug, Clone)]
pub struct WindowTime {
    now: Timestamp,
    /// `None` if there is none, which is the usual case: then the time shares no memory.
    corrections: Option<Arc<[Correction]>>,
}

impl WindowTime {
    /// Returns a time that judges by `now`.
    pub fn new(now: Timestamp, corrections: &Arc<[Correction]>) -> Self {
        let corrections = (!corrections.is_empty()).then(|| Arc::clone(corrections));
        Self { now, corrections }
    }

    /// Returns the instant by which windows are judged.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns a stored instant without its error.
    pub fn corrected(&self, stored: Timestamp) -> Timestamp {
        corrected(self.corrections(), stored)
    }

    fn corrections(&self) -> &[Correction] {
        self.corrections.as_deref().unwrap_or_default()
    }

    /// Returns true from exactly `window` after a stored instant on.
    pub fn is_past(&self, stored: Timestamp, window: Duration) -> bool {
        self.corrected(stored).is_past(window, self.now)
    }

    /// Returns the runs of stored instants that are `window` old, oldest first. No run ends where
    /// the next one begins.
    pub fn past(&self, window: Duration) -> Vec<Range<Timestamp>> {
        self.before(self.now.minus(window))
    }

    /// Returns the stored instant up to which all are `window` old. If there are corrections, some
    /// later ones may be so as well.
    pub fn all_past(&self, window: Duration) -> Timestamp {
        if self.corrections.is_none() {
            return self.now.minus(window);
        }
        let zero = Timestamp::from_unix_millis(0);
        let first = self.past(window).into_iter().next().filter(|run| run.start == zero);
        first.map_or(zero, |run| run.end.minus(Duration::from_millis(1)))
    }

    /// Returns the runs of stored instants that are before an instant, oldest first. No run ends
    /// where the next one begins.
    pub fn before(&self, instant: Timestamp) -> Vec<Range<Timestamp>> {
        let mut runs: Vec<Range<Timestamp>> = Vec::new();
        let first = Correction { from: Timestamp::from_unix_millis(0), shift_millis: 0 };
        let mut corrections = std::iter::once(&first).chain(self.corrections()).peekable();
        while let Some(Correction { from, shift_millis }) = corrections.next() {
            let next = corrections.peek().map(|next| next.from);
            let end = shifted(instant, shift_millis.saturating_neg());
            let end = next.map_or(end, |next| end.min(next));
            match runs.last_mut() {
                _ if end <= *from => {}
                Some(last) if last.end == *from => last.end = end,
                Some(_) | None => runs.push(*from..end),
            }
        }
        runs
    }
}

impl From<Timestamp> for WindowTime {
    /// Returns a time that judges by an instant and corrects nothing.
    fn from(now: Timestamp) -> Self {
        Self { now, corrections: None }
    }
}

/// Returns a stored instant without its error.
pub fn corrected(corrections: &[Correction], stored: Timestamp) -> Timestamp {
    shifted(stored, shift_at(corrections, stored))
}

/// Returns the milliseconds by which an instant is ahead of another; negative if it is behind.
pub fn lead_millis(ahead: Timestamp, of: Timestamp) -> i64 {
    let after = |later: Timestamp, earlier: Timestamp| {
        i64::try_from(later.unix_millis().saturating_sub(earlier.unix_millis())).unwrap_or(i64::MAX)
    };
    after(ahead, of) - after(of, ahead)
}

/// Returns the instant that is this many milliseconds later.
pub fn shifted(instant: Timestamp, millis: i64) -> Timestamp {
    Timestamp::from_unix_millis(instant.unix_millis().saturating_add_signed(millis))
}

fn shift_at(corrections: &[Correction], stored: Timestamp) -> i64 {
    let next = corrections.partition_point(|correction| correction.from <= stored);
    next.checked_sub(1).map_or(0, |last| corrections[last].shift_millis)
}

impl Adjustment {
    /// Returns the corrections with those of this adjustment.
    ///
    /// Time passed evenly since the first unsure instant, so all instants from there on have the
    /// error of the last one. If nobody confirmed the clock before, earlier instants may have it
    /// too. They are only moved to later instants, so that no window ends too early. New instants
    /// are stored without an error, unless they would then be before instants that are stored
    /// already.
    pub fn applied_to(&self, corrections: &[Correction]) -> Vec<Correction> {
        let first = Correction { from: Timestamp::from_unix_millis(0), shift_millis: 0 };
        let mut all: Vec<_> = std::iter::once(first).chain(corrections.iter().copied()).collect();
        let position = all.partition_point(|correction| correction.from < self.unsure_from);
        if all.get(position).is_none_or(|next| next.from != self.unsure_from) {
            let shift_millis = all[position - 1].shift_millis;
            all.insert(position, Correction { from: self.unsure_from, shift_millis });
        }
        let off = lead_millis(self.right, corrected(corrections, self.stored));
        let earlier = if self.assurance == Assurance::Never { off.max(0) } else { 0 };
        for (at, correction) in all.iter_mut().enumerate() {
            let shift = if at < position { earlier } else { off };
            correction.shift_millis = correction.shift_millis.saturating_add(shift);
        }
        if all.last().is_some_and(|last| last.shift_millis.is_positive()) {
            all.push(Correction { from: self.right, shift_millis: 0 });
        }
        all.dedup_by_key(|correction| correction.shift_millis);
        if all.first().is_some_and(|first| first.shift_millis == 0) {
            all.remove(0);
        }
        while all.len() > MAX_CORRECTIONS {
            // The later of both, so that no window ends too early.
            let second = all.remove(1);
            all[0].shift_millis = all[0].shift_millis.max(second.shift_millis);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_MILLIS: i64 = 24 * 3_600_000;
    const DAY: Duration = Duration::from_hours(24);
    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn finding(unsure_from: Timestamp, stored: Timestamp, right: Timestamp) -> Adjustment {
        Adjustment { unsure_from, stored, right, assurance: Assurance::Given }
    }

    #[test]
    fn what_was_stored_under_a_clock_that_was_behind_is_as_old_as_it_is() {
        let start = NOON.minus(DAY * 95);
        let corrections = finding(start, start.plus(DAY), NOON).applied_to(&[]);
        let time = WindowTime::new(NOON, &corrections.into());
        assert_eq!(time.corrected(start), NOON.minus(DAY));
        assert_eq!(time.corrected(start.plus(DAY)), NOON);
        assert_eq!(time.corrected(start.minus(DAY)), start.minus(DAY), "it was sure");
        assert_eq!(time.corrected(NOON), NOON, "and so is what comes");
        assert_eq!(time.past(DAY * 2), [Timestamp::from_unix_millis(0)..start]);
        assert_eq!(time.all_past(DAY * 2), start.minus(Duration::from_millis(1)));
    }

    #[test]
    fn a_time_without_corrections_is_the_clocks() {
        let time = WindowTime::from(NOON);
        assert_eq!(time.now(), NOON);
        assert_eq!(time.all_past(DAY), NOON.minus(DAY));
    }

    #[test]
    fn a_lead_has_a_sign_and_no_overflow() {
        assert_eq!(lead_millis(NOON.plus(DAY), NOON), DAY_MILLIS);
        assert_eq!(lead_millis(NOON, NOON.plus(DAY)), -DAY_MILLIS);
        let [first, last] = [0, u64::MAX].map(Timestamp::from_unix_millis);
        assert_eq!(lead_millis(last, first), i64::MAX);
        assert_eq!(lead_millis(first, last), -i64::MAX);
    }

    #[test]
    fn what_was_stored_under_a_clock_that_was_ahead_is_as_old_as_it_is() {
        let ahead = NOON.plus(DAY * 95);
        let corrections = finding(ahead, ahead.plus(DAY), NOON).applied_to(&[]);
        let time = WindowTime::new(NOON.plus(DAY), &corrections.into());
        assert_eq!(time.corrected(ahead), NOON.minus(DAY));
        assert!(time.is_past(ahead, DAY * 2));
        assert!(!time.is_past(ahead.plus(DAY), DAY * 2));
        let zero = Timestamp::from_unix_millis(0);
        assert_eq!(time.past(DAY), [zero..NOON, ahead..ahead.plus(DAY)]);
    }

    #[test]
    fn without_any_assurance_earlier_instants_only_become_later() {
        let never = |right| Adjustment {
            unsure_from: NOON,
            stored: NOON.plus(DAY),
            right,
            assurance: Assurance::Never,
        };
        let later = never(NOON.plus(DAY * 96)).applied_to(&[]);
        assert_eq!(corrected(&later, NOON.minus(DAY)), NOON.plus(DAY * 94));
        let earlier = never(NOON.minus(DAY * 94)).applied_to(&[]);
        assert_eq!(corrected(&earlier, NOON.minus(DAY)), NOON.minus(DAY));
        assert_eq!(corrected(&earlier, NOON), NOON.minus(DAY * 95));
    }

    #[test]
    fn a_mistake_that_is_taken_back_leaves_ages_as_they_were() {
        // Set back by mistake and confirmed, then put right.
        let wrong = finding(NOON, NOON.plus(DAY), NOON.minus(DAY * 9)).applied_to(&[]);
        let right = finding(NOON, NOON.plus(DAY * 2), NOON.plus(DAY * 2)).applied_to(&wrong);
        assert_eq!(right, []);
    }

    #[test]
    fn corrections_stay_few_and_none_ends_a_window_early() {
        let mut corrections = Vec::new();
        let mut stored = NOON;
        for _ in 0..200 {
            let right = corrected(&corrections, stored).plus(DAY);
            corrections = finding(stored, stored, right).applied_to(&corrections);
            stored = right.plus(DAY);
        }
        assert_eq!(corrections.len(), MAX_CORRECTIONS);
        assert_eq!(corrected(&corrections, NOON), NOON.plus(DAY));
    }

    proptest! {
        #[test]
        fn runs_hold_exactly_what_is_before(
            mut froms in proptest::collection::btree_set(1_u64..200, 0..6),
            shifts in proptest::collection::vec(-50_i64..50, 6),
            instant in 1_u64..300,
        ) {
            let corrections: Vec<_> = std::mem::take(&mut froms)
                .into_iter()
                .zip(shifts)
                .map(|(from, shift_millis)| Correction {
                    from: Timestamp::from_unix_millis(from),
                    shift_millis,
                })
                .collect();
            let time = WindowTime::new(NOON, &corrections.into());
            let instant = Timestamp::from_unix_millis(instant);
            let runs = time.before(instant);
            for stored in 0..300 {
                let stored = Timestamp::from_unix_millis(stored);
                let is_in = runs.iter().any(|run| run.contains(&stored));
                // What would be before the epoch counts as the epoch.
                prop_assert_eq!(is_in, time.corrected(stored) < instant, "{:?}", stored);
            }
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn what_is_unsure_moves_with_the_clock(
            lead in -100 * DAY_MILLIS..100 * DAY_MILLIS,
            age in 0..50 * DAY_MILLIS,
        ) {
            let stored = NOON.plus(DAY * 60);
            let right = shifted(stored, lead);
            let corrections = finding(NOON, stored, right).applied_to(&[]);
            let before = shifted(stored, -age);
            prop_assert_eq!(corrected(&corrections, before), shifted(right, -age));
        }
    }
}
