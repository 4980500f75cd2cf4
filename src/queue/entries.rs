//! Entries of the queue: each pending message with its place, and the queue of those that wait.

use std::collections::BTreeMap;
use std::ops::Bound;

use tokio::time::Instant;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Acceptance, Cancellation, Failure, Transition};
use crate::queue::due::Due;
use crate::queue::fair_queue::FairQueue;
use crate::queue::forecast::Forecaster;
use crate::queue::lanes::{Forward, Turn};
use crate::queue::live::Live;
use crate::queue::selection::{Selected, Selection};
use crate::queue::{HeldMessage, Interruption, PendingMessage, Reservation};

/// How many messages of a selection are looked at while the queue is locked; about as many as
/// share a commit.
const SELECTION_STEP: usize = 500;

#[derive(Debug, Default)]
pub(super) struct Entries {
    /// By id, which is the order of acceptance: ids grow within a process.
    /// In boxes: a map whose keys grow leaves almost half of its room empty.
    by_id: BTreeMap<MessageId, Box<Entry>>,
    pub(super) queue: FairQueue,
    pub(super) in_flight: usize,
    pub(super) obstacle: Option<Failure>,
}

#[derive(Debug)]
pub(super) struct Entry {
    message: PendingMessage,
    /// Released with the entry.
    _reservation: Reservation,
    attempts: u32,
    acceptance: Acceptance,
    place: Place,
    /// Why it is not to be sent again once its claim ends.
    cancellation: Option<Cancellation>,
    interruption: Interruption,
}

/// Message that is taken out. Its holder is made of it once nothing is locked.
pub(super) struct Taken {
    pub(super) message: PendingMessage,
    pub(super) attempts: u32,
    pub(super) acceptance: Acceptance,
    pub(super) interruption: Interruption,
    pub(super) cancellation: Option<Cancellation>,
}

/// What follows for a claimed message that is put back.
pub(super) enum PutBack {
    /// It waits.
    Waits,
    /// It is not pending any more.
    Gone(Option<Box<Entry>>),
    /// It was cancelled and ends like this.
    Cancelled(Transition),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting(Due),
    /// Taken out, and no call was started since.
    Claimed(Proof),
    /// Taken out, and a call was started.
    Calling(Proof),
    /// Taken out for a call that never started, and about to be put back.
    Returning(Proof),
}

/// Whether an event proved, while the message was taken out, that it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    None,
    Sent,
}

/// What happened to a message before it came into the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    pub(super) attempts: u32,
    pub(super) acceptance: Acceptance,
    pub(super) interruption: Interruption,
}

impl Default for Past {
    fn default() -> Self {
        let (acceptance, interruption) = (Acceptance::Excluded, Interruption::None);
        Self { attempts: 0, acceptance, interruption }
    }
}

impl Entry {
    fn new(message: PendingMessage, reservation: Reservation, place: Place) -> Self {
        Self {
            message,
            _reservation: reservation,
            attempts: 0,
            acceptance: Acceptance::Excluded,
            place,
            cancellation: None,
            interruption: Interruption::None,
        }
    }

    fn claim(&mut self) -> Taken {
        self.place = Place::Claimed(Proof::None);
        Taken {
            message: self.message.clone(),
            attempts: self.attempts,
            acceptance: self.acceptance,
            interruption: self.interruption,
            cancellation: self.cancellation,
        }
    }
}

impl Entries {
    /// Takes in a message that is due at once; returns `true` if it is its organisation's first.
    pub(super) fn add(&mut self, held: HeldMessage) -> bool {
        let due = self.queue.times.of_new(held.message.accepted_at);
        self.insert(held, due, Past::default())
    }

    /// Takes in a message of an earlier process, with what happened to it there.
    pub(super) fn take_up(&mut self, held: HeldMessage, due: Instant, past: Past) {
        let due = match past {
            // Where it was before.
            Past { attempts: 0, .. } => self.queue.times.of_new(held.message.accepted_at),
            _ => self.queue.times.of_retry(due),
        };
        self.insert(held, due, past);
    }

