//! Types of the store's interface: what its methods take and return.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::directory::OrganisationIndex;
use crate::organisation_counts::OrganisationCounts;
use crate::record::{decode_message, encode_accepted};
use crate::sending_right::SendingRight;
use crate::{AcceptError, FileLoss, Store, StoreError};
use pillarbox_domain::admission::{Admitted, Facts};
use pillarbox_domain::api_key::ApiKeyHash;
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::event::Event;
use pillarbox_domain::feed::{FeedEntry, FeedPosition, FeedTypes};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::mailbox::{DomainName, Mailbox};
use pillarbox_domain::message::Message;
use pillarbox_domain::organisation::{KeyRights, SenderStatus};
use pillarbox_domain::request::{IdempotencyKey, OwnedIdempotencyKey};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression};
use pillarbox_domain::terms::MessageDefaults;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{
    Redelivery, SigningSecret, WaitingDelivery, Webhook, WebhookFormat, WebhookUrl,
};

/// Whether an operation changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It did.
    Made,
    /// All was as asked for before.
    None,
}

/// Program that a store belongs to. Neither takes the other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOwner {
    /// The service.
    Service,
    /// `pillarbox dev`. Its store has a mark.
    Dev,
}

impl StoreOwner {
    /// Name of the only organisation of a data file that `dev` made before there were marks.
    pub const ORGANISATION_OF_DEV: &str = "dev";
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

/// A durable acceptance. Exists only after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// The message is new.
    New(MessageId),
    /// The idempotency key made this message before.
    Replayed(MessageId),
}

impl Accepted {
    /// The message's id, new or not.
    pub const fn id(&self) -> MessageId {
        match self {
            Self::New(id) | Self::Replayed(id) => *id,
        }
    }
}

/// How the messages of a batch are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchMode {
    /// All of them or none.
    Whole,
    /// Each that is not refused for a reason of its own.
    Partial,
}

impl BatchMode {
    /// Leaves the refusal of one message in its place, or makes it that of a whole batch.
    pub fn each<T, E>(self, one: Result<T, E>) -> Result<Result<T, E>, E> {
        match self {
            Self::Whole => one.map(Ok),
            Self::Partial => Ok(one),
        }
    }
}

/// A message to be accepted. All that is to be stored is copied: it needs nothing of the request.
pub struct NewMessage {
    pub(super) id: MessageId,
    pub(super) organisation: OrganisationId,
    pub(super) row: Vec<u8>,
    pub(super) created_at: Timestamp,
    pub(super) claim: Option<KeyClaim>,
    /// How many recipients it has, and the instant whose periods they count in.
    pub(super) recipients: u64,
    pub(super) counted_at: Timestamp,
    /// Domains, besides that of its `from`, that it names as its senders'.
    pub(super) other_senders: Vec<DomainName<'static>>,
    /// The right by which it was admitted, to be looked at again.
    pub(super) right: Option<SendingRight>,
    /// Run once the message is durable, whether or not its client still waits.
    pub(super) on_new: Box<dyn FnOnce() + Send>,
}

/// A message's idempotency key, as the store needs it.
pub(super) struct KeyClaim {
    pub(super) key: OwnedIdempotencyKey,
    /// The time by which the windows of earlier keys are judged.
    pub(super) window_now: WindowTime,
}

impl NewMessage {
    /// A message that is ready to be accepted. `on_new` runs once it is durable as a new one, also
    /// if the caller is gone.
    pub fn new(
        id: MessageId,
        organisation: OrganisationId,
        admitted: &Admitted<'_>,
        created_at: Timestamp,
        window_now: impl Into<WindowTime>,
        on_new: impl FnOnce() + Send + 'static,
    ) -> Self {
        let window_now = window_now.into();
        let counted_at = window_now.corrected(created_at);
        let recipients = admitted.recipient_count();
        let claim = admitted
            .idempotency_key()
            .map(|key| KeyClaim { key: IdempotencyKey::into_owned(key), window_now });
        let row = encode_accepted(admitted, organisation, created_at);
        let other_senders = admitted.other_senders().iter().cloned().map(DomainName::into_owned);
        let (other_senders, on_new) = (other_senders.collect(), Box::new(on_new));
        Self {
            id,
            organisation,
            row,
            created_at,
            claim,
            recipients,
            counted_at,
            other_senders,
            right: None,
            on_new,
        }
    }

