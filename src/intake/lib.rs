//! Intake: from a well-formed request of a known organisation to a durable message in the queue.
//!
//! Keeps the contract's order of checks: sender domain, suppression, replay, pause, limits,
//! capacity, store. It knows nothing of HTTP.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use pillarbox_domain::admission::{AdmissionError, Admitted, admit};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::id::{KeyId, MessageId, MessageIds, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{Organisation, PausedRequests};
use pillarbox_domain::request::{IdempotencyKey, OwnedIdempotencyKey, SendRequest};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::Exceeded;
use pillarbox_queue::{AcceptedMessage, EncodedRequest, MessageQueue, NoRoom};
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::in_flight::InFlight;
use pillarbox_ses::send::{RequestOptions, encode};
use pillarbox_store::{
    AcceptError, Accepted, DrainOrder, FIRST_WITH_TERMS, NewMessage, OrganisationFacts,
    SendingRight, Store, StoreError,
};

pub use batch::{BatchRefusal, PreparedBatch, RequestRefusal};

mod batch;

/// Reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The API key that the request came with is not valid any more.
    KeyEnded,
    /// The sender's domain is not verified for the organisation.
    UnverifiedDomain {
        /// Domain of the sender.
        domain: DomainName<'static>,
        /// Some of those from which the request may be sent.
        verified: Vec<DomainName<'static>>,
    },
    /// Its terms cannot be stored, because a node of an earlier version works on the database.
    TermsUnknown {
        /// The field that names them.
        field: &'static str,
    },
    /// The API key that the request came with is not for this sender domain.
    SenderForbidden {
        /// Domain of the sender.
        domain: DomainName<'static>,
    },
    /// A recipient is suppressed.
    Suppressed {
        /// Full name of the recipient's field.
        field: String,
    },
    /// An operator has paused the organisation, and its requests are refused.
    Paused,
    /// A limit of the organisation is reached.
    LimitReached(Exceeded),
    /// The byte budget of pending messages, or the organisation's share of it, is used up.
    QueueFull(NoRoom),
    /// The record could not be made durable.
    StorageUnavailable,
    /// The store did not say in time whether the record is durable.
    OutcomeOpen,
    /// The service is stopping, or an operator drains it.
    ShuttingDown,
    /// The store is damaged.
    Internal,
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable | StoreError::FileLost => Self::StorageUnavailable,
            StoreError::OutcomeOpen => Self::OutcomeOpen,
            StoreError::Damaged => Self::Internal,
        }
    }
}

impl From<AcceptError> for Refusal {
    fn from(error: AcceptError) -> Self {
        match error {
            AcceptError::Store(error) => error.into(),
            AcceptError::KeyEnded => Self::KeyEnded,
            AcceptError::LimitReached(exceeded) => Self::LimitReached(exceeded),
            AcceptError::UnverifiedDomain { domain, .. } => {
                Self::UnverifiedDomain { domain, verified: Vec::new() }
            }
        }
    }
}

/// Acceptance of messages: checks, encodes and stores them.
#[derive(Debug)]
pub struct Intake {
    store: Store,
    queue: Arc<MessageQueue>,
    clock: Clock,
    ids: MessageIds,
    options: RequestOptions,
    closed: AtomicBool,
    /// True while an operator drains this node.
    drained: AtomicBool,
    /// Acceptances whose message may still come into the queue.
    under_way: InFlight,
}

impl Intake {
    /// An intake into `queue`, whose messages have these options.
    pub fn new(
        store: Store,
        queue: Arc<MessageQueue>,
        clock: Clock,
        options: RequestOptions,
    ) -> Self {
        let ids = MessageIds::new();
        Self {
            store,
            queue,
            clock,
            ids,
            options,
            closed: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            under_way: InFlight::default(),
        }
    }

    /// Refuses new messages from now on; replays are still answered.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Refuses new messages as long as an operator drains this node; replays are still answered.
    pub fn drain(&self, drain: DrainOrder) {
        self.drained.store(drain == DrainOrder::Begin, Ordering::SeqCst);
    }

    /// True if new messages are refused, because the service is stopping or is drained.
    pub fn refuses_new(&self) -> bool {
        self.is_closed() || self.is_drained()
    }

