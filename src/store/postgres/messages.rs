//! Messages, read back: one by its id, or a page of them, newest first.

use std::sync::atomic::Ordering;

use uuid::Uuid;

use crate::domain::clock_corrections::WindowTime;
use crate::domain::id::MessageId;
use crate::domain::message::Message;
use crate::domain::time::Timestamp;
use crate::store::error::DamagedRow;
use crate::store::listing::{self, MAX_ROWS, Page, SURE_ROWS};
use crate::store::postgres::{PostgresStore, message_id, number, uuid_of};
use crate::store::record::decode_message;
use crate::store::{ListError, Lister, MessageFilter, MessagePage, StoreError};

const READ: &str = "SELECT record FROM message WHERE id = $1";
const LIST: &str = "
SELECT id, record FROM message WHERE id >= $1 AND id < $2 ORDER BY id DESC LIMIT $3";
const LIST_OF_ONE: &str = "
SELECT id, record FROM message WHERE organisation = $4 AND id >= $1 AND id < $2
ORDER BY organisation DESC, id DESC LIMIT $3";

impl PostgresStore {
    pub(in crate::store) async fn message(
        &self,
        id: MessageId,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Message>, StoreError> {
        let window_now = window_now.into();
        let Some(row) = self.query_opt(READ, &[&uuid_of(id)]).await? else { return Ok(None) };
        let message = decode_message(id, row.get(0));
        let message = message.map_err(|reason| DamagedRow::new("message", id, &reason));
        let message = message.map_err(|row| self.shared.refused(row.into()))?;
        Ok(listing::visible(message, &window_now))
    }

    pub(in crate::store) async fn oldest(
        &self,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Timestamp>, StoreError> {
        const OLDEST: &str = "SELECT id, record FROM message ORDER BY id LIMIT 1";
        let window_now = window_now.into();
        let row = self.query_opt(OLDEST, &[]).await?;
        let created_at = row.map(|row| {
            let id = message_id(row.get(0));
            decode_message(id, row.get(1)).map_or(id.instant(), |message| message.created_at)
        });
        Ok(created_at.map(|stored| window_now.corrected(stored)))
    }

    pub(in crate::store) async fn newest(&self) -> Result<Option<Timestamp>, StoreError> {
        const NEWEST: &str = "SELECT id FROM message ORDER BY id DESC LIMIT 1";
        let row = self.query_opt(NEWEST, &[]).await?;
        Ok(row.map(|row| message_id(row.get(0)).instant()))
    }

    pub(in crate::store) async fn list(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<MessagePage, ListError> {
        self.list_then(Lister::Operators, filter, limit, window_now, |page| page).await
    }

    pub(in crate::store) async fn list_then<T: Send + 'static>(
        &self,
        lister: Lister,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
        then: impl FnOnce(MessagePage) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        let window_now = window_now.into();
        let _turn = self.shared.listings.turn(lister).await?;
        Ok(then(self.page(&filter, limit, &window_now).await?))
    }

    /// Reads a page in steps, so that one that is full soon reads little.
    async fn page(
        &self,
        filter: &MessageFilter,
        limit: usize,
        window_now: &WindowTime,
    ) -> Result<MessagePage, StoreError> {
        let lead = self.shared.id_lead.load(Ordering::Acquire).unsigned_abs();
        let (first, end) = listing::bounds(filter, window_now, lead);
        let first = uuid_of(first);
        let mut end = end.map_or(Uuid::max(), uuid_of);
        let organisation = filter.organisation.map(number);
        let mut page = Page::new(filter, limit, window_now);
        let mut last = None;
        let mut step = limit.clamp(1, SURE_ROWS);
        loop {
            let rows = i64::try_from(step).unwrap_or(i64::MAX);
            let read = match &organisation {
                None => self.list_rows(LIST, &[&first, &end, &rows]).await?,
                Some(own) => self.list_rows(LIST_OF_ONE, &[&first, &end, &rows, own]).await?,
            };
            for row in &read {
                if page.is_full() {
                    return Ok(page.ending(last));
                }
                let id = message_id(row.get(0));
                let record: &[u8] = row.get(1);
                let message = decode_message(id, record);
                let message = message.map_err(|reason| DamagedRow::new("message", id, &reason));
                page.look_at(self.shared.damage.left_out(message), record.len());
                last = Some(id);
            }
            if read.len() < step {
                return Ok(page.ending(None));
            }
            end = last.map_or(end, uuid_of);
            step = (step * 4).min(MAX_ROWS);
        }
    }
}
