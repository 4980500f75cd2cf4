//! Limits that many holders share, with a share for each of them.
//!
//! A holder is a key, such as an organisation's id. Knows neither mail nor HTTP.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Arc, PoisonError};

use tokio::sync::Notify;

use crate::in_flight::InFlight;
use crate::sync::{Mutex, MutexGuard};

pub use slots::{Slot, Slots, TooMany};

mod slots;

/// Budget of bytes that one holder cannot use up.
///
/// Bytes are granted only if the holder has less in use than is free, and only if they fit into the
/// free bytes: a dynamic threshold, as shared-memory switches have it (Choudhury and Hahne,
/// "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on
/// Networking 6(2), 1998; their factor is 1 here). So a single holder gets about half, `n` greedy
/// ones leave an `n + 1`th free, and a holder with nothing in use only needs room for its own
/// request.
#[derive(Debug)]
pub struct Budget<K>(Arc<Inner<K>>);

/// Bytes of a budget, released when dropped.
#[derive(Debug)]
pub struct Reservation<K: Copy + Eq + Hash> {
    budget: Arc<Inner<K>>,
    holder: K,
    bytes: usize,
}

/// Reason why bytes are not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// The holder has as much in use as is free, or more. Another holder could have them.
    Share,
    /// Fewer bytes are free than requested.
    Whole,
}

#[derive(Debug)]
struct Inner<K> {
    ledger: Mutex<Ledger<K>>,
    released: Notify,
    /// Callers that wait for a release. Without one, a release wakes nobody.
    waiting: InFlight,
}

#[derive(Debug)]
struct Ledger<K> {
    max: usize,
    in_use: usize,
    /// Bytes released since the start.
    released: u64,
    /// Bytes in use by each holder that has any.
    held: HashMap<K, usize>,
}

impl<K> Clone for Budget<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Copy + Eq + Hash> Budget<K> {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        let ledger = Ledger { max, in_use: 0, released: 0, held: HashMap::new() };
        let ledger = Mutex::new(ledger);
        Self(Arc::new(Inner { ledger, released: Notify::new(), waiting: InFlight::default() }))
    }

    /// Reserves bytes for a holder.
    pub fn reserve(&self, holder: K, bytes: usize) -> Result<Reservation<K>, Exhausted> {
        self.0.ledger().take(holder, bytes)?;
        Ok(Reservation { budget: Arc::clone(&self.0), holder, bytes })
    }

    /// Reserves bytes that a holder has in use already, whether or not they would be granted.
    pub fn reserve_always(&self, holder: K, bytes: usize) -> Reservation<K> {
        let mut ledger = self.0.ledger();
        *ledger.held.entry(holder).or_default() += bytes;
        ledger.in_use += bytes;
        drop(ledger);
        Reservation { budget: Arc::clone(&self.0), holder, bytes }
    }

    /// Takes up a reservation that [`Reservation::keep`] has left.
    pub fn resume(&self, holder: K, bytes: usize) -> Reservation<K> {
        Reservation { budget: Arc::clone(&self.0), holder, bytes }
    }

    /// Reserves bytes for a holder once they are granted. Callers try one after the other, in no
    /// order. An owner of many callers lets only one of each holder's wait here.
    pub async fn reserve_later(&self, holder: K, bytes: usize) -> Reservation<K> {
        let _waiting = self.0.waiting.enter();
        loop {
            let released = self.0.released.notified();
            tokio::pin!(released);
            // Registered before the check, so that a release in between is not missed.
            released.as_mut().enable();
            if let Ok(reservation) = self.reserve(holder, bytes) {
                return reservation;
            }
            released.await;
        }
    }

    /// Bytes that have to be released before `bytes` are granted to a holder, at least; an
    /// estimate.
    pub fn missing(&self, holder: K, bytes: usize) -> usize {
        let ledger = self.0.ledger();
        let free = ledger.free();
        // Bytes that a holder releases are taken from its own and added to the free ones.
        let of_share = (ledger.held(holder) + 1).saturating_sub(free).div_ceil(2);
        of_share.max(bytes.saturating_sub(free))
    }

    /// Holders whose share is used up.
    pub fn full_for(&self) -> Vec<K> {
        let ledger = self.0.ledger();
        let free = ledger.free();
        let full = ledger.held.iter().filter(|(_, held)| **held >= free);
        full.map(|(holder, _)| *holder).collect()
    }

    /// The part of its share that the holder with the most in use has in use: 1 if nothing more is
    /// granted to it, and up to 2 if others use up the free bytes.
    #[expect(clippy::cast_precision_loss, reason = "a ratio to look at")]
    pub fn greatest_share(&self) -> f64 {
        let ledger = self.0.ledger();
        let held = ledger.held.values().max().copied().unwrap_or_default();
        if held == 0 { 0.0 } else { 2.0 * held as f64 / (held as f64 + ledger.free() as f64) }
    }

    /// Bytes in use by all holders.
    pub fn in_use(&self) -> usize {
        self.0.ledger().in_use
    }

    /// Bytes released since the start.
    pub fn released(&self) -> u64 {
        self.0.ledger().released
    }

    /// Bytes that may be in use in all.
    pub fn max(&self) -> usize {
        self.0.ledger().max
    }

    /// Changes the number of bytes that may be in use in all. If more are, they stay, and none are
    /// granted until enough are released.
    pub fn set_max(&self, max: usize) {
        self.0.ledger().max = max;
        self.0.released.notify_waiters();
    }
}

impl<K: Copy + Eq + Hash> Reservation<K> {
    /// Grows to `bytes`, by the same rule, or stays as it is.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let more = bytes.saturating_sub(self.bytes);
        self.budget.ledger().take(self.holder, more)?;
        self.bytes += more;
        Ok(())
    }

    /// Holder that has the bytes in use.
    pub const fn holder(&self) -> K {
        self.holder
    }

    /// Number of bytes that are reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leaves the bytes in use, and returns their number for [`Budget::resume`].
    pub fn keep(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl<K: Copy + Eq + Hash> Drop for Reservation<K> {
    fn drop(&mut self) {
        self.budget.ledger().give_back(self.holder, self.bytes);
        // A caller that found no room before this counts as waiting since then.
        if self.budget.waiting.count() > 0 {
            self.budget.released.notify_waiters();
        }
    }
}

impl<K> Inner<K> {
    fn ledger(&self) -> MutexGuard<'_, Ledger<K>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> Ledger<K> {
    fn free(&self) -> usize {
        self.max.saturating_sub(self.in_use)
    }

    fn held(&self, holder: K) -> usize {
        self.held.get(&holder).copied().unwrap_or_default()
    }

    fn take(&mut self, holder: K, bytes: usize) -> Result<(), Exhausted> {
        let free = self.free();
        if bytes > free {
            return Err(Exhausted::Whole);
        }
        match self.held.entry(holder) {
            Entry::Occupied(held) if *held.get() >= free => return Err(Exhausted::Share),
            Entry::Occupied(mut held) => *held.get_mut() += bytes,
            Entry::Vacant(held) => {
                held.insert(bytes);
            }
        }
        self.in_use += bytes;
        Ok(())
    }

    fn give_back(&mut self, holder: K, bytes: usize) {
        self.in_use -= bytes;
        self.released += bytes as u64;
        if let Entry::Occupied(mut held) = self.held.entry(holder) {
            *held.get_mut() -= bytes;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests;
