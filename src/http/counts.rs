//! What the client listener counts since the start.

use crate::http::error::ApiError;
use crate::tally::Tally;
use crate::tally::count::{ByName, Count};

/// The listener's counts.
#[derive(Debug)]
pub struct Counts {
    /// Messages accepted.
    pub accepted: Count,
    /// Requests answered with an earlier message's id.
    pub replayed: Count,
    /// Requests refused, by the code that the client was told.
    pub refused: ByName<{ ApiError::CODES.len() }>,
    /// Open connections.
    pub connections: Tally,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            accepted: Count::default(),
            replayed: Count::default(),
            refused: ByName::new(ApiError::CODES),
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
