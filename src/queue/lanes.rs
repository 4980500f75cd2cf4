//! Waiting messages of one organisation, in a lane for each sender's domain, and by their priority.
//!
//! While messages of both priorities could go, nine of ten calls are for the high one. A place that
//! its priority has no message for goes to the other one, and is not saved up.
//!
//! A domain that the provider does not accept for now holds up its own lane and nothing else: its
//! messages stay in place and cost nothing until one of them may try the domain again.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::due::Due;
use crate::sorted::{Keyed, Sorted};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message_terms::Priority;

/// Calls after which the places of the priorities begin again.
const PLACES: u8 = 10;
/// First of these places that is not the high priority's.
const FIRST_NORMAL_PLACE: u8 = 9;

/// Most messages that become due in one step.
const DUE_STEP: usize = 4_096;

/// A message with the time at which it is due. Every pending message has one, so it is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) due: Due,
    pub(super) id: MessageId,
}

impl Keyed for Position {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }
}

impl Keyed for MessageId {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }
}

/// Decision whether a message is brought forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forward {
    Taken,
    /// The message stays in its position.
    Left,
}

/// Hash of a sender's domain. Two domains with one hash share a lane, which costs their organisation
/// alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DomainHash(u64);

impl DomainHash {
    pub(super) fn of(domain: &DomainName<'_>) -> Self {
        let mut hasher = DefaultHasher::new();
        domain.as_str().hash(&mut hasher);
        Self(hasher.finish())
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_domain: HashMap<DomainHash, Lane>,
    by_priority: ByPriority<Firsts>,
    /// Place of the next call.
    place: u8,
}

/// First messages of the lanes, of one priority.
#[derive(Debug, Default)]
struct Firsts {
    /// Of each lane that lets one go now, by its rank.
    ready: BTreeSet<(MessageId, DomainHash)>,
    /// Time from which the next one of each lane may go.
    later: BTreeSet<(Due, DomainHash)>,
}

#[derive(Debug)]
struct Lane {
    waiting: ByPriority<Waiting>,
    gate: Gate,
}

/// Messages of one lane and priority.
#[derive(Debug, Default)]
struct Waiting {
    /// Those whose time has come, in the order of acceptance.
    ready: Sorted<MessageId>,
    /// Those that are due later, or that became due since the last check.
    later: Sorted<Position>,
}

/// One for each priority, in their order.
type ByPriority<T> = [T; Priority::ALL.len()];

/// Gate of a lane: the messages that may go.
#[derive(Debug, Clone, Copy)]
enum Gate {
    /// All, as they become due.
    Open,
    /// All. Those that were accepted before this id, which is of the time when the gate was opened
    /// again, rank as if they had it: they go behind what could go all the while.
    Reopened(MessageId),
    /// None before this time.
    Closed(Due),
    /// One, which tries the domain. The gate was closed until this time.
    Ajar(Due),
    /// None: one is out to try the domain. The gate was closed until this time.
    Trying(MessageId, Due),
}

impl Waiting {
    fn len(&self) -> usize {
        self.ready.len() + self.later.len()
    }

    fn add(&mut self, position: Position) {
        if position.due == Due::AT_ONCE {
            self.ready.insert(position.id);
        } else {
            self.later.insert(position);
        }
    }

    fn remove(&mut self, position: &Position) {
        if self.later.remove(position).is_none() {
            self.ready.remove(&position.id);
        }
    }

    /// Time from which the first of them may go, if there is one.
    fn next(&self) -> Option<Due> {
        if self.ready.is_empty() {
            self.later.first().map(|position| position.due)
        } else {
            Some(Due::AT_ONCE)
        }
    }

    /// Makes up to `limit` messages ready that are due by `now`; returns their number.
    fn wake(&mut self, now: Due, limit: usize) -> usize {
        let mut woken = 0;
        while woken < limit && self.later.first().is_some_and(|position| position.due <= now) {
            if let Some(position) = self.later.pop_first() {
                self.ready.insert(position.id);
            }
            woken += 1;
        }
        woken
    }
}

impl Lane {
    /// The rank of its first message of a priority that may go now, and when the next one may that
    /// may go later.
    fn firsts(&self, priority: Priority) -> (Option<MessageId>, Option<Due>) {
        let waiting = &self.waiting[priority as usize];
        let (ready, later) = (waiting.ready.first().copied(), waiting.later.first());
        let later = later.map(|position| position.due);
        match self.gate {
            Gate::Open | Gate::Ajar(_) => (ready, later),
            Gate::Reopened(rank) => (ready.map(|first| first.max(rank)), later),
            Gate::Closed(until) => (None, waiting.next().map(|due| due.max(until))),
            Gate::Trying(..) => (None, None),
        }
    }

