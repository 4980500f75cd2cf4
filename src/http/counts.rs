//! What the client listener counts since the start.

use crate::http::error::ApiError;
use crate::tally::Tally;
use crate::tally::count::{ByName, Count};

/// Every code that a refusal has.
const CODES: [&str; 20] = [
    "BadRequest",
    "InvalidJson",
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "MethodNotAllowed",
    "RequestTimeout",
    "PayloadTooLarge",
    "UriTooLong",
    "HeadersTooLarge",
    "UnsupportedMediaType",
    "ValidationError",
    "UnsupportedTag",
    "UnverifiedDomain",
    "Suppressed",
    "InternalError",
    "QueueFull",
    "StorageUnavailable",
    "ShuttingDown",
    "TooManyConnections",
];

/// The listener's counts.
#[derive(Debug)]
pub struct Counts {
    /// Messages accepted.
    pub accepted: Count,
    /// Requests answered with an earlier message's id.
    pub replayed: Count,
    /// Requests with an `Idempotency-Key` header, which is not implemented.
    pub ignored_keys: Count,
    /// Requests refused, by the code that the client was told.
    pub refused: ByName<{ CODES.len() }>,
    /// Open connections.
    pub connections: Tally,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            accepted: Count::default(),
            replayed: Count::default(),
            ignored_keys: Count::default(),
            refused: ByName::new(CODES),
            connections: Tally::default(),
        }
    }
}

impl Counts {
    pub(super) fn refuse(&self, error: &ApiError) {
        let (_, code) = error.kind();
        self.refused.one(code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_that_the_sources_know_is_counted() {
        let kinds = include_str!("error.rs").split("pub const fn kind").nth(1).unwrap();
        let kinds = kinds.split("\n    }\n").next().unwrap();
        let mut known: Vec<_> = kinds.split('"').skip(1).step_by(2).collect();
        let mut counted = CODES.to_vec();
        known.sort_unstable();
        counted.sort_unstable();
        assert_eq!(known, counted);
    }
}
