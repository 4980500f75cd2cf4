//! Rows of records that were set aside, because they could not be read.

use serde::{Deserialize, Serialize};

use crate::store::redb::record::{RowError, decode, encode};

#[derive(Serialize, Deserialize)]
struct SetAsideV1<'a> {
    reason: &'a str,
    /// The record's row as it was found.
    record: &'a [u8],
}

/// The row of a record that was set aside.
pub(in crate::store) fn encode_set_aside(reason: &str, record: &[u8]) -> Vec<u8> {
    encode(&SetAsideV1 { reason, record }, reason.len() + record.len() + 8)
}

/// Reads why a record was set aside.
pub(in crate::store) fn decode_set_aside(bytes: &[u8]) -> Result<String, RowError> {
    let row: SetAsideV1<'_> = decode(bytes)?;
    Ok(row.reason.to_owned())
}
