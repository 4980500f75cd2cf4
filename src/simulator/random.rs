//! Random numbers that a seed decides, probabilities, and ids in AWS's forms.
//!
//! The n-th number depends on the seed and on n alone, so that a run can be repeated. Must not
//! know what the numbers decide.

use std::sync::atomic::{AtomicU64, Ordering};

use pillarbox_domain::time::Timestamp;

/// A probability from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Probability(f64);

/// A probability is outside 0 to 1, or all of them together are over 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("each fault probability must be from 0 to 1, and their sum at most 1")]
pub struct InvalidProbability;

impl Probability {
    /// It never happens; the default.
    pub const NEVER: Self = Self(0.0);
    /// It happens every time.
    pub const ALWAYS: Self = Self(1.0);

    /// Checks that the number is from 0 to 1.
    pub fn new(probability: f64) -> Result<Self, InvalidProbability> {
        if (0.0..=1.0).contains(&probability) {
            Ok(Self(probability))
        } else {
            Err(InvalidProbability)
        }
    }
}

/// A sequence of numbers that the seed alone decides.
#[derive(Debug)]
pub(super) struct SeededRandom {
    seed: u64,
    drawn: u64,
}

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.drawn += 1;
        nth_random(self.seed, self.drawn)
    }

    /// The next number as a fraction from 0 to below 1.
    pub(super) fn next_fraction(&mut self) -> f64 {
        // The upper 53 bits.
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
        let numerator = (self.next_u64() >> 11) as f64;
        #[expect(clippy::cast_precision_loss, reason = "a power of two is exact in an f64")]
        let denominator = (1_u64 << 53) as f64;
        numerator / denominator
    }

    /// Decides if it happens this time. [`Probability::NEVER`] takes no number from the sequence.
    pub(super) fn happens(&mut self, probability: Probability) -> bool {
        probability != Probability::NEVER && self.next_fraction() < probability.0
    }
}

/// The ids that one simulator gives out.
#[derive(Debug)]
pub(super) struct IdGenerator {
    seed: u64,
    drawn: AtomicU64,
}

impl IdGenerator {
    pub(super) fn new() -> Self {
        // Not the options' seed: two simulators must not give out the same ids. Without
        // randomness from the system, the counter alone still keeps them apart in one run.
        Self { seed: getrandom::u64().unwrap_or_default(), drawn: AtomicU64::new(0) }
    }

    /// An id in the form of SES's message ids: `0100` and the time, a UUID, six zeros.
    pub(super) fn message_id(&self, now: Timestamp) -> String {
        format!("0100{:012x}-{}-000000", now.unix_millis(), self.uuid())
    }

    /// An id in the form of a random UUID.
    pub(super) fn uuid(&self) -> String {
        let n = self.drawn.fetch_add(2, Ordering::Relaxed);
        let (high, low) = (nth_random(self.seed, n), nth_random(self.seed, n + 1));
        let bytes = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }
}

/// The n-th number of the splitmix64 sequence that starts at `seed`.
pub(super) fn nth_random(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_its_published_numbers() {
        // Reference output of splitmix64.c for the seed 1234567.
        assert_eq!(nth_random(1_234_567, 1), 6_457_827_717_110_365_317);
        assert_eq!(nth_random(1_234_567, 2), 3_203_168_211_198_807_973);
    }

    #[test]
    fn probabilities_are_from_0_to_1_and_come_as_often_as_asked() {
        let mut random = SeededRandom::new(1);
        let half = Probability::new(0.5).unwrap();
        let hits = (0..10_000).filter(|_| random.happens(half)).count();
        assert!((4_700..5_300).contains(&hits), "{hits} of 10,000 at 0.5");
        assert!((0..100).all(|_| random.happens(Probability::ALWAYS)));
        assert!((0..100).all(|_| !random.happens(Probability::NEVER)));
        for p in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Probability::new(p), Err(InvalidProbability));
        }
    }
}
