//! The idempotency keys in memory: from a key's hash to the messages that it may have made.
//!
//! The index only narrows down: its users read the log's row on disk and compare the whole key, so
//! no answer depends on chance. Keys are kept in one shard an hour, so that expiry drops a shard at
//! once and no shard grows beyond an hour's mail. An entry has only what identifies it within its
//! hour: 17 bytes with the table's own, which is 20 to 39 bytes a key, depending on how full the
//! table is.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use redb::ReadTransaction;

use crate::damage::Damage;
use crate::record::{IdempotencyRow, decode_time};
use crate::redb::error::{InRow, ReadError};
use crate::redb::tables::{CLOCK, IDEMPOTENCY, TIME_KEY};
use crate::tag::{spread, tag_of};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::limits::IDEMPOTENCY_WINDOW;
use pillarbox_domain::time::Timestamp;

const SHARD_MILLIS: u64 = 3_600_000;
/// The last 62 bits of an id, behind its variant.
const RAND_B: u128 = (1 << 62) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyHash(u64);

/// The keys of the last 24 hours.
#[derive(Debug, Default)]
pub(super) struct IdempotencyIndex {
    /// Keyed against chosen collisions: clients choose the keys.
    hasher: RandomState,
    shards: VecDeque<Shard>,
}

/// Keys that a batch claims. They get into the index once the batch is durable.
#[derive(Debug, Default)]
pub(super) struct ClaimedKeys(pub(super) HashTable<(KeyHash, MessageId)>);

impl ClaimedKeys {
    pub(super) fn insert(&mut self, hash: KeyHash, id: MessageId) {
        self.0.insert_unique(hash.0, (hash, id), |(hash, _)| hash.0);
    }

    /// The messages that the key with this hash may make.
    pub(super) fn candidates(&self, hash: KeyHash) -> impl Iterator<Item = MessageId> {
        self.0.iter_hash(hash.0).filter(move |(other, _)| *other == hash).map(|(_, id)| *id)
    }
}

#[derive(Debug)]
struct Shard {
    /// Hours since the Unix epoch.
    hour: u64,
    entries: HashTable<Entry>,
}

/// A key's hash, and the message that it made.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u32,
    /// The message's id within the hour of its instant.
    id: [u8; 12],
}

impl IdempotencyIndex {
    /// Reads the keys that may still replay. A lookup decides if a key does, because by then it is
    /// known if the clock is in doubt.
    pub(super) fn load(
        transaction: &ReadTransaction,
        damage: &Damage,
        now: Timestamp,
    ) -> Result<Self, ReadError> {
        let zero = Timestamp::from_unix_millis(0);
        // The time stamp and not the clock decides, because the clock may be wrong.
        let row = transaction.open_table(CLOCK)?.get(TIME_KEY)?;
        let reached = match row.map(|row| decode_time(row.value()).in_row(CLOCK, TIME_KEY)) {
            Some(Ok(record)) => record.reached(),
            None => now.into(),
            Some(Err(row)) => {
                damage.note(row);
                zero.into()
            }
        };
        let past = reached.past(IDEMPOTENCY_WINDOW);
        let first = past.first().filter(|run| run.start == zero).map_or(zero, |run| run.end);
        let from = MessageId::first_of(first);
        let mut index = Self::default();
        let hasher = index.hasher.clone();
        let rows = transaction.open_table(IDEMPOTENCY)?.range(*from.as_bytes()..)?;
        let rows = rows.map(|row| -> Result<_, ReadError> {
            let (id, row) = row?;
            let id = MessageId::from_bytes(id.value());
            let read = IdempotencyRow::decode(row.value()).in_row(IDEMPOTENCY, id);
            let row = damage.left_out(read);
            Ok(row
                .map(|row| (hash(&hasher, OrganisationId(row.organisation), row.key.as_str()), id)))
        });
        index.extend(rows.filter_map(Result::transpose))?;
        Ok(index)
    }

    pub(super) fn hash(&self, organisation: OrganisationId, key: &str) -> KeyHash {
        hash(&self.hasher, organisation, key)
    }

    /// Adds a key that made a message. It is dropped by the instant of the message's id, which is
    /// that of its acceptance or a later one.
    pub(super) fn insert(&mut self, hash: KeyHash, id: MessageId) {
        let (hour, entry) = Entry::of(hash, id);
        self.shard(hour).add(entry);
    }

    /// Adds many keys, by the order of their messages' ids. Each hour's table is made in its final
    /// size, because a table that grows leaves its earlier memory unused.
    fn extend<E>(
        &mut self,
        keys: impl Iterator<Item = Result<(KeyHash, MessageId), E>>,
    ) -> Result<(), E> {
        let (mut hour, mut run) = (0, Vec::new());
        for key in keys {
            let (hash, id) = key?;
            let (next, entry) = Entry::of(hash, id);
            if next != hour {
                self.add_run(hour, &mut run);
                hour = next;
            }
            run.push(entry);
        }
        self.add_run(hour, &mut run);
        Ok(())
    }

    fn add_run(&mut self, hour: u64, run: &mut Vec<Entry>) {
        if !run.is_empty() {
            let shard = self.shard(hour);
            shard.entries.reserve(run.len(), |entry| spread(entry.tag));
            run.drain(..).for_each(|entry| shard.add(entry));
        }
    }

    /// The messages that the key with this hash may have made, newest hour first.
    pub(super) fn candidates(&self, hash: KeyHash) -> impl Iterator<Item = MessageId> {
        let tag = tag_of(hash.0);
        self.shards.iter().rev().flat_map(move |shard| {
            let alike = shard.entries.iter_hash(spread(tag)).filter(move |entry| entry.tag == tag);
            alike.map(|entry| join(shard.hour, entry.id))
        })
    }

