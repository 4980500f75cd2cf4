//! The task of one endpoint: first attempts in the feed's order, further ones by the schedule, and
//! their outcomes, which are stored together.
//!
//! The cursor moves past an event once it is delivered, or stored as a delivery that waits. So a
//! crash repeats deliveries and loses none. Events that are not attempted yet stay ahead of the
//! cursor, on disk alone. In memory are at most [`MAX_AHEAD`] positions, of which [`READ_AHEAD`]
//! with their event, and [`DUE_AHEAD`] deliveries that are due again. `memory` bounds their bytes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::attempt::Sender;
use crate::endpoint_status::{AttemptResult, Attempted, beginning};
use crate::memory::{Beside, Room};
use crate::retry::retry_delay;
use crate::slot::{Finished, Job, Next, NextDue, Slot, SlotState, WebhookEvent};
use crate::{Answer, Attempt, LAST_ATTEMPTS, LAST_COMMIT, Webhooks};
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{Redelivery, WaitingDelivery, Webhook, WebhookId, WebhookState};
use pillarbox_store::{Acknowledged, Acknowledgement, Health, Store, StoreError, WaitingKey};

/// The most attempts under way to one endpoint.
const MAX_IN_FLIGHT: usize = 16;
/// The most events after the first that is not finished, so that a slow attempt holds the cursor
/// back, and not the others.
const MAX_AHEAD: usize = 1_024;
/// The most events that are read before there is room for their attempt.
const READ_AHEAD: usize = 100;
/// Bytes of events from which on no more are read before there is room for their attempt.
const READ_AHEAD_BYTES: usize = 512 * 1024;
/// The most due deliveries that are read before there is room for their attempt.
const DUE_AHEAD: usize = 64;
/// Pause between two commits: what a crash in between leaves to be delivered twice.
const COMMIT_PAUSE: Duration = Duration::from_millis(50);
/// Pause between two commits that only move the cursor past events of other types.
const IDLE_COMMIT_PAUSE: Duration = Duration::from_secs(5);
/// Interval at which the wall clock is read for deliveries that are due: it may be set.
const CLOCK_LOOK: Duration = Duration::from_millis(250);
/// Interval at which a store that takes no writes is checked: nothing is attempted meanwhile.
const STORE_LOOK: Duration = Duration::from_millis(100);
/// Interval at which exhausted memory is checked.
const MEMORY_LOOK: Duration = Duration::from_millis(50);
/// Pause after the store could not be read or written.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which the last attempts are checked, once the service stops: they may only wait for
/// names.
const LOOKUPS_LOOK: Duration = Duration::from_millis(50);
/// Failed attempts in a row from which on attempts begin one after the other, with a pause: an
/// endpoint that is down must not make work for others.
const PACED_FROM: u32 = 16;
/// Length of that pause.
const PACE: Duration = Duration::from_millis(250);

/// Invariants of the tasks.
const ATTEMPTS: &str = "an attempt does not panic";
const COMMITS: &str = "a commit does not panic";

/// Delivers to one endpoint.
pub(super) struct Endpoint {
    webhooks: Arc<Webhooks>,
    webhook: Arc<Webhook>,
    sender: Arc<Sender>,
    /// Generation of the cursor that all below belongs to.
    generation: u32,
    /// As far as it is stored, or about to be.
    cursor: FeedPosition,
    /// As far as the feed was read.
    read_to: FeedPosition,
    /// True if there was nothing more at the last read.
    is_at_end: bool,
    /// Events ahead of the cursor, in the feed's order: those that were attempted, then those that
    /// were not.
    slots: VecDeque<Slot>,
    attempted: usize,
    /// Deliveries that are due again.
    due: VecDeque<WaitingDelivery>,
    /// Keys of deliveries that are in `due`, under way or not yet written down.
    taken: BTreeSet<WaitingKey>,
    next_due: NextDue,
    attempts: JoinSet<Finished>,
    /// Of the attempts under way, the further ones.
    further: usize,
    /// Outcomes of further attempts that are not stored yet.
    acknowledged: Acknowledgement,
    /// The commit under way, if there is one.
    committing: JoinSet<Acknowledged>,
    commit: Option<Commit>,
    committed_at: Instant,
    gone: Gone,
    failures_in_a_row: u32,
    /// No attempt begins before this.
    pace: Instant,
    /// The store is not asked before this.
    store_pause: Instant,
    /// No event is read for want of memory before this.
    memory_pause: Instant,
    /// Bytes of the last event, if there was no room for it.
    denied: Option<usize>,
}

