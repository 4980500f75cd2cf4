//! Messages, read back: one by its id or by the provider's, or a page of them, newest first.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redb::{
    AccessGuard, Key, Range, ReadOnlyTable, ReadTransaction, ReadableTable, StorageError,
    TableHandle,
};

use crate::listing::{Order, Page, blocking};
use crate::record::IdempotencyRow;
use crate::redb::error::{InRow, ReadError};
use crate::redb::tables::{
    BY_ORGANISATION, ID_LEAD, IDEMPOTENCY, IdKey, MESSAGES, META, PENDING, SENT,
};
use crate::redb::{RedbStore, Shared};
use crate::rows::MessageRow;
use crate::transitions::SEARCH_WINDOW;
use crate::{InMemory, MessageFilter, MessagePage, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::request::KeyOrigin;
use pillarbox_domain::time::Timestamp;

/// Number of rows that are read before the reader checks if the writer is busy: the work of a small
/// part of a millisecond.
const ROWS_WITHOUT_CHECK: usize = 32;
/// Length of the rest after each check while the writer is busy, as a multiple of the work before
/// it. The processor is acceptance's then. No transaction lives meanwhile: the pages that commits
/// free would pile up, and acceptance would wait for the commit that gives them all back.
const REST: u32 = 3;
/// Time after a commit for which the writer counts as busy.
const BUSY: Duration = Duration::from_millis(20);
/// Number of rows that a search for a provider's id checks, the nearest in time first.
const SEARCH_ROWS: usize = 20_000;

impl RedbStore {
    pub(crate) fn message_row(&self, id: MessageId) -> Result<Option<MessageRow>, StoreError> {
        let read = |row: Option<&[u8]>| Ok(row.map(|row| (row.to_vec(), None)));
        let read = self.shared.database.read_row(MESSAGES, id.as_bytes(), read);
        self.checked(MESSAGES.name(), id, read)
    }

    pub(crate) fn first_message(&self) -> Result<Option<(MessageId, Vec<u8>)>, StoreError> {
        let read = self.shared.database.read_first(MESSAGES, |first| {
            first.map(|(id, row)| (MessageId::from_bytes(id), row.to_vec()))
        });
        self.checked(MESSAGES.name(), "the oldest", read)
    }

    pub(crate) fn last_message(&self) -> Result<Option<MessageId>, StoreError> {
        self.read(MESSAGES.name(), "the newest", |transaction| {
            let messages = transaction.open_table(MESSAGES)?;
            let last = messages.last()?;
            Ok(last.map(|(id, _)| MessageId::from_bytes(id.value())))
        })
    }

    pub(crate) fn idempotency_key(&self, id: MessageId) -> Result<Option<String>, StoreError> {
        let read = self.shared.database.read_row(IDEMPOTENCY, id.as_bytes(), |row| {
            let Some(row) = row else { return Ok(None) };
            let IdempotencyRow { key, .. } = IdempotencyRow::decode(row).in_row(IDEMPOTENCY, id)?;
            Ok((key.origin() == KeyOrigin::Client).then(|| key.as_str().to_owned()))
        });
        self.checked(IDEMPOTENCY.name(), id, read)
    }

    pub(crate) async fn message_sent_as(
        &self,
        ses_message_id: String,
        accepted_at: Timestamp,
    ) -> Result<Option<MessageId>, StoreError> {
        self.published().await;
        let store = self.clone();
        let reading = blocking(move || {
            store.read(SENT.name(), "an id of the provider", |transaction| {
                Ok(find_sent(&transaction.open_table(SENT)?, &ses_message_id, accepted_at)?)
            })
        });
        reading.await
    }

    /// Reads everything that is durable by now; if a message is given, only the messages before it.
    /// Then batches that changed none of those need not be published, which would take the writer's
    /// time.
    pub(crate) async fn page(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: WindowTime,
    ) -> Result<MessagePage, StoreError> {
        let before = filter.before;
        if before.is_none_or(|before| self.shared.database.is_any_unpublished_before(before)) {
            self.published().await;
        }
        let shared = Arc::clone(&self.shared);
        let reading = blocking(move || {
            let mut page = begin_page(&shared, filter, limit, window_now)?;
            loop {
                let began = Instant::now();
                let read = shared
                    .database
                    .read(|transaction| read_part(&mut page, transaction, &shared.memory));
                if let ControlFlow::Break(next) = read? {
                    return Ok(page.ending(next));
                }
                std::thread::sleep(began.elapsed() * REST);
            }
        });
        self.checked(MESSAGES.name(), "a list", reading.await)
    }
}

fn begin_page(
    shared: &Shared,
    filter: MessageFilter,
    limit: usize,
    window_now: WindowTime,
) -> Result<Page, ReadError> {
    let lead = shared.database.read(|transaction| {
        Ok(transaction.open_table(META)?.get(ID_LEAD)?.map_or(0, |row| row.value()))
    })?;
    Ok(Page::new(filter, limit, window_now, lead))
}

/// Reads on, until the writer commits meanwhile. If the page ends, returns the last message that was
/// checked, if there may be more.
fn read_part(
    page: &mut Page,
    transaction: &ReadTransaction,
    memory: &InMemory,
) -> Result<ControlFlow<Option<MessageId>>, ReadError> {
    for (number, row) in (1_usize..).zip(rows(page, transaction)?) {
        if page.is_full() {
            return Ok(ControlFlow::Break(page.last));
        }
        let (id, row) = row?;
        page.look_at(id, row.as_ref().map(AccessGuard::value), &memory.damage);
        if number.is_multiple_of(ROWS_WITHOUT_CHECK) && memory.metrics.has_committed_within(BUSY) {
            return Ok(ControlFlow::Continue(()));
        }
    }
    Ok(ControlFlow::Break(None))
}

/// The rows that can match and were not checked yet, in the order in which they are checked,
/// from the pending ones and the organisation's own if these are wanted.
fn rows(page: &Page, transaction: &ReadTransaction) -> Result<Rows, ReadError> {
    let (first, end) = (*page.first.as_bytes(), page.end.map(|end| *end.as_bytes()));
    let order = page.order;
    let is_pending_only = page.filter.finds_only_pending();
    let messages = transaction.open_table(MESSAGES)?;
    let Some(OrganisationId(number)) = page.filter.organisation else {
        let range = (Bound::Included(first), end.map_or(Bound::Unbounded, Bound::Excluded));
        if is_pending_only {
            let pending = transaction.open_table(PENDING)?.range(range)?;
            return Ok(in_order(order, pending, move |(id, _)| {
                Ok((MessageId::from_bytes(id.value()), messages.get(id.value())?))
            }));
        }
        return Ok(in_order(order, messages.range(range)?, |(id, row)| {
            Ok((MessageId::from_bytes(id.value()), Some(row)))
        }));
    };
    if is_pending_only {
        let own = transaction.open_table(BY_ORGANISATION)?;
        let pending = transaction.open_table(PENDING)?;
        let mut ids = PendingIds { order, first, end, pending, number, own };
        return Ok(Box::new(std::iter::from_fn(move || {
            let row = |id| Ok((MessageId::from_bytes(id), messages.get(id)?));
            Some(ids.next().transpose()?.and_then(row))
        })));
    }
    let last = Bound::Included((number, [u8::MAX; 16]));
    let end = end.map_or(last, |end| Bound::Excluded((number, end)));
    let own = transaction.open_table(BY_ORGANISATION)?;
    let own = own.range((Bound::Included((number, first)), end))?;
    Ok(in_order(order, own, move |(key, _)| {
        let (_, id) = key.value();
        Ok((MessageId::from_bytes(id), messages.get(id)?))
    }))
}

/// Ids to check for pending messages of an organisation: of its messages the one next to each pending
/// one. It goes from one table to the next place in the other, so it reads no more than the smaller
/// one has, and a backlog of others costs an organisation little.
struct PendingIds {
    order: Order,
    first: IdKey,
    /// Id that all others are before, if there is one.
    end: Option<IdKey>,
    pending: ReadOnlyTable<IdKey, ()>,
    /// The organisation, and the messages of each.
    number: u32,
    own: ReadOnlyTable<(u32, IdKey), ()>,
}

impl PendingIds {
    fn next(&mut self) -> Result<Option<IdKey>, StorageError> {
        let end = self.end.map_or(Bound::Unbounded, Bound::Excluded);
        let pending = self.pending.range((Bound::Included(self.first), end))?;
        let Some(pending) = self.nearest(pending, |id| id)? else { return Ok(None) };
        let (first, last) = match (self.order, self.end) {
            (Order::NewestFirst, _) => (self.first, Bound::Included(pending)),
            (Order::OldestFirst, Some(end)) => (pending, Bound::Excluded(end)),
            (Order::OldestFirst, None) => (pending, Bound::Included([u8::MAX; 16])),
        };
        let key = |id| (self.number, id);
        let own = self.own.range((Bound::Included(key(first)), last.map(key)))?;
        let id = self.nearest(own, |(_, id)| id)?;
        match (id, self.order) {
            (None, _) => {}
            (Some(_), Order::NewestFirst) => self.end = id,
            (Some(id), Order::OldestFirst) => {
                self.first = *MessageId::from_bytes(id).successor().as_bytes();
            }
        }
        Ok(id)
    }

    /// The first id of a range, in the order in which they are checked.
    fn nearest<K: Key + 'static>(
        &self,
        mut range: Range<'_, K, ()>,
        id: impl Fn(K::SelfType<'_>) -> IdKey,
    ) -> Result<Option<IdKey>, StorageError> {
        let nearest = match self.order {
            Order::NewestFirst => range.next_back(),
            Order::OldestFirst => range.next(),
        };
        Ok(nearest.transpose()?.map(|(key, _)| id(key.value())))
    }
}

/// A message's row; `None` if it has none.
type Row = (MessageId, Option<AccessGuard<'static, &'static [u8]>>);
type Rows = Box<dyn Iterator<Item = Result<Row, StorageError>>>;

/// Makes rows of entries, which come with the oldest first, in this order.
fn in_order<T: 'static>(
    order: Order,
    entries: impl DoubleEndedIterator<Item = Result<T, StorageError>> + 'static,
    row: impl Fn(T) -> Result<Row, StorageError> + 'static,
) -> Rows {
    match order {
        Order::NewestFirst => Box::new(entries.rev().map(move |entry| row(entry?))),
        Order::OldestFirst => Box::new(entries.map(move |entry| row(entry?))),
    }
}

