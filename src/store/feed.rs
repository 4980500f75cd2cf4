//! Event feed, read: entries for each change of a message that its organisation receives.
//!
//! An entry names its message and, if there is one, its event; their content is read from their
//! rows. A message's state is final once an entry reports it, with one exception: a failure that an
//! event overturns is kept apart.

use std::collections::{HashMap, HashSet};

use tokio::sync::watch;

use crate::error::DamagedRow;
use crate::listing::{self, ReadSlot};
use crate::record::{
    EventKey, FeedRow, ReportedChange, decode_event, decode_feed, decode_message, decode_overturned,
};
use crate::rows::{InTable, Key, KeyRange, KeyedRow, Table};
use crate::{FeedPage, ListError, Lister, Store, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::feed::{
    FeedChange, FeedEntry, FeedEventType, FeedId, FeedPosition, FeedTypes,
};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::{Acceptance, Message, State};

/// Largest number of entries that the first read of a feed takes, and a later one. Types that are
/// rare need several reads.
const FIRST_LOOK: usize = 1_000;
const ROWS_PER_LOOK: usize = 10_000;

struct Query {
    organisation: OrganisationId,
    types: FeedTypes,
    limit: usize,
    /// Bytes of messages' rows, and of events' rows, after which a page ends.
    max_bytes: usize,
    window_now: WindowTime,
}

impl Store {
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
        self.feed_within(organisation, after, types, limit, usize::MAX, window_now).await
    }

    /// Returns a page as [`Store::feed`] does, which ends early once its rows have `max_bytes`.
    pub async fn feed_within(
        &self,
        organisation: OrganisationId,
        after: FeedPosition,
        types: FeedTypes,
        limit: usize,
        max_bytes: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<FeedPage, StoreError> {
        let query = Query { organisation, types, limit, max_bytes, window_now: window_now.into() };
        Ok(self.read_feed(&query, after, None).await?.0)
    }

    /// Returns the result of `then` for a page as [`Store::feed`] reads it. This is one of the
    /// listings that an organisation may have running, and `then` runs on the thread that reads the
    /// page.
    pub async fn list_feed<T: Send + 'static>(
        &self,
        organisation: OrganisationId,
        after: FeedPosition,
        types: FeedTypes,
        limit: usize,
        window_now: impl Into<WindowTime>,
        then: impl FnOnce(FeedPage) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        let (max_bytes, window_now) = (usize::MAX, window_now.into());
        let query = Query { organisation, types, limit, max_bytes, window_now };
        let slot = self.memory().listings.slot(Lister::Organisation(organisation)).await?;
        let store = self.clone();
        let read = async move { store.read_feed(&query, after, Some(slot)).await };
        listing::list(read, then).await
    }

    /// Returns the entry at a position, unless there is none or its record is past its retention
    /// at `window_now`.
    pub async fn feed_entry(
        &self,
        organisation: OrganisationId,
        position: FeedPosition,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<FeedEntry>, StoreError> {
        let (types, limit, max_bytes) = (FeedTypes::ALL, 1, usize::MAX);
        let query = Query { organisation, types, limit, max_bytes, window_now: window_now.into() };
        if position > self.feed_shown() {
            return Ok(None);
        }
        let key = Key::from((organisation.0, position.number()));
        let Some(row) = self.row(Table::Feed, key.clone()).await? else { return Ok(None) };
        let wanted = self.wanted(&query, [(key, row)].iter()).collect();
        Ok(self.entries(&query, wanted).await?.0.pop())
    }

    /// Returns the position of an organisation's last entry. Later commits write only behind it.
    pub fn feed_end(&self, organisation: OrganisationId) -> FeedPosition {
        on_engine!(self, engine => engine.feed_end(organisation))
    }

    /// Returns a receiver that is notified after each commit that added entries to any feed. Its
    /// value is the last position.
    pub fn feed_grew(&self) -> watch::Receiver<FeedPosition> {
        on_engine!(self, engine => engine.feed_grew())
    }

    /// Returns the number by which the feed's cursors are distinguished from those of other files.
    pub fn feed_id(&self) -> FeedId {
        on_engine!(self, engine => engine.feed_id())
    }

    /// The last position that is shown, in any feed.
    fn feed_shown(&self) -> FeedPosition {
        on_engine!(self, engine => engine.feed_shown())
    }

    /// Reads a page in as many reads as it takes, each in a slot of its own; returns the last slot.
    async fn read_feed(
        &self,
        query: &Query,
        mut after: FeedPosition,
        mut slot: Option<ReadSlot>,
    ) -> Result<(FeedPage, Option<ReadSlot>), StoreError> {
        let OrganisationId(number) = query.organisation;
        let mut page = FeedPage { entries: Vec::new(), next: after };
        // There may be few entries of some types.
        let is_all = query.types == FeedTypes::ALL;
        let mut step = if is_all { query.limit.clamp(1, FIRST_LOOK) } else { FIRST_LOOK };
        // A reader that has seen the last entry needs no read of the rows.
        while after < self.feed_end(query.organisation) {
            let end = Key::from((number, self.feed_shown().number().saturating_add(1)));
            let range = KeyRange { end: Some(end), ..KeyRange::default() };
            let range = range.after((number, after.number()));
            let rows = self.rows(Table::Feed, range, step).await?;
            // Rows behind as many entries as were requested are not read for nothing.
            let mut left = rows.iter();
            let wanted = self.wanted(query, left.by_ref()).take(query.limit.max(1)).collect();
            let Some((last, _)) = rows[..rows.len() - left.len()].last() else { break };
            let (entries, full_at) = self.entries(query, wanted).await?;
            after = full_at.unwrap_or(position_of(last));
            page = FeedPage { entries, next: after };
            if !page.entries.is_empty() {
                break;
            }
            if let Some(held) = slot.take() {
                slot = Some(held.again().await);
            }
            step = (step * 4).min(ROWS_PER_LOOK);
        }
        Ok((page, slot))
    }

    /// Returns the entries of the requested types that can be read.
    fn wanted<'a>(
        &'a self,
        query: &'a Query,
        rows: impl Iterator<Item = &'a KeyedRow>,
    ) -> impl Iterator<Item = (FeedPosition, FeedRow)> {
        let read = rows.filter_map(|(key, row)| {
            let position = position_of(key);
            let read = decode_feed(position, row).in_table(Table::Feed, position.number());
            Some((position, self.damage().left_out(read)?))
        });
        read.filter(|(_, row)| query.types.contains(event_type(&row.change)))
    }

    /// Returns the content of entries that can be read. If messages' rows have too many bytes, those
    /// behind a position are left, and it is returned too.
    async fn entries(
        &self,
        query: &Query,
        mut wanted: Vec<(FeedPosition, FeedRow)>,
    ) -> Result<(Vec<FeedEntry>, Option<FeedPosition>), StoreError> {
        let count = wanted.len();
        let referred = Referred::read(self, &mut wanted, query.max_bytes).await?;
        let end = wanted.last().filter(|_| wanted.len() < count).map(|(position, _)| *position);
        let entries = wanted.into_iter().filter_map(|(position, row)| {
            let resolved = referred.resolve(row.message, row.change, &query.window_now);
            // A row that cannot be read affects only itself.
            let (message, change) = self.damage().left_out(resolved)??;
            let recorded_at = query.window_now.corrected(position.instant());
            Some(FeedEntry { position, recorded_at, message, change })
        });
        Ok((entries.collect(), end))
    }

    /// Reads the rows that entries refer to until they have `max_bytes`, and leaves the entries from
    /// the first whose row was not read.
    async fn read_referred(
        &self,
        table: Table,
        entries: &mut Vec<(FeedPosition, FeedRow)>,
        key: impl Fn(&FeedRow) -> Option<Key>,
        max_bytes: usize,
    ) -> Result<HashMap<Key, Vec<u8>>, StoreError> {
        let keys: Vec<Option<Key>> = entries.iter().map(|(_, row)| key(row)).collect();
        let mut seen = HashSet::new();
        let once = keys.iter().flatten().filter(|key| seen.insert(*key)).cloned().collect();
        let rows = self.rows_of(table, once, max_bytes).await?;
        // A row that several entries refer to counts for each: each shows it. So what was not read
        // comes after enough bytes here too.
        let mut bytes = 0;
        let left = keys.iter().position(|key| {
            let Some(key) = key else { return false };
            let is_left = bytes >= max_bytes;
            bytes += rows.get(key).map_or(0, Vec::len);
            is_left
        });
        entries.truncate(left.unwrap_or(entries.len()));
        Ok(rows)
    }
}

