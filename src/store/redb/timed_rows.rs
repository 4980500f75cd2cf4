//! Tables whose rows are kept for a while, and whose number of rows is limited.

use std::ops::Range;

use redb::{ReadableTable, ReadableTableMetadata, StorageError};

use crate::limits;
use crate::redb::changes;
use crate::redb::error::ReadError;
use crate::redb::tables::{Row, Tables, TimedRow};
use crate::rows::Table;
use pillarbox_domain::time::Timestamp;

/// The part of a full table that is removed at once, so that not every new row checks all others.
const SHARE: usize = 10;

/// Removes rows that were put at the instants of these runs.
pub(super) fn expire(
    tables: &mut Tables<'_>,
    table: Table,
    runs: &[Range<Timestamp>],
) -> Result<(), ReadError> {
    let table = timed(tables, table)?;
    if !table.is_empty()? {
        table.retain_in::<&[u8]>(.., |_, (time, _)| {
            !runs.iter().any(|run| run.contains(&Timestamp::from_unix_millis(time)))
        })?;
    }
    Ok(())
}

fn timed<'a, 'txn>(
    tables: &'a mut Tables<'txn>,
    table: Table,
) -> Result<&'a mut changes::Table<'txn, Row, TimedRow>, redb::Error> {
    match table {
        Table::UnmatchedEvents => tables.unmatched.open(),
        Table::DeadLetters => tables.dead_letters.open(),
        other => unreachable!("the rows of {} are not kept for a while", other.as_str()),
    }
}

/// Removes the oldest rows of a table that has `max` of them.
pub(super) fn make_room(
    tables: &mut Tables<'_>,
    table: Table,
    max: usize,
    what: &str,
) -> Result<(), ReadError> {
    let table = timed(tables, table)?;
    if table.len()? < max as u64 {
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
    table.retain_in::<&[u8]>(.., |_, (time, _)| {
        let goes = time < cut || (time == cut && at_the_cut > 0);
        if goes && time == cut {
            at_the_cut -= 1;
        }
        !goes
    })?;
    limits::warn_removed(number as u64, what);
    Ok(())
}
