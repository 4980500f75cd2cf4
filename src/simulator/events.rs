//! Events: what SES publishes about an accepted message, and how it reaches the queue.
//!
//! The recipients' fates decide. Knows which events there are, when they come and where to; the
//! documents themselves are built below. Must not know HTTP or the queue.

use std::sync::Arc;
use std::time::Duration;

use super::ACCOUNT;
use super::caught::CaughtMessage;
use super::ids::Ids;
use super::queue::NewMessage;

mod document;
mod envelope;
mod outcome;

use document::{Detail, Mail};
use outcome::{Group, GroupFate};

/// Whether accepted messages come back as events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Events {
    /// They do not: a queue that nobody reads would only fill.
    #[default]
    Off,
    /// They do.
    On(EventOptions),
}

/// When events come, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// From the acceptance to its `Send` event.
    pub send_after: Duration,
    /// From the acceptance to each recipient's `Delivery` or `Bounce`.
    pub outcome_after: Duration,
    /// From the acceptance to a `Complaint`; never before the delivery that it complains about.
    pub complaint_after: Duration,
    /// What events are wrapped in.
    pub envelope: Envelope,
    /// Which messages have events.
    pub route: EventRoute,
}

impl EventOptions {
    /// `Send` at once, deliveries and bounces after `delay`, complaints after twice that.
    pub fn after(delay: Duration) -> Self {
        Self { outcome_after: delay, complaint_after: 2 * delay, ..Self::default() }
    }
}

/// What an event is wrapped in on its way from SES to the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Envelope {
    /// As SNS puts it into a queue: a notification with the event as a string.
    #[default]
    Sns,
    /// As SNS does with raw message delivery: the event alone.
    Raw,
    /// As an `EventBridge` rule puts it into a queue: the event as its detail.
    EventBridge,
}

/// Which messages have events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventRoute {
    /// Every accepted message, whether or not it names a configuration set.
    #[default]
    EveryMessage,
    /// As at SES: those whose configuration set has an enabled event destination for the type.
    Destinations,
}

/// The types that the simulator gives, in the words of an event destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventType {
    Send,
    Delivery,
    Bounce,
    Complaint,
}

impl EventType {
    /// As `MatchingEventTypes` names it.
    pub(super) fn matching_name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Delivery => "DELIVERY",
            Self::Bounce => "BOUNCE",
            Self::Complaint => "COMPLAINT",
        }
    }

    /// As `eventType` names it.
    fn name(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::Delivery => "Delivery",
            Self::Bounce => "Bounce",
            Self::Complaint => "Complaint",
        }
    }
}

/// Makes the events of one simulator's account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Publisher<'a> {
    pub(super) ids: &'a Ids,
    pub(super) region: &'a str,
    pub(super) topic: &'a str,
}

impl Publisher<'_> {
    /// The events of an accepted message that `is_wanted`, in the order of their times.
    pub(super) fn events_of(
        self,
        message: &CaughtMessage,
        options: EventOptions,
        is_wanted: impl Fn(EventType) -> bool,
    ) -> Vec<NewMessage> {
        let mail = Mail::of(message, self.region);
        let mut events = Vec::new();
        let mut publish = |event_type: EventType, after: Duration, detail: Detail<'_>| {
            if is_wanted(event_type) {
                let event = document::write(event_type.name(), &mail, &detail);
                events.push(self.enclose(event_type, message, &event, after, options.envelope));
            }
        };
        publish(EventType::Send, options.send_after, Detail::Send {});
        let outcome_at = message.received_at.plus(options.outcome_after);
        let complaint_after = options.complaint_after.max(options.outcome_after);
        let complaint_at = message.received_at.plus(complaint_after);
        let groups = outcome::groups(message);
        for group in &groups {
            let feedback_id = || self.ids.message_id(outcome_at);
            let after = options.outcome_after;
            match group.fate {
                GroupFate::Delivered => {
                    let detail = document::delivery(group, outcome_at, after);
                    publish(EventType::Delivery, after, detail);
                }
                GroupFate::Bounced => {
                    let detail = document::bounce(group, outcome_at, feedback_id());
                    publish(EventType::Bounce, after, detail);
                }
                GroupFate::Suppressed => {
                    let detail = document::suppression(group, outcome_at, feedback_id());
                    publish(EventType::Bounce, after, detail);
                }
            }
        }
        for group in groups.iter().filter_map(Group::complaining) {
            let id = self.ids.message_id(complaint_at);
            let detail = document::complaint(&group, complaint_at, id);
            publish(EventType::Complaint, complaint_after, detail);
        }
        events
    }

    /// Wraps an event that somebody else wrote, as SNS would now.
    pub(super) fn notification(self, event: &str, now: crate::domain::time::Timestamp) -> Arc<str> {
        envelope::sns(self, event, now).into()
    }

    fn enclose(
        self,
        event_type: EventType,
        message: &CaughtMessage,
        event: &str,
        after: Duration,
        envelope: Envelope,
    ) -> NewMessage {
        let sent_at = message.received_at.plus(after);
        let body = match envelope {
            Envelope::Sns => envelope::sns(self, event, sent_at),
            Envelope::Raw => event.to_owned(),
            Envelope::EventBridge => {
                envelope::event_bridge(self, event_type, message, event, sent_at)
            }
        };
        NewMessage { id: self.ids.uuid(), body: body.into(), sent_at, delay: after }
    }
}

/// The ARN of the topic that events of a queue with this name come through.
pub(super) fn topic_arn(region: &str, queue: &str) -> String {
    format!("arn:aws:sns:{region}:{ACCOUNT}:{queue}")
}
