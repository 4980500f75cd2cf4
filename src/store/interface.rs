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
use pillarbox_domain::message_terms::MessageDefaults;
use pillarbox_domain::organisation::{KeyRights, SenderStatus};
use pillarbox_domain::request::{IdempotencyKey, OwnedIdempotencyKey};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{
    Redelivery, SigningSecret, WaitingDelivery, Webhook, WebhookFormat, WebhookUrl,
};

/// Result of an operation: changed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The operation changed something.
    Made,
    /// The requested state was there before.
    None,
}

/// Program that a store belongs to. Neither program opens the store of the other.
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

/// Health of the store: whether it takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It takes writes.
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

/// Rule for accepting the messages of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchMode {
    /// All of them or none.
    Whole,
    /// Each that is not refused for a reason of its own.
    Partial,
}

impl BatchMode {
    /// Leaves the refusal of one message in its place, or makes it the refusal of a whole batch.
    pub fn each<T, E>(self, one: Result<T, E>) -> Result<Result<T, E>, E> {
        match self {
            Self::Whole => one.map(Ok),
            Self::Partial => Ok(one),
        }
    }
}

/// A message to be accepted. It holds copies of everything to be stored, and does not borrow from
/// the request.
pub struct NewMessage {
    pub(super) id: MessageId,
    pub(super) organisation: OrganisationId,
    pub(super) row: Vec<u8>,
    pub(super) created_at: Timestamp,
    pub(super) claim: Option<KeyClaim>,
    /// Number of its recipients, and the instant whose periods they count in.
    pub(super) recipients: u64,
    pub(super) counted_at: Timestamp,
    /// Domains of its other senders, besides that of its `from`.
    pub(super) other_senders: Vec<DomainName<'static>>,
    /// The right by which it was admitted, to be checked again.
    pub(super) right: Option<SendingRight>,
    /// Runs once the message is durable, whether or not its client still waits.
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
    /// if the caller has disconnected.
    pub fn new(
        id: MessageId,
        organisation: OrganisationId,
        admitted: &Admitted<'_>,
        created_at: Timestamp,
        window_now: impl Into<WindowTime>,
        on_new: impl FnOnce() + Send + 'static,
    ) -> Self {
        let window_now = window_now.into();
        let other_senders = admitted.other_senders().iter().cloned().map(DomainName::into_owned);
        let counted_at = window_now.corrected(created_at);
        let claim = |key| KeyClaim { key: IdempotencyKey::into_owned(key), window_now };
        Self {
            id,
            organisation,
            row: encode_accepted(admitted, organisation, created_at),
            created_at,
            claim: admitted.idempotency_key().map(claim),
            recipients: admitted.recipient_count(),
            counted_at,
            other_senders: other_senders.collect(),
            right: None,
            on_new: Box::new(on_new),
        }
    }

    /// The same message, to be accepted only if this right still holds.
    #[must_use]
    pub fn by_right(self, right: SendingRight) -> Self {
        Self { right: Some(right), ..self }
    }

    /// Checks the message's right again; `index` is its position in its request. A message without
    /// a right is taken. A reason that concerns only this message refuses all messages only if
    /// `mode` says so.
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
        let Some(domain) = senders.find(is_withdrawn) else { return Ok(Ok(())) };
        let domain = domain.clone().into_owned();
        mode.each(Err(AcceptError::UnverifiedDomain { index, domain }))
    }
}

/// Report of the provider about a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Reference to the message.
    pub message: Reference,
    /// The organisation's name in the report. If it is not the name of the message's organisation,
    /// the report is ignored.
    pub organisation: Option<String>,
    /// The provider's identifier for it. The report itself proves its acceptance.
    pub ses_message_id: String,
    /// Time at which the provider accepted it.
    pub accepted_at: Timestamp,
    /// The event for recipients; `None` if the report only says that the message was accepted.
    pub event: Option<Event>,
}

/// Way in which a report names its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// By our own id, which the message carried as a tag.
    Tag(MessageId),
    /// By the provider's identifier only.
    ProviderId,
}

/// Result of applying a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is on the record, now or from an earlier time.
    Done,
    /// It is on the record, and the message is sent: a waiting retry must not happen.
    Sent(MessageId),
    /// There is no message with the id in its tag, and there will be none. The event suppresses its
    /// recipients all the same if the organisation in its tag exists.
    UnknownMessage,
    /// The message is not the tagged organisation's. Nothing was changed.
    OtherOrganisation,
    /// No message is known by the provider's identifier. Its event, if it has one, is kept for a
    /// while, because the outcome that names it may be recorded later.
    Unmatched,
    /// The message's record cannot be read, and was not changed. The event suppresses its
    /// recipients all the same if the organisation in its tag exists.
    DamagedRecord,
}

/// A page of messages, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePage {
    /// Messages that were found. A page may be short, or empty, and not the last, because the cost
    /// of one read is bounded.
    pub messages: Vec<Message>,
    /// Message that those of the next page are older than; `None` at the end.
    pub next: Option<MessageId>,
    /// Number of rows that were checked.
    pub looked_at: usize,
}

/// Owner of a share of the listings. Many listings of one owner wait only for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lister {
    /// An organisation, which lists its own messages.
    Organisation(OrganisationId),
    /// The operators, for a list of any organisation.
    Operators,
}

