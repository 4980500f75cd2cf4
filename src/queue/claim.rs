//! Claims: messages that are taken out of the queue, and the calls that are made for them.
//!
//! A claim owns its message until it ends it or puts it back. If a claim is dropped before, because
//! its task panicked or its future is not polled any more, the message waits again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::entries::{Entries, PutBack, Taken};
use crate::{MessageQueue, PendingMessage};
use pillarbox_body_store::{CallState, LiveState};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::{Acceptance, Cancellation, Failure, Transition};
use pillarbox_domain::time::Timestamp;

/// Wait of a message whose claim was dropped. The fault that ended its holder may end the next one.
pub(super) const INTERRUPTED_WAIT: Duration = Duration::from_secs(1);

/// Open question about a message because an earlier claim of it was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interruption {
    /// No claim was dropped.
    None,
    /// Its end may be on its record. No call was under way.
    BeforeCall,
    /// The outcome of a call that was under way when an earlier process ended.
    EndOfProcess,
    /// The outcome of its call.
    DuringCall,
}

/// One message taken out of the queue.
#[must_use = "the message waits again if its claim is dropped"]
pub struct Claim {
    /// Message that was taken out.
    pub message: PendingMessage,
    /// Calls to the provider that were started.
    pub attempts: u32,
    /// State of the doubt: one of them may have been accepted, or none was.
    pub acceptance: Acceptance,
    /// Open question that an earlier, dropped claim has left.
    pub interruption: Interruption,
    /// Reason why it is not to be sent any more, if it was cancelled during an earlier claim.
    pub cancellation: Option<Cancellation>,
    queue: Arc<MessageQueue>,
    hold: Hold,
}

/// State of a claim: it still has to give its message back, or has done so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Held,
    Released,
}

impl Claim {
    pub(super) fn new(taken: Taken, queue: &Arc<MessageQueue>) -> Self {
        let Taken { message, attempts, acceptance, interruption, cancellation } = taken;
        Self {
            message,
            attempts,
            acceptance,
            interruption,
            cancellation,
            queue: Arc::clone(queue),
            hold: Hold::Held,
        }
    }

    pub(super) fn all(taken: Vec<Taken>, queue: &Arc<MessageQueue>) -> Vec<Self> {
        taken.into_iter().map(|taken| Self::new(taken, queue)).collect()
    }

    /// Id of the message.
    pub fn id(&self) -> MessageId {
        self.message.id
    }

    /// Counts the call that is about to start. From here on, readers see `sending`.
    pub fn start_call(&mut self) -> Call {
        let (attempts, organisation) = self.queue.lock().start_call(self.message.id);
        self.attempts = attempts;
        self.keep(CallState::UnderWay, Instant::now());
        Call { organisation, queue: Arc::clone(&self.queue) }
    }

    /// Takes back the count of a call that never started.
    pub fn not_called(&mut self) {
        self.attempts = self.queue.lock().not_called(self.message.id);
        self.keep(CallState::Idle, Instant::now());
    }

    /// Takes note that the provider has accepted the message. A later process does not send it
    /// again, even if this process ends before the store has it.
    pub fn was_sent(&self, ses_message_id: &str, sent_at: Timestamp) {
        let ses_message_id = ses_message_id.to_owned();
        self.keep(CallState::Answered { ses_message_id, sent_at }, Instant::now());
    }

    /// Takes note that the provider has not accepted the message in its call.
    pub fn was_not_sent(&self) {
        self.keep(CallState::Idle, Instant::now());
    }

    /// Takes note that the message has failed. A later process does not send it, even if this
    /// process ends before the store has it.
    pub fn has_failed(&mut self, failure: &Failure, acceptance: Acceptance) {
        self.acceptance = self.acceptance.or(acceptance);
        self.keep(CallState::Failed(failure.clone()), Instant::now());
    }

    /// Writes down, for a later process, how the message stands.
    fn keep(&self, call: CallState, due: Instant) {
        let (attempts, acceptance) = (self.attempts, self.acceptance);
        self.message.set_live(&LiveState { attempts, acceptance, due, call });
    }

    /// Forgets the message, which has reached a final state, and its body.
    pub fn finish(mut self) {
        self.hold = Hold::Released;
        self.queue.finish(self.message.id);
    }

    /// Puts the message back, due at `due`. If an event has proved in the meantime that it was sent,
    /// it is forgotten instead. If it was cancelled in the meantime, returns the claim and the end
    /// that the message is to have.
    pub fn put_back(mut self, due: Instant, acceptance: Acceptance) -> Option<(Self, Transition)> {
        self.acceptance = self.acceptance.or(acceptance);
        self.keep(CallState::Idle, due);
        self.give_back(|entries, id| entries.put_back(id, due, acceptance))
    }

    /// Puts the message back to its state before its first call, as [`Claim::put_back`] does.
    pub fn put_back_as_new(self) -> Option<(Self, Transition)> {
        self.keep(self.state_without_call(), self.message.accepted_at);
        self.give_back(Entries::put_back_as_new)
    }

    /// Puts the message back, due at `due`, without an attempt; else as [`Claim::put_back`] does.
    pub fn put_back_untried(self, due: Instant) -> Option<(Self, Transition)> {
        self.keep(self.state_without_call(), due);
        self.give_back(|entries, id| entries.put_back_untried(id, due))
    }

    /// State of its call if none was made in this process: what an earlier one has left open stays so.
    fn state_without_call(&self) -> CallState {
        match self.interruption {
            Interruption::EndOfProcess => CallState::UnderWay,
            Interruption::None | Interruption::BeforeCall | Interruption::DuringCall => {
                CallState::Idle
            }
        }
    }

    fn give_back(
        mut self,
        put_back: impl FnOnce(&mut Entries, MessageId) -> PutBack,
    ) -> Option<(Self, Transition)> {
        let back = put_back(&mut self.queue.lock(), self.message.id);
        self.queue.changed.notify_one();
        match back {
            PutBack::Waits => {}
            // The body is freed here, outside of the lock.
            PutBack::Gone(removed) => drop(removed),
            PutBack::Cancelled(end) => return Some((self, end)),
        }
        self.hold = Hold::Released;
        None
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.hold == Hold::Held {
            self.queue.interrupt(self.message.id);
        }
    }
}

// By hand: the request is the body, which must reach no log.
impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("id", &self.message.id).finish_non_exhaustive()
    }
}

/// A call to the provider that is under way. It counts against its organisation's share until it
/// is dropped, however it ends.
#[derive(Debug)]
pub struct Call {
    organisation: OrganisationId,
    queue: Arc<MessageQueue>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.queue.lock().queue.call_ended(self.organisation);
        self.queue.call_ended.notify_one();
    }
}
