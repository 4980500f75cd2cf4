//! Waiting messages of one organisation, in a lane for each sender's domain.
//!
//! A domain that the provider does not take for now holds up its own lane and nothing else: its
//! messages stay where they are and cost nothing until one of them may try the domain again.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::domain::id::MessageId;
use crate::domain::mailbox::DomainName;
use crate::queue::due::Due;
use crate::queue::sorted::{Keyed, Sorted};

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
    /// First turn of every lane that lets a message go, at its time or later.
    firsts: BTreeSet<(Turn, DomainHash)>,
}

#[derive(Debug)]
struct Lane {
    turns: Sorted<Turn>,
    gate: Gate,
}

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
    fn first(&self) -> Option<Turn> {
        let first = *self.turns.first()?;
        match self.gate {
            Gate::Open => Some(first),
            Gate::Reopened(time) | Gate::Closed(time) => {
                Some(Turn { due: first.due.max(time), ..first })
            }
            Gate::Trying(..) => None,
        }
    }

    fn is_held(&self) -> bool {
        match self.gate {
            Gate::Open | Gate::Reopened(_) => false,
            Gate::Closed(_) => !self.turns.is_empty(),
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
        self.by_domain.values().map(|lane| lane.turns.len()).sum()
    }

    /// The turn that is next, whenever that is.
    pub(super) fn first(&self) -> Option<Turn> {
        self.firsts.first().map(|(turn, _)| *turn)
    }

    pub(super) fn add(&mut self, domain: DomainHash, turn: Turn) {
        self.change(domain, |lane| {
            lane.turns.insert(turn);
        });
    }

    pub(super) fn remove(&mut self, domain: DomainHash, turn: &Turn) {
        self.change(domain, |lane| {
            lane.turns.remove(turn);
        });
    }

    /// Takes out the first turn. A closed lane lets no other go until it is known how this one
    /// fared.
    pub(super) fn take(&mut self) -> Option<Turn> {
        let (_, domain) = *self.firsts.first()?;
        let mut taken = None;
        self.change(domain, |lane| {
            taken = lane.turns.pop_first();
            if let (Gate::Closed(until), Some(turn)) = (lane.gate, taken) {
                lane.gate = Gate::Trying(turn.id, until);
            }
        });
        taken
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
                for turn in lane.turns.split_off(&first_later) {
                    let earlier = Turn { due: now, ..turn };
                    lane.turns.insert(match take(earlier) {
                        Forward::Taken => earlier,
                        Forward::Left => turn,
                    });
                }
            });
        }
    }

    /// Changes a lane, and puts its first turn among the others' anew.
    fn change(&mut self, domain: DomainHash, change: impl FnOnce(&mut Lane)) {
        let lane = self
            .by_domain
            .entry(domain)
            .or_insert_with(|| Lane { turns: Sorted::default(), gate: Gate::Open });
        let before = lane.first();
        change(lane);
        let after = lane.first();
        let is_idle = lane.turns.is_empty() && matches!(lane.gate, Gate::Open | Gate::Reopened(_));
        if is_idle {
            self.by_domain.remove(&domain);
        }
        if before == after {
            return;
        }
        if let Some(turn) = before {
            self.firsts.remove(&(turn, domain));
        }
        if let Some(turn) = after {
            self.firsts.insert((turn, domain));
        }
    }
}
