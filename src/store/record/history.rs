//! Rows of the history: counts of the events in an hour.

use serde::{Deserialize, Serialize};

use crate::error::RowError;
use crate::organisation_counts::OrganisationCounts;
use crate::record::{VERSION, body, encode_by};

/// The order of the fields is the stored format.
#[derive(Serialize, Deserialize)]
#[serde(remote = "OrganisationCounts")]
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

pub(crate) fn encode_counts(counts: &OrganisationCounts) -> Vec<u8> {
    encode_by(VERSION, 32, |row| CountsV1::serialize(counts, row))
}

pub(crate) fn decode_counts(bytes: &[u8]) -> Result<OrganisationCounts, RowError> {
    Ok(CountsV1::deserialize(&mut body(VERSION, bytes)?)?)
}
