//! Event feed: an entry for each change of a message that its organisation is told of, written in
//! the transaction of the change.
//!
//! The writer gives the positions, so their order is that of the commits. An entry names its
//! message and, if there is one, its event; what it shows is read from their rows. A message's
//! state is final once an entry reports it, with one exception: a failure that an event overturns is kept
//! apart.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable};
use tokio::sync::watch;

use crate::domain::clock_corrections::WindowTime;
use crate::domain::feed::{FeedEntry, FeedId, FeedPosition, FeedTypes};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Failure, Message};
use crate::domain::time::Timestamp;
use crate::store::FeedPage;
use crate::store::damage::Damage;
use crate::store::feed_entries::{self, FeedRows, Query};
use crate::store::listing::Turn;
use crate::store::record::{EventKey, FeedRow, ReportedChange, encode_feed, encode_overturned};
use crate::store::redb::batch::Batch;
use crate::store::redb::error::ReadError;
use crate::store::redb::messages::visible;
use crate::store::redb::tables::{EVENTS, FEED, FEED_ID, IdKey, MESSAGES, OVERTURNED, Row, Tables};
use crate::store::redb::{RedbStore, Shared, read_lock, write_lock};
use crate::store::{ListError, Lister, StoreError};

/// How many entries one look at the file reads. Types that are rare need several looks.
const ROWS_PER_LOOK: usize = 20_000;

impl RedbStore {
    pub(in crate::store) async fn feed(
        &self,
        organisation: OrganisationId,
        after: FeedPosition,
        types: FeedTypes,
        limit: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<FeedPage, StoreError> {
        let query = Query { organisation, types, limit, window_now: window_now.into() };
        self.read_feed(query, after, None, |page| page).await
    }

    pub(in crate::store) async fn list_feed<T: Send + 'static>(
        &self,
        organisation: OrganisationId,
        after: FeedPosition,
        types: FeedTypes,
        limit: usize,
        window_now: impl Into<WindowTime>,
        then: impl FnOnce(FeedPage) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        let turn = self.shared.listings.turn(Lister::Organisation(organisation)).await?;
        let query = Query { organisation, types, limit, window_now: window_now.into() };
        Ok(self.read_feed(query, after, Some(turn), then).await?)
    }

    pub(in crate::store) async fn feed_entry(
        &self,
        organisation: OrganisationId,
        position: FeedPosition,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<FeedEntry>, StoreError> {
        let window_now = window_now.into();
        let query = Query { organisation, types: FeedTypes::ALL, limit: 1, window_now };
        self.published().await;
        self.read(&FEED, position.number(), |transaction| {
            let reader = Reader::new(transaction, &self.shared.damage, &query)?;
            match reader.feed.get((organisation.0, position.number()))? {
                Some(row) => feed_entries::entry(&reader, &query, position, row.value()),
                None => Ok(None),
            }
        })
    }

    pub(in crate::store) fn feed_end(&self, organisation: OrganisationId) -> FeedPosition {
        self.shared.feed.end(organisation)
    }

    pub(in crate::store) fn feed_grew(&self) -> watch::Receiver<FeedPosition> {
        self.shared.feed.grew.subscribe()
    }

    pub(in crate::store) fn feed_id(&self) -> FeedId {
        FeedId(self.shared.feed.id.load(Ordering::Relaxed))
    }

    /// Reads a page in as many looks as it takes. The reader keeps its turn until a look is over, also
    /// if the caller has gone, and takes another one for the next.
    async fn read_feed<T: Send + 'static>(
        &self,
        query: Query,
        mut after: FeedPosition,
        mut turn: Option<Turn>,
        mut then: impl FnOnce(FeedPage) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let query = Arc::new(query);
        // Whoever has seen the last entry needs no look at the file.
        while after < self.feed_end(query.organisation) {
            self.published().await;
            let (shared, query) = (Arc::clone(&self.shared), Arc::clone(&query));
            let look = tokio::task::spawn_blocking(move || {
                let look = shared.database.read(|transaction| {
                    Reader::new(transaction, &shared.damage, &query)?.look(after)
                });
                let look = look.map(|Look { page, progress }| match progress {
                    Progress::Unfinished if page.entries.is_empty() => Err((page.next, then)),
                    Progress::Unfinished | Progress::End => Ok(then(page)),
                });
                (look, turn)
            });
            let (look, back) = look.await.expect("a look does not panic and is not aborted");
            match self.checked(&FEED, "a page", look)? {
                Ok(done) => return Ok(done),
                Err((next, again)) => (after, then) = (next, again),
            }
            turn = match back {
                Some(turn) => Some(turn.again().await),
                None => None,
            };
        }
        Ok(then(FeedPage { entries: Vec::new(), next: after }))
    }
}

/// What one look at the file came to.
struct Look {
    page: FeedPage,
    progress: Progress,
}

enum Progress {
    /// There may be more.
    Unfinished,
    /// The feed ends here.
    End,
}

