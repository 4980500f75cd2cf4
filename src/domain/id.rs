//! Identifiers: message ids that sort by acceptance, and the numbers of organisations and keys.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::time::Timestamp;

/// A message's identifier: a `UUIDv7`, shown in lower case with hyphens.
///
/// Ids order by acceptance within a process, so tables keyed by them grow at their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Uuid);

/// The text is not a message id in its one accepted spelling.
#[derive(Debug, thiserror::Error)]
#[error("not a message id")]
pub struct NotAMessageId;

impl MessageId {
    /// The id with these 16 bytes, as stored.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The 16 bytes, in an order that sorts as the ids do.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The smallest id of `instant`, or of the last one that an id can hold: a bound for ranges
    /// over time.
    pub fn first_of(instant: Timestamp) -> Self {
        let millis = instant.unix_millis().min((1 << 48) - 1);
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        Self::from_bytes(bytes)
    }

    /// Returns the ids that begin with a text: at least the first 16 characters of an id, in any
    /// case, because fewer hold only a time. `None` if no id begins so.
    pub fn beginning_with(text: &str) -> Option<RangeInclusive<Self>> {
        const FEWEST: usize = 16;
        const LOWEST: &str = "00000000-0000-7000-8000-000000000000";
        const HIGHEST: &str = "ffffffff-ffff-7fff-bfff-ffffffffffff";
        let given = text.to_ascii_lowercase();
        let rest =
            |bound: &'static str| given.is_ascii().then(|| bound.get(given.len()..)).flatten();
        if given.len() < FEWEST {
            return None;
        }
        let with = |bound| format!("{given}{}", rest(bound)?).parse().ok();
        Some(with(LOWEST)?..=with(HIGHEST)?)
    }

    /// Returns the id that follows this one. No id is between the two.
    #[must_use]
    pub fn successor(self) -> Self {
        Self(Uuid::from_u128(self.0.as_u128().saturating_add(1)))
    }

    /// The id as a number, in the order of the ids.
    pub const fn as_number(self) -> u128 {
        self.0.as_u128()
    }

    /// The instant in the id (RFC 9562, section 5.7): that of acceptance, or a later one if the
    /// clock was set back or stood still.
    pub fn instant(&self) -> Timestamp {
        let mut millis = [0; 8];
        millis[2..].copy_from_slice(&self.as_bytes()[..6]);
        Timestamp::from_unix_millis(u64::from_be_bytes(millis))
    }
}

impl FromStr for MessageId {
    type Err = NotAMessageId;

    /// Accepts only the canonical spelling, so that one message has one address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uuid = Uuid::try_parse(text).map_err(|_| NotAMessageId)?;
        let mut buffer = Uuid::encode_buffer();
        if uuid.hyphenated().encode_lower(&mut buffer) == text && uuid.get_version_num() == 7 {
            Ok(Self(uuid))
        } else {
            Err(NotAMessageId)
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The bits of an id behind its instant: `rand_a` and `rand_b` of RFC 9562, 12 and 62 of them.
const TAIL_BITS: u32 = 74;
const RAND_B_BITS: u32 = 62;
/// Number of random bytes that are taken from the operating system at one time. A call for each id
/// would cost more than everything else about it.
const RANDOM_BYTES: usize = 1_024;

/// Makes message ids that grow strictly, also if the clock stops or is set back.
#[derive(Debug)]
pub struct MessageIds(Mutex<Sequence>);

#[derive(Debug)]
struct Sequence {
    /// The last id's instant.
    millis: u64,
    /// The last id's other bits.
    tail: u128,
    random: [u8; RANDOM_BYTES],
    used: usize,
}

impl Default for MessageIds {
    fn default() -> Self {
        Self::new()
    }
}

impl MessageIds {
    /// A generator that starts at a random place.
    pub fn new() -> Self {
        let random = [0; RANDOM_BYTES];
        Self(Mutex::new(Sequence { millis: 0, tail: 0, random, used: RANDOM_BYTES }))
    }

    /// The next id, for a message accepted at `now`.
    pub fn next(&self, now: Timestamp) -> MessageId {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next(now.unix_millis())
    }
}

impl Sequence {
    /// RFC 9562 section 6.2, method 2: within one instant, an id is the one before and a random
    /// step.
    fn next(&mut self, now_millis: u64) -> MessageId {
        if now_millis > self.millis {
            self.start(now_millis);
        } else {
            self.tail += 1 + u128::from(u32::from_be_bytes(self.random()));
            if self.tail >> TAIL_BITS != 0 {
                self.start(self.millis + 1);
            }
        }
        let (rand_a, rand_b) = (self.tail >> RAND_B_BITS, self.tail & ((1 << RAND_B_BITS) - 1));
        let (version, variant) = (7, 0b10);
        let bits = u128::from(self.millis) << 80
            | version << 76
            | rand_a << 64
            | variant << RAND_B_BITS
            | rand_b;
        MessageId(Uuid::from_u128(bits))
    }

    /// Starts an instant at a random tail, in the lower half: there is room for all its steps.
    fn start(&mut self, millis: u64) {
        self.millis = millis;
        self.tail = u128::from_be_bytes(self.random()) & ((1 << (TAIL_BITS - 1)) - 1);
    }

    fn random<const N: usize>(&mut self) -> [u8; N] {
        if self.used + N > RANDOM_BYTES {
            getrandom::fill(&mut self.random).expect("the operating system gives random numbers");
            self.used = 0;
        }
        let bytes = self.random[self.used..].first_chunk().expect("there are enough left");
        self.used += N;
        *bytes
    }
}

/// An organisation's number. It is not given again, even after the organisation is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrganisationId(pub u32);

/// An API key's number, which an operator names to revoke the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_by_its_first_sixteen_characters_in_any_case() {
        let id: MessageId = "01a1fd35-1c2b-7abc-9def-0123456789ab".parse().unwrap();
        let text = id.to_string();
        for length in 16..=36 {
            let ids = MessageId::beginning_with(&text[..length].to_uppercase()).unwrap();
            assert!(ids.contains(&id), "{length}");
        }
        assert_eq!(MessageId::beginning_with(&text).unwrap(), id..=id);
        for none in
            ["01a1fd35-1c2b-7", "01a1fd35-1c2b-4a", "Your order of today", "äääääääääääääääää"]
        {
            assert!(MessageId::beginning_with(none).is_none(), "{none}");
        }
        assert!(MessageId::beginning_with(&format!("{text}0")).is_none());
    }

