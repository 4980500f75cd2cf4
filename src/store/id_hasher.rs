//! Hasher for tables in memory whose keys nobody outside can choose: ids that the store gives, and
//! hashes. It takes a fraction of the time of the standard one, which is made for chosen keys.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Map by ids of our own.
pub(super) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// An odd number without structure: the fractional part of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies in 128 bits and folds the halves, so that each bit of an id moves bits at both ends of
/// the hash. Tables look at both.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IdHasher(u64);

impl IdHasher {
    fn add(&mut self, word: u64) {
        let product = u128::from((self.0 ^ word).wrapping_add(MULTIPLIER)) * u128::from(MULTIPLIER);
        let [low, high] = halves(product);
        self.0 = low ^ high;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are what is asked for")]
const fn halves(product: u128) -> [u64; 2] {
    [product as u64, (product >> 64) as u64]
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_ne_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.add(u64::from_ne_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.add(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.add(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;
    use crate::domain::id::MessageIds;
    use crate::domain::time::Timestamp;

    fn hash(key: impl std::hash::Hash) -> u64 {
        BuildHasherDefault::<IdHasher>::default().hash_one(key)
    }

    /// Holds the number of different values to what random ones would have, and a little less.
    fn are_spread(hashes: &[u64]) {
        let parts = [|hash: u64| hash >> 57, |hash: u64| hash & 0x7f];
        for part in parts {
            let mut counts = [0_usize; 128];
            for hash in hashes {
                counts[usize::try_from(part(*hash)).unwrap()] += 1;
            }
            let most = counts.into_iter().max().unwrap();
            assert!(most < hashes.len() / 128 * 2, "{most} of {}", hashes.len());
        }
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
    }

    #[test]
    fn ids_that_follow_each_other_spread_over_a_table() {
        let ids = MessageIds::new();
        let of_one_instant: Vec<_> = (0..20_000)
            .map(|_| hash(ids.next(Timestamp::from_unix_millis(1_800_000_000_000)).as_bytes()))
            .collect();
        are_spread(&of_one_instant);
        let of_all: Vec<_> = (0..20_000)
            .map(|n| {
                hash((7_u8, *MessageIds::new().next(Timestamp::from_unix_millis(n)).as_bytes()))
            })
            .collect();
        are_spread(&of_all);
        are_spread(&(0..20_000_u32).map(hash).collect::<Vec<_>>());
    }

    #[test]
    fn every_byte_counts() {
        let zeros = [0_u8; 19];
        for at in 0..zeros.len() {
            let mut other = zeros;
            other[at] = 1;
            assert_ne!(hash(zeros), hash(other), "{at}");
        }
        assert_ne!(hash((1_u8, [0_u8; 16])), hash((2_u8, [0_u8; 16])));
    }
}