/// Tables that entries are made of, at one moment.
struct Reader<'a> {
    feed: ReadOnlyTable<(u32, u64), Row>,
    messages: ReadOnlyTable<IdKey, Row>,
    events: ReadOnlyTable<Row, Row>,
    overturned: ReadOnlyTable<IdKey, Row>,
    damage: &'a Damage,
    query: &'a Query,
}

impl<'a> Reader<'a> {
    fn new(
        transaction: &ReadTransaction,
        damage: &'a Damage,
        query: &'a Query,
    ) -> Result<Self, ReadError> {
        Ok(Self {
            feed: transaction.open_table(FEED)?,
            messages: transaction.open_table(MESSAGES)?,
            events: transaction.open_table(EVENTS)?,
            overturned: transaction.open_table(OVERTURNED)?,
            damage,
            query,
        })
    }

    /// Reads entries until there are enough, or many rows have been looked at.
    fn look(&self, after: FeedPosition) -> Result<Look, ReadError> {
        let OrganisationId(number) = self.query.organisation;
        let mut page = FeedPage { entries: Vec::new(), next: after };
        let first = Bound::Excluded((number, after.number()));
        let last = Bound::Included((number, u64::MAX));
        for (looked_at, row) in self.feed.range((first, last))?.enumerate() {
            if page.entries.len() >= self.query.limit || looked_at >= ROWS_PER_LOOK {
                return Ok(Look { page, progress: Progress::Unfinished });
            }
            let (key, row) = row?;
            let position = FeedPosition::from_number(key.value().1);
            page.entries.extend(feed_entries::entry(self, self.query, position, row.value())?);
            page.next = position;
        }
        Ok(Look { page, progress: Progress::End })
    }
}

impl FeedRows for Reader<'_> {
    type Error = ReadError;

    fn message(&self, id: MessageId) -> Result<Option<Message>, ReadError> {
        let row = self.messages.get(id.as_bytes())?;
        let row = row.as_ref().map(redb::AccessGuard::value);
        visible(row, id, &self.query.window_now)
    }

    fn overturned(&self, id: MessageId) -> Result<Option<Vec<u8>>, ReadError> {
        Ok(self.overturned.get(id.as_bytes())?.map(|row| row.value().to_vec()))
    }

    fn event(&self, id: MessageId, key: &EventKey) -> Result<Option<Vec<u8>>, ReadError> {
        let row = self.events.get(key.of_message(id).as_slice())?;
        Ok(row.map(|row| row.value().to_vec()))
    }

    fn damage(&self) -> &Damage {
        self.damage
    }
}

/// What is known of the feeds in memory: where each one begins and ends.
#[derive(Debug)]
pub(super) struct FeedIndex {
    id: AtomicU64,
    /// The last position that was given. Only who writes gives one.
    last: AtomicU64,
    extents: RwLock<BTreeMap<OrganisationId, Extent>>,
    grew: watch::Sender<FeedPosition>,
}

/// Where an organisation's feed begins and ends.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// No entry is before it; `None` if there is none.
    first: Option<FeedPosition>,
    /// The last entry that was ever there.
    last: FeedPosition,
}

/// What a purge removed from an organisation's feed.
#[derive(Debug)]
pub(super) struct PurgedFeed {
    organisation: OrganisationId,
    /// How many entries.
    pub(super) entries: usize,
    /// The first one that was left.
    first: Option<FeedPosition>,
    /// End of what was removed.
    end: FeedPosition,
}

impl Default for FeedIndex {
    fn default() -> Self {
        Self {
            id: AtomicU64::new(0),
            last: AtomicU64::new(0),
            extents: RwLock::default(),
            grew: watch::Sender::new(FeedPosition::START),
        }
    }
}

impl FeedIndex {
    /// Reads where each feed begins and ends.
    pub(super) fn load(&self, transaction: &ReadTransaction, id: FeedId) -> Result<(), ReadError> {
        let feed = transaction.open_table(FEED)?;
        let mut extents = BTreeMap::new();
        let mut from = Bound::Unbounded;
        let mut end = FeedPosition::START;
        while let Some(row) = feed.range((from, Bound::Unbounded))?.next() {
            let (number, first) = row?.0.value();
            let rows = feed.range((number, first)..=(number, u64::MAX))?.next_back();
            let last = rows.transpose()?.map_or(first, |(key, _)| key.value().1);
            let [first, last] = [first, last].map(FeedPosition::from_number);
            extents.insert(OrganisationId(number), Extent { first: Some(first), last });
            end = end.max(last);
            from = Bound::Excluded((number, u64::MAX));
        }
        *write_lock(&self.extents) = extents;
        self.id.store(id.0, Ordering::Relaxed);
        self.last.store(end.number(), Ordering::Relaxed);
        self.grew.send_replace(end);
        Ok(())
    }

    /// Returns the last position that was given. In a write transaction, every later entry is
    /// behind it.
    pub(super) fn last(&self) -> FeedPosition {
        FeedPosition::from_number(self.last.load(Ordering::Relaxed))
    }

