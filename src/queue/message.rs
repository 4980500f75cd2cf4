//! Pending messages: what the queue keeps of each, and what it reads from the arena.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::Reservation;
use crate::lanes::DomainHash;
use pillarbox_body_store::{Body, LiveState};
use pillarbox_domain::attempt::RequestBody;
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::message_terms::Priority;
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_runtime::text_buffer::TextBuffer;

/// The longest request that is read into memory for its call.
const READ_AT_ONCE: usize = 256 * 1024;

/// A message that is to be accepted.
pub struct AcceptedMessage {
    /// Id of the message.
    pub id: MessageId,
    /// Kind of its organisation.
    pub kind: OrganisationKind,
    /// The API key that posted it, if it came with one.
    pub key: Option<KeyId>,
    /// Its ready request to the provider, and its envelope.
    pub request: EncodedRequest,
    /// Time of acceptance.
    pub accepted_at: Instant,
    /// The suppressions that it was checked against.
    pub suppression_epoch: u64,
    /// Its organisation's share of the byte budget that it takes up, released with it.
    pub reservation: Reservation,
}

/// The ready request of a message to the provider and the message's envelope, as one text.
pub struct EncodedRequest {
    pub(super) text: TextBuffer,
    /// Bytes of the request; the envelope begins there.
    pub(super) request_len: usize,
    pub(super) sender_domain: DomainHash,
    pub(super) recipients: u32,
    pub(super) priority: Priority,
    pub(super) expires_in: Option<Duration>,
}

impl EncodedRequest {
    /// Encoded request of a message with this envelope. Copies the request only if it has no room
    /// for the envelope.
    pub fn new(request: impl Into<TextBuffer>, envelope: &Envelope<'_>) -> Self {
        let mut request = request.into();
        let request_len = request.len();
        request.push_str(envelope.as_str());
        Self {
            text: request,
            request_len,
            sender_domain: DomainHash::of(&envelope.sender_domain()),
            recipients: envelope.recipient_count(),
            priority: envelope.priority(),
            expires_in: envelope.expires_in(),
        }
    }

    /// Bytes of the request and the envelope together.
    pub fn len_bytes(&self) -> usize {
        self.text.len()
    }
}

/// A message whose body is in the arena, before it comes into the queue.
#[derive(Debug)]
pub struct HeldMessage {
    pub(super) message: PendingMessage,
    pub(super) reservation: Reservation,
}

/// A message to be sent. Its body is in the arena as long as any clone of this lives.
#[derive(Debug, Clone)]
pub struct PendingMessage {
    /// Id of the message.
    pub id: MessageId,
    /// Organisation of the message.
    pub organisation: OrganisationId,
    /// Kind of its organisation, which decides who takes its calls.
    pub kind: OrganisationKind,
    /// Number of its recipients.
    pub recipients: u32,
    /// Its class among those of its organisation.
    pub priority: Priority,
    /// Time of acceptance.
    pub accepted_at: Instant,
    /// Time after its acceptance for which it may be sent; `None` if `retry_for` applies.
    pub expires_in: Option<Duration>,
    /// The suppressions that it was checked against; `None` if that was in an earlier process.
    pub suppression_epoch: Option<u64>,
    pub(super) sender_domain: DomainHash,
    pub(super) body: Body,
}

impl PendingMessage {
    /// Time at which it has to be sent, if it has to be within `retry_for` of its acceptance.
    pub fn end(&self, retry_for: Duration) -> Instant {
        self.accepted_at + self.expires_in.map_or(retry_for, |expires_in| expires_in.min(retry_for))
    }

    /// Reads the sender's domain and the recipients.
    pub fn envelope(&self) -> io::Result<Envelope<'static>> {
        self.body.envelope().map(Envelope::from_text)
    }

    /// Reads the ready request to the provider. A large one is read later, part by part.
    pub fn request(&self) -> io::Result<RequestBody> {
        if self.body.request_len() > READ_AT_ONCE {
            return Ok(RequestBody::Parts(Arc::new(self.body.clone())));
        }
        self.body.request().map(Bytes::from).map(RequestBody::Whole)
    }

    /// Writes down, for a later process, how the message stands.
    pub(super) fn set_live(&self, live: &LiveState) {
        if let Err(error) = self.body.set_live(self.id, live) {
            tracing::error!(id = %self.id, %error, "the state of a message could not be kept");
        }
    }
}
