//! Filter of suppressions in memory: for almost every address that is not suppressed, it knows
//! that.

use pillarbox_runtime::sync::atomic::{AtomicU64, Ordering};
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::locks::{RwLock, read_lock, write_lock};
use crate::tag::{spread, tag_of};

/// Suppressed addresses that are known in memory, and a count of the additions.
#[derive(Debug, Default)]
pub(super) struct Suppressed {
    filter: RwLock<SuppressionFilter>,
    epoch: AtomicU64,
}

impl Suppressed {
    pub(super) fn may_contain(&self, scope: u32, address: &str) -> bool {
        read_lock(&self.filter).may_contain(scope, address)
    }

    /// Adds addresses, each with its scope.
    pub(super) fn insert<'a>(&self, addresses: impl IntoIterator<Item = (u32, &'a str)>) {
        let mut filter = write_lock(&self.filter);
        for (scope, address) in addresses {
            filter.insert(scope, address);
        }
    }

    /// Number that grows each time that an address becomes suppressed.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Notes that addresses have become suppressed.
    pub(super) fn grew(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }
}

/// The suppressed addresses of all scopes, and some that are no longer suppressed: 32 bits of each
/// one's hash, which is 5 to 11 bytes a suppression, depending on how full the table is. If a
/// million are suppressed, one in thousands of the free addresses is searched for all the same.
#[derive(Debug, Default)]
struct SuppressionFilter {
    /// Keyed against chosen collisions: clients choose the addresses.
    hasher: RandomState,
    tags: HashTable<u32>,
}

impl SuppressionFilter {
    /// Adds an address, before its row is committed, so that no stored address is missing here. An
    /// address whose commit fails, or that is removed later, stays until the next start, and costs
    /// a read of the row.
    fn insert(&mut self, scope: u32, address: &str) {
        let tag = self.tag(scope, address);
        self.tags.entry(spread(tag), |other| *other == tag, |other| spread(*other)).insert(tag);
    }

    fn may_contain(&self, scope: u32, address: &str) -> bool {
        if self.tags.is_empty() {
            return false;
        }
        let tag = self.tag(scope, address);
        self.tags.find(spread(tag), |other| *other == tag).is_some()
    }

    fn tag(&self, scope: u32, address: &str) -> u32 {
        tag_of(self.hasher.hash_one((scope, address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_always_found_and_little_else() {
        let mut filter = SuppressionFilter::default();
        assert!(!filter.may_contain(1, "0@example.org"));
        for number in 0..10_000 {
            filter.insert(1, &format!("{number}@example.org"));
            filter.insert(1, &format!("{number}@example.org"));
        }
        assert!(filter.tags.len() <= 10_000);
        assert!((0..10_000).all(|n| filter.may_contain(1, &format!("{n}@example.org"))));
        let others = (0..10_000).filter(|n| filter.may_contain(2, &format!("{n}@example.org")));
        assert!(others.count() < 10);
    }
}
