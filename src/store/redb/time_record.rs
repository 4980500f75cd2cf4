//! File's record of the clock: its time stamp, a doubt, and the corrections.

use redb::{ReadTransaction, ReadableTable};

use crate::domain::clock_corrections::{TimeRecord, WindowTime};
use crate::store::StoreError;
use crate::store::error::DamagedRow;
use crate::store::record::{decode_time, encode_time};
use crate::store::redb::error::{InRow, ReadError};
use crate::store::redb::tables::{CLOCK, Row, TIME_KEY, Tables};
use crate::store::redb::{ROW_WEIGHT, RedbStore};

impl RedbStore {
    pub(in crate::store) fn time_record(&self) -> Result<Option<TimeRecord>, StoreError> {
        self.read(&CLOCK, TIME_KEY, read)
    }

    pub(in crate::store) async fn keep_time_record(
        &self,
        record: TimeRecord,
    ) -> Result<(), StoreError> {
        let keep = self.writer.run(ROW_WEIGHT, move |batch| {
            batch.tables.clock.open()?.insert(TIME_KEY, encode_time(&record).as_slice())?;
            Ok(())
        });
        keep.await
    }
}

/// Reads the record, if there is one.
pub(super) fn read(transaction: &ReadTransaction) -> Result<Option<TimeRecord>, ReadError> {
    Ok(read_from(&transaction.open_table(CLOCK)?)??)
}

/// Returns the time of the stamp. A record that cannot be read counts as none here; a later read
/// reports it.
pub(super) fn reached(tables: &mut Tables<'_>) -> Result<Option<WindowTime>, ReadError> {
    let read = read_from(&**tables.clock.open()?)?;
    Ok(read.ok().flatten().map(TimeRecord::reached))
}

/// Reads the record; the inner result says whether its row can be read.
fn read_from(
    table: &impl ReadableTable<&'static str, Row>,
) -> Result<Result<Option<TimeRecord>, DamagedRow>, redb::StorageError> {
    let row = table.get(TIME_KEY)?;
    Ok(row.map(|row| decode_time(row.value()).in_row(CLOCK, TIME_KEY)).transpose())
}
