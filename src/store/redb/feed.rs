//! Event feed: an entry for each change of a message that its organisation receives, written in the
//! transaction of the change.
//!
//! The writer assigns the positions, so their order is that of the commits.

use pillarbox_runtime::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use redb::{ReadTransaction, ReadableTable};
use tokio::sync::watch;

use crate::locks::{RwLock, read_lock, write_lock};
use crate::record::{FeedRow, ReportedChange, encode_feed};
use crate::redb::RedbStore;
use crate::redb::error::ReadError;
use crate::redb::tables::{FEED, FEED_ID, Tables};
use pillarbox_domain::feed::{FeedId, FeedPosition};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::message::Message;
use pillarbox_domain::time::Timestamp;

impl RedbStore {
    pub(crate) fn feed_end(&self, organisation: OrganisationId) -> FeedPosition {
        self.shared.feed.end(organisation)
    }

    pub(crate) fn feed_shown(&self) -> FeedPosition {
        *self.shared.feed.grew.borrow()
    }

    pub(crate) fn feed_grew(&self) -> watch::Receiver<FeedPosition> {
        self.shared.feed.grew.subscribe()
    }

    pub(crate) fn feed_id(&self) -> FeedId {
        FeedId(self.shared.feed.id.load(Ordering::Relaxed))
    }
}

/// Feeds in memory: the first and the last position of each.
#[derive(Debug, Default)]
pub(super) struct FeedIndex {
    id: AtomicU64,
    /// The last position that was assigned. Only the writer assigns one.
    last: AtomicU64,
    extents: RwLock<BTreeMap<OrganisationId, Extent>>,
    grew: watch::Sender<FeedPosition>,
}

#[derive(Debug, Clone, Copy)]
struct Extent {
    /// No entry is before it; `None` if there is none.
    first: Option<FeedPosition>,
    /// The last entry that the feed has had.
    last: FeedPosition,
}

/// Result of a purge of an organisation's feed.
#[derive(Debug)]
pub(super) struct PurgedFeed {
    organisation: OrganisationId,
    pub(super) entries: usize,
    /// The first entry that was left.
    first: Option<FeedPosition>,
    end: FeedPosition,
}

impl FeedIndex {
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

    /// Returns the last position that was assigned. In a write transaction, every later entry is
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

    /// Removes entries of a run of positions, oldest first, at most `limit`.
    pub(super) fn purge(
        &self,
        tables: &mut Tables<'_>,
        run: &Range<FeedPosition>,
        limit: usize,
    ) -> Result<Vec<PurgedFeed>, ReadError> {
        let Range { start, end } = *run;
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
            let old = (number, start.number())..(number, end.number());
            let (entries, _) = table.remove_first(old, left, |_, _| {})?;
            let first = table.range((number, 0)..=(number, u64::MAX))?.next().transpose()?;
            let first = first.map(|(key, _)| FeedPosition::from_number(key.value().1));
            purged.push(PurgedFeed { organisation, entries, first, end });
            left -= entries;
        }
        Ok(purged)
    }

    /// Applies the removals of a durable purge to the index.
    pub(super) fn shrink(&self, purged: Vec<PurgedFeed>) {
        let mut extents = write_lock(&self.extents);
        for PurgedFeed { organisation, entries: _, first, end } in purged {
            let Some(extent) = extents.get_mut(&organisation) else { continue };
            // If none was left, all present ones were added since.
            extent.first = first.or((extent.last >= end).then_some(end));
        }
    }
}

/// Returns the number of the file's feed, and creates it at first.
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
