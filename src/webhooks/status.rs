//! How the deliveries to an endpoint go: what the page, `status` and metrics tell.
//!
//! It is in memory alone, and begins anew with the process.

use std::collections::VecDeque;
use std::time::Duration;

use crate::domain::feed::FeedPosition;
use crate::domain::time::Timestamp;

/// How many deliveries of each endpoint are remembered.
pub const RECENT: usize = 100;
/// An endpoint fails from so many failed attempts in a row on.
const FAILING_FROM: u32 = 3;

/// How the deliveries to an endpoint go.
#[derive(Debug, Clone, Default)]
pub struct EndpointStatus {
    /// Last answer, or what came in its place.
    pub last: Option<LastAnswer>,
    /// Attempts that failed since the last that did not.
    pub failures_in_a_row: u32,
    /// Attempts under way.
    pub in_flight: usize,
    /// Deliveries that wait for their next attempt.
    pub waiting: u64,
    /// When the oldest event was recorded that no attempt was made for.
    pub behind_since: Option<Timestamp>,
    /// Position of the last event that an attempt was made for; `None` before the first look. The
    /// stored cursor follows it.
    pub attempted_to: Option<FeedPosition>,
    /// Events that were delivered.
    pub delivered: u64,
    /// Attempts that failed and are followed by another.
    pub retried: u64,
    /// Deliveries whose last attempt failed.
    pub failed: u64,
    /// Deliveries of events that were past their retention before an attempt succeeded.
    pub expired: u64,
    /// Last deliveries, the newest last.
    pub recent: VecDeque<Delivered>,
}

/// Answer to an attempt, or what came in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastAnswer {
    /// When it came.
    pub at: Timestamp,
    /// Status, or what went wrong.
    pub answer: String,
}

/// Event that an endpoint took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Identifier of the event.
    pub event: String,
    /// Type of the event.
    pub event_type: &'static str,
    /// Identifier of the message.
    pub message: String,
    /// Attempts, the last one included.
    pub attempts: u32,
    /// When it was taken.
    pub at: Timestamp,
    /// Answer of the endpoint.
    pub answer: String,
    /// Time that the last attempt took.
    pub took: Duration,
}

impl EndpointStatus {
    /// Whether the last attempts all failed.
    pub fn is_failing(&self) -> bool {
        self.failures_in_a_row >= FAILING_FROM
    }

    /// Notes an event that was delivered.
    pub(super) fn took(&mut self, delivered: Delivered) {
        self.last = Some(LastAnswer { at: delivered.at, answer: delivered.answer.clone() });
        self.failures_in_a_row = 0;
        self.delivered += 1;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(delivered);
    }

    /// Notes an attempt that failed.
    pub(super) fn refused(&mut self, at: Timestamp, answer: String) {
        self.last = Some(LastAnswer { at, answer });
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
    }

    /// Notes that no attempt can be made.
    pub(super) fn cannot_be_called(&mut self, reason: String) {
        self.failures_in_a_row = u32::MAX;
        self.last = Some(LastAnswer { at: Timestamp::from_unix_millis(0), answer: reason });
    }
}
