//! Memory of deliveries: what the events that wait for an attempt, the attempts under way and their
//! answers may take up.
//!
//! Organisations share it, and the endpoints of one organisation share that one's part. Both by the
//! rule of [`Budget`], so that no holder keeps another from its next delivery. Knows no events.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::webhook::{Webhook, WebhookId};
use pillarbox_runtime::shared_limits::{Budget, Reservation, Slot, Slots};
use pillarbox_store::{MAX_WEBHOOKS, MAX_WEBHOOKS_OF_ONE};

/// The most that deliveries of all endpoints take up, in bytes, and those of one organisation.
const MAX_OF_ALL: usize = 256 * MIB;
const MAX_OF_ONE: usize = 32 * MIB;
/// Memory of one attempt beside its body: the connection's buffers, and the answer.
const ATTEMPT_BYTES: usize = 64 * 1024;
/// An event of the largest message, encoded.
const LARGEST_BODY_BYTES: usize = 256 * 1024;
/// Memory of one read of the feed at most, as rows, as entries and encoded.
const READING_BYTES: usize = 8 * MIB;
/// Number of organisations whose endpoints read at one time. Of one organisation, one reads.
const READERS: usize = 4;
const MIB: usize = 1024 * 1024;

/// Memory that may be reserved: the rest is for reads, and for what an endpoint always has.
const RESERVABLE_OF_ALL: usize =
    MAX_OF_ALL - READERS * READING_BYTES - MAX_WEBHOOKS * ATTEMPT_BYTES;
const RESERVABLE_OF_ONE: usize =
    MAX_OF_ONE - READING_BYTES - MAX_WEBHOOKS_OF_ONE * (ATTEMPT_BYTES + LARGEST_BODY_BYTES);

#[derive(Debug)]
pub(super) struct DeliveryMemory {
    of_all: Budget<OrganisationId>,
    of_one: Mutex<HashMap<OrganisationId, Budget<WebhookId>>>,
    readers: Semaphore,
    readers_of_one: Slots<OrganisationId>,
}

/// Memory of an endpoint beside that for which it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    /// Nothing: other endpoints of the organisation do not keep it from its next delivery.
    Nothing,
    Others,
}

/// Memory of one holder, given back when dropped.
#[derive(Debug)]
pub(super) struct Room {
    _of_one: Reservation<WebhookId>,
    _of_all: Reservation<OrganisationId>,
}

/// Permit to read the feed and to encode the entries.
pub(super) struct ReadSlot<'a> {
    _of_one: Slot<OrganisationId>,
    _of_all: SemaphorePermit<'a>,
}

impl DeliveryMemory {
    pub(super) fn new() -> Self {
        Self {
            of_all: Budget::new(RESERVABLE_OF_ALL),
            of_one: Mutex::default(),
            readers: Semaphore::new(READERS),
            // Each endpoint has one caller, and its attempts.
            readers_of_one: Slots::new(1, Semaphore::MAX_PERMITS),
        }
    }

    /// Room for the body of an event; `None` if others need it first.
    pub(super) fn reserve_body(
        &self,
        webhook: &Webhook,
        bytes: usize,
        beside: Beside,
    ) -> Option<Room> {
        let of_one = self.of_one(webhook.organisation);
        let of_one = match beside {
            Beside::Nothing => of_one.reserve_always(webhook.id, bytes),
            Beside::Others => of_one.reserve(webhook.id, bytes).ok()?,
        };
        let of_all = self.of_all.reserve(webhook.organisation, bytes).ok()?;
        Some(Room { _of_one: of_one, _of_all: of_all })
    }

    /// Room for an attempt beside its body, of which an endpoint always has one; `None` if others need
    /// it first.
    pub(super) fn reserve_attempt(&self, webhook: &Webhook, beside: Beside) -> Option<Room> {
        let (bytes, of_one) = (ATTEMPT_BYTES, self.of_one(webhook.organisation));
        let (of_one, of_all) = match beside {
            Beside::Nothing => (
                of_one.reserve_always(webhook.id, bytes),
                self.of_all.reserve_always(webhook.organisation, bytes),
            ),
            Beside::Others => (
                of_one.reserve(webhook.id, bytes).ok()?,
                self.of_all.reserve(webhook.organisation, bytes).ok()?,
            ),
        };
        Some(Room { _of_one: of_one, _of_all: of_all })
    }

    /// Waits for the permit of an organisation to read.
    pub(super) async fn read_slot(&self, organisation: OrganisationId) -> ReadSlot<'_> {
        let of_one = self.readers_of_one.take(organisation).await;
        let of_all = self.readers.acquire().await;
        ReadSlot {
            _of_one: of_one.expect("as many as there are may wait"),
            _of_all: of_all.expect("the semaphore is never closed"),
        }
    }

    fn of_one(&self, organisation: OrganisationId) -> Budget<WebhookId> {
        let mut of_one = self.of_one.lock().unwrap_or_else(PoisonError::into_inner);
        if of_one.len() > MAX_WEBHOOKS {
            // Of organisations that have no endpoint any more.
            of_one.retain(|_, budget| budget.in_use() > 0);
        }
        of_one.entry(organisation).or_insert_with(|| Budget::new(RESERVABLE_OF_ONE)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::feed::FeedTypes;
    use pillarbox_domain::time::Timestamp;
    use pillarbox_domain::webhook::{SigningSecret, WebhookFormat, WebhookState, WebhookUrl};

    fn endpoint(organisation: u32, id: u32) -> Webhook {
        Webhook {
            id: WebhookId(id),
            organisation: OrganisationId(organisation),
            url: WebhookUrl::parse("https://app.example.com/").unwrap(),
            types: FeedTypes::ALL,
            format: WebhookFormat::Standard,
            authority: None,
            created_at: Timestamp::from_unix_millis(0),
            secret: SigningSecret::generate().unwrap(),
            replaced: Vec::new(),
            state: WebhookState::Active,
        }
    }

    /// Takes all that an endpoint is granted, and counts its bytes.
    fn take_all(memory: &DeliveryMemory, webhook: &Webhook, rooms: &mut Vec<Room>) -> usize {
        const STEP: usize = 100 * 1024;
        let taken = std::iter::from_fn(|| memory.reserve_body(webhook, STEP, Beside::Others));
        let before = rooms.len();
        rooms.extend(taken);
        (rooms.len() - before) * STEP
    }

    #[test]
    fn greedy_endpoints_and_organisations_leave_room_for_others() {
        let memory = DeliveryMemory::new();
        let mut rooms = Vec::new();
        let mut of_all = 0;
        for organisation in 1..=10 {
            let ids = organisation * 100..organisation * 100 + 15;
            let taken = ids.map(|id| take_all(&memory, &endpoint(organisation, id), &mut rooms));
            let taken: usize = taken.sum();
            assert!(taken > 0, "organisation {organisation} has nothing");
            assert!(taken <= MAX_OF_ONE, "organisation {organisation} has {taken} bytes");
            of_all += taken;
        }
        assert!(of_all <= MAX_OF_ALL, "{of_all} bytes");
        drop(rooms);
        assert_eq!(memory.of_all.in_use(), 0);
        let memory = DeliveryMemory::new();
        let alone = take_all(&memory, &endpoint(1, 1), &mut Vec::new());
        assert!(alone > RESERVABLE_OF_ONE / 3, "one endpoint alone has {alone} bytes");
    }
}
