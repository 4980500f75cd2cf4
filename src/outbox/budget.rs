//! The byte budget of pending messages: reserved before a message is stored, released with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a pending message costs in memory beyond its encoded request: its entry, its turn and
/// their share of the maps that hold them, in bytes.
pub const FIXED_CHARGE: usize = 400;

/// How many bytes pending messages may take up.
#[derive(Debug)]
pub struct Budget {
    in_use: Arc<AtomicUsize>,
    max: usize,
}

/// A part of the budget, released when dropped.
#[derive(Debug)]
pub struct Reservation {
    in_use: Arc<AtomicUsize>,
    bytes: usize,
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { in_use: Arc::default(), max }
    }

    /// Reserves the room of a message whose encoded request has `encoded` bytes; `None` where it
    /// is used up.
    pub fn reserve(&self, encoded: usize) -> Option<Reservation> {
        let bytes = encoded + FIXED_CHARGE;
        self.in_use
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |in_use| {
                in_use.checked_add(bytes).filter(|sum| *sum <= self.max)
            })
            .ok()?;
        Some(Reservation { in_use: Arc::clone(&self.in_use), bytes })
    }

    /// How many bytes are reserved.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    /// How many bytes may be reserved in all.
    pub fn max(&self) -> usize {
        self.max
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.in_use.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
