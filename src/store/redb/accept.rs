//! Acceptance: a message's record, its pending mark and its idempotency key in one transaction.

use std::collections::HashSet;

use tokio::sync::oneshot;

use crate::interface::KeyClaim;
use crate::locks::read_lock;
use crate::organisation_counts::Increment;
use crate::record::IdempotencyRow;
use crate::redb::RedbStore;
use crate::redb::batch::{Batch, MESSAGE_WEIGHT, Operation, own_failure};
use crate::redb::error::{InRow, ReadError};
use crate::redb::idempotency::KeyHash;
use crate::redb::tables::IDEMPOTENCY;
use crate::{AcceptError, Accepted, BatchMode, NewMessage, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::limits::IDEMPOTENCY_WINDOW;
use pillarbox_domain::request::IdempotencyKey;
use pillarbox_domain::time::Timestamp;

impl RedbStore {
    pub(crate) fn replay(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        let candidates: Vec<MessageId> = {
            let index = read_lock(&self.shared.idempotency);
            index.candidates(index.hash(organisation, key.as_str())).collect()
        };
        if candidates.is_empty() {
            return Ok(None);
        }
        let window_now = window_now.into();
        let read = find(candidates, |id| {
            self.shared.database.read_row(IDEMPOTENCY, id.as_bytes(), |row| {
                is_live(id, row, organisation, key, &window_now)
            })
        });
        self.checked("idempotency", format_args!("of organisation {}", organisation.0), read)
    }

    pub(crate) async fn accept_all(
        &self,
        acceptances: Vec<NewMessage>,
        mode: BatchMode,
    ) -> Result<Answers, AcceptError> {
        let (reply, answer) = oneshot::channel();
        self.writer.submit(Box::new(Accept { acceptances, mode, decided: None, reply })).await?;
        answer.await.map_err(|_| StoreError::Unavailable)?
    }
}

/// Answers to the messages of a request, in their order.
type Answers = Vec<Result<Accepted, AcceptError>>;

/// The acceptance of the messages of one request.
struct Accept {
    acceptances: Vec<NewMessage>,
    mode: BatchMode,
    decided: Option<Result<Answers, AcceptError>>,
    reply: oneshot::Sender<Result<Answers, AcceptError>>,
}

impl Operation for Accept {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), redb::Error> {
        let decided = own_failure(self.decide(batch), batch.shared)?;
        self.decided = Some(decided.unwrap_or_else(|failure| Err(failure.into())));
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { acceptances, decided, reply, .. } = *self;
        let answer = outcome
            .map_err(AcceptError::from)
            .and_then(|()| decided.unwrap_or(Err(StoreError::Unavailable.into())));
        for (acceptance, accepted) in acceptances.into_iter().zip(answer.iter().flatten()) {
            if let Ok(Accepted::New(_)) = accepted {
                (acceptance.on_new)();
            }
        }
        // The caller may have disconnected; the messages are accepted all the same.
        let _ = reply.send(answer);
    }

    fn weight(&self) -> usize {
        self.acceptances.iter().map(|acceptance| acceptance.row.len()).sum()
    }

    fn messages(&self) -> usize {
        self.acceptances.len().max(self.weight() / MESSAGE_WEIGHT)
    }
}

impl Accept {
    fn check_rights(&self, batch: &Batch<'_>) -> Result<Vec<Result<(), AcceptError>>, AcceptError> {
        let directory = batch.shared.memory.directory.load();
        let all = self.acceptances.iter().enumerate();
        all.map(|(index, one)| one.check_right(self.mode, index, &directory)).collect()
    }

