//! The store: every durable fact of the service, behind methods that are the domain's
//! transitions, durable when they return.
//!
//! [`Store`] is the interface, and an engine does the work: redb by default. No type of an engine
//! leaves this folder, and the store knows nothing of HTTP, of the provider or of bodies: a
//! message's body never reaches it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tokio::sync::watch;

use crate::domain::api_key::ApiKeyHash;
use crate::domain::clock_corrections::{TimeRecord, WindowTime};
use crate::domain::event::Event;
use crate::domain::feed::{FeedEntry, FeedId, FeedPosition, FeedTypes};
use crate::domain::history::{Hour, HourSteps};
use crate::domain::id::{KeyId, MessageId, OrganisationId};
use crate::domain::mailbox::DomainName;
use crate::domain::message::{Message, Recorded, Transition};
use crate::domain::organisation::{
    ApiKeyEntry, DomainCheck, DomainState, Organisation, OrganisationName, SenderDomain,
    SenderStatus,
};
use crate::domain::request::IdempotencyKey;
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::domain::time::Timestamp;
use crate::domain::webhook::{
    Redelivery, SigningSecret, Webhook, WebhookCursor, WebhookId, WebhookState,
};
use metrics::StoreMetrics;
use postgres::PostgresStore;
use redb::{Pending, RedbStore};

pub use crate::domain::search::MessageFilter;
pub use cluster::{
    ACCEPTING_CONNECTIONS, CLOCKS_DIFFER, CONNECTIONS_OF_A_NODE, DatabaseStatus, DrainOrder, Duty,
    FIRST_WITH_DRAIN, Forgotten, Joined, LEASE, NodeAnswer, NodeLoad, NodePlace, NodeRequest,
    NodeState, NodeStatus, SeenFrom, Standby,
};
pub use error::{AcceptError, DamagedRow, ListError, StoreError};
pub use interface::{
    Accepted, Applied, Change, CountsByOrganisation, DeadLetter, EventBacklog, FeedPage, Health,
    History, Lister, LostMessages, MAX_WEBHOOKS, MAX_WEBHOOKS_OF_ONE, MessagePage, NewApiKey,
    NewMessage, NewWebhook, OnNew, OrganisationFacts, Purged, Reference, Report, Settled,
    Settlement, StoreOwner, SuppressionKey, SuppressionPage, WaitingKey, WaitingPage, WebhookAdded,
};
pub use postgres::{ConnectError, NodeIdentity, PostgresServer};
#[cfg(any(test, fuzzing))]
pub use record::check::check_row;
pub use redb::{
    CACHE_BYTES, Candidate, Chunk, Contents, CopyError, DATA_FORMAT, Existing, FILE_NAME, FileCopy,
    FileId, FileLoss, FileOrigin, JOURNAL_NAME, NotAChunk, OpenError, OwnFiles, Recovery,
    RestoreError, Restored, SaveError, Snapshot, Unclosed, create_directory,
};
pub use sending_right::SendingRight;
pub use store_id::StoreId;
pub use transfer::{ImportError, Imported};

mod cluster;
#[cfg(test)]
mod conformance;
mod damage;
mod directory;
mod error;
mod feed_entries;
mod interface;
mod limits;
mod listing;
pub mod metrics;
mod node;
mod postgres;
mod record;
mod redb;
mod sending_right;
mod store_id;
mod suppression_filter;
mod tag;
mod transfer;
mod transitions;

/// Asks whichever engine the store has, and waits for its answer. What waits for a server is large,
/// and lies in a box of its own, so that who asks the default engine does not carry it.
macro_rules! ask_engine {
    ($store:expr, $engine:ident => $work:expr) => {
        match &$store.engine {
            Engine::Redb($engine) => $work.await,
            Engine::Postgres($engine) => Box::pin($work).await,
        }
    };
}

/// As [`ask_engine`], if the default engine answers at once.
macro_rules! read_engine {
    ($store:expr, $engine:ident => $work:expr) => {
        match &$store.engine {
            Engine::Redb($engine) => $work,
            Engine::Postgres($engine) => Box::pin($work).await,
        }
    };
}