    /// Moves up to `limit` messages that are due by `now`; returns how many these were, or one if
    /// the gate has opened.
    fn wake(&mut self, now: Due, limit: usize) -> usize {
        let mut woken = 0;
        if let Gate::Closed(until) = self.gate
            && until <= now
        {
            self.gate = Gate::Ajar(until);
            woken = 1;
        }
        for waiting in &mut self.waiting {
            woken += waiting.wake(now, limit.saturating_sub(woken));
        }
        woken
    }

    fn len(&self) -> usize {
        self.waiting.iter().map(Waiting::len).sum()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_held(&self) -> bool {
        match self.gate {
            Gate::Open | Gate::Reopened(_) => false,
            Gate::Closed(_) | Gate::Ajar(_) => !self.is_empty(),
            Gate::Trying(..) => true,
        }
    }
}

impl Lanes {
    pub(super) fn is_empty(&self) -> bool {
        self.by_domain.is_empty()
    }

    /// Number of messages that wait.
    pub(super) fn len(&self) -> usize {
        self.by_domain.values().map(Lane::len).sum()
    }

    /// Time from which the next message may go.
    pub(super) fn next(&self) -> Option<Due> {
        if self.by_priority.iter().any(|firsts| !firsts.ready.is_empty()) {
            return Some(Due::AT_ONCE);
        }
        self.by_priority.iter().filter_map(|firsts| firsts.later.first()).map(|(due, _)| *due).min()
    }

    /// Number of messages that wait and are from a domain.
    pub(super) fn len_of(&self, domain: DomainHash) -> usize {
        self.by_domain.get(&domain).map_or(0, Lane::len)
    }

    pub(super) fn add(&mut self, (domain, priority): (DomainHash, Priority), position: Position) {
        self.change(domain, |lane| lane.waiting[priority as usize].add(position));
    }

    pub(super) fn remove(
        &mut self,
        (domain, priority): (DomainHash, Priority),
        position: &Position,
    ) {
        self.change(domain, |lane| lane.waiting[priority as usize].remove(position));
    }

    /// Takes out the first accepted message that may go at `now`, of the priority that the next call
    /// is for, or of the other one if that has none. If none may go yet, takes the one that may go
    /// first. A closed lane lets no other go until it is known how this one fared.
    pub(super) fn take(&mut self, now: Due) -> Option<MessageId> {
        self.wake(now.max(self.next()?));
        let owners = match self.place {
            ..FIRST_NORMAL_PLACE => [Priority::High, Priority::Normal],
            _ => [Priority::Normal, Priority::High],
        };
        let first = |priority: Priority| {
            let (_, domain) = self.by_priority[priority as usize].ready.first()?;
            Some((priority, *domain))
        };
        let (priority, domain) = owners.into_iter().find_map(first)?;
        let mut taken = None;
        self.change(domain, |lane| {
            taken = lane.waiting[priority as usize].ready.pop_first();
            if let (Gate::Ajar(until), Some(id)) = (lane.gate, taken) {
                lane.gate = Gate::Trying(id, until);
            }
        });
        taken
    }

    /// Moves messages that are due by `now` to the ready ones.
    fn wake(&mut self, now: Due) {
        let mut left = DUE_STEP;
        for priority in Priority::ALL {
            while left > 0
                && let Some(&(due, domain)) = self.by_priority[priority as usize].later.first()
                && due <= now
            {
                self.change(domain, |lane| left = left.saturating_sub(lane.wake(now, left)));
            }
        }
    }

    /// Takes note that a call has begun.
    pub(super) fn call_started(&mut self) {
        self.place = (self.place + 1) % PLACES;
    }

    pub(super) fn pause(&mut self, domain: DomainHash, until: Due) {
        self.change(domain, |lane| lane.gate = Gate::Closed(until));
    }

