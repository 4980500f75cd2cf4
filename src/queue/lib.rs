//! The queue: messages whose body is pending, in memory, within a byte budget.
//!
//! Decides which message is next: fair between organisations by recipients and by calls under way,
//! and within one by priority, nine calls of ten for the high one if both wait. Within a priority,
//! the order of acceptance holds, also for retries whose time has come. Knows nothing of the
//! provider, of pace or of the store. The bodies are in the arena; an entry holds the one of its
//! message.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use pillarbox_body_store::{BodyStore, CallState, LiveState, NewBody, Survivor};
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{Acceptance, Cancellation, Failure, Transition};
use pillarbox_domain::organisation::OrganisationKind;

use claim::INTERRUPTED_WAIT;
use entries::{Entries, Past};
use forecast::Forecaster;
use lanes::DomainHash;

pub use budget::{Budget, Fill, NoRoom, Reservation};
pub use claim::{Call, Claim, Interruption};
pub use forecast::DrainForecast;
pub use live::{Live, View, live_changes};
pub use message::{AcceptedMessage, EncodedRequest, HeldMessage, PendingMessage};
pub use selection::{CancelReach, Selected, Selection};

mod budget;
mod claim;
mod due;
mod entries;
mod fair_queue;
mod forecast;
mod lanes;
mod live;
mod message;
mod selection;
mod sorted;

/// Pending messages that a forecast reads while others wait.
const FORECAST_STEP: usize = 1_000;

/// Time from which the next call may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A message is due.
    Now,
    /// Messages are due, and their organisations have as many calls under way as they may. When
    /// the first message of another organisation will be due, if there is one.
    AfterACall(Option<Instant>),
    /// The first message will be due then.
    At(Instant),
    /// No message waits.
    Never,
}

/// Gate of an organisation: whether its messages may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// They may, as they become due.
    Open,
    /// Not before this time.
    OpensAt(Instant),
    /// Not before the gate is set again.
    Closed,
}

/// Pending messages of an organisation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Messages that wait for an attempt.
    pub waiting: usize,
    /// Number of its calls under way.
    pub calls_under_way: usize,
}

/// Pending messages in all, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pending {
    /// Messages, those being sent included.
    pub messages: usize,
    /// Of these, the ones with a call under way.
    pub in_flight: usize,
    /// Of these, the ones that wait because an operator has paused their organisation.
    pub paused: usize,
    /// Bytes of the budget in use.
    pub bytes: usize,
    /// Organisations of production with a message that is due and waits for its call.
    pub due_organisations: usize,
    /// Of the messages, those of test organisations.
    pub test_messages: usize,
    /// Of the messages, those that are to be sent now: of production, and not paused by an operator.
    pub open_messages: usize,
    /// Of these, the ones with a call under way.
    pub test_in_flight: usize,
}

/// A message that outlived its process.
#[derive(Debug)]
pub enum TakenUp {
    /// It waits for an attempt.
    Waits,
    /// The provider has accepted it, or it has failed, and that is not in the store yet.
    Ends(Claim, Transition),
}

/// The pending messages of all organisations.
#[derive(Debug)]
pub struct MessageQueue {
    entries: Mutex<Entries>,
    bodies: BodyStore,
    budget: Budget,
    changed: Notify,
    call_ended: Notify,
}

impl MessageQueue {
    /// An empty queue that takes up to `max_bytes` of pending messages, with their bodies in `bodies`.
    pub fn new(bodies: BodyStore, max_bytes: usize) -> Self {
        let budget = Budget::new(max_bytes);
        Self {
            entries: Mutex::new(Entries::new(bodies.clone(), budget.clone())),
            bodies,
            budget,
            changed: Notify::new(),
            call_ended: Notify::new(),
        }
    }

    /// The byte budget, to reserve from before a message is stored.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The arena with the bodies.
    pub fn bodies(&self) -> &BodyStore {
        &self.bodies
    }

