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

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::id::{MessageId, OrganisationId};
    use pillarbox_domain::message::{Acceptance, FailureCode, State};
    use pillarbox_domain::message_terms::Terms;
    use pillarbox_domain::time::Timestamp;

    fn message(state: State) -> Message {
        Message {
            id: MessageId::from_bytes([1; 16]),
            organisation: OrganisationId(1),
            created_at: Timestamp::from_unix_millis(1),
            from: "a@example.com".to_owned(),
            recipients: vec!["b@example.org".to_owned()],
            subject: "Hello".to_owned(),
            metadata: None,
            terms: Terms::NONE,
            attempts: 2,
            state,
            last_event: None,
            calling: None,
        }
    }

    fn queued(last_failure: Option<Failure>) -> Message {
        message(State::Queued { last_failure, acceptance: Acceptance::Excluded })
    }

    #[test]
    fn a_call_under_way_makes_a_queued_message_one_that_is_being_sent() {
        for (called, attempts) in [(3, 3), (1, 2)] {
            let queued = queued(None);
            let live = Live::Sending { attempts: called };
            let view = View::of(&queued, Some(&live));
            assert_eq!((view.status, view.attempts), (Status::Sending, attempts));
            // Another node reports it.
            let elsewhere = Message { calling: Some(called), ..queued };
            let view = View::of(&elsewhere, None);
            assert_eq!((view.status, view.attempts), (Status::Sending, attempts));
        }
    }

    #[test]
    fn its_own_failure_comes_before_the_common_obstacle() {
        let obstacle = Failure::new(FailureCode::SendingPaused, "all wait");
        let own = Failure::new(FailureCode::ProviderThrottled, "too fast");
        let live = Live::Waiting { obstacle: Some(obstacle.clone()) };
        let new = queued(None);
        let view = View::of(&new, Some(&live));
        let expected = View { status: Status::Queued, attempts: 2, failure: Some(&obstacle) };
        assert_eq!(view, expected);
        let tried = queued(Some(own.clone()));
        assert_eq!(View::of(&tried, Some(&live)).failure, Some(&own));
        assert_eq!(View::of(&new, None).failure, None);
    }

    #[test]
    fn a_final_row_wins_over_the_live_state() {
        let sent_at = Timestamp::from_unix_millis(2);
        let sent = message(State::Sent { ses_message_id: "1".to_owned(), sent_at });
        let view = View::of(&sent, Some(&Live::Sending { attempts: 3 }));
        assert_eq!(view, View { status: Status::Sent, attempts: 2, failure: None });
    }
}
