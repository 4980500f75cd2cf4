//! Delay until the next attempt: exponential backoff with full jitter.
//!
//! Source: "Exponential Backoff And Jitter", AWS Architecture Blog: the delay is drawn evenly from
//! zero to the capped exponential, which spreads a backlog's retries best.

use std::time::Duration;

/// The least wait after a lost answer if events may resolve the doubt.
pub const WAIT_FOR_PROOF: Duration = Duration::from_mins(1);

/// Backoff between the attempts of one message.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
}

/// The bounds do not make a valid backoff.
#[derive(Debug, thiserror::Error)]
#[error("the first delay must be above zero and at most the longest delay")]
pub struct BadBackoff;

impl Backoff {
    /// Delays drawn from up to `initial` after the first attempt, doubling up to `max`.
    pub fn try_new(initial: Duration, max: Duration) -> Result<Self, BadBackoff> {
        if initial.is_zero() || initial > max {
            return Err(BadBackoff);
        }
        Ok(Self { initial, max })
    }

    /// The longest delay of all.
    pub fn max(self) -> Duration {
        self.max
    }

    /// The longest delay that may follow attempt number `attempts` (1 for the first).
    pub fn ceiling(self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// The delay after attempt number `attempts`, for `draw` taken evenly from 0 to 1.
    pub fn delay(self, attempts: u32, draw: f64) -> Duration {
        self.ceiling(attempts).mul_f64(draw.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_delay_never_exceeds_the_ceiling_and_ceilings_never_shrink(
            initial in 1_u64..10_000, extra in 0_u64..1_000_000, attempts in 1_u32..1_000, draw in 0.0..=1.0
        ) {
            let max = Duration::from_millis(initial + extra);
            let backoff = Backoff::try_new(Duration::from_millis(initial), max).unwrap();
            prop_assert!(backoff.delay(attempts, draw) <= backoff.ceiling(attempts));
            prop_assert!(backoff.ceiling(attempts) <= backoff.ceiling(attempts + 1));
            prop_assert!(backoff.ceiling(attempts) <= max);
        }
    }

    #[test]
    fn ceilings_double_from_the_initial_delay() {
        let backoff = Backoff::try_new(Duration::from_secs(1), Duration::from_secs(5)).unwrap();
        let seconds: Vec<_> = (1..=5).map(|n| backoff.ceiling(n).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.max(), Duration::from_secs(5));
        for (draw, millis) in [(0.0, 0), (0.5, 2_000), (1.0, 4_000), (2.0, 4_000)] {
            assert_eq!(backoff.delay(3, draw), Duration::from_millis(millis), "{draw}");
        }
        let equal = Backoff::try_new(Duration::from_secs(5), Duration::from_secs(5));
        assert_eq!(equal.unwrap().ceiling(1), Duration::from_secs(5));
        assert!(Backoff::try_new(Duration::from_secs(6), Duration::from_secs(5)).is_err());
        assert!(Backoff::try_new(Duration::ZERO, Duration::from_secs(5)).is_err());
    }
}
