//! The store: every durable fact of the service, behind methods that are the domain's
//! transitions, durable when they return.
//!
//! No redb type or closure leaves it, and it knows nothing of HTTP, of the provider or of bodies:
//! a message's body never reaches it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::domain::admission::Admitted;
use crate::domain::clock_corrections::{TimeRecord, WindowTime};
use crate::domain::event::Event;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Message, Recorded, Transition};
use crate::domain::request::IdempotencyKey;
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::domain::time::Timestamp;
use crate::fair_share::TooMany;

use metrics::StoreMetrics;
use redb::accept::{Accept, KeyClaim};
use redb::damage::{Damage, of_organisation};
use redb::open::Opener;
use redb::tables::{CLOCK, EVENTS, IDEMPOTENCY, MESSAGES, META, SUPPRESSIONS, TIME_KEY};
use redb::writer::{Kind, Writer, WriterThread};
use redb::{
    Shared, list, lost, message, message_events, purge, read_lock, suppress, temp_files,
    time_record,
};

pub use backup::SaveError;
pub use error::{ListError, OpenError, StoreError};
pub use own_files::{FileId, OwnFiles};
pub use redb::copy::{CopyError, Existing, FileCopy};
pub use redb::damage::DamagedRow;
pub use redb::open::{FileOrigin, Recovery};
pub use redb::raw::{Chunk, NotAChunk};
#[cfg(any(test, fuzzing))]
pub use redb::record::check::check_row;
pub use redb::restore::{Candidate, Contents, RestoreError, Restored};
pub use redb::snapshot::Snapshot;
pub use redb::suppress::{Change, OrganisationFacts};
pub use types::{
    Accepted, Applied, DeadLetter, EventBacklog, FileLoss, Health, LostMessages, MessageFilter,
    MessagePage, NewApiKey, Purged, Reference, Report, SuppressionKey, SuppressionPage,
};

mod backup;
#[cfg(test)]
mod conformance;
mod damage;
mod error;
mod events;
pub mod metrics;
mod own_files;
mod redb;
mod tenants;
mod types;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "pillarbox.redb";
/// How many bytes of the file are cached. Recent rows are what sending and reading touch.
pub const CACHE_BYTES: usize = 64 << 20;

