//! The outbox: messages whose body is pending, in memory, within a byte budget.
//!
//! Decides which message is next: fair between organisations by recipients, and within one the
//! first due first, a new message before a retry of the same age. Knows nothing of the provider,
//! of pace or of the store. It holds the only copy of a body, which goes with the last hold on
//! its entry.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Acceptance, Failure};

pub use budget::{Budget, FIXED_CHARGE, Reservation};
pub use live::{Live, View};

mod budget;
mod live;

/// A message to be sent.
#[derive(Debug)]
pub struct Parcel {
    /// The message.
    pub id: MessageId,
    /// Whose it is.
    pub organisation: OrganisationId,
    /// The ready request to the provider: the only copy of the body.
    pub request: Bytes,
    /// How many recipients it has.
    pub recipients: u32,
    /// When it was accepted.
    pub accepted_at: Instant,
    /// The suppressions that it was checked against.
    pub suppression_epoch: u64,
    /// Its share of the byte budget, released with it.
    pub reservation: Reservation,
}

/// One message taken out to be sent: the holder owes the outbox a word of what became of it.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The message.
    pub id: MessageId,
    /// Whose it is.
    pub organisation: OrganisationId,
    /// The ready request.
    pub request: Bytes,
    /// How many recipients it has.
    pub recipients: u32,
    /// When it was accepted.
    pub accepted_at: Instant,
    /// Calls to the provider that were started before.
    pub attempts: u32,
    /// The suppressions that it was checked against.
    pub suppression_epoch: u64,
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
    entries: HashMap<MessageId, Entry>,
    queues: HashMap<OrganisationId, Queue>,
    /// Organisations with a due message, the one that was served least first.
    ready: BTreeSet<(u64, OrganisationId)>,
    /// Organisations whose first message is due later, the earliest first.
    asleep: BTreeSet<(Instant, OrganisationId)>,
    /// The share of the organisation served last: where a newcomer starts, so that it neither
    /// waits for others' backlog nor makes up for its own absence.
    share: u64,
    in_flight: usize,
    obstacle: Option<Failure>,
}

#[derive(Debug)]
struct Entry {
    parcel: Parcel,
    attempts: u32,
    acceptance: Acceptance,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting(Turn),
    InFlight(Proof),
}

/// Whether an event proved, during the call, that the message was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    None,
    Sent,
}

/// A message's turn within its organisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    due: Instant,
    kind: TurnKind,
    id: MessageId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TurnKind {
    New,
    Retry,
}

#[derive(Debug)]
struct Queue {
    turns: BTreeSet<Turn>,
    /// Recipients served so far, in the common measure.
    share: u64,
    rank: Rank,
}

