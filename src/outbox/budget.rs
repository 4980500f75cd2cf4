//! The byte budget of pending messages: reserved before a message is stored, released with it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What a pending message costs in memory beyond its encoded request, in bytes: its entry, its
/// turn, their share of the maps that hold them, and what the allocator rounds up. Measured by the
/// bench `memory`, with requests of 2.8 KB: 784.
const FIXED_CHARGE: usize = 800;

/// What the least of messages takes up: its charge, and a line or two with their addresses.
const LEAST_MESSAGE: usize = 1424;

/// Over how long the speed of release is measured.
const MEASURED_OVER: Duration = Duration::from_secs(1);
/// What a client is told at least and at most.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// How many bytes pending messages may take up.
#[derive(Debug)]
pub struct Budget {
    ledger: Arc<Ledger>,
    max: AtomicUsize,
}

/// A part of the budget, released when dropped.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    bytes: usize,
}

#[derive(Debug)]
struct Ledger {
    in_use: AtomicUsize,
    /// Bytes released since the last measurement.
    released: AtomicUsize,
    speed: Mutex<Speed>,
}

/// How fast bytes are released.
#[derive(Debug)]
struct Speed {
    measured_at: Instant,
    bytes_per_second: f64,
}

/// How full a budget is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// There is room.
    Room,
    /// Less than a twentieth is left: a large message may find no room.
    NearlyFull,
    /// Not even a message of a line or two finds room.
    Full,
}

impl Fill {
    /// How full a budget of `max` bytes is with `in_use` of them taken.
    pub fn of(in_use: usize, max: usize) -> Self {
        let left = max.saturating_sub(in_use);
        if left < LEAST_MESSAGE {
            Self::Full
        } else if left <= max / 20 {
            Self::NearlyFull
        } else {
            Self::Room
        }
    }
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        let ledger = Ledger {
            in_use: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            speed: Mutex::new(Speed { measured_at: Instant::now(), bytes_per_second: 0.0 }),
        };
        Self { ledger: Arc::new(ledger), max: AtomicUsize::new(max) }
    }

    /// Reserves the room of a message whose encoded request has `encoded` bytes; `None` where it
    /// is used up.
    pub fn reserve(&self, encoded: usize) -> Option<Reservation> {
        let bytes = encoded.checked_add(FIXED_CHARGE)?;
        let max = self.max();
        self.ledger
            .in_use
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |in_use| {
                in_use.checked_add(bytes).filter(|sum| *sum <= max)
            })
            .ok()?;
        Some(Reservation { ledger: Arc::clone(&self.ledger), bytes })
    }

    /// How long it should take until a message of `encoded` bytes has room, at the speed at which
    /// messages have been leaving; within what a client can be asked to wait.
    pub fn free_in(&self, encoded: usize) -> Duration {
        let missing = (self.in_use() + encoded + FIXED_CHARGE).saturating_sub(self.max());
        let speed = self.ledger.bytes_per_second(Instant::now());
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = missing as f64 / speed;
        Duration::try_from_secs_f64(seconds.ceil())
            .unwrap_or(LONGEST_WAIT)
            .clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }

    /// How many bytes are reserved.
    pub fn in_use(&self) -> usize {
        self.ledger.in_use.load(Ordering::Acquire)
    }

    /// How many bytes may be reserved in all.
    pub fn max(&self) -> usize {
        self.max.load(Ordering::Acquire)
    }

    /// Changes how many bytes may be reserved in all. Where more are in use, they stay, and no
    /// more are reserved until enough are released.
    pub fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Release);
    }
}

impl Ledger {
    fn bytes_per_second(&self, now: Instant) -> f64 {
        let mut speed = self.speed.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_duration_since(speed.measured_at);
        if elapsed >= MEASURED_OVER {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let released = self.released.swap(0, Ordering::Relaxed) as f64;
            speed.bytes_per_second = released / elapsed.as_secs_f64();
            speed.measured_at = now;
        }
        speed.bytes_per_second
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.in_use.fetch_sub(self.bytes, Ordering::AcqRel);
        self.ledger.released.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_full_only_where_no_message_finds_room() {
        const MAX: usize = 20 << 20;
        for (left, fill) in [
            (MAX, Fill::Room),
            ((1 << 20) + 1, Fill::Room),
            (1 << 20, Fill::NearlyFull),
            (LEAST_MESSAGE, Fill::NearlyFull),
            (LEAST_MESSAGE - 1, Fill::Full),
            (0, Fill::Full),
        ] {
            assert_eq!(Fill::of(MAX - left, MAX), fill, "{left}");
        }
        // A budget that was lowered under what it holds.
        assert_eq!(Fill::of(MAX + 1, MAX), Fill::Full);
    }
}
