//! Messages, read back: one by its id, or a page of them, newest first.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::listing::{Order, Page, SURE_ROWS, blocking};
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::tables::bigint;
use crate::postgres::{PostgresStore, Shared, message_id, number, uuid_of};
use crate::rows::MessageRow;
use crate::{MessageFilter, MessagePage, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;

const READ: &str = "
SELECT record, (SELECT calling FROM pending WHERE pending.id = message.id)
FROM message WHERE id = $1";
/// Approximate number of bytes of rows that are read at one time. A page may have more, or leave
/// them all out.
const BYTES_PER_LOOK: usize = 1 << 20;

/// Reads at most `$3` rows, and stops once they have `$4` bytes: all that match, or those of the
/// organisation `$5`. The table is `message`, or has the pending ones alone.
macro_rules! list {
    ($table:literal, $of_one:literal, $by:literal, $order:literal) => {
        concat!(
            "SELECT id, record FROM (
                SELECT id, record, sum(octet_length(record)) OVER looked_at - octet_length(record) AS before
                FROM (
                    SELECT id, record FROM ", $table, " WHERE ", $of_one, "id >= $1 AND id < $2
                    ORDER BY ", $by, "id ", $order, " LIMIT $3
                ) AS rows
                WINDOW looked_at AS (ORDER BY id ", $order, " ROWS UNBOUNDED PRECEDING)
            ) AS counted WHERE before < $4 ORDER BY id ", $order
        )
    };
}

/// The list of a table for an order, of one organisation or of all.
macro_rules! list_of {
    ($table:literal, $order:expr, $is_of_one:expr) => {
        match ($order, $is_of_one) {
            (Order::NewestFirst, false) => list!($table, "", "", "DESC"),
            (Order::NewestFirst, true) => {
                list!($table, "organisation = $5 AND ", "organisation DESC, ", "DESC")
            }
            (Order::OldestFirst, false) => list!($table, "", "", "ASC"),
            (Order::OldestFirst, true) => {
                list!($table, "organisation = $5 AND ", "organisation ASC, ", "ASC")
            }
        }
    };
}

impl PostgresStore {
    pub(crate) async fn message_row(
        &self,
        id: MessageId,
    ) -> Result<Option<MessageRow>, StoreError> {
        let row = self.query(READ, &[&uuid_of(id)]).await?.pop();
        Ok(row.map(|row| (row.get(0), row.get::<_, Option<i32>>(1).map(i32::unsigned_abs))))
    }

    pub(crate) async fn first_message(&self) -> Result<Option<(MessageId, Vec<u8>)>, StoreError> {
        let row =
            self.query("SELECT id, record FROM message ORDER BY id LIMIT 1", &[]).await?.pop();
        Ok(row.map(|row| (message_id(row.get(0)), row.get(1))))
    }

    pub(crate) async fn last_message(&self) -> Result<Option<MessageId>, StoreError> {
        let row = self.query("SELECT id FROM message ORDER BY id DESC LIMIT 1", &[]).await?.pop();
        Ok(row.map(|row| message_id(row.get(0))))
    }

    pub(crate) async fn message_sent_as(
        &self,
        ses_message_id: String,
        _: Timestamp,
    ) -> Result<Option<MessageId>, StoreError> {
        const FIND: &str = "SELECT id FROM sent WHERE ses_message_id = $1";
        let row = self.query(FIND, &[&ses_message_id]).await?.pop();
        Ok(row.map(|row| message_id(row.get(0))))
    }

    /// Reads a page in steps, so that a page that fills early reads little.
    pub(crate) async fn page(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: WindowTime,
    ) -> Result<MessagePage, StoreError> {
        let lead = self.shared.id_lead.load(Ordering::Acquire).unsigned_abs();
        let organisation = filter.organisation.map(number);
        let is_pending_only = filter.finds_only_pending();
        let mut page = Page::new(filter, limit, window_now, lead);
        let order = page.order;
        let most_bytes = bigint(BYTES_PER_LOOK);
        let mut step = limit.clamp(1, SURE_ROWS);
        let is_of_one = organisation.is_some();
        let sql = if is_pending_only {
            list_of!("pending JOIN message USING (id)", order, is_of_one)
        } else {
            list_of!("message", order, is_of_one)
        };
        let mut page = loop {
            let (first, end) = (uuid_of(page.first), page.end.map_or(Uuid::max(), uuid_of));
            let rows = bigint(step);
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&first, &end, &rows, &most_bytes];
            parameters.extend(organisation.iter().map(|own| own as &(dyn ToSql + Sync)));
            let read = self.query_by(&self.shared.listers, sql, &parameters).await?;
            let bytes: usize = read.iter().map(|row| row.get::<_, &[u8]>(1).len()).sum();
            let is_end = read.len() < step && bytes < BYTES_PER_LOOK;
            let shared = Arc::clone(&self.shared);
            let is_cut;
            (page, is_cut) = blocking(move || look_at(&shared, page, &read)).await;
            if is_cut || is_end {
                let next = page.last.filter(|_| is_cut);
                break page.ending(next);
            }
            // For a full page, the only open question is whether there are more rows.
            step = if page.is_full() { 1 } else { (step * 4).min(page.rows_left()) };
        };
        self.lay_calls_over(&mut page.messages).await?;
        Ok(page)
    }
}

/// Checks rows until the page is full; returns true if there was no room for all.
fn look_at(shared: &Shared, mut page: Page, rows: &[Row]) -> (Page, bool) {
    for row in rows {
        if page.is_full() {
            return (page, true);
        }
        page.look_at(message_id(row.get(0)), Some(row.get(1)), &shared.memory.damage);
    }
    (page, false)
}

impl Shared {
    /// Reads the largest skew of ids ahead of their acceptance.
    pub(super) async fn load_lead(&self, connection: &Connection) -> Result<(), QueryError> {
        let row = connection.query_one("SELECT id_lead FROM cluster", &[]).await?;
        self.id_lead.fetch_max(row.get(0), Ordering::AcqRel);
        Ok(())
    }

    /// Notes the skew of an id ahead of its acceptance, before the id is stored.
    pub(super) async fn note_lead(&self, lead: i64) -> Result<(), QueryError> {
        const NOTE: &str = "UPDATE cluster SET id_lead = greatest(id_lead, $1)";
        if lead > self.id_lead.load(Ordering::Acquire) {
            self.readers.get().await?.execute(NOTE, &[&lead]).await?;
            self.id_lead.fetch_max(lead, Ordering::AcqRel);
        }
        Ok(())
    }
}
