//! A queue with the behaviour of an SQS standard queue: at least once, in no promised order.
//!
//! Pure bookkeeping over instants that are passed in. Must not know HTTP, SQS's wording or events.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tokio::time::Instant;

use super::random::{Probability, SeededRandom};
use pillarbox_domain::time::Timestamp;

/// Limit of the bodies kept, in bytes, for any number of messages.
const MAX_BYTES: usize = 512 * 1024 * 1024;
/// SQS: messages in flight in one standard queue.
const MAX_IN_FLIGHT: usize = 120_000;
/// Messages kept unless the options say otherwise; SQS itself has no limit, a test's memory does.
const CAPACITY: usize = 200_000;
/// SQS's default.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a receipt handle before base64.
const RECEIPT_LENGTH: usize = 20;

/// Behaviour of the queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// The queue's name.
    pub name: String,
    /// Time that a received message stays hidden, unless the call sets another.
    pub visibility_timeout: Duration,
    /// The order in which messages are delivered.
    pub order: DeliveryOrder,
    /// The probability that a message is delivered a second time, deleted or not.
    pub duplicates: Probability,
    /// The probability that one entry of a batch of deletions fails on the server's side.
    pub failed_deletes: Probability,
    /// The largest number of messages; further ones are dropped and counted.
    pub capacity: usize,
}

impl Default for QueueOptions {
    /// In order, and each message once.
    fn default() -> Self {
        Self {
            name: "pillarbox-events".to_owned(),
            visibility_timeout: VISIBILITY_TIMEOUT,
            order: DeliveryOrder::default(),
            duplicates: Probability::NEVER,
            failed_deletes: Probability::NEVER,
            capacity: CAPACITY,
        }
    }
}

/// The order in which messages are delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeliveryOrder {
    /// The order of arrival.
    #[default]
    AsSent,
    /// An order that the seed decides.
    Shuffled,
}

/// The number of messages in the queue now, and of those handled since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueCounts {
    /// Messages that the next receive may deliver.
    pub queued: usize,
    /// Messages that must not be delivered yet.
    pub delayed: usize,
    /// Messages delivered and hidden for now.
    pub in_flight: usize,
    /// Messages delivered since the start, duplicates included.
    pub received: u64,
    /// Of these, duplicates made on purpose.
    pub repeated: u64,
    /// Messages deleted since the start.
    pub deleted: u64,
    /// Messages that found the queue full.
    pub dropped: u64,
}

/// The queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulator's queue is full")]
pub struct QueueFull;

/// As many messages are in flight as SQS allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyInFlight;

/// This queue did not give out the receipt handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidReceipt;

/// A message on its way into the queue.
#[derive(Debug, Clone)]
pub(super) struct NewMessage {
    pub(super) id: String,
    pub(super) body: Arc<str>,
    pub(super) sent_at: Timestamp,
    pub(super) delay: Duration,
}

/// A delivered message.
#[derive(Debug, Clone)]
pub(super) struct ReceivedMessage {
    pub(super) id: Arc<str>,
    pub(super) receipt_handle: String,
    pub(super) body: Arc<str>,
    pub(super) receive_count: u32,
    pub(super) sent_at: Timestamp,
    pub(super) first_received_at: Timestamp,
}

/// Result of a change to a message's visibility.
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
    random: SeededRandom,
    /// Seals receipt handles, so that the queue refuses those of another queue.
    seal: RandomState,
    stored: HashMap<u64, StoredMessage>,
    /// Visible messages, by rank, then number.
    visible: BTreeSet<(u64, u64)>,
    /// Delayed messages and those in flight, by the instant at which they become visible.
    hidden: BTreeSet<(Instant, u64)>,
    in_flight: usize,
    bytes: usize,
    next_number: u64,
    totals: QueueCounts,
}

