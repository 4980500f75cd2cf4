//! Single facts about all nodes together: lost messages, the record of the clock, the lead of ids.

use std::sync::atomic::Ordering;

use crate::domain::clock_corrections::TimeRecord;
use crate::domain::time::Timestamp;
use crate::store::error::DamagedRow;
use crate::store::limits::LOST_SHOWN;
use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::{PostgresStore, Shared, timestamp};
use crate::store::record::{decode_time, encode_time};
use crate::store::{LostMessages, StoreError};

const LOST: &str = "SELECT lost_messages, lost_messages_at FROM cluster";

impl PostgresStore {
    pub(in crate::store) async fn lost_messages(
        &self,
        now: Timestamp,
    ) -> Result<Option<LostMessages>, StoreError> {
        let row = self.query_one(LOST, &[]).await?;
        Ok(lost(row.get(0), row.get(1), now))
    }

    pub(in crate::store) async fn acknowledge_lost_messages(
        &self,
        now: Timestamp,
    ) -> Result<Option<LostMessages>, StoreError> {
        const FORGET: &str = "UPDATE cluster SET lost_messages = 0";
        let before = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            let row = connection
                .query_one("SELECT lost_messages, lost_messages_at FROM cluster FOR UPDATE", &[])
                .await?;
            connection.execute(FORGET, &[]).await?;
            change.commit((row.get::<_, i64>(0), row.get::<_, i64>(1))).await
        });
        let (messages, at) = before.await?;
        Ok(lost(messages, at, now))
    }

    pub(in crate::store) async fn time_record(&self) -> Result<Option<TimeRecord>, StoreError> {
        const READ: &str = "SELECT time_record FROM cluster";
        let row = self.query_one(READ, &[]).await?;
        let Some(record) = row.get::<_, Option<&[u8]>>(0) else { return Ok(None) };
        let record = decode_time(record);
        let record = record.map_err(|reason| DamagedRow::new("cluster", "time_record", &reason));
        record.map(Some).map_err(|row| self.shared.refused(row.into()))
    }

    pub(in crate::store) async fn keep_time_record(
        &self,
        record: TimeRecord,
    ) -> Result<(), StoreError> {
        let record = encode_time(&record);
        let kept = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            connection.execute("UPDATE cluster SET time_record = $1", &[&record]).await?;
            change.commit(()).await
        });
        kept.await
    }
}

fn lost(messages: i64, at: i64, now: Timestamp) -> Option<LostMessages> {
    let last_at = timestamp(at);
    let messages = messages.unsigned_abs();
    (messages > 0 && !last_at.is_past(LOST_SHOWN, now))
        .then_some(LostMessages { messages, last_at })
}

impl Shared {
    /// Reads how far ids were ever ahead of their acceptance.
    pub(super) async fn load_lead(&self, connection: &Connection) -> Result<(), QueryError> {
        let row = connection.query_one("SELECT id_lead FROM cluster", &[]).await?;
        self.id_lead.fetch_max(row.get(0), Ordering::AcqRel);
        Ok(())
    }

    /// Notes how far an id will be ahead of its acceptance, before it is stored.
    pub(super) async fn note_lead(&self, lead: i64) -> Result<(), QueryError> {
        const NOTE: &str = "UPDATE cluster SET id_lead = greatest(id_lead, $1)";
        if lead > self.id_lead.load(Ordering::Acquire) {
            let connection = self.readers.get(&self.connector).await?;
            connection.execute(NOTE, &[&lead]).await?;
            self.id_lead.fetch_max(lead, Ordering::AcqRel);
        }
        Ok(())
    }
}
