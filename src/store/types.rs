//! What the store is asked and what it answers, beyond the domain's own types.

use crate::domain::event::Event;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Message, Status};
use crate::domain::time::Timestamp;

/// A durable acceptance. Exists only after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// The message is new.
    New(MessageId),
    /// The idempotency key made this message before.
    Replayed(MessageId),
}

/// What the provider reports of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The message.
    pub message: MessageId,
    /// The provider's identifier for it. That there is a report proves its acceptance.
    pub ses_message_id: String,
    /// When the provider accepted it.
    pub accepted_at: Timestamp,
    /// What happened to recipients; nothing where the report only says that it was accepted.
    pub event: Option<Event>,
}

/// What a report came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is on the record, now or from an earlier time.
    Done,
    /// It is on the record, and the message is sent: a waiting retry must not happen.
    Sent,
    /// There is no such message.
    UnknownMessage,
}

/// Which messages to list.
#[derive(Debug, Clone, Default)]
pub struct MessageFilter {
    /// Only those accepted before this one.
    pub before: Option<MessageId>,
    /// Only this organisation's.
    pub organisation: Option<OrganisationId>,
    /// Only those with this stored status.
    pub status: Option<Status>,
}

impl MessageFilter {
    pub(in crate::store) fn matches(&self, message: &Message) -> bool {
        self.organisation.is_none_or(|organisation| organisation == message.organisation)
            && self.status.is_none_or(|status| status == message.status())
    }
}

/// What one step of the purge removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    /// Message records, each with its events.
    pub messages: usize,
    /// Idempotency keys.
    pub idempotency_keys: usize,
}

/// Whether the store takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Writable,
    /// The last commit failed and none has succeeded since.
    Refusing,
}
