//! The idempotency keys in memory: from a key's hash to the messages that it may have made.
//!
//! The index only narrows down: whoever uses it reads the log's row on disk and compares the
//! whole key, so an answer is never a matter of chance. Keys are kept in one shard an hour, so
//! that expiry drops a shard at once and no shard grows beyond an hour's mail.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::time::{IDEMPOTENCY_WINDOW, Timestamp};

const SHARD_MILLIS: u64 = 3_600_000;

/// The hash under which a key is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct KeyHash(u64);

/// The keys of the last 24 hours.
#[derive(Debug, Default)]
pub(in crate::store) struct IdempotencyIndex {
    /// Keyed against chosen collisions: clients choose the keys.
    hasher: RandomState,
    /// Oldest hour first.
    shards: VecDeque<Shard>,
}

#[derive(Debug)]
struct Shard {
    /// Hours since the Unix epoch.
    hour: u64,
    entries: HashTable<(u64, MessageId)>,
}

impl IdempotencyIndex {
    /// The hash of an organisation's key.
    pub(in crate::store) fn hash(&self, organisation: OrganisationId, key: &str) -> KeyHash {
        KeyHash(self.hasher.hash_one((organisation.0, key)))
    }

    /// Adds a key that made a message at `created_at`.
    pub(in crate::store) fn insert(&mut self, hash: KeyHash, id: MessageId, created_at: Timestamp) {
        let shard = self.shard(created_at.unix_millis() / SHARD_MILLIS);
        shard.entries.insert_unique(hash.0, (hash.0, id), |(hash, _)| *hash);
    }

    /// The messages that the key with this hash may have made, newest hour first.
    pub(in crate::store) fn candidates(&self, hash: KeyHash) -> impl Iterator<Item = MessageId> {
        self.shards.iter().rev().flat_map(move |shard| {
            shard.entries.iter_hash(hash.0).filter(move |entry| entry.0 == hash.0).map(|e| e.1)
        })
    }

    /// Drops the hours in which every key is past the window.
    pub(in crate::store) fn expire(&mut self, now: Timestamp) {
        let oldest = now.minus(IDEMPOTENCY_WINDOW).unix_millis() / SHARD_MILLIS;
        self.shards.retain(|shard| shard.hour >= oldest);
    }

    /// How many keys are held.
    pub(in crate::store) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.entries.len()).sum()
    }

    fn shard(&mut self, hour: u64) -> &mut Shard {
        let position = self.shards.partition_point(|shard| shard.hour < hour);
        if self.shards.get(position).is_none_or(|shard| shard.hour != hour) {
            self.shards.insert(position, Shard { hour, entries: HashTable::new() });
        }
        &mut self.shards[position]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::id::MessageIds;

    #[test]
    fn a_key_is_found_until_its_hour_is_dropped() {
        let start = Timestamp::from_unix_millis(1_800_000_000_000);
        let mut index = IdempotencyIndex::default();
        let ids = MessageIds::new();
        let organisation = OrganisationId(1);
        for minute in 0..600 {
            let now = start.plus(std::time::Duration::from_mins(minute));
            let hash = index.hash(organisation, &minute.to_string());
            index.insert(hash, ids.next(now), now);
        }
        assert_eq!(index.len(), 600);
        let first = index.hash(organisation, "0");
        assert_eq!(index.candidates(first).count(), 1);
        assert_eq!(index.candidates(index.hash(OrganisationId(2), "0")).count(), 0);

        let end = start.plus(IDEMPOTENCY_WINDOW);
        index.expire(end);
        assert_eq!(index.candidates(first).count(), 1, "its hour is not over");
        index.expire(end.plus(std::time::Duration::from_hours(1)));
        assert_eq!(index.candidates(first).count(), 0);
        assert!(index.len() >= 540);
    }
}
