//! Messages whose body was lost with the process that held it, counted until an operator has seen
//! the count.
//!
//! The count is written in the transaction that fails the messages. So a crash neither loses nor
//! doubles it.

use std::time::Duration;

use redb::{ReadTransaction, ReadableTable};

use crate::domain::time::Timestamp;
use crate::store::LostMessages;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::tables::{LOST, LOST_AT, META, Tables};
use crate::store::redb::writer::Batch;

/// How long after the last loss the count is shown if nobody acknowledges it.
const SHOWN: Duration = Duration::from_hours(24);

/// Adds messages that were found lost at `now`.
pub(in crate::store) fn add(
    tables: &mut Tables<'_>,
    messages: u64,
    now: Timestamp,
) -> Result<(), ReadError> {
    if messages == 0 {
        return Ok(());
    }
    let meta = tables.meta.open()?;
    let before = read(meta, now)?.map_or(0, |lost| lost.messages);
    meta.insert(LOST, before + messages)?;
    meta.insert(LOST_AT, now.unix_millis())?;
    Ok(())
}

/// Returns the count that is still to be seen at `now`.
pub(in crate::store) fn unseen(
    transaction: &ReadTransaction,
    now: Timestamp,
) -> Result<Option<LostMessages>, ReadError> {
    read(&transaction.open_table(META)?, now)
}

/// Ends the count, because an operator has seen it; returns what it was.
pub(in crate::store) fn acknowledge(
    batch: &mut Batch<'_>,
    now: Timestamp,
) -> Result<Option<LostMessages>, ReadError> {
    let meta = batch.tables.meta.open()?;
    let lost = read(meta, now)?;
    meta.remove(LOST)?;
    meta.remove(LOST_AT)?;
    Ok(lost)
}

fn read(
    meta: &impl ReadableTable<&'static str, u64>,
    now: Timestamp,
) -> Result<Option<LostMessages>, ReadError> {
    let (Some(messages), Some(last_at)) = (meta.get(LOST)?, meta.get(LOST_AT)?) else {
        return Ok(None);
    };
    let last_at = Timestamp::from_unix_millis(last_at.value());
    let lost = LostMessages { messages: messages.value(), last_at };
    Ok((!last_at.is_past(SHOWN, now)).then_some(lost))
}
