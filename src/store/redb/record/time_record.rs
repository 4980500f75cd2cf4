//! Row of the file's record of the clock.

use serde::{Deserialize, Serialize};

use crate::domain::clock_corrections::{Assurance, Correction, StoredDoubt, TimeRecord};
use crate::domain::time::Timestamp;
use crate::store::redb::record::{RowError, decode, encode};

#[derive(Serialize, Deserialize)]
struct TimeV1 {
    stamp: u64,
    /// The corrected instant at which windows stand still, and the first unsure stored instant.
    doubt: Option<(u64, u64)>,
    assurance: AssuranceV1,
    corrections: Vec<(u64, i64)>,
}

// The order of the variants is the stored format: new ones go to the end.
stored_enum!(AssuranceV1 = Assurance { Never, Given });

/// Returns the row of a record.
pub(in crate::store) fn encode_time(record: &TimeRecord) -> Vec<u8> {
    let TimeRecord { stamp, doubt, assurance, corrections } = record;
    let millis = |instant: Timestamp| instant.unix_millis();
    let row = TimeV1 {
        stamp: millis(*stamp),
        doubt: doubt.map(|doubt| (millis(doubt.frozen_at), millis(doubt.unsure_from))),
        assurance: (*assurance).into(),
        corrections: corrections
            .iter()
            .map(|Correction { from, shift_millis }| (millis(*from), *shift_millis))
            .collect(),
    };
    encode(&row, 64)
}

/// Reads a record's row.
pub(in crate::store) fn decode_time(bytes: &[u8]) -> Result<TimeRecord, RowError> {
    let row: TimeV1 = decode(bytes)?;
    let instant = Timestamp::from_unix_millis;
    let corrections: Vec<_> = row
        .corrections
        .into_iter()
        .map(|(from, shift_millis)| Correction { from: instant(from), shift_millis })
        .collect();
    if !corrections.is_sorted_by(|a, b| a.from < b.from) {
        return Err(RowError::Invalid("corrections that are not in order"));
    }
    Ok(TimeRecord {
        stamp: instant(row.stamp),
        doubt: row.doubt.map(|(frozen_at, unsure_from)| StoredDoubt {
            frozen_at: instant(frozen_at),
            unsure_from: instant(unsure_from),
        }),
        assurance: row.assurance.into(),
        corrections,
    })
}