    /// Decides on all messages whose right holds, or returns the reason that refuses all: an ended
    /// right, or the limit of the organisation that the new ones would exceed together. Damaged rows
    /// and that limit must be found before the first write.
    fn decide(&self, batch: &mut Batch<'_>) -> Result<Result<Answers, AcceptError>, ReadError> {
        let rights = match self.check_rights(batch) {
            Ok(rights) => rights,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut keys = HashSet::new();
        let mut earlier = Vec::with_capacity(self.acceptances.len());
        let mut recipients = 0;
        for (acceptance, right) in self.acceptances.iter().zip(rights) {
            if let Err(refused) = right {
                earlier.push(Err(refused));
                continue;
            }
            let found = acceptance.find_earlier(batch)?;
            // If two have one key, the second is a replay of the first.
            let is_repeat = self.acceptances.len() > 1
                && acceptance.claim.as_ref().is_some_and(|claim| !keys.insert(claim.key.as_key()));
            if found.is_none() && !is_repeat {
                recipients += acceptance.recipients;
            }
            earlier.push(Ok((found, is_repeat)));
        }
        if recipients > 0 {
            let NewMessage { organisation, counted_at, .. } = &self.acceptances[0];
            if let Err(exceeded) = batch.use_up(*organisation, recipients, *counted_at) {
                return Ok(Err(AcceptError::LimitReached(exceeded)));
            }
        }
        let decide = |(acceptance, earlier): (&NewMessage, _)| {
            let found = match earlier {
                Err(refused) => return Ok(Err(refused)),
                Ok((None, true)) => acceptance.find_earlier(batch)?,
                Ok((found, _)) => found,
            };
            match found {
                Some(earlier) => Ok(Ok(Accepted::Replayed(earlier))),
                None => acceptance.store(batch).map(Ok),
            }
        };
        self.acceptances.iter().zip(earlier).map(decide).collect::<Result<_, _>>().map(Ok)
    }
}

impl NewMessage {
    fn store(&self, batch: &mut Batch<'_>) -> Result<Accepted, ReadError> {
        if let Some(claim) = &self.claim {
            let log_row = IdempotencyRow {
                organisation: self.organisation.0,
                created_at: self.created_at.unix_millis(),
                key: claim.key.as_key(),
            };
            let row = log_row.encode();
            batch.tables.idempotency.insert_later(self.id.as_bytes(), row.as_slice())?;
            batch.effects.claimed.insert(self.key_hash(batch, claim), self.id);
        }
        batch.tables.messages.insert_later(self.id.as_bytes(), self.row.as_slice())?;
        let listed = (self.organisation.0, *self.id.as_bytes());
        batch.tables.by_organisation.insert_later(listed, ())?;
        batch.tables.pending.insert_later(self.id.as_bytes(), ())?;
        batch.tables.note_lead(self.id, self.created_at)?;
        batch.effects.increments.push((self.organisation, Increment::Accepted));
        Ok(Accepted::New(self.id))
    }

    fn key_hash(&self, batch: &Batch<'_>, claim: &KeyClaim) -> KeyHash {
        let index = read_lock(&batch.shared.idempotency);
        index.hash(self.organisation, claim.key.as_key().as_str())
    }

    /// The writer's own decision between new and replay: by the live keys and by those of the
    /// present batch.
    fn find_earlier(&self, batch: &mut Batch<'_>) -> Result<Option<MessageId>, ReadError> {
        let Some(claim) = &self.claim else { return Ok(None) };
        let hash = self.key_hash(batch, claim);
        let claimed = batch.effects.claimed.candidates(hash);
        let candidates: Vec<MessageId> =
            claimed.chain(read_lock(&batch.shared.idempotency).candidates(hash)).collect();
        find(candidates, |id| {
            batch.tables.idempotency.read_row(id.as_bytes(), |row| {
                is_live(id, row, self.organisation, claim.key.as_key(), &claim.window_now)
            })?
        })
    }
}

/// Finds the first candidate that `is_it` is true for.
fn find(
    candidates: Vec<MessageId>,
    mut is_it: impl FnMut(MessageId) -> Result<bool, ReadError>,
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
    key: IdempotencyKey<'_>,
    window_now: &WindowTime,
) -> Result<bool, ReadError> {
    let Some(row) = row else { return Ok(false) };
    let row = IdempotencyRow::decode(row).in_row(IDEMPOTENCY, id)?;
    let created_at = Timestamp::from_unix_millis(row.created_at);
    Ok(row.organisation == organisation.0
        && row.key == key
        && !window_now.is_past(created_at, IDEMPOTENCY_WINDOW))
}
