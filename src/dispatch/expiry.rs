//! Giving up messages as their time ends, whatever the provider's condition.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::dispatch::Dispatcher;
use crate::domain::attempt::Provider;
use crate::store::Health as StoreHealth;

/// How often messages past `retry_for` are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// How many of them are given up in one step.
const EXPIRY_STEP: usize = 1_000;

impl<P: Provider> Dispatcher<P> {
    /// Gives up messages past their time for as long as it is polled.
    pub(super) async fn expire(self: &Arc<Self>) {
        let mut tick = tokio::time::interval(EXPIRY_INTERVAL);
        loop {
            tick.tick().await;
            while self.expire_step().await == EXPIRY_STEP {}
        }
    }

    async fn expire_step(self: &Arc<Self>) -> usize {
        // Claimed messages would wait for the store in memory; in the queue they wait as well.
        if self.store.health() == StoreHealth::Refusing {
            return 0;
        }
        let Some(end) = Instant::now().checked_sub(self.settings().retry_for) else { return 0 };
        let claims = self.queue.claim_older_than(end, EXPIRY_STEP);
        let count = claims.len();
        self.end_all(claims, |_| self.time_over()).await;
        count
    }
}
