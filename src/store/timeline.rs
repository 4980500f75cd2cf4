//! Timelines of messages: the steps that neither the record nor the events show.
//!
//! A step's number gives its place, so that a step that is written twice is there once: an attempt
//! that failed has twice its own number, a restart the one before the attempt that followed it, and
//! an end the last.

use std::collections::BTreeSet;

use crate::locks::{RwLock, read_lock, write_lock};
use crate::record::timeline::{decode_step, encode_step};
use crate::rows::{InTable, Key, KeyRange, KeyedRow, Rows, Stop, Table};
use crate::{Store, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::event::Event;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Message, State};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::timeline::{Entry, Step, StepKind, timeline};

/// Failed attempts that are kept from the first one on.
pub(crate) const FIRST_ATTEMPTS: u32 = 10;
/// Failed attempts that are kept up to the last one.
pub(crate) const LAST_ATTEMPTS: u32 = 40;

const fn of_attempt(attempt: u32) -> u32 {
    2 * attempt
}

const fn of_restart_before(attempt: u32) -> u32 {
    2 * attempt - 1
}

const fn of_end_after(attempts: u32) -> u32 {
    2 * attempts + 2
}

/// Adds the step of the rule that has just changed the message. Before that it had made
/// `attempts_before` attempts.
pub(super) fn add(
    rows: &mut dyn Rows,
    message: &Message,
    attempts_before: u32,
    next_attempt_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Stop> {
    let (id, attempts) = (message.id, message.attempts);
    let attempt = (attempts > attempts_before).then_some(attempts);
    add_restart(rows, id, attempt.unwrap_or(attempts + 1))?;
    if let Some((key, row)) = end(message, attempt, now) {
        return rows.put(Table::Timeline, &key, &row);
    }
    let (Some(attempt), State::Queued { last_failure, .. }) = (attempt, &message.state) else {
        return Ok(());
    };
    let (kind, failure) = (StepKind::AttemptFailed, last_failure.clone());
    let step = Step { at: now, kind, attempt: Some(attempt), attempts, failure, next_attempt_at };
    put(rows, id, of_attempt(attempt), &step)?;
    if let Some(old) = attempt.checked_sub(LAST_ATTEMPTS).filter(|old| *old > FIRST_ATTEMPTS) {
        for number in [of_restart_before(old), of_attempt(old)] {
            rows.remove(Table::Timeline, &Key::from((id, number)))?;
        }
    }
    Ok(())
}

/// Adds a step for this process taking the message up before it made an attempt, unless the
/// timeline shows it.
pub(super) fn add_restart(
    rows: &mut dyn Rows,
    id: MessageId,
    followed_by: u32,
) -> Result<(), Stop> {
    match rows.memory().restarts.untold(id) {
        Some(at) => put(rows, id, of_restart_before(followed_by.max(1)), &Step::restart(at)),
        None => Ok(()),
    }
}

/// Returns the row of the message's end, by an attempt or without one, unless that is its
/// acceptance by the provider: the record has that.
pub(super) fn end(message: &Message, attempt: Option<u32>, now: Timestamp) -> Option<KeyedRow> {
    let step = Step::end(message, attempt, now)?;
    Some((Key::from((message.id, of_end_after(message.attempts))), encode_step(&step)))
}

fn put(rows: &mut dyn Rows, id: MessageId, number: u32, step: &Step) -> Result<(), Stop> {
    rows.put(Table::Timeline, &Key::from((id, number)), &encode_step(step))
}

impl Store {
    /// A message's timeline, oldest first, with its events. Read the message before: if it is
    /// finished in between, nothing shows twice. Rows that cannot be read are left out.
    pub async fn timeline(
        &self,
        message: &Message,
        events: Vec<Event>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Vec<Entry>, StoreError> {
        // Before the steps: it may become one of them in between, which then shows it.
        let restarted_at = self.memory().restarts.untold(message.id);
        let steps = self.steps(message.id, window_now).await?;
        Ok(timeline(message, steps, events, restarted_at))
    }

    /// Steps of a message's timeline, in their order.
    pub(super) async fn steps(
        &self,
        id: MessageId,
        window_now: impl Into<WindowTime>,
    ) -> Result<Vec<Step>, StoreError> {
        let window_now = window_now.into();
        let rows = self.rows(Table::Timeline, KeyRange::of(id), usize::MAX).await?;
        let read = rows.iter().filter_map(|(key, row)| {
            let step = decode_step(row).in_table(Table::Timeline, id);
            Some((key.number(size_of::<MessageId>()), self.damage().left_out(step)?))
        });
        let corrected = read.map(|(number, step)| Step {
            at: window_now.corrected(step.at),
            next_attempt_at: step.next_attempt_at.map(|at| window_now.corrected(at)),
            attempts: number / 2 - u32::from(step.kind.is_end()),
            ..step
        });
        Ok(corrected.collect())
    }
}

/// Messages that this process took up from the one before, as long as nothing has been written
/// about them since.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    waiting: RwLock<(Option<Timestamp>, BTreeSet<MessageId>)>,
}

impl Restarts {
    /// Notes the messages that a start at `at` has found.
    pub(super) fn note(&self, at: Timestamp, waiting: BTreeSet<MessageId>) {
        *write_lock(&self.waiting) = (Some(at), waiting);
    }

    /// Returns the time at which this process took a message up, if it did and no step shows it
    /// yet.
    pub(super) fn untold(&self, id: MessageId) -> Option<Timestamp> {
        let waiting = read_lock(&self.waiting);
        waiting.0.filter(|_| waiting.1.contains(&id))
    }

    /// Notes that the message's timeline shows it.
    pub(super) fn told(&self, id: MessageId) {
        if self.untold(id).is_some() {
            write_lock(&self.waiting).1.remove(&id);
        }
    }
}
