//! The store in the service: opens it, and logs what it found.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustls::RootCertStore;
use secrecy::SecretString;
use tracing::{error, info, warn};

use crate::ServiceError;
use crate::inherited::LeftArena;
use crate::kept_bodies::{Bodies, FoundArenas};
use pillarbox_config::{Config, Postgres, StoreConfig};
use pillarbox_runtime::clock::Clock;
use pillarbox_runtime::pem;
use pillarbox_ses::SesClient;
use pillarbox_store::{
    ACCEPTING_CONNECTIONS, FILE_NAME, FileOrigin, Joined, NodeIdentity, NodePlace, PostgresServer,
    Store, StoreOwner, create_directory,
};

/// File with the node's random number, which is locked as long as it runs.
const NODE_FILE: &str = "node";
/// Exit code of a node that the others took for dead: `EX_TEMPFAIL` of sysexits.h.
const EXIT_FENCED: i32 = 75;
/// Interval between two checks of the store's file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two times that the use of API keys is stored. A crash forgets at most what came
/// since the last one.
const KEY_USE_INTERVAL: Duration = Duration::from_mins(5);

/// A store that is open, with the bodies of its pending messages.
pub(super) struct Opened {
    pub(super) store: Store,
    /// Lock of the data directory, to be held as long as the store.
    pub(super) lock: Option<File>,
    pub(super) bodies: Bodies,
}

/// Opens the store and fails the messages that the last process left pending, except those with a body
/// in one of its arenas. The log says how many there were.
pub(super) async fn open(
    owner: StoreOwner,
    config: &Config,
    clock: &Clock,
    arenas: Vec<LeftArena>,
) -> Result<Opened, ServiceError> {
    let arena = FoundArenas::new(arenas, config.sending.keep_bodies);
    // If it cannot be created, opening the store says why.
    let _ = create_directory(&config.data_dir);
    let (store, lock, bodies) = match &config.store {
        StoreConfig::Redb => {
            let (store, bodies) = open_file(owner, config, clock, arena).await?;
            (store, None, bodies)
        }
        StoreConfig::Postgres(postgres) => {
            let (store, lock, bodies) = connect(owner, config, postgres, clock, arena).await?;
            (store, Some(lock), bodies)
        }
    };
    if let Ok(Some(lost)) = store.lost_messages(clock.now()).await {
        warn!(
            messages = lost.messages, last_at = %lost.last_at,
            "messages failed because their process ended before they were sent; after looking at \
             them, run: pillarbox status --acknowledge"
        );
    }
    Ok(Opened { store, lock, bodies })
}

/// Joins the other nodes on a database.
async fn connect(
    owner: StoreOwner,
    config: &Config,
    postgres: &Postgres,
    clock: &Clock,
    mut arena: FoundArenas,
) -> Result<(Store, File, Bodies), ServiceError> {
    let unusable = |source| ServiceError::System { what: "cannot use the data directory", source };
    let (lock, directory) = node_directory(&config.data_dir).map_err(unusable)?;
    let place = NodePlace::of(&lock).map_err(unusable)?;
    let server = postgres_server(postgres)?;
    let node = postgres.node.clone();
    let identity = NodeIdentity {
        name: node.clone(),
        directory,
        place,
        dead_after: postgres.dead_after,
        least_dead_after: postgres.least_dead_after,
    };
    let bodies = |store| arena.take_over(store);
    let (store, joined) =
        Store::connect_as(owner, &server, identity, postgres.answer_timeout, bodies, |reading| {
            clock.follow(reading);
            clock.now()
        })
        .await?;
    let Joined { bodies_lost, kept } = joined;
    info!(bodies_lost, node, database = postgres.database, "joined the nodes on the database");
    Ok((store, lock, arena.into_bodies(&kept)?))
}

