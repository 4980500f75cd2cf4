//! A pending message as readers see it: the state in memory, or another node's report, laid over
//! the stored row.

use std::time::Duration;

use tokio::time::sleep;

use pillarbox_domain::message::{Failure, Message, Status};

/// Time in which a message may have come further.
const POLL: Duration = Duration::from_millis(20);

/// Waits before a pending message is read again.
pub async fn live_changes() {
    sleep(POLL).await;
}

/// State of a pending message at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Live {
    /// It waits for an attempt.
    Waiting {
        /// Problem that keeps every message from being sent, if there is one.
        obstacle: Option<Failure>,
    },
    /// A call is under way.
    Sending {
        /// Calls that were started, this one included.
        attempts: u32,
    },
}

/// Reader's view of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View<'a> {
    /// Status at this moment.
    pub status: Status,
    /// Calls that were started.
    pub attempts: u32,
    /// Reason why it is not sent, or not yet: the message's own failure before the common obstacle.
    pub failure: Option<&'a Failure>,
}

impl<'a> View<'a> {
    /// Lays the live state over the row. A row that is final wins: its call has ended since.
    pub fn of(message: &'a Message, live: Option<&'a Live>) -> Self {
        let (status, failure) = (message.status(), message.failure());
        let (calling, obstacle) = match live {
            Some(Live::Sending { attempts }) => (Some(*attempts), None),
            Some(Live::Waiting { obstacle }) => (None, obstacle.as_ref()),
            None => (message.calling, None),
        };
        match (status, calling) {
            (Status::Queued, Some(attempts)) => {
                let attempts = message.attempts.max(attempts);
                Self { status: Status::Sending, attempts, failure }
            }
            (Status::Queued, None) => {
                Self { status, attempts: message.attempts, failure: failure.or(obstacle) }
            }
            (status, _) => Self { status, attempts: message.attempts, failure },
        }
    }
}