    /// The same message, to be accepted only if this right still holds.
    #[must_use]
    pub fn by_right(self, right: SendingRight) -> Self {
        Self { right: Some(right), ..self }
    }

    /// Looks at the message's right again; `index` is its position in its request. A message without
    /// one is taken. What concerns the message alone is the refusal of all only if `mode` says so.
    pub(super) fn check_right(
        &self,
        mode: BatchMode,
        index: usize,
        directory: &OrganisationIndex,
    ) -> Result<Result<(), AcceptError>, AcceptError> {
        let Some(right) = &self.right else { return Ok(Ok(())) };
        if right.has_ended(directory) {
            return Err(AcceptError::KeyEnded);
        }
        if !right.is_outdated(directory) {
            return Ok(Ok(()));
        }
        let record = decode_message(self.id, &self.row).map_err(|_| StoreError::Damaged)?;
        let from = Mailbox::parse_stored(&record.from).map_err(|_| StoreError::Damaged)?;
        let mut senders = [from.address().domain()].into_iter().chain(&self.other_senders);
        let is_withdrawn = |domain: &&DomainName<'_>| {
            directory.sender_status(self.organisation, domain.as_str()) != SenderStatus::Verified
        };
        match senders.find(is_withdrawn) {
            None => Ok(Ok(())),
            Some(domain) => {
                let domain = domain.clone().into_owned();
                mode.each(Err(AcceptError::UnverifiedDomain { index, domain }))
            }
        }
    }
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

/// A page of messages, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePage {
    /// Those found. A page may be short, or empty, and not the last: what one read may cost is
    /// bounded.
    pub messages: Vec<Message>,
    /// Where to go on: the message that the next page's are to be older than. Nothing at the end.
    pub next: Option<MessageId>,
    /// How many rows were looked at.
    pub looked_at: usize,
}

/// Whose share of the listings one takes: many of one lister's wait for each other alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lister {
    /// An organisation, which lists its own messages.
    Organisation(OrganisationId),
    /// The operators, whichever organisation they look at.
    Operators,
}

/// A part of an organisation's feed, oldest entry first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    /// Entries. If there is none, there is nothing newer yet.
    pub entries: Vec<FeedEntry>,
    /// Where to go on.
    pub next: FeedPosition,
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

/// An API key to be added.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    /// What the operator calls it; may be empty.
    pub label: String,
    /// When it stops letting anybody in; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// The hash of the key.
    pub hash: ApiKeyHash,
    /// What it may be used for.
    pub rights: KeyRights,
}

/// The most endpoints of one organisation.
pub const MAX_WEBHOOKS_OF_ONE: usize = 20;

/// The most endpoints of all organisations together.
pub const MAX_WEBHOOKS: usize = 1_000;

/// The most alerts that are raised or wait to be posted. A node that has more to tell has so many
/// faults that a list of them helps nobody; metrics have all.
pub const MAX_ALERTS: usize = 1_000;

/// Whether a node has a receiver of alerts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alerting {
    /// It has one: news for operators is kept, and the node may post it for all.
    On,
    /// It has none.
    Off,
}

/// Endpoint to be added.
#[derive(Debug, Clone)]
pub struct NewWebhook {
    /// Its address.
    pub url: WebhookUrl,
    /// Types of the events that it is told of.
    pub types: FeedTypes,
    /// Form of the events.
    pub format: WebhookFormat,
    /// Certificates against which its own is checked, as PEM.
    pub authority: Option<String>,
    /// Secret that signs.
    pub secret: SigningSecret,
}

/// Result of adding an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookAdded {
    /// It is there, and is told of what is committed from now on.
    Added(Box<Webhook>),
    /// There is no such organisation.
    NoOrganisation,
    /// The organisation, or all together, have the most that there may be.
    TooMany,
}