/// Does the same on whichever engine the store has.
macro_rules! on_engine {
    ($store:expr, $engine:ident => $work:expr) => {
        match &$store.engine {
            Engine::Redb($engine) => $work,
            Engine::Postgres($engine) => $work,
        }
    };
}

/// The store, open. Cheap to clone; it is closed when the last clone is gone.
#[derive(Debug, Clone)]
pub struct Store {
    engine: Engine,
}

/// What stores.
#[derive(Debug, Clone)]
enum Engine {
    Redb(RedbStore),
    Postgres(PostgresStore),
}

impl Store {
    /// Opens the store in a directory, making it if there is none, and sets right what the end of
    /// the last process left: every pending message becomes `failed` before this returns.
    pub fn open(directory: &Path, now: Timestamp) -> Result<(Self, Recovery), OpenError> {
        Self::open_as(StoreOwner::Service, directory, |_| BTreeSet::new(), now)
    }

    /// As [`Store::open`], for this owner: a new store gets its mark, and one of another owner is
    /// refused before anything in it changes. Pending messages stay as they are if their body is
    /// there; `bodies` returns whose bodies are.
    pub fn open_as(
        owner: StoreOwner,
        directory: &Path,
        bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
        now: Timestamp,
    ) -> Result<(Self, Recovery), OpenError> {
        let (redb, recovery) =
            RedbStore::open_by(directory, Pending::Settle, Some(owner), bodies, now)?;
        Ok((Self { engine: Engine::Redb(redb) }, recovery))
    }

    /// Opens the store in a directory for a command, while no service has it open. Pending messages
    /// stay as they are: the next start of the service settles them, and tells how many they were.
    pub fn observe(directory: &Path, now: Timestamp) -> Result<Self, OpenError> {
        let (redb, _) = RedbStore::open(directory, Pending::Leave, now)?;
        Ok(Self { engine: Engine::Redb(redb) })
    }

    /// Checks that a start of the service could read a directory's data file, if there is one. Writes
    /// nothing. A file that another process has open is not looked at.
    pub fn check(directory: &Path) -> Result<(), OpenError> {
        RedbStore::check(directory)
    }

    /// Begins a copy in the place of a directory's data file, which is to be finished while that
    /// one is open: its lock keeps others off until then.
    pub fn replacement(directory: &Path) -> Result<FileCopy, CopyError> {
        RedbStore::replacement(directory)
    }

    /// Metrics of the store's work.
    pub fn metrics(&self) -> &StoreMetrics {
        on_engine!(self, engine => engine.metrics())
    }

    /// Whether the store takes writes now.
    pub fn health(&self) -> Health {
        on_engine!(self, engine => engine.health())
    }

    /// Bytes in the journal that are not in the data file yet.
    pub fn journal_bytes(&self) -> u64 {
        match &self.engine {
            Engine::Redb(engine) => engine.journal_bytes(),
            Engine::Postgres(_) => 0,
        }
    }

    /// Ends once the writer has answered, be it that it refuses: it is alive.
    pub async fn answered(&self) {
        ask_engine!(self, engine => engine.answered());
    }

    /// Waits until the store takes writes.
    pub async fn writable(&self) {
        ask_engine!(self, engine => engine.writable());
    }

    /// Waits until the store takes outcomes of messages, or never will again.
    pub async fn takes_outcomes(&self) {
        match &self.engine {
            Engine::Redb(engine) => engine.takes_outcomes().await,
            Engine::Postgres(engine) => Box::pin(engine.writable()).await,
        }
    }

    /// Waits until the store refuses writes. Whoever holds a snapshot has to let go of it then.
    pub async fn refuses(&self) {
        ask_engine!(self, engine => engine.refuses());
    }

