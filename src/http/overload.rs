//! A limit that organisations share is used up, as a client is told.

use std::time::Duration;

use crate::share::Exhausted;

/// What is used up, and when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overload {
    /// Which limit.
    pub limit: SharedLimit,
    /// Whether all of it, or the organisation's share.
    pub exhausted: Exhausted,
    /// When there should be room again.
    pub retry_after: Duration,
}

/// A limit that organisations share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedLimit {
    /// Bytes of messages that wait to be sent.
    Pending,
    /// Bytes of request bodies that are being read.
    Reading,
    /// Bytes of responses that clients have not read.
    Writing,
    /// Listings that run or wait.
    Listings,
}

impl Overload {
    /// A limit whose holders give it back soon: most requests take less than a second.
    pub const fn short(limit: SharedLimit, exhausted: Exhausted) -> Self {
        Self { limit, exhausted, retry_after: Duration::from_secs(1) }
    }

    /// What is used up and what to do.
    pub const fn message(&self) -> &'static str {
        match (self.limit, self.exhausted) {
            (SharedLimit::Pending, Exhausted::Whole) => {
                "the service holds as many messages as it may for now; try again later"
            }
            (SharedLimit::Pending, Exhausted::Share) => {
                "your organisation's share of the queue is used up by its messages that wait to \
                 be sent; try again later"
            }
            (SharedLimit::Reading, Exhausted::Whole) => {
                "the service reads as many request bodies as it may for now; try again later"
            }
            (SharedLimit::Reading, Exhausted::Share) => {
                "your organisation's share of the memory for request bodies is used up; finish \
                 the requests under way, or try again later"
            }
            (SharedLimit::Writing, Exhausted::Whole) => {
                "clients leave as many responses unread as the service may hold for now; try \
                 again later"
            }
            (SharedLimit::Writing, Exhausted::Share) => {
                "your organisation's share of the memory for responses is used up; read the \
                 responses under way, then try again"
            }
            (SharedLimit::Listings, Exhausted::Whole | Exhausted::Share) => {
                "too many listings of your organisation wait; try again later"
            }
        }
    }
}