    /// Lets the messages of a domain go again, behind those up to `newest` that could go all the
    /// while.
    pub(super) fn resume(&mut self, domain: DomainHash, newest: Option<MessageId>) {
        let reopened = |newest: MessageId| Gate::Reopened(newest.successor());
        self.change(domain, |lane| lane.gate = newest.map_or(Gate::Open, reopened));
    }

    /// A message that was taken out came back or has ended, without a result for its domain.
    pub(super) fn returned(&mut self, domain: DomainHash, id: MessageId) {
        let Some(lane) = self.by_domain.get(&domain) else { return };
        if let Gate::Trying(trying, until) = lane.gate
            && trying == id
        {
            self.pause(domain, until);
        }
    }

    pub(super) fn is_held(&self, domain: DomainHash) -> bool {
        self.by_domain.get(&domain).is_some_and(Lane::is_held)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn is_closed(&self, domain: DomainHash) -> bool {
        let lane = self.by_domain.get(&domain);
        lane.is_some_and(|lane| !matches!(lane.gate, Gate::Open | Gate::Reopened(_)))
    }

    pub(super) fn any_held(&self) -> bool {
        self.by_domain.values().any(Lane::is_held)
    }

    /// Offers to make each later message due at `now`.
    pub(super) fn bring_forward(&mut self, now: Due, mut take: impl FnMut(MessageId) -> Forward) {
        let domains: Vec<DomainHash> = self.by_domain.keys().copied().collect();
        for domain in domains {
            self.change(domain, |lane| {
                for waiting in &mut lane.waiting {
                    for position in std::mem::take(&mut waiting.later) {
                        if position.due <= now || take(position.id) == Forward::Taken {
                            waiting.ready.insert(position.id);
                        } else {
                            waiting.later.insert(position);
                        }
                    }
                }
            });
        }
    }

    /// Changes a lane, and puts its first messages among the others' anew.
    fn change(&mut self, domain: DomainHash, change: impl FnOnce(&mut Lane)) {
        let lane = self
            .by_domain
            .entry(domain)
            .or_insert_with(|| Lane { waiting: ByPriority::default(), gate: Gate::Open });
        let before = Priority::ALL.map(|priority| lane.firsts(priority));
        change(lane);
        let after = Priority::ALL.map(|priority| lane.firsts(priority));
        if lane.is_empty() && matches!(lane.gate, Gate::Open | Gate::Reopened(_)) {
            self.by_domain.remove(&domain);
        }
        for ((firsts, before), after) in self.by_priority.iter_mut().zip(before).zip(after) {
            let ((ready_before, later_before), (ready, later)) = (before, after);
            if ready_before != ready {
                if let Some(id) = ready_before {
                    firsts.ready.remove(&(id, domain));
                }
                firsts.ready.extend(ready.map(|id| (id, domain)));
            }
            if later_before != later {
                if let Some(due) = later_before {
                    firsts.later.remove(&(due, domain));
                }
                firsts.later.extend(later.map(|due| (due, domain)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::due::DueTimes;

    #[test]
    fn messages_wake_when_they_are_due_and_at_most_so_many_at_one_time() {
        let (times, start) = (DueTimes::default(), Instant::now());
        let due = |second: u8| times.at(start + Duration::from_secs(second.into()));
        let mut waiting = Waiting::default();
        for second in 1..=4 {
            waiting.add(Position { due: due(second), id: MessageId::from_bytes([second; 16]) });
        }
        let mut left = |now, limit| {
            let woken = waiting.wake(due(now), limit);
            (woken, waiting.ready.len(), waiting.later.len())
        };
        assert_eq!(left(3, 0), (0, 0, 4));
        assert_eq!(left(3, 1), (1, 1, 3));
        assert_eq!(left(3, 9), (2, 3, 1));
        assert_eq!(left(3, 9), (0, 3, 1));
        // Both priorities of a lane share the limit.
        let mut lane = Lane { waiting: ByPriority::default(), gate: Gate::Open };
        for (id, waiting) in (0..4).zip([0, 0, 1, 1]) {
            let position = Position { due: due(1), id: MessageId::from_bytes([id; 16]) };
            lane.waiting[waiting].add(position);
        }
        assert_eq!((lane.wake(due(2), 3), lane.wake(due(2), 3)), (3, 1));
    }
}
