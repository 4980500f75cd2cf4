//! Delivery events: reports of the provider about recipients after it accepted a message.
//!
//! An event belongs to recipients. A message's status (did the provider take it?) is separate: an
//! event may correct it, but does not replace it.

use crate::time::Timestamp;
use crate::worded;

worded! {
    /// Type of a bounce, in SES's terms.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum BounceType {
        /// A hard bounce: the address does not take mail.
        Permanent = "Permanent",
        /// A soft bounce: it may take mail later.
        Transient = "Transient",
        /// SES could not determine the kind.
        Undetermined = "Undetermined",
    }
}

/// Kind of an event, with the provider's details of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventDetail {
    /// The recipient's server accepted the message.
    Delivery {
        /// Answer of that server.
        smtp_response: Option<String>,
    },
    /// The message came back.
    Bounce {
        /// Type of the bounce, by which a permanent one suppresses the recipient.
        bounce_type: BounceType,
        /// SES's closer word, such as `General` or `OnAccountSuppressionList`.
        sub_type: String,
        /// Answer of the recipient's server.
        diagnostic_code: Option<String>,
    },
    /// The recipient called it unwanted.
    Complaint {
        /// The feedback report's type, such as `abuse` (RFC 5965).
        feedback_type: Option<String>,
        /// SES's closer word, such as `OnAccountSuppressionList` if SES itself made the complaint.
        sub_type: Option<String>,
    },
    /// SES accepted the message, then refused to send it on (a virus).
    Reject {
        /// SES's reason, such as `Bad content`.
        reason: String,
    },
    /// The recipient's server does not take it for now; SES continues to try.
    DeliveryDelay {
        /// SES's word for the cause, such as `MailboxFull`.
        delay_type: String,
        /// Answer of the recipient's server.
        diagnostic_code: Option<String>,
    },
}

worded! {
    /// An event's type, as a client reads it (specification section 2.2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum EventType {
        // In rising rank: of events at one instant, the highest is a message's last event.
        /// The recipient's server does not take it for now.
        DeliveryDelay = "delivery_delay",
        /// The recipient's server accepted it.
        Delivery = "delivery",
        /// SES accepted it, then refused to send it on.
        Reject = "reject",
        /// The message came back from the recipient's server.
        Bounce = "bounce",
        /// The recipient called it unwanted.
        Complaint = "complaint",
    }
}

/// One delivery event of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Time of the event, by the provider's clock.
    pub occurred_at: Timestamp,
    /// Recipients that the event is about, as the provider named them.
    pub recipients: Vec<String>,
    /// Kind and details of the event.
    pub detail: EventDetail,
}

impl Event {
    /// Type under which a client reads the event.
    pub const fn event_type(&self) -> EventType {
        match self.detail {
            EventDetail::Delivery { .. } => EventType::Delivery,
            EventDetail::Bounce { .. } => EventType::Bounce,
            EventDetail::Complaint { .. } => EventType::Complaint,
            EventDetail::Reject { .. } => EventType::Reject,
            EventDetail::DeliveryDelay { .. } => EventType::DeliveryDelay,
        }
    }

    /// The event as a client reads it in the message's `lastEvent`.
    pub const fn summary(&self) -> LastEvent {
        LastEvent { occurred_at: self.occurred_at, event_type: self.event_type() }
    }
}

/// A message's latest event. Orders by time, then by the types' rank, so that the last event is the
/// greatest, in whatever order events arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LastEvent {
    /// Time of the event, by the provider's clock.
    pub occurred_at: Timestamp,
    /// Type of the event.
    pub event_type: EventType,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_is_the_latest_and_at_one_time_the_gravest() {
        let at = |millis, event_type| LastEvent {
            occurred_at: Timestamp::from_unix_millis(millis),
            event_type,
        };
        assert!(at(2, EventType::DeliveryDelay) > at(1, EventType::Complaint));
        let ranked = [
            EventType::DeliveryDelay,
            EventType::Delivery,
            EventType::Reject,
            EventType::Bounce,
            EventType::Complaint,
        ];
        assert!(ranked.windows(2).all(|pair| at(1, pair[0]) < at(1, pair[1])));
    }
}
