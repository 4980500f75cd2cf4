//! Tables that hold only so many rows and only for so long, whatever their keys are.

use std::time::Duration;

use redb::{ReadableTable, ReadableTableMetadata, StorageError};

use crate::domain::clock_corrections::WindowTime;
use crate::domain::time::Timestamp;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::tables::{Kept, Rows, Table};

/// The part of a full table that goes at once, so that not every new row looks at all others.
const SHARE: usize = 10;

/// Removes the oldest rows of a table that has `max` of them.
pub(super) fn make_room(
    table: &mut Table<'_, Rows, Kept>,
    max: u64,
    what: &str,
) -> Result<(), ReadError> {
    if table.len()? < max {
        return Ok(());
    }
    let mut times: Vec<u64> = table
        .iter()?
        .map(|row| row.map(|(_, row)| row.value().0))
        .collect::<Result<_, StorageError>>()?;
    let number = (times.len() / SHARE).max(1);
    let (older, cut, _) = times.select_nth_unstable(number - 1);
    let cut = *cut;
    let mut at_the_cut = number - older.iter().filter(|&&time| time < cut).count();
    table.retain(|_, (time, _)| {
        let goes = time < cut || (time == cut && at_the_cut > 0);
        if goes && time == cut {
            at_the_cut -= 1;
        }
        !goes
    })?;
    tracing::warn!(number, "too many {what} are kept: the oldest were removed");
    Ok(())
}

/// Removes the rows that are `window` old.
pub(super) fn expire(
    table: &mut Table<'_, Rows, Kept>,
    window_now: &WindowTime,
    window: Duration,
) -> Result<(), ReadError> {
    if !table.is_empty()? {
        table.retain(|_, (time, _)| {
            !window_now.is_past(Timestamp::from_unix_millis(time), window)
        })?;
    }
    Ok(())
}
