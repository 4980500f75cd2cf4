//! Fair queue of waiting messages: organisations alternate, measured in recipients; within an
//! organisation by priority, then in the order of acceptance, also for retries whose time has come.
//!
//! Test organisations have an order and calls of their own: they take none of production's. Knows
//! neither bodies nor the outcome of a call.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokio::time::Instant;

use crate::due::{Due, DueTimes};
use crate::lanes::{DomainHash, Forward, Lanes, Position};
use crate::{Backlog, Gate, Next};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message_terms::Priority;
use pillarbox_domain::organisation::OrganisationKind;

/// The waiting messages of all organisations.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    /// Time base of its entries.
    pub(super) times: DueTimes,
    queues: HashMap<OrganisationId, OrganisationQueue>,
    /// Organisations that an operator has paused. None of their messages is next, so they have no
    /// rank.
    paused: HashSet<OrganisationId>,
    /// The message that was accepted last.
    newest: Option<MessageId>,
    /// The test organisations that had a message. All others are of production.
    tests: HashSet<OrganisationId>,
    production: Order,
    test: Order,
}

/// Order of the organisations of one kind.
#[derive(Debug, Default)]
struct Order {
    /// Organisations with a due message, by their number of calls under way; among equals, the one
    /// that was served least first. With n calls under way there are at most √2n different numbers.
    ready: BTreeMap<usize, BTreeSet<(u64, OrganisationId)>>,
    /// Organisations of which no message was due, or could go, at the last check, the earliest
    /// first.
    asleep: BTreeSet<(Due, OrganisationId)>,
    /// Calls under way for all of them.
    calls: usize,
    /// Share up to which organisations have been served. One that was absent, or had to be passed
    /// over, goes on from here: it neither waits for others' backlog nor makes up for the time.
    served: u64,
}

#[derive(Debug)]
struct OrganisationQueue {
    lanes: Lanes,
    /// Recipients served so far, in the common measure.
    share: u64,
    /// Number of calls under way.
    calls: usize,
    gate: Gate,
    /// The kind in whose order it has its rank.
    kind: OrganisationKind,
    rank: Rank,
}

/// Position of an organisation in its order.
#[derive(Debug, Clone, Copy)]
enum Rank {
    Ready { calls: usize, share: u64 },
    Asleep(Due),
    Empty,
}

impl FairQueue {
    /// Adds a message of an organisation of this kind; returns `true` if that changes when its
    /// organisation's next message may go.
    pub(super) fn add(
        &mut self,
        organisation: OrganisationId,
        kind: OrganisationKind,
        lane: (DomainHash, Priority),
        position: Position,
    ) -> bool {
        self.learn(organisation, kind);
        self.newest = self.newest.max(Some(position.id));
        let lanes = &mut self.queue(organisation).lanes;
        let before = lanes.next();
        lanes.add(lane, position);
        let is_changed = lanes.next() != before;
        if is_changed {
            self.rank(organisation);
        }
        is_changed
    }

    pub(super) fn remove(
        &mut self,
        organisation: OrganisationId,
        lane: (DomainHash, Priority),
        position: &Position,
    ) {
        if let Some(queue) = self.queues.get_mut(&organisation) {
            queue.lanes.remove(lane, position);
            self.rank(organisation);
        }
    }

    /// Takes note of an organisation's kind. From here on, it is served among others of its kind.
    pub(super) fn learn(&mut self, organisation: OrganisationId, kind: OrganisationKind) {
        // One whose gate was set before its first message has a queue already.
        if kind == OrganisationKind::Test && self.tests.insert(organisation) {
            self.rank(organisation);
        }
    }

    /// Takes out the message of an organisation of this kind that is next at `now`, with at most
    /// `max_calls` under way for all of the kind. An organisation's call may start only if its calls
    /// under way are fewer than the free slots; one that may not is passed over and keeps its place.
    /// `recipients` of the message are charged to the organisation, whether a call follows or the
    /// message ends without one.
    pub(super) fn take(
        &mut self,
        kind: OrganisationKind,
        now: Instant,
        max_calls: usize,
        recipients: impl FnOnce(MessageId) -> u32,
    ) -> Option<MessageId> {
        self.wake(kind, now);
        let (share, organisation) = self.order(kind).first_ready(max_calls)?;
        let order = self.order_mut(kind);
        order.served = order.served.max(share);
        let served = order.served;
        let queue = self.queues.get_mut(&organisation).expect("a ready organisation has a queue");
        let id = queue.lanes.take(self.times.at(now));
        let id = id.expect("a ready organisation has a message that may go");
        queue.share = queue.share.max(served) + u64::from(recipients(id));
        self.rank(organisation);
        Some(id)
    }

