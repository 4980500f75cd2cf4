//! Pauses by operators: no call of a paused organisation starts. Its messages wait, and end once their
//! time is over, as all others do.

use std::collections::HashSet;

use tokio::sync::MutexGuard;
use tokio::time::Instant;

use crate::Dispatcher;
use pillarbox_domain::attempt::Provider;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::organisation::Pause;
use pillarbox_domain::time::Timestamp;
use pillarbox_queue::Backlog;

/// Pending messages of an organisation that an operator has paused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PausedMessages {
    /// Number of messages that wait.
    pub waiting: usize,
    /// Messages whose call was under way when the pause began.
    pub calls_under_way: usize,
    /// End of the first of them that is over, if it is not sent before; `None` if there is none.
    pub first_end: Option<Timestamp>,
}

/// Organisation that an operator has paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PausedByOperator {
    /// Paused organisation.
    pub organisation: OrganisationId,
    /// Pause that the operator ordered.
    pub pause: Pause,
    /// Its pending messages in this process.
    pub messages: PausedMessages,
}

impl<P: Provider> Dispatcher<P> {
    /// Follows the directory. When this returns, the calls of the organisations that it has as paused
    /// have started before, and no other one starts until it has them as resumed.
    pub async fn follow_pauses(&self) {
        let none_starts = self.starting.lock().await;
        self.follow_pauses_while(&none_starts);
    }

    /// As [`Dispatcher::follow_pauses`]. While no call starts, no other task follows: the queue has
    /// the state that was read last.
    pub(super) fn follow_pauses_while(&self, _none_starts: &MutexGuard<'_, ()>) {
        let paused: HashSet<_> = self.store.pauses().into_iter().map(|(id, _)| id).collect();
        self.queue.set_paused(paused);
    }

    /// Returns the pending messages of an organisation as a pause leaves them.
    pub fn paused_messages(&self, organisation: OrganisationId) -> PausedMessages {
        self.paused_messages_of(&[organisation]).pop().unwrap_or_default()
    }

    /// Returns the organisations that operators have paused. Takes time in proportion to what is
    /// pending of others and older.
    pub fn paused_by_operators(&self) -> Vec<PausedByOperator> {
        let pauses = self.store.pauses();
        let organisations: Vec<_> = pauses.iter().map(|(organisation, _)| *organisation).collect();
        let messages = self.paused_messages_of(&organisations);
        let paused = pauses.into_iter().zip(messages).map(|((organisation, pause), messages)| {
            PausedByOperator { organisation, pause, messages }
        });
        paused.collect()
    }

    fn paused_messages_of(&self, organisations: &[OrganisationId]) -> Vec<PausedMessages> {
        let backlogs: Vec<_> =
            organisations.iter().map(|organisation| self.queue.backlog(*organisation)).collect();
        let are_pending = organisations
            .iter()
            .zip(&backlogs)
            .filter(|(_, backlog)| **backlog != Backlog::default())
            .map(|(organisation, _)| *organisation);
        let are_pending: HashSet<_> = are_pending.collect();
        let expiries = self.queue.first_expiries(are_pending.clone());
        let oldest = self.queue.oldest_of(are_pending);
        let retry_for = self.settings().retry_for;
        let (time, now) = (self.clock.record_time(), Instant::now());
        let end = |end: Instant| time.plus(end.saturating_duration_since(now));
        let messages = organisations.iter().zip(backlogs).map(|(organisation, backlog)| {
            let Backlog { waiting, calls_under_way } = backlog;
            let by_age = oldest.get(organisation).map(|accepted_at| *accepted_at + retry_for);
            let by_expiry = expiries.get(organisation).copied();
            let first_end = by_age.into_iter().chain(by_expiry).min().map(end);
            PausedMessages { waiting, calls_under_way, first_end }
        });
        messages.collect()
    }
}
