//! Documents of the provider that could not be read, and events that wait for their message.

use crate::store::error::DamagedRow;
use crate::store::limits::{self, DEAD_LETTERS, MAX_DEAD_LETTERS};
use crate::store::postgres::{PostgresStore, millis, timestamp};
use crate::store::record::{decode_dead_letter, encode_dead_letter};
use crate::store::{DeadLetter, EventBacklog, StoreError};

impl PostgresStore {
    pub(in crate::store) async fn keep_dead_letters(
        &self,
        letters: Vec<DeadLetter>,
    ) -> Result<(), StoreError> {
        const KEEP: &str = "
            INSERT INTO dead_letter (key, received_at, letter)
            SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[])
            ON CONFLICT DO NOTHING";
        const LIMIT: &str = "
            DELETE FROM dead_letter WHERE key IN (
                SELECT key FROM dead_letter ORDER BY received_at DESC OFFSET $1)";
        let most = i64::try_from(MAX_DEAD_LETTERS).unwrap_or(i64::MAX);
        let keys: Vec<Vec<u8>> = letters.iter().map(|letter| letter.key().to_vec()).collect();
        let times: Vec<i64> = letters.iter().map(|letter| millis(letter.received_at)).collect();
        let rows: Vec<Vec<u8>> = letters.iter().map(encode_dead_letter).collect();
        let kept = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            connection.execute(KEEP, &[&keys, &times, &rows]).await?;
            let removed = connection.execute(LIMIT, &[&most]).await?;
            limits::warn_removed(removed, DEAD_LETTERS);
            change.commit(()).await
        });
        kept.await
    }

    pub(in crate::store) async fn remove_dead_letters(
        &self,
        letters: &[DeadLetter],
    ) -> Result<usize, StoreError> {
        let keys: Vec<Vec<u8>> = letters.iter().map(|letter| letter.key().to_vec()).collect();
        let removed = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            let remove = "DELETE FROM dead_letter WHERE key = ANY($1)";
            let removed = connection.execute(remove, &[&keys]).await?;
            change.commit(removed).await
        });
        Ok(usize::try_from(removed.await?).unwrap_or(usize::MAX))
    }

    pub(in crate::store) async fn dead_letters(
        &self,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        const LIST: &str = "
            SELECT key, received_at, letter FROM dead_letter ORDER BY received_at DESC LIMIT $1";
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.query(LIST, &[&most]).await?;
        let letters = rows.iter().map(|row| {
            let key = hex::encode(row.get::<_, &[u8]>(0));
            decode_dead_letter(timestamp(row.get(1)), row.get(2))
                .map_err(|reason| DamagedRow::new("dead_letter", key, &reason))
        });
        Ok(letters.filter_map(|letter| self.shared.damage.left_out(letter)).collect())
    }

    pub(in crate::store) async fn event_backlog(&self) -> Result<EventBacklog, StoreError> {
        const COUNT: &str = "
            SELECT (SELECT count(*) FROM unmatched_event), (SELECT count(*) FROM dead_letter)";
        let row = self.query_one(COUNT, &[]).await?;
        Ok(EventBacklog {
            unmatched: row.get::<_, i64>(0).unsigned_abs(),
            dead_letters: row.get::<_, i64>(1).unsigned_abs(),
        })
    }
}
