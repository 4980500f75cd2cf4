//! Keeps the calls other than `SendEmail` within one a second, SES's own limit for them.
//!
//! Knows nothing of the calls themselves.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Between the starts of two calls (SES API quotas: "one request per second" for every action
/// but `SendEmail` and its kin).
const INTERVAL: Duration = Duration::from_secs(1);

/// Gives out one start a second, in the order asked for.
#[derive(Debug, Default)]
pub(super) struct CallSpacing {
    next: Mutex<Option<Instant>>,
}

impl CallSpacing {
    /// Returns when the caller may make its call.
    pub(super) async fn turn(&self) {
        sleep_until(self.reserve()).await;
    }

    fn reserve(&self) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let turn = next.map_or(now, |next| next.max(now));
        *next = Some(turn + INTERVAL);
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_start_a_second_apart_however_many_ask() {
        let spacing = CallSpacing::default();
        let start = Instant::now();
        let turns = async || {
            spacing.turn().await;
            start.elapsed()
        };
        let (first, second, third) = tokio::join!(turns(), turns(), turns());
        assert_eq!([first, second, third].map(|turn| turn.as_secs()), [0, 1, 2]);
        tokio::time::advance(INTERVAL * 10).await;
        let idle = start.elapsed();
        assert_eq!(turns().await, idle, "after a pause nobody waits");
    }
}
