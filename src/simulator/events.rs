//! Events: which ones SES publishes about an accepted message, and when.
//!
//! The recipients' fates decide. Must not know HTTP, or how the queue keeps a message.

use std::time::Duration;

use super::captured::CapturedMessage;
use super::queue::NewMessage;

mod document;

pub use document::Envelope;
pub(super) use document::{EventType, Publisher};

use document::{Detail, GroupFate, Mail, RecipientGroup};

/// Decides if accepted messages come back as events.
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
    /// The wrapping of each event.
    pub envelope: Envelope,
    /// The messages that have events.
    pub route: EventRoute,
}

impl EventOptions {
    /// `Send` at once, deliveries and bounces after `delay`, complaints after twice that.
    pub fn after(delay: Duration) -> Self {
        Self { outcome_after: delay, complaint_after: 2 * delay, ..Self::default() }
    }
}

/// The messages that have events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventRoute {
    /// Every accepted message, also one that names no configuration set.
    #[default]
    EveryMessage,
    /// As at SES: those whose configuration set has an enabled event destination for the type.
    Destinations,
}

/// Makes the events of an accepted message for which `is_wanted` holds, in the order of their
/// times.
pub(super) fn events_of(
    publisher: Publisher<'_>,
    message: &CapturedMessage,
    options: EventOptions,
    is_wanted: impl Fn(EventType) -> bool,
) -> Vec<NewMessage> {
    let mail = Mail::of(message, publisher.region);
    let mut events = Vec::new();
    let mut publish = |event_type: EventType, after: Duration, detail: Detail<'_>| {
        if !is_wanted(event_type) {
            return;
        }
        let event = mail.event(event_type, &detail);
        let sent_at = message.received_at.plus(after);
        let body = match options.envelope {
            Envelope::Sns => publisher.sns_notification(&event, sent_at),
            Envelope::Raw => event,
            Envelope::EventBridge => {
                publisher.event_bridge_event(event_type, message, &event, sent_at)
            }
        };
        let id = publisher.ids.uuid();
        events.push(NewMessage { id, body: body.into(), sent_at, delay: after });
    };
    publish(EventType::Send, options.send_after, Detail::Send {});
    let outcome_after = options.outcome_after;
    let outcome_at = message.received_at.plus(outcome_after);
    let groups = RecipientGroup::all_of(message);
    for group in &groups {
        let feedback_id = || publisher.ids.message_id(outcome_at);
        match group.fate {
            GroupFate::Delivered => {
                let detail = group.delivery(outcome_at, outcome_after);
                publish(EventType::Delivery, outcome_after, detail);
            }
            GroupFate::Bounced => {
                let detail = group.bounce(outcome_at, feedback_id());
                publish(EventType::Bounce, outcome_after, detail);
            }
            GroupFate::Suppressed => {
                let detail = group.suppression_bounce(outcome_at, feedback_id());
                publish(EventType::Bounce, outcome_after, detail);
            }
        }
    }
    let complaint_after = options.complaint_after.max(outcome_after);
    let complaint_at = message.received_at.plus(complaint_after);
    for group in groups.iter().filter_map(RecipientGroup::complaining) {
        let detail = group.complaint(complaint_at, publisher.ids.message_id(complaint_at));
        publish(EventType::Complaint, complaint_after, detail);
    }
    events
}