/// About how many bytes a suppression writes.
const SUPPRESSION_WEIGHT: usize = 128;
/// Bytes that a record of the clock writes, about.
const TIME_RECORD_WEIGHT: usize = 128;

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
        let file = redb::open::create_if_missing(&path)?;
        let (store, recovery) = Self::start(Opener::file(&path, CACHE_BYTES)?, now)?;
        // Not before the file's lock is held: two starts at one time must not take each other's.
        temp_files::remove(directory, temp_files::NEW);
        Ok((store, Recovery { file, ..recovery }))
    }

    /// Makes an empty store in a directory that has none.
    pub fn create_if_missing(directory: &Path) -> Result<FileOrigin, OpenError> {
        redb::open::create_if_missing(&directory.join(FILE_NAME))
    }

    fn start(opener: Opener, now: Timestamp) -> Result<(Self, Recovery), OpenError> {
        let damage = Damage::default();
        let database = opener.open_first(&damage)?;
        let shared = Arc::new(Shared::new(opener, database, damage));
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
        let (store, _) = Self::start(Opener::backend(CACHE_BYTES, move || opened.clone()), now)
            .expect("a formatted disk opens");
        (store, move || full.set(Fault::Full), move || free.set(Fault::None))
    }

    /// What admission asks about an organisation.
    pub fn facts(&self, organisation: OrganisationId) -> OrganisationFacts<'_> {
        OrganisationFacts::new(self, organisation)
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
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        let found =
            redb::accept::find_replay(&self.shared, organisation, key.as_str(), &window_now.into());
        self.noticed(&IDEMPOTENCY, of_organisation(organisation), found)
    }

    /// As [`Store::replay`], after whatever is being committed now.
    pub async fn replay_after_commit(
        &self,
        organisation: OrganisationId,
        key: IdempotencyKey<'_>,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<MessageId>, StoreError> {
        if self.health() == Health::Writable {
            // Where that commit fails, what it held is as good as never asked for.
            let _ = self.writer.turn().await;
        }
        self.replay(organisation, key, window_now)
    }

    /// Accepts a message: its record, its pending mark and its idempotency key become durable
    /// together. Where the key made a message before, that one is the answer and nothing is
    /// written. `on_new` runs once a new message is durable, also where the caller is gone.
    ///
    /// What is to be stored is copied at once: while this waits, it needs nothing of the request.
    pub fn accept<'s, F: FnOnce() + Send + 'static, W: Into<WindowTime>>(
        &'s self,
        id: MessageId,
        organisation: OrganisationId,
        admitted: &Admitted<'_>,
        created_at: Timestamp,
        window_now: W,
        on_new: F,
    ) -> impl Future<Output = Result<Accepted, StoreError>> + Send + use<'s, F, W> {
        let claim = admitted.idempotency_key().map(|key| KeyClaim {
            organisation,
            key: key.as_str().to_owned(),
            hash: read_lock(&self.shared.index).hasher().hash(organisation, key.as_str()),
            window_now: window_now.into(),
        });
        let (reply, answer) = oneshot::channel();
        let accept = Accept {
            id,
            organisation,
            row: redb::record::message::encode_accepted(admitted, organisation, created_at),
            created_at,
            claim,
            on_new,
            decided: None,
            reply,
        };
        async move {
            match self.health() {
                Health::Writable => {}
                Health::Refusing => return Err(StoreError::Unavailable),
                Health::FileLost(_) => return Err(StoreError::FileLost),
            }
            self.writer.submit(Box::new(accept)).await?;
            answer.await.map_err(|_| StoreError::Unavailable)?
        }
    }

    /// Records what became of a message after `attempts` calls to the provider in all.
    pub async fn record(
        &self,
        id: MessageId,
        attempts: u32,
        transition: Transition,
    ) -> Result<Recorded, StoreError> {
        let record = move |batch: &mut redb::writer::Batch<'_>| {
            message::record(batch, id, attempts, transition)
        };
        self.writer.run_as(Kind::Outcome, 512, record).await
    }

    /// A message, unless its retention is over at `window_now`.
    pub fn message(
        &self,
        id: MessageId,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Message>, StoreError> {
        let window_now = window_now.into();
        let read = self.shared.read(|transaction| message::read(transaction, id, &window_now));
        self.noticed(&MESSAGES, id, read)
    }

    /// A message's events, oldest first.
    pub fn events(&self, id: MessageId) -> Result<Vec<Event>, StoreError> {
        let damage = &self.shared.damage;
        let read = self.shared.read(|transaction| message_events::read(transaction, damage, id));
        self.noticed(&EVENTS, id, read)
    }

    /// A page of messages, newest first, at most `limit`.
    pub async fn list(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<MessagePage, ListError> {
        self.list_then(filter, limit, window_now, |page| page).await
    }

    /// What `then` makes of a page of messages, newest first, at most `limit`. It runs where the
    /// page is read, so that only so many pages are held at one time.
    pub async fn list_then<T: Send + 'static>(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
        then: impl FnOnce(MessagePage) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        let own = self.shared.listings_of.take(filter.organisation).await;
        let own = own.map_err(|TooMany| ListError::TooMany)?;
        let listings = Arc::clone(&self.shared.listings);
        let turn = listings.acquire_owned().await.expect("the semaphore is never closed");
        let (shared, window_now) = (Arc::clone(&self.shared), window_now.into());
        // A filter that matches little reads much. Whoever asked may go meanwhile; the read does
        // not, so the turns are its own.
        let listed = tokio::task::spawn_blocking(move || {
            let _turns = (own, turn);
            let damage = &shared.damage;
            let page = shared
                .read(|transaction| list::list(transaction, damage, &filter, limit, &window_now));
            page.map(then)
        });
        let listed = listed.await.expect("a listing does not panic and is not aborted");
        Ok(self.noticed(&MESSAGES, "a list", listed)?)
    }

    /// Removes a bounded part of what is past its window at `window_now`.
    pub async fn purge(
        &self,
        window_now: impl Into<WindowTime>,
        limit: usize,
    ) -> Result<Purged, StoreError> {
        let window_now = window_now.into();
        purge::expire_index(&self.shared, &window_now);
        let purged =
            self.writer.run(0, move |batch| purge::purge(batch, &window_now, limit)).await?;
        self.shared.metrics.purged(purged);
        Ok(purged)
    }

    /// Messages whose body was lost, as far as no operator has acknowledged them and the last loss
    /// is less than 24 hours ago at `now`.
    pub fn lost_messages(&self, now: Timestamp) -> Result<Option<LostMessages>, StoreError> {
        let read = self.shared.read(|transaction| lost::unseen(transaction, now));
        self.noticed(&META, "lost messages", read)
    }

    /// Notes that an operator has seen the lost messages; returns those that were still to be seen.
    pub async fn acknowledge_lost_messages(
        &self,
        now: Timestamp,
    ) -> Result<Option<LostMessages>, StoreError> {
        self.writer.run(64, move |batch| lost::acknowledge(batch, now)).await
    }

    /// Metrics of the store's work.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.shared.metrics
    }

    /// When the oldest record was made, past its window or not; nothing where there is none.
    pub fn oldest(
        &self,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let oldest = self.shared.read(message::oldest);
        let (oldest, window_now) =
            (self.noticed(&MESSAGES, "the oldest", oldest)?, window_now.into());
        Ok(oldest.map(|stored| window_now.corrected(stored)))
    }

    /// Returns the stored instant of the last message's id, or `None` if there is no message.
    pub fn newest(&self) -> Result<Option<Timestamp>, StoreError> {
        self.noticed(&MESSAGES, "the newest", self.shared.read(message::newest))
    }

    /// Returns the file's record of the clock, or `None` if the file is new or of an earlier
    /// version.
    pub fn time_record(&self) -> Result<Option<TimeRecord>, StoreError> {
        self.noticed(&CLOCK, TIME_KEY, self.shared.read(time_record::read))
    }

    /// Stores the file's record of the clock.
    pub async fn keep_time_record(&self, record: TimeRecord) -> Result<(), StoreError> {
        self.writer.run(TIME_RECORD_WEIGHT, move |batch| time_record::write(batch, &record)).await
    }

    /// Suppresses an address for an organisation, or for all.
    pub async fn suppress(
        &self,
        organisation: Option<OrganisationId>,
        suppression: Suppression,
    ) -> Result<Change, StoreError> {
        self.writer
            .run(SUPPRESSION_WEIGHT, move |batch| {
                suppress::insert_suppression(batch, organisation, &suppression)
            })
            .await
    }

    /// Suppresses many addresses in one transaction; what became of each, in order. Neighbours in
    /// the order of [`Store::suppressions`] cost the least.
    pub async fn suppress_all(
        &self,
        suppressions: Vec<(Option<OrganisationId>, Suppression)>,
    ) -> Result<Vec<Change>, StoreError> {
        let weight = SUPPRESSION_WEIGHT * suppressions.len();
        let insert_all = move |batch: &mut redb::writer::Batch<'_>| {
            let each = suppressions.iter().map(|(organisation, suppression)| {
                suppress::insert_suppression(batch, *organisation, suppression)
            });
            each.collect()
        };
        self.writer.run(weight, insert_all).await
    }

    /// Ends a suppression.
    pub async fn unsuppress(
        &self,
        organisation: Option<OrganisationId>,
        address: SuppressedAddress,
    ) -> Result<Change, StoreError> {
        self.writer
            .run(SUPPRESSION_WEIGHT, move |batch| {
                suppress::remove_suppression(batch, organisation, &address)
            })
            .await
    }

    /// Suppressions by scope and address, from after `after` on, at most `limit`.
    pub fn suppressions(
        &self,
        after: Option<(Option<OrganisationId>, &SuppressedAddress)>,
        limit: usize,
    ) -> Result<SuppressionPage, StoreError> {
        let damage = &self.shared.damage;
        let read = |transaction: &_| suppress::list(transaction, damage, after, limit);
        self.noticed(&SUPPRESSIONS, "a list", self.shared.read(read))
    }

    /// Whether the store takes writes now.
    pub fn health(&self) -> Health {
        let loss = *read_lock(&self.shared.file_loss);
        match (loss, self.shared.refusing.load(Ordering::Acquire)) {
            (Some(FileLoss::WrittenOver), _) => Health::FileLost(FileLoss::WrittenOver),
            (_, true) => Health::Refusing,
            (Some(loss), false) => Health::FileLost(loss),
            (None, false) => Health::Writable,
        }
    }

    /// Ends once the writer has answered, be it that it refuses: it is alive.
    pub async fn answered(&self) {
        // What the answer is, `health` says.
        let _ = self.writer.turn().await;
    }

    /// Waits until the store takes writes.
    pub async fn writable(&self) {
        self.becomes(|health| health == Health::Writable).await;
    }

    /// Waits until the store takes outcomes of messages, or never will again.
    pub async fn takes_outcomes(&self) {
        self.becomes(|health| health != Health::Refusing).await;
    }

    /// Waits until the store refuses writes. Whoever holds a snapshot has to let go of it then.
    pub async fn refuses(&self) {
        self.becomes(|health| health == Health::Refusing).await;
    }

    async fn becomes(&self, is_reached: impl Fn(Health) -> bool) {
        loop {
            let told = self.shared.health_changed.notified();
            tokio::pin!(told);
            // Registered before the look, so that a change in between is not missed.
            told.as_mut().enable();
            if is_reached(self.health()) {
                return;
            }
            told.await;
        }
    }
}
