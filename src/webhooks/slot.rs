//! Slots of events ahead of an endpoint's cursor, encoded events, and attempts.

use bytes::Bytes;

use crate::attempt::{Attempt, Delivery};
use crate::memory::{Beside, DeliveryMemory, Room};
use pillarbox_domain::feed::{FeedEntry, FeedPosition};
use pillarbox_domain::organisation::OrganisationKind;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{Redelivery, WaitingDelivery, Webhook, WebhookFormat};
use pillarbox_records::views::FeedEventView;
use pillarbox_records::views::resend::ResendEventView;

/// An event ahead of the cursor.
pub(super) struct Slot {
    pub(super) position: FeedPosition,
    /// Time at which it was recorded.
    pub(super) recorded_at: Timestamp,
    pub(super) state: SlotState,
}

pub(super) enum SlotState {
    /// It waits for its first attempt.
    Ready(Box<WebhookEvent>),
    /// Its attempt is under way, or was answered with 410.
    Open,
    /// It is delivered, or is to be stored as a delivery that waits.
    Acknowledged(Option<WaitingDelivery>),
}

/// An event as the endpoint receives it.
pub(super) struct WebhookEvent {
    pub(super) delivery: Delivery,
    pub(super) event_type: &'static str,
    pub(super) message: String,
    _room: Room,
}

/// Attempt to make: the first, or a further one.
#[derive(Clone, Copy)]
pub(super) enum Job {
    First(FeedPosition),
    Further(WaitingDelivery),
}

/// An attempt that has ended.
pub(super) enum Finished {
    Attempted {
        job: Job,
        told: Box<WebhookEvent>,
        attempt: Attempt,
    },
    /// The event is past its retention.
    Expired(WaitingDelivery),
    /// The store could not be read.
    Unread(WaitingDelivery),
    /// There was no memory for it, which has so many bytes.
    NoRoom(WaitingDelivery, usize),
}

/// Time at which the next delivery is due again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NextDue {
    /// The store has to be asked.
    Unknown,
    Never,
    At(Timestamp),
}

/// Next step after an attempt.
#[derive(Clone, Copy)]
pub(super) enum Next {
    Nothing,
    Again(WaitingDelivery),
    /// It was the last one.
    Failed(Redelivery),
}

impl Slot {
    /// The bytes of the event that waits for its attempt.
    pub(super) fn ready_bytes(&self) -> usize {
        match &self.state {
            SlotState::Ready(told) => told.delivery.body.len(),
            SlotState::Open | SlotState::Acknowledged(_) => 0,
        }
    }
}

impl WebhookEvent {
    /// The event of an entry; the error is its bytes, for which there is no room.
    pub(super) fn of(
        kind: OrganisationKind,
        entry: &FeedEntry,
        webhook: &Webhook,
        memory: &DeliveryMemory,
        beside: Beside,
    ) -> Result<Self, usize> {
        let (event_type, message) = (entry.event_type().as_str(), entry.message.id.to_string());
        let body = match webhook.format {
            WebhookFormat::Standard => serde_json::to_vec(&FeedEventView::new(kind, entry)),
            WebhookFormat::Resend => serde_json::to_vec(&ResendEventView::new(entry)),
        };
        let mut body = body.expect("texts and numbers serialize");
        // It grew by doubling.
        body.shrink_to_fit();
        let room = memory.reserve_body(webhook, body.len(), beside).ok_or(body.len())?;
        let (id, format) = (entry.id().to_string(), webhook.format);
        let delivery = Delivery { id, body: Bytes::from(body), format };
        Ok(Self { delivery, event_type, message, _room: room })
    }
}