/// Returns the server that the configuration names, with its password and the certificates from
/// their files.
pub fn postgres_server(postgres: &Postgres) -> Result<PostgresServer, ServiceError> {
    let read = |path: &PathBuf| fs::read(path);
    let password = postgres.password_file.as_ref().map(read).transpose();
    let password = password.map_err(|source| ServiceError::System {
        what: "cannot read store.postgres.password_file",
        source,
    })?;
    let password = password
        .map(|bytes| String::from_utf8_lossy(&pem::without_marks(&bytes)).trim_end().to_owned());
    let authorities = postgres.ca_file.as_ref().map(|path| authorities(path)).transpose();
    let authorities = authorities.map_err(|source| ServiceError::System {
        what: "cannot read store.postgres.ca_file",
        source,
    })?;
    Ok(PostgresServer {
        hosts: postgres.hosts.clone(),
        database: postgres.database.clone(),
        user: postgres.user.clone(),
        password: password.map(SecretString::from),
        authorities,
        accepting_connections: ACCEPTING_CONNECTIONS,
    })
}

/// Has the nodes' calls to SES other than `SendEmail` keep its limit together.
pub(super) fn share_call_slots(store: &Store, ses: &SesClient) {
    if !store.is_shared() {
        return;
    }
    let store = store.clone();
    ses.share_slots(Box::new(move |interval| {
        let store = store.clone();
        Box::pin(
            async move { store.take_call_slot(interval).await.map_err(|error| error.to_string()) },
        )
    }));
}

/// Locks the data directory, and returns the random number that lies in it.
fn node_directory(path: &Path) -> io::Result<(File, [u8; 16])> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(path.join(NODE_FILE))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let mut number = [0; 16];
    if file.read_exact(&mut number).is_err() {
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        file.rewind()?;
        file.write_all(&number)?;
        file.sync_all()?;
    }
    Ok((file, number))
}

/// Reads certificates as PEM.
fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(&fs::read(path)?).map_err(io::Error::other)? {
        roots.add(certificate).map_err(io::Error::other)?;
    }
    Ok(roots)
}

/// Ends the process if the other nodes took this one for dead: what it holds has failed, and a new
/// start joins them again.
pub(super) async fn end_if_fenced(store: Store) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        if store.is_fenced() {
            std::process::exit(EXIT_FENCED);
        }
    }
}

/// Ends the process if a task of the store's engine ends: without it, messages are not accepted, or
/// their outcomes not recorded, or other nodes take this one for dead.
pub(super) async fn end_if_task_ends(store: Store) {
    store.task_ended().await.end_process();
}

async fn open_file(
    owner: StoreOwner,
    config: &Config,
    clock: &Clock,
    mut arena: FoundArenas,
) -> Result<(Store, Bodies), ServiceError> {
    let directory = config.data_dir.clone();
    let now = clock.now();
    let open = move || {
        let opened = Store::open_as(owner, &directory, |store| arena.take_over(store), now);
        (opened, arena)
    };
    let (opened, arena) =
        tokio::task::spawn_blocking(open).await.expect("opening the store does not panic");
    let (store, recovery) = opened
        .map_err(|source| ServiceError::Store { directory: config.data_dir.clone(), source })?;
    // A new one is as it should be in a trial.
    if recovery.file == FileOrigin::Created && owner == StoreOwner::Service {
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
    Ok((store, arena.into_bodies(&recovery.kept)?))
}

/// Other copies of the data file in its directory, to be named in the log.
fn leftovers(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let prefix = format!("{FILE_NAME}.");
    let mut names: Vec<_> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort();
    if names.is_empty() {
        return String::new();
    }
    format!(". Copies in that directory: {}", names.join(", "))
}

/// Has the store check its file again and again, so that an idle service notices a loss, too.
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
            warn!(%error, "the times of the last use of API keys could not be stored; pillarbox tries again");
        }
    }
}

/// Saves what the store holds if its file is not in its place; the log has the path, or what is
/// lost.
pub(super) async fn save_lost_file(store: &Store, clock: &Clock) {
    match store.save_lost_file(clock.now()).await {
        Ok(None) => {}
        Ok(Some(path)) => warn!(
            path = %path.display(),
            "the data file was not in its place: its content is saved to this path"
        ),
        Err(error) => error!(
            %error,
            "the data file is lost, and with it all records, keys and suppressions since the last \
             backup; run: pillarbox restore FILE --replace"
        ),
    }
}
