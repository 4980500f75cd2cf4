//! The store's record of the clock: its time stamp, a doubt, and the corrections.

use crate::domain::clock_corrections::TimeRecord;
use crate::store::error::DamagedRow;
use crate::store::record::{decode_time, encode_time};
use crate::store::{Store, StoreError};

impl Store {
    /// Returns the store's record of the clock, or `None` if the store is new or of an earlier
    /// version.
    pub async fn time_record(&self) -> Result<Option<TimeRecord>, StoreError> {
        let row = read_engine!(self, engine => engine.time_row())?;
        let read = row.map(|row| decode_time(&row)).transpose();
        read.map_err(|reason| self.damaged_row(DamagedRow::new("clock", "time", &reason)))
    }

    /// Stores the record of the clock.
    pub async fn keep_time_record(&self, record: TimeRecord) -> Result<(), StoreError> {
        ask_engine!(self, engine => engine.put_time_row(encode_time(&record)))
    }
}
