//! Outcome of a message: one word for its progress, from its status and its latest event.
//!
//! Operators read it. A client reads the two apart, as `status` and `lastEvent`: whether the
//! provider took the message, and what it reported after that.

use std::str::FromStr;

use crate::event::EventType;
use crate::message::{Message, Status};
use crate::worded;

worded! {
    /// Progress of a message: its status, or after `sent` its latest event.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum MessageOutcome {
        /// Accepted by us, waiting for an attempt.
        Queued = "queued",
        /// A call to the provider is under way.
        Sending = "sending",
        /// The provider accepted it and has reported nothing since.
        Sent = "sent",
        /// The recipient's server accepted it.
        Delivered = "delivered",
        /// The recipient's server does not take it for now.
        Delayed = "delayed",
        /// The message came back from the recipient's server.
        Bounced = "bounced",
        /// A recipient called it unwanted.
        Complained = "complained",
        /// The provider accepted it, then refused to send it on.
        Rejected = "rejected",
        /// It will not be sent.
        Failed = "failed",
        /// It will not be sent, because a recipient became suppressed after acceptance.
        Suppressed = "suppressed",
    }
}

/// The text is no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an outcome")]
pub struct NotAnOutcome;

impl MessageOutcome {
    /// Returns the outcome of a message with this status and this latest event.
    pub const fn of(status: Status, last_event: Option<EventType>) -> Self {
        match (status, last_event) {
            (Status::Queued, _) => Self::Queued,
            (Status::Sending, _) => Self::Sending,
            (Status::Sent, None) => Self::Sent,
            (Status::Sent, Some(EventType::Delivery)) => Self::Delivered,
            (Status::Sent, Some(EventType::DeliveryDelay)) => Self::Delayed,
            (Status::Sent, Some(EventType::Bounce)) => Self::Bounced,
            (Status::Sent, Some(EventType::Complaint)) => Self::Complained,
            (Status::Sent, Some(EventType::Reject)) => Self::Rejected,
            (Status::Failed, _) => Self::Failed,
            (Status::Suppressed, _) => Self::Suppressed,
        }
    }

    /// Returns the outcome of a message that has this status now, stored or not.
    pub fn of_message(message: &Message, status: Status) -> Self {
        Self::of(status, message.last_event.map(|event| event.event_type))
    }
}

impl FromStr for MessageOutcome {
    type Err = NotAnOutcome;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text).ok_or(NotAnOutcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_event_counts_once_a_message_is_sent_and_not_before() {
        for event in EventType::ALL.map(Some).into_iter().chain([None]) {
            for status in Status::ALL {
                let outcome = MessageOutcome::of(status, event);
                let expected = match event {
                    Some(event) if status == Status::Sent => match event {
                        EventType::Delivery => "delivered",
                        EventType::Bounce => "bounced",
                        EventType::Complaint => "complained",
                        EventType::Reject => "rejected",
                        EventType::DeliveryDelay => "delayed",
                    },
                    Some(_) | None => status.as_str(),
                };
                assert_eq!(outcome.as_str(), expected, "{status:?} {event:?}");
            }
        }
    }

    #[test]
    fn every_outcome_is_read_by_its_word_and_nothing_else_is_one() {
        for outcome in MessageOutcome::ALL {
            assert_eq!(outcome.as_str().parse(), Ok(outcome));
        }
        for text in ["", "bounce", "Bounced", "delivery_delay"] {
            assert_eq!(text.parse::<MessageOutcome>(), Err(NotAnOutcome), "{text}");
        }
    }
}
