//! Slots, of which each holder has a few of its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sync::{Mutex, MutexGuard};

/// Slots, of which each holder may take a fixed number at one time. Further callers of a holder
/// wait for that holder's own slots, in order. If too many wait, the next is refused.
#[derive(Debug)]
pub struct Slots<K> {
    max_taken: usize,
    max_present: usize,
    lanes: Lanes<K>,
}

/// A slot, free again when dropped.
#[derive(Debug)]
pub struct Slot<K: Copy + Eq + Hash> {
    // Fields drop in order: the lane may go only after its slot is free.
    _permit: OwnedSemaphorePermit,
    _presence: Presence<K>,
}

/// Too many callers of one holder wait already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany;

type Lanes<K> = Arc<Mutex<HashMap<K, Lane>>>;

/// A holder's slots, for as long as a caller of it is present.
#[derive(Debug)]
struct Lane {
    slots: Arc<Semaphore>,
    /// Callers that wait or have a slot.
    present: usize,
}

/// A caller that is counted until this is dropped.
#[derive(Debug)]
struct Presence<K: Copy + Eq + Hash> {
    lanes: Lanes<K>,
    holder: K,
}

impl<K: Copy + Eq + Hash> Slots<K> {
    /// Slots of which each holder may take `max_taken` while `max_waiting` callers of it wait.
    pub fn new(max_taken: usize, max_waiting: usize) -> Self {
        Self { max_taken, max_present: max_taken + max_waiting, lanes: Arc::default() }
    }

    /// Takes one of the holder's slots, as soon as one is free.
    pub async fn take(&self, holder: K) -> Result<Slot<K>, TooMany> {
        let (slots, presence) = self.enter(holder)?;
        let permit = slots.acquire_owned().await.expect("the semaphore is never closed");
        Ok(Slot { _permit: permit, _presence: presence })
    }

    fn enter(&self, holder: K) -> Result<(Arc<Semaphore>, Presence<K>), TooMany> {
        let mut lanes = lock(&self.lanes);
        let lane = lanes.entry(holder).or_insert_with(|| Lane {
            slots: Arc::new(Semaphore::new(self.max_taken)),
            present: 0,
        });
        if lane.present >= self.max_present {
            return Err(TooMany);
        }
        lane.present += 1;
        let presence = Presence { lanes: Arc::clone(&self.lanes), holder };
        Ok((Arc::clone(&lane.slots), presence))
    }
}

impl<K: Copy + Eq + Hash> Drop for Presence<K> {
    fn drop(&mut self) {
        let mut lanes = lock(&self.lanes);
        if let Some(lane) = lanes.get_mut(&self.holder) {
            lane.present -= 1;
            if lane.present == 0 {
                lanes.remove(&self.holder);
            }
        }
    }
}

fn lock<K>(lanes: &Lanes<K>) -> MutexGuard<'_, HashMap<K, Lane>> {
    lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn a_holder_waits_for_its_own_slots_alone() {
        let slots = Slots::new(2, 1);
        let first = slots.take('a').await.unwrap();
        let _second = slots.take('a').await.unwrap();
        let third = slots.take('a');
        tokio::pin!(third);
        assert!(timeout(SOON, &mut third).await.is_err(), "it waits");
        assert_eq!(slots.take('a').await.unwrap_err(), TooMany);
        let _other = timeout(SOON, slots.take('b')).await.expect("at once").unwrap();
        drop(first);
        let _third = timeout(SOON, third).await.expect("its turn").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_goes_while_waiting_makes_room_and_nothing_is_left_behind() {
        let slots = Slots::new(1, 1);
        let first = slots.take('a').await.unwrap();
        assert!(timeout(SOON, slots.take('a')).await.is_err());
        assert!(timeout(SOON, slots.take('a')).await.is_err(), "the place is free again");
        drop(first);
        drop(slots.take('a').await.unwrap());
        assert!(lock(&slots.lanes).is_empty());
    }
}