#[derive(Debug)]
struct StoredMessage {
    id: Arc<str>,
    body: Arc<str>,
    sent_at: Timestamp,
    first_received_at: Option<Timestamp>,
    receive_count: u32,
    /// The place in the order of delivery.
    rank: u64,
    visibility: Visibility,
    duplicate: Duplicate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visibility {
    Visible,
    Delayed(Instant),
    InFlight(Instant),
}

/// Decision to deliver a message twice on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Duplicate {
    Undecided,
    Decided,
}

impl Queue {
    pub(super) fn new(options: QueueOptions, seed: u64) -> Self {
        Self {
            options,
            random: SeededRandom::new(seed),
            seal: RandomState::new(),
            stored: HashMap::new(),
            visible: BTreeSet::new(),
            hidden: BTreeSet::new(),
            in_flight: 0,
            bytes: 0,
            next_number: 0,
            totals: QueueCounts::default(),
        }
    }

    pub(super) fn options(&self) -> &QueueOptions {
        &self.options
    }

    pub(super) fn send(&mut self, message: NewMessage, now: Instant) -> Result<(), QueueFull> {
        let visibility = match message.delay {
            Duration::ZERO => Visibility::Visible,
            delay => Visibility::Delayed(now + delay),
        };
        let stored = StoredMessage {
            id: message.id.into(),
            body: message.body,
            sent_at: message.sent_at,
            first_received_at: None,
            receive_count: 0,
            rank: 0,
            visibility,
            duplicate: Duplicate::Undecided,
        };
        self.insert(stored).inspect_err(|_| self.totals.dropped += 1)
    }