/// A part of an organisation's feed, oldest entry first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    /// Entries. If there is none, there is nothing newer yet.
    pub entries: Vec<FeedEntry>,
    /// Position after which the next page begins.
    pub next: FeedPosition,
}

/// Scope of a suppression (`None` for all organisations) and its address: its place in a list.
pub type SuppressionKey = (Option<OrganisationId>, SuppressedAddress);

/// A page of suppressions, by scope and address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuppressionPage {
    /// Suppressions that can be read.
    pub suppressions: Vec<(Option<OrganisationId>, Suppression)>,
    /// Suppressions whose row cannot be read. They suppress all the same.
    pub damaged: Vec<SuppressionKey>,
    /// The last one of a full page, after which the next page starts.
    pub next: Option<SuppressionKey>,
}

/// An API key to be added.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    /// Label that the operator gives to it; may be empty.
    pub label: String,
    /// Time from which it lets nobody in; `None` if it has no end.
    pub expires_at: Option<Timestamp>,
    /// The hash of the key.
    pub hash: ApiKeyHash,
    /// Rights of the key.
    pub rights: KeyRights,
}

/// Largest number of endpoints of one organisation.
pub const MAX_WEBHOOKS_OF_ONE: usize = 20;

/// Largest number of endpoints of all organisations together.
pub const MAX_WEBHOOKS: usize = 1_000;

/// Largest number of alerts that are raised or wait to be posted. A list of more faults would help
/// nobody; metrics have all of them.
pub const MAX_ALERTS: usize = 1_000;

/// Setting of a node: whether it has a receiver of alerts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alerting {
    /// It has one: news for operators is kept, and the node may post it for all.
    On,
    /// It has none: news for operators is not kept.
    Off,
}

/// Endpoint to be added.
#[derive(Debug, Clone)]
pub struct NewWebhook {
    /// URL that the events are posted to.
    pub url: WebhookUrl,
    /// Types of the events that it receives.
    pub types: FeedTypes,
    /// Form of the events.
    pub format: WebhookFormat,
    /// Certificates against which its own is checked, as PEM.
    pub authority: Option<String>,
    /// Secret that signs its deliveries.
    pub secret: SigningSecret,
}

/// Result of adding an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookAdded {
    /// It is added, and receives events that are committed from now on.
    Added(Box<Webhook>),
    /// There is no such organisation.
    NoOrganisation,
    /// The organisation, or all together, have the most that there may be.
    TooMany,
}

/// Change of an endpoint's deliveries that becomes durable as one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Position up to which every event is delivered or in `waiting`; `None` to leave the cursor.
    pub cursor: Option<FeedPosition>,
    /// Deliveries that are to be tried again.
    pub waiting: Vec<WaitingDelivery>,
    /// Rows of deliveries that waited and were tried.
    pub tried: Vec<WaitingKey>,
    /// Deliveries that are not tried again.
    pub failed: Vec<Redelivery>,
    /// Time at which the endpoint answered that it wants no more events; `None` if it did not.
    pub gone: Option<Timestamp>,
}

/// Key of a delivery that waits: its time and its event's position.
pub type WaitingKey = (Timestamp, FeedPosition);

/// Result of recording deliveries with [`Acknowledgement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// The change is durable.
    Done,
    /// The cursor was moved or the endpoint removed meanwhile: nothing was changed.
    Outdated,
}

/// Deliveries that wait.
#[derive(Debug, Default)]
pub struct WaitingPage {
    /// By time, then by position.
    pub deliveries: Vec<WaitingDelivery>,
    /// Rows that no longer count, to be removed.
    pub void: Vec<WaitingKey>,
    /// Number of rows that were read.
    pub rows: usize,
}

/// A provider's document that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct DeadLetter {
    pub received_at: Timestamp,
    pub reason: String,
    /// Beginning of the document, at most `MAX_DOCUMENT_BYTES`.
    pub document: String,
    /// Length of the whole document, in bytes.
    pub length: usize,
}

impl DeadLetter {
    /// Largest part of a document that is kept, in bytes.
    pub const MAX_DOCUMENT_BYTES: usize = 8 * 1024;

    /// Identifier of the letter: letters and digits, and the same for the same document.
    pub fn id(&self) -> String {
        hex::encode(self.key())
    }

    /// Its key: the beginning of its document's digest.
    pub(super) fn key(&self) -> [u8; 16] {
        let digest = Sha256::digest(self.document.as_bytes());
        *digest.first_chunk().expect("a digest has 32 bytes")
    }

    /// Returns a dead letter with the part of the document that is kept.
    pub fn new(received_at: Timestamp, reason: impl Into<String>, document: &str) -> Self {
        let end = document.floor_char_boundary(Self::MAX_DOCUMENT_BYTES);
        let (reason, length) = (reason.into(), document.len());
        Self { received_at, reason, document: document[..end].to_owned(), length }
    }
}

/// Numbers of the provider's reports that wait in the store.
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
    /// Number of them.
    pub messages: u64,
    /// Time at which the last of them was found.
    pub last_at: Timestamp,
}

/// Numbers of rows that one step of the purge removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    /// Message records, each with its events.
    pub messages: usize,
    /// Idempotency keys.
    pub idempotency_keys: usize,
    /// Entries of the event feed.
    pub feed_entries: usize,
}

/// Largest number of verified domains in the refusal of a sender of another domain.
const NAMED_DOMAINS: usize = 5;

/// Facts of one organisation that admission reads from the store.
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
