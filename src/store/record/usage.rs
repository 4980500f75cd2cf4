//! Rows of usage: an organisation's counts of a month, and of the last day, hour and minute of it.

use serde::{Deserialize, Serialize};

use crate::error::RowError;
use crate::record::{decode, encode};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::{Count, Usage};

/// The beginning of the month is in the key.
#[derive(Serialize, Deserialize)]
struct UsageV1 {
    month: u64,
    day: (u64, u64),
    hour: (u64, u64),
    minute: (u64, u64),
}

pub(crate) fn encode_usage(usage: &Usage) -> Vec<u8> {
    let count = |count: Count| (count.start.unix_millis(), count.used);
    let Usage { minute, hour, day, month } = *usage;
    let row =
        UsageV1 { month: month.used, day: count(day), hour: count(hour), minute: count(minute) };
    encode(&row, 32)
}

/// Reads the row of the month that begins at `month`.
pub(crate) fn decode_usage(month: u64, bytes: &[u8]) -> Result<Usage, RowError> {
    let row: UsageV1 = decode(bytes)?;
    let count =
        |(start, used): (u64, u64)| Count { start: Timestamp::from_unix_millis(start), used };
    let usage = Usage {
        minute: count(row.minute),
        hour: count(row.hour),
        day: count(row.day),
        month: count((month, row.month)),
    };
    // A period that ends beyond it has no end.
    let starts = [usage.minute, usage.hour, usage.day, usage.month].map(|count| count.start);
    if starts.iter().any(|start| *start >= Timestamp::LAST) {
        return Err(RowError::Invalid("a period beyond all time"));
    }
    Ok(usage)
}
