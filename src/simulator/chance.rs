//! Chances and the dice that decide them from a seed.
//!
//! Must not know what is at stake.

use super::faults::{NotAProbability, nth_random, unit_interval};

/// A probability from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Chance(f64);

impl Chance {
    /// It never happens; the default.
    pub const NEVER: Self = Self(0.0);
    /// It happens every time.
    pub const ALWAYS: Self = Self(1.0);

    /// A chance of this probability.
    pub fn new(probability: f64) -> Result<Self, NotAProbability> {
        if (0.0..=1.0).contains(&probability) {
            Ok(Self(probability))
        } else {
            Err(NotAProbability)
        }
    }
}

/// A sequence of numbers that the seed alone decides.
#[derive(Debug)]
pub(super) struct Dice {
    seed: u64,
    drawn: u64,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.drawn += 1;
        nth_random(self.seed, self.drawn)
    }

    /// Whether it happens this time. What can never happen draws nothing.
    pub(super) fn hits(&mut self, chance: Chance) -> bool {
        chance != Chance::NEVER && unit_interval(self.roll()) < chance.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_come_as_often_as_asked_and_are_probabilities() {
        let mut dice = Dice::new(1);
        let half = Chance::new(0.5).unwrap();
        let hits = (0..10_000).filter(|_| dice.hits(half)).count();
        assert!((4_700..5_300).contains(&hits), "{hits} of 10,000 at 0.5");
        assert!((0..100).all(|_| dice.hits(Chance::ALWAYS) && !dice.hits(Chance::NEVER)));
        for p in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Chance::new(p), Err(NotAProbability));
        }
    }
}
