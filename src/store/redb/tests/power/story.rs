//! One seed's story: batches of operations until the power is lost, and a start after each loss.
//!
//! The seed alone decides the events. The writer is held while a batch is handed over, so that the
//! content of a commit does not depend on the machine's speed.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::conformance::{START, hard_bounce, of_store};
use crate::redb::OpenError;
use crate::redb::tests::power::ledger::{Bodies, Certainty, Known, LONG_AGO, Ledger};
use crate::redb::tests::power::{Drive, Survived, Syncs};
use crate::{Accepted, NewMessage, Reference, Report, Store, StoreError};
use pillarbox_domain::admission::admit;
use pillarbox_domain::event::Event;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{Acceptance, Transition};
use pillarbox_domain::organisation::DomainState;
use pillarbox_domain::request::{Draft, SendRequest};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_domain::time::Timestamp;

/// Number of losses of power in one story.
const LIVES: u32 = 4;
/// The most batches of one life.
const BATCHES: u32 = 8;
/// The most operations of one batch.
const OPERATIONS: u32 = 24;
/// Largest number of writes and syncs before the power is lost: those of about as many batches.
const STEPS: u64 = 160;
/// Largest number of starts that are cut short before one may finish.
const CUT_STARTS: u32 = 3;

pub(super) struct Story {
    random: fastrand::Rng,
    drive: Drive,
    ledger: Ledger,
    organisation: OrganisationId,
    survived: Survived,
    batch: u64,
    last_id: u64,
    /// Messages that this life has accepted or kept: only those can still be sent.
    pending: Vec<MessageId>,
    /// Messages whose body is in the arena, also of some that are final.
    arena: BTreeSet<MessageId>,
}

/// Answer of the store, for the ledger.
enum Answer {
    Accepted(MessageId, Result<Accepted, StoreError>),
    Recorded(MessageId, Certainty),
    Reported(MessageId, SuppressedAddress, Certainty),
    Suppressed(SuppressedAddress, Certainty),
    Organisation(String, Certainty),
    Nothing,
}

type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

fn certainty<T>(answer: &Result<T, StoreError>) -> Certainty {
    if answer.is_ok() { Certainty::Certain } else { Certainty::Absent }
}