/// A commit under way.
struct Commit {
    /// Rows that it removes.
    tried: Vec<WaitingKey>,
    /// Number of rows that it adds, and the time of the first of them.
    added: u64,
    first_due: Option<Timestamp>,
}

/// State of the endpoint's answer that it wants no more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    No,
    /// It did, and that is to be written down.
    Since(Timestamp),
    /// It did, and an operator has to resume it.
    Stored,
}

/// Decision whether the task has to begin again from the stored state.
#[derive(PartialEq, Eq)]
enum Reloads {
    Yes,
    No,
}

/// Decision whether the task goes on.
#[derive(PartialEq, Eq)]
enum Goes {
    On,
    /// The endpoint was removed.
    Away,
}

impl Endpoint {
    pub(super) fn new(webhooks: Arc<Webhooks>, webhook: Webhook, sender: Sender) -> Self {
        let now = Instant::now();
        Self {
            webhooks,
            webhook: Arc::new(webhook),
            sender: Arc::new(sender),
            generation: 0,
            cursor: FeedPosition::START,
            read_to: FeedPosition::START,
            is_at_end: false,
            slots: VecDeque::new(),
            attempted: 0,
            due: VecDeque::new(),
            taken: BTreeSet::new(),
            next_due: NextDue::Unknown,
            attempts: JoinSet::new(),
            further: 0,
            acknowledged: Acknowledgement::default(),
            committing: JoinSet::new(),
            commit: None,
            committed_at: now,
            gone: Gone::No,
            failures_in_a_row: 0,
            pace: now,
            store_pause: now,
            memory_pause: now,
            denied: None,
        }
    }

    /// Delivers until the endpoint is removed or the sender of `stopped` is dropped.
    pub(super) async fn run(mut self, mut stopped: watch::Receiver<()>) {
        let mut changes = self.store().webhook_changes();
        let mut grown = self.store().feed_grew();
        while self.load().await == Goes::On {
            loop {
                self.look().await;
                // A change that was made before an event was recorded holds for that event: a pause,
                // or a new secret.
                if changes.has_changed().unwrap_or(false) {
                    changes.mark_unchanged();
                    if self.changed().await == Reloads::Yes {
                        break;
                    }
                }
                self.begin_attempts();
                self.begin_commit();
                self.tell();
                let wake = self.wake_at();
                tokio::select! {
                    _ = stopped.changed() => return self.finish().await,
                    Some(finished) = self.attempts.join_next() => {
                        self.finished(finished.expect(ATTEMPTS));
                    }
                    Some(stored) = self.committing.join_next() => match stored.expect(COMMITS) {
                        Acknowledged::Done => {
                            self.committed();
                            if self.is_resumed() == Reloads::Yes {
                                break;
                            }
                        }
                        Acknowledged::Outdated => break,
                    },
                    _ = grown.changed() => self.is_at_end = false,
                    _ = changes.changed() => match self.changed().await {
                        Reloads::Yes => break,
                        Reloads::No => {}
                    },
                    () = sleep_until(wake) => {}
                }
            }
            self.attempts.shutdown().await;
            self.committing.shutdown().await;
        }
    }

    fn store(&self) -> &Store {
        &self.webhooks.store
    }

    fn id(&self) -> WebhookId {
        self.webhook.id
    }

    /// Begins at what is stored.
    async fn load(&mut self) -> Goes {
        let id = self.id();
        loop {
            let Some(webhook) = self.store().webhook(id) else { return Goes::Away };
            self.webhook = Arc::new(webhook);
            let loaded = async {
                let cursor = self.store().webhook_cursor(id).await?;
                let waiting = self.store().count_waiting_deliveries(id).await?;
                Ok::<_, StoreError>((cursor, waiting))
            };
            match loaded.await {
                Ok((Some(cursor), waiting)) => {
                    self.generation = cursor.generation;
                    self.cursor = cursor.position;
                    self.read_to = cursor.position;
                    self.webhooks.note(id, |status| status.waiting = waiting);
                    break;
                }
                Ok((None, _)) => return Goes::Away,
                Err(error) => {
                    warn!(webhook = %id, %error, "an endpoint waits for the store");
                    sleep(STORE_PAUSE).await;
                }
            }
        }
        self.is_at_end = false;
        self.slots.clear();
        self.attempted = 0;
        self.due.clear();
        self.taken.clear();
        self.next_due = NextDue::Unknown;
        self.further = 0;
        self.acknowledged = Acknowledgement::default();
        self.commit = None;
        self.gone = Gone::No;
        Goes::On
    }

