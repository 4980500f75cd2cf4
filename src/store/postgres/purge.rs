//! The purge: removes rows that are past their window, oldest first, a bounded step at a time. One
//! node does it for all. Rows that another transaction has locked wait.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::postgres::session::Transaction;
use crate::postgres::tables::{bigint, integer};
use crate::postgres::{PostgresStore, message_id, millis, uuid_of};
use crate::purge::PurgeStep;
use crate::record::decode_message;
use crate::{Purged, StoreError};
use pillarbox_domain::message::State;

const MESSAGES: &str = "
DELETE FROM message WHERE id IN (
    SELECT id FROM message WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED
) RETURNING id, record";
const KEYS: &str = "
DELETE FROM idempotency WHERE (organisation, key) IN (
    SELECT organisation, key FROM idempotency WHERE message >= $1 AND message < $2
    ORDER BY message LIMIT $3 FOR UPDATE SKIP LOCKED
)";
const FEED: &str = "
DELETE FROM feed WHERE (organisation, position) IN (
    SELECT feed.organisation, feed.position FROM feed_end
    CROSS JOIN LATERAL (
        SELECT organisation, position FROM feed
        WHERE feed.organisation = feed_end.organisation AND position >= $1 AND position < $2
        ORDER BY position LIMIT $3
    ) AS feed LIMIT $3
)";
const UNMATCHED: &str = "DELETE FROM unmatched_event WHERE received_at >= $1 AND received_at < $2";
const LETTERS: &str = "DELETE FROM dead_letter WHERE received_at >= $1 AND received_at < $2";

impl PostgresStore {
    pub(crate) async fn purge(&self, step: PurgeStep) -> Result<Purged, StoreError> {
        let most = bigint(step.limit);
        let hour = integer(step.first_hour.number());
        let mut damaged: Vec<Uuid> = Vec::new();
        let purge = async {
            let change = Transaction::begin(&self.writer).await?;
            let connection = change.connection();
            let mut purged = Purged::default();
            for run in &step.records {
                let (start, end) = (uuid_of(run.start), uuid_of(run.end));
                let rows = connection.query(MESSAGES, &[&start, &end, &most]).await?;
                let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
                let mut ses_ids = BTreeSet::new();
                for (id, row) in ids.iter().zip(&rows) {
                    match decode_message(message_id(*id), row.get(1)).map(|message| message.state) {
                        Ok(State::Sent { ses_message_id, .. }) => {
                            ses_ids.insert(ses_message_id);
                        }
                        Ok(
                            State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. },
                        ) => {}
                        Err(_) => damaged.push(*id),
                    }
                }
                let ses_ids: Vec<String> = ses_ids.into_iter().collect();
                for statement in [
                    "DELETE FROM event WHERE message = ANY($1)",
                    "DELETE FROM overturned_failure WHERE id = ANY($1)",
                    "DELETE FROM pending WHERE id = ANY($1)",
                ] {
                    connection.execute(statement, &[&ids]).await?;
                }
                let sent = "DELETE FROM sent WHERE ses_message_id = ANY($1)";
                connection.execute(sent, &[&ses_ids]).await?;
                purged.messages += ids.len();
            }
            for run in &step.keys {
                let (start, end) = (uuid_of(run.start), uuid_of(run.end));
                let removed = connection.execute(KEYS, &[&start, &end, &most]).await?;
                purged.idempotency_keys += usize::try_from(removed).unwrap_or(usize::MAX);
            }
            let mut left = most;
            for run in &step.feed {
                let (start, end) = (bigint(run.start.number()), bigint(run.end.number()));
                let removed = connection.execute(FEED, &[&start, &end, &left]).await?;
                purged.feed_entries += usize::try_from(removed).unwrap_or(usize::MAX);
                left -= i64::try_from(removed).unwrap_or(left);
            }
            for (statement, runs) in [(UNMATCHED, &step.unmatched), (LETTERS, &step.letters)] {
                for run in runs {
                    let (start, end) = (millis(run.start), millis(run.end));
                    connection.execute(statement, &[&start, &end]).await?;
                }
            }
            connection.execute("DELETE FROM history WHERE hour < $1", &[&hour]).await?;
            change.commit(purged).await
        };
        let purged = purge.await.map_err(|error| self.shared.refused(error))?;
        if !damaged.is_empty() {
            // They do not hold the provider's ids of their messages, and no index finds those. A
            // failure here does not undo the purge, because this may take long.
            let sent = "DELETE FROM sent WHERE id = ANY($1)";
            let _ = self.execute(sent, &[&damaged]).await;
        }
        Ok(purged)
    }
}
