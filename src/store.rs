//! The store: every durable fact of the service, behind methods that are the domain's
//! transitions, durable when they return.
//!
//! No redb type or closure leaves it, and it knows nothing of HTTP, of the provider or of bodies:
//! a message's body never reaches it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::domain::admission::Admitted;
use crate::domain::api_key::ApiKeyHash;
use crate::domain::event::Event;
use crate::domain::id::{KeyId, MessageId, OrganisationId};
use crate::domain::mailbox::DomainName;
use crate::domain::message::{Message, Recorded, Status, Transition};
use crate::domain::organisation::{
    ApiKeyEntry, DomainState, Organisation, OrganisationName, SenderDomain,
};
use crate::domain::request::IdempotencyKey;
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::domain::time::Timestamp;

use redb::accept::{Accept, KeyClaim};
use redb::failure::ReadError;
use redb::open::Opener;
use redb::writer::{Writer, WriterThread};
use redb::{Shared, administer, message, purge, read_lock, suppress};

pub use redb::open::Recovery;
pub use redb::suppress::{Change, OrganisationFacts};

#[cfg(test)]
mod conformance;
mod redb;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "pillarbox.redb";
/// How many bytes of the file are cached. Recent rows are what sending and reading touch.
pub const CACHE_BYTES: usize = 64 << 20;

/// Why the store could not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk does not take it now (full, I/O error): nothing was changed; try again later.
    #[error("the store does not take it now: the disk is full or failing")]
    Unavailable,
    /// A row cannot be read: the file is damaged.
    #[error("a row of the store cannot be read: the file is damaged")]
    Damaged,
}

/// Why the file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("another process has the file open; is pillarbox running already?")]
    InUse,
    /// It is not a file of pillarbox.
    #[error("the file is not a pillarbox store; it was left untouched")]
    Foreign,
    /// It was written by a newer pillarbox.
    #[error("the file has format {version}, written by a newer pillarbox; upgrade this one")]
    Newer {
        /// The file's format.
        version: u64,
    },
    /// Its content cannot be read.
    #[error("the file is damaged: {0}; restore a backup")]
    Damaged(String),
    /// It could not be made.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The disk failed.
    #[error("the file cannot be read or written: {0}")]
    Io(::redb::Error),
    /// The writer's thread could not be started.
    #[error("cannot start the writer's thread: {0}")]
    Thread(std::io::Error),
}

impl OpenError {
    fn from_database(error: ::redb::DatabaseError) -> Self {
        use ::redb::{DatabaseError, StorageError};
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            DatabaseError::Storage(StorageError::Corrupted(what)) => Self::Damaged(what),
            // redb reports a wrong magic number as invalid data.
            DatabaseError::Storage(StorageError::Io(error))
                if error.kind() == std::io::ErrorKind::InvalidData =>
            {
                Self::Foreign
            }
            other => Self::Io(other.into()),
        }
    }

    fn from_read(error: ReadError) -> Self {
        match error {
            ReadError::File(error) => Self::Io(error),
            ReadError::Row(error) => Self::Damaged(error.to_string()),
        }
    }
}

/// A durable acceptance. Exists only after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// The message is new.
    New(MessageId),
    /// The idempotency key made this message before.
    Replayed(MessageId),
}

/// What the provider reports of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The message.
    pub message: MessageId,
    /// The provider's identifier for it. That there is a report proves its acceptance.
    pub ses_message_id: String,
    /// When the provider accepted it.
    pub accepted_at: Timestamp,
    /// What happened to recipients; nothing where the report only says that it was accepted.
    pub event: Option<Event>,
}

/// What a report came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is on the record, now or from an earlier time.
    Done,
    /// It proved that a pending message was sent: a waiting retry must not happen.
    ProvedSent,
    /// There is no such message.
    UnknownMessage,
}

/// Which messages to list.
#[derive(Debug, Clone, Default)]
pub struct MessageFilter {
    /// Only those accepted before this one.
    pub before: Option<MessageId>,
    /// Only this organisation's.
    pub organisation: Option<OrganisationId>,
    /// Only those with this stored status.
    pub status: Option<Status>,
}

impl MessageFilter {
    fn matches(&self, message: &Message) -> bool {
        self.organisation.is_none_or(|organisation| organisation == message.organisation)
            && self.status.is_none_or(|status| status == message.status())
    }
}

/// What one step of the purge removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    /// Message records, each with its events.
    pub messages: usize,
    /// Idempotency keys.
    pub idempotency_keys: usize,
}

/// Whether the store takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Writable,
    /// The last commit failed and none has succeeded since.
    Refusing,
}

/// The store, open. Cheap to clone; the file is closed when the last clone is gone.
#[derive(Debug, Clone)]
pub struct Store {
    writer: Writer,
    shared: Arc<Shared>,
    // Joined after the queue above is closed: fields drop in order.
    _thread: Arc<WriterThread>,
}