fn position_of(key: &Key) -> FeedPosition {
    FeedPosition::from_number(key.large(4))
}

struct Referred {
    messages: HashMap<Key, Vec<u8>>,
    overturned: HashMap<Key, Vec<u8>>,
    events: HashMap<Key, Vec<u8>>,
}

impl Referred {
    /// Reads the messages first: a failure that is overturned meanwhile is kept before its message
    /// shows as sent.
    async fn read(
        store: &Store,
        entries: &mut Vec<(FeedPosition, FeedRow)>,
        max_bytes: usize,
    ) -> Result<Self, StoreError> {
        let message = |row: &FeedRow| Some(Key::from(row.message));
        let failed =
            |row: &FeedRow| (row.change == ReportedChange::Failed).then(|| Key::from(row.message));
        let observed = |row: &FeedRow| match &row.change {
            ReportedChange::Observed(key) => Some(event_key(row.message, key)),
            ReportedChange::Sent | ReportedChange::Failed | ReportedChange::Suppressed => None,
        };
        let all = usize::MAX;
        Ok(Self {
            messages: store.read_referred(Table::Messages, entries, message, max_bytes).await?,
            overturned: store
                .read_referred(Table::OverturnedFailures, entries, failed, all)
                .await?,
            events: store.read_referred(Table::Events, entries, observed, max_bytes).await?,
        })
    }