/// Change of an endpoint's deliveries that becomes durable as one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Position up to which every event is delivered or in `waiting`; `None` to leave the cursor.
    pub cursor: Option<FeedPosition>,
    /// Deliveries that are to be tried again.
    pub waiting: Vec<WaitingDelivery>,
    /// Rows of deliveries that waited and were tried.
    pub tried: Vec<WaitingKey>,
    /// Deliveries that are not tried again.
    pub failed: Vec<Redelivery>,
    /// Time at which the endpoint answered that it wants no more, if it did.
    pub gone: Option<Timestamp>,
}

/// Key of a delivery that waits: its time and its event's position.
pub type WaitingKey = (Timestamp, FeedPosition);

/// Result of a [`Settlement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is durable.
    Done,
    /// The cursor was moved or the endpoint removed meanwhile: nothing was changed.
    Outdated,
}

/// Deliveries that wait.
#[derive(Debug, Default)]
pub struct WaitingPage {
    /// By time, then by position.
    pub deliveries: Vec<WaitingDelivery>,
    /// Rows that do not count any more, to be removed.
    pub void: Vec<WaitingKey>,
    /// How many rows were read.
    pub rows: usize,
}

/// A provider's document that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct DeadLetter {
    pub received_at: Timestamp,
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
        hex::encode(self.key())
    }

    /// Its key: the beginning of its document's digest.
    pub(super) fn key(&self) -> [u8; 16] {
        let digest = Sha256::digest(self.document.as_bytes());
        *digest.first_chunk().expect("a digest has 32 bytes")
    }

    /// A dead letter with as much of the document as is kept.
    pub fn new(received_at: Timestamp, reason: impl Into<String>, document: &str) -> Self {
        let end = document.floor_char_boundary(Self::MAX_DOCUMENT_BYTES);
        let (reason, length) = (reason.into(), document.len());
        Self { received_at, reason, document: document[..end].to_owned(), length }
    }
}

/// What of the provider's reports waits in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventBacklog {
    /// Events whose message has no record; each is kept for a day.
    #[serde(rename = "unmatchedWaiting")]
    pub unmatched: u64,
    /// Documents that could not be read.
    pub dead_letters: u64,
}

/// Counts of organisations.
pub type CountsByOrganisation = BTreeMap<OrganisationId, OrganisationCounts>;

/// Counts of steps that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Counts of all organisations together, step by step.
    pub total: Vec<OrganisationCounts>,
    /// Counts of those with the most mail, step by step.
    pub organisations: BTreeMap<OrganisationId, Vec<OrganisationCounts>>,
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
    /// Entries of the event feed.
    pub feed_entries: usize,
}

/// How many verified domains are named to whoever sends from another one.
const NAMED_DOMAINS: usize = 5;

/// What admission asks of the store about one organisation.
#[derive(Debug, Clone, Copy)]
pub struct OrganisationFacts<'a> {
    pub(super) store: &'a Store,
    pub(super) organisation: OrganisationId,
    /// Right of the request, if it is limited.
    pub(super) right: Option<&'a SendingRight>,
}

impl<'a> OrganisationFacts<'a> {
    /// Returns the same, for a request that has this right.
    #[must_use]
    pub const fn by_right(self, right: &'a SendingRight) -> Self {
        Self { right: Some(right), ..self }
    }
}

impl Facts for OrganisationFacts<'_> {
    type Error = StoreError;

    fn is_verified(&self, domain: &DomainName<'_>) -> bool {
        self.store.sender_status(self.organisation, domain) == SenderStatus::Verified
    }

    fn verified_domains(&self) -> Vec<DomainName<'static>> {
        let allows = |domain: &DomainName<'_>| self.allows_sender(domain);
        self.store.verified_domains(self.organisation, NAMED_DOMAINS, allows)
    }

    fn allows_sender(&self, domain: &DomainName<'_>) -> bool {
        self.right.is_none_or(|right| right.allows_sender(domain))
    }

    fn defaults(&self) -> MessageDefaults {
        self.right.map_or_else(MessageDefaults::default, SendingRight::defaults)
    }

    async fn is_suppressed(&self, address: &SuppressedAddress) -> Result<bool, StoreError> {
        self.store.is_suppressed(self.organisation, address).await
    }
}