    fn insert(&mut self, mut stored: StoredMessage) -> Result<(), QueueFull> {
        let bytes = self.bytes + stored.body.len();
        if self.stored.len() >= self.options.capacity || bytes > MAX_BYTES {
            return Err(QueueFull);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.bytes = bytes;
        stored.rank = match self.options.order {
            DeliveryOrder::AsSent => number,
            DeliveryOrder::Shuffled => self.random.next_u64(),
        };
        match stored.visibility {
            Visibility::Visible => self.visible.insert((stored.rank, number)),
            Visibility::Delayed(until) | Visibility::InFlight(until) => {
                self.hidden.insert((until, number))
            }
        };
        self.stored.insert(number, stored);
        Ok(())
    }

    /// Delivers up to `max` messages and hides them for `visibility_timeout`.
    pub(super) fn receive(
        &mut self,
        max: usize,
        visibility_timeout: Duration,
        now: Instant,
        wall_clock: Timestamp,
    ) -> Result<Vec<ReceivedMessage>, TooManyInFlight> {
        self.show_due(now);
        if !self.visible.is_empty() && self.in_flight >= MAX_IN_FLIGHT {
            return Err(TooManyInFlight);
        }
        let mut received = Vec::new();
        while received.len() < max
            && self.in_flight < MAX_IN_FLIGHT
            && let Some((_, number)) = self.visible.pop_first()
        {
            received.push(self.deliver(number, now + visibility_timeout, wall_clock));
        }
        Ok(received)
    }

    fn deliver(&mut self, number: u64, until: Instant, wall_clock: Timestamp) -> ReceivedMessage {
        let stored = self.stored.get_mut(&number).expect("a visible message is stored");
        stored.visibility = Visibility::InFlight(until);
        stored.receive_count += 1;
        self.hidden.insert((until, number));
        self.in_flight += 1;
        self.totals.received += 1;
        let receipt = Receipt { number, receive_count: stored.receive_count };
        let received = ReceivedMessage {
            id: Arc::clone(&stored.id),
            receipt_handle: receipt.to_handle(&self.seal),
            body: Arc::clone(&stored.body),
            receive_count: stored.receive_count,
            sent_at: stored.sent_at,
            first_received_at: *stored.first_received_at.get_or_insert(wall_clock),
        };
        if stored.duplicate == Duplicate::Undecided {
            stored.duplicate = Duplicate::Decided;
            if self.random.happens(self.options.duplicates) {
                self.duplicate(&received);
            }
        }
        received
    }

    /// Puts in a second copy. It stays if the first is deleted.
    fn duplicate(&mut self, first: &ReceivedMessage) {
        let copy = StoredMessage {
            id: Arc::clone(&first.id),
            body: Arc::clone(&first.body),
            sent_at: first.sent_at,
            first_received_at: Some(first.first_received_at),
            receive_count: first.receive_count,
            rank: 0,
            visibility: Visibility::Visible,
            duplicate: Duplicate::Decided,
        };
        // If there is no room, nothing is lost: the first copy is still there.
        if self.insert(copy).is_ok() {
            self.totals.repeated += 1;
        }
    }

    /// Deletes the message of the handle. As at SQS, the handle of a message that is gone is fine,
    /// and a handle that a later receive has replaced deletes nothing.
    pub(super) fn delete(&mut self, handle: &str, now: Instant) -> Result<(), InvalidReceipt> {
        let receipt = Receipt::from_handle(handle, &self.seal)?;
        self.show_due(now);
        let current = self.stored.get(&receipt.number);
        if current.is_some_and(|stored| stored.receive_count == receipt.receive_count) {
            self.remove(receipt.number);
            self.totals.deleted += 1;
        }
        Ok(())
    }

    /// Decides if this entry of a batch fails on purpose.
    pub(super) fn fails_delete(&mut self) -> bool {
        self.random.happens(self.options.failed_deletes)
    }

    /// Hides a message in flight for `visibility_timeout` from now.
    pub(super) fn change_visibility(
        &mut self,
        handle: &str,
        visibility_timeout: Duration,
        now: Instant,
    ) -> Result<VisibilityChange, InvalidReceipt> {
        let receipt = Receipt::from_handle(handle, &self.seal)?;
        self.show_due(now);
        let Some(stored) = self.stored.get_mut(&receipt.number) else {
            return Ok(VisibilityChange::Gone);
        };
        let Visibility::InFlight(until) = stored.visibility else {
            return Ok(VisibilityChange::NotInFlight);
        };
        if stored.receive_count != receipt.receive_count {
            return Ok(VisibilityChange::NotInFlight);
        }
        let changed = now + visibility_timeout;
        stored.visibility = Visibility::InFlight(changed);
        self.hidden.remove(&(until, receipt.number));
        self.hidden.insert((changed, receipt.number));
        Ok(VisibilityChange::Done)
    }

    /// Removes all messages of the queue.
    pub(super) fn purge(&mut self) {
        self.stored.clear();
        self.visible.clear();
        self.hidden.clear();
        self.in_flight = 0;
        self.bytes = 0;
    }

    /// The instant at which the next hidden message becomes visible.
    pub(super) fn next_visible_at(&self) -> Option<Instant> {
        self.hidden.first().map(|(at, _)| *at)
    }

    pub(super) fn counts(&mut self, now: Instant) -> QueueCounts {
        self.show_due(now);
        QueueCounts {
            queued: self.visible.len(),
            delayed: self.hidden.len() - self.in_flight,
            in_flight: self.in_flight,
            ..self.totals
        }
    }

    /// Makes visible the hidden messages whose instant has come.
    fn show_due(&mut self, now: Instant) {
        while let Some((at, number)) = self.hidden.first().copied()
            && at <= now
        {
            self.hidden.remove(&(at, number));
            let stored = self.stored.get_mut(&number).expect("a hidden message is stored");
            if matches!(stored.visibility, Visibility::InFlight(_)) {
                self.in_flight -= 1;
            }
            stored.visibility = Visibility::Visible;
            self.visible.insert((stored.rank, number));
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(stored) = self.stored.remove(&number) else { return };
        self.bytes -= stored.body.len();
        match stored.visibility {
            Visibility::Visible => {
                self.visible.remove(&(stored.rank, number));
            }
            Visibility::Delayed(until) => {
                self.hidden.remove(&(until, number));
            }
            Visibility::InFlight(until) => {
                self.hidden.remove(&(until, number));
                self.in_flight -= 1;
            }
        }
    }
}

/// One receive of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Receipt {
    number: u64,
    receive_count: u32,
}

impl Receipt {
    fn to_handle(self, seal: &RandomState) -> String {
        let mut bytes = [0; RECEIPT_LENGTH];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.receive_count.to_be_bytes());
        bytes[12..].copy_from_slice(&seal.hash_one(self).to_be_bytes());
        STANDARD.encode(bytes)
    }