    /// Returns the message as it was after the change, and the change; `None` if the message is
    /// past its retention.
    fn resolve(
        &self,
        id: MessageId,
        change: ReportedChange,
        window_now: &WindowTime,
    ) -> Result<Option<(Message, FeedChange)>, DamagedRow> {
        let Some(row) = self.messages.get(&Key::from(id)) else { return Ok(None) };
        let message = decode_message(id, row).in_table(Table::Messages, id)?;
        let Some(mut message) = listing::visible(message, window_now) else { return Ok(None) };
        let change = match change {
            ReportedChange::Sent => FeedChange::Sent,
            ReportedChange::Suppressed => FeedChange::Suppressed,
            ReportedChange::Failed => {
                if !matches!(message.state, State::Failed { .. }) {
                    let row = self.overturned.get(&Key::from(id));
                    let row = row.ok_or_else(|| missing(Table::OverturnedFailures, id))?;
                    let failure = decode_overturned(row).in_table(Table::OverturnedFailures, id)?;
                    message.state = State::Failed { failure, acceptance: Acceptance::Possible };
                }
                FeedChange::Failed
            }
            ReportedChange::Observed(key) => {
                let row = self.events.get(&event_key(id, &key));
                let row = row.ok_or_else(|| missing(Table::Events, id))?;
                FeedChange::Observed(decode_event(row).in_table(Table::Events, id)?)
            }
        };
        Ok(Some((message, change)))
    }
}

fn missing(table: Table, id: MessageId) -> DamagedRow {
    DamagedRow::new(table.as_str(), id, "it is missing, although the feed refers to it")
}

pub(super) fn event_key(message: MessageId, key: &EventKey) -> Key {
    Key::from(key.of_message(message).as_slice())
}

fn event_type(change: &ReportedChange) -> FeedEventType {
    match change {
        ReportedChange::Sent => FeedEventType::Sent,
        ReportedChange::Failed => FeedEventType::Failed,
        ReportedChange::Suppressed => FeedEventType::Suppressed,
        ReportedChange::Observed(EventKey { event_type, .. }) => (*event_type).into(),
    }
}