    /// Takes in a change of the endpoint, or of another.
    async fn changed(&mut self) -> Reloads {
        let Some(webhook) = self.store().webhook(self.id()) else { return Reloads::Yes };
        let was = std::mem::replace(&mut self.webhook, Arc::new(webhook));
        self.next_due = NextDue::Unknown;
        if self.webhook.state != WebhookState::Active {
            self.forget_ready();
        }
        let is_seen =
            was.state != WebhookState::Active && self.webhook.state == WebhookState::Active;
        if is_seen || self.is_resumed() == Reloads::Yes {
            // What was answered with 410 is tried again.
            self.failures_in_a_row = 0;
            self.pace = Instant::now();
            return Reloads::Yes;
        }
        // A store that cannot be read now says so to the next commit.
        let cursor = self.store().webhook_cursor(self.id()).await;
        let is_moved = cursor.is_ok_and(|it| it.is_none_or(|it| it.generation != self.generation));
        if is_moved { Reloads::Yes } else { Reloads::No }
    }

    /// Checks whether an operator has resumed the endpoint since it said that it wants no more: its
    /// pause is stored once the commit of that has ended, and may be over before this task saw it.
    fn is_resumed(&self) -> Reloads {
        let webhook = self.store().webhook(self.id());
        let is_active = webhook.is_some_and(|webhook| webhook.state == WebhookState::Active);
        let is_stored = self.gone == Gone::Stored && self.commit.is_none();
        if is_stored && is_active { Reloads::Yes } else { Reloads::No }
    }

    /// Forgets what waits for its attempt, but the first: it shows since when the endpoint is behind.
    fn forget_ready(&mut self) {
        let kept = self.attempted + 1;
        if self.slots.len() > kept {
            self.slots.truncate(kept);
            self.read_to = self.slots[self.attempted].position;
            self.is_at_end = false;
        }
    }

    fn may_begin(&self) -> bool {
        self.webhook.state == WebhookState::Active && self.gone == Gone::No
    }

    /// Reads the deliveries that are due from the store.
    async fn look(&mut self) {
        if Instant::now() < self.store_pause {
            return;
        }
        let looked = async {
            self.look_at_feed().await?;
            self.look_at_waiting().await
        };
        if let Err(error) = looked.await {
            warn!(webhook = %self.id(), %error, "an endpoint waits for the store");
            self.store_pause = Instant::now() + STORE_PAUSE;
        }
    }

    fn ready_bytes(&self) -> usize {
        self.slots.range(self.attempted..).map(Slot::ready_bytes).sum()
    }

    /// Number of events that there is room for, if there are more.
    fn wanted(&self) -> usize {
        let ready = self.slots.len() - self.attempted;
        let has_room = ready <= READ_AHEAD / 2
            && self.slots.len() < MAX_AHEAD
            && self.ready_bytes() <= READ_AHEAD_BYTES / 2;
        if self.is_at_end || self.memory_pause > Instant::now() {
            0
        } else if self.may_begin() && has_room {
            READ_AHEAD - ready
        } else {
            // The first shows since when the endpoint is behind.
            usize::from(self.slots.is_empty())
        }
    }

