//! A pending message as readers see it: what memory knows, or another node has told, laid over the
//! stored row.

use std::time::Duration;

use tokio::time::sleep;

use pillarbox_domain::message::{Failure, Message, Status};

/// Time in which a message may have come further.
const POLL: Duration = Duration::from_millis(20);

/// Waits before a pending message is looked at again.
pub async fn live_changes() {
    sleep(POLL).await;
}

/// How a pending message stands this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Live {
    /// It waits for an attempt.
    Waiting {
        /// What keeps every message from being sent, where something does.
        obstacle: Option<Failure>,
    },
    /// A call is under way.
    Sending {
        /// Calls that were started, this one included.
        attempts: u32,
    },
}

/// What a reader sees of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View<'a> {
    /// Its status.
    pub status: Status,
    /// Calls that were started.
    pub attempts: u32,
    /// Why it is not sent, or not yet: the message's own failure before the common obstacle.
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
