//! Entries of the queue: each pending message with its place, and the queue of those that wait.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;

use crate::due::Due;
use crate::fair_queue::FairQueue;
use crate::forecast::Forecaster;
use crate::lanes::{DomainHash, Forward, Position};
use crate::live::Live;
use crate::selection::{Selected, Selection};
use crate::sorted::{Keyed, Sorted};
use crate::{Budget, HeldMessage, Interruption, Pending, PendingMessage, Reservation};
use pillarbox_body_store::{Body, BodyStore, HeldBody, Moment};
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::message::{Acceptance, Cancellation, Failure, Transition};
use pillarbox_domain::message_terms::{Priority, whole_millis};
use pillarbox_domain::organisation::OrganisationKind;

/// Number of messages of a selection that are handled while the queue is locked; about as many as
/// share a commit.
const SELECTION_STEP: usize = 500;

#[derive(Debug)]
pub(super) struct Entries {
    /// By id, which is the order of acceptance: ids grow within a process.
    by_id: Sorted<Entry>,
    pub(super) queue: FairQueue,
    /// Messages of test organisations.
    test_messages: usize,
    /// Messages that are taken out.
    in_flight: ByKind,
    pub(super) obstacle: Option<Failure>,
    /// Waiting messages that have an end of their own, by it.
    expiries: BTreeSet<(Moment, MessageId)>,
    /// The arena with the bodies.
    bodies: BodyStore,
    /// Budget of the messages' bytes.
    budget: Budget,
}

/// Numbers of messages, by the kind of their organisations.
#[derive(Debug, Clone, Copy, Default)]
struct ByKind {
    production: usize,
    test: usize,
}

impl ByKind {
    fn all(self) -> usize {
        self.production + self.test
    }

    fn of(&mut self, kind: OrganisationKind) -> &mut usize {
        match kind {
            OrganisationKind::Production => &mut self.production,
            OrganisationKind::Test => &mut self.test,
        }
    }
}

/// A pending message. There may be millions, so it is packed: see [`Entry::message`].
#[derive(Debug)]
struct Entry {
    id: MessageId,
    sender_domain: DomainHash,
    accepted_at: Moment,
    /// Time of the next attempt, if it waits.
    due: Due,
    /// One more than the epoch of the suppressions that it was checked against; 0 if there is none.
    checked_in: u64,
    body: HeldBody,
    organisation: OrganisationId,
    kind: OrganisationKind,
    priority: Priority,
    /// Milliseconds after its acceptance for which it may be sent; 0 if they have no end.
    expires_in: u32,
    recipients: u32,
    /// Bytes of the budget, which are released with the entry.
    reserved: u32,
    attempts: u32,
    acceptance: Acceptance,
    place: Place,
    /// Reason why it is not to be sent again once its claim ends.
    cancellation: Option<Cancellation>,
    interruption: Interruption,
}

impl Keyed for Entry {
    type Key = MessageId;

    fn key(&self) -> MessageId {
        self.id
    }
}

/// Body and reservation of an entry. To be dropped once nothing is locked.
#[derive(Debug)]
#[must_use]
pub(super) struct Removed {
    _body: Body,
    _reservation: Reservation,
}

/// Message that is taken out. Its holder is made of it once nothing is locked.
pub(super) struct Taken {
    pub(super) message: PendingMessage,
    pub(super) attempts: u32,
    pub(super) acceptance: Acceptance,
    pub(super) interruption: Interruption,
    pub(super) cancellation: Option<Cancellation>,
}

/// Next step of a claimed message that is put back.
pub(super) enum PutBack {
    /// It waits for its next attempt.
    Waits,
    /// It is not pending any more.
    Gone(Option<Removed>),
    /// It was cancelled and ends like this.
    Cancelled(Transition),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    /// Taken out, and no call was started since.
    Claimed(Proof),
    /// Taken out, and a call was started.
    Calling(Proof),
    /// Taken out for a call that never started, and about to be put back.
    Returning(Proof),
}