    async fn look_at_feed(&mut self) -> Result<(), StoreError> {
        let wanted = self.wanted();
        if wanted == 0 {
            return Ok(());
        }
        if !self.has_room(self.beside_next()) {
            self.memory_pause = Instant::now() + MEMORY_LOOK;
            return Ok(());
        }
        let Webhook { organisation, types, .. } = *self.webhook;
        let kind = self.webhooks.store.shown_kind(organisation);
        let now = self.webhooks.clock.window_time();
        let webhooks = Arc::clone(&self.webhooks);
        let _slot = webhooks.memory.read_slot(organisation).await;
        let bytes = READ_AHEAD_BYTES - self.ready_bytes().min(READ_AHEAD_BYTES - 1);
        let store = self.store();
        let page = store.feed_within(organisation, self.read_to, types, wanted, bytes, now).await?;
        self.is_at_end = page.entries.is_empty();
        for entry in page.entries {
            let beside = self.beside_next();
            let told = match WebhookEvent::of(kind, &entry, &self.webhook, &webhooks.memory, beside)
            {
                Ok(told) => told,
                Err(bytes) => {
                    self.denied = Some(bytes);
                    self.memory_pause = Instant::now() + MEMORY_LOOK;
                    return Ok(());
                }
            };
            self.denied = None;
            self.read_to = entry.position;
            self.slots.push_back(Slot {
                position: entry.position,
                recorded_at: entry.recorded_at,
                state: SlotState::Ready(Box::new(told)),
            });
        }
        self.read_to = page.next;
        Ok(())
    }

    async fn look_at_waiting(&mut self) -> Result<(), StoreError> {
        let now = self.webhooks.clock.now();
        let is_time = match self.next_due {
            NextDue::Unknown => true,
            NextDue::Never => false,
            NextDue::At(due) => due <= now,
        };
        if !self.may_begin() || !self.due.is_empty() || !is_time {
            return Ok(());
        }
        let limit = DUE_AHEAD + self.taken.len();
        let page = self.store().waiting_deliveries(self.id(), limit).await?;
        let void = page.void.into_iter().filter(|key| self.taken.insert(*key));
        self.acknowledged.tried.extend(void);
        self.next_due = if page.rows < limit { NextDue::Never } else { NextDue::Unknown };
        for waiting in page.deliveries {
            if waiting.due > now {
                self.next_due = NextDue::At(waiting.due);
                break;
            }
            if self.taken.insert(waiting.key()) {
                self.due.push_back(waiting);
            }
        }
        Ok(())
    }

    /// Memory of the endpoint beside the next event that is read.
    fn beside_next(&self) -> Beside {
        let has_none = self.attempted == self.slots.len() && self.attempts.is_empty();
        if has_none { Beside::Nothing } else { Beside::Others }
    }

    /// Returns true if there may be room for another event.
    fn has_room(&self, beside: Beside) -> bool {
        let memory = &self.webhooks.memory;
        self.denied.is_none_or(|bytes| memory.reserve_body(&self.webhook, bytes, beside).is_some())
    }

    fn has_work(&self) -> bool {
        !self.due.is_empty() || self.attempted < self.slots.len()
    }

    /// Begins as many attempts as there may be. First and further ones share the room evenly.
    fn begin_attempts(&mut self) {
        while self.may_begin()
            && self.attempts.len() < MAX_IN_FLIGHT
            && self.pace <= Instant::now()
            && self.store().health() == Health::Writable
        {
            if !self.has_work() {
                return;
            }
            let beside = if self.attempts.is_empty() { Beside::Nothing } else { Beside::Others };
            let Some(room) = self.webhooks.memory.reserve_attempt(&self.webhook, beside) else {
                return;
            };
            let first = self.attempts.len() - self.further;
            let has_first = self.attempted < self.slots.len();
            match self.due.front().copied() {
                Some(waiting) if (!has_first || self.further <= first) && self.has_room(beside) => {
                    self.due.pop_front();
                    self.begin_further(waiting, room, beside);
                }
                Some(_) | None if has_first => self.begin_first(room),
                Some(_) | None => return,
            }
            if self.failures_in_a_row >= PACED_FROM {
                self.pace = Instant::now() + PACE;
            }
        }
    }

    fn begin_first(&mut self, room: Room) {
        let slot = &mut self.slots[self.attempted];
        let state = std::mem::replace(&mut slot.state, SlotState::Open);
        let SlotState::Ready(told) = state else {
            unreachable!("what is behind the attempted ones is ready");
        };
        let job = Job::First(slot.position);
        self.attempted += 1;
        self.attempts.spawn(attempt(self.call(), job, told, room));
    }

