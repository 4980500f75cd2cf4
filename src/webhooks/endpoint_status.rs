//! State of the deliveries to an endpoint, for the page, `status` and metrics.
//!
//! It is in memory alone, and begins anew with the process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::time::Timestamp;

/// Number of attempts of each endpoint that are kept.
pub const RECENT: usize = 100;
/// The most of an answer's body that is remembered with an attempt, in bytes.
const MAX_ANSWER_BYTES: usize = 1_024;
/// An endpoint fails from so many failed attempts in a row on.
const FAILING_FROM: u32 = 3;

/// State of the deliveries to an endpoint.
#[derive(Debug, Clone, Default)]
pub struct EndpointStatus {
    /// Last answer, or what came in its place.
    pub last: Option<LastAnswer>,
    /// Attempts that failed since the last that did not.
    pub failures_in_a_row: u32,
    /// Number of attempts under way.
    pub in_flight: usize,
    /// Deliveries that wait for their next attempt.
    pub waiting: u64,
    /// Time of the oldest event that no attempt was made for.
    pub behind_since: Option<Timestamp>,
    /// Position of the last event that an attempt was made for; `None` before the first read. The
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
    /// Last attempts, the newest last. Shared, because a snapshot of all endpoints is made each second.
    pub recent: VecDeque<Arc<Attempted>>,
}

/// Answer to an attempt, or what came in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastAnswer {
    /// Time at which it came.
    pub at: Timestamp,
    /// Status, or what went wrong.
    pub answer: String,
}

/// Attempt to deliver an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempted {
    /// Identifier of the event.
    pub event: String,
    /// Type of the event.
    pub event_type: &'static str,
    /// Identifier of the message.
    pub message: String,
    /// Number of the attempt, from 1 on.
    pub attempt: u32,
    /// Time at which it ended.
    pub at: Timestamp,
    /// Status of the answer, or what went wrong.
    pub answer: String,
    /// Time that it took.
    pub took: Duration,
    /// Beginning of the answer's body. It is in memory only.
    pub body: Box<str>,
    /// Result of the attempt.
    pub result: AttemptResult,
}

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    /// Nothing: the endpoint took the event.
    Delivered,
    /// Another attempt, at this time.
    Waiting(Timestamp),
    /// Nothing: it was the last attempt.
    Failed,
    /// The endpoint wants no more events, and is paused.
    Gone,
}

impl AttemptResult {
    /// The state of the delivery in one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            // The event is attempted again once the endpoint is resumed.
            Self::Waiting(_) | Self::Gone => "waiting",
            Self::Failed => "failed",
        }
    }
}

/// Returns as much of an answer's body as is remembered.
pub(super) fn beginning(body: &[u8]) -> Box<str> {
    String::from_utf8_lossy(&body[..body.len().min(MAX_ANSWER_BYTES)]).into()
}

impl EndpointStatus {
    /// True if the last attempts all failed.
    pub fn is_failing(&self) -> bool {
        self.failures_in_a_row >= FAILING_FROM
    }

    /// Notes an attempt that has ended.
    pub(super) fn attempted(&mut self, attempted: Attempted) {
        self.last = Some(LastAnswer { at: attempted.at, answer: attempted.answer.clone() });
        self.failures_in_a_row = match attempted.result {
            AttemptResult::Delivered => 0,
            _ => self.failures_in_a_row.saturating_add(1),
        };
        match attempted.result {
            AttemptResult::Delivered => self.delivered += 1,
            AttemptResult::Waiting(_) => self.retried += 1,
            AttemptResult::Failed => self.failed += 1,
            AttemptResult::Gone => {}
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Arc::new(attempted));
    }

    /// Notes that no attempt can be made.
    pub(super) fn cannot_be_called(&mut self, reason: String) {
        self.failures_in_a_row = u32::MAX;
        self.last = Some(LastAnswer { at: Timestamp::from_unix_millis(0), answer: reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempted(number: u32, result: AttemptResult) -> Attempted {
        Attempted {
            event: format!("evt_{number}"),
            event_type: "email.sent",
            message: String::new(),
            attempt: 1,
            at: Timestamp::from_unix_millis(0),
            answer: "status 500".to_owned(),
            took: Duration::ZERO,
            body: beginning("ü".repeat(MAX_ANSWER_BYTES).as_bytes()),
            result,
        }
    }

    #[test]
    fn the_last_attempts_are_kept_with_the_beginning_of_their_answers() {
        let mut status = EndpointStatus::default();
        for number in 0..150 {
            status.attempted(attempted(number, AttemptResult::Failed));
        }
        assert_eq!((status.recent.len(), status.failed), (RECENT, 150));
        assert!(status.is_failing());
        assert_eq!(status.recent[0].event, "evt_50");
        assert_eq!(&*status.recent[0].body, "ü".repeat(MAX_ANSWER_BYTES / 2));
        status.attempted(attempted(150, AttemptResult::Delivered));
        assert!(!status.is_failing());
    }
}