    /// True if new messages are refused because an operator drains this node.
    pub fn is_drained(&self) -> bool {
        self.drained.load(Ordering::SeqCst)
    }

    /// True if new messages are refused because the service is stopping.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Waits until no acceptance is under way. Once closed, nothing comes into the queue after
    /// this.
    pub async fn cleared(&self) {
        self.under_way.cleared().await;
    }

    /// Checks a request, or says why not, and encodes what goes to the provider: the caller can let
    /// go of the request before it calls [`Intake::accept`]. `key` is the API key that it came
    /// with, if any. The log names `request_id` with the message's id, or that id for both if the
    /// request is known by it.
    pub async fn prepare<D: Display + Send + 'static>(
        &self,
        organisation: &Organisation,
        key: Option<KeyId>,
        request: SendRequest<'_>,
        request_id: Option<D>,
    ) -> Result<PreparedMessage, Refusal> {
        let right = self.sending_right(organisation, key)?;
        // Read before the facts: a suppression in between makes the message be checked again.
        let suppression_epoch = self.store.suppression_epoch();
        let facts = self.store.facts(organisation.id).by_right(&right);
        let admitted = self.admit(request, &facts).await?;
        // The record's is not the wall clock's time: if that is wrong, the new message could be
        // expired at once.
        let (created_at, window_now) = self.clock.record_and_window_time();
        if let Some(key) = admitted.idempotency_key()
            && let Some(id) = self.store.early_replay(organisation.id, key, window_now.clone())?
        {
            return Ok(PreparedMessage::Replayed(id));
        }
        let origin = Origin { organisation, right, suppression_epoch, request_id };
        let open = self.require_open(organisation.id, admitted.recipient_count());
        match open.and_then(|()| self.acceptance(&admitted, (created_at, window_now), origin)) {
            Ok(acceptance) => Ok(PreparedMessage::New(acceptance)),
            Err(refusal) => match admitted.idempotency_key().map(IdempotencyKey::into_owned) {
                None => Err(refusal),
                Some(key) => {
                    Ok(PreparedMessage::Refused { organisation: organisation.id, refusal, key })
                }
            },
        }
    }

    /// Accepts a message. When this returns an acceptance, the message is on disk. If the caller
    /// stops waiting, the message is accepted or not all the same.
    pub async fn accept(&self, message: PreparedMessage) -> Result<Accepted, Refusal> {
        match message {
            PreparedMessage::Replayed(id) => Ok(Accepted::Replayed(id)),
            PreparedMessage::Refused { organisation, refusal, key } => {
                self.replay_or(organisation, &key, refusal).await
            }
            PreparedMessage::New(acceptance) => Ok(self.store.accept(acceptance).await?),
        }
    }

    /// Admits a request whose terms every node can read.
    async fn admit<'r>(
        &self,
        request: SendRequest<'r>,
        facts: &OrganisationFacts<'_>,
    ) -> Result<Admitted<'r>, Refusal> {
        let admitted = admit(request, facts).await.map_err(refusal)?;
        if let Some(field) = admitted.field_of_terms()
            && !self.store.keep_nodes_off_before(FIRST_WITH_TERMS).await?.is_empty()
        {
            return Err(Refusal::TermsUnknown { field });
        }
        Ok(admitted)
    }

    /// The right of a request's key, which may have ended while the request was read. The
    /// acceptance checks it again.
    fn sending_right(
        &self,
        organisation: &Organisation,
        key: Option<KeyId>,
    ) -> Result<SendingRight, Refusal> {
        let clock = self.clock.clone();
        let right = self.store.sending_right(organisation.id, key, move || clock.now());
        right.ok_or(Refusal::KeyEnded)
    }

    /// Refuses new messages to so many recipients, together, if the operator has paused the
    /// organisation and refuses its requests, or if they would exceed a limit of it as far as this
    /// process knows: of a limit, the acceptance has the last word. A caller's copy of the organisation
    /// is as old as its request, so this asks the store.
    fn require_open(&self, organisation: OrganisationId, recipients: u64) -> Result<(), Refusal> {
        let pause = self.store.pause(organisation);
        if pause.is_some_and(|pause| pause.requests == PausedRequests::Refused) {
            return Err(Refusal::Paused);
        }
        let now = || self.clock.period_time();
        let exceeded = self.store.exceeded_limit(organisation, recipients, now);
        exceeded.map_or(Ok(()), |exceeded| Err(Refusal::LimitReached(exceeded)))
    }

    /// Encodes a new message and reserves its part of the byte budget.
    fn acceptance<D: Display + Send + 'static>(
        &self,
        admitted: &Admitted<'_>,
        (created_at, window_now): (Timestamp, WindowTime),
        origin: Origin<'_, D>,
    ) -> Result<NewMessage, Refusal> {
        let Origin { organisation, right, suppression_epoch, request_id } = origin;
        // Counted before the check: a concurrent close either sees this request or this request
        // sees the mark.
        let under_way = self.under_way.enter();
        if self.refuses_new() {
            return Err(Refusal::ShuttingDown);
        }
        let id = self.ids.next(created_at);
        let envelope = Envelope::from(admitted);
        let room = envelope.as_str().len();
        let request = encode(admitted, id, &organisation.name, &self.options, room);
        let request = EncodedRequest::new(request, &envelope);
        let reserved = self.queue.budget().reserve(organisation.id, request.len_bytes());
        let reservation = reserved.map_err(Refusal::QueueFull)?;
        // The body is in the arena before the commit: what is on disk as pending has one.
        let held = self.queue.hold(AcceptedMessage {
            id,
            kind: organisation.kind,
            key: right.key(),
            request,
            accepted_at: Instant::now(),
            suppression_epoch,
            reservation,
        });
        let held = held.map_err(|error| {
            tracing::error!(%error, "there is no memory for a message's body");
            Refusal::QueueFull(NoRoom::of_memory())
        })?;
        let queue = Arc::clone(&self.queue);
        let on_new = move || {
            match request_id {
                Some(request_id) => {
                    tracing::info!(target: "pillarbox::message", %id, %request_id, "queued");
                }
                None => {
                    tracing::info!(target: "pillarbox::message", %id, request_id = %id, "queued");
                }
            }
            queue.add(held);
            drop(under_way);
        };
        let organisation = organisation.id;
        let acceptance =
            NewMessage::new(id, organisation, admitted, created_at, window_now, on_new);
        Ok(acceptance.by_right(right))
    }

    /// A request that cannot be taken may still be a replay of one that is being committed now.
    async fn replay_or(
        &self,
        organisation: OrganisationId,
        key: &OwnedIdempotencyKey,
        refusal: Refusal,
    ) -> Result<Accepted, Refusal> {
        let window_now = self.clock.window_time();
        let replay = self.store.replay_after_commit(organisation, key.as_key(), window_now).await?;
        replay.map(Accepted::Replayed).ok_or(refusal)
    }
}

/// Origin of a message.
#[derive(Clone)]
struct Origin<'o, D> {
    organisation: &'o Organisation,
    /// The right by which it is admitted.
    right: SendingRight,
    /// The suppressions that it was checked against.
    suppression_epoch: u64,
    /// `None` if it is the message's id.
    request_id: Option<D>,
}

/// A message that passed every check and needs nothing of its request any more.
pub enum PreparedMessage {
    /// It is a replay.
    Replayed(MessageId),
    /// It cannot be taken, unless its key is that of a message that is being committed now.
    Refused {
        /// Organisation of the message.
        organisation: OrganisationId,
        /// Reason why it cannot be accepted.
        refusal: Refusal,
        /// Idempotency key of the message.
        key: OwnedIdempotencyKey,
    },
    /// It can be stored.
    New(NewMessage),
}

fn refusal(error: AdmissionError<StoreError>) -> Refusal {
    match error {
        AdmissionError::UnverifiedDomain { domain, verified } => {
            Refusal::UnverifiedDomain { domain, verified }
        }
        AdmissionError::SenderForbidden { domain } => Refusal::SenderForbidden { domain },
        AdmissionError::Suppressed { field } => Refusal::Suppressed { field },
        AdmissionError::Facts(error) => error.into(),
    }
}
