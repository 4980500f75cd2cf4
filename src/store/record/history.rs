//! Rows of the history: what happened in an hour.

use serde::{Deserialize, Serialize};

use crate::organisation_counts::OrganisationCounts;
use crate::store::error::RowError;
use crate::store::record::{decode, encode};

#[derive(Serialize, Deserialize)]
struct CountsV1 {
    accepted: u64,
    sent: u64,
    sent_recipients: u64,
    failed: u64,
    cancelled: u64,
    suppressed: u64,
    deliveries: u64,
    bounces: u64,
    hard_bounces: u64,
    complaints: u64,
    rejects: u64,
    delivery_delays: u64,
}

/// The row of an hour's counts.
pub(in crate::store) fn encode_counts(counts: &OrganisationCounts) -> Vec<u8> {
    let OrganisationCounts {
        accepted,
        sent,
        sent_recipients,
        failed,
        cancelled,
        suppressed,
        deliveries,
        bounces,
        hard_bounces,
        complaints,
        rejects,
        delivery_delays,
    } = *counts;
    let row = CountsV1 {
        accepted,
        sent,
        sent_recipients,
        failed,
        cancelled,
        suppressed,
        deliveries,
        bounces,
        hard_bounces,
        complaints,
        rejects,
        delivery_delays,
    };
    encode(&row, 32)
}

/// Reads the row of an hour's counts.
pub(in crate::store) fn decode_counts(bytes: &[u8]) -> Result<OrganisationCounts, RowError> {
    let CountsV1 {
        accepted,
        sent,
        sent_recipients,
        failed,
        cancelled,
        suppressed,
        deliveries,
        bounces,
        hard_bounces,
        complaints,
        rejects,
        delivery_delays,
    } = decode(bytes)?;
    Ok(OrganisationCounts {
        accepted,
        sent,
        sent_recipients,
        failed,
        cancelled,
        suppressed,
        deliveries,
        bounces,
        hard_bounces,
        complaints,
        rejects,
        delivery_delays,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_back_as_they_were_written() {
        let counts = OrganisationCounts {
            accepted: 1,
            sent: 2,
            sent_recipients: 300,
            failed: 4,
            cancelled: 5,
            suppressed: 6,
            deliveries: 7,
            bounces: 8,
            hard_bounces: 9,
            complaints: 10,
            rejects: 11,
            delivery_delays: u64::MAX,
        };
        assert_eq!(decode_counts(&encode_counts(&counts)).unwrap(), counts);
        assert!(decode_counts(&[]).is_err() && decode_counts(&[2, 0]).is_err());
    }
}