    #[test]
    fn an_operator_names_a_key_by_its_number() {
        assert_eq!(KeyId(1_815).to_string(), "1815");
    }

    #[test]
    fn ids_grow_though_the_clock_stands_still_or_goes_back() {
        let ids = MessageIds::new();
        let noon = Timestamp::from_unix_millis(1_800_000_000_000);
        let earlier = Timestamp::from_unix_millis(1_799_000_000_000);
        let mut last = ids.next(noon);
        for _ in 0..10_000 {
            for now in [noon, earlier] {
                let next = ids.next(now);
                assert!(next > last);
                last = next;
            }
        }
    }

    #[test]
    fn an_id_is_a_uuid_of_version_7_with_its_instant_and_unlike_any_other() {
        let now = Timestamp::from_unix_millis(1_800_000_000_000);
        let ids = MessageIds::new();
        let mut seen = std::collections::HashSet::new();
        for id in (0..10_000).map(|_| ids.next(now)) {
            assert_eq!(id.0.get_version(), Some(uuid::Version::SortRand));
            assert_eq!(id.0.get_variant(), uuid::Variant::RFC4122);
            assert_eq!(id.instant(), now);
            assert!(seen.insert(id));
        }
        let later = MessageIds::new().next(now);
        assert!(!seen.contains(&later), "generators start at places of their own");
    }

    #[test]
    fn all_bits_of_an_id_after_its_instant_are_random() {
        let ids = MessageIds::new();
        let fixed = (0b111 << 76) | (0b10 << RAND_B_BITS);
        // An instant starts in the lower half.
        let random = (1 << 75) - 1 - (0b11 << RAND_B_BITS);
        let (mut ever_set, mut always_set) = (0, u128::MAX);
        let mut tails = std::collections::HashSet::new();
        for millis in 1..=1_000 {
            let tail = ids.next(Timestamp::from_unix_millis(millis)).0.as_u128() & ((1 << 80) - 1);
            assert!(tails.insert(tail));
            (ever_set, always_set) = (ever_set | tail, always_set & tail);
        }
        assert_eq!((ever_set, always_set), (fixed | random, fixed));
    }

    #[test]
    fn an_instant_that_is_full_is_followed_by_the_next() {
        let ids = MessageIds::new();
        let now = Timestamp::from_unix_millis(1_800_000_000_000);
        let last = ids.next(now);
        ids.0.lock().unwrap().tail = (1 << TAIL_BITS) - 1;
        let next = ids.next(now);
        assert!(next > last);
        assert_eq!(next.instant().unix_millis(), now.unix_millis() + 1);
    }

    #[test]
    fn ids_grow_even_by_a_random_step_of_zero() {
        let ids = MessageIds::new();
        let now = Timestamp::from_unix_millis(1_800_000_000_000);
        let last = ids.next(now);
        let step = |byte| {
            let mut sequence = ids.0.lock().unwrap();
            (sequence.random, sequence.used) = ([byte; RANDOM_BYTES], 0);
            sequence.next(now.unix_millis()).as_number()
        };
        assert_eq!(step(0) - last.as_number(), 1);
    }

    #[test]
    fn an_instant_starts_in_the_lower_half_at_any_place() {
        let start = |byte| {
            let random = [byte; RANDOM_BYTES];
            let mut sequence = Sequence { millis: 0, tail: 0, random, used: 0 };
            sequence.next(1);
            sequence.tail
        };
        assert_eq!([start(0), start(u8::MAX)], [0, (1 << (TAIL_BITS - 1)) - 1]);
    }

    #[test]
    fn only_the_canonical_spelling_is_an_id() {
        let id = MessageIds::new().next(Timestamp::from_unix_millis(1_800_000_000_000));
        let text = id.to_string();
        assert_eq!(text.parse::<MessageId>().unwrap(), id);
        assert!(text.to_uppercase().parse::<MessageId>().is_err());
        assert!(text.replace('-', "").parse::<MessageId>().is_err());
        assert!(format!("{{{text}}}").parse::<MessageId>().is_err());
        assert!("".parse::<MessageId>().is_err());
    }

    #[test]
    fn an_instants_first_id_precedes_its_ids_and_follows_those_before() {
        let now = Timestamp::from_unix_millis(1_800_000_000_000);
        let ids = MessageIds::new();
        let before = ids.next(Timestamp::from_unix_millis(now.unix_millis() - 1));
        let at = ids.next(now);
        assert!(before < MessageId::first_of(now) && MessageId::first_of(now) <= at);
        assert_eq!(at.instant(), now);
        let last = MessageId::first_of(Timestamp::from_unix_millis(u64::MAX));
        assert_eq!(last.instant().unix_millis(), (1 << 48) - 1, "the last that an id can hold");
    }
}