/// Proof by an event, while the message was taken out, that it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    None,
    Sent,
}

/// History of a message before it came into the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    pub(super) attempts: u32,
    pub(super) acceptance: Acceptance,
    pub(super) interruption: Interruption,
    pub(super) cancellation: Option<Cancellation>,
}

impl Default for Past {
    fn default() -> Self {
        let (acceptance, interruption) = (Acceptance::Excluded, Interruption::None);
        Self { attempts: 0, acceptance, interruption, cancellation: None }
    }
}

impl Entry {
    /// Packs a message, due at `due`.
    fn new(held: HeldMessage, due: Due, bodies: &BodyStore, past: Past, place: Place) -> Self {
        let HeldMessage { message, reservation } = held;
        let Past { attempts, acceptance, interruption, cancellation } = past;
        Self {
            id: message.id,
            sender_domain: message.sender_domain,
            accepted_at: bodies.moments().moment(message.accepted_at),
            due,
            checked_in: message.suppression_epoch.map_or(0, |epoch| epoch + 1),
            body: message.body.into_held(),
            organisation: message.organisation,
            kind: message.kind,
            priority: message.priority,
            expires_in: message.expires_in.map_or(0, packed_millis),
            recipients: message.recipients,
            reserved: u32::try_from(reservation.keep()).expect("a body has less than 4 GiB"),
            attempts,
            acceptance,
            place,
            cancellation,
            interruption,
        }
    }

    /// Unpacks the message, with its body from the arena.
    fn message(&self, bodies: &BodyStore) -> PendingMessage {
        PendingMessage {
            id: self.id,
            organisation: self.organisation,
            kind: self.kind,
            recipients: self.recipients,
            priority: self.priority,
            accepted_at: bodies.moments().instant(self.accepted_at),
            expires_in: self.expires_in(),
            suppression_epoch: self.checked_in.checked_sub(1),
            sender_domain: self.sender_domain,
            body: bodies.hold(&self.body),
        }
    }

    fn position(&self) -> Position {
        Position { due: self.due, id: self.id }
    }

    /// Its lane among those of its organisation.
    fn lane(&self) -> (DomainHash, Priority) {
        (self.sender_domain, self.priority)
    }

    fn expires_in(&self) -> Option<Duration> {
        (self.expires_in > 0).then(|| Duration::from_millis(self.expires_in.into()))
    }

    /// Its place among the ends of messages, if it has an end of its own.
    fn expiry(&self) -> Option<(Moment, MessageId)> {
        Some((self.accepted_at.plus(self.expires_in()?), self.id))
    }

    fn claim(&mut self, bodies: &BodyStore) -> Taken {
        self.place = Place::Claimed(Proof::None);
        Taken {
            message: self.message(bodies),
            attempts: self.attempts,
            acceptance: self.acceptance,
            interruption: self.interruption,
            cancellation: self.cancellation,
        }
    }

    /// Has the message end once its claim does, also if a later process takes it up.
    fn cancel(&mut self, bodies: &BodyStore, why: Cancellation) {
        if self.cancellation.is_some() {
            return;
        }
        self.cancellation = Some(why);
        if let Err(error) = bodies.hold(&self.body).cancel(self.id, why) {
            tracing::error!(id = %self.id, %error, "the cancellation is in memory only: if the process is killed, the message may be sent");
        }
    }

    fn is_of(&self, selection: &Selection, bodies: &BodyStore) -> bool {
        let was_posted_by = |key| self.was_posted_by(key, bodies);
        selection.covers(self.id, self.organisation, self.sender_domain, was_posted_by)
    }

    /// Returns true if this API key has posted the message.
    fn was_posted_by(&self, key: KeyId, bodies: &BodyStore) -> bool {
        match bodies.hold(&self.body).key() {
            Ok(posted_by) => posted_by == Some(key),
            Err(error) => {
                tracing::error!(id = %self.id, %error, "a pending message cannot be read");
                false
            }
        }
    }
}

