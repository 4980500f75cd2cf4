//! Sorted sequence in chunks, for what there may be millions of.
//!
//! A B-tree whose keys grow, as those of the queue do, leaves almost half of its room empty. Here the
//! chunks become full.

use std::collections::BTreeMap;
use std::collections::btree_map::IntoValues;
use std::iter::Flatten;
use std::ops::Bound;

/// Bytes of a full chunk, one of the sizes that the allocator has.
const CHUNK_BYTES: usize = 4096;
/// Members that a chunk has room for at first.
const FIRST_ROOM: usize = 4;

/// Member of a sorted sequence.
pub(super) trait Keyed {
    type Key: Ord + Copy;

    /// Returns what it is sorted by.
    fn key(&self) -> Self::Key;
}

/// Sorted sequence. No two members have the same key.
#[derive(Debug)]
pub(super) struct Sorted<T: Keyed> {
    /// No key of a chunk is less than its bound here, and none reaches the next one's. None is empty.
    chunks: BTreeMap<T::Key, Vec<T>>,
    len: usize,
}

impl<T: Keyed> Default for Sorted<T> {
    fn default() -> Self {
        Self { chunks: BTreeMap::new(), len: 0 }
    }
}

impl<T: Keyed> Sorted<T> {
    /// The most members of a chunk.
    const MAX: usize = CHUNK_BYTES / size_of::<T>();

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn first(&self) -> Option<&T> {
        self.chunks.first_key_value()?.1.first()
    }

    pub(super) fn get(&self, key: &T::Key) -> Option<&T> {
        let (_, chunk) = self.chunks.range(..=key).next_back()?;
        position(chunk, key).ok().map(|at| &chunk[at])
    }

    /// Returns a member; its key must stay.
    pub(super) fn get_mut(&mut self, key: &T::Key) -> Option<&mut T> {
        let (_, chunk) = self.chunks.range_mut(..=key).next_back()?;
        position(chunk, key).ok().map(|at| &mut chunk[at])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.values().flatten()
    }

    /// Returns the members after a key, or all.
    pub(super) fn after(&self, after: Option<T::Key>) -> impl Iterator<Item = &T> {
        let first = after.and_then(|after| self.chunks.range(..=after).next_back());
        let first = first.map_or(Bound::Unbounded, |(bound, _)| Bound::Included(*bound));
        let members = self.chunks.range((first, Bound::Unbounded)).flat_map(|(_, chunk)| chunk);
        members.skip_while(move |member| after.is_some_and(|after| member.key() <= after))
    }

    /// Adds a member, in the place of the one with its key.
    pub(super) fn insert(&mut self, member: T) {
        let key = member.key();
        let bound = self.bound_for(key);
        let chunk = self.chunks.get_mut(&bound).expect("the bound has a chunk");
        match position(chunk, &key) {
            Ok(at) => chunk[at] = member,
            Err(at) => {
                self.len += 1;
                if chunk.len() < Self::MAX {
                    insert_into(chunk, at, member, Self::MAX);
                } else {
                    self.insert_into_full(bound, at, member);
                }
            }
        }
    }

    /// Takes out a member.
    pub(super) fn remove(&mut self, key: &T::Key) -> Option<T> {
        let (bound, chunk) = self.chunks.range_mut(..=key).next_back()?;
        let (bound, at) = (*bound, position(chunk, key).ok()?);
        let member = chunk.remove(at);
        self.len -= 1;
        if chunk.is_empty() {
            self.chunks.remove(&bound);
        } else if chunk.len() <= Self::MAX / 2 {
            self.merge(bound);
        }
        Some(member)
    }

    pub(super) fn pop_first(&mut self) -> Option<T> {
        let key = self.first()?.key();
        self.remove(&key)
    }

    /// The bound of the chunk that a key belongs to, which is made if there is none.
    fn bound_for(&mut self, key: T::Key) -> T::Key {
        if let Some((bound, _)) = self.chunks.range(..=key).next_back() {
            return *bound;
        }
        let first = self.chunks.pop_first().map(|(_, chunk)| chunk);
        self.chunks.insert(key, first.unwrap_or_default());
        key
    }

    /// Splits a full chunk: what comes last moves on, so that a sequence that grows at its end, more
    /// or less, has full chunks.
    fn insert_into_full(&mut self, bound: T::Key, at: usize, member: T) {
        let cut = if at >= Self::MAX - Self::MAX / 4 { at } else { Self::MAX / 2 };
        let chunk = self.chunks.get_mut(&bound).expect("the bound has a chunk");
        let mut moved = Vec::with_capacity(Self::MAX);
        moved.extend(chunk.drain(cut..));
        match at.checked_sub(cut) {
            Some(at) => moved.insert(at, member),
            None => chunk.insert(at, member),
        }
        let next = self.chunks.range((Bound::Excluded(bound), Bound::Unbounded)).next();
        if let Some((&next, chunk)) = next
            && chunk.len() + moved.len() <= Self::MAX
        {
            moved.append(&mut self.chunks.remove(&next).expect("it was there"));
        }
        self.chunks.insert(moved[0].key(), moved);
    }

