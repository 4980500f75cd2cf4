//! Entries of the queue: each pending message with its place, and the queue of those that wait.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tokio::time::Instant;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Acceptance, Cancellation, Failure, Transition};
use crate::queue::due::Due;
use crate::queue::fair_queue::FairQueue;
use crate::queue::forecast::Forecaster;
use crate::queue::lanes::{Forward, Turn};
use crate::queue::live::Live;
use crate::queue::selection::{Selected, Selection};
use crate::queue::{Interruption, Parcel};

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
    parcel: Arc<Parcel>,
    attempts: u32,
    acceptance: Acceptance,
    place: Place,
    /// Why it is not to be sent again once its claim ends.
    cancellation: Option<Cancellation>,
    interruption: Interruption,
}

/// Message that is taken out. Its holder is made of it once nothing is locked.
pub(super) struct Taken {
    pub(super) parcel: Arc<Parcel>,
    pub(super) recipients: u32,
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

impl Entry {
    fn claim(&mut self) -> Taken {
        self.place = Place::Claimed(Proof::None);
        Taken {
            parcel: Arc::clone(&self.parcel),
            recipients: self.parcel.envelope().recipient_count(),
            attempts: self.attempts,
            acceptance: self.acceptance,
            interruption: self.interruption,
            cancellation: self.cancellation,
        }
    }
}

impl Entries {
    /// Takes in a message that is due at once; returns `true` if it is its organisation's first.
    pub(super) fn add(&mut self, parcel: Parcel) -> bool {
        let turn = Turn { due: self.queue.times.of_new(parcel.accepted_at), id: parcel.id };
        let is_first =
            self.queue.add(parcel.organisation(), &parcel.envelope().sender_domain(), turn);
        let entry = Box::new(Entry {
            parcel: Arc::new(parcel),
            attempts: 0,
            acceptance: Acceptance::Excluded,
            place: Place::Waiting(turn.due),
            cancellation: None,
            interruption: Interruption::None,
        });
        self.by_id.insert(turn.id, entry);
        is_first
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
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

    pub(super) fn remaining(&self) -> Vec<(MessageId, u32, Acceptance)> {
        let left = self.by_id.values().map(|entry| {
            let acceptance = match entry.place {
                Place::Calling(_) => Acceptance::Possible,
                Place::Claimed(_) | Place::Returning(_) | Place::Waiting(_) => entry.acceptance,
            };
            (entry.parcel.id, entry.attempts, acceptance)
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
            let (organisation, envelope) = (entry.parcel.organisation(), entry.parcel.envelope());
            let is_held = || self.queue.is_held(organisation, &envelope.sender_domain());
            match entry.place {
                _ if (forecaster.is_refused)(organisation) => forecaster.forecast.provider += 1,
                Place::Waiting(_) if any_held && is_held() => forecaster.forecast.domain += 1,
                // Other retries are brought forward when a drain begins.
                Place::Waiting(due) if entry.acceptance == Acceptance::Possible && due >= end => {
                    forecaster.forecast.retry += 1;
                }
                Place::Waiting(_) | Place::Returning(_) => {
                    forecaster.goes(envelope.recipient_count());
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
            taken.insert(claim).recipients
        })?;
        self.in_flight += 1;
        taken
    }

    pub(super) fn claim_older_than(&mut self, end: Instant, limit: usize) -> Vec<Taken> {
        let taken: Vec<Taken> = self
            .by_id
            .values_mut()
            .take_while(|entry| entry.parcel.accepted_at <= end)
            .filter_map(|entry| {
                let Place::Waiting(due) = entry.place else { return None };
                let parcel = &entry.parcel;
                let turn = Turn { due, id: parcel.id };
                self.queue.remove(parcel.organisation(), &parcel.envelope().sender_domain(), &turn);
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
        let organisation = entry.parcel.organisation();
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
        let organisation = entry.parcel.organisation();
        let envelope = entry.parcel.envelope();
        let domain = envelope.sender_domain();
        match entry.place {
            Place::Claimed(_) | Place::Calling(_) | Place::Returning(_) => {
                self.in_flight -= 1;
                self.queue.returned(organisation, &domain, id);
            }
            Place::Waiting(due) => self.queue.remove(organisation, &domain, &Turn { due, id }),
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
        self.put_back_at(id, self.queue.times.of_retry(due))
    }

    pub(super) fn put_back_as_new(&mut self, id: MessageId) -> PutBack {
        let Some(entry) = self.by_id.get(&id) else { return PutBack::Gone(None) };
        self.put_back_at(id, self.queue.times.of_new(entry.parcel.accepted_at))
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
        let organisation = entry.parcel.organisation();
        let envelope = entry.parcel.envelope();
        let domain = envelope.sender_domain();
        self.queue.add(organisation, &domain, Turn { due, id });
        self.queue.returned(organisation, &domain, id);
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
            if !selection.covers(&entry.parcel) {
                continue;
            }
            match entry.place {
                Place::Waiting(due) => {
                    let parcel = &entry.parcel;
                    let turn = Turn { due, id };
                    self.queue.remove(
                        parcel.organisation(),
                        &parcel.envelope().sender_domain(),
                        &turn,
                    );
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
            count += usize::from(selection.covers(&entry.parcel));
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