    /// Counts a call that starts.
    pub(super) fn call_started(&mut self, organisation: OrganisationId) {
        let queue = self.queue(organisation);
        queue.calls += 1;
        queue.lanes.call_started();
        self.order_mut(self.kind(organisation)).calls += 1;
        self.rank(organisation);
    }

    pub(super) fn call_ended(&mut self, organisation: OrganisationId) {
        let queue = self.queue(organisation);
        queue.calls = queue.calls.saturating_sub(1);
        let order = self.order_mut(self.kind(organisation));
        order.calls = order.calls.saturating_sub(1);
        self.rank(organisation);
    }

    /// Calls under way for organisations of this kind.
    pub(super) fn calls(&self, kind: OrganisationKind) -> usize {
        self.order(kind).calls
    }

    /// Organisations of production with a message that was due at the last check: those that wait
    /// for the rate.
    pub(super) fn due_organisations(&self) -> usize {
        self.production.ready.values().map(BTreeSet::len).sum()
    }

    /// Time from which the next call for an organisation of this kind may start.
    pub(super) fn next(&mut self, kind: OrganisationKind, now: Instant, max_calls: usize) -> Next {
        self.wake(kind, now);
        let order = self.order(kind);
        let later = order.asleep.first().map(|(due, _)| self.times.instant(*due));
        if order.first_ready(max_calls).is_some() {
            Next::Now
        } else if !order.ready.is_empty() {
            Next::AfterACall(later)
        } else {
            later.map_or(Next::Never, Next::At)
        }
    }

    /// Offers to make each later message due at `now`.
    pub(super) fn bring_forward(
        &mut self,
        now: Instant,
        mut take: impl FnMut(MessageId) -> Forward,
    ) {
        let now = self.times.at(now);
        let organisations: Vec<OrganisationId> = self.queues.keys().copied().collect();
        for organisation in organisations {
            self.queue(organisation).lanes.bring_forward(now, &mut take);
            self.rank(organisation);
        }
    }

    /// Holds back the messages from a domain until a time, from which on one of them may go.
    pub(super) fn pause(
        &mut self,
        organisation: OrganisationId,
        domain: DomainHash,
        until: Instant,
    ) {
        let until = self.times.at(until);
        self.queue(organisation).lanes.pause(domain, until);
        self.rank(organisation);
    }

    /// Lets the messages from a domain go again, behind those that could go all the while.
    pub(super) fn resume(&mut self, organisation: OrganisationId, domain: DomainHash) {
        let newest = self.newest;
        self.queue(organisation).lanes.resume(domain, newest);
        self.rank(organisation);
    }

    /// Takes note that a message that was taken out is no longer: if it was the one that tried a
    /// paused domain and brought no result, the next one tries.
    pub(super) fn returned(
        &mut self,
        organisation: OrganisationId,
        domain: DomainHash,
        id: MessageId,
    ) {
        let lanes = &mut self.queue(organisation).lanes;
        lanes.returned(domain, id);
        self.rank(organisation);
    }

    /// Sets whether an organisation's messages may go.
    pub(super) fn set_gate(&mut self, organisation: OrganisationId, gate: Gate) {
        self.queue(organisation).gate = gate;
        self.rank(organisation);
    }

    /// Sets which organisations an operator has paused. The messages of all others may go as their
    /// gates let them.
    pub(super) fn set_paused(&mut self, paused: HashSet<OrganisationId>) {
        let before = std::mem::replace(&mut self.paused, paused);
        let changed: Vec<_> = before.symmetric_difference(&self.paused).copied().collect();
        for organisation in changed {
            self.rank(organisation);
        }
    }

    /// True if an operator has paused an organisation.
    pub(super) fn is_paused(&self, organisation: OrganisationId) -> bool {
        self.paused.contains(&organisation)
    }

    /// Messages of organisations of one kind that wait because an operator has paused these.
    pub(super) fn paused_messages(&self, kind: OrganisationKind) -> usize {
        let paused = self.paused.iter().filter(|organisation| self.kind(**organisation) == kind);
        paused.map(|organisation| self.backlog(*organisation).waiting).sum()
    }

    /// Messages of an organisation that wait, and its calls under way.
    pub(super) fn backlog(&self, organisation: OrganisationId) -> Backlog {
        let queue = self.queues.get(&organisation);
        queue.map_or_else(Backlog::default, |queue| Backlog {
            waiting: queue.lanes.len(),
            calls_under_way: queue.calls,
        })
    }

    /// Messages of an organisation from a domain that wait.
    pub(super) fn waiting_from(&self, organisation: OrganisationId, domain: DomainHash) -> usize {
        self.queues.get(&organisation).map_or(0, |queue| queue.lanes.len_of(domain))
    }

