//! Counts of the outcomes of each organisation's messages since the start.

use std::collections::BTreeMap;

use crate::locks::{Mutex, locked};
use pillarbox_domain::event::EventType;
use pillarbox_domain::id::OrganisationId;

/// Something that became durable and is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Increment {
    /// A message was accepted.
    Accepted,
    /// The provider accepted a message.
    Sent {
        /// Number of its recipients.
        recipients: u64,
    },
    /// A message failed, but not by an operator's decision, and not as [`Increment::BodyLost`].
    Failed,
    /// A message failed because the process that held its body ended.
    BodyLost,
    /// An operator cancelled a message.
    Cancelled,
    /// A message was not sent, because a recipient became suppressed.
    Suppressed,
    /// An event came onto a record.
    Event {
        /// Type of the event.
        event_type: EventType,
        /// The recipients that it bounced from for good; zero for all but permanent bounces.
        hard_bounces: u64,
    },
}

/// An organisation's counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OrganisationCounts {
    /// Messages accepted by us.
    pub accepted: u64,
    /// Messages accepted by the provider.
    pub sent: u64,
    /// Number of recipients of the messages in `sent`.
    pub sent_recipients: u64,
    /// Messages that failed, but not by an operator's decision.
    pub failed: u64,
    /// Messages that an operator cancelled.
    pub cancelled: u64,
    /// Messages that were not sent because a recipient became suppressed.
    pub suppressed: u64,
    /// Delivery events, as the provider reported them.
    pub deliveries: u64,
    /// Bounce events of all kinds.
    pub bounces: u64,
    /// Recipients that bounced for good.
    pub hard_bounces: u64,
    /// Complaint events.
    pub complaints: u64,
    /// Reject events.
    pub rejects: u64,
    /// Delivery delay events.
    pub delivery_delays: u64,
}

/// Counts of all organisations. The writer locks them once for many increments.
#[derive(Debug, Default)]
pub struct OrganisationCounters(Mutex<BTreeMap<OrganisationId, OrganisationCounts>>);

impl OrganisationCounters {
    /// Adds increments, each to its organisation's counts.
    pub fn add(&self, increments: impl IntoIterator<Item = (OrganisationId, Increment)>) {
        let mut counts = locked(&self.0);
        for (organisation, increment) in increments {
            counts.entry(organisation).or_default().count(increment);
        }
    }

    /// Counts of every organisation, by its number.
    pub fn get(&self) -> BTreeMap<OrganisationId, OrganisationCounts> {
        locked(&self.0).clone()
    }
}

impl OrganisationCounts {
    fn count(&mut self, increment: Increment) {
        match increment {
            Increment::Accepted => self.accepted += 1,
            Increment::Sent { recipients } => {
                self.sent += 1;
                self.sent_recipients += recipients;
            }
            Increment::Failed | Increment::BodyLost => self.failed += 1,
            Increment::Cancelled => self.cancelled += 1,
            Increment::Suppressed => self.suppressed += 1,
            Increment::Event { event_type, hard_bounces } => {
                let count = match event_type {
                    EventType::Delivery => &mut self.deliveries,
                    EventType::Bounce => &mut self.bounces,
                    EventType::Complaint => &mut self.complaints,
                    EventType::Reject => &mut self.rejects,
                    EventType::DeliveryDelay => &mut self.delivery_delays,
                };
                *count += 1;
                self.hard_bounces += hard_bounces;
            }
        }
    }

    /// Number of changes of records: the sum of all counts except those of recipients.
    pub fn changes(&self) -> u64 {
        let events = EventType::ALL.map(|event_type| self.events(event_type));
        let states = [self.accepted, self.sent, self.failed, self.cancelled, self.suppressed];
        states.into_iter().chain(events).sum()
    }

    /// Number of events of a type.
    pub fn events(&self, event_type: EventType) -> u64 {
        match event_type {
            EventType::Delivery => self.deliveries,
            EventType::Bounce => self.bounces,
            EventType::Complaint => self.complaints,
            EventType::Reject => self.rejects,
            EventType::DeliveryDelay => self.delivery_delays,
        }
    }

    /// Increase of these counts since they were `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Sum of these counts and another organisation's.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    fn zip(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            accepted: of(self.accepted, other.accepted),
            sent: of(self.sent, other.sent),
            sent_recipients: of(self.sent_recipients, other.sent_recipients),
            failed: of(self.failed, other.failed),
            cancelled: of(self.cancelled, other.cancelled),
            suppressed: of(self.suppressed, other.suppressed),
            deliveries: of(self.deliveries, other.deliveries),
            bounces: of(self.bounces, other.bounces),
            hard_bounces: of(self.hard_bounces, other.hard_bounces),
            complaints: of(self.complaints, other.complaints),
            rejects: of(self.rejects, other.rejects),
            delivery_delays: of(self.delivery_delays, other.delivery_delays),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_increment_counts_in_its_place() {
        let counters = OrganisationCounters::default();
        let event = |event_type| Increment::Event {
            event_type,
            hard_bounces: if event_type == EventType::Bounce { 3 } else { 0 },
        };
        let others = [
            Increment::Accepted,
            Increment::Sent { recipients: 4 },
            Increment::Failed,
            Increment::BodyLost,
            Increment::Cancelled,
            Increment::Suppressed,
        ];
        let all = || others.into_iter().chain(EventType::ALL.map(event));
        for _ in 0..2 {
            counters.add(all().map(|increment| (OrganisationId(7), increment)));
        }
        let counts = OrganisationCounts {
            accepted: 2,
            sent: 2,
            sent_recipients: 8,
            failed: 4,
            cancelled: 2,
            suppressed: 2,
            deliveries: 2,
            bounces: 2,
            hard_bounces: 6,
            complaints: 2,
            rejects: 2,
            delivery_delays: 2,
        };
        assert_eq!(counters.get(), [(OrganisationId(7), counts)].into());
        assert_eq!(counts.changes(), 2 * all().count() as u64);
        assert!(EventType::ALL.iter().all(|event_type| counts.events(*event_type) == 2));
        assert_eq!(counts.plus(&counts).since(&counts), counts);
    }
}
