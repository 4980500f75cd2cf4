//! A histogram: how many values lay up to each of a few bounds, and their sum.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::metrics::Counter;

/// Counts whole numbers by size. Noting one is two atomic additions, without a lock.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for what lies above them all.
    counts: Box<[Counter]>,
    sum: AtomicU64,
}

/// What a histogram has noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Each bound, with how many values lay above the one before and up to it.
    pub buckets: Vec<(u64, u64)>,
    /// How many lay above the last bound.
    pub above: u64,
    /// The sum of all values.
    pub sum: u64,
}

impl Histogram {
    /// A histogram with these bounds, which ascend.
    pub fn new(bounds: &'static [u64]) -> Self {
        debug_assert!(bounds.is_sorted(), "bounds ascend");
        let counts = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    /// Notes a value.
    pub fn note(&self, value: u64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)].one();
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Notes a duration, in microseconds.
    pub fn note_micros(&self, duration: Duration) {
        self.note(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// What was noted so far. Values that are being noted meanwhile may be in it in part.
    pub fn read(&self) -> Reading {
        let (last, counts) = self.counts.split_last().expect("one more count than bounds");
        let buckets = self.bounds.iter().copied().zip(counts.iter().map(Counter::get)).collect();
        Reading { buckets, above: last.get(), sum: self.sum.load(Ordering::Relaxed) }
    }
}

impl Reading {
    /// How many values were noted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum::<u64>() + self.above
    }

    /// How many of them lay above one of the bounds.
    pub fn count_above(&self, bound: u64) -> u64 {
        let buckets = self.buckets.iter().filter(|(upper, _)| *upper > bound);
        buckets.map(|(_, count)| count).sum::<u64>() + self.above
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_up_to_and_with_its_bound() {
        let histogram = Histogram::new(&[1, 10]);
        for value in [0, 1, 2, 10, 11, 500] {
            histogram.note(value);
        }
        let reading = histogram.read();
        assert_eq!(reading.buckets, [(1, 2), (10, 2)]);
        assert_eq!((reading.above, reading.sum, reading.count()), (2, 524, 6));
        assert_eq!([0, 1, 10].map(|bound| reading.count_above(bound)), [6, 4, 2]);
    }

    #[test]
    fn durations_are_noted_in_microseconds() {
        let histogram = Histogram::new(&[1_000]);
        histogram.note_micros(Duration::from_micros(999));
        assert_eq!(histogram.read().sum, 999);
    }
}
