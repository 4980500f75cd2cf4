//! The store in the service: opened, and what was found there told in the log.

use tracing::{info, warn};

use crate::clock::Clock;
use crate::config::Config;
use crate::service::ServiceError;
use crate::store::Store;

/// Opens the store and settles what the last process left; the log says what that was.
pub(super) async fn open(config: &Config, clock: &Clock) -> Result<Store, ServiceError> {
    let directory = config.data_dir.clone();
    let now = clock.now();
    let opened = tokio::task::spawn_blocking(move || Store::open(&directory, now))
        .await
        .expect("opening the store does not panic");
    let (store, recovery) = opened
        .map_err(|source| ServiceError::Store { directory: config.data_dir.clone(), source })?;
    info!(
        bodies_lost = recovery.bodies_lost,
        live_keys = recovery.live_keys,
        "opened the store in {}",
        config.data_dir.display()
    );
    if let Ok(Some(lost)) = store.lost_messages(clock.now()) {
        warn!(
            messages = lost.messages, last_at = %lost.last_at,
            "messages failed because their process ended before they were sent; after looking at \
             them, run: pillarbox status --acknowledge"
        );
    }
    Ok(store)
}