    /// Puts the body of a message that is to be accepted into the arena. Fails if there is no memory
    /// for it.
    pub fn hold(&self, accepted: AcceptedMessage) -> io::Result<HeldMessage> {
        let AcceptedMessage { id, kind, key, request, accepted_at, suppression_epoch, reservation } =
            accepted;
        let organisation = reservation.holder();
        let body = self.bodies.put(&NewBody {
            id,
            organisation,
            key,
            accepted_at,
            content: &request.text,
            request_len: request.request_len,
        })?;
        let message = PendingMessage {
            id,
            organisation,
            kind,
            recipients: request.recipients,
            priority: request.priority,
            accepted_at,
            expires_in: request.expires_in,
            suppression_epoch: Some(suppression_epoch),
            sender_domain: request.sender_domain,
            body,
        };
        Ok(HeldMessage { message, reservation })
    }

    /// Takes in an accepted message; it is due at once.
    pub fn add(&self, held: HeldMessage) {
        let is_first = self.lock().add(held);
        // Behind others of its organisation, it changes nothing for now.
        if is_first {
            self.changed.notify_one();
        }
    }

    /// Takes up a message that outlived its process and is still pending, of an organisation of this
    /// kind. It is due as it was then, and at once if a call was under way. Fails if its body cannot be
    /// read.
    pub fn take_up(
        self: &Arc<Self>,
        survivor: Survivor,
        kind: OrganisationKind,
    ) -> io::Result<TakenUp> {
        let Survivor { id, organisation, key: _, accepted_at, live, cancellation, body } = survivor;
        let envelope = Envelope::from_text(body.envelope()?);
        let encoded = body.content_len();
        let message = PendingMessage {
            id,
            organisation,
            kind,
            recipients: envelope.recipient_count(),
            priority: envelope.priority(),
            accepted_at,
            expires_in: envelope.expires_in(),
            suppression_epoch: None,
            sender_domain: DomainHash::of(&envelope.sender_domain()),
            body,
        };
        // It was accepted: whether there is room is no question any more.
        let reservation = self.budget.reserve_always(organisation, encoded);
        let held = HeldMessage { message, reservation };
        let LiveState { attempts, acceptance, due, call } = live;
        let (acceptance, interruption, due) = match &call {
            CallState::UnderWay => {
                (Acceptance::Possible, Interruption::EndOfProcess, Instant::now())
            }
            CallState::Idle | CallState::Answered { .. } | CallState::Failed(_) => {
                (acceptance, Interruption::None, due)
            }
        };
        let past = Past { attempts, acceptance, interruption, cancellation };
        let end = match call {
            CallState::Answered { ses_message_id, sent_at } => {
                Some(Transition::Sent { ses_message_id, sent_at })
            }
            CallState::Failed(failure) => Some(Transition::Failed { failure, acceptance }),
            _ => cancellation.map(|why| why.transition(acceptance)),
        };
        let taken_up = if let Some(end) = end {
            let taken = self.lock().take_up_claimed(held, past);
            TakenUp::Ends(Claim::new(taken, self), end)
        } else {
            self.lock().take_up(held, due, past);
            TakenUp::Waits
        };
        self.changed.notify_one();
        Ok(taken_up)
    }

    /// Takes out the message of an organisation of this kind whose call may start at `now`, with at
    /// most `max_calls` under way for all of the kind: of the organisations whose calls under way
    /// are fewer than the free slots, the next one in the fair order.
    pub fn claim(
        self: &Arc<Self>,
        kind: OrganisationKind,
        now: Instant,
        max_calls: usize,
    ) -> Option<Claim> {
        let taken = self.lock().claim(kind, now, max_calls)?;
        Some(Claim::new(taken, self))
    }

    /// Takes out waiting messages that were accepted before `end`, at most `limit`.
    pub fn claim_older_than(self: &Arc<Self>, end: Instant, limit: usize) -> Vec<Claim> {
        let taken = self.lock().claim_older_than(end, limit);
        Claim::all(taken, self)
    }