/// Finds the message that the provider knows by this id and accepted at about this time. By it, an
/// event without our own id finds its message.
///
/// The ids are ordered by time, so that inserts go to the table's end. The provider's ids are
/// random: an index by them would cost the sends an order of magnitude at some million rows. The
/// price is a bounded search around the time at which the provider says that it accepted the
/// message.
pub(super) fn find_sent(
    sent: &impl ReadableTable<(u64, IdKey), &'static [u8]>,
    ses_message_id: &str,
    accepted_at: Timestamp,
) -> Result<Option<MessageId>, StorageError> {
    let at = (accepted_at.unix_millis(), [0; 16]);
    let end = (accepted_at.plus(SEARCH_WINDOW).unix_millis(), [u8::MAX; 16]);
    let start = (accepted_at.minus(SEARCH_WINDOW).unix_millis(), [0; 16]);
    let mut later = sent.range(at..=end)?;
    let mut earlier = sent.range(start..at)?.rev();
    for _ in 0..SEARCH_ROWS / 2 {
        // Alternately from both sides: our record is later than the provider's by the time of a
        // call, plus or minus the difference between the clocks.
        let pair = [later.next(), earlier.next()];
        if pair.iter().all(Option::is_none) {
            break;
        }
        for row in pair.into_iter().flatten() {
            let (key, row) = row?;
            if row.value() == ses_message_id.as_bytes() {
                return Ok(Some(MessageId::from_bytes(key.value().1)));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Fixture, START};
    use crate::redb::tests::in_directory;

    #[tokio::test]
    async fn a_page_is_read_in_parts_while_the_writer_commits() {
        let directory = tempfile::tempdir().unwrap();
        let fixture = Fixture::on(in_directory(&directory, START).await).await;
        let mut ids = Vec::new();
        for _ in 0..=2 * ROWS_WITHOUT_CHECK {
            ids.push(fixture.new_message().await);
        }
        let redb = fixture.store.redb();
        redb.published().await;
        let organisation = Some(fixture.organisation);
        let after = Some(MessageId::first_of(START));
        let own = || MessageFilter { organisation, ..MessageFilter::default() };
        let oldest_first = || MessageFilter { after, ..MessageFilter::default() };
        for filter in [MessageFilter::default(), own(), oldest_first()] {
            let shared = &redb.shared;
            let mut page = begin_page(shared, filter, ids.len(), WindowTime::from(START)).unwrap();
            let mut parts = 0;
            let next = loop {
                // As a commit of the writer does.
                shared.memory.metrics.committed(1, Duration::ZERO, Vec::new());
                parts += 1;
                let read = shared
                    .database
                    .read(|transaction| read_part(&mut page, transaction, &shared.memory));
                if let ControlFlow::Break(next) = read.unwrap() {
                    break next;
                }
            };
            let read = page.ending(next);
            let read: Vec<_> = read.messages.iter().map(|message| message.id).rev().collect();
            assert_eq!((read, next, parts), (ids.clone(), None, 3));
        }
    }
}