    /// Takes in a message of an earlier process that is taken out at once.
    pub(super) fn take_up_claimed(&mut self, held: HeldMessage, past: Past) -> Taken {
        let HeldMessage { message, reservation } = held;
        let id = message.id;
        let mut entry = Box::new(Entry::new(message, reservation, Place::Claimed(Proof::None)));
        (entry.attempts, entry.acceptance) = (past.attempts, past.acceptance);
        let taken = entry.claim();
        self.by_id.insert(id, entry);
        self.in_flight += 1;
        taken
    }

    /// Has a message wait; returns `true` if it is its organisation's first.
    fn insert(&mut self, held: HeldMessage, due: Due, past: Past) -> bool {
        let HeldMessage { message, reservation } = held;
        let turn = Turn { due, id: message.id };
        let is_first = self.queue.add(message.organisation, message.sender_domain, turn);
        let mut entry = Box::new(Entry::new(message, reservation, Place::Waiting(due)));
        (entry.attempts, entry.acceptance) = (past.attempts, past.acceptance);
        entry.interruption = past.interruption;
        self.by_id.insert(turn.id, entry);
        is_first
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn oldest(&self) -> Option<MessageId> {
        self.by_id.first_key_value().map(|(id, _)| *id)
    }

    pub(super) fn live(&self, id: MessageId) -> Option<Live> {
        let entry = self.by_id.get(&id)?;
        Some(match entry.place {
            Place::Calling(_) => Live::Sending { attempts: entry.attempts },
            Place::Claimed(_) | Place::Returning(_) | Place::Waiting(_) => {
                Live::Waiting { obstacle: self.obstacle.clone() }
            }
        })
    }

    pub(super) fn accepted_before(&self, id: MessageId, time: Instant) -> bool {
        self.by_id.get(&id).is_some_and(|entry| entry.message.accepted_at < time)
    }

    pub(super) fn remaining(&self) -> Vec<(MessageId, u32, Acceptance)> {
        let left = self.by_id.values().map(|entry| {
            let acceptance = match entry.place {
                Place::Calling(_) => Acceptance::Possible,
                Place::Claimed(_) | Place::Returning(_) | Place::Waiting(_) => entry.acceptance,
            };
            (entry.message.id, entry.attempts, acceptance)
        });
        left.collect()
    }

    /// Adds up to `limit` entries after one to a forecast; returns the last of them.
    pub(super) fn forecast(
        &self,
        after: Bound<MessageId>,
        limit: usize,
        forecaster: &mut Forecaster<impl Fn(OrganisationId) -> bool>,
    ) -> Option<MessageId> {
        let mut last = None;
        let any_held = self.queue.any_held();
        let end = self.queue.times.of_new(forecaster.end);
        for (id, entry) in self.by_id.range((after, Bound::Unbounded)).take(limit) {
            last = Some(*id);
            let PendingMessage { organisation, sender_domain, recipients, .. } = entry.message;
            let is_held = || self.queue.is_held(organisation, sender_domain);
            match entry.place {
                _ if (forecaster.is_refused)(organisation) => forecaster.forecast.provider += 1,
                Place::Waiting(_) if any_held && is_held() => forecaster.forecast.domain += 1,
                // Other retries are brought forward when a drain begins.
                Place::Waiting(due) if entry.acceptance == Acceptance::Possible && due >= end => {
                    forecaster.forecast.retry += 1;
                }
                Place::Waiting(_) | Place::Returning(_) => {
                    forecaster.goes(recipients);
                }
                Place::Claimed(_) | Place::Calling(_) => {}
            }
        }
        last
    }

    pub(super) fn due_organisations(&self) -> usize {
        self.queue.due_organisations()
    }

    pub(super) fn claim(&mut self, now: Instant, max_calls: usize) -> Option<Taken> {
        let entries = &mut self.by_id;
        let mut taken = None;
        self.queue.take(now, max_calls, |turn| {
            let claim = entries.get_mut(&turn.id).expect("a turn has its entry").claim();
            taken.insert(claim).message.recipients
        })?;
        self.in_flight += 1;
        taken
    }

    pub(super) fn claim_older_than(&mut self, end: Instant, limit: usize) -> Vec<Taken> {
        let taken: Vec<Taken> = self
            .by_id
            .values_mut()
            .take_while(|entry| entry.message.accepted_at <= end)
            .filter_map(|entry| {
                let Place::Waiting(due) = entry.place else { return None };
                let PendingMessage { id, organisation, sender_domain, .. } = entry.message;
                self.queue.remove(organisation, sender_domain, &Turn { due, id });
                Some(entry.claim())
            })
            .take(limit)
            .collect();
        self.in_flight += taken.len();
        taken
    }

    pub(super) fn start_call(&mut self, id: MessageId) -> (u32, OrganisationId) {
        let entry = self.by_id.get_mut(&id).expect("a claimed message stays until it is settled");
        if let Place::Claimed(proof) = entry.place {
            entry.place = Place::Calling(proof);
        }
        let organisation = entry.message.organisation;
        self.queue.call_started(organisation);
        entry.attempts += 1;
        (entry.attempts, organisation)
    }

    pub(super) fn not_called(&mut self, id: MessageId) -> u32 {
        let entry = self.by_id.get_mut(&id).expect("a claimed message stays until it is settled");
        entry.attempts = entry.attempts.saturating_sub(1);
        if let Place::Calling(proof) = entry.place {
            entry.place = Place::Returning(proof);
        }
        entry.attempts
    }

    pub(super) fn remove(&mut self, id: MessageId) -> Option<Box<Entry>> {
        let entry = self.by_id.remove(&id)?;
        let PendingMessage { organisation, sender_domain, .. } = entry.message;
        match entry.place {
            Place::Claimed(_) | Place::Calling(_) | Place::Returning(_) => {
                self.in_flight -= 1;
                self.queue.returned(organisation, sender_domain, id);
            }
            Place::Waiting(due) => {
                self.queue.remove(organisation, sender_domain, &Turn { due, id });
            }
        }
        Some(entry)
    }

    pub(super) fn put_back(
        &mut self,
        id: MessageId,
        due: Instant,
        acceptance: Acceptance,
    ) -> PutBack {
        let Some(entry) = self.by_id.get_mut(&id) else { return PutBack::Gone(None) };
        entry.acceptance = entry.acceptance.or(acceptance);
        if entry.interruption == Interruption::EndOfProcess {
            entry.interruption = Interruption::None;
        }
        self.put_back_at(id, self.queue.times.of_retry(due))
    }

    pub(super) fn put_back_as_new(&mut self, id: MessageId) -> PutBack {
        let Some(entry) = self.by_id.get(&id) else { return PutBack::Gone(None) };
        self.put_back_at(id, self.queue.times.of_new(entry.message.accepted_at))
    }

    fn put_back_at(&mut self, id: MessageId, due: Due) -> PutBack {
        let Some(entry) = self.by_id.get_mut(&id) else { return PutBack::Gone(None) };
        match entry.place {
            Place::Claimed(proof) | Place::Calling(proof) | Place::Returning(proof) => {
                if proof == Proof::Sent {
                    return PutBack::Gone(self.remove(id));
                }
                if let Some(why) = entry.cancellation {
                    entry.place = Place::Claimed(proof);
                    return PutBack::Cancelled(why.transition(entry.acceptance));
                }
                self.wait(id, due);
                PutBack::Waits
            }
            Place::Waiting(_) => PutBack::Waits,
        }
    }

    /// Puts back a message whose holder was dropped, due at `due`; returns it if it is not pending
    /// any more. A cancellation is left to its next claim.
    pub(super) fn interrupt(&mut self, id: MessageId, due: Instant) -> Option<Box<Entry>> {
        let entry = self.by_id.get_mut(&id)?;
        let (proof, interruption) = match entry.place {
            Place::Calling(proof) => (proof, Interruption::DuringCall),
            Place::Claimed(proof) | Place::Returning(proof) => (proof, Interruption::BeforeCall),
            Place::Waiting(_) => return None,
        };
        if proof == Proof::Sent {
            return self.remove(id);
        }
        entry.acceptance = Acceptance::Possible;
        entry.interruption = entry.interruption.max(interruption);
        self.wait(id, self.queue.times.of_retry(due));
        None
    }

    /// Has a message that was taken out wait again.
    fn wait(&mut self, id: MessageId, due: Due) {
        let entry = self.by_id.get_mut(&id).expect("a claimed message stays until it is settled");
        entry.place = Place::Waiting(due);
        self.in_flight -= 1;
        let PendingMessage { organisation, sender_domain, .. } = entry.message;
        self.queue.add(organisation, sender_domain, Turn { due, id });
        self.queue.returned(organisation, sender_domain, id);
    }

    /// Takes out what waits of a bounded part of a selection, and marks what has a call under way.
    pub(super) fn cancel(
        &mut self,
        selection: &Selection,
        after: Option<MessageId>,
        why: Cancellation,
    ) -> (Vec<Taken>, Selected) {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let ids: Vec<MessageId> = match selection {
            Selection::Ids(ids) => ids.range(range).take(SELECTION_STEP).copied().collect(),
            Selection::Organisation { .. } => {
                self.by_id.range(range).take(SELECTION_STEP).map(|(id, _)| *id).collect()
            }
        };
        let next = ids.last().copied().filter(|_| ids.len() == SELECTION_STEP);
        let mut taken = Vec::new();
        let mut selected = Selected { taken: Vec::new(), calls_under_way: 0, not_pending: 0, next };
        for id in ids {
            let Some(entry) = self.by_id.get_mut(&id) else {
                selected.not_pending += 1;
                continue;
            };
            if !selection.covers(&entry.message) {
                continue;
            }
            match entry.place {
                Place::Waiting(due) => {
                    let PendingMessage { organisation, sender_domain, .. } = entry.message;
                    self.queue.remove(organisation, sender_domain, &Turn { due, id });
                    self.in_flight += 1;
                    taken.push(entry.claim());
                }
                Place::Calling(_) | Place::Returning(_) => {
                    entry.cancellation.get_or_insert(why);
                    selected.calls_under_way += 1;
                }
                // Its holder is about to end it. Should it be dropped, the next one will.
                Place::Claimed(_) => {
                    entry.cancellation.get_or_insert(why);
                    selected.not_pending += 1;
                }
            }
        }
        (taken, selected)
    }

    /// Counts the messages of a bounded part of a selection that are not final, whether or not a call
    /// of theirs is under way; returns the one to go on after, if there may be more.
    pub(super) fn count(
        &self,
        selection: &Selection,
        after: Option<MessageId>,
    ) -> (usize, Option<MessageId>) {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let (mut count, mut seen, mut last) = (0, 0, None);
        for (id, entry) in self.by_id.range(range).take(SELECTION_STEP) {
            count += usize::from(selection.covers(&entry.message));
            seen += 1;
            last = Some(*id);
        }
        (count, last.filter(|_| seen == SELECTION_STEP))
    }

    pub(super) fn proved_sent(&mut self, id: MessageId) -> Option<Box<Entry>> {
        let entry = self.by_id.get_mut(&id)?;
        match &mut entry.place {
            Place::Waiting(_) => self.remove(id),
            Place::Claimed(proof) | Place::Calling(proof) | Place::Returning(proof) => {
                *proof = Proof::Sent;
                None
            }
        }
    }

    pub(super) fn bring_forward(&mut self, now: Instant) {
        let entries = &mut self.by_id;
        self.queue.bring_forward(now, |turn| {
            let entry = entries.get_mut(&turn.id).expect("a turn has its entry");
            match entry.acceptance {
                Acceptance::Possible => Forward::Left,
                Acceptance::Excluded => {
                    entry.place = Place::Waiting(turn.due);
                    Forward::Taken
                }
            }
        });
    }
}