    /// Drops the hours in which every key is past the window.
    pub(super) fn expire(&mut self, window_now: &WindowTime) {
        let past = window_now.past(IDEMPOTENCY_WINDOW);
        self.shards.retain(|shard| {
            let start = Timestamp::from_unix_millis(shard.hour * SHARD_MILLIS);
            let end = Timestamp::from_unix_millis((shard.hour + 1) * SHARD_MILLIS);
            !past.iter().any(|run| run.start <= start && end <= run.end)
        });
    }

    pub(super) fn len(&self) -> usize {
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

fn hash(hasher: &RandomState, organisation: OrganisationId, key: &str) -> KeyHash {
    KeyHash(hasher.hash_one((organisation.0, key)))
}

impl Shard {
    fn add(&mut self, entry: Entry) {
        self.entries.insert_unique(spread(entry.tag), entry, |entry| spread(entry.tag));
    }
}

impl Entry {
    /// The hour that it belongs to, and the entry.
    fn of(hash: KeyHash, id: MessageId) -> (u64, Self) {
        let (hour, id) = split(id);
        (hour, Self { tag: tag_of(hash.0), id })
    }
}

/// An id's hour, and the rest of the id: 22 bits for the milliseconds of an hour, and the 74 bits
/// of a version 7 UUID that are neither its instant nor fixed (RFC 9562 section 5.7).
fn split(id: MessageId) -> (u64, [u8; 12]) {
    let bits = u128::from_be_bytes(*id.as_bytes());
    let millis = bits >> 80;
    let (hour, rest) = (millis / u128::from(SHARD_MILLIS), millis % u128::from(SHARD_MILLIS));
    let (rand_a, rand_b) = (bits >> 64 & 0xfff, bits & RAND_B);
    let within = rest << 74 | rand_a << 62 | rand_b;
    let bytes = within.to_be_bytes();
    let hour = u64::try_from(hour).expect("an instant has 48 bits");
    (hour, *bytes.last_chunk().expect("16 bytes end in 12"))
}

/// The id of this hour with these other bits: the inverse of [`split`].
fn join(hour: u64, within: [u8; 12]) -> MessageId {
    let mut bytes = [0; 16];
    bytes[4..].copy_from_slice(&within);
    let within = u128::from_be_bytes(bytes);
    let millis = u128::from(hour * SHARD_MILLIS) + (within >> 74);
    let (rand_a, rand_b) = (within >> 62 & 0xfff, within & RAND_B);
    let (version, variant) = (7 << 76, 0b10 << 62);
    MessageId::from_bytes((millis << 80 | version | rand_a << 64 | variant | rand_b).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::id::MessageIds;

    #[test]
    fn an_id_is_whole_again_whatever_its_bits() {
        let ids = MessageIds::new();
        for millis in [0, 1, SHARD_MILLIS - 1, SHARD_MILLIS, 1_800_000_000_000, (1 << 48) - 2] {
            for _ in 0..100 {
                let id = ids.next(Timestamp::from_unix_millis(millis));
                let (hour, within) = split(id);
                assert_eq!(join(hour, within), id);
            }
        }
        for tail in [[0; 10], [u8::MAX; 10]] {
            let mut bytes = [0xff; 16];
            bytes[6..].copy_from_slice(&tail);
            bytes[6] = 0x70 | bytes[6] & 0xf;
            bytes[8] = 0x80 | bytes[8] & 0x3f;
            let id = MessageId::from_bytes(bytes);
            let (hour, within) = split(id);
            assert_eq!(join(hour, within), id);
        }
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 16);
    }

    #[test]
    fn many_keys_take_no_more_than_their_hours_tables() {
        let start = Timestamp::from_unix_millis(1_800_000_000_000);
        let ids = MessageIds::new();
        let mut index = IdempotencyIndex::default();
        let hasher = index.hasher.clone();
        let key = |minute: u64| hash(&hasher, OrganisationId(1), &minute.to_string());
        let at = |minute| ids.next(start.plus(std::time::Duration::from_mins(minute)));
        let ids: Vec<_> = (0..600).map(at).collect();
        let keys = (0..).zip(&ids).map(|(minute, id)| Ok::<_, ()>((key(minute), *id)));
        index.extend(keys).unwrap();
        assert_eq!((index.len(), index.shards.len()), (600, 10));
        for (minute, id) in (0..).zip(&ids) {
            assert!(index.candidates(key(minute)).any(|found| found == *id));
        }
        let exact = HashTable::<Entry>::with_capacity(60).capacity();
        assert_eq!(index.shards[1].entries.capacity(), exact);
        let broken = [Err(()), Ok((key(0), ids[0]))].into_iter();
        assert_eq!(index.extend(broken), Err(()));
    }

    #[test]
    fn a_key_is_found_until_its_hour_is_dropped() {
        let start = Timestamp::from_unix_millis(1_800_000_000_000);
        let mut index = IdempotencyIndex::default();
        let ids = MessageIds::new();
        let organisation = OrganisationId(1);
        for minute in 0..600 {
            let now = start.plus(std::time::Duration::from_mins(minute));
            let hash = index.hash(organisation, &minute.to_string());
            index.insert(hash, ids.next(now));
        }
        assert_eq!(index.len(), 600);
        let first = index.hash(organisation, "0");
        assert_eq!(index.candidates(first).count(), 1);
        assert_eq!(index.candidates(index.hash(OrganisationId(2), "0")).count(), 0);

        let end = start.plus(IDEMPOTENCY_WINDOW);
        index.expire(&end.into());
        assert_eq!(index.candidates(first).count(), 1, "its hour is not over");
        index.expire(&end.plus(std::time::Duration::from_hours(1)).into());
        assert_eq!(index.candidates(first).count(), 0);
        assert!(index.len() >= 540);
    }
}
