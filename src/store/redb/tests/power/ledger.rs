//! Promises of a store, and the check that it keeps them.

use std::collections::{BTreeMap, BTreeSet};

use crate::conformance::START;
use crate::redb::tests::power::Drive;
use crate::{MessageFilter, Store};
use pillarbox_domain::event::Event;
use pillarbox_domain::feed::{FeedChange, FeedEntry, FeedPosition, FeedTypes};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::{FailureCode, State};
use pillarbox_domain::organisation::SenderStatus;
use pillarbox_domain::request::IdempotencyKey;
use pillarbox_domain::suppression::SuppressedAddress;
use pillarbox_domain::time::Timestamp;

/// Acceptance time of messages whose retention is over. By this time's windows, all can be read.
pub(super) const LONG_AGO: Timestamp =
    Timestamp::from_unix_millis(START.unix_millis() - 91 * 24 * 3_600_000);

/// Certainty of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Certainty {
    /// Refused, not requested, or seen to be missing.
    #[default]
    Absent,
    /// Requested, and the power was lost before the answer.
    InDoubt,
    /// Acknowledged, or seen.
    Certain,
}

impl Certainty {
    /// Resolves a doubt by what is seen, and returns an error if a certainty is broken.
    fn resolve(&mut self, seen: bool, what: impl std::fmt::Display) -> Result<(), String> {
        match (*self, seen) {
            (Self::Certain, false) => Err(format!("{what} was acknowledged and is lost")),
            (Self::Absent, true) => Err(format!("{what} is there and must not be")),
            (_, true) => {
                *self = Self::Certain;
                Ok(())
            }
            (_, false) => {
                *self = Self::Absent;
                Ok(())
            }
        }
    }
}

/// Knowledge about a message that was handed to the store.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) key: Option<String>,
    pub(super) accepted: Certainty,
    /// It is past its retention: a purge may take it at any time, and it must not come back.
    pub(super) is_old: bool,
    pub(super) sent: Certainty,
    pub(super) bounce: Certainty,
    /// A stop gave it up, so no event of the story proves that it was sent.
    pub(super) is_abandoned: bool,
    pub(super) event: Option<Event>,
    /// The batch that accepts it: all of a batch is there, or nothing.
    pub(super) batch: u64,
}

/// Bodies that a start found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bodies<'a> {
    /// Messages whose body was in the arena.
    pub(super) survived: &'a BTreeSet<MessageId>,
    /// Those of them that the store kept pending.
    pub(super) kept: &'a BTreeSet<MessageId>,
}

/// All that a store has promised.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) messages: BTreeMap<MessageId, Known>,
    pub(super) suppressed: BTreeMap<SuppressedAddress, Certainty>,
    pub(super) organisations: BTreeMap<String, Certainty>,
    /// Messages that lost their body in one of the lives so far.
    lost: BTreeSet<MessageId>,
    /// Entries that the feed has shown so far.
    told: Vec<FeedEntry>,
}

impl Ledger {
    /// Opens a store that holds nothing.
    pub(super) fn open_empty(&self, drive: &Drive) -> Result<(), String> {
        let opened = Store::on_redb(drive.opener(), START);
        let (store, recovery) = opened.map_err(|error| format!("does not open: {error}"))?;
        assert!(self.messages.is_empty() && store.organisations().is_empty());
        assert_eq!((recovery.bodies_lost, recovery.live_keys), (0, 0));
        Ok(())
    }

    /// Messages that are there and stay there.
    pub(super) fn certain(&self) -> impl Iterator<Item = (&MessageId, &Known)> {
        self.messages.iter().filter(|(_, known)| known.accepted == Certainty::Certain)
    }

    /// Compares the promises with a store that was just opened, and resolves the doubts.
    pub(super) async fn check(
        &mut self,
        store: &Store,
        organisation: OrganisationId,
        bodies: Bodies<'_>,
        now: Timestamp,
    ) -> Result<(), String> {
        let status =
            store.redb().shared.memory.directory.load().sender_status(organisation, "example.com");
        if status != SenderStatus::Verified {
            return Err("the organisation or its domain is lost".to_owned());
        }
        let mut batches: BTreeMap<u64, bool> = BTreeMap::new();
        let mut by_key: BTreeMap<String, MessageId> = BTreeMap::new();
        let mut there = 0;
        for (id, known) in &mut self.messages {
            let was = known.accepted;
            let seen = known.check(*id, store, bodies.kept.contains(id)).await?;
            there += usize::from(seen);
            if bodies.kept.contains(id) && (!seen || self.lost.contains(id)) {
                return Err(format!("{id} stays pending and must not"));
            }
            if seen && known.sent == Certainty::Absent && !bodies.kept.contains(id) {
                let is_new = self.lost.insert(*id);
                if is_new && bodies.survived.contains(id) && !known.is_abandoned {
                    return Err(format!("{id} failed though its body is there"));
                }
            }
            let is_new_for_sure = known.key.is_none() && !known.is_old;
            if was == Certainty::InDoubt
                && is_new_for_sure
                && *batches.entry(known.batch).or_insert(seen) != seen
            {
                return Err(format!("batch {} is there in part", known.batch));
            }
            if let (Some(key), true) = (&known.key, seen)
                && let Some(other) = by_key.insert(key.clone(), *id)
            {
                return Err(format!("the key {key} made {other} and {id}"));
            }
        }
        let keys: BTreeSet<&String> =
            self.messages.values().filter_map(|k| k.key.as_ref()).collect();
        for text in keys {
            let key = IdempotencyKey::parse(text).unwrap();
            let replay = store.replay(organisation, key, now).await.map_err(|e| e.to_string())?;
            let made = by_key.get(text.as_str()).copied();
            if replay != made {
                return Err(format!("the key {text} replays to {replay:?} and made {made:?}"));
            }
        }
        let listed =
            store.suppressions(None, 100_000).await.map_err(|e| e.to_string())?.suppressions;
        for (address, certainty) in &mut self.suppressed {
            let seen = listed.iter().any(|(_, suppression)| suppression.address == *address);
            certainty.resolve(seen, address.as_str())?;
        }
        for (name, certainty) in &mut self.organisations {
            let seen = store.organisation(&name.parse().unwrap()).is_some();
            certainty.resolve(seen, name)?;
        }
        let counted = store.lost_messages(now).await.map_err(|e| e.to_string())?;
        let (counted, lost) = (counted.map_or(0, |lost| lost.messages), self.lost.len() as u64);
        if counted != lost {
            return Err(format!("{lost} messages lost their body and {counted} are counted"));
        }
        self.check_feed(store, organisation).await?;
        let listed = store.list(MessageFilter::default(), usize::MAX, LONG_AGO).await;
        let listed = listed.map_err(|e| e.to_string())?.messages.len();
        if listed != there {
            return Err(format!("{listed} messages are listed and {there} are known"));
        }
        Ok(())
    }

