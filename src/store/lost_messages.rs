//! Messages whose body was lost with the process that held it, counted until an operator has seen
//! the count.
//!
//! The count is written in the transaction that fails the messages. So a crash neither loses nor
//! doubles it.

use crate::limits::LOST_SHOWN;
use crate::rows::{Counter, Lock, Rows, Stop};
use crate::{LostMessages, Store, StoreError};
use pillarbox_domain::time::Timestamp;

impl Store {
    /// Messages whose body was lost, if no operator has acknowledged them and the last loss is less
    /// than 24 hours ago at `now`.
    pub async fn lost_messages(&self, now: Timestamp) -> Result<Option<LostMessages>, StoreError> {
        let counters = self.counters().await?;
        Ok(shown(counters[&Counter::LostMessages], counters[&Counter::LostMessagesAt], now))
    }

    /// Ends the count, because an operator has seen it; returns the count.
    pub async fn acknowledge_lost_messages(
        &self,
        now: Timestamp,
    ) -> Result<Option<LostMessages>, StoreError> {
        let acknowledge = move |rows: &mut dyn Rows| {
            let (messages, at) = read(rows)?;
            rows.set_counter(Counter::LostMessages, 0)?;
            rows.set_counter(Counter::LostMessagesAt, 0)?;
            Ok(shown(messages, at, now))
        };
        self.change(Lock::Rows, 1, acknowledge).await
    }
}

/// Adds messages that were found lost at `now`.
pub(super) fn add(rows: &mut dyn Rows, messages: u64, now: Timestamp) -> Result<(), Stop> {
    let before = read(rows)?;
    rows.set_counter(Counter::LostMessages, sum(before, messages, now))?;
    rows.set_counter(Counter::LostMessagesAt, now.unix_millis())
}

/// Returns the count with more messages. A count that is no longer shown begins anew.
pub(super) fn sum((messages, at): (u64, u64), more: u64, now: Timestamp) -> u64 {
    shown(messages, at, now).map_or(0, |lost| lost.messages) + more
}

fn read(rows: &mut dyn Rows) -> Result<(u64, u64), Stop> {
    Ok((rows.counter(Counter::LostMessages)?, rows.counter(Counter::LostMessagesAt)?))
}

fn shown(messages: u64, last_at: u64, now: Timestamp) -> Option<LostMessages> {
    let last_at = Timestamp::from_unix_millis(last_at);
    (messages > 0 && !last_at.is_past(LOST_SHOWN, now))
        .then_some(LostMessages { messages, last_at })
}
