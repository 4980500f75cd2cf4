//! Acceptance: a message's record, its pending mark and its idempotency key in one transaction.

use tokio::sync::oneshot;

use crate::domain::clock_corrections::WindowTime;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::policy::IDEMPOTENCY_WINDOW;
use crate::domain::time::Timestamp;
use crate::metrics::organisations::Increment;
use crate::store::redb::damage::InRow;
use crate::store::redb::idempotency::KeyHash;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::message::IdempotencyRow;
use crate::store::redb::tables::{IDEMPOTENCY, IdKey, Rows};
use crate::store::redb::writer::{Batch, Operation, own_failure};
use crate::store::redb::{Shared, read_lock};
use crate::store::{Accepted, StoreError};

/// What the writer needs of a message's idempotency key.
pub(in crate::store) struct KeyClaim {
    pub(in crate::store) organisation: OrganisationId,
    pub(in crate::store) key: String,
    pub(in crate::store) hash: KeyHash,
    /// The time by which the windows of earlier keys are judged.
    pub(in crate::store) window_now: WindowTime,
}

/// The acceptance of one message.
pub(in crate::store) struct Accept<F> {
    pub(in crate::store) id: MessageId,
    pub(in crate::store) organisation: OrganisationId,
    pub(in crate::store) row: Vec<u8>,
    pub(in crate::store) created_at: Timestamp,
    pub(in crate::store) claim: Option<KeyClaim>,
    /// Run once the message is durable, whether or not its client still waits.
    pub(in crate::store) on_new: F,
    pub(in crate::store) decided: Option<Result<Accepted, StoreError>>,
    pub(in crate::store) reply: oneshot::Sender<Result<Accepted, StoreError>>,
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
            if let Some(earlier) = find_in_batch(batch, claim)? {
                return Ok(Accepted::Replayed(earlier));
            }
            let log_row = IdempotencyRow {
                organisation: claim.organisation.0,
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
        batch.accepted.push(self.id);
        batch.increments.push((self.organisation, Increment::Accepted));
        Ok(Accepted::New(self.id))
    }
}

/// The writer's own decision between new and replay: against the live keys and against those of
/// the batch at hand.
fn find_in_batch(batch: &Batch<'_>, claim: &KeyClaim) -> Result<Option<MessageId>, ReadError> {
    let claimed = batch.claimed.iter().filter(|(hash, ..)| *hash == claim.hash).map(|c| c.1);
    let candidates: Vec<MessageId> =
        claimed.chain(read_lock(&batch.shared.index).candidates(claim.hash)).collect();
    find_live(
        &batch.tables.idempotency,
        candidates,
        claim.organisation,
        &claim.key,
        &claim.window_now,
    )
}

/// The message that the key made, where it is still within the window.
pub(in crate::store) fn find_replay(
    shared: &Shared,
    organisation: OrganisationId,
    key: &str,
    window_now: &WindowTime,
) -> Result<Option<MessageId>, ReadError> {
    let candidates: Vec<MessageId> = {
        let index = read_lock(&shared.index);
        index.candidates(index.hasher().hash(organisation, key)).collect()
    };
    if candidates.is_empty() {
        return Ok(None);
    }
    shared.read(|transaction| {
        find_live(&transaction.open_table(IDEMPOTENCY)?, candidates, organisation, key, window_now)
    })
}

fn find_live(
    log: &impl redb::ReadableTable<IdKey, Rows>,
    candidates: Vec<MessageId>,
    organisation: OrganisationId,
    key: &str,
    window_now: &WindowTime,
) -> Result<Option<MessageId>, ReadError> {
    for id in candidates {
        let Some(row) = log.get(id.as_bytes())? else { continue };
        let row = IdempotencyRow::decode(row.value()).in_row(IDEMPOTENCY, id)?;
        let created_at = Timestamp::from_unix_millis(row.created_at);
        if row.organisation == organisation.0
            && row.key == key
            && !window_now.is_past(created_at, IDEMPOTENCY_WINDOW)
        {
            return Ok(Some(id));
        }
    }
    Ok(None)
}
