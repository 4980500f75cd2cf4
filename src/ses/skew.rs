//! How far our clock is from AWS's, which refuses requests whose date is minutes off.

use std::time::{Duration, SystemTime};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use http::HeaderMap;
use http::header::DATE;

use crate::domain::time::Timestamp;

/// How far AWS's clock is from ours, as its last answer's `Date` told, to about a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skew {
    /// Ours is behind.
    Behind(Duration),
    /// Ours is ahead, or right.
    Ahead(Duration),
}

impl Skew {
    fn between(theirs: Timestamp, ours: Timestamp) -> Self {
        let apart = Duration::from_millis(theirs.unix_millis().abs_diff(ours.unix_millis()));
        if theirs > ours { Self::Behind(apart) } else { Self::Ahead(apart) }
    }

    /// What an answer's `Date` tells, if it has one, where our clock shows `ours`.
    pub(super) fn told(headers: &HeaderMap, ours: Timestamp) -> Option<Self> {
        let date = headers.get(DATE)?.to_str().ok()?;
        let date = DateTime::from_str(date, Format::HttpDate).ok()?;
        Some(Self::between(Timestamp::from(SystemTime::try_from(date).ok()?), ours))
    }

    /// How far, whichever way.
    pub const fn apart(self) -> Duration {
        match self {
            Self::Behind(apart) | Self::Ahead(apart) => apart,
        }
    }
}
