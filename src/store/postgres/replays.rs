//! Replays: the messages that keys have made. The questions that gather while one transaction is
//! under way are answered by the next one.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;
use tokio_postgres::Row;

use crate::StoreError;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::session::{Session, Transaction};
use crate::postgres::tables::{Query, array};
use crate::postgres::{PostgresStore, Shared, answer_to, message_id, millis, number};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::limits::IDEMPOTENCY_WINDOW;
use pillarbox_domain::request::{IdempotencyKey, KeyOrigin};

/// Largest number of questions that wait. Beyond it, callers wait to hand over theirs.
pub(super) const QUEUE_CAPACITY: usize = 4_096;
/// Approximate largest number of keys of one transaction: a question is not divided.
const MAX_KEYS: usize = 1_024;

const FIND: &str = "
SELECT asked.place, known.message
FROM unnest($1::integer[], $2::bytea[], $3::bigint[])
    WITH ORDINALITY AS asked (organisation, key, live_after, place)
JOIN idempotency AS known USING (organisation, key)
WHERE known.created_at > asked.live_after";

/// Number of an organisation, and the digest of its idempotency key.
pub(super) type HashedKey = (i32, Vec<u8>);

/// Key, and the instant after which it must have been used.
pub(super) type AskedKey = (HashedKey, i64);

pub(super) fn asked_key(
    organisation: OrganisationId,
    key: IdempotencyKey<'_>,
    window_now: &WindowTime,
) -> AskedKey {
    ((number(organisation), digest(key)), millis(window_now.all_past(IDEMPOTENCY_WINDOW)))
}

/// Question for the messages of keys, in their order.
pub(super) struct Request {
    keys: Vec<AskedKey>,
    reply: oneshot::Sender<Result<Vec<Option<MessageId>>, StoreError>>,
}

impl PostgresStore {
    pub(crate) async fn replays(
        &self,
        organisation: OrganisationId,
        keys: &[IdempotencyKey<'_>],
        window_now: WindowTime,
    ) -> Result<Vec<Option<MessageId>>, StoreError> {
        let keys: Vec<AskedKey> =
            keys.iter().map(|key| asked_key(organisation, *key, &window_now)).collect();
        if self.ask(&self.shared.readers, &find(&keys)).await?.is_empty() {
            return Ok(vec![None; keys.len()]);
        }
        // A server that started again also shows commits that the standby does not have yet. The
        // answer must hold if the standby takes over. So it is read once more in a transaction that
        // writes, whose commit waits until the standby has everything before it.
        let confirmed = answer_to(&self.replaying, |reply| Request { keys, reply });
        let confirmed = timeout(self.shared.answer_timeout, confirmed).await;
        confirmed.unwrap_or(Err(StoreError::Unavailable))
    }
}

/// Answers queued questions, until nobody can queue any more.
pub(super) async fn work(
    shared: Arc<Shared>,
    writer: Arc<Mutex<Session>>,
    mut requests: mpsc::Receiver<Request>,
) {
    while let Some(first) = requests.recv().await {
        let (mut keys, mut replies) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(Request { keys: more, reply }) = next {
            replies.push((more.len(), reply));
            keys.extend(more);
            next = (keys.len() < MAX_KEYS).then(|| requests.try_recv().ok()).flatten();
        }
        let confirmed = async {
            let reading = Transaction::begin(&writer).await?;
            let live = live(reading.connection(), &keys).await?;
            reading.commit(live).await
        };
        match confirmed.await {
            Ok(live) => {
                let mut found = vec![None; keys.len()];
                for (place, message) in live {
                    found[place] = Some(message);
                }
                let mut found = found.into_iter();
                for (count, reply) in replies {
                    // The caller may have disconnected.
                    let _ = reply.send(Ok(found.by_ref().take(count).collect()));
                }
            }
            Err(error) => {
                shared.lost(&error);
                for (_, reply) in replies {
                    let _ = reply.send(Err(StoreError::Unavailable));
                }
            }
        }
    }
}

fn find(keys: &[AskedKey]) -> Query {
    let organisations = array(keys.iter().map(|((organisation, _), _)| *organisation));
    let digests = array(keys.iter().map(|((_, digest), _)| digest.clone()));
    let live_after = array(keys.iter().map(|(_, live_after)| *live_after));
    Query::new(FIND, vec![organisations, digests, live_after])
}

/// Returns the places of those keys that have made a message, with the message. The server counts
/// from 1.
pub(super) async fn live(
    connection: &Connection,
    keys: &[AskedKey],
) -> Result<Vec<(usize, MessageId)>, QueryError> {
    let query = find(keys);
    let rows = connection.query(query.sql, &query.parameters()).await?;
    let place = |row: &Row| usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
    Ok(rows.iter().map(|row| (place(row), message_id(row.get(1)))).collect())
}

/// Digest of a key. Keys of clients and derived keys have different digests. The first derived keys
/// were those of submissions, which explains their prefix.
pub(super) fn digest(key: IdempotencyKey<'_>) -> Vec<u8> {
    let origin: &[u8] = match key.origin() {
        KeyOrigin::Client => b"client:",
        KeyOrigin::Derived => b"submission:",
    };
    let mut digest = Sha256::new();
    digest.update(origin);
    digest.update(key.as_str());
    digest.finalize().to_vec()
}