impl Entries {
    pub(super) fn new(bodies: BodyStore, budget: Budget) -> Self {
        Self {
            by_id: Sorted::default(),
            queue: FairQueue::default(),
            test_messages: 0,
            in_flight: ByKind::default(),
            obstacle: None,
            expiries: BTreeSet::new(),
            bodies,
            budget,
        }
    }

    /// Takes out a message that waits, before its attempt is due.
    fn claim_waiting(&mut self, id: MessageId) -> Option<Taken> {
        let entry = self.by_id.get_mut(&id).filter(|entry| entry.place == Place::Waiting)?;
        self.queue.remove(entry.organisation, entry.lane(), &entry.position());
        *self.in_flight.of(entry.kind) += 1;
        if let Some(expiry) = entry.expiry() {
            self.expiries.remove(&expiry);
        }
        Some(entry.claim(&self.bodies))
    }

    /// Takes in a message that is due at once; returns `true` if it is its organisation's first.
    pub(super) fn add(&mut self, held: HeldMessage) -> bool {
        self.insert(held, Due::AT_ONCE, Past::default())
    }

    /// Takes in a message of an earlier process, with what happened to it there.
    pub(super) fn take_up(&mut self, held: HeldMessage, due: Instant, past: Past) {
        let due = match past {
            Past { attempts: 0, .. } => Due::AT_ONCE,
            _ => self.queue.times.at(due),
        };
        self.insert(held, due, past);
    }

    /// Takes in a message of an earlier process that is taken out at once.
    pub(super) fn take_up_claimed(&mut self, held: HeldMessage, past: Past) -> Taken {
        let place = Place::Claimed(Proof::None);
        let mut entry = Entry::new(held, Due::AT_ONCE, &self.bodies, past, place);
        self.queue.learn(entry.organisation, entry.kind);
        let taken = entry.claim(&self.bodies);
        self.test_messages += usize::from(entry.kind == OrganisationKind::Test);
        *self.in_flight.of(entry.kind) += 1;
        self.by_id.insert(entry);
        taken
    }

    /// Has a message wait; returns `true` if it is its organisation's first.
    fn insert(&mut self, held: HeldMessage, due: Due, past: Past) -> bool {
        let entry = Entry::new(held, due, &self.bodies, past, Place::Waiting);
        let Entry { organisation, kind, .. } = entry;
        self.test_messages += usize::from(kind == OrganisationKind::Test);
        let is_first = self.queue.add(organisation, kind, entry.lane(), entry.position());
        self.expiries.extend(entry.expiry());
        self.by_id.insert(entry);
        is_first
    }

    /// Returns the pending messages as numbers, with so many bytes of the budget in use.
    pub(super) fn pending(&self, bytes: usize) -> Pending {
        let messages = self.by_id.len();
        let paused = self.queue.paused_messages(OrganisationKind::Production);
        Pending {
            messages,
            in_flight: self.in_flight.all(),
            paused: paused + self.queue.paused_messages(OrganisationKind::Test),
            bytes,
            due_organisations: self.queue.due_organisations(),
            test_messages: self.test_messages,
            open_messages: messages.saturating_sub(self.test_messages + paused),
            test_in_flight: self.in_flight.test,
        }
    }

    pub(super) fn oldest(&self) -> Option<MessageId> {
        self.by_id.first().map(|entry| entry.id)
    }

    /// Takes out the organisations that one of the next entries after one belongs to, and notes when
    /// the first was accepted. Returns the entry to go on after, if there may be more.
    pub(super) fn oldest_of(
        &self,
        organisations: &mut HashSet<OrganisationId>,
        after: Option<MessageId>,
        found: &mut BTreeMap<OrganisationId, Instant>,
    ) -> Option<MessageId> {
        let (mut seen, mut last) = (0, None);
        for entry in self.by_id.after(after).take(SELECTION_STEP) {
            if organisations.remove(&entry.organisation) {
                let accepted_at = self.bodies.moments().instant(entry.accepted_at);
                found.insert(entry.organisation, accepted_at);
            }
            seen += 1;
            last = Some(entry.id);
        }
        last.filter(|_| seen == SELECTION_STEP)
    }

