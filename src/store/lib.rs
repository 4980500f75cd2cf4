//! The store: every durable fact of the service, behind methods that are the domain's transitions,
//! durable when they return.
//!
//! [`Store`] is the interface, and an engine does the work: redb by default. No type of an engine
//! leaves this folder, and the store knows nothing of HTTP, of the provider or of bodies: it does
//! not get a message's body.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::redb::{Pending, RedbStore};
use alerts::AlertingState;
use damage::Damage;
use directory::Directory;
use listing::Listings;
use metrics::StoreMetrics;
use pillarbox_domain::clock_corrections::{TimeRecord, WindowTime};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::request::IdempotencyKey;
use pillarbox_domain::time::Timestamp;
use postgres::PostgresStore;
use record::{decode_time, encode_time};
use rows::{Counter, Key, KeyRange, KeyedRow, Lock, Rows, Stop, Table};
use suppression_filter::Suppressed;
use timeline::Restarts;
use usage::KnownUsage;

#[cfg(feature = "failing-disk")]
pub use crate::redb::MemoryDisk;
pub use crate::redb::{
    CACHE_BYTES, Candidate, Chunk, Contents, CopyError, Existing, FILE_NAME, FileCopy, FileId,
    FileLoss, FileOrigin, JOURNAL_NAME, NotAChunk, OpenError, OwnFiles, Recovery, RestoreError,
    Restored, SaveError, Snapshot, Unclosed, create_directory,
};
pub use api_keys::Client;
pub use cluster::{
    ACCEPTING_CONNECTIONS, CLOCKS_DIFFER, CONNECTIONS_OF_A_NODE, DatabaseStatus, DrainOrder, Duty,
    FIRST_WITH_DRAIN, FIRST_WITH_RIGHTS, FIRST_WITH_TERMS, FIRST_WITH_WEBHOOK_FORMATS, Forgotten,
    Joined, LEASE, NodeAnswer, NodeLoad, NodePlace, NodeRequest, NodeState, NodeStatus, SeenFrom,
    Standby,
};
pub use error::{AcceptError, DamagedRow, ListError, StoreError};
pub use interface::{
    Accepted, Acknowledged, Acknowledgement, Alerting, Applied, BatchMode, Change,
    CountsByOrganisation, DeadLetter, EventBacklog, FeedPage, Health, History, Lister,
    LostMessages, MAX_ALERTS, MAX_WEBHOOKS, MAX_WEBHOOKS_OF_ONE, MessagePage, NewApiKey,
    NewMessage, NewWebhook, OrganisationFacts, Purged, Reference, Report, StoreOwner,
    SuppressionKey, SuppressionPage, WaitingKey, WaitingPage, WebhookAdded,
};
pub use pillarbox_domain::search::MessageFilter;
pub use postgres::{ConnectError, NodeIdentity, PostgresServer};
#[cfg(any(test, fuzzing))]
pub use record::check::check_row;
pub use sending_right::SendingRight;
pub use store_id::StoreId;
pub use tables::DATA_FORMAT;
pub use transfer::{ImportError, Imported};

/// Asks the engine of the store, and waits for its answer. The future of a server is large, so it
/// lies in a box of its own. Callers of the default engine do not carry it.
macro_rules! ask_engine {
    ($store:expr, $engine:ident => $work:expr) => {
        match &$store.engine {
            $crate::Engine::Redb($engine) => $work.await,
            $crate::Engine::Postgres($engine) => Box::pin($work).await,
        }
    };
}

/// As [`ask_engine`], if the default engine answers at once.
macro_rules! read_engine {
    ($store:expr, $engine:ident => $work:expr) => {
        match &$store.engine {
            $crate::Engine::Redb($engine) => $work,
            $crate::Engine::Postgres($engine) => Box::pin($work).await,
        }
    };
}

/// Does the same on either engine of the store.
macro_rules! on_engine {
    ($store:expr, $engine:ident => $work:expr) => {
        match &$store.engine {
            $crate::Engine::Redb($engine) => $work,
            $crate::Engine::Postgres($engine) => $work,
        }
    };
}

