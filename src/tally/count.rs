//! Counts that only grow: of one kind, and of kinds that are known beforehand.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows. Counting is one atomic addition.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
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

/// A count for each of a few names.
#[derive(Debug)]
pub struct ByName<const N: usize>([(&'static str, Count); N]);

impl<const N: usize> ByName<N> {
    /// Counts for these names.
    pub fn new(names: [&'static str; N]) -> Self {
        Self(names.map(|name| (name, Count::default())))
    }

    /// Counts one more of this name, which must be among those given at first.
    pub fn one(&self, name: &str) {
        if let Some(count) = self.find(name) {
            count.one();
        }
    }

    /// How many were counted of this name, which must be among those given at first.
    pub fn of(&self, name: &str) -> u64 {
        self.find(name).map_or(0, Count::get)
    }

    fn find(&self, name: &str) -> Option<&Count> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        debug_assert!(found.is_some(), "{name} is not counted");
        found.map(|(_, count)| count)
    }

    /// Every name with its count.
    pub fn get(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, count)| (*name, count.get()))
    }
}