impl Store {
    /// Opens the store in a directory, making it where there is none, and sets right what the
    /// end of the last process left: every pending message becomes `failed` before this returns.
    pub fn open(directory: &Path, now: Timestamp) -> Result<(Self, Recovery), OpenError> {
        let path = directory.join(FILE_NAME);
        redb::open::create_if_missing(&path)?;
        Self::start(Opener::file(path, CACHE_BYTES), now)
    }

    fn start(opener: Opener, now: Timestamp) -> Result<(Self, Recovery), OpenError> {
        let database = opener.open_first()?;
        let shared = Arc::new(Shared::new(opener, database));
        let recovery = redb::open::recover(&shared, now)?;
        let (writer, thread) = Writer::start(Arc::clone(&shared)).map_err(OpenError::Thread)?;
        Ok((Self { writer, shared, _thread: Arc::new(thread) }, recovery))
    }

    /// A store on a disk in memory, with what fills the disk up and what makes room again.
    #[cfg(test)]
    pub(crate) fn on_small_disk(now: Timestamp) -> (Self, impl Fn(), impl Fn()) {
        use redb::open::faults::{Disk, Fault};
        let disk = Disk::formatted();
        let (opened, full, free) = (disk.clone(), disk.clone(), disk);
        let (store, _) = Self::start(Opener::backend(move || opened.clone()), now)
            .expect("a formatted disk opens");
        (store, move || full.set(Fault::Full), move || free.set(Fault::None))
    }

    /// The organisation that an API key belongs to.
    pub fn authenticate(&self, hash: &ApiKeyHash) -> Option<Organisation> {
        self.shared.directory().owner(hash).cloned()
    }

    /// What admission asks about an organisation, from one snapshot.
    pub fn facts(&self, organisation: OrganisationId) -> Result<OrganisationFacts, StoreError> {
        Ok(OrganisationFacts::load(&self.shared, organisation)?)
    }

    /// Grows whenever an address becomes suppressed: where it stands still, no message that was
    /// admitted before needs to be looked at again.
    pub fn suppression_epoch(&self) -> u64 {
        self.shared.suppression_epoch.load(Ordering::Acquire)
    }

    /// The message that an organisation's idempotency key made, where it still replays at
    /// `window_now`. Sees what is durable; needs neither space on disk nor the writer.
    pub fn replay(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: Timestamp,
    ) -> Result<Option<MessageId>, StoreError> {
        Ok(redb::accept::find_replay(&self.shared, organisation, key.as_str(), window_now)?)
    }

    /// As [`Store::replay`], after whatever is being committed now.
    pub async fn replay_after_commit(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: Timestamp,
    ) -> Result<Option<MessageId>, StoreError> {
        if self.health() == Health::Writable {
            self.writer.run(0, |_| Ok(())).await?;
        }
        self.replay(organisation, key, window_now)
    }

    /// Accepts a message: its record, its pending mark and its idempotency key become durable
    /// together. Where the key made a message before, that one is the answer and nothing is
    /// written. `on_new` runs once a new message is durable, also where the caller is gone.
    pub async fn accept(
        &self,
        id: MessageId,
        organisation: OrganisationId,
        admitted: &Admitted<'_>,
        created_at: Timestamp,
        window_now: Timestamp,
        on_new: impl FnOnce() + Send + 'static,
    ) -> Result<Accepted, StoreError> {
        if self.health() == Health::Refusing {
            return Err(StoreError::Unavailable);
        }
        let claim = admitted.idempotency_key().map(|key| KeyClaim {
            organisation,
            key: key.as_str().to_owned(),
            hash: read_lock(&self.shared.index).hash(organisation, key.as_str()),
            window_now,
        });
        let (reply, answer) = oneshot::channel();
        let accept = Accept {
            id,
            row: redb::record::message::encode_accepted(admitted, organisation, created_at),
            created_at,
            claim,
            on_new,
            decided: None,
            reply,
        };
        self.writer.submit(Box::new(accept)).await?;
        answer.await.map_err(|_| StoreError::Unavailable)?
    }

    /// Records what became of a message after `attempts` calls to the provider in all.
    pub async fn record(
        &self,
        id: MessageId,
        attempts: u32,
        transition: Transition,
    ) -> Result<Recorded, StoreError> {
        self.writer.run(512, move |batch| message::record(batch, id, attempts, transition)).await
    }

    /// Applies a provider's report: the event, the proof of acceptance and the suppressions that
    /// follow, together. A repeat changes nothing.
    pub async fn apply(&self, report: Report, now: Timestamp) -> Result<Applied, StoreError> {
        self.writer.run(1_024, move |batch| message::apply(batch, &report, now)).await
    }

    /// A message, unless its retention is over at `window_now`.
    pub fn message(
        &self,
        id: MessageId,
        window_now: Timestamp,
    ) -> Result<Option<Message>, StoreError> {
        Ok(self.shared.read(|transaction| message::read(transaction, id, window_now))?)
    }

    /// A message's events, oldest first.
    pub fn events(&self, id: MessageId) -> Result<Vec<Event>, StoreError> {
        Ok(self.shared.read(|transaction| message::read_events(transaction, id))?)
    }