    fn end(&self, organisation: OrganisationId) -> FeedPosition {
        let extents = read_lock(&self.extents);
        extents.get(&organisation).map_or(FeedPosition::START, |extent| extent.last)
    }

    /// Adds an entry at `now`, behind all others, and returns its position.
    pub(super) fn append(
        &self,
        tables: &mut Tables<'_>,
        message: &Message,
        change: ReportedChange,
        now: Timestamp,
    ) -> Result<FeedPosition, ReadError> {
        let last = self.last();
        let position = last.next(now);
        self.last.store(position.number(), Ordering::Relaxed);
        let row = encode_feed(position, &FeedRow { message: message.id, change });
        let key = (message.organisation.0, position.number());
        tables.feed.insert_later(key, row.as_slice())?;
        Ok(position)
    }

    /// Makes the entries of a durable batch known to all readers.
    pub(super) fn grow(&self, entries: Vec<(OrganisationId, FeedPosition)>) {
        let Some(&(_, end)) = entries.last() else { return };
        {
            let mut extents = write_lock(&self.extents);
            for (organisation, last) in entries {
                let extent =
                    extents.entry(organisation).or_insert(Extent { first: Some(last), last });
                extent.first.get_or_insert(last);
                extent.last = last;
            }
        }
        self.grew.send_replace(end);
    }

    /// Removes entries that were recorded in a run of instants, oldest first, at most `limit`.
    pub(super) fn purge(
        &self,
        tables: &mut Tables<'_>,
        run: &Range<Timestamp>,
        limit: usize,
    ) -> Result<Vec<PurgedFeed>, ReadError> {
        let [start, end] = [run.start, run.end].map(FeedPosition::first_of);
        let concerned: Vec<OrganisationId> = read_lock(&self.extents)
            .iter()
            .filter(|(_, extent)| extent.first.is_some_and(|first| first < end))
            .map(|(organisation, _)| *organisation)
            .collect();
        let (mut purged, mut left) = (Vec::new(), limit);
        for organisation in concerned {
            if left == 0 {
                break;
            }
            let table = tables.feed.open()?;
            let OrganisationId(number) = organisation;
            let (mut entries, mut last) = (0, None);
            let old = (number, start.number())..(number, end.number());
            for row in table.range(old)?.take(left) {
                last = Some(row?.0.value());
                entries += 1;
            }
            if let Some(last) = last {
                table.retain_in((number, start.number())..=last, |_, _| false)?;
            }
            let first = table.range((number, 0)..=(number, u64::MAX))?.next().transpose()?;
            let first = first.map(|(key, _)| FeedPosition::from_number(key.value().1));
            purged.push(PurgedFeed { organisation, entries, first, end });
            left -= entries;
        }
        Ok(purged)
    }

    /// Takes note of what a durable purge removed.
    pub(super) fn shrink(&self, purged: Vec<PurgedFeed>) {
        let mut extents = write_lock(&self.extents);
        for PurgedFeed { organisation, entries: _, first, end } in purged {
            let Some(extent) = extents.get_mut(&organisation) else { continue };
            // If none was left, all that are there now were added since.
            extent.first = first.or((extent.last >= end).then_some(end));
        }
    }
}

/// Returns the number of the file's feed, and gives it one at first.
pub(super) fn identify(tables: &mut Tables<'_>) -> Result<FeedId, ReadError> {
    let meta = tables.meta.open()?;
    if let Some(row) = meta.get(FEED_ID)? {
        return Ok(FeedId(row.value()));
    }
    let number = getrandom::u64().map_err(|error| {
        ReadError::from(redb::StorageError::Io(std::io::Error::other(error.to_string())))
    })?;
    meta.insert(FEED_ID, number)?;
    Ok(FeedId(number))
}

/// Reports a change of a message in its organisation's feed.
pub(super) fn report(
    batch: &mut Batch<'_>,
    message: &Message,
    change: ReportedChange,
    now: Timestamp,
) -> Result<(), ReadError> {
    let shared: &Shared = batch.shared;
    let position = shared.feed.append(&mut batch.tables, message, change, now)?;
    batch.fed.push((message.organisation, position));
    Ok(())
}

/// Keeps the failure of a message that an event has proved to be sent.
pub(super) fn keep_overturned(
    batch: &mut Batch<'_>,
    id: MessageId,
    failure: &Failure,
) -> Result<(), ReadError> {
    let row = encode_overturned(failure);
    batch.tables.overturned.open()?.insert(id.as_bytes(), row.as_slice())?;
    Ok(())
}

/// Removes the overturned failures of messages from `first` to `last`.
pub(super) fn purge_overturned(
    tables: &mut Tables<'_>,
    first: MessageId,
    last: MessageId,
) -> Result<(), ReadError> {
    let table = tables.overturned.open()?;
    if table.first()?.is_some() {
        table.retain_in(*first.as_bytes()..=*last.as_bytes(), |_, _| false)?;
    }
    Ok(())
}
