//! Waiting messages of one organisation, in a lane for each sender's domain, and by their priority.
//!
//! While messages of both priorities could go, nine of ten calls are for the high one. A place that
//! its priority has no message for goes to the other one, and is not saved up.
//!
//! A domain that the provider does not take for now holds up its own lane and nothing else: its
//! messages stay where they are and cost nothing until one of them may try the domain again.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::domain::id::MessageId;
use crate::domain::mailbox::DomainName;
use crate::domain::terms::Priority;
use crate::queue::due::Due;
use crate::queue::sorted::{Keyed, Sorted};

/// Calls after which the places of the priorities begin again.
const PLACES: u8 = 10;
/// First of these places that is not the high priority's.
const FIRST_NORMAL_PLACE: u8 = 9;

/// Place of a message in its organisation's queue. Every pending message has one, so it is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) due: Due,
    pub(super) id: MessageId,
}

impl Keyed for Turn {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }
}

/// Decision whether a turn is brought forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forward {
    Taken,
    /// The turn stays where it was.
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
    /// By priority, first turn of every lane that lets a message go, at its time or later.
    firsts: ByPriority<BTreeSet<(Turn, DomainHash)>>,
    /// Place of the next call.
    place: u8,
}

#[derive(Debug)]
struct Lane {
    turns: ByPriority<Sorted<Turn>>,
    gate: Gate,
}

/// One for each priority, in their order.
type ByPriority<T> = [T; Priority::ALL.len()];

/// Which messages of a lane may go.
#[derive(Debug, Clone, Copy)]
enum Gate {
    /// All, as they become due.
    Open,
    /// All. Those that were due before the lane was opened again count as due since then.
    Reopened(Due),
    /// None before this time, and then one.
    Closed(Due),
    /// None: one is out to try the domain. The gate was closed until this time.
    Trying(MessageId, Due),
}

impl Lane {
    fn first(&self, priority: Priority) -> Option<Turn> {
        let first = *self.turns[priority as usize].first()?;
        match self.gate {
            Gate::Open => Some(first),
            Gate::Reopened(time) | Gate::Closed(time) => {
                Some(Turn { due: first.due.max(time), ..first })
            }
            Gate::Trying(..) => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.turns.iter().all(Sorted::is_empty)
    }

    fn is_held(&self) -> bool {
        match self.gate {
            Gate::Open | Gate::Reopened(_) => false,
            Gate::Closed(_) => !self.is_empty(),
            Gate::Trying(..) => true,
        }
    }
}

impl Lanes {
    pub(super) fn is_empty(&self) -> bool {
        self.by_domain.is_empty()
    }

    /// How many messages wait.
    pub(super) fn len(&self) -> usize {
        self.by_domain.values().flat_map(|lane| &lane.turns).map(Sorted::len).sum()
    }

    /// The turn that is next, whenever that is.
    pub(super) fn first(&self) -> Option<Turn> {
        self.firsts.iter().filter_map(BTreeSet::first).map(|(turn, _)| *turn).min()
    }

    pub(super) fn add(&mut self, (domain, priority): (DomainHash, Priority), turn: Turn) {
        self.change(domain, |lane| {
            lane.turns[priority as usize].insert(turn);
        });
    }

    pub(super) fn remove(&mut self, (domain, priority): (DomainHash, Priority), turn: &Turn) {
        self.change(domain, |lane| {
            lane.turns[priority as usize].remove(turn);
        });
    }

    /// Takes out the first turn of the priority that the next call is for, or of the other one if
    /// that has none by `now`. A closed lane lets no other go until it is known how this one fared.
    pub(super) fn take(&mut self, now: Due) -> Option<Turn> {
        let owners = match self.place {
            ..FIRST_NORMAL_PLACE => [Priority::High, Priority::Normal],
            _ => [Priority::Normal, Priority::High],
        };
        let first = |priority: &Priority| self.firsts[*priority as usize].first().copied();
        let is_due = |priority: &Priority| first(priority).is_some_and(|(turn, _)| turn.due <= now);
        let earliest =
            || Priority::ALL.into_iter().min_by_key(|one| (first(one).is_none(), first(one)));
        let priority = owners.into_iter().find(is_due).or_else(earliest)?;
        let (_, domain) = first(&priority)?;
        let mut taken = None;
        self.change(domain, |lane| {
            taken = lane.turns[priority as usize].pop_first();
            if let (Gate::Closed(until), Some(turn)) = (lane.gate, taken) {
                lane.gate = Gate::Trying(turn.id, until);
            }
        });
        taken
    }

    /// Takes note that a call has begun.
    pub(super) fn call_started(&mut self) {
        self.place = (self.place + 1) % PLACES;
    }

    pub(super) fn pause(&mut self, domain: DomainHash, until: Due) {
        self.change(domain, |lane| lane.gate = Gate::Closed(until));
    }

    pub(super) fn resume(&mut self, domain: DomainHash, now: Due) {
        self.change(domain, |lane| lane.gate = Gate::Reopened(now));
    }

    /// A message that was taken out came back or is gone, and told nothing of its domain.
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

    #[cfg(test)]
    pub(super) fn is_closed(&self, domain: DomainHash) -> bool {
        let lane = self.by_domain.get(&domain);
        lane.is_some_and(|lane| !matches!(lane.gate, Gate::Open | Gate::Reopened(_)))
    }

    pub(super) fn any_held(&self) -> bool {
        self.by_domain.values().any(Lane::is_held)
    }

    /// Offers every later turn to be taken at `now`.
    pub(super) fn bring_forward(&mut self, now: Due, mut take: impl FnMut(Turn) -> Forward) {
        let domains: Vec<DomainHash> = self.by_domain.keys().copied().collect();
        for domain in domains {
            self.change(domain, |lane| {
                let first_later = Turn { due: now.next(), id: MessageId::from_bytes([0; 16]) };
                for turns in &mut lane.turns {
                    for turn in turns.split_off(&first_later) {
                        let earlier = Turn { due: now, ..turn };
                        turns.insert(match take(earlier) {
                            Forward::Taken => earlier,
                            Forward::Left => turn,
                        });
                    }
                }
            });
        }
    }

    /// Changes a lane, and puts its first turns among the others' anew.
    fn change(&mut self, domain: DomainHash, change: impl FnOnce(&mut Lane)) {
        let lane = self
            .by_domain
            .entry(domain)
            .or_insert_with(|| Lane { turns: ByPriority::default(), gate: Gate::Open });
        let before = Priority::ALL.map(|priority| lane.first(priority));
        change(lane);
        let after = Priority::ALL.map(|priority| lane.first(priority));
        let is_idle = lane.is_empty() && matches!(lane.gate, Gate::Open | Gate::Reopened(_));
        if is_idle {
            self.by_domain.remove(&domain);
        }
        for ((firsts, before), after) in self.firsts.iter_mut().zip(before).zip(after) {
            if before == after {
                continue;
            }
            if let Some(turn) = before {
                firsts.remove(&(turn, domain));
            }
            firsts.extend(after.map(|turn| (turn, domain)));
        }
    }
}