    /// Joins a chunk with one beside it, if both together leave some room.
    fn merge(&mut self, bound: T::Key) {
        let len = self.chunks[&bound].len();
        let joins = |other: &Vec<T>| len + other.len() <= Self::MAX - Self::MAX / 8;
        let next = self.chunks.range((Bound::Excluded(bound), Bound::Unbounded)).next();
        let next = next.filter(|(_, chunk)| joins(chunk)).map(|(next, _)| (bound, *next));
        let pair = next.or_else(|| {
            let before = self.chunks.range(..bound).next_back();
            before.filter(|(_, chunk)| joins(chunk)).map(|(before, _)| (*before, bound))
        });
        let Some((first, second)) = pair else { return };
        let mut second = self.chunks.remove(&second).expect("it was there");
        let first = self.chunks.get_mut(&first).expect("it was there");
        first.reserve_exact(second.len());
        first.append(&mut second);
    }
}

impl<T: Keyed> IntoIterator for Sorted<T> {
    type Item = T;
    type IntoIter = Flatten<IntoValues<T::Key, Vec<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.chunks.into_values().flatten()
    }
}

fn position<T: Keyed>(chunk: &[T], key: &T::Key) -> Result<usize, usize> {
    // Most are added at the end.
    match chunk.last() {
        Some(last) if last.key() < *key => Err(chunk.len()),
        _ => chunk.binary_search_by_key(key, T::key),
    }
}

/// Inserts into a chunk that is not full, and lets it grow to `max` members at most.
fn insert_into<T>(chunk: &mut Vec<T>, at: usize, member: T, max: usize) {
    if chunk.len() == chunk.capacity() {
        chunk.reserve_exact(chunk.len().max(FIRST_ROOM).min(max - chunk.len()));
    }
    chunk.insert(at, member);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A large one: few make a chunk full.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Member(u16, [u16; 250]);

    impl Keyed for Member {
        type Key = u16;

        fn key(&self) -> u16 {
            self.0
        }
    }

    fn member(key: u16, content: u16) -> Member {
        Member(key, [content; 250])
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16, u16),
        /// The entry goes behind all others.
        Append(u16),
        Remove(u16),
        PopFirst,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (0_u16..100, any::<u16>()).prop_map(|(key, content)| Step::Insert(key, content)),
            4 => any::<u16>().prop_map(Step::Append),
            6 => (0_u16..100).prop_map(Step::Remove),
            1 => Just(Step::PopFirst),
        ];
        prop::collection::vec(step, 0..300)
    }

    proptest! {
        #[test]
        fn it_has_what_a_map_has(steps in steps()) {
            let (mut sorted, mut map) = (Sorted::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(key, content) => {
                        sorted.insert(member(key, content));
                        map.insert(key, member(key, content));
                    }
                    Step::Append(content) => {
                        let key = map.last_key_value().map_or(0, |(key, _)| key + 1);
                        sorted.insert(member(key, content));
                        map.insert(key, member(key, content));
                    }
                    Step::Remove(key) => prop_assert_eq!(sorted.remove(&key), map.remove(&key)),
                    Step::PopFirst => {
                        prop_assert_eq!(sorted.pop_first(), map.pop_first().map(|(_, m)| m));
                    }
                }
                prop_assert!(sorted.iter().eq(map.values()));
                prop_assert_eq!((sorted.len(), sorted.is_empty()), (map.len(), map.is_empty()));
                prop_assert_eq!(sorted.first(), map.values().next());
                let allowed = 1..=Sorted::<Member>::MAX;
                prop_assert!(sorted.chunks.values().all(|chunk| allowed.contains(&chunk.len())));
            }
            for key in 0..100 {
                prop_assert_eq!(sorted.get(&key), map.get(&key));
                let after = map.range((Bound::Excluded(key), Bound::Unbounded));
                prop_assert!(sorted.after(Some(key)).eq(after.map(|(_, member)| member)));
            }
            prop_assert!(sorted.after(None).eq(map.values()));
        }
    }

    /// A list that grows at its end, with some members that come a little late, takes hardly more than
    /// its members.
    #[test]
    fn chunks_become_full_and_little_room_is_left_as_they_empty() {
        #[derive(Debug)]
        struct Small(u64);
        impl Keyed for Small {
            type Key = u64;

            fn key(&self) -> u64 {
                self.0
            }
        }
        let mut random = fastrand::Rng::with_seed(7);
        let mut sorted = Sorted::default();
        for n in 0..100_000_u64 {
            sorted.insert(Small((n << 8) + random.u64(..1 << 12)));
        }
        let room =
            |sorted: &Sorted<Small>| sorted.chunks.values().map(Vec::capacity).sum::<usize>();
        assert!(room(&sorted) < sorted.len() * 11 / 10, "{} of {}", room(&sorted), sorted.len());
        let mut keys: Vec<u64> = sorted.iter().map(Small::key).collect();
        random.shuffle(&mut keys);
        for key in &keys[10_000..] {
            sorted.remove(key);
        }
        assert!(room(&sorted) < sorted.len() * 2, "{} of {}", room(&sorted), sorted.len());
    }
}