/// Runs on a server that several nodes share; a data file has only one node.
macro_rules! on_server {
    ($store:expr, $engine:ident => $work:expr, else $alone:expr) => {
        match &$store.engine {
            $crate::Engine::Redb(_) => $alone,
            $crate::Engine::Postgres($engine) => $work,
        }
    };
}

mod alerts;
mod api_keys;
mod cluster;
#[cfg(test)]
mod conformance;
mod damage;
mod dead_letters;
mod directory;
mod domains;
mod error;
mod feed;
mod history;
mod interface;
mod limits;
mod listing;
mod locks;
mod lost_messages;
mod messages;
pub mod metrics;
mod node;
pub mod organisation_counts;
mod organisations;
mod postgres;
mod purge;
mod rate_share;
mod record;
mod redb;
mod rows;
mod sending_right;
mod store_id;
mod suppression_filter;
mod suppressions;
mod tables;
mod tag;
mod timeline;
mod transfer;
mod transitions;
mod usage;
mod webhooks;

/// Approximate number of bytes that an operation on a small row writes.
const ROW_WEIGHT: usize = 128;

/// The store, open. Cheap to clone; it is closed when the last clone is gone.
#[derive(Debug, Clone)]
pub struct Store {
    engine: Engine,
}

#[derive(Debug, Clone)]
enum Engine {
    Redb(RedbStore),
    Postgres(PostgresStore),
}

/// Values that every engine keeps in memory.
#[derive(Default)]
struct InMemory {
    directory: Directory,
    suppressed: Suppressed,
    restarts: Restarts,
    usage: KnownUsage,
    metrics: StoreMetrics,
    damage: Damage,
    listings: Listings,
    alerting: AlertingState,
    /// Notified if the health may have changed.
    health_changed: Notify,
}

impl Store {
    /// Opens the store in a directory, making it if there is none, and recovers from the end of the
    /// last process: every pending message becomes `failed` before this returns.
    pub fn open(directory: &Path, now: Timestamp) -> Result<(Self, Recovery), OpenError> {
        Self::open_as(StoreOwner::Service, directory, |_| BTreeSet::new(), now)
    }

    /// As [`Store::open`], for this owner: a new store gets its mark, and a store of another owner
    /// is refused before anything in it changes. Pending messages stay as they are if their body is
    /// there; `bodies` returns the messages whose bodies are.
    pub fn open_as(
        owner: StoreOwner,
        directory: &Path,
        bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
        now: Timestamp,
    ) -> Result<(Self, Recovery), OpenError> {
        let (redb, recovery) =
            RedbStore::open(directory, Pending::Recover, Some(owner), bodies, now)?;
        Ok((Self { engine: Engine::Redb(redb) }, recovery))
    }

    /// Opens the store in a directory for a command, while no service has it open. Pending messages
    /// stay as they are: the next start of the service recovers them, and reports their number.
    pub fn observe(directory: &Path, now: Timestamp) -> Result<Self, OpenError> {
        let none = |_| BTreeSet::new();
        let (redb, _) = RedbStore::open(directory, Pending::Leave, None, none, now)?;
        Ok(Self { engine: Engine::Redb(redb) })
    }

    /// Checks that a start of the service could read a directory's data file, if there is one.
    /// Writes nothing. A file that another process has open is not checked.
    pub fn check(directory: &Path) -> Result<(), OpenError> {
        RedbStore::check(directory)
    }

    /// Begins a copy in the place of a directory's data file, which is to be finished while that
    /// one is open: its lock excludes other processes until then.
    pub fn replacement(directory: &Path) -> Result<FileCopy, CopyError> {
        RedbStore::replacement(directory)
    }