    /// Takes out waiting messages that may not be sent any more at `now`, at most `limit`.
    pub fn claim_expired(self: &Arc<Self>, now: Instant, limit: usize) -> Vec<Claim> {
        let taken = self.lock().claim_expired(now, limit);
        Claim::all(taken, self)
    }

    /// Time from which the next call for an organisation of this kind may start, with at most
    /// `max_calls` under way for all of the kind.
    pub fn next(&self, kind: OrganisationKind, now: Instant, max_calls: usize) -> Next {
        self.lock().queue.next(kind, now, max_calls)
    }

    /// Calls under way for organisations of this kind.
    pub fn calls(&self, kind: OrganisationKind) -> usize {
        self.lock().queue.calls(kind)
    }

    /// Waits until a call has ended since the last wait.
    pub async fn call_ended(&self) {
        self.call_ended.notified().await;
    }

    /// Waits until the queue has changed since the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Holds back an organisation's messages from a domain until a time. From then on one of them
    /// may go, and the others after [`MessageQueue::resume_domain`].
    pub fn pause_domain(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
        until: Instant,
    ) {
        self.lock().queue.pause(organisation, DomainHash::of(domain), until);
        self.changed.notify_one();
    }

    /// Lets an organisation's messages from a domain go again, in the order of acceptance, behind the
    /// organisation's others that could go all the while.
    pub fn resume_domain(&self, organisation: OrganisationId, domain: &DomainName<'_>) {
        self.lock().queue.resume(organisation, DomainHash::of(domain));
        self.changed.notify_one();
    }

    /// True if messages wait because their domain is paused.
    pub fn is_held(&self, organisation: OrganisationId, domain: &DomainName<'_>) -> bool {
        self.lock().queue.is_held(organisation, DomainHash::of(domain))
    }

