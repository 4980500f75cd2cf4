//! Whose turn it is: fair between organisations by recipients, and within one the first due
//! first, a new message before a retry of the same age.
//!
//! Knows neither bodies nor what becomes of a message whose turn came.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use crate::domain::id::{MessageId, OrganisationId};
use crate::outbox::Next;

/// A message's turn within its organisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) due: Instant,
    pub(super) kind: TurnKind,
    pub(super) id: MessageId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TurnKind {
    New,
    Retry,
}

/// Whether a turn is brought forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forward {
    /// It is.
    Taken,
    /// It stays where it was.
    Left,
}

/// The waiting messages of all organisations.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queues: HashMap<OrganisationId, Queue>,
    /// Organisations with a due message, the one that was served least first.
    ready: BTreeSet<(u64, OrganisationId)>,
    /// Organisations whose first message was not due at the last look, the earliest first.
    asleep: BTreeSet<(Instant, OrganisationId)>,
    /// The share of the organisation served last: the least of all that are ready. Where one
    /// that was absent starts, so that it neither waits for others' backlog nor makes up for its
    /// own absence.
    share: u64,
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

impl Turns {
    pub(super) fn add(&mut self, organisation: OrganisationId, turn: Turn) {
        let queue = self.queue(organisation);
        let is_first = queue.turns.first().is_none_or(|first| turn < *first);
        queue.turns.insert(turn);
        if is_first {
            self.rank(organisation);
        }
    }

    pub(super) fn remove(&mut self, organisation: OrganisationId, turn: &Turn) {
        if let Some(queue) = self.queues.get_mut(&organisation) {
            queue.turns.remove(turn);
            self.rank(organisation);
        }
    }

    /// Takes out the turn that is next at `now`, where one is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<Turn> {
        self.wake(now);
        let &(share, organisation) = self.ready.first()?;
        let queue = self.queues.get_mut(&organisation).expect("a ready organisation has a queue");
        let turn = queue.turns.pop_first().expect("a ready organisation has a turn");
        self.share = share;
        self.rank(organisation);
        Some(turn)
    }

    /// Counts what was sent for an organisation.
    pub(super) fn charge(&mut self, organisation: OrganisationId, recipients: u32) {
        self.queue(organisation).share += u64::from(recipients);
        self.rank(organisation);
    }

    /// When a message is next.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        self.wake(now);
        match (self.ready.first(), self.asleep.first()) {
            (Some(_), _) => Next::Now,
            (None, Some((due, _))) => Next::At(*due),
            (None, None) => Next::Never,
        }
    }

    /// Offers every later turn to be taken at `now`.
    pub(super) fn bring_forward(&mut self, now: Instant, mut take: impl FnMut(Turn) -> Forward) {
        let organisations: Vec<OrganisationId> = self.queues.keys().copied().collect();
        for organisation in organisations {
            let turns = &mut self.queue(organisation).turns;
            for turn in turns.split_off(&Turn::first_after(now)) {
                let earlier = Turn { due: now, ..turn };
                turns.insert(match take(earlier) {
                    Forward::Taken => earlier,
                    Forward::Left => turn,
                });
            }
            self.rank(organisation);
        }
    }

    fn queue(&mut self, organisation: OrganisationId) -> &mut Queue {
        self.queues.entry(organisation).or_insert(Queue {
            turns: BTreeSet::new(),
            share: self.share,
            rank: Rank::Empty,
        })
    }

    /// Moves organisations whose first message has become due.
    fn wake(&mut self, now: Instant) {
        while let Some(&(due, organisation)) = self.asleep.first()
            && due <= now
        {
            self.asleep.pop_first();
            let queue = self.queues.get_mut(&organisation).expect("who is asleep has a queue");
            queue.share = queue.share.max(self.share);
            queue.rank = Rank::Ready(queue.share);
            self.ready.insert((queue.share, organisation));
        }
    }

    /// Puts an organisation where its first message belongs: among the asleep, until the next
    /// look wakes those that are due.
    fn rank(&mut self, organisation: OrganisationId) {
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
}

impl Turn {
    /// No turn due at `now` or earlier is over this one.
    fn first_after(now: Instant) -> Self {
        let due = now + std::time::Duration::from_nanos(1);
        Self { due, kind: TurnKind::New, id: MessageId::from_bytes([0; 16]) }
    }
}