impl Story {
    pub(super) fn new(seed: u64, syncs: Syncs) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            drive: Drive::formatted(syncs),
            ledger: Ledger::default(),
            organisation: OrganisationId(0),
            survived: Survived::default(),
            batch: 0,
            last_id: 0,
            pending: Vec::new(),
            arena: BTreeSet::new(),
        }
    }

    /// Runs the story; returns the broken promise, if there is one.
    pub(super) async fn run(mut self) -> Result<Survived, String> {
        for life in 0..=LIVES {
            let store = self.start(life).await?;
            if life == LIVES {
                break;
            }
            self.drive.lose_power_after(self.random.u64(0..STEPS));
            for _ in 0..self.random.u32(1..=BATCHES) {
                if self.drive.is_off() {
                    break;
                }
                self.live_batch(&store).await?;
            }
            self.lose_power(store);
        }
        Ok(self.survived)
    }

    /// Starts the store and compares it with the ledger; some starts are cut short.
    async fn start(&mut self, life: u32) -> Result<Store, String> {
        for attempt in 0..=CUT_STARTS {
            if attempt < CUT_STARTS && self.random.bool() {
                self.drive.lose_power_after(self.random.u64(0..20));
            }
            match Store::on_redb_with(self.drive.opener(), self.arena.clone(), START) {
                Ok((store, recovery)) if !self.drive.is_off() => {
                    self.drive.stay_on();
                    if life == 0 {
                        self.found(&store).await;
                    }
                    let now = self.now();
                    let kept = recovery.kept;
                    let bodies = Bodies { survived: &self.arena, kept: &kept };
                    self.ledger.check(&store, self.organisation, bodies, now).await?;
                    self.take_up(kept);
                    return Ok(store);
                }
                Ok((store, _)) => self.lose_power(store),
                Err(OpenError::Io(_)) if self.drive.is_off() => {
                    self.survived.losses_while_opening += 1;
                    self.survived.losses += 1;
                    self.lose_arena();
                    self.drive = self.drive.after_loss(&mut self.random);
                }
                Err(error) => return Err(format!("does not open: {error}")),
            }
        }
        Err("does not open though the power stays".to_owned())
    }

    /// Adds the organisation and the domain that every message needs.
    async fn found(&mut self, store: &Store) {
        let organisation = store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
        let domain = DomainName::parse("example.com").unwrap();
        store.put_domain(organisation.id, domain, DomainState::Assumed, START).await.unwrap();
        self.organisation = organisation.id;
        self.ledger.organisations.insert("acme".to_owned(), Certainty::Certain);
    }

    /// Continues with the messages that stayed pending.
    fn take_up(&mut self, kept: BTreeSet<MessageId>) {
        for id in &kept {
            let known = self.known(*id);
            // The giving up was not durable.
            known.is_abandoned = false;
            if !known.is_old {
                self.pending.push(*id);
            }
        }
        self.survived.kept += kept.len() as u64;
        self.arena = kept;
    }

    /// Loses the bodies, sometimes.
    fn lose_arena(&mut self) {
        if self.random.u8(0..3) == 0 {
            self.arena.clear();
        }
    }

    fn lose_power(&mut self, store: Store) {
        self.survived.losses += 1;
        self.pending.clear();
        self.lose_arena();
        let after = self.drive.after_loss(&mut self.random);
        drop(store);
        self.drive = after;
    }

    fn now(&self) -> Timestamp {
        START.plus(Duration::from_millis(self.last_id))
    }

    /// Hands over a batch, lets it be committed, and notes the answers.
    async fn live_batch(&mut self, store: &Store) -> Result<(), String> {
        self.batch += 1;
        let (begun, has_begun) = mpsc::channel::<()>();
        let (hold, held) = mpsc::channel::<()>();
        let holder = store.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Held until the other end of the channel is gone.
            let holding = holder.redb().writer.run(0, move |_| {
                let _ = begun.send(());
                let _ = held.recv();
                Ok(())
            });
            let _ = holding.await;
            Answer::Nothing
        });
        tokio::task::yield_now().await;
        // Its batch is closed by now: all later operations share the next one.
        let _ = has_begun.recv();
        for _ in 0..self.random.u32(1..=OPERATIONS) {
            tasks.spawn(self.operation(store));
        }
        // Each task hands its operation over when it first runs.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        drop(hold);
        while !tasks.is_empty() {
            tokio::select! {
                answered = tasks.join_next() => {
                    self.note(answered.expect("there is a task").unwrap())?;
                }
                () = sleep(Duration::from_millis(1)) => if self.drive.is_off() { break },
            }
        }
        // Answers before the loss of power count; the rest stays in doubt.
        while let Some(answered) = tasks.try_join_next() {
            self.note(answered.unwrap())?;
        }
        // The store closes with its last clone, and each task has one.
        tasks.shutdown().await;
        Ok(())
    }

    /// An operation that the seed picks, in doubt until it is answered.
    fn operation(&mut self, store: &Store) -> Work {
        match self.random.u8(0..20) {
            0..=9 => self.accept(store),
            10..=12 => self.record(store),
            13 => self.abandon(store),
            14..=16 => self.report(store),
            17 => self.suppress(store),
            18 => self.add_organisation(store),
            _ => {
                let (store, now) = (store.clone(), self.now());
                Box::pin(async move {
                    let _ = store.purge(now, 3).await;
                    Answer::Nothing
                })
            }
        }
    }

    fn accept(&mut self, store: &Store) -> Work {
        let is_old = self.random.u8(0..8) == 0;
        let key = match self.random.u8(0..4) {
            _ if is_old => None,
            0 => None,
            // Another message of this batch, or an earlier one, is likely to have it too.
            1 => Some(format!("shared-{}-{}", self.batch, self.random.u8(0..3))),
            2 => {
                Some(format!("shared-{}-{}", self.random.u64(1..=self.batch), self.random.u8(0..3)))
            }
            _ => Some(format!("own-{}", self.last_id)),
        };
        let now = if is_old { LONG_AGO } else { self.now() };
        let id = self.next_id(now);
        let known = Known {
            key: key.clone(),
            accepted: Certainty::InDoubt,
            is_old,
            batch: self.batch,
            ..Known::default()
        };
        self.ledger.messages.insert(id, known);
        // Before the commit.
        self.arena.insert(id);
        let (store, organisation) = (store.clone(), self.organisation);
        Box::pin(async move {
            let draft = Draft {
                from: Some("ann@example.com"),
                to: Some(vec!["bob@example.org"]),
                subject: Some("Hello"),
                text: Some("Body".into()),
                idempotency_key: key.as_deref(),
                ..Draft::default()
            };
            let request = SendRequest::parse(draft).unwrap();
            let Ok(admitted) = admit(request, &store.facts(organisation)).await else {
                return Answer::Accepted(id, Err(StoreError::Unavailable));
            };
            let answer =
                store.accept(NewMessage::new(id, organisation, &admitted, now, now, || {})).await;
            Answer::Accepted(id, answer.map_err(of_store))
        })
    }

    fn record(&mut self, store: &Store) -> Work {
        if self.pending.is_empty() {
            return self.accept(store);
        }
        let id = self.pending.swap_remove(self.random.usize(0..self.pending.len()));
        self.known(id).sent = Certainty::InDoubt;
        let (store, now) = (store.clone(), self.now());
        Box::pin(async move {
            let sent = Transition::Sent { ses_message_id: format!("ses-{id}"), sent_at: now };
            Answer::Recorded(id, certainty(&store.record(id, 1, sent, now).await))
        })
    }

    /// Gives a message up, as a stop does after its drain.
    fn abandon(&mut self, store: &Store) -> Work {
        if self.pending.is_empty() {
            return self.accept(store);
        }
        let id = self.pending.swap_remove(self.random.usize(0..self.pending.len()));
        // A start would fail it as well: only the count shows if this was durable.
        self.known(id).is_abandoned = true;
        let (store, found_at) = (store.clone(), self.now());
        Box::pin(async move {
            let acceptance = Acceptance::Excluded;
            let lost = Transition::BodyLost { acceptance, message: "stopped", found_at };
            let _ = store.record(id, 0, lost, found_at).await;
            Answer::Nothing
        })
    }

    fn report(&mut self, store: &Store) -> Work {
        let quiet = self.ledger.certain();
        let quiet = quiet.filter(|(_, known)| known.event.is_none() && !known.is_abandoned);
        let quiet: Vec<MessageId> = quiet.map(|(id, _)| *id).collect();
        let Some(id) = self.random.choice(quiet) else { return self.accept(store) };
        self.pending.retain(|pending| *pending != id);
        let recipient = format!("bounced-{id}@example.org");
        let address = SuppressedAddress::parse(&recipient).unwrap();
        let event =
            Event { occurred_at: START, recipients: vec![recipient], detail: hard_bounce() };
        self.ledger.suppressed.insert(address.clone(), Certainty::InDoubt);
        let known = self.known(id);
        known.bounce = Certainty::InDoubt;
        known.event = Some(event.clone());
        let (store, now) = (store.clone(), self.now());
        Box::pin(async move {
            let report = Report {
                message: Reference::Tag(id),
                organisation: None,
                ses_message_id: format!("ses-{id}"),
                accepted_at: START,
                event: Some(event),
            };
            Answer::Reported(id, address, certainty(&store.apply(report, now).await))
        })
    }

    fn suppress(&mut self, store: &Store) -> Work {
        let address = format!("manual-{}-{}@example.org", self.batch, self.random.u32(..));
        let address = SuppressedAddress::parse(&address).unwrap();
        self.ledger.suppressed.insert(address.clone(), Certainty::InDoubt);
        let (store, since) = (store.clone(), self.now());
        Box::pin(async move {
            let reason = SuppressionReason::Manual;
            let suppression = Suppression { address: address.clone(), reason, since, cause: None };
            Answer::Suppressed(address, certainty(&store.suppress(None, suppression).await))
        })
    }

    fn add_organisation(&mut self, store: &Store) -> Work {
        let name = format!("org-{}-{}", self.batch, self.random.u32(..));
        self.ledger.organisations.insert(name.clone(), Certainty::InDoubt);
        let store = store.clone();
        Box::pin(async move {
            let added = store.add_organisation(name.parse().unwrap()).await;
            Answer::Organisation(name, certainty(&added))
        })
    }

    fn note(&mut self, answer: Answer) -> Result<(), String> {
        self.survived.acknowledged += 1;
        match answer {
            Answer::Accepted(id, Ok(Accepted::New(new))) if id == new => {
                if !self.known(id).is_old {
                    self.known(id).accepted = Certainty::Certain;
                    self.pending.push(id);
                }
            }
            Answer::Accepted(id, Ok(Accepted::Replayed(earlier))) => {
                let key = self.known(id).key.clone();
                self.known(id).accepted = Certainty::Absent;
                if self.known(earlier).key != key {
                    return Err(format!("{key:?} replayed to {earlier}, which has another key"));
                }
            }
            Answer::Accepted(_, Ok(Accepted::New(other))) => {
                return Err(format!("{other} was answered to another message"));
            }
            Answer::Accepted(id, Err(_)) => self.known(id).accepted = Certainty::Absent,
            Answer::Recorded(id, certainty) => {
                self.known(id).sent = certainty;
                // The memory of some is not freed yet when the power is lost.
                if certainty == Certainty::Certain && self.random.bool() {
                    self.arena.remove(&id);
                }
            }
            Answer::Reported(id, address, certainty) => {
                self.known(id).bounce = certainty;
                self.ledger.suppressed.insert(address, certainty);
            }
            Answer::Suppressed(address, certainty) => {
                self.ledger.suppressed.insert(address, certainty);
            }
            Answer::Organisation(name, certainty) => {
                self.ledger.organisations.insert(name, certainty);
            }
            Answer::Nothing => self.survived.acknowledged -= 1,
        }
        Ok(())
    }

    fn known(&mut self, id: MessageId) -> &mut Known {
        self.ledger.messages.get_mut(&id).expect("every message was noted when it was made")
    }

    /// An id of this time that the seed decides; a `UUIDv7` as the service's are.
    fn next_id(&mut self, time: Timestamp) -> MessageId {
        self.last_id += 1;
        let mut bytes = *MessageId::first_of(time).as_bytes();
        self.random.fill(&mut bytes[9..]);
        bytes[6] = 0x70;
        bytes[8] = 0x80;
        MessageId::from_bytes(bytes)
    }
}
