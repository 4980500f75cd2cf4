//! Counters, and in its parts histograms and what is counted of each organisation. Counting costs
//! next to nothing. Knows nothing of who reads them.

use std::sync::atomic::{AtomicU64, Ordering};

pub mod histogram;
pub mod organisations;

/// Number that only grows. Counting is one atomic addition.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub fn one(&self) {
        self.add(1);
    }

    /// Counts so many more.
    pub fn add(&self, more: u64) {
        // Nothing else is read in the light of it.
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many were counted.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counter for each of a few names.
#[derive(Debug)]
pub struct CounterByName<const N: usize>([(&'static str, Counter); N]);

impl<const N: usize> CounterByName<N> {
    /// Counts for these names.
    pub fn new(names: [&'static str; N]) -> Self {
        Self(names.map(|name| (name, Counter::default())))
    }

    /// Counts one more of this name, which must be among those given at first.
    pub fn one(&self, name: &str) {
        if let Some(count) = self.find(name) {
            count.one();
        }
    }

    /// How many were counted of this name, which must be among those given at first.
    pub fn of(&self, name: &str) -> u64 {
        self.find(name).map_or(0, Counter::get)
    }

    fn find(&self, name: &str) -> Option<&Counter> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        debug_assert!(found.is_some(), "{name} is not counted");
        found.map(|(_, count)| count)
    }

    /// Every name with its count.
    pub fn get(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, count)| (*name, count.get()))
    }
}