    /// Messages, newest first, at most `limit`.
    pub async fn list(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: Timestamp,
    ) -> Result<Vec<Message>, StoreError> {
        let shared = Arc::clone(&self.shared);
        // A filter that matches little reads much.
        tokio::task::spawn_blocking(move || {
            shared.read(|transaction| message::list(transaction, &filter, limit, window_now))
        })
        .await
        .expect("a listing does not panic and is not aborted")
        .map_err(StoreError::from)
    }

    /// Removes a bounded part of what is past its window at `window_now`.
    pub async fn purge(&self, window_now: Timestamp, limit: usize) -> Result<Purged, StoreError> {
        purge::expire_index(&self.shared, window_now);
        self.writer.run(0, move |batch| purge::purge(batch, window_now, limit)).await
    }

    /// Suppresses an address for an organisation, or for all.
    pub async fn suppress(
        &self,
        organisation: Option<OrganisationId>,
        suppression: Suppression,
    ) -> Result<Change, StoreError> {
        self.writer
            .run(128, move |batch| suppress::insert_suppression(batch, organisation, &suppression))
            .await
    }

    /// Ends a suppression.
    pub async fn unsuppress(
        &self,
        organisation: Option<OrganisationId>,
        address: SuppressedAddress,
    ) -> Result<Change, StoreError> {
        self.writer
            .run(128, move |batch| suppress::remove_suppression(batch, organisation, &address))
            .await
    }

    /// Suppressions by scope and address, from after `after` on, at most `limit`.
    pub fn suppressions(
        &self,
        after: Option<(Option<OrganisationId>, &SuppressedAddress)>,
        limit: usize,
    ) -> Result<Vec<(Option<OrganisationId>, Suppression)>, StoreError> {
        Ok(self.shared.read(|transaction| suppress::list(transaction, after, limit))?)
    }

    /// Adds an organisation; `None` where the name is taken.
    pub async fn add_organisation(
        &self,
        name: OrganisationName,
    ) -> Result<Option<Organisation>, StoreError> {
        self.writer.run(128, move |batch| administer::add_organisation(batch, name)).await
    }

    /// Removes an organisation with its keys and domains; its records stay.
    pub async fn remove_organisation(&self, id: OrganisationId) -> Result<Change, StoreError> {
        self.writer.run(128, move |batch| administer::remove_organisation(batch, id)).await
    }

    /// All organisations.
    pub fn organisations(&self) -> Vec<Organisation> {
        self.shared.directory().organisations.clone()
    }

    /// The organisation with this name.
    pub fn organisation(&self, name: &OrganisationName) -> Option<Organisation> {
        self.shared.directory().organisations.iter().find(|o| o.name == *name).cloned()
    }

    /// The organisation with this number.
    pub fn organisation_by_id(&self, id: OrganisationId) -> Option<Organisation> {
        self.shared.directory().organisation(id).cloned()
    }

    /// Adds an API key by its hash.
    pub async fn add_api_key(
        &self,
        organisation: OrganisationId,
        label: String,
        hash: ApiKeyHash,
        now: Timestamp,
    ) -> Result<ApiKeyEntry, StoreError> {
        self.writer
            .run(128, move |batch| administer::add_api_key(batch, organisation, label, hash, now))
            .await
    }

    /// Revokes an API key; no request that arrives after this is let in with it.
    pub async fn revoke_api_key(&self, id: KeyId) -> Result<Change, StoreError> {
        self.writer.run(128, move |batch| administer::revoke_api_key(batch, id)).await
    }

    /// All API keys, as hashes.
    pub fn api_keys(&self) -> Vec<ApiKeyEntry> {
        self.shared.directory().api_keys.clone()
    }

    /// Adds a sender domain, or sets the state of one that is there.
    pub async fn put_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        state: DomainState,
        now: Timestamp,
    ) -> Result<SenderDomain, StoreError> {
        let name = name.into_owned();
        self.writer
            .run(128, move |batch| administer::put_domain(batch, organisation, &name, state, now))
            .await
    }

    /// Withdraws a sender domain.
    pub async fn remove_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
    ) -> Result<Change, StoreError> {
        let name = name.into_owned();
        self.writer
            .run(128, move |batch| administer::remove_domain(batch, organisation, &name))
            .await
    }

    /// All sender domains.
    pub fn domains(&self) -> Vec<SenderDomain> {
        self.shared.directory().domains.clone()
    }

    /// Whether the store takes writes now.
    pub fn health(&self) -> Health {
        if self.shared.refusing.load(Ordering::Acquire) {
            Health::Refusing
        } else {
            Health::Writable
        }
    }

    /// Waits until the store takes writes.
    pub async fn writable(&self) {
        loop {
            let told = self.shared.writable.notified();
            tokio::pin!(told);
            // Registered before the look, so that a change in between is not missed.
            told.as_mut().enable();
            if self.health() == Health::Writable {
                return;
            }
            told.await;
        }
    }
}
