//! Messages whose body was lost with the process that held it, counted until an operator has seen
//! the count.
//!
//! The count is written in the transaction that fails the messages. So a crash neither loses nor
//! doubles it.

use redb::ReadableTable;

use crate::domain::time::Timestamp;
use crate::store::limits::LOST_SHOWN;
use crate::store::redb::error::ReadError;
use crate::store::redb::tables::{LOST_MESSAGES, LOST_MESSAGES_AT, META, Tables};
use crate::store::redb::{ROW_WEIGHT, RedbStore};
use crate::store::{LostMessages, StoreError};

impl RedbStore {
    pub(in crate::store) fn lost_messages(
        &self,
        now: Timestamp,
    ) -> Result<Option<LostMessages>, StoreError> {
        self.read(&META, "lost messages", |transaction| read(&transaction.open_table(META)?, now))
    }

    pub(in crate::store) async fn acknowledge_lost_messages(
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
    Ok((!last_at.is_past(LOST_SHOWN, now)).then_some(lost))
}