    /// Metrics of the store's work.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.memory().metrics
    }

    /// Returns whether the store takes writes now.
    pub fn health(&self) -> Health {
        on_engine!(self, engine => engine.health())
    }

    /// Number of bytes in the journal that are not in the data file yet.
    pub fn journal_bytes(&self) -> u64 {
        let Engine::Redb(engine) = &self.engine else { return 0 };
        engine.journal_bytes()
    }

    /// Ends once the writer has answered, even with a refusal: then it is alive.
    pub async fn answered(&self) {
        ask_engine!(self, engine => engine.answered());
    }

    /// Waits until the store takes writes.
    pub async fn writable(&self) {
        self.becomes(|health| health == Health::Writable).await;
    }

    /// Waits until the store takes outcomes of messages, or has stopped taking them for good.
    pub async fn takes_outcomes(&self) {
        match &self.engine {
            Engine::Redb(_) => self.becomes(|health| health != Health::Refusing).await,
            Engine::Postgres(_) => self.writable().await,
        }
    }

    /// Waits until the store refuses writes. Each holder of a snapshot has to release it then.
    pub async fn refuses(&self) {
        self.becomes(|health| health == Health::Refusing).await;
    }

    async fn becomes(&self, is_reached: impl Fn(Health) -> bool) {
        loop {
            let told = self.memory().health_changed.notified();
            tokio::pin!(told);
            // Registered before the check, so that a change in between is not missed.
            told.as_mut().enable();
            if is_reached(self.health()) {
                return;
            }
            match &self.engine {
                Engine::Redb(_) => told.await,
                // A lease ends without a notification.
                Engine::Postgres(_) => drop(timeout(Duration::from_millis(500), told).await),
            }
        }
    }

    /// Facts of an organisation that admission needs.
    pub fn facts(&self, organisation: OrganisationId) -> OrganisationFacts<'_> {
        OrganisationFacts { store: self, organisation, right: None }
    }

    /// Accepts a message: its record, its pending mark and its idempotency key become durable
    /// together, if the right by which it was admitted still holds then. If the key made a message
    /// before, the answer is that message, and nothing is written.
    pub async fn accept(&self, acceptance: NewMessage) -> Result<Accepted, AcceptError> {
        let mut answers = self.accept_all(vec![acceptance], BatchMode::Whole).await?;
        answers.pop().expect("one message has one answer")
    }

    /// Returns the message that an organisation's idempotency key made, if it still replays at
    /// `window_now`. Reads durable rows; needs neither space on disk nor the writer.
    pub async fn replay(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        let Engine::Redb(engine) = &self.engine else {
            let found = self.replays(organisation, &[key], window_now.into()).await?;
            return Ok(found.into_iter().next().flatten());
        };
        engine.replay(organisation, key, window_now)
    }

    /// As [`Store::replay`], for several keys, in their order.
    pub async fn replays(
        &self,
        organisation: OrganisationId,
        keys: &[IdempotencyKey<'_>],
        window_now: WindowTime,
    ) -> Result<Vec<Option<MessageId>>, StoreError> {
        let replay = |engine: &RedbStore, key| engine.replay(organisation, key, window_now.clone());
        match &self.engine {
            Engine::Redb(engine) => keys.iter().map(|key| replay(engine, *key)).collect(),
            Engine::Postgres(engine) => {
                Box::pin(engine.replays(organisation, keys, window_now)).await
            }
        }
    }

    /// As [`Store::replay`], if the answer is known at once. On a server, acceptance finds an
    /// earlier message of the key itself, and its commit makes that answer durable too: another
    /// question before it would only cost time.
    pub fn early_replay(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        let Engine::Redb(engine) = &self.engine else { return Ok(None) };
        engine.replay(organisation, key, window_now)
    }

    /// As [`Store::replay`], after the commit that is under way now.
    pub async fn replay_after_commit(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        if self.health() == Health::Writable {
            match &self.engine {
                // If that commit fails, its messages count as not accepted.
                Engine::Redb(engine) => engine.answered().await,
                // An empty request ends after those that were queued before it have begun.
                Engine::Postgres(engine) => {
                    let _ = Box::pin(engine.accept_all(Vec::new(), BatchMode::Whole)).await;
                }
            }
        }
        self.replay(organisation, key, window_now).await
    }

    /// Accepts messages of one organisation in one transaction; returns an answer for each, in
    /// order. If `mode` is [`BatchMode::Whole`], all of them are accepted, or none is. Otherwise
    /// each is accepted unless it is refused for a reason of its own; a reason that concerns all of
    /// them refuses all. If two that are not refused have one key, the second is a replay of the
    /// first.
    pub async fn accept_all(
        &self,
        acceptances: Vec<NewMessage>,
        mode: BatchMode,
    ) -> Result<Vec<Result<Accepted, AcceptError>>, AcceptError> {
        match self.health() {
            Health::Writable => {}
            Health::Refusing => return Err(StoreError::Unavailable.into()),
            Health::FileLost(_) => return Err(StoreError::FileLost.into()),
        }
        ask_engine!(self, engine => engine.accept_all(acceptances, mode))
    }

    /// Returns a snapshot of everything that is stored.
    pub async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let Engine::Redb(engine) = &self.engine else { return Err(StoreError::Unavailable) };
        engine.snapshot().await
    }

    /// Saves the content of the open file if that file is no longer at its path: at the path if no
    /// file is there, else beside the file that is there. Returns the path of the copy.
    pub async fn save_lost_file(&self, now: Timestamp) -> Result<Option<PathBuf>, SaveError> {
        let Engine::Redb(engine) = &self.engine else { return Ok(None) };
        engine.save_lost_file(now).await
    }

    /// Returns the store's record of the clock, or `None` if the store is new or of an earlier
    /// version.
    pub async fn time_record(&self) -> Result<Option<TimeRecord>, StoreError> {
        let row = read_engine!(self, engine => engine.time_row())?;
        let read = row.map(|row| decode_time(&row)).transpose();
        read.map_err(|reason| self.damaged_row(DamagedRow::new("clock", "time", &reason)))
    }

    /// Stores the record of the clock.
    pub async fn keep_time_record(&self, record: TimeRecord) -> Result<(), StoreError> {
        ask_engine!(self, engine => engine.put_time_row(encode_time(&record)))
    }

    /// The damaged rows that were met since the start. A start meets those of organisations, API
    /// keys, domains, suppressions, live idempotency keys and pending messages.
    pub fn damaged(&self) -> Vec<DamagedRow> {
        let mut rows = self.directory().load().damaged.clone();
        rows.extend(self.damage().rows());
        rows
    }

    /// Makes a change, whose rule may run several times before it is committed. It writes about
    /// `weight` rows.
    async fn change<T: Send + 'static>(
        &self,
        lock: Lock,
        weight: usize,
        rule: impl Fn(&mut dyn Rows) -> Result<T, Stop> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        match &self.engine {
            Engine::Redb(engine) => engine.change(lock, weight * ROW_WEIGHT, rule).await,
            Engine::Postgres(engine) => Box::pin(engine.change(lock, &rule)).await,
        }
    }

    /// Removes a row if it is there.
    async fn remove_row(&self, lock: Lock, table: Table, key: Key) -> Result<Change, StoreError> {
        let remove = move |rows: &mut dyn Rows| {
            if rows.get(table, &key)?.is_none() {
                return Ok(Change::None);
            }
            rows.remove(table, &key)?;
            Ok(Change::Made)
        };
        self.change(lock, 1, remove).await
    }

    async fn row(&self, table: Table, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        ask_engine!(self, engine => engine.row(table, key))
    }

    /// Returns the rows that other rows refer to, by their keys, read in the order of these until the
    /// rows have `max_bytes`. Rows that are missing are left out.
    async fn rows_of(
        &self,
        table: Table,
        keys: Vec<Key>,
        max_bytes: usize,
    ) -> Result<HashMap<Key, Vec<u8>>, StoreError> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        ask_engine!(self, engine => engine.rows_of(table, keys, max_bytes))
    }

    /// Returns the rows of a run in its order, at most `limit`.
    async fn rows(
        &self,
        table: Table,
        range: KeyRange,
        limit: usize,
    ) -> Result<Vec<KeyedRow>, StoreError> {
        ask_engine!(self, engine => engine.rows(table, range, limit))
    }

    async fn count_rows(&self, table: Table, range: KeyRange) -> Result<u64, StoreError> {
        ask_engine!(self, engine => engine.count_rows(table, range))
    }

    async fn counters(&self) -> Result<BTreeMap<Counter, u64>, StoreError> {
        read_engine!(self, engine => engine.counters())
    }

    fn memory(&self) -> &InMemory {
        on_engine!(self, engine => engine.memory())
    }

    fn directory(&self) -> &Directory {
        &self.memory().directory
    }

    fn damage(&self) -> &Damage {
        &self.memory().damage
    }

    /// Notes a row that an answer needs and that cannot be read.
    fn damaged_row(&self, row: DamagedRow) -> StoreError {
        self.damage().note(row);
        StoreError::Damaged
    }
}
