//! The queue: what SQS keeps, hides, hands out again and forgets.
//!
//! At-least-once and without order, as a standard queue is, and on request visibly so. Pure
//! bookkeeping over instants that are passed in. Must not know HTTP, SQS's wording or events.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::chance::Dice;
use crate::domain::time::Timestamp;

mod options;
mod receipt;

pub use options::{DeliveryOrder, QueueCounts, QueueOptions};
pub(super) use receipt::{InvalidReceipt, Receipt};

/// Bytes of bodies kept, whatever their number.
const CAPACITY_BYTES: usize = 512 * 1024 * 1024;
/// SQS: messages in flight in one standard queue.
const IN_FLIGHT_MAX: usize = 120_000;
/// The queue holds as much as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulator's queue is full")]
pub struct QueueFull;

/// As many messages are in flight as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyInFlight;

/// A message on its way into the queue.
#[derive(Debug, Clone)]
pub(super) struct NewMessage {
    pub(super) id: String,
    pub(super) body: Arc<str>,
    pub(super) sent_at: Timestamp,
    pub(super) delay: Duration,
}

/// A message that is handed out.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) id: Arc<str>,
    pub(super) receipt: Receipt,
    pub(super) body: Arc<str>,
    pub(super) receives: u32,
    pub(super) sent_at: Timestamp,
    pub(super) first_received_at: Timestamp,
}

#[derive(Debug)]
struct Stored {
    id: Arc<str>,
    body: Arc<str>,
    sent_at: Timestamp,
    first_received_at: Option<Timestamp>,
    receives: u32,
    rank: u64,
    place: Place,
    copies: Copies,
}

/// Where a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Ready,
    Delayed(Instant),
    InFlight(Instant),
}

/// Whether a message may still be doubled on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copies {
    Undecided,
    Decided,
}

/// What became of a change to a message's visibility.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VisibilityChange {
    Done,
    NotInFlight,
    Gone,
}

/// All messages, by the number of their arrival.
#[derive(Debug)]
pub(super) struct Queue {
    options: QueueOptions,
    dice: Dice,
    key: u64,
    stored: HashMap<u64, Stored>,
    /// By rank, then number.
    ready: BTreeSet<(u64, u64)>,
    /// Delayed ones and those in flight, by the instant at which they become ready.
    later: BTreeSet<(Instant, u64)>,
    in_flight: usize,
    bytes: usize,
    next_number: u64,
    totals: QueueCounts,
}

impl Queue {
    /// `key` seals receipt handles, so that none of another queue is taken.
    pub(super) fn new(options: QueueOptions, seed: u64, key: u64) -> Self {
        Self {
            options,
            dice: Dice::new(seed),
            key,
            stored: HashMap::new(),
            ready: BTreeSet::new(),
            later: BTreeSet::new(),
            in_flight: 0,
            bytes: 0,
            next_number: 0,
            totals: QueueCounts::default(),
        }
    }

    pub(super) fn options(&self) -> &QueueOptions {
        &self.options
    }

    /// Puts a message in.
    pub(super) fn send(&mut self, message: NewMessage, now: Instant) -> Result<(), QueueFull> {
        let place = match message.delay {
            Duration::ZERO => Place::Ready,
            delay => Place::Delayed(now + delay),
        };
        let stored = Stored {
            id: message.id.into(),
            body: message.body,
            sent_at: message.sent_at,
            first_received_at: None,
            receives: 0,
            rank: 0,
            place,
            copies: Copies::Undecided,
        };
        self.insert(stored).inspect_err(|_| self.totals.dropped += 1)
    }

