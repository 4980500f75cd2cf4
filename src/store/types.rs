//! What the store is asked and what it answers, beyond the domain's own types.

use crate::domain::api_key::ApiKeyHash;
use crate::domain::event::{Event, EventType};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Message, Status};
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::domain::time::Timestamp;
use crate::store::redb::dead_letter;

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
    /// Which message.
    pub message: Reference,
    /// The organisation's name as the report has it; one that is not the message's own makes the
    /// report count for nothing.
    pub organisation: Option<String>,
    /// The provider's identifier for it. That there is a report proves its acceptance.
    pub ses_message_id: String,
    /// When the provider accepted it.
    pub accepted_at: Timestamp,
    /// What happened to recipients; nothing where the report only says that it was accepted.
    pub event: Option<Event>,
}

/// How a report names its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// By our own id, which the message carried as a tag.
    Tag(MessageId),
    /// By the provider's identifier alone.
    ProviderId,
}

/// What a report came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is on the record, now or from an earlier time.
    Done,
    /// It is on the record, and the message is sent: a waiting retry must not happen.
    Sent(MessageId),
    /// There is no message with the id in its tag, and there will be none. Whom its event
    /// suppresses, it suppresses all the same if the organisation in its tag exists.
    UnknownMessage,
    /// The message is not the tagged organisation's. Nothing was changed.
    OtherOrganisation,
    /// No message is known by the provider's identifier. Its event, if it has one, is kept for a
    /// while in case the outcome that names it is recorded yet.
    Unmatched,
    /// The message's record cannot be read, and was not changed. Whom its event suppresses, it
    /// suppresses all the same if the organisation in its tag exists.
    DamagedRecord,
}

/// A provider's document that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// When it arrived.
    pub received_at: Timestamp,
    /// Why it could not be read.
    pub reason: String,
    /// Its beginning.
    pub document: String,
    /// How long all of it was, in bytes.
    pub length: usize,
}

impl DeadLetter {
    /// The most of a document that is kept, in bytes.
    pub const MAX_DOCUMENT_BYTES: usize = 8 * 1024;

    /// Tells it from others: letters and digits, and the same for the same document.
    pub fn id(&self) -> String {
        dead_letter::hexadecimal(&dead_letter::key(self))
    }

    /// A dead letter with as much of the document as is kept.
    pub fn new(received_at: Timestamp, reason: impl Into<String>, document: &str) -> Self {
        let end = document.floor_char_boundary(Self::MAX_DOCUMENT_BYTES);
        let (reason, length) = (reason.into(), document.len());
        Self { received_at, reason, document: document[..end].to_owned(), length }
    }
}

/// What of the provider's reports waits in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventBacklog {
    /// Events whose message has no record; each is kept for a day.
    pub unmatched: u64,
    /// Documents that could not be read.
    pub dead_letters: u64,
}

/// Whose a suppression is, an organisation's or everybody's, and its address: its place in a list.
pub type SuppressionKey = (Option<OrganisationId>, SuppressedAddress);

/// A page of suppressions, by scope and address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuppressionPage {
    /// Those that can be read.
    pub suppressions: Vec<(Option<OrganisationId>, Suppression)>,
    /// Those whose row cannot be read. They suppress all the same.
    pub damaged: Vec<SuppressionKey>,
    /// The last one of a full page: where the next page starts.
    pub next: Option<SuppressionKey>,
}

/// Which messages to list. What is not given excludes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Only those accepted before this one.
    pub before: Option<MessageId>,
    /// Only this organisation's.
    pub organisation: Option<OrganisationId>,
    /// Only those with this stored status.
    pub status: Option<Status>,
    /// Only those whose latest event is of this type.
    pub last_event: Option<EventType>,
    /// Only those with this recipient.
    pub recipient: Option<SuppressedAddress>,
    /// Only those accepted at this instant or after it.
    pub created_from: Option<Timestamp>,
    /// Only those accepted before this instant.
    pub created_before: Option<Timestamp>,
}

/// A page of messages, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePage {
    /// Those found. A page may be short, or empty, and not the last: what one read may cost is
    /// bounded.
    pub messages: Vec<Message>,
    /// Where to go on: the message that the next page's are to be older than. Nothing at the end.
    pub next: Option<MessageId>,
}

impl MessageFilter {
    pub(in crate::store) fn matches(&self, message: &Message) -> bool {
        self.organisation.is_none_or(|organisation| organisation == message.organisation)
            && self.status.is_none_or(|status| status == message.status())
            && self.last_event.is_none_or(|wanted| is_last_event(wanted, message))
            && self.created_from.is_none_or(|from| from <= message.created_at)
            && self.created_before.is_none_or(|before| message.created_at < before)
            && self.recipient.as_ref().is_none_or(|wanted| is_recipient(wanted, message))
    }
}

/// An API key to be added.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    /// What the operator calls it; may be empty.
    pub label: String,
    /// When it stops letting anybody in; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// The hash of the key.
    pub hash: ApiKeyHash,
}

fn is_last_event(wanted: EventType, message: &Message) -> bool {
    message.last_event.is_some_and(|last| last.event_type == wanted)
}

fn is_recipient(wanted: &SuppressedAddress, message: &Message) -> bool {
    let mut recipients = message.recipients.iter();
    recipients.any(|given| SuppressedAddress::of_recipient(given).as_ref() == Some(wanted))
}

/// Messages that failed because their body was lost with the process that held it, and that no
/// operator has acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostMessages {
    /// How many.
    pub messages: u64,
    /// When the last of them was found.
    pub last_at: Timestamp,
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
    /// The data file is not the one that is open: only outcomes of messages are written.
    FileLost(FileLoss),
}

/// What became of the data file of an open store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileLoss {
    /// There is no file at its path.
    Gone,
    /// There is another file at its path.
    Replaced,
    /// Another process wrote to it. Nothing is written any more, not even outcomes.
    WrittenOver,
}
