//! Retention: purges what is past its window, in small steps between the sends.

use std::time::Duration;

use tracing::{debug, warn};

use pillarbox_runtime::clock::Clock;
use pillarbox_store::{Duty, Health, Purged, Store};

/// Number of records and keys in one transaction: a few milliseconds of the writer's time.
const STEP: usize = 1_000;
/// The pause between steps while there is more, so that acceptance has the writer to itself.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause once nothing is left.
const REST: Duration = Duration::from_mins(1);

/// Purges for as long as it is polled. Of several nodes one does.
pub async fn run(store: Store, clock: Clock) {
    let is_ours = store.has_duty(Duty::Purge);
    loop {
        let waits = store.health() == Health::Refusing || !*is_ours.borrow();
        let pause = if waits { REST } else { step(&store, &clock).await };
        tokio::time::sleep(pause).await;
    }
}

async fn step(store: &Store, clock: &Clock) -> Duration {
    match store.purge(clock.window_time(), STEP).await {
        Ok(Purged { messages, idempotency_keys, feed_entries })
            if [messages, idempotency_keys, feed_entries].iter().all(|&count| count < STEP) =>
        {
            REST
        }
        Ok(purged) => {
            let Purged { messages, idempotency_keys: keys, feed_entries } = purged;
            debug!(messages, keys, feed_entries, "purged");
            PAUSE
        }
        Err(error) => {
            warn!(%error, "the purge waits");
            REST
        }
    }
}