    fn insert(&mut self, mut stored: Stored) -> Result<(), QueueFull> {
        let bytes = self.bytes + stored.body.len();
        if self.stored.len() >= self.options.capacity || bytes > CAPACITY_BYTES {
            return Err(QueueFull);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.bytes = bytes;
        stored.rank = match self.options.order {
            DeliveryOrder::AsSent => number,
            DeliveryOrder::Shuffled => self.dice.roll(),
        };
        match stored.place {
            Place::Ready => self.ready.insert((stored.rank, number)),
            Place::Delayed(until) | Place::InFlight(until) => self.later.insert((until, number)),
        };
        self.stored.insert(number, stored);
        Ok(())
    }

    /// Hands out up to `max` messages and hides them for `visibility`.
    pub(super) fn receive(
        &mut self,
        max: usize,
        visibility: Duration,
        now: Instant,
        wall_clock: Timestamp,
    ) -> Result<Vec<Received>, TooManyInFlight> {
        self.settle(now);
        if !self.ready.is_empty() && self.in_flight >= IN_FLIGHT_MAX {
            return Err(TooManyInFlight);
        }
        let mut received = Vec::new();
        while received.len() < max
            && self.in_flight < IN_FLIGHT_MAX
            && let Some((_, number)) = self.ready.pop_first()
        {
            received.push(self.hand_out(number, now + visibility, wall_clock));
        }
        Ok(received)
    }

    fn hand_out(&mut self, number: u64, until: Instant, wall_clock: Timestamp) -> Received {
        let stored = self.stored.get_mut(&number).expect("what is ready is stored");
        stored.place = Place::InFlight(until);
        stored.receives += 1;
        self.later.insert((until, number));
        self.in_flight += 1;
        self.totals.received += 1;
        let received = Received {
            id: Arc::clone(&stored.id),
            receipt: Receipt { number, receives: stored.receives },
            body: Arc::clone(&stored.body),
            receives: stored.receives,
            sent_at: stored.sent_at,
            first_received_at: *stored.first_received_at.get_or_insert(wall_clock),
        };
        if stored.copies == Copies::Undecided {
            stored.copies = Copies::Decided;
            if self.dice.hits(self.options.repeats) {
                self.repeat(&received);
            }
        }
        received
    }

    /// Puts in a second copy, which deleting the first does not delete.
    fn repeat(&mut self, first: &Received) {
        let copy = Stored {
            id: Arc::clone(&first.id),
            body: Arc::clone(&first.body),
            sent_at: first.sent_at,
            first_received_at: Some(first.first_received_at),
            receives: first.receives,
            rank: 0,
            place: Place::Ready,
            copies: Copies::Decided,
        };
        // Where there is no room, nothing is lost: the first copy is still there.
        if self.insert(copy).is_ok() {
            self.totals.repeated += 1;
        }
    }

    /// Deletes the message that the handle was given with. As at SQS, a handle of a message that
    /// is gone is fine, and one that a later receive has replaced deletes nothing.
    pub(super) fn delete(&mut self, handle: &str, now: Instant) -> Result<(), InvalidReceipt> {
        let receipt = Receipt::open(handle, self.key)?;
        self.settle(now);
        let current = self.stored.get(&receipt.number);
        if current.is_some_and(|stored| stored.receives == receipt.receives) {
            self.remove(receipt.number);
            self.totals.deleted += 1;
        }
        Ok(())
    }

    /// Whether this entry of a batch is to fail on purpose.
    pub(super) fn fails_delete(&mut self) -> bool {
        self.dice.hits(self.options.failed_deletes)
    }

    /// Hides a message in flight for `visibility` from now.
    pub(super) fn change_visibility(
        &mut self,
        handle: &str,
        visibility: Duration,
        now: Instant,
    ) -> Result<VisibilityChange, InvalidReceipt> {
        let receipt = Receipt::open(handle, self.key)?;
        self.settle(now);
        let Some(stored) = self.stored.get_mut(&receipt.number) else {
            return Ok(VisibilityChange::Gone);
        };
        let Place::InFlight(until) = stored.place else { return Ok(VisibilityChange::NotInFlight) };
        if stored.receives != receipt.receives {
            return Ok(VisibilityChange::NotInFlight);
        }
        let changed = now + visibility;
        stored.place = Place::InFlight(changed);
        self.later.remove(&(until, receipt.number));
        self.later.insert((changed, receipt.number));
        Ok(VisibilityChange::Done)
    }

    /// Removes every message.
    pub(super) fn purge(&mut self) {
        self.stored.clear();
        self.ready.clear();
        self.later.clear();
        self.in_flight = 0;
        self.bytes = 0;
    }

    /// When the next hidden message becomes ready.
    pub(super) fn next_ready_at(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    pub(super) fn counts(&mut self, now: Instant) -> QueueCounts {
        self.settle(now);
        QueueCounts {
            queued: self.ready.len(),
            delayed: self.later.len() - self.in_flight,
            in_flight: self.in_flight,
            ..self.totals
        }
    }

    /// The handle that the client is given for a receipt.
    pub(super) fn seal(&self, receipt: Receipt) -> String {
        receipt.seal(self.key)
    }

    /// Makes ready what has waited long enough.
    fn settle(&mut self, now: Instant) {
        while let Some((at, number)) = self.later.first().copied()
            && at <= now
        {
            self.later.remove(&(at, number));
            let stored = self.stored.get_mut(&number).expect("what is hidden is stored");
            if matches!(stored.place, Place::InFlight(_)) {
                self.in_flight -= 1;
            }
            stored.place = Place::Ready;
            self.ready.insert((stored.rank, number));
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(stored) = self.stored.remove(&number) else { return };
        self.bytes -= stored.body.len();
        match stored.place {
            Place::Ready => {
                self.ready.remove(&(stored.rank, number));
            }
            Place::Delayed(until) => {
                self.later.remove(&(until, number));
            }
            Place::InFlight(until) => {
                self.later.remove(&(until, number));
                self.in_flight -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