    fn from_handle(handle: &str, seal: &RandomState) -> Result<Self, InvalidReceipt> {
        let bytes = STANDARD.decode(handle).map_err(|_| InvalidReceipt)?;
        let bytes: [u8; RECEIPT_LENGTH] = bytes.try_into().map_err(|_| InvalidReceipt)?;
        let (number, rest) = bytes.split_first_chunk::<8>().expect("20 bytes hold 8");
        let (receive_count, mark) = rest.split_first_chunk::<4>().expect("12 bytes hold 4");
        let receipt = Self {
            number: u64::from_be_bytes(*number),
            receive_count: u32::from_be_bytes(*receive_count),
        };
        if seal.hash_one(receipt).to_be_bytes() == mark { Ok(receipt) } else { Err(InvalidReceipt) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const WALL_CLOCK: Timestamp = Timestamp::from_unix_millis(1_000);

    fn message(n: usize) -> NewMessage {
        NewMessage {
            id: n.to_string(),
            body: n.to_string().into(),
            sent_at: WALL_CLOCK,
            delay: Duration::ZERO,
        }
    }

    fn filled(options: QueueOptions, count: usize, now: Instant) -> Queue {
        let mut queue = Queue::new(options, 7);
        for n in 0..count {
            queue.send(message(n), now).unwrap();
        }
        queue
    }

    fn receive(queue: &mut Queue, max: usize, now: Instant) -> Vec<ReceivedMessage> {
        queue.receive(max, TIMEOUT, now, WALL_CLOCK).unwrap()
    }

    fn bodies(received: &[ReceivedMessage]) -> Vec<&str> {
        received.iter().map(|r| &*r.body).collect()
    }

    #[test]
    fn a_message_is_hidden_then_comes_again_until_deleted() {
        let now = Instant::now();
        let mut queue = filled(QueueOptions::default(), 3, now);
        assert_eq!(bodies(&receive(&mut queue, 2, now)), ["0", "1"]);
        assert_eq!(bodies(&receive(&mut queue, 2, now)), ["2"]);
        let just_before = now + TIMEOUT.checked_sub(Duration::from_millis(1)).unwrap();
        assert!(receive(&mut queue, 10, just_before).is_empty());
        assert_eq!(queue.next_visible_at(), Some(now + TIMEOUT));
        let again = receive(&mut queue, 10, now + TIMEOUT);
        assert_eq!(bodies(&again), ["0", "1", "2"]);
        assert!(again.iter().all(|r| r.receive_count == 2));
        for received in &again {
            queue.delete(&received.receipt_handle, now + TIMEOUT).unwrap();
        }
        let counts = queue.counts(now + 3 * TIMEOUT);
        let expected = QueueCounts { received: 6, deleted: 3, ..QueueCounts::default() };
        assert_eq!(counts, expected);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn a_handle_is_taken_late_but_not_after_a_later_receive() {
        let now = Instant::now();
        let mut queue = filled(QueueOptions::default(), 2, now);
        let first = receive(&mut queue, 2, now);
        let late = now + TIMEOUT;
        queue.delete(&first[0].receipt_handle, late).unwrap();
        let again = receive(&mut queue, 2, late);
        assert_eq!(bodies(&again), ["1"], "an expired handle that is still the last one deletes");
        queue.delete(&first[1].receipt_handle, late).unwrap();
        assert_eq!(queue.counts(late).in_flight, 1, "a replaced handle deletes nothing");
        queue.delete(&again[0].receipt_handle, late).unwrap();
        queue.delete(&again[0].receipt_handle, late).unwrap();
        assert_eq!(queue.counts(late).deleted, 2, "deleting again is fine and counts nothing");
    }

    #[test]
    fn handles_of_other_queues_are_not_taken() {
        let now = Instant::now();
        let mut queue = filled(QueueOptions::default(), 1, now);
        let mut other = filled(QueueOptions::default(), 1, now);
        let foreign = receive(&mut other, 1, now).remove(0).receipt_handle;
        let own = receive(&mut queue, 1, now).remove(0).receipt_handle;
        let mut forged = STANDARD.decode(own).unwrap();
        forged[11] += 1;
        for handle in ["", "x", "AAAA", &foreign, &STANDARD.encode(forged)] {
            assert_eq!(queue.delete(handle, now), Err(InvalidReceipt), "{handle}");
            assert_eq!(queue.change_visibility(handle, TIMEOUT, now), Err(InvalidReceipt));
        }
    }

    #[test]
    fn visibility_can_be_ended_or_stretched_while_in_flight() {
        let now = Instant::now();
        let mut queue = filled(QueueOptions::default(), 2, now);
        let first = receive(&mut queue, 2, now);
        let (ended, stretched) = (&first[0].receipt_handle, &first[1].receipt_handle);
        let change = |queue: &mut Queue, handle: &str, timeout, at| {
            queue.change_visibility(handle, timeout, at).unwrap()
        };
        assert_eq!(change(&mut queue, ended, Duration::ZERO, now), VisibilityChange::Done);
        assert_eq!(change(&mut queue, stretched, 2 * TIMEOUT, now), VisibilityChange::Done);
        assert_eq!(change(&mut queue, ended, TIMEOUT, now), VisibilityChange::NotInFlight);
        assert_eq!(bodies(&receive(&mut queue, 2, now + TIMEOUT)), ["0"]);
        assert_eq!(bodies(&receive(&mut queue, 2, now + 2 * TIMEOUT)), ["0", "1"]);
        queue.purge();
        assert_eq!(change(&mut queue, stretched, TIMEOUT, now), VisibilityChange::Gone);
    }

    #[test]
    fn a_delayed_message_comes_at_its_time() {
        let now = Instant::now();
        let mut queue = filled(QueueOptions::default(), 0, now);
        queue.send(NewMessage { delay: TIMEOUT, ..message(0) }, now).unwrap();
        assert!(receive(&mut queue, 1, now).is_empty());
        let counts = queue.counts(now);
        assert_eq!((counts.delayed, counts.in_flight, counts.queued), (1, 0, 0));
        assert_eq!(bodies(&receive(&mut queue, 1, now + TIMEOUT)), ["0"]);
    }

    #[test]
    fn disorder_and_duplicates_follow_the_seed_and_lose_nothing() {
        let drain = |seed| {
            let now = Instant::now();
            let duplicates = Probability::new(0.3).unwrap();
            let order = DeliveryOrder::Shuffled;
            let options = QueueOptions { order, duplicates, ..QueueOptions::default() };
            let mut queue = Queue::new(options, seed);
            for n in 0..200 {
                queue.send(message(n), now).unwrap();
            }
            let mut all = Vec::new();
            loop {
                let received = receive(&mut queue, 10, now);
                if received.is_empty() {
                    break;
                }
                for message in received {
                    queue.delete(&message.receipt_handle, now).unwrap();
                    all.push(message.body.parse::<usize>().unwrap());
                }
            }
            let counts = queue.counts(now);
            assert_eq!(counts.deleted, 200 + counts.repeated);
            assert!((30..90).contains(&counts.repeated), "{counts:?}");
            all
        };
        let first = drain(3);
        assert_eq!(drain(3), first);
        assert_ne!(drain(4), first);
        assert!(!first.is_sorted());
        let distinct: BTreeSet<_> = first.iter().copied().collect();
        assert!(distinct.into_iter().eq(0..200));
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let now = Instant::now();
        let mut queue = filled(QueueOptions { capacity: 2, ..QueueOptions::default() }, 2, now);
        assert_eq!(queue.send(message(2), now), Err(QueueFull));
        let counts = queue.counts(now);
        assert_eq!((counts.queued, counts.dropped), (2, 1));
    }
}