    fn begin_further(&mut self, waiting: WaitingDelivery, room: Room, beside: Beside) {
        self.further += 1;
        let (call, store) = (self.call(), self.store().clone());
        let (organisation, position) = (self.webhook.organisation, waiting.delivery.position);
        let (kind, now) =
            (self.webhooks.store.shown_kind(organisation), self.webhooks.clock.window_time());
        self.attempts.spawn(async move {
            let memory = &call.webhooks.memory;
            let slot = memory.read_slot(organisation).await;
            let told = match store.feed_entry(organisation, position, now).await {
                Ok(Some(entry)) => WebhookEvent::of(kind, &entry, &call.webhook, memory, beside),
                Ok(None) => return Finished::Expired(waiting),
                Err(_) => return Finished::Unread(waiting),
            };
            drop(slot);
            match told {
                Ok(told) => attempt(call, Job::Further(waiting), Box::new(told), room).await,
                Err(bytes) => Finished::NoRoom(waiting, bytes),
            }
        });
    }

    fn call(&self) -> Call {
        Call {
            webhooks: Arc::clone(&self.webhooks),
            webhook: Arc::clone(&self.webhook),
            sender: Arc::clone(&self.sender),
        }
    }

    /// Takes in the outcome of an attempt.
    fn finished(&mut self, finished: Finished) {
        let id = self.id();
        match finished {
            Finished::Attempted { job, told, attempt } => self.judge(job, *told, &attempt),
            Finished::Expired(waiting) => {
                self.further -= 1;
                self.acknowledged.tried.push(waiting.key());
                self.webhooks.note(id, |status| status.expired += 1);
            }
            Finished::Unread(waiting) => {
                self.further -= 1;
                self.taken.remove(&waiting.key());
                self.next_due = NextDue::Unknown;
                self.store_pause = Instant::now() + STORE_PAUSE;
            }
            Finished::NoRoom(waiting, bytes) => {
                self.further -= 1;
                self.denied = Some(bytes);
                self.due.push_front(waiting);
            }
        }
    }

    fn judge(&mut self, job: Job, told: WebhookEvent, attempt: &Attempt) {
        let (id, now) = (self.id(), self.webhooks.clock.now());
        let before = match job {
            Job::First(position) => Redelivery { position, attempts: 0, last: None },
            Job::Further(waiting) => {
                self.further -= 1;
                waiting.delivery
            }
        };
        let attempts = before.attempts + 1;
        let answer = attempt.answer.to_string();
        let event = &told.delivery.id;
        let took = attempt.took;
        let outcome = match attempt.answer {
            Answer::Taken(_) => "delivered",
            Answer::Gone | Answer::Failed { .. } => "not delivered",
        };
        info!(
            target: "pillarbox::webhook",
            webhook = %id, event, "type" = told.event_type, message_id = told.message, attempts,
            answer, ?took, "{outcome}"
        );
        let answered = answer.clone();
        let attempted = |result| Attempted {
            event: told.delivery.id,
            event_type: told.event_type,
            message: told.message,
            attempt: attempts,
            at: now,
            answer: answered,
            took,
            body: beginning(&attempt.body),
            result,
        };
        let next = match &attempt.answer {
            Answer::Taken(_) => {
                self.recovered();
                Next::Nothing
            }
            Answer::Gone => {
                warn!(webhook = %id, "an endpoint answered 410: it is paused until an operator resumes it");
                if self.gone == Gone::No {
                    self.gone = Gone::Since(now);
                }
                self.webhooks.note(id, |status| status.attempted(attempted(AttemptResult::Gone)));
                if let Job::Further(waiting) = job {
                    self.taken.remove(&waiting.key());
                }
                return;
            }
            Answer::Failed { failure, retry_after, .. } => {
                self.failed(&answer);
                let last = Some((now, *failure));
                let delivery = Redelivery { attempts, last, ..before };
                match retry_delay(attempts, fastrand::f64(), *retry_after) {
                    Some(delay) => Next::Again(WaitingDelivery { due: now.plus(delay), delivery }),
                    None => Next::Failed(delivery),
                }
            }
        };
        let result = match next {
            Next::Nothing => AttemptResult::Delivered,
            Next::Again(waiting) => AttemptResult::Waiting(waiting.due),
            Next::Failed(_) => AttemptResult::Failed,
        };
        self.webhooks.note(id, |status| status.attempted(attempted(result)));
        self.acknowledge(job, next);
    }

