//! Ids in the forms that AWS gives.
//!
//! Must not know what they are for.

use std::sync::atomic::{AtomicU64, Ordering};

use super::faults::nth_random;
use crate::domain::time::Timestamp;

/// One simulator's ids.
#[derive(Debug)]
pub(super) struct Ids {
    seed: u64,
    drawn: AtomicU64,
}

impl Ids {
    pub(super) fn new() -> Self {
        // Not the options' seed: two simulators must not give out the same ids. Without
        // randomness from the system, the counter alone still keeps them apart in one run.
        Self { seed: getrandom::u64().unwrap_or_default(), drawn: AtomicU64::new(0) }
    }

    /// A message id in the look of SES's: `0100` and the time, a UUID, six zeros.
    pub(super) fn message_id(&self, now: Timestamp) -> String {
        format!("0100{:012x}-{}-000000", now.unix_millis(), self.uuid())
    }

    /// An id in the form of a random UUID.
    pub(super) fn uuid(&self) -> String {
        let n = self.drawn.fetch_add(2, Ordering::Relaxed);
        let (high, low) = (nth_random(self.seed, n), nth_random(self.seed, n + 1));
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 50),
            low & 0xffff_ffff_ffff
        )
    }
}