    /// True if messages from a domain have to wait, even if there are none.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_closed(&self, organisation: OrganisationId, domain: &DomainName<'_>) -> bool {
        self.lock().queue.is_closed(organisation, DomainHash::of(domain))
    }

    /// Sets whether an organisation's messages may go.
    pub fn set_gate(&self, organisation: OrganisationId, gate: Gate) {
        self.lock().queue.set_gate(organisation, gate);
        self.changed.notify_one();
    }

    /// Sets which organisations an operator has paused. The messages of all others may go as their
    /// gates let them.
    pub fn set_paused(&self, paused: HashSet<OrganisationId>) {
        self.lock().queue.set_paused(paused);
        self.changed.notify_one();
    }

    /// Returns the pending messages of an organisation, as numbers.
    pub fn backlog(&self, organisation: OrganisationId) -> Backlog {
        self.lock().queue.backlog(organisation)
    }

    /// Number of messages of an organisation that wait and are from a domain.
    pub fn waiting_from(&self, organisation: OrganisationId, domain: &DomainName<'_>) -> usize {
        self.lock().queue.waiting_from(organisation, DomainHash::of(domain))
    }

    /// Acceptance of the oldest pending message of each of these organisations. Takes time in
    /// proportion to what was accepted before and is pending.
    pub fn oldest_of(
        &self,
        mut organisations: HashSet<OrganisationId>,
    ) -> BTreeMap<OrganisationId, Instant> {
        let (mut found, mut after) = (BTreeMap::new(), None);
        // In steps, so that sending does not wait for all of it.
        while !organisations.is_empty() {
            after = self.lock().oldest_of(&mut organisations, after, &mut found);
            if after.is_none() {
                break;
            }
        }
        found
    }

    /// End of the waiting message of each of these organisations that may be sent for the shortest
    /// time from now on, of those that have an end of their own. Takes time in proportion to the
    /// messages that have one.
    pub fn first_expiries(
        &self,
        mut organisations: HashSet<OrganisationId>,
    ) -> BTreeMap<OrganisationId, Instant> {
        let (mut found, mut after) = (BTreeMap::new(), None);
        while !organisations.is_empty() {
            after = self.lock().first_expiries(&mut organisations, after, &mut found);
            if after.is_none() {
                break;
            }
        }
        found
    }

    /// True if an organisation has messages that wait or are being sent.
    pub fn is_waiting(&self, organisation: OrganisationId) -> bool {
        self.lock().queue.is_waiting(organisation)
    }

    /// Forgets a message that reached a final state, and its body.
    pub fn finish(&self, id: MessageId) {
        let removed = self.lock().remove(id);
        // The body is freed here, outside of the lock.
        drop(removed);
        self.changed.notify_one();
    }

    /// Puts back a message whose holder was dropped.
    fn interrupt(&self, id: MessageId) {
        let removed = self.lock().interrupt(id, Instant::now() + INTERRUPTED_WAIT);
        drop(removed);
        self.changed.notify_one();
    }

    /// Takes out what waits of a bounded part of a selection, from after `after` on, and marks
    /// what has a call under way, so that it does not come back.
    pub fn cancel(
        self: &Arc<Self>,
        selection: &Selection,
        after: Option<MessageId>,
        why: Cancellation,
    ) -> Selected {
        let (taken, selected) = self.lock().cancel(selection, after, why);
        Selected { taken: Claim::all(taken, self), ..selected }
    }

    /// Counts the messages of a selection that are not final.
    pub fn count(&self, selection: &Selection) -> usize {
        let (mut all, mut after) = (0, None);
        loop {
            // In steps, so that sending does not wait for all of it.
            let (count, next) = self.lock().count(selection, after);
            all += count;
            match next {
                Some(_) => after = next,
                None => return all,
            }
        }
    }

    /// An event proved that a message was sent: a waiting retry is cancelled and the body
    /// dropped; a call under way will not be repeated.
    pub fn proved_sent(&self, id: MessageId) {
        let removed = self.lock().proved_sent(id);
        drop(removed);
        self.changed.notify_one();
    }

    /// State of a message; `None` if it is not pending.
    pub fn live(&self, id: MessageId) -> Option<Live> {
        self.lock().live(id)
    }

    /// Returns true if a message is pending and was accepted before this time.
    pub fn is_pending_since_before(&self, id: MessageId, time: Instant) -> bool {
        self.lock().accepted_before(id, time)
    }

    /// Sets what keeps every message from being sent, for readers to see.
    pub fn set_obstacle(&self, obstacle: Option<Failure>) {
        self.lock().obstacle = obstacle;
    }

    /// The message that was accepted first of those that are pending.
    pub fn oldest(&self) -> Option<MessageId> {
        self.lock().oldest()
    }

    /// Returns the pending messages in all, as numbers.
    pub fn pending(&self) -> Pending {
        self.lock().pending(self.budget.in_use())
    }

    /// Makes waiting messages due at once, for one last attempt: those that are known not to be
    /// accepted. If an answer was lost, an event may still resolve the doubt before the retry.
    pub fn bring_forward(&self, now: Instant) {
        self.lock().bring_forward(now);
        self.changed.notify_one();
    }

    /// Every pending message in the order of acceptance, with the calls made and whether one may
    /// have been accepted.
    pub fn remaining(&self) -> Vec<(MessageId, u32, Acceptance)> {
        self.lock().remaining()
    }

    /// Forecasts what a drain until `end` leaves unsent, if `recipients` can be sent to until then,
    /// and the provider takes nothing of the organisations for which `is_refused` returns true.
    /// Takes time in proportion to what is pending.
    pub fn forecast_drain(
        &self,
        end: Instant,
        recipients: f64,
        is_refused: impl Fn(OrganisationId) -> bool,
    ) -> DrainForecast {
        let mut forecaster = Forecaster::new(end, recipients, is_refused);
        let mut after = None;
        // A step at a time: senders and clients must not wait for all of it.
        loop {
            let last = self.lock().forecast(after, FORECAST_STEP, &mut forecaster);
            match last {
                Some(_) => after = last,
                None => return forecaster.forecast,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
