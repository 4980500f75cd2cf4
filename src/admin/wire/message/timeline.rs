//! A message's events by recipient.

use crate::admin::wire::message::{RecipientEvent, Timeline, detail};
use crate::domain::event::Event;
use crate::domain::suppression::SuppressedAddress;

/// The timeline of each of the message's recipients, in their order, and then of those whom events
/// alone name. A recipient given twice has one. An event that names nobody is everybody's.
pub(super) fn of(recipients: &[String], events: &[Event]) -> Vec<Timeline> {
    let named = events.iter().flat_map(|event| &event.recipients);
    let mut known: Vec<String> = Vec::new();
    let mut timelines = Vec::new();
    for recipient in recipients.iter().chain(named) {
        let address = normal(recipient);
        if known.contains(&address) {
            continue;
        }
        let own = events.iter().filter(|event| concerns(event, &address));
        let events = own.map(RecipientEvent::from).collect();
        timelines.push(Timeline { recipient: recipient.clone(), events });
        known.push(address);
    }
    timelines
}

fn concerns(event: &Event, address: &str) -> bool {
    event.recipients.is_empty() || event.recipients.iter().any(|named| normal(named) == address)
}

/// The form in which recipients are compared, as the store does it.
fn normal(recipient: &str) -> String {
    SuppressedAddress::of_recipient(recipient)
        .map_or_else(|| recipient.to_ascii_lowercase(), |address| address.as_str().to_owned())
}

impl From<&Event> for RecipientEvent {
    fn from(event: &Event) -> Self {
        Self {
            event_type: event.event_type().as_str().to_owned(),
            occurred_at: event.occurred_at.to_string(),
            detail: detail(&event.detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::EventDetail;
    use crate::domain::time::Timestamp;

    fn event(at: u64, recipients: &[&str], detail: EventDetail) -> Event {
        Event {
            occurred_at: Timestamp::from_unix_millis(at),
            recipients: recipients.iter().map(|&text| text.to_owned()).collect(),
            detail,
        }
    }

    #[test]
    fn each_recipient_has_its_own_events_and_one_without_any_is_there_too() {
        let to = ["Ann <Ann@x.org>", "bob@x.org", "ann@X.org", "eve@x.org"].map(str::to_owned);
        let delivery = EventDetail::Delivery { smtp_response: None };
        let delay =
            EventDetail::DeliveryDelay { delay_type: "General".to_owned(), diagnostic_code: None };
        let events = [
            event(1, &["ann@x.org", "bob@x.org"], delay),
            event(2, &["ann@x.org"], delivery.clone()),
            event(3, &["forwarded@y.org"], delivery),
        ];
        let found: Vec<_> = of(&to, &events)
            .into_iter()
            .map(|line| {
                let types: Vec<_> = line.events.into_iter().map(|event| event.event_type).collect();
                (line.recipient, types.join(" "))
            })
            .collect();
        let expected = [
            ("Ann <Ann@x.org>", "delivery_delay delivery"),
            ("bob@x.org", "delivery_delay"),
            ("eve@x.org", ""),
            ("forwarded@y.org", "delivery"),
        ];
        assert_eq!(found, expected.map(|(who, what)| (who.to_owned(), what.to_owned())));

        let reject = event(1, &[], EventDetail::Reject { reason: "Bad content".to_owned() });
        assert!(of(&to, &[reject]).iter().all(|line| line.events.len() == 1));
    }
}
