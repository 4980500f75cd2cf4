//! The purge: what is past its window goes, oldest first, a bounded step at a time. One node does
//! it for all; rows that another one has locked wait.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::clock_corrections::WindowTime;
use crate::domain::feed::FeedPosition;
use crate::domain::history::Hour;
use crate::domain::id::MessageId;
use crate::domain::message::State;
use crate::domain::policy::{IDEMPOTENCY_WINDOW, RECORD_RETENTION};
use crate::store::limits::UNMATCHED_WAIT;
use crate::store::postgres::working_set::position_number;
use crate::store::postgres::{PostgresStore, message_id, millis, uuid_of};
use crate::store::record::decode_message;
use crate::store::{Purged, StoreError};

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

/// Returns the runs of positions whose entries are past the retention of records, each as its first
/// one and the first one after it. A position has the stored instant of its commit.
pub(super) fn feed_runs(window_now: &WindowTime) -> Vec<(i64, i64)> {
    let position = |instant| position_number(FeedPosition::first_of(instant));
    let runs = window_now.past(RECORD_RETENTION).into_iter();
    runs.map(|run| (position(run.start), position(run.end))).collect()
}

impl PostgresStore {
    pub(in crate::store) async fn purge(
        &self,
        window_now: impl Into<WindowTime>,
        limit: usize,
    ) -> Result<Purged, StoreError> {
        let window_now = window_now.into();
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let runs = |window: Duration| -> Vec<(Uuid, Uuid)> {
            let ids = window_now.past(window).into_iter().map(|run| {
                (uuid_of(MessageId::first_of(run.start)), uuid_of(MessageId::first_of(run.end)))
            });
            ids.collect()
        };
        let (records, keys) = (runs(RECORD_RETENTION), runs(IDEMPOTENCY_WINDOW));
        let retained = window_now.now().minus(RECORD_RETENTION);
        let feeds = feed_runs(&window_now);
        let times = |window: Duration| -> Vec<(i64, i64)> {
            // What is exactly so old goes too.
            let end = window_now.now().minus(window).plus(Duration::from_millis(1));
            let runs = window_now.before(end).into_iter();
            runs.map(|run| (millis(run.start), millis(run.end))).collect()
        };
        let (unmatched, letters) = (times(UNMATCHED_WAIT), times(RECORD_RETENTION));
        let hour = i32::try_from(Hour::of(retained).number()).unwrap_or(i32::MAX);
        let mut damaged: Vec<Uuid> = Vec::new();
        let purged = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            let mut purged = Purged::default();
            for (start, end) in &records {
                let rows = connection.query(MESSAGES, &[start, end, &most]).await?;
                damaged.extend(rows.iter().map(|row| row.get::<_, Uuid>(0)).zip(&rows).filter_map(
                    |(id, row)| decode_message(message_id(id), row.get(1)).err().map(|_| id),
                ));
                let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
                let ses_ids: BTreeSet<String> = rows
                    .iter()
                    .filter_map(|row| decode_message(message_id(row.get(0)), row.get(1)).ok())
                    .filter_map(|message| match message.state {
                        State::Sent { ses_message_id, .. } => Some(ses_message_id),
                        State::Queued { .. } | State::Failed { .. } | State::Suppressed { .. } => {
                            None
                        }
                    })
                    .collect();
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
            for (start, end) in &keys {
                let removed = connection.execute(KEYS, &[start, end, &most]).await?;
                purged.idempotency_keys += usize::try_from(removed).unwrap_or(usize::MAX);
            }
            let mut left = most;
            for (start, end) in &feeds {
                let removed = connection.execute(FEED, &[start, end, &left]).await?;
                purged.feed_entries += usize::try_from(removed).unwrap_or(usize::MAX);
                left -= i64::try_from(removed).unwrap_or(left);
            }
            for (statement, runs) in [(UNMATCHED, &unmatched), (LETTERS, &letters)] {
                for (start, end) in runs {
                    connection.execute(statement, &[start, end]).await?;
                }
            }
            connection.execute("DELETE FROM history WHERE hour < $1", &[&hour]).await?;
            change.commit(purged).await
        });
        let purged = purged.await?;
        if !damaged.is_empty() {
            // They do not tell the provider's ids of their messages, and no index finds those. Without
            // an effect on what was purged, because it may take long.
            let sent = "DELETE FROM sent WHERE id = ANY($1)";
            let removed = self.changed(async {
                let change = self.begin().await?;
                change.connection().execute(sent, &[&damaged]).await?;
                change.commit(()).await
            });
            let _ = removed.await;
        }
        self.shared.metrics.purged(purged);
        Ok(purged)
    }
}
