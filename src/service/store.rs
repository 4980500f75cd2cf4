//! The store in the service: opened, and what was found there told in the log.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::config::Config;
use crate::service::ServiceError;
use crate::store::{FILE_NAME, FileOrigin, Store};

/// Rights of a data directory that the service creates: the files in it hold recipients and subjects.
const DIRECTORY_MODE: u32 = 0o700;
/// How often the store looks at its file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two times that the use of API keys is stored. A crash forgets at most what came
/// since the last one.
const KEY_USE_INTERVAL: Duration = Duration::from_mins(5);

/// Opens the store and settles what the last process left; the log says what that was.
pub(super) async fn open(config: &Config, clock: &Clock) -> Result<Store, ServiceError> {
    // If it cannot be created, opening the store says why.
    let _ = create_directory(&config.data_dir);
    let directory = config.data_dir.clone();
    let now = clock.now();
    let opened = tokio::task::spawn_blocking(move || Store::open(&directory, now))
        .await
        .expect("opening the store does not panic");
    let (store, recovery) = opened
        .map_err(|source| ServiceError::Store { directory: config.data_dir.clone(), source })?;
    if recovery.file == FileOrigin::Created {
        warn!(
            "there was no data file in {}: the service starts with an empty store. If it has run \
             before, stop it, then run: pillarbox restore FILE --replace{}",
            config.data_dir.display(),
            leftovers(&config.data_dir)
        );
    }
    info!(
        bodies_lost = recovery.bodies_lost,
        live_keys = recovery.live_keys,
        "opened the store in {}",
        config.data_dir.display()
    );
    if let Ok(Some(lost)) = store.lost_messages(clock.now()).await {
        warn!(
            messages = lost.messages, last_at = %lost.last_at,
            "messages failed because their process ended before they were sent; after looking at \
             them, run: pillarbox status --acknowledge"
        );
    }
    Ok(store)
}

/// Creates the data directory if it is missing. Nobody but its owner may look into it.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Other copies of the data file in its directory, to be named in the log.
fn leftovers(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let prefix = format!("{FILE_NAME}.");
    let mut names: Vec<_> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort();
    if names.is_empty() { String::new() } else { format!(". There is: {}", names.join(", ")) }
}

/// Has the store look at its file again and again, so that an idle service notices a loss, too.
pub(super) async fn watch_file(store: Store) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        store.answered().await;
    }
}

/// Stores when API keys were last used, again and again.
pub(super) async fn store_key_use(store: Store) {
    loop {
        tokio::time::sleep(KEY_USE_INTERVAL).await;
        if let Err(error) = store.store_key_use().await {
            warn!(%error, "it could not be stored when API keys were last used; it will be tried again");
        }
    }
}

/// Saves what the store holds if its file is not in its place; the log says where, or what is lost.
pub(super) async fn save_lost_file(store: &Store, clock: &Clock) {
    match store.save_lost_file(clock.now()).await {
        Ok(None) => {}
        Ok(Some(path)) => warn!(
            path = %path.display(),
            "the data file was not in its place: what the service held is kept here"
        ),
        Err(error) => error!(
            %error,
            "the data file is lost, and with it all records, keys and suppressions since the last \
             backup; run: pillarbox restore FILE --replace"
        ),
    }
}
