//! Acceptance: a message's record, its pending mark and its idempotency key in one transaction.

use redb::ReadableTable;
use tokio::sync::oneshot;

use crate::domain::admission::Admitted;
use crate::domain::clock_corrections::WindowTime;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::policy::IDEMPOTENCY_WINDOW;
use crate::domain::request::IdempotencyKey;
use crate::domain::time::Timestamp;
use crate::organisation_counts::Increment;
use crate::store::batch::{Batch, Operation, own_failure};
use crate::store::damage::of_organisation;
use crate::store::error::{InRow, ReadError};
use crate::store::idempotency::KeyHash;
use crate::store::record::{IdempotencyRow, encode_accepted};
use crate::store::tables::IDEMPOTENCY;
use crate::store::{Health, Store, StoreError, read_lock};

/// A durable acceptance. Exists only after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// The message is new.
    New(MessageId),
    /// The idempotency key made this message before.
    Replayed(MessageId),
}

impl Store {
    /// Returns the message that an organisation's idempotency key made, if it still replays at
    /// `window_now`. Sees what is durable; needs neither space on disk nor the writer.
    pub fn replay(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        let candidates: Vec<MessageId> = {
            let index = read_lock(&self.shared.idempotency);
            index.candidates(index.hasher().hash(organisation, key.as_str())).collect()
        };
        if candidates.is_empty() {
            return Ok(None);
        }
        let window_now = window_now.into();
        let read = find(candidates, |id| {
            self.shared.database.read_row(IDEMPOTENCY, id.as_bytes(), |row| {
                is_live(id, row, organisation, key.as_str(), &window_now)
            })
        });
        self.checked(&IDEMPOTENCY, of_organisation(organisation), read)
    }

    /// As [`Store::replay`], after whatever is being committed now.
    pub async fn replay_after_commit(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        if self.health() == Health::Writable {
            // If that commit fails, what it held is as good as never asked for.
            let _ = self.writer.barrier().await;
        }
        self.replay(organisation, key, window_now)
    }

    /// Accepts a message: its record, its pending mark and its idempotency key become durable
    /// together. If the key made a message before, that one is the answer and nothing is written.
    /// `on_new` runs once a new message is durable, also if the caller is gone.
    ///
    /// What is to be stored is copied at once: while this waits, it needs nothing of the request.
    pub fn accept<'s, F: FnOnce() + Send + 'static, W: Into<WindowTime>>(
        &'s self,
        id: MessageId,
        organisation: OrganisationId,
        admitted: &Admitted<'_>,
        created_at: Timestamp,
        window_now: W,
        on_new: F,
    ) -> impl Future<Output = Result<Accepted, StoreError>> + Send + use<'s, F, W> {
        let claim = admitted.idempotency_key().map(|key| KeyClaim {
            key: key.as_str().to_owned(),
            hash: read_lock(&self.shared.idempotency).hasher().hash(organisation, key.as_str()),
            window_now: window_now.into(),
        });
        let (reply, answer) = oneshot::channel();
        let row = encode_accepted(admitted, organisation, created_at);
        let accept =
            Accept { id, organisation, row, created_at, claim, on_new, decided: None, reply };
        async move {
            match self.health() {
                Health::Writable => {}
                Health::Refusing => return Err(StoreError::Unavailable),
                Health::FileLost(_) => return Err(StoreError::FileLost),
            }
            self.writer.submit(Box::new(accept)).await?;
            answer.await.map_err(|_| StoreError::Unavailable)?
        }
    }
}

/// A message's idempotency key, as the writer needs it.
struct KeyClaim {
    key: String,
    hash: KeyHash,
    /// The time by which the windows of earlier keys are judged.
    window_now: WindowTime,
}

/// The acceptance of one message.
struct Accept<F> {
    id: MessageId,
    organisation: OrganisationId,
    row: Vec<u8>,
    created_at: Timestamp,
    claim: Option<KeyClaim>,
    /// Run once the message is durable, whether or not its client still waits.
    on_new: F,
    decided: Option<Result<Accepted, StoreError>>,
    reply: oneshot::Sender<Result<Accepted, StoreError>>,
}

impl<F: FnOnce() + Send> Operation for Accept<F> {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), redb::Error> {
        self.decided = Some(own_failure(self.decide(batch), batch.shared)?);
        Ok(())
    }

    fn settle(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { decided, on_new, reply, .. } = *self;
        let answer = outcome.and_then(|()| decided.unwrap_or(Err(StoreError::Unavailable)));
        if let Ok(Accepted::New(_)) = answer {
            on_new();
        }
        // The client may be gone; the message is accepted all the same.
        let _ = reply.send(answer);
    }

    fn weight(&self) -> usize {
        self.row.len()
    }
}

impl<F> Accept<F> {
    fn decide(&self, batch: &mut Batch<'_>) -> Result<Accepted, ReadError> {
        if let Some(claim) = &self.claim {
            if let Some(earlier) = self.find_earlier(batch, claim)? {
                return Ok(Accepted::Replayed(earlier));
            }
            let log_row = IdempotencyRow {
                organisation: self.organisation.0,
                created_at: self.created_at.unix_millis(),
                key: &claim.key,
            };
            batch.tables.idempotency.insert(self.id.as_bytes(), log_row.encode().as_slice())?;
            batch.claimed.push((claim.hash, self.id));
        }
        batch.tables.messages.insert(self.id.as_bytes(), self.row.as_slice())?;
        batch.tables.by_organisation.insert((self.organisation.0, *self.id.as_bytes()), ())?;
        batch.tables.pending.insert(self.id.as_bytes(), ())?;
        batch.tables.note_lead(self.id, self.created_at)?;
        batch.increments.push((self.organisation, Increment::Accepted));
        Ok(Accepted::New(self.id))
    }

    /// The writer's own decision between new and replay: against the live keys and against those
    /// of the batch at hand.
    fn find_earlier(
        &self,
        batch: &Batch<'_>,
        claim: &KeyClaim,
    ) -> Result<Option<MessageId>, ReadError> {
        let claimed = batch.claimed.iter().filter(|(hash, _)| *hash == claim.hash).map(|c| c.1);
        let candidates: Vec<MessageId> =
            claimed.chain(read_lock(&batch.shared.idempotency).candidates(claim.hash)).collect();
        find(candidates, |id| {
            let row = batch.tables.idempotency.get(id.as_bytes())?;
            let row = row.as_ref().map(redb::AccessGuard::value);
            is_live(id, row, self.organisation, &claim.key, &claim.window_now)
        })
    }
}

/// Finds the first candidate that `is_it` is true for.
fn find(
    candidates: Vec<MessageId>,
    is_it: impl Fn(MessageId) -> Result<bool, ReadError>,
) -> Result<Option<MessageId>, ReadError> {
    for id in candidates {
        if is_it(id)? {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Returns true if a message's row says that the key made it, and it is still within the window.
fn is_live(
    id: MessageId,
    row: Option<&[u8]>,
    organisation: OrganisationId,
    key: &str,
    window_now: &WindowTime,
) -> Result<bool, ReadError> {
    let Some(row) = row else { return Ok(false) };
    let row = IdempotencyRow::decode(row).in_row(IDEMPOTENCY, id)?;
    let created_at = Timestamp::from_unix_millis(row.created_at);
    Ok(row.organisation == organisation.0
        && row.key == key
        && !window_now.is_past(created_at, IDEMPOTENCY_WINDOW))
}