    /// Takes out the organisations that one of the next ends after one belongs to, and notes these.
    /// Returns the end to go on after, if there may be more.
    pub(super) fn first_expiries(
        &self,
        organisations: &mut HashSet<OrganisationId>,
        after: Option<(Moment, MessageId)>,
        found: &mut BTreeMap<OrganisationId, Instant>,
    ) -> Option<(Moment, MessageId)> {
        let (mut seen, mut last) = (0, None);
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        for expiry @ (end, id) in self.expiries.range(range).take(SELECTION_STEP) {
            let entry = self.by_id.get(id).expect("an end has its entry");
            if organisations.remove(&entry.organisation) {
                found.insert(entry.organisation, self.bodies.moments().instant(*end));
            }
            seen += 1;
            last = Some(*expiry);
        }
        last.filter(|_| seen == SELECTION_STEP)
    }

    pub(super) fn live(&self, id: MessageId) -> Option<Live> {
        let entry = self.by_id.get(&id)?;
        Some(match entry.place {
            Place::Calling(_) => Live::Sending { attempts: entry.attempts },
            Place::Claimed(_) | Place::Returning(_) | Place::Waiting => {
                let obstacle = match entry.kind {
                    OrganisationKind::Production => self.obstacle.clone(),
                    OrganisationKind::Test => None,
                };
                Live::Waiting { obstacle }
            }
        })
    }

    pub(super) fn accepted_before(&self, id: MessageId, time: Instant) -> bool {
        let time = self.bodies.moments().moment(time);
        self.by_id.get(&id).is_some_and(|entry| entry.accepted_at < time)
    }

    pub(super) fn remaining(&self) -> Vec<(MessageId, u32, Acceptance)> {
        let left = self.by_id.iter().map(|entry| {
            let acceptance = match entry.place {
                Place::Calling(_) => Acceptance::Possible,
                Place::Claimed(_) | Place::Returning(_) | Place::Waiting => entry.acceptance,
            };
            (entry.id, entry.attempts, acceptance)
        });
        left.collect()
    }

    /// Adds up to `limit` entries after one to a forecast; returns the last of them.
    pub(super) fn forecast(
        &self,
        after: Option<MessageId>,
        limit: usize,
        forecaster: &mut Forecaster<impl Fn(OrganisationId) -> bool>,
    ) -> Option<MessageId> {
        let mut last = None;
        let any_held = self.queue.any_held();
        let end = self.queue.times.at(forecaster.end);
        for entry in self.by_id.after(after).take(limit) {
            last = Some(entry.id);
            let Entry { organisation, sender_domain, recipients, due, .. } = *entry;
            let is_held = || self.queue.is_held(organisation, sender_domain);
            match entry.place {
                Place::Waiting if self.queue.is_paused(organisation) => {
                    forecaster.forecast.paused += 1;
                }
                // The message waits for neither the provider nor the rate.
                _ if entry.kind == OrganisationKind::Test => {}
                _ if (forecaster.is_refused)(organisation) => forecaster.forecast.provider += 1,
                Place::Waiting if any_held && is_held() => forecaster.forecast.domain += 1,
                // Other retries are brought forward when a drain begins.
                Place::Waiting if entry.acceptance == Acceptance::Possible && due >= end => {
                    forecaster.forecast.retry += 1;
                }
                Place::Waiting | Place::Returning(_) => {
                    forecaster.goes(recipients);
                }
                Place::Claimed(_) | Place::Calling(_) => {}
            }
        }
        last
    }

