//! Rows of the history: counts of the events in an hour.

use serde::{Deserialize, Serialize};

use crate::error::RowError;
use crate::organisation_counts::OrganisationCounts;
use crate::record::{decode, encode};

/// Declares the stored twin of the counts, and both conversions. The order of the fields is the
/// stored format.
macro_rules! stored_counts {
    ($stored:ident { $($field:ident),+ $(,)? }) => {
        #[derive(Serialize, Deserialize)]
        struct $stored { $($field: u64),+ }

        impl From<&OrganisationCounts> for $stored {
            fn from(counts: &OrganisationCounts) -> Self {
                Self { $($field: counts.$field),+ }
            }
        }

        impl From<$stored> for OrganisationCounts {
            fn from(row: $stored) -> Self {
                Self { $($field: row.$field),+ }
            }
        }
    };
}

stored_counts!(CountsV1 {
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
});

pub(crate) fn encode_counts(counts: &OrganisationCounts) -> Vec<u8> {
    encode(&CountsV1::from(counts), 32)
}

pub(crate) fn decode_counts(bytes: &[u8]) -> Result<OrganisationCounts, RowError> {
    Ok(decode::<CountsV1>(bytes)?.into())
}
