//! Replays: the messages that keys have made. The questions that gather while one transaction is
//! under way are answered by the next one.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::StoreError;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::session::{Session, Transaction};
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

/// Question for the messages of keys, in their order.
pub(super) struct Request {
    keys: Keys,
    reply: oneshot::Sender<Result<Vec<Option<MessageId>>, StoreError>>,
}

/// Keys, each with its organisation and the instant after which it must have been used.
#[derive(Default)]
pub(super) struct Keys {
    organisations: Vec<i32>,
    digests: Vec<Vec<u8>>,
    live_after: Vec<i64>,
}

impl PostgresStore {
    pub(crate) async fn replays(
        &self,
        organisation: OrganisationId,
        keys: &[IdempotencyKey<'_>],
        window_now: WindowTime,
    ) -> Result<Vec<Option<MessageId>>, StoreError> {
        let live_after = millis(window_now.all_past(IDEMPOTENCY_WINDOW));
        let mut asked = Keys::default();
        for key in keys {
            asked.add(number(organisation), digest(*key), live_after);
        }
        if self.query(FIND, &asked.parameters()).await?.is_empty() {
            return Ok(vec![None; keys.len()]);
        }
        // A server that started again also shows commits that the standby does not have yet. The
        // answer must hold if the standby takes over. So it is read once more in a transaction that
        // writes, whose commit waits until the standby has everything before it.
        let confirmed = answer_to(&self.replaying, |reply| Request { keys: asked, reply });
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
        let (mut keys, mut replies) = (Keys::default(), Vec::new());
        let mut next = Some(first);
        while let Some(Request { keys: more, reply }) = next {
            replies.push((more.digests.len(), reply));
            keys.append(more);
            next = (keys.digests.len() < MAX_KEYS).then(|| requests.try_recv().ok()).flatten();
        }
        let confirmed = async {
            let reading = Transaction::begin(&writer).await?;
            let rows = reading.connection().query(FIND, &keys.parameters()).await?;
            reading.commit(rows).await
        };
        match confirmed.await {
            Ok(rows) => {
                let mut found = vec![None; keys.digests.len()];
                for row in rows {
                    found[place(&row)] = Some(message_id(row.get(1)));
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

/// Returns the places of those keys that have made a message.
pub(super) async fn live(connection: &Connection, keys: &Keys) -> Result<Vec<usize>, QueryError> {
    let rows = connection.query(FIND, &keys.parameters()).await?;
    Ok(rows.iter().map(place).collect())
}

/// Returns the place of a key that was found. The server counts from 1.
fn place(row: &Row) -> usize {
    usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX)
}

impl Keys {
    pub(super) fn add(&mut self, organisation: i32, digest: Vec<u8>, live_after: i64) {
        self.organisations.push(organisation);
        self.digests.push(digest);
        self.live_after.push(live_after);
    }

    fn append(&mut self, more: Self) {
        self.organisations.extend(more.organisations);
        self.digests.extend(more.digests);
        self.live_after.extend(more.live_after);
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 3] {
        [&self.organisations, &self.digests, &self.live_after]
    }
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
