//! The outbox: messages whose body is pending, in memory, within a byte budget.
//!
//! Decides which message is next: fair between organisations by recipients, and within one the
//! first due first, a new message before a retry of the same age. Knows nothing of the provider,
//! of pace or of the store. It holds the only copy of a body, which goes with the last hold on
//! its entry.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::domain::envelope::Envelope;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Acceptance, Failure};

use turns::{Forward, Turn, TurnKind, Turns};

pub use budget::{Budget, Fill, NoRoom, Reservation};
pub use live::{Live, View};

mod budget;
mod live;
mod turns;

/// A message to be sent.
pub struct Parcel {
    /// The message.
    pub id: MessageId,
    /// Whose it is.
    pub organisation: OrganisationId,
    /// The sender's domain and the recipients.
    pub envelope: Envelope,
    /// The ready request to the provider: the only copy of the body.
    pub request: Bytes,
    /// When it was accepted.
    pub accepted_at: Instant,
    /// The suppressions that it was checked against.
    pub suppression_epoch: u64,
    /// Its share of the byte budget, released with it.
    pub reservation: Reservation,
}

/// One message taken out to be sent: the holder owes the outbox a word of what became of it.
#[derive(Clone)]
pub struct Claim {
    /// The message, shared with its entry.
    pub parcel: Arc<Parcel>,
    /// Calls to the provider that were started before.
    pub attempts: u32,
}

/// When a waiting message is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// One is due.
    Now,
    /// The first will be due then.
    At(Instant),
    /// None waits.
    Never,
}

/// How much is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Messages, those being sent included.
    pub messages: usize,
    /// Of these, the ones with a call under way.
    pub in_flight: usize,
    /// Bytes of the budget in use.
    pub bytes: usize,
}

/// The pending messages of all organisations.
#[derive(Debug)]
pub struct Outbox {
    inner: Mutex<Inner>,
    budget: Budget,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// By id, which is the order of acceptance: ids grow within a process.
    /// In boxes: a map whose keys grow leaves almost half of its room empty.
    entries: BTreeMap<MessageId, Box<Entry>>,
    turns: Turns,
    in_flight: usize,
    obstacle: Option<Failure>,
}

#[derive(Debug)]
struct Entry {
    parcel: Arc<Parcel>,
    attempts: u32,
    acceptance: Acceptance,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting(Turn),
    /// Taken out, and no call was started since.
    Claimed(Proof),
    /// Taken out, and a call was started.
    Calling(Proof),
}

/// Whether an event proved, while the message was taken out, that it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    None,
    Sent,
}

// By hand: the request is the body, which must reach no log.
impl fmt::Debug for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parcel").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("id", &self.parcel.id).finish_non_exhaustive()
    }
}

impl Outbox {
    /// An empty outbox that takes up to `max_bytes` of pending messages.
    pub fn new(max_bytes: usize) -> Self {
        Self { inner: Mutex::default(), budget: Budget::new(max_bytes), changed: Notify::new() }
    }

    /// The byte budget, to reserve from before a message is stored.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Takes in an accepted message; it is due at once.
    pub fn add(&self, parcel: Parcel) {
        let mut inner = self.lock();
        let turn = Turn { due: parcel.accepted_at, kind: TurnKind::New, id: parcel.id };
        let organisation = parcel.organisation;
        let entry = Box::new(Entry {
            parcel: Arc::new(parcel),
            attempts: 0,
            acceptance: Acceptance::Excluded,
            place: Place::Waiting(turn),
        });
        inner.entries.insert(turn.id, entry);
        inner.turns.add(organisation, turn);
        drop(inner);
        self.changed.notify_one();
    }

    /// Takes out the message whose turn it is at `now`.
    pub fn claim(&self, now: Instant) -> Option<Claim> {
        self.lock().claim(now)
    }

    /// Takes out waiting messages that were accepted before `end`, at most `limit`.
    pub fn claim_older_than(&self, end: Instant, limit: usize) -> Vec<Claim> {
        self.lock().claim_older_than(end, limit)
    }

    /// When a message is next.
    pub fn next(&self, now: Instant) -> Next {
        self.lock().turns.next(now)
    }

    /// Waits until the outbox has changed since the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Counts the call that is about to start, and its organisation's turn. From here on, readers
    /// see `sending`.
    pub fn started(&self, id: MessageId) -> u32 {
        self.lock().started(id)
    }

    /// Forgets a message that reached a final state, and its body.
    pub fn settle(&self, id: MessageId) {
        let removed = self.lock().remove(id);
        // The body is freed here, outside of the lock.
        drop(removed);
        self.changed.notify_one();
    }

    /// Puts a claimed message back, due at `due`. Where an event has proved in the meantime that
    /// it was sent, it is forgotten instead.
    pub fn put_back(&self, id: MessageId, due: Instant, acceptance: Acceptance) {
        let removed = self.lock().put_back(id, due, acceptance);
        drop(removed);
        self.changed.notify_one();
    }