/// In which of the two orders an organisation stands.
#[derive(Debug, Clone, Copy)]
enum Rank {
    Ready(u64),
    Asleep(Instant),
    Empty,
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
        let entry = Entry {
            parcel,
            attempts: 0,
            acceptance: Acceptance::Excluded,
            place: Place::Waiting(turn),
        };
        inner.entries.insert(turn.id, entry);
        inner.enqueue(organisation, turn);
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
        let mut inner = self.lock();
        inner.wake(now);
        match (inner.ready.first(), inner.asleep.first()) {
            (Some(_), _) => Next::Now,
            (None, Some((due, _))) => Next::At(*due),
            (None, None) => Next::Never,
        }
    }

    /// Waits until the outbox has changed since the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Counts the call that is about to start. From here on, readers see `sending`.
    pub fn started(&self, id: MessageId) -> u32 {
        let mut inner = self.lock();
        let entry =
            inner.entries.get_mut(&id).expect("a claimed message stays until it is settled");
        entry.attempts += 1;
        entry.attempts
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
            Place::InFlight(_) if entry.attempts > 0 => Live::Sending { attempts: entry.attempts },
            Place::InFlight(_) | Place::Waiting(_) => {
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

    /// Makes every waiting message due at once, for one last attempt.
    pub fn make_all_due(&self, now: Instant) {
        self.lock().make_all_due(now);
        self.changed.notify_one();
    }

    /// Every pending message, with the calls made and whether one may have been accepted.
    pub fn remaining(&self) -> Vec<(MessageId, u32, Acceptance)> {
        let inner = self.lock();
        let mut all: Vec<_> = inner
            .entries
            .values()
            .map(|entry| {
                let acceptance = match entry.place {
                    Place::InFlight(_) => Acceptance::Possible,
                    Place::Waiting(_) => entry.acceptance,
                };
                (entry.parcel.id, entry.attempts, acceptance)
            })
            .collect();
        all.sort_unstable_by_key(|(id, ..)| *id);
        all
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn claim(&mut self) -> Claim {
        self.place = Place::InFlight(Proof::None);
        Claim {
            id: self.parcel.id,
            organisation: self.parcel.organisation,
            request: self.parcel.request.clone(),
            recipients: self.parcel.recipients,
            accepted_at: self.parcel.accepted_at,
            attempts: self.attempts,
            suppression_epoch: self.parcel.suppression_epoch,
        }
    }
}

impl Inner {
    fn claim(&mut self, now: Instant) -> Option<Claim> {
        self.wake(now);
        let &(_, organisation) = self.ready.first()?;
        let queue = self.queues.get_mut(&organisation).expect("a ready organisation has a queue");
        let turn = queue.turns.pop_first().expect("a ready organisation has a turn");
        let entry = self.entries.get_mut(&turn.id).expect("a turn has its entry");
        self.in_flight += 1;
        self.share = queue.share;
        queue.share += u64::from(entry.parcel.recipients);
        let claim = entry.claim();
        self.rank(organisation, Some(now));
        Some(claim)
    }

    fn claim_older_than(&mut self, end: Instant, limit: usize) -> Vec<Claim> {
        let old: Vec<(OrganisationId, Turn)> = self
            .entries
            .values()
            .filter(|entry| entry.parcel.accepted_at <= end)
            .filter_map(|entry| match entry.place {
                Place::Waiting(turn) => Some((entry.parcel.organisation, turn)),
                Place::InFlight(_) => None,
            })
            .take(limit)
            .collect();
        old.into_iter()
            .map(|(organisation, turn)| {
                let queue = self.queues.get_mut(&organisation).expect("a turn has its queue");
                queue.turns.remove(&turn);
                self.rank(organisation, None);
                self.in_flight += 1;
                self.entries.get_mut(&turn.id).expect("taken from the same map").claim()
            })
            .collect()
    }

    fn enqueue(&mut self, organisation: OrganisationId, turn: Turn) {
        let share = self.share;
        let queue = self.queues.entry(organisation).or_insert_with(|| Queue {
            turns: BTreeSet::new(),
            share,
            rank: Rank::Empty,
        });
        if queue.turns.is_empty() {
            queue.share = queue.share.max(share);
        }
        let is_first = queue.turns.first().is_none_or(|first| turn < *first);
        queue.turns.insert(turn);
        if is_first {
            self.rank(organisation, None);
        }
    }

    /// Moves organisations whose first message has become due.
    fn wake(&mut self, now: Instant) {
        while let Some(&(due, organisation)) = self.asleep.first()
            && due <= now
        {
            self.rank(organisation, Some(now));
        }
    }

    /// Puts an organisation where its first message belongs. Where the time is not known, it
    /// stands among the asleep until the next look: `wake` moves it on when it is due.
    fn rank(&mut self, organisation: OrganisationId, now: Option<Instant>) {
        let Some(queue) = self.queues.get_mut(&organisation) else { return };
        match queue.rank {
            Rank::Ready(share) => {
                self.ready.remove(&(share, organisation));
            }
            Rank::Asleep(due) => {
                self.asleep.remove(&(due, organisation));
            }
            Rank::Empty => {}
        }
        queue.rank = match queue.turns.first() {
            Some(turn) if now.is_some_and(|now| turn.due <= now) => {
                self.ready.insert((queue.share, organisation));
                Rank::Ready(queue.share)
            }
            Some(turn) => {
                self.asleep.insert((turn.due, organisation));
                Rank::Asleep(turn.due)
            }
            None => Rank::Empty,
        };
        // An organisation that has been served no more than the last one starts anew anyway.
        if queue.turns.is_empty() && queue.share <= self.share {
            self.queues.remove(&organisation);
        }
    }

    fn remove(&mut self, id: MessageId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        match entry.place {
            Place::InFlight(_) => self.in_flight -= 1,
            Place::Waiting(turn) => {
                let organisation = entry.parcel.organisation;
                if let Some(queue) = self.queues.get_mut(&organisation) {
                    queue.turns.remove(&turn);
                }
                self.rank(organisation, None);
            }
        }
        Some(entry)
    }

    fn put_back(&mut self, id: MessageId, due: Instant, acceptance: Acceptance) -> Option<Entry> {
        let entry = self.entries.get_mut(&id)?;
        match entry.place {
            Place::InFlight(Proof::Sent) => self.remove(id),
            Place::InFlight(Proof::None) => {
                let turn = Turn { due, kind: TurnKind::Retry, id };
                entry.place = Place::Waiting(turn);
                entry.acceptance = entry.acceptance.or(acceptance);
                let organisation = entry.parcel.organisation;
                self.in_flight -= 1;
                self.enqueue(organisation, turn);
                None
            }
            Place::Waiting(_) => None,
        }
    }

    fn proved_sent(&mut self, id: MessageId) -> Option<Entry> {
        let entry = self.entries.get_mut(&id)?;
        match &mut entry.place {
            Place::Waiting(_) => self.remove(id),
            Place::InFlight(proof) => {
                *proof = Proof::Sent;
                None
            }
        }
    }

    fn make_all_due(&mut self, now: Instant) {
        let organisations: Vec<OrganisationId> = self.queues.keys().copied().collect();
        for organisation in organisations {
            let queue = self.queues.get_mut(&organisation).expect("taken from the same map");
            let turns = std::mem::take(&mut queue.turns);
            queue.turns = turns.into_iter().map(|t| Turn { due: t.due.min(now), ..t }).collect();
            for turn in &queue.turns {
                let entry = self.entries.get_mut(&turn.id).expect("a turn has its entry");
                entry.place = Place::Waiting(*turn);
            }
            self.rank(organisation, Some(now));
        }
    }
}

#[cfg(test)]
mod tests;
