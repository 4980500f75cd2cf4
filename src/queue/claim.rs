//! Claims: messages that are taken out of the queue, and the calls that are made for them.
//!
//! A claim owns its message until it ends it or puts it back. If a claim is dropped before, be it that
//! its task panicked or that nobody polls its future any more, the message waits again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Acceptance, Cancellation, Transition};
use crate::queue::entries::{Entries, PutBack, Taken};
use crate::queue::{MessageQueue, Parcel};

/// How long a message waits whose claim was dropped. Whatever ended its holder may end the next one.
pub(super) const INTERRUPTED_WAIT: Duration = Duration::from_secs(1);

/// What is open about a message because an earlier claim of it was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interruption {
    /// Nothing: none was.
    None,
    /// Its end may be on its record. No call was under way.
    BeforeCall,
    /// The outcome of its call.
    DuringCall,
}

/// One message taken out of the queue.
#[must_use = "the message waits again if its claim is dropped"]
pub struct Claim {
    /// The message, shared with its entry.
    pub parcel: Arc<Parcel>,
    /// Number of its recipients.
    pub recipients: u32,
    /// Calls to the provider that were started.
    pub attempts: u32,
    /// Whether one of them may have been accepted.
    pub acceptance: Acceptance,
    /// What an earlier claim that was dropped has left open.
    pub interruption: Interruption,
    /// Why it is not to be sent any more, if it was cancelled during an earlier claim.
    pub cancellation: Option<Cancellation>,
    queue: Arc<MessageQueue>,
    hold: Hold,
}

/// Whether a claim still has to give its message back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Held,
    Released,
}

impl Claim {
    pub(super) fn new(taken: Taken, queue: &Arc<MessageQueue>) -> Self {
        let Taken { parcel, recipients, attempts, acceptance, interruption, cancellation } = taken;
        Self {
            parcel,
            recipients,
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

    /// The message's id.
    pub fn id(&self) -> MessageId {
        self.parcel.id
    }

    /// The ready request to the provider, where the parcel has it.
    pub fn request(&self) -> Bytes {
        Bytes::from_owner(Request(Arc::clone(&self.parcel)))
    }

    /// Counts the call that is about to start. From here on, readers see `sending`.
    pub fn start_call(&mut self) -> Call {
        let (attempts, organisation) = self.queue.lock().start_call(self.parcel.id);
        self.attempts = attempts;
        Call { organisation, queue: Arc::clone(&self.queue) }
    }

    /// Takes back the count of a call that never started.
    pub fn not_called(&mut self) {
        self.attempts = self.queue.lock().not_called(self.parcel.id);
    }

    /// Forgets the message, which has reached a final state, and its body.
    pub fn finish(mut self) {
        self.hold = Hold::Released;
        self.queue.settle(self.parcel.id);
    }

    /// Puts the message back, due at `due`. If an event has proved in the meantime that it was sent,
    /// it is forgotten instead. If it was cancelled in the meantime, returns the claim and the end
    /// that the message is to have.
    pub fn put_back(self, due: Instant, acceptance: Acceptance) -> Option<(Self, Transition)> {
        self.give_back(|entries, id| entries.put_back(id, due, acceptance))
    }

    /// Puts the message back to where it was before its first call, as [`Claim::put_back`] does.
    pub fn put_back_as_new(self) -> Option<(Self, Transition)> {
        self.give_back(Entries::put_back_as_new)
    }

    fn give_back(
        mut self,
        put_back: impl FnOnce(&mut Entries, MessageId) -> PutBack,
    ) -> Option<(Self, Transition)> {
        let back = put_back(&mut self.queue.lock(), self.parcel.id);
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
            self.queue.interrupt(self.parcel.id);
        }
    }
}

// By hand: the request is the body, which must reach no log.
impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("id", &self.parcel.id).finish_non_exhaustive()
    }
}

/// The request of a shared parcel.
struct Request(Arc<Parcel>);

impl AsRef<[u8]> for Request {
    fn as_ref(&self) -> &[u8] {
        self.0.content.request().as_bytes()
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
