//! Rows of usage: an organisation's counts of a month, and of the last day, hour and minute of it.

use crate::error::RowError;
use crate::record::{decode, encode};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::{Count, Usage};

pub(crate) fn encode_usage(usage: &Usage) -> Vec<u8> {
    let count = |count: Count| (count.start.unix_millis(), count.used);
    let Usage { minute, hour, day, month } = *usage;
    // The beginning of the month is in the key.
    encode(&(month.used, count(day), count(hour), count(minute)), 32)
}

/// Reads the row of the month that begins at `month`.
pub(crate) fn decode_usage(month: u64, bytes: &[u8]) -> Result<Usage, RowError> {
    let (used, day, hour, minute) = decode(bytes)?;
    let count =
        |(start, used): (u64, u64)| Count { start: Timestamp::from_unix_millis(start), used };
    let usage = Usage {
        minute: count(minute),
        hour: count(hour),
        day: count(day),
        month: count((month, used)),
    };
    // A period that ends beyond it has no end.
    let starts = [usage.minute, usage.hour, usage.day, usage.month].map(|count| count.start);
    if starts.iter().any(|start| *start >= Timestamp::LAST) {
        return Err(RowError::Invalid("the period is out of range"));
    }
    Ok(usage)
}
