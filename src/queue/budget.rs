//! The byte budget of pending messages: reserved before a message is stored, released with it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use pillarbox_domain::id::OrganisationId;
use pillarbox_runtime::shared_limits::{self, Exhausted};
use pillarbox_runtime::sync::Mutex;

/// Memory of a pending message beyond its encoded request and the text of its envelope, in bytes:
/// its entry, its position in the queue, their share of the maps that hold them, and the head of
/// its record in the arena.
const FIXED_CHARGE: usize = 400;

/// Charge of the smallest message, with a line or two and their addresses.
const LEAST_MESSAGE: usize = FIXED_CHARGE + 624;

/// Over how long the speed of release is measured.
const MEASURED_OVER: Duration = Duration::from_secs(1);
/// Shortest and longest wait that a client is asked for.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Bytes that pending messages may take up, with a share for each organisation. Clones are the same
/// one.
#[derive(Debug, Clone)]
pub struct Budget {
    shared: shared_limits::Budget<OrganisationId>,
    speed: Arc<Mutex<Speed>>,
}

/// A message's part of the budget, released when dropped.
pub type Reservation = shared_limits::Reservation<OrganisationId>;

/// A message has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Budget that is used up: the whole, or the organisation's share.
    pub exhausted: Exhausted,
    /// Wait until there should be room, at the speed at which messages have been leaving; within
    /// the limits of what a client can be asked to wait.
    pub retry_after: Duration,
}

impl NoRoom {
    /// No room because the machine has no memory for it.
    pub const fn of_memory() -> Self {
        Self { exhausted: Exhausted::Whole, retry_after: LONGEST_WAIT }
    }
}

/// Speed at which bytes are released.
#[derive(Debug)]
struct Speed {
    measured_at: Instant,
    /// Bytes that had been released by then, since the start.
    released: u64,
    bytes_per_second: f64,
}

/// Fill level of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// The budget has room.
    Room,
    /// Less than a twentieth is left: a large message may find no room.
    NearlyFull,
    /// Not even a message of a line or two finds room.
    Full,
}

impl Fill {
    /// Fill level of a budget of `max` bytes with `in_use` of them taken.
    pub fn of(in_use: usize, max: usize) -> Self {
        let left = max.saturating_sub(in_use);
        if left < LEAST_MESSAGE {
            Self::Full
        } else if left <= max / 20 {
            Self::NearlyFull
        } else {
            Self::Room
        }
    }
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        let speed = Speed { measured_at: Instant::now(), released: 0, bytes_per_second: 0.0 };
        Self { shared: shared_limits::Budget::new(max), speed: Arc::new(Mutex::new(speed)) }
    }

    /// Reserves the room of an organisation's message whose encoded request has `encoded` bytes.
    pub fn reserve(
        &self,
        organisation: OrganisationId,
        encoded: usize,
    ) -> Result<Reservation, NoRoom> {
        let bytes = encoded.saturating_add(FIXED_CHARGE);
        self.shared.reserve(organisation, bytes).map_err(|exhausted| NoRoom {
            exhausted,
            retry_after: self.free_in(organisation, bytes),
        })
    }

    /// Reserves the room of a message that was accepted before, whether or not there is any.
    pub fn reserve_always(&self, organisation: OrganisationId, encoded: usize) -> Reservation {
        self.shared.reserve_always(organisation, encoded.saturating_add(FIXED_CHARGE))
    }

    /// Takes up a reservation of which the bytes were kept.
    pub(super) fn resume(&self, organisation: OrganisationId, bytes: usize) -> Reservation {
        self.shared.resume(organisation, bytes)
    }

    fn free_in(&self, organisation: OrganisationId, bytes: usize) -> Duration {
        let speed = self.bytes_per_second(Instant::now());
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = self.shared.missing(organisation, bytes) as f64 / speed;
        Duration::try_from_secs_f64(seconds.ceil())
            .unwrap_or(LONGEST_WAIT)
            .clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }

    fn bytes_per_second(&self, now: Instant) -> f64 {
        let mut speed = self.speed.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_duration_since(speed.measured_at);
        if elapsed >= MEASURED_OVER {
            let released = self.shared.released();
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let bytes = (released - speed.released) as f64;
            let bytes_per_second = bytes / elapsed.as_secs_f64();
            *speed = Speed { measured_at: now, released, bytes_per_second };
        }
        speed.bytes_per_second
    }

    /// Organisations whose share is used up: their new messages are refused.
    pub fn full_for(&self) -> Vec<OrganisationId> {
        self.shared.full_for()
    }

    /// The part of its share that the organisation with the most pending bytes has in use; at 1
    /// or more, its new messages are refused.
    pub fn greatest_share(&self) -> f64 {
        self.shared.greatest_share()
    }

    /// Number of bytes that are reserved.
    pub fn in_use(&self) -> usize {
        self.shared.in_use()
    }

    /// Number of bytes that may be reserved in all.
    pub fn max(&self) -> usize {
        self.shared.max()
    }

    /// Changes the number of bytes that may be reserved in all. If more are in use, they stay, and
    /// no more are reserved until enough are released.
    pub fn set_max(&self, max: usize) {
        self.shared.set_max(max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_full_only_where_no_message_finds_room() {
        const MAX: usize = 20 << 20;
        for (left, fill) in [
            (MAX, Fill::Room),
            ((1 << 20) + 1, Fill::Room),
            (1 << 20, Fill::NearlyFull),
            (1_024, Fill::NearlyFull),
            (1_023, Fill::Full),
            (0, Fill::Full),
        ] {
            assert_eq!(Fill::of(MAX - left, MAX), fill, "{left}");
        }
        // A budget that was lowered under what it holds.
        assert_eq!(Fill::of(MAX + 1, MAX), Fill::Full);
    }

    const ACME: OrganisationId = OrganisationId(1);
    const OTHER: OrganisationId = OrganisationId(2);

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_as_long_as_the_room_takes_at_the_present_speed() {
        let budget = Budget::new(30_000 + FIXED_CHARGE);
        let _stays = budget.reserve(ACME, 10_000).unwrap();
        let wait = || budget.reserve(OTHER, 30_000).unwrap_err();
        assert_eq!(wait(), NoRoom { exhausted: Exhausted::Whole, retry_after: LONGEST_WAIT });
        let leaves = budget.reserve(ACME, 2_000 - FIXED_CHARGE).unwrap();
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(leaves);
        // 1,000 bytes a second, and 10,400 are missing.
        assert_eq!(wait().retry_after, Duration::from_secs(11));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(wait().retry_after, Duration::from_secs(11), "measured over a second");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(wait().retry_after, LONGEST_WAIT, "nothing has left since");
        assert_eq!(NoRoom::of_memory(), wait());
    }

    #[test]
    fn a_message_is_charged_for_its_request_and_its_entry() {
        let budget = Budget::new(10_000);
        let first = budget.reserve(ACME, 1_000).unwrap();
        assert_eq!((budget.in_use(), budget.max()), (1_000 + FIXED_CHARGE, 10_000));
        let more = budget.reserve_always(ACME, 20_000);
        assert_eq!(more.bytes(), 20_000 + FIXED_CHARGE);
        assert_eq!((budget.full_for(), budget.greatest_share()), (vec![ACME], 2.0));
        let kept = more.keep();
        drop(budget.resume(ACME, kept));
        assert_eq!(budget.in_use(), first.bytes());
        assert!(budget.reserve(OTHER, 8_000).is_ok());
        budget.set_max(2_000);
        assert_eq!(budget.max(), 2_000);
        assert!(budget.reserve(OTHER, 8_000).is_err());
    }
}