    /// True if an organisation has messages that wait or are being sent.
    pub(super) fn is_waiting(&self, organisation: OrganisationId) -> bool {
        let queue = self.queues.get(&organisation);
        queue.is_some_and(|queue| !queue.lanes.is_empty() || queue.calls > 0)
    }

    /// True if messages wait because their domain is paused.
    pub(super) fn is_held(&self, organisation: OrganisationId, domain: DomainHash) -> bool {
        self.queues.get(&organisation).is_some_and(|queue| queue.lanes.is_held(domain))
    }

    /// True if messages from a domain have to wait, even if there are none.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn is_closed(&self, organisation: OrganisationId, domain: DomainHash) -> bool {
        self.queues.get(&organisation).is_some_and(|queue| queue.lanes.is_closed(domain))
    }

    /// True if messages wait because a domain is paused.
    pub(super) fn any_held(&self) -> bool {
        self.queues.values().any(|queue| queue.lanes.any_held())
    }

    fn kind(&self, organisation: OrganisationId) -> OrganisationKind {
        if self.tests.contains(&organisation) {
            OrganisationKind::Test
        } else {
            OrganisationKind::Production
        }
    }

    fn order(&self, kind: OrganisationKind) -> &Order {
        match kind {
            OrganisationKind::Production => &self.production,
            OrganisationKind::Test => &self.test,
        }
    }

    fn order_mut(&mut self, kind: OrganisationKind) -> &mut Order {
        match kind {
            OrganisationKind::Production => &mut self.production,
            OrganisationKind::Test => &mut self.test,
        }
    }

    fn queue(&mut self, organisation: OrganisationId) -> &mut OrganisationQueue {
        let kind = self.kind(organisation);
        let share = self.order(kind).served;
        self.queues.entry(organisation).or_insert_with(|| OrganisationQueue {
            lanes: Lanes::default(),
            share,
            calls: 0,
            gate: Gate::Open,
            kind,
            rank: Rank::Empty,
        })
    }

    /// Moves organisations of a kind whose first message has become due.
    fn wake(&mut self, kind: OrganisationKind, now: Instant) {
        let now = self.times.at(now);
        let order = match kind {
            OrganisationKind::Production => &mut self.production,
            OrganisationKind::Test => &mut self.test,
        };
        while let Some(&(due, organisation)) = order.asleep.first()
            && due <= now
        {
            order.asleep.pop_first();
            let queue = self.queues.get_mut(&organisation).expect("who is asleep has a queue");
            queue.share = queue.share.max(order.served);
            queue.rank = Rank::Ready { calls: queue.calls, share: queue.share };
            order.ready.entry(queue.calls).or_default().insert((queue.share, organisation));
        }
    }

    /// Puts an organisation into the position of its first message: among the asleep, until the
    /// next check wakes those that are due.
    fn rank(&mut self, organisation: OrganisationId) {
        let kind = self.kind(organisation);
        let Some(queue) = self.queues.get_mut(&organisation) else { return };
        let order = match queue.kind {
            OrganisationKind::Production => &mut self.production,
            OrganisationKind::Test => &mut self.test,
        };
        match queue.rank {
            Rank::Ready { calls, share } => {
                let equals = order.ready.get_mut(&calls).expect("a ready organisation is listed");
                equals.remove(&(share, organisation));
                if equals.is_empty() {
                    order.ready.remove(&calls);
                }
            }
            Rank::Asleep(due) => {
                order.asleep.remove(&(due, organisation));
            }
            Rank::Empty => {}
        }
        let next = queue.lanes.next().filter(|_| !self.paused.contains(&organisation));
        let due = next.and_then(|due| match queue.gate {
            Gate::Open => Some(due),
            Gate::OpensAt(time) => Some(due.max(self.times.at(time))),
            Gate::Closed => None,
        });
        queue.kind = kind;
        queue.rank = due.map_or(Rank::Empty, Rank::Asleep);
        let order = match kind {
            OrganisationKind::Production => &mut self.production,
            OrganisationKind::Test => &mut self.test,
        };
        order.asleep.extend(due.map(|due| (due, organisation)));
        // An organisation that has been served no more than the last one starts anew anyway.
        let is_idle = queue.lanes.is_empty() && queue.calls == 0 && queue.gate == Gate::Open;
        if is_idle && queue.share <= order.served {
            self.queues.remove(&organisation);
        }
    }
}

impl Order {
    fn first_ready(&self, max_calls: usize) -> Option<(u64, OrganisationId)> {
        let free = max_calls.saturating_sub(self.calls);
        self.ready
            .range(..free)
            .filter_map(|(_, organisations)| organisations.first())
            .min()
            .copied()
    }
}