    pub(super) fn claim(
        &mut self,
        kind: OrganisationKind,
        now: Instant,
        max_calls: usize,
    ) -> Option<Taken> {
        let (entries, bodies) = (&mut self.by_id, &self.bodies);
        let (mut taken, expiries) = (None, &mut self.expiries);
        self.queue.take(kind, now, max_calls, |id| {
            let entry = entries.get_mut(&id).expect("a waiting message has its entry");
            if let Some(expiry) = entry.expiry() {
                expiries.remove(&expiry);
            }
            taken.insert(entry.claim(bodies)).message.recipients
        })?;
        *self.in_flight.of(kind) += 1;
        taken
    }

    pub(super) fn claim_older_than(&mut self, end: Instant, limit: usize) -> Vec<Taken> {
        let end = self.bodies.moments().moment(end);
        let older = self.by_id.iter().take_while(|entry| entry.accepted_at <= end);
        let waiting = older.filter(|entry| entry.place == Place::Waiting).take(limit);
        let ids: Vec<_> = waiting.map(|entry| entry.id).collect();
        ids.into_iter().filter_map(|id| self.claim_waiting(id)).collect()
    }

    pub(super) fn claim_expired(&mut self, now: Instant, limit: usize) -> Vec<Taken> {
        let now = self.bodies.moments().moment(now);
        let over = self.expiries.iter().take_while(|(end, _)| *end <= now).take(limit);
        let ids: Vec<_> = over.map(|(_, id)| *id).collect();
        ids.into_iter().filter_map(|id| self.claim_waiting(id)).collect()
    }

    pub(super) fn start_call(&mut self, id: MessageId) -> (u32, OrganisationId) {
        let entry = self.by_id.get_mut(&id).expect("a claimed message stays until it is finished");
        if let Place::Claimed(proof) = entry.place {
            entry.place = Place::Calling(proof);
        }
        let organisation = entry.organisation;
        self.queue.call_started(organisation);
        entry.attempts += 1;
        (entry.attempts, organisation)
    }

    pub(super) fn not_called(&mut self, id: MessageId) -> u32 {
        let entry = self.by_id.get_mut(&id).expect("a claimed message stays until it is finished");
        entry.attempts = entry.attempts.saturating_sub(1);
        if let Place::Calling(proof) = entry.place {
            entry.place = Place::Returning(proof);
        }
        entry.attempts
    }

    pub(super) fn remove(&mut self, id: MessageId) -> Option<Removed> {
        let entry = self.by_id.remove(&id)?;
        let Entry { organisation, kind, sender_domain, .. } = entry;
        self.test_messages -= usize::from(kind == OrganisationKind::Test);
        if let Some(expiry) = entry.expiry() {
            self.expiries.remove(&expiry);
        }
        match entry.place {
            Place::Claimed(_) | Place::Calling(_) | Place::Returning(_) => {
                *self.in_flight.of(kind) -= 1;
                self.queue.returned(organisation, sender_domain, id);
            }
            Place::Waiting => self.queue.remove(organisation, entry.lane(), &entry.position()),
        }
        Some(self.removed(entry))
    }

    fn removed(&self, entry: Entry) -> Removed {
        let reserved = usize::try_from(entry.reserved).expect("it was a number of bytes in memory");
        Removed {
            _body: self.bodies.body(entry.body),
            _reservation: self.budget.resume(entry.organisation, reserved),
        }
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
        self.put_back_at(id, self.queue.times.at(due))
    }

    pub(super) fn put_back_untried(&mut self, id: MessageId, due: Instant) -> PutBack {
        self.put_back_at(id, self.queue.times.at(due))
    }

