//! Messages whose body was lost with the process that held it, counted until an operator has seen
//! the count.
//!
//! The count is written in the transaction that fails the messages. So a crash neither loses nor
//! doubles it.

use std::time::Duration;

use redb::ReadableTable;

use crate::domain::time::Timestamp;
use crate::store::error::ReadError;
use crate::store::tables::{LOST_MESSAGES, LOST_MESSAGES_AT, META, Tables};
use crate::store::{ROW_WEIGHT, Store, StoreError};

/// How long after the last loss the count is shown if nobody acknowledges it.
const SHOWN: Duration = Duration::from_hours(24);

/// Messages that failed because their body was lost with the process that held it, and that no
/// operator has acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostMessages {
    /// How many.
    pub messages: u64,
    /// When the last of them was found.
    pub last_at: Timestamp,
}

impl Store {
    /// Messages whose body was lost, as far as no operator has acknowledged them and the last loss
    /// is less than 24 hours ago at `now`.
    pub fn lost_messages(&self, now: Timestamp) -> Result<Option<LostMessages>, StoreError> {
        self.read(&META, "lost messages", |transaction| read(&transaction.open_table(META)?, now))
    }

    /// Ends the count, because an operator has seen it; returns what it was.
    pub async fn acknowledge_lost_messages(
        &self,
        now: Timestamp,
    ) -> Result<Option<LostMessages>, StoreError> {
        let acknowledge = self.writer.run(ROW_WEIGHT, move |batch| {
            let meta = batch.tables.meta.open()?;
            let lost = read(&**meta, now)?;
            meta.remove(LOST_MESSAGES)?;
            meta.remove(LOST_MESSAGES_AT)?;
            Ok(lost)
        });
        acknowledge.await
    }
}

/// Adds messages that were found lost at `now`.
pub(super) fn add(tables: &mut Tables<'_>, messages: u64, now: Timestamp) -> Result<(), ReadError> {
    if messages == 0 {
        return Ok(());
    }
    let meta = tables.meta.open()?;
    let before = read(&**meta, now)?.map_or(0, |lost| lost.messages);
    meta.insert(LOST_MESSAGES, before + messages)?;
    meta.insert(LOST_MESSAGES_AT, now.unix_millis())?;
    Ok(())
}

fn read(
    meta: &impl ReadableTable<&'static str, u64>,
    now: Timestamp,
) -> Result<Option<LostMessages>, ReadError> {
    let (Some(messages), Some(last_at)) = (meta.get(LOST_MESSAGES)?, meta.get(LOST_MESSAGES_AT)?)
    else {
        return Ok(None);
    };
    let last_at = Timestamp::from_unix_millis(last_at.value());
    let lost = LostMessages { messages: messages.value(), last_at };
    Ok((!last_at.is_past(SHOWN, now)).then_some(lost))
}
