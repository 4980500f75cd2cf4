//! Counts of what became of each organisation's messages since the start.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::event::EventType;
use crate::domain::id::OrganisationId;

/// Something that became durable and is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Increment {
    /// A message was accepted.
    Accepted,
    /// The provider accepted a message.
    Sent {
        /// To so many recipients.
        recipients: u64,
    },
    /// A message failed, but not by an operator's wish.
    Failed,
    /// An operator cancelled a message.
    Cancelled,
    /// A message was not sent, because a recipient became suppressed.
    Suppressed,
    /// An event came onto a record.
    Event {
        /// Its type.
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
    /// Their recipients.
    pub sent_recipients: u64,
    /// Messages that failed, but not by an operator's wish.
    pub failed: u64,
    /// Messages that an operator cancelled.
    pub cancelled: u64,
    /// Messages that were not sent because a recipient became suppressed.
    pub suppressed: u64,
    /// Delivery events.
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

/// Counts of all organisations. The one who writes locks them once for many increments.
#[derive(Debug, Default)]
pub struct OrganisationCounters(Mutex<BTreeMap<OrganisationId, OrganisationCounts>>);

impl OrganisationCounters {
    /// Adds increments.
    pub fn add(&self, increments: impl IntoIterator<Item = (OrganisationId, Increment)>) {
        let mut counts = self.lock();
        for (organisation, increment) in increments {
            counts.entry(organisation).or_default().count(increment);
        }
    }

    /// Counts of every organisation, by its number.
    pub fn get(&self) -> BTreeMap<OrganisationId, OrganisationCounts> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<OrganisationId, OrganisationCounts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            Increment::Failed => self.failed += 1,
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

    /// What these counts have grown by since they were `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            accepted: self.accepted.saturating_sub(earlier.accepted),
            sent: self.sent.saturating_sub(earlier.sent),
            sent_recipients: self.sent_recipients.saturating_sub(earlier.sent_recipients),
            failed: self.failed.saturating_sub(earlier.failed),
            cancelled: self.cancelled.saturating_sub(earlier.cancelled),
            suppressed: self.suppressed.saturating_sub(earlier.suppressed),
            deliveries: self.deliveries.saturating_sub(earlier.deliveries),
            bounces: self.bounces.saturating_sub(earlier.bounces),
            hard_bounces: self.hard_bounces.saturating_sub(earlier.hard_bounces),
            complaints: self.complaints.saturating_sub(earlier.complaints),
            rejects: self.rejects.saturating_sub(earlier.rejects),
            delivery_delays: self.delivery_delays.saturating_sub(earlier.delivery_delays),
        }
    }

    /// Adds another organisation's counts to these.
    pub fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.sent += other.sent;
        self.sent_recipients += other.sent_recipients;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.suppressed += other.suppressed;
        self.deliveries += other.deliveries;
        self.bounces += other.bounces;
        self.hard_bounces += other.hard_bounces;
        self.complaints += other.complaints;
        self.rejects += other.rejects;
        self.delivery_delays += other.delivery_delays;
    }
}