    pub(super) fn put_back_as_new(&mut self, id: MessageId) -> PutBack {
        self.put_back_at(id, Due::AT_ONCE)
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
            Place::Waiting => PutBack::Waits,
        }
    }

    /// Puts back a message whose holder was dropped, due at `due`; returns it if it is not pending
    /// any more. A cancellation is left to its next claim.
    pub(super) fn interrupt(&mut self, id: MessageId, due: Instant) -> Option<Removed> {
        let entry = self.by_id.get_mut(&id)?;
        let (proof, interruption) = match entry.place {
            Place::Calling(proof) => (proof, Interruption::DuringCall),
            Place::Claimed(proof) | Place::Returning(proof) => (proof, Interruption::BeforeCall),
            Place::Waiting => return None,
        };
        if proof == Proof::Sent {
            return self.remove(id);
        }
        entry.acceptance = Acceptance::Possible;
        entry.interruption = entry.interruption.max(interruption);
        self.wait(id, self.queue.times.at(due));
        None
    }

    /// Has a message that was taken out wait again.
    fn wait(&mut self, id: MessageId, due: Due) {
        let entry = self.by_id.get_mut(&id).expect("a claimed message stays until it is finished");
        (entry.place, entry.due) = (Place::Waiting, due);
        let Entry { organisation, kind, sender_domain, .. } = *entry;
        let (lane, expiry) = (entry.lane(), entry.expiry());
        *self.in_flight.of(kind) -= 1;
        self.expiries.extend(expiry);
        self.queue.add(organisation, kind, lane, Position { due, id });
        self.queue.returned(organisation, sender_domain, id);
    }

    /// Takes out what waits of a bounded part of a selection, and marks what has a call under way.
    pub(super) fn cancel(
        &mut self,
        selection: &Selection,
        after: Option<MessageId>,
        why: Cancellation,
    ) -> (Vec<Taken>, Selected) {
        let ids: Vec<MessageId> = match selection {
            Selection::Ids(ids) => {
                let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
                ids.range(range).take(SELECTION_STEP).copied().collect()
            }
            Selection::Organisation { .. } => {
                self.by_id.after(after).take(SELECTION_STEP).map(|entry| entry.id).collect()
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
            if !entry.is_of(selection, &self.bodies) {
                continue;
            }
            match entry.place {
                Place::Waiting => taken.extend(self.claim_waiting(id)),
                Place::Calling(_) | Place::Returning(_) => {
                    entry.cancel(&self.bodies, why);
                    selected.calls_under_way += 1;
                }
                // Its holder is about to end it. Should it be dropped, the next one will.
                Place::Claimed(_) => {
                    entry.cancel(&self.bodies, why);
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
        let (mut count, mut seen, mut last) = (0, 0, None);
        for entry in self.by_id.after(after).take(SELECTION_STEP) {
            count += usize::from(entry.is_of(selection, &self.bodies));
            seen += 1;
            last = Some(entry.id);
        }
        (count, last.filter(|_| seen == SELECTION_STEP))
    }

    pub(super) fn proved_sent(&mut self, id: MessageId) -> Option<Removed> {
        let entry = self.by_id.get_mut(&id)?;
        match &mut entry.place {
            Place::Waiting => self.remove(id),
            Place::Claimed(proof) | Place::Calling(proof) | Place::Returning(proof) => {
                *proof = Proof::Sent;
                None
            }
        }
    }

    pub(super) fn bring_forward(&mut self, now: Instant) {
        let entries = &self.by_id;
        self.queue.bring_forward(now, |id| {
            let entry = entries.get(&id).expect("a position has its entry");
            match entry.acceptance {
                Acceptance::Possible => Forward::Left,
                Acceptance::Excluded => Forward::Taken,
            }
        });
    }
}

/// Packs how long a message may be sent: at least a millisecond, at most 49 days.
fn packed_millis(expires_in: Duration) -> u32 {
    u32::try_from(whole_millis(expires_in)).unwrap_or(u32::MAX).max(1)
}

impl Drop for Entries {
    fn drop(&mut self) {
        let by_id = std::mem::take(&mut self.by_id);
        for entry in by_id {
            drop(self.removed(entry));
        }
    }
}