    /// Compares the feed with its earlier entries, and with the outcome of each message: it has
    /// every change once, in the order of the changes.
    async fn check_feed(
        &mut self,
        store: &Store,
        organisation: OrganisationId,
    ) -> Result<(), String> {
        let (mut told, mut next) = (Vec::new(), FeedPosition::START);
        loop {
            let page = store.feed(organisation, next, FeedTypes::ALL, 7, LONG_AGO).await;
            let page = page.map_err(|error| format!("the feed: {error}"))?;
            if page.entries.is_empty() {
                break;
            }
            told.extend(page.entries);
            next = page.next;
        }
        let is_there = |id| self.messages[id].accepted != Certainty::Absent;
        let mut before = self.told.iter().filter(|entry| is_there(&entry.message.id));
        let mut now = told.iter();
        let is_as_before = before.all(|old| {
            now.next().is_some_and(|entry| {
                let same = |entry: &FeedEntry| (entry.id(), entry.change.clone());
                same(entry) == same(old) && entry.message.state == old.message.state
            })
        });
        if !is_as_before {
            return Err("the feed has changed what it told before".to_owned());
        }
        let mut of_message: BTreeMap<MessageId, Vec<FeedChange>> = BTreeMap::new();
        for entry in &told {
            of_message.entry(entry.message.id).or_default().push(entry.change.clone());
        }
        for (id, known) in &self.messages {
            let mut expected = Vec::new();
            if is_there(id) {
                expected.extend(self.lost.contains(id).then_some(FeedChange::Failed));
                let is_sent = known.sent == Certainty::Certain;
                expected.extend(is_sent.then_some(FeedChange::Sent));
                let bounce = known.event.clone().filter(|_| known.bounce == Certainty::Certain);
                expected.extend(bounce.map(FeedChange::Observed));
            }
            let changes = of_message.remove(id).unwrap_or_default();
            if changes != expected {
                return Err(format!("the feed has {changes:?} of {id}, and not {expected:?}"));
            }
        }
        self.told = told;
        if of_message.is_empty() { Ok(()) } else { Err("the feed has others' messages".to_owned()) }
    }
}

impl Known {
    /// Returns true if the message is there, after its doubts are resolved.
    async fn check(&mut self, id: MessageId, store: &Store, is_kept: bool) -> Result<bool, String> {
        let message =
            store.message(id, LONG_AGO).await.map_err(|error| format!("{id}: {error}"))?;
        self.accepted.resolve(message.is_some(), format_args!("the message {id}"))?;
        if self.is_old && self.accepted == Certainty::Certain {
            self.accepted = Certainty::InDoubt;
        }
        let Some(message) = message else { return Ok(false) };
        let is_sent = match &message.state {
            State::Sent { .. } if !is_kept => true,
            State::Queued { .. } if is_kept => false,
            State::Failed { failure, .. }
                if !is_kept && failure.code == FailureCode::BodyLostOnRestart =>
            {
                false
            }
            other => return Err(format!("{id} is {other:?} after a restart")),
        };
        // The report of a bounce proves that the message was sent.
        let reported = self.bounce;
        let events = store.events(id).await.map_err(|error| format!("{id}: {error}"))?;
        self.bounce.resolve(!events.is_empty(), format_args!("the event of {id}"))?;
        if self.bounce == Certainty::Certain && events.first() != self.event.as_ref() {
            return Err(format!("the event of {id} reads {events:?}"));
        }
        match (self.sent, is_sent) {
            (Certainty::Certain, false) => return Err(format!("that {id} was sent is lost")),
            (Certainty::Absent, true) if reported == Certainty::Absent => {
                return Err(format!("{id} was never sent and reads so"));
            }
            (_, false) if self.bounce == Certainty::Certain => {
                return Err(format!("{id} bounced and does not read as sent"));
            }
            (_, true) => self.sent = Certainty::Certain,
            (_, false) => self.sent = Certainty::Absent,
        }
        Ok(true)
    }
}
