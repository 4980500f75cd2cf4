//! Messages: their outcomes, the provider's reports of them, and reads of them.

use crate::listing;
use crate::record::{decode_event, decode_message};
use crate::rows::{InTable, KeyRange, Table};
use crate::{
    Applied, Engine, ListError, Lister, MessageFilter, MessagePage, Report, Store, StoreError,
};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::event::Event;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Message, Recorded, Transition};
use pillarbox_domain::time::Timestamp;

impl Store {
    /// Records the outcome of a message after `attempts` calls to the provider in all, at `now`.
    pub async fn record(
        &self,
        id: MessageId,
        attempts: u32,
        transition: Transition,
        now: Timestamp,
    ) -> Result<Recorded, StoreError> {
        let recorded = ask_engine!(self, engine => engine.record(id, attempts, transition, now))?;
        self.memory().restarts.told(id);
        Ok(recorded)
    }

    /// Applies a provider's report: the event, the proof of acceptance and the suppressions that
    /// follow, in one transaction. A repeat changes nothing.
    pub async fn apply(&self, report: Report, now: Timestamp) -> Result<Applied, StoreError> {
        Ok(self.apply_all(vec![report], now).await?[0])
    }

    /// As [`Store::apply`], for several reports in one transaction; returns an answer for each, in
    /// order.
    pub async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let applied = ask_engine!(self, engine => engine.apply_all(reports, now))?;
        for one in &applied {
            if let Applied::Sent(id) = one {
                self.memory().restarts.told(*id);
            }
        }
        Ok(applied)
    }

    /// A message, unless its retention is over at `window_now`.
    pub async fn message(
        &self,
        id: MessageId,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Message>, StoreError> {
        let row = read_engine!(self, engine => engine.message_row(id))?;
        let Some((row, calling)) = row else { return Ok(None) };
        let read = decode_message(id, &row).in_table(Table::Messages, id);
        let mut message = read.map_err(|row| self.damaged_row(row))?;
        message.calling = calling.or(message.calling);
        Ok(listing::visible(message, &window_now.into()))
    }

    /// Returns the idempotency key that a client gave with a message, as long as it is kept as
    /// text. A server keeps only its digest.
    pub fn idempotency_key(&self, id: MessageId) -> Result<Option<String>, StoreError> {
        let Engine::Redb(engine) = &self.engine else { return Ok(None) };
        engine.idempotency_key(id)
    }

    /// Finds the message that SES knows by this id, if the id says when SES accepted it.
    pub async fn message_sent_as(
        &self,
        ses_message_id: &str,
    ) -> Result<Option<MessageId>, StoreError> {
        let Some(accepted_at) = acceptance_in(ses_message_id) else { return Ok(None) };
        ask_engine!(self, engine => engine.message_sent_as(ses_message_id.to_owned(), accepted_at))
    }

    /// Returns the time at which the oldest record was made, past its window or not; if the record
    /// cannot be read, its id's instant. Returns `None` if there is no record.
    pub async fn oldest(
        &self,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let first = read_engine!(self, engine => engine.first_message())?;
        let stored = first.map(|(id, row)| {
            decode_message(id, &row).map_or(id.instant(), |message| message.created_at)
        });
        Ok(stored.map(|stored| window_now.into().corrected(stored)))
    }

    /// Returns the stored instant of the last message's id, or `None` if there is no message. Reads
    /// published rows.
    pub async fn newest(&self) -> Result<Option<Timestamp>, StoreError> {
        let last = read_engine!(self, engine => engine.last_message())?;
        Ok(last.map(|id| id.instant()))
    }

    /// A page of messages, newest first, at most `limit`, as operators read it.
    pub async fn list(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<MessagePage, ListError> {
        self.list_then(Lister::Operators, filter, limit, window_now, |page| page).await
    }

    /// Returns the result of `then` for a page of messages, newest first, at most `limit`. `then`
    /// runs on the thread that reads the page, so that only a limited number of pages is held at
    /// one time. Rows that cannot be read are left out.
    pub async fn list_then<T: Send + 'static>(
        &self,
        lister: Lister,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
        then: impl FnOnce(MessagePage) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        let slot = self.memory().listings.slot(lister).await?;
        let (store, window_now) = (self.clone(), window_now.into());
        let read = async move {
            let page = ask_engine!(store, engine => engine.page(filter, limit, window_now))?;
            Ok((page, Some(slot)))
        };
        listing::list(read, then).await
    }

    /// A message's events, oldest first. Rows that cannot be read are left out.
    pub async fn events(&self, id: MessageId) -> Result<Vec<Event>, StoreError> {
        let rows = self.rows(Table::Events, KeyRange::of(id), usize::MAX).await?;
        let read = rows.iter().map(|(_, row)| decode_event(row).in_table(Table::Events, id));
        Ok(read.filter_map(|event| self.damage().left_out(event)).collect())
    }
}

/// Reads the time at which SES accepted a message from SES's id: region and version in 4
/// hexadecimal digits, then milliseconds since the Unix epoch in 12, then a hyphen.
fn acceptance_in(ses_message_id: &str) -> Option<Timestamp> {
    let (head, _) = ses_message_id.split_once('-')?;
    let is_hex = head.len() == 16 && head.bytes().all(|digit| digit.is_ascii_hexdigit());
    let millis = is_hex.then(|| u64::from_str_radix(&head[4..], 16))?.ok()?;
    Some(Timestamp::from_unix_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_ses_says_when_it_was_given() {
        let read = |text| acceptance_in(text).map(|at| at.to_string());
        let id = "010201937a4d5c3e-6d5c2f0a-1111-2222-3333-444455556666-000000";
        assert_eq!(read(id).as_deref(), Some("2024-11-29T23:41:50.526Z"));
        for none in
            ["010201937a4d5c3e", "010201937a4d5c3-1", "0102-", "order-1815", "ä10201937a4d5c3e-1"]
        {
            assert_eq!(read(none), None, "{none}");
        }
    }
}
