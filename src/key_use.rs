//! Key use: stores when API keys were last used.

use std::time::Duration;

use tracing::warn;

use crate::store::Store;

/// Pause between two times that it is stored. A crash forgets at most what came since the last one.
const INTERVAL: Duration = Duration::from_mins(5);

/// Stores when API keys were last used, for as long as it is polled.
pub async fn run(store: Store) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        if let Err(error) = store.store_key_use().await {
            warn!(%error, "it could not be stored when API keys were last used; it will be tried again");
        }
    }
}