    /// What admission asks about an organisation.
    pub fn facts(&self, organisation: OrganisationId) -> OrganisationFacts<'_> {
        OrganisationFacts::new(self, organisation)
    }

    /// Whether an organisation must not write to an address.
    pub async fn is_suppressed(
        &self,
        organisation: OrganisationId,
        address: &SuppressedAddress,
    ) -> Result<bool, StoreError> {
        read_engine!(self, engine => engine.is_suppressed(organisation, address))
    }

    /// Accepts a message: its record, its pending mark and its idempotency key become durable
    /// together, if the right by which it was admitted still holds then. If the key made a message before, that one is the answer and nothing is written.
    pub async fn accept<F: FnOnce() + Send + 'static>(
        &self,
        acceptance: NewMessage<F>,
    ) -> Result<Accepted, AcceptError> {
        ask_engine!(self, engine => engine.accept(acceptance))
    }

    /// Adds an organisation, or returns `None` if the name is taken. A row that cannot be read
    /// takes no name.
    pub async fn add_organisation(
        &self,
        name: OrganisationName,
    ) -> Result<Option<Organisation>, StoreError> {
        ask_engine!(self, engine => engine.add_organisation(name))
    }

    /// Removes an organisation with its keys, domains and endpoints. Its records stay until their
    /// retention ends, and its suppressions with them. A key that cannot be read lets nobody in, and
    /// stays.
    pub async fn remove_organisation(&self, id: OrganisationId) -> Result<Change, StoreError> {
        ask_engine!(self, engine => engine.remove_organisation(id))
    }

    /// All organisations.
    pub fn organisations(&self) -> Vec<Organisation> {
        on_engine!(self, engine => engine.organisations())
    }

    /// The organisation with this name.
    pub fn organisation(&self, name: &OrganisationName) -> Option<Organisation> {
        on_engine!(self, engine => engine.organisation(name))
    }

    /// The organisation with this number.
    pub fn organisation_by_id(&self, id: OrganisationId) -> Option<Organisation> {
        on_engine!(self, engine => engine.organisation_by_id(id))
    }

    /// The organisation that an API key lets in at `now`, with the key's number; notes the use, in
    /// memory.
    pub fn authenticate(&self, hash: &ApiKeyHash, now: Timestamp) -> Option<(Organisation, KeyId)> {
        on_engine!(self, engine => engine.authenticate(hash, now))
    }

    /// When an API key was last used, to the millisecond while the service runs.
    pub fn key_last_used(&self, id: KeyId) -> Option<Timestamp> {
        on_engine!(self, engine => engine.key_last_used(id))
    }

    /// Stores when the API keys were last used, as far as that is newer than what is stored.
    pub async fn store_key_use(&self) -> Result<(), StoreError> {
        ask_engine!(self, engine => engine.store_key_use())
    }

    /// Adds an API key by its hash, or returns `None` if there is no such organisation.
    pub async fn add_api_key(
        &self,
        organisation: OrganisationId,
        key: NewApiKey,
        now: Timestamp,
    ) -> Result<Option<ApiKeyEntry>, StoreError> {
        ask_engine!(self, engine => engine.add_api_key(organisation, key, now))
    }

    /// Revokes an API key; no request that arrives after this is let in with it.
    pub async fn revoke_api_key(&self, id: KeyId) -> Result<Change, StoreError> {
        ask_engine!(self, engine => engine.revoke_api_key(id))
    }

    /// All API keys, as hashes.
    pub fn api_keys(&self) -> Vec<ApiKeyEntry> {
        on_engine!(self, engine => engine.api_keys())
    }

    /// Adds a sender domain, or sets the state of one that is there. Returns `None` if there is no
    /// such organisation.
    pub async fn put_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        state: DomainState,
        now: Timestamp,
    ) -> Result<Option<SenderDomain>, StoreError> {
        ask_engine!(self, engine => engine.put_domain(organisation, name, state, now))
    }

    /// Writes down what the provider said of a sender domain and moves it from one state to
    /// another, which may be the same. Does nothing if it has changed or gone since it was read.
    pub async fn change_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        from: DomainState,
        to: DomainState,
        check: DomainCheck,
    ) -> Result<Change, StoreError> {
        ask_engine!(self, engine => engine.change_domain(organisation, name, from, to, check))
    }

    /// Withdraws a sender domain.
    pub async fn remove_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
    ) -> Result<Change, StoreError> {
        ask_engine!(self, engine => engine.remove_domain(organisation, name))
    }

    /// Whether an organisation may send from a domain now.
    pub fn sender_status(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
    ) -> SenderStatus {
        on_engine!(self, engine => engine.sender_status(organisation, domain))
    }

    /// All sender domains.
    pub fn domains(&self) -> Vec<SenderDomain> {
        on_engine!(self, engine => engine.domains())
    }

    /// Grows whenever an address becomes suppressed: while it stands still, no message that was
    /// admitted before needs to be looked at again.
    pub fn suppression_epoch(&self) -> u64 {
        on_engine!(self, engine => engine.suppression_epoch())
    }

    /// Suppresses an address for an organisation, or for all.
    pub async fn suppress(
        &self,
        organisation: Option<OrganisationId>,
        suppression: Suppression,
    ) -> Result<Change, StoreError> {
        ask_engine!(self, engine => engine.suppress(organisation, suppression))
    }

    /// Suppresses many addresses in one transaction; the change of each, in order. Neighbours in
    /// the order of [`Store::suppressions`] cost the least.
    pub async fn suppress_all(
        &self,
        suppressions: Vec<(Option<OrganisationId>, Suppression)>,
    ) -> Result<Vec<Change>, StoreError> {
        ask_engine!(self, engine => engine.suppress_all(suppressions))
    }

    /// Ends a suppression.
    pub async fn unsuppress(
        &self,
        organisation: Option<OrganisationId>,
        address: SuppressedAddress,
    ) -> Result<Change, StoreError> {
        ask_engine!(self, engine => engine.unsuppress(organisation, address))
    }

    /// Suppressions by scope and address, from after `after` on, at most `limit`.
    pub async fn suppressions(
        &self,
        after: Option<(Option<OrganisationId>, &SuppressedAddress)>,
        limit: usize,
    ) -> Result<SuppressionPage, StoreError> {
        read_engine!(self, engine => engine.suppressions(after, limit))
    }

    /// Returns the message that an organisation's idempotency key made, if it still replays at
    /// `window_now`. Sees what is durable; needs neither space on disk nor the writer.
    pub async fn replay(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        read_engine!(self, engine => engine.replay(organisation, key, window_now))
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

    /// As [`Store::replay`], if it can be told at once. On a server, acceptance finds an earlier
    /// message of the key itself, and its commit is what makes that answer durable too: another
    /// question before it would only cost time.
    pub fn early_replay(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        match &self.engine {
            Engine::Redb(engine) => engine.replay(organisation, key, window_now),
            Engine::Postgres(_) => Ok(None),
        }
    }

    /// As [`Store::replay`], after whatever is being committed now.
    pub async fn replay_after_commit(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        ask_engine!(self, engine => engine.replay_after_commit(organisation, key, window_now))
    }

    /// Accepts all messages in one transaction, or none; an answer for each, in order. Of two with
    /// one key, the second is a replay of the first.
    pub async fn accept_all<F: FnOnce() + Send + 'static>(
        &self,
        acceptances: Vec<NewMessage<F>>,
    ) -> Result<Vec<Accepted>, AcceptError> {
        ask_engine!(self, engine => engine.accept_all(acceptances))
    }

    /// Records the outcome of a message after `attempts` calls to the provider in all, at `now`.
    pub async fn record(
        &self,
        id: MessageId,
        attempts: u32,
        transition: Transition,
        now: Timestamp,
    ) -> Result<Recorded, StoreError> {
        ask_engine!(self, engine => engine.record(id, attempts, transition, now))
    }

    /// Applies a provider's report: the event, the proof of acceptance and the suppressions that
    /// follow, together. A repeat changes nothing.
    pub async fn apply(&self, report: Report, now: Timestamp) -> Result<Applied, StoreError> {
        ask_engine!(self, engine => engine.apply(report, now))
    }

    /// As [`Store::apply`], for several reports in one transaction; an answer for each, in order.
    pub async fn apply_all(
        &self,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        ask_engine!(self, engine => engine.apply_all(reports, now))
    }

    /// A message, unless its retention is over at `window_now`.
    pub async fn message(
        &self,
        id: MessageId,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Message>, StoreError> {
        read_engine!(self, engine => engine.message(id, window_now))
    }

    /// When the oldest record was made, past its window or not; of one that cannot be read, its
    /// id's instant. Returns `None` if there is no record.
    pub async fn oldest(
        &self,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Timestamp>, StoreError> {
        read_engine!(self, engine => engine.oldest(window_now))
    }

    /// Returns the stored instant of the last message's id, or `None` if there is no message.
    /// Reads what is published.
    pub async fn newest(&self) -> Result<Option<Timestamp>, StoreError> {
        read_engine!(self, engine => engine.newest())
    }

    /// A page of messages, newest first, at most `limit`, as operators read it.
    pub async fn list(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<MessagePage, ListError> {
        ask_engine!(self, engine => engine.list(filter, limit, window_now))
    }

    /// What `then` makes of a page of messages, newest first, at most `limit`. It runs where the
    /// page is read, so that only so many pages are held at one time. Rows that cannot be read are
    /// left out.
    pub async fn list_then<T: Send + 'static>(
        &self,
        lister: Lister,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
        then: impl FnOnce(MessagePage) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        ask_engine!(self, engine => engine.list_then(lister, filter, limit, window_now, then))
    }

    /// A message's events, oldest first. Rows that cannot be read are left out.
    pub async fn events(&self, id: MessageId) -> Result<Vec<Event>, StoreError> {
        read_engine!(self, engine => engine.events(id))
    }

    /// Returns entries of an organisation's feed after a position, at most `limit`. Those whose
    /// record is past its retention at `window_now`, or cannot be read, are left out.
    pub async fn feed(
        &self,
        organisation: OrganisationId,
        after: FeedPosition,
        types: FeedTypes,
        limit: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<FeedPage, StoreError> {
        ask_engine!(self, engine => engine.feed(organisation, after, types, limit, window_now))
    }

    /// Returns what `then` makes of a page as [`Store::feed`] reads it. This is one of the listings
    /// that an organisation may have running, and `then` runs where the page is read.
    pub async fn list_feed<T: Send + 'static>(
        &self,
        organisation: OrganisationId,
        after: FeedPosition,
        types: FeedTypes,
        limit: usize,
        window_now: impl Into<WindowTime>,
        then: impl FnOnce(FeedPage) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        ask_engine!(self, engine => engine.list_feed(organisation, after, types, limit, window_now, then))
    }

    /// Returns the entry at a position, unless there is none or its record is past its retention
    /// at `window_now`.
    pub async fn feed_entry(
        &self,
        organisation: OrganisationId,
        position: FeedPosition,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<FeedEntry>, StoreError> {
        ask_engine!(self, engine => engine.feed_entry(organisation, position, window_now))
    }

    /// Returns the position of an organisation's last entry: only later commits write behind it.
    pub fn feed_end(&self, organisation: OrganisationId) -> FeedPosition {
        on_engine!(self, engine => engine.feed_end(organisation))
    }

    /// Returns a receiver that is told after each commit that added entries to any feed. Its value
    /// is the last position.
    pub fn feed_grew(&self) -> watch::Receiver<FeedPosition> {
        on_engine!(self, engine => engine.feed_grew())
    }

    /// Returns the number by which the feed's cursors are told from those of other files.
    pub fn feed_id(&self) -> FeedId {
        on_engine!(self, engine => engine.feed_id())
    }

    /// Adds an endpoint. It begins with what is committed after it.
    pub async fn add_webhook(
        &self,
        organisation: OrganisationId,
        new: NewWebhook,
        now: Timestamp,
    ) -> Result<WebhookAdded, StoreError> {
        ask_engine!(self, engine => engine.add_webhook(organisation, new, now))
    }

    /// Removes an endpoint. What it has not been told of yet, it never is.
    pub async fn remove_webhook(&self, id: WebhookId) -> Result<Change, StoreError> {
        ask_engine!(self, engine => engine.remove_webhook(id))
    }

    /// Pauses or resumes an endpoint; returns it as it is then, or `None` if it is gone.
    pub async fn set_webhook_state(
        &self,
        id: WebhookId,
        state: WebhookState,
    ) -> Result<Option<Webhook>, StoreError> {
        ask_engine!(self, engine => engine.set_webhook_state(id, state))
    }

    /// Gives an endpoint a new secret. The one before signs as well for
    /// [`ROTATION_OVERLAP`](crate::domain::webhook::ROTATION_OVERLAP).
    pub async fn rotate_webhook(
        &self,
        id: WebhookId,
        secret: SigningSecret,
        now: Timestamp,
    ) -> Result<Option<Webhook>, StoreError> {
        ask_engine!(self, engine => engine.rotate_webhook(id, secret, now))
    }

    /// All endpoints, by number.
    pub fn webhooks(&self) -> Vec<Webhook> {
        on_engine!(self, engine => engine.webhooks())
    }

    /// The endpoint with this number.
    pub fn webhook(&self, id: WebhookId) -> Option<Webhook> {
        on_engine!(self, engine => engine.webhook(id))
    }

    /// Is told after each change of an endpoint or its cursor, and after others.
    pub fn webhook_changes(&self) -> watch::Receiver<()> {
        on_engine!(self, engine => engine.webhook_changes())
    }

    /// How far an endpoint's deliveries are; `None` if it is gone.
    pub async fn webhook_cursor(&self, id: WebhookId) -> Result<Option<WebhookCursor>, StoreError> {
        ask_engine!(self, engine => engine.webhook_cursor(id))
    }

    /// Deliveries of an endpoint that wait for their next attempt, by its time, at most `limit`
    /// rows.
    pub async fn waiting_deliveries(
        &self,
        id: WebhookId,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        ask_engine!(self, engine => engine.waiting_deliveries(id, limit))
    }

    /// How many deliveries of an endpoint wait for their next attempt. Reads all of them.
    pub async fn count_waiting_deliveries(&self, id: WebhookId) -> Result<u64, StoreError> {
        ask_engine!(self, engine => engine.count_waiting_deliveries(id))
    }

    /// Deliveries of an endpoint whose last attempt failed, the newest events first, at most
    /// `limit`.
    pub async fn failed_deliveries(
        &self,
        id: WebhookId,
        limit: usize,
    ) -> Result<Vec<Redelivery>, StoreError> {
        ask_engine!(self, engine => engine.failed_deliveries(id, limit))
    }

    /// Writes down what became of deliveries, unless the cursor has had another turn since.
    pub async fn settle_deliveries(
        &self,
        id: WebhookId,
        turn: u32,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        ask_engine!(self, engine => engine.settle_deliveries(id, turn, settlement))
    }

    /// Moves an endpoint's cursor back, so that everything after `position` is delivered again;
    /// leaves it if nothing after that was attempted, as far as the cursor or `attempted_to` says.
    /// `None` if the endpoint is gone.
    pub async fn move_webhook_back(
        &self,
        id: WebhookId,
        position: FeedPosition,
        attempted_to: FeedPosition,
    ) -> Result<Option<Change>, StoreError> {
        ask_engine!(self, engine => engine.move_webhook_back(id, position, attempted_to))
    }

    /// Has one event delivered again, from `now` on; changes nothing if it was not attempted yet, as
    /// far as the cursor and `attempted_to` say. `None` if the endpoint is gone.
    pub async fn redeliver(
        &self,
        id: WebhookId,
        position: FeedPosition,
        attempted_to: FeedPosition,
        now: Timestamp,
    ) -> Result<Option<Change>, StoreError> {
        ask_engine!(self, engine => engine.redeliver(id, position, attempted_to, now))
    }

    /// Removes rows of endpoints that are gone, and of deliveries that failed and whose event is
    /// past its retention: at most `limit` at once. Returns how many there were.
    pub async fn sweep_webhooks(
        &self,
        window_now: WindowTime,
        limit: usize,
    ) -> Result<usize, StoreError> {
        ask_engine!(self, engine => engine.sweep_webhooks(window_now, limit))
    }

    /// Keeps documents that could not be read; one that is there already stays as it is. Of too
    /// many, the oldest go.
    pub async fn keep_dead_letters(&self, letters: Vec<DeadLetter>) -> Result<(), StoreError> {
        ask_engine!(self, engine => engine.keep_dead_letters(letters))
    }

    /// Removes dead letters; how many of them were there.
    pub async fn remove_dead_letters(&self, letters: &[DeadLetter]) -> Result<usize, StoreError> {
        ask_engine!(self, engine => engine.remove_dead_letters(letters))
    }

    /// The documents that could not be read, newest first, at most `limit`. Rows that cannot be
    /// read are left out.
    pub async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        read_engine!(self, engine => engine.dead_letters(limit))
    }

    /// How much of the provider's reports waits for its message or for a reader.
    pub async fn event_backlog(&self) -> Result<EventBacklog, StoreError> {
        read_engine!(self, engine => engine.event_backlog())
    }

    /// Messages whose body was lost, as far as no operator has acknowledged them and the last loss
    /// is less than 24 hours ago at `now`.
    pub async fn lost_messages(&self, now: Timestamp) -> Result<Option<LostMessages>, StoreError> {
        read_engine!(self, engine => engine.lost_messages(now))
    }

    /// Ends the count, because an operator has seen it; returns what it was.
    pub async fn acknowledge_lost_messages(
        &self,
        now: Timestamp,
    ) -> Result<Option<LostMessages>, StoreError> {
        ask_engine!(self, engine => engine.acknowledge_lost_messages(now))
    }

    /// Returns the file's record of the clock, or `None` if the file is new or of an earlier
    /// version.
    pub async fn time_record(&self) -> Result<Option<TimeRecord>, StoreError> {
        read_engine!(self, engine => engine.time_record())
    }

    /// Stores the file's record of the clock.
    pub async fn keep_time_record(&self, record: TimeRecord) -> Result<(), StoreError> {
        ask_engine!(self, engine => engine.keep_time_record(record))
    }

    /// Adds counts to those of an hour.
    pub async fn add_to_history(
        &self,
        hour: Hour,
        counts: CountsByOrganisation,
    ) -> Result<(), StoreError> {
        ask_engine!(self, engine => engine.add_to_history(hour, counts))
    }

    /// Returns what happened in each step, with the organisations that had the most mail, at most
    /// `most`. This is one of the listings that operators may have running.
    pub async fn history(&self, steps: HourSteps, most: usize) -> Result<History, ListError> {
        ask_engine!(self, engine => engine.history(steps, most))
    }

    /// Removes a bounded part of what is past its window at `window_now`: at most `limit` messages
    /// with their events, at most `limit` idempotency keys and at most `limit` entries of the feed.
    pub async fn purge(
        &self,
        window_now: impl Into<WindowTime>,
        limit: usize,
    ) -> Result<Purged, StoreError> {
        ask_engine!(self, engine => engine.purge(window_now, limit))
    }

    /// The rows that cannot be read, as far as they have been met since the start. A start meets
    /// those of organisations, API keys, domains, suppressions, live idempotency keys and pending
    /// messages.
    pub fn damaged(&self) -> Vec<DamagedRow> {
        on_engine!(self, engine => engine.damaged())
    }

    /// This moment of everything that is stored.
    pub async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        match &self.engine {
            Engine::Redb(engine) => engine.snapshot().await,
            Engine::Postgres(_) => Err(StoreError::Unavailable),
        }
    }

    /// Saves what the open file holds if that is not at its path any more: in its place if there is
    /// none, else beside the file that is there. Returns the path of the copy.
    pub async fn save_lost_file(&self, now: Timestamp) -> Result<Option<PathBuf>, SaveError> {
        match &self.engine {
            Engine::Redb(engine) => engine.save_lost_file(now).await,
            Engine::Postgres(_) => Ok(None),
        }
    }
}
