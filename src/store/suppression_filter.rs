//! Filter of suppressions in memory: for almost every address that is not suppressed, it knows
//! that.

use pillarbox_runtime::sync::atomic::{AtomicU64, Ordering};
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::locks::{RwLock, read_lock, write_lock};
use crate::tag::{spread, tag_of};

/// The suppressed addresses of all scopes, and some that are no longer suppressed: 32 bits of each
/// one's hash, which is 5 to 11 bytes a suppression, depending on how full the table is. If a
/// million are suppressed, one in thousands of the free addresses is searched for all the same.
#[derive(Debug, Default)]
pub(super) struct Suppressed {
    /// Keyed against chosen collisions: clients choose the addresses.
    hasher: RandomState,
    tags: RwLock<HashTable<u32>>,
    /// Count of the additions.
    epoch: AtomicU64,
}

impl Suppressed {
    pub(super) fn may_contain(&self, scope: u32, address: &str) -> bool {
        let tags = read_lock(&self.tags);
        if tags.is_empty() {
            return false;
        }
        let tag = self.tag(scope, address);
        tags.find(spread(tag), |other| *other == tag).is_some()
    }

    /// Adds addresses, each with its scope, before their rows are committed, so that no stored
    /// address is missing here. An address whose commit fails, or that is removed later, stays until
    /// the next start, and costs a read of the row.
    pub(super) fn insert<'a>(&self, addresses: impl IntoIterator<Item = (u32, &'a str)>) {
        let mut tags = write_lock(&self.tags);
        for (scope, address) in addresses {
            let tag = self.tag(scope, address);
            tags.entry(spread(tag), |other| *other == tag, |other| spread(*other)).insert(tag);
        }
    }

    fn tag(&self, scope: u32, address: &str) -> u32 {
        tag_of(self.hasher.hash_one((scope, address)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_always_found_and_little_else() {
        let filter = Suppressed::default();
        assert!(!filter.may_contain(1, "0@example.org"));
        for number in 0..10_000 {
            filter.insert([(1, &*format!("{number}@example.org")); 2]);
        }
        assert!(read_lock(&filter.tags).len() <= 10_000);
        assert!((0..10_000).all(|n| filter.may_contain(1, &format!("{n}@example.org"))));
        let others = (0..10_000).filter(|n| filter.may_contain(2, &format!("{n}@example.org")));
        assert!(others.count() < 10);
    }
}
