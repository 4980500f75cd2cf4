//! File's record of the clock: its time stamp, a doubt, and the corrections.

use redb::{ReadTransaction, ReadableTable};

use crate::domain::clock_corrections::{TimeRecord, WindowTime};
use crate::store::redb::damage::{DamagedRow, InRow};
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::time_record::{decode_time, encode_time};
use crate::store::redb::tables::{CLOCK, Rows, TIME_KEY, Tables};
use crate::store::redb::writer::Batch;

type Read = Result<Option<TimeRecord>, DamagedRow>;

/// Reads the record, if there is one.
pub(in crate::store) fn read(
    transaction: &ReadTransaction,
) -> Result<Option<TimeRecord>, ReadError> {
    Ok(read_from(&transaction.open_table(CLOCK)?)??)
}

/// Returns the time of the stamp. A record that cannot be read counts as none here; a later read
/// reports it.
pub(super) fn reached(tables: &mut Tables<'_>) -> Result<Option<WindowTime>, ReadError> {
    let read = read_from(tables.clock.open()?)?;
    Ok(read.ok().flatten().map(TimeRecord::reached))
}

fn read_from(table: &impl ReadableTable<&'static str, Rows>) -> Result<Read, redb::StorageError> {
    let row = table.get(TIME_KEY)?;
    Ok(row.map(|row| decode_time(row.value()).in_row(CLOCK, TIME_KEY)).transpose())
}

/// Writes the record.
pub(in crate::store) fn write(batch: &mut Batch<'_>, record: &TimeRecord) -> Result<(), ReadError> {
    batch.tables.clock.open()?.insert(TIME_KEY, encode_time(record).as_slice())?;
    Ok(())
}