    fn acknowledge(&mut self, job: Job, next: Next) {
        match job {
            Job::First(position) => {
                let index = self.slots.binary_search_by_key(&position, |slot| slot.position);
                let slot = &mut self.slots[index.expect("a slot stays until it is acknowledged")];
                slot.state = SlotState::Acknowledged(match next {
                    Next::Again(waiting) => Some(waiting),
                    Next::Nothing => None,
                    Next::Failed(_) => unreachable!("the schedule has more than one attempt"),
                });
            }
            Job::Further(waiting) => {
                self.acknowledged.tried.push(waiting.key());
                match next {
                    Next::Nothing => {}
                    Next::Again(waiting) => self.acknowledged.waiting.push(waiting),
                    Next::Failed(delivery) => {
                        warn!(
                            webhook = %self.id(), attempts = delivery.attempts,
                            "a delivery has failed for good; see: pillarbox webhook deliveries"
                        );
                        self.acknowledged.failed.push(delivery);
                    }
                }
            }
        }
    }

    fn recovered(&mut self) {
        if self.failures_in_a_row >= PACED_FROM {
            info!(webhook = %self.id(), "an endpoint accepts deliveries again");
        }
        self.failures_in_a_row = 0;
        self.pace = Instant::now();
    }

    fn failed(&mut self, answer: &str) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        if self.failures_in_a_row == PACED_FROM {
            warn!(webhook = %self.id(), answer, "an endpoint accepts no deliveries: pillarbox repeats them, more slowly");
        }
    }

    /// Begins to store the outcomes of deliveries, if there are any and no commit is under way.
    fn begin_commit(&mut self) {
        if self.commit.is_some() || self.commit_at().is_none_or(|at| Instant::now() < at) {
            return;
        }
        let Some(acknowledgement) = self.acknowledgement() else { return };
        self.committed_at = Instant::now();
        let (store, id, generation) = (self.store().clone(), self.id(), self.generation);
        self.commit = Some(Commit {
            tried: acknowledgement.tried.clone(),
            added: acknowledgement.waiting.len() as u64,
            first_due: acknowledgement.waiting.iter().map(|waiting| waiting.due).min(),
        });
        self.committing.spawn(save(store, id, generation, acknowledgement));
    }

    /// Rows and cursor that have to be stored, if there are any.
    fn acknowledgement(&mut self) -> Option<Acknowledgement> {
        let mut acknowledgement = std::mem::take(&mut self.acknowledged);
        acknowledgement.cursor = self.acknowledged_to();
        while let Some(slot) = self.slots.front_mut() {
            let SlotState::Acknowledged(waiting) = &mut slot.state else { break };
            acknowledgement.waiting.extend(waiting.take());
            self.slots.pop_front();
            self.attempted -= 1;
        }
        self.cursor = acknowledgement.cursor.unwrap_or(self.cursor);
        if let Gone::Since(since) = self.gone {
            acknowledgement.gone = Some(since);
            self.gone = Gone::Stored;
        }
        (acknowledgement != Acknowledgement::default()).then_some(acknowledgement)
    }

    /// Position to which the cursor has to be moved, if it has to.
    fn acknowledged_to(&self) -> Option<FeedPosition> {
        let is_done = |slot: &&Slot| matches!(slot.state, SlotState::Acknowledged(_));
        let done = self.slots.iter().take_while(is_done).map(|slot| slot.position);
        let (count, last) = done.fold((0, None), |(count, _), place| (count + 1, Some(place)));
        let position = if count == self.slots.len() { Some(self.read_to) } else { last };
        position.filter(|position| *position > self.cursor)
    }

    /// Time from which the next commit may begin; `None` if there is nothing to store.
    fn commit_at(&self) -> Option<Instant> {
        let is_front_acknowledged =
            self.slots.front().is_some_and(|slot| matches!(slot.state, SlotState::Acknowledged(_)));
        let has_outcomes = is_front_acknowledged
            || self.acknowledged != Acknowledgement::default()
            || matches!(self.gone, Gone::Since(_));
        if has_outcomes {
            Some(self.committed_at + COMMIT_PAUSE)
        } else {
            self.acknowledged_to().map(|_| self.committed_at + IDLE_COMMIT_PAUSE)
        }
    }

    /// Goes on after a commit: what was tried is read no more, and what it added is.
    fn committed(&mut self) {
        let Some(Commit { tried, added, first_due, .. }) = self.commit.take() else { return };
        self.webhooks.note(self.id(), |status| {
            status.waiting = (status.waiting + added).saturating_sub(tried.len() as u64);
        });
        for key in tried {
            self.taken.remove(&key);
        }
        self.next_due = match (self.next_due, first_due) {
            (next, None) => next,
            (NextDue::Unknown, Some(_)) => NextDue::Unknown,
            (NextDue::Never, Some(due)) => NextDue::At(due),
            (NextDue::At(next), Some(due)) => NextDue::At(next.min(due)),
        };
    }

    fn tell(&self) {
        let behind = self.slots.get(self.attempted).map(|slot| slot.recorded_at);
        let in_flight = self.attempts.len();
        let last_attempted = self.attempted.checked_sub(1).map(|last| self.slots[last].position);
        self.webhooks.note(self.id(), |status| {
            status.behind_since = behind;
            status.in_flight = in_flight;
            status.attempted_to = Some(last_attempted.unwrap_or(self.cursor));
        });
    }

    /// Time at which there may be something to do, even if nothing happens.
    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + Duration::from_mins(1);
        if self.may_begin() {
            if self.next_due != NextDue::Never || !self.due.is_empty() {
                wake = wake.min(now + CLOCK_LOOK);
            }
            if self.has_work() && self.attempts.len() < MAX_IN_FLIGHT {
                wake = wake.min(self.pace.max(self.store_pause).max(now + STORE_LOOK));
            }
        }
        if self.commit.is_none()
            && let Some(at) = self.commit_at()
        {
            wake = wake.min(at);
        }
        if self.wanted() > 0 {
            wake = wake.min(self.store_pause);
        }
        if self.memory_pause > now {
            wake = wake.min(self.memory_pause);
        }
        wake
    }

    /// Waits for what is under way, but not for long, and writes it down.
    async fn finish(mut self) {
        let end = Instant::now() + LAST_ATTEMPTS;
        // An attempt whose endpoint's name is being resolved has sent nothing: it is not waited
        // for.
        while self.attempts.len() > self.sender.lookups() && Instant::now() < end {
            match timeout(LOOKUPS_LOOK, self.attempts.join_next()).await {
                Ok(Some(finished)) => self.finished(finished.expect(ATTEMPTS)),
                Ok(None) => break,
                Err(_) => {}
            }
        }
        self.attempts.shutdown().await;
        let written = async {
            while self.committing.join_next().await.is_some() {}
            if let Some(acknowledgement) = self.acknowledgement() {
                save(self.store().clone(), self.id(), self.generation, acknowledgement).await;
            }
        };
        if timeout(2 * LAST_COMMIT, written).await.is_err() {
            warn!(webhook = %self.id(), "the last deliveries could not be recorded, so they are repeated");
        }
    }
}

/// Inputs of an attempt's task.
struct Call {
    webhooks: Arc<Webhooks>,
    webhook: Arc<Webhook>,
    sender: Arc<Sender>,
}

async fn attempt(call: Call, job: Job, told: Box<WebhookEvent>, _room: Room) -> Finished {
    let Call { webhooks, webhook, sender } = call;
    let now = webhooks.clock.machine_time();
    let (organisation, secrets) = (Some(webhook.organisation), webhook.secrets(now));
    let attempt = sender.attempt(organisation, secrets, told.delivery.clone(), now).await;
    Finished::Attempted { job, told, attempt }
}

/// Stores the outcomes, and tries until the store takes them.
async fn save(store: Store, id: WebhookId, generation: u32, done: Acknowledgement) -> Acknowledged {
    loop {
        match store.acknowledge_deliveries(id, generation, done.clone()).await {
            Ok(acknowledged) => return acknowledged,
            Err(error) => {
                warn!(webhook = %id, %error, "deliveries could not be recorded; pillarbox tries again");
                sleep(STORE_PAUSE).await;
            }
        }
    }
}