    /// An event proved that a message was sent: a waiting retry is cancelled and the body
    /// dropped; a call under way will not be repeated.
    pub fn proved_sent(&self, id: MessageId) {
        let removed = self.lock().proved_sent(id);
        drop(removed);
        self.changed.notify_one();
    }

    /// How a message stands, where it is pending.
    pub fn live(&self, id: MessageId) -> Option<Live> {
        let inner = self.lock();
        let entry = inner.entries.get(&id)?;
        Some(match entry.place {
            Place::Calling(_) => Live::Sending { attempts: entry.attempts },
            Place::Claimed(_) | Place::Waiting(_) => {
                Live::Waiting { obstacle: inner.obstacle.clone() }
            }
        })
    }

    /// Sets what keeps every message from being sent, for readers to see.
    pub fn set_obstacle(&self, obstacle: Option<Failure>) {
        self.lock().obstacle = obstacle;
    }

    /// How much is pending.
    pub fn pending(&self) -> Pending {
        let inner = self.lock();
        Pending {
            messages: inner.entries.len(),
            in_flight: inner.in_flight,
            bytes: self.budget.in_use(),
        }
    }

    /// Makes waiting messages due at once, for one last attempt: those that are known not to be
    /// accepted. Where an answer was lost, an event may yet settle the question before the retry.
    pub fn bring_forward(&self, now: Instant) {
        self.lock().bring_forward(now);
        self.changed.notify_one();
    }

    /// Every pending message in the order of acceptance, with the calls made and whether one may
    /// have been accepted.
    pub fn remaining(&self) -> Vec<(MessageId, u32, Acceptance)> {
        let inner = self.lock();
        let left = inner.entries.values().map(|entry| {
            let acceptance = match entry.place {
                Place::Calling(_) => Acceptance::Possible,
                Place::Claimed(_) | Place::Waiting(_) => entry.acceptance,
            };
            (entry.parcel.id, entry.attempts, acceptance)
        });
        left.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn claim(&mut self) -> Claim {
        self.place = Place::Claimed(Proof::None);
        Claim { parcel: Arc::clone(&self.parcel), attempts: self.attempts }
    }
}

impl Inner {
    fn claim(&mut self, now: Instant) -> Option<Claim> {
        let turn = self.turns.take(now)?;
        self.in_flight += 1;
        Some(self.entries.get_mut(&turn.id).expect("a turn has its entry").claim())
    }

    fn claim_older_than(&mut self, end: Instant, limit: usize) -> Vec<Claim> {
        let claims: Vec<Claim> = self
            .entries
            .values_mut()
            .take_while(|entry| entry.parcel.accepted_at <= end)
            .filter_map(|entry| {
                let Place::Waiting(turn) = entry.place else { return None };
                self.turns.remove(entry.parcel.organisation, &turn);
                Some(entry.claim())
            })
            .take(limit)
            .collect();
        self.in_flight += claims.len();
        claims
    }

    fn started(&mut self, id: MessageId) -> u32 {
        let entry = self.entries.get_mut(&id).expect("a claimed message stays until it is settled");
        if let Place::Claimed(proof) = entry.place {
            entry.place = Place::Calling(proof);
        }
        let recipients = entry.parcel.envelope.recipient_count();
        self.turns.charge(entry.parcel.organisation, recipients);
        entry.attempts += 1;
        entry.attempts
    }

    fn remove(&mut self, id: MessageId) -> Option<Box<Entry>> {
        let entry = self.entries.remove(&id)?;
        match entry.place {
            Place::Claimed(_) | Place::Calling(_) => self.in_flight -= 1,
            Place::Waiting(turn) => self.turns.remove(entry.parcel.organisation, &turn),
        }
        Some(entry)
    }

    fn put_back(
        &mut self,
        id: MessageId,
        due: Instant,
        acceptance: Acceptance,
    ) -> Option<Box<Entry>> {
        let entry = self.entries.get_mut(&id)?;
        match entry.place {
            Place::Claimed(Proof::Sent) | Place::Calling(Proof::Sent) => self.remove(id),
            Place::Claimed(Proof::None) | Place::Calling(Proof::None) => {
                let turn = Turn { due, kind: TurnKind::Retry, id };
                entry.place = Place::Waiting(turn);
                entry.acceptance = entry.acceptance.or(acceptance);
                self.in_flight -= 1;
                self.turns.add(entry.parcel.organisation, turn);
                None
            }
            Place::Waiting(_) => None,
        }
    }

    fn proved_sent(&mut self, id: MessageId) -> Option<Box<Entry>> {
        let entry = self.entries.get_mut(&id)?;
        match &mut entry.place {
            Place::Waiting(_) => self.remove(id),
            Place::Claimed(proof) | Place::Calling(proof) => {
                *proof = Proof::Sent;
                None
            }
        }
    }

    fn bring_forward(&mut self, now: Instant) {
        let entries = &mut self.entries;
        self.turns.bring_forward(now, |turn| {
            let entry = entries.get_mut(&turn.id).expect("a turn has its entry");
            match entry.acceptance {
                Acceptance::Possible => Forward::Left,
                Acceptance::Excluded => {
                    entry.place = Place::Waiting(turn);
                    Forward::Taken
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
