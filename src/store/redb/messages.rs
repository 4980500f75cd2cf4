//! Messages, read back: one by its id, or a page of them, newest first.

use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redb::{ReadTransaction, ReadableTable, TableHandle};

use crate::damage::Damage;
use crate::listing::{self, Order, Page, blocking};
use crate::metrics::StoreMetrics;
use crate::record::{IdempotencyRow, decode_message};
use crate::redb::RedbStore;
use crate::redb::error::{InRow, ReadError};
use crate::redb::sent;
use crate::redb::tables::{BY_ORGANISATION, ID_LEAD, IDEMPOTENCY, MESSAGES, META, SENT};
use crate::rows::MessageRow;
use crate::{MessageFilter, MessagePage, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::request::KeyOrigin;
use pillarbox_domain::time::Timestamp;

/// Number of rows that are read before the reader checks if it should rest: a small part of a
/// millisecond.
const ROWS_WITHOUT_REST: usize = 32;
/// Length of a rest, as a multiple of the work before it.
const REST: u32 = 3;
/// Time after a commit for which the writer counts as busy.
const BUSY: Duration = Duration::from_millis(20);

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
        let shared = Arc::clone(&self.shared);
        let reading = blocking(move || {
            shared.database.read(|transaction| {
                Ok(sent::find_in(&transaction.open_table(SENT)?, &ses_message_id, accepted_at)?)
            })
        });
        self.checked(SENT.name(), "an id of the provider", reading.await)
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
            shared.database.read(|transaction| {
                let rests = Rests::new(&shared.memory.metrics, Instant::now());
                let page = Page::new(filter.clone(), limit, window_now.clone());
                read_page(transaction, &shared.memory.damage, &filter, page, &window_now, rests)
            })
        });
        self.checked(MESSAGES.name(), "a list", reading.await)
    }
}

fn read_page(
    transaction: &ReadTransaction,
    damage: &Damage,
    filter: &MessageFilter,
    mut page: Page,
    window_now: &WindowTime,
    mut rests: Rests<'_>,
) -> Result<MessagePage, ReadError> {
    let rows = transaction.open_table(MESSAGES)?;
    let mut last = None;
    for id in ids(transaction, filter, window_now)? {
        if page.is_full() {
            return Ok(page.ending(last));
        }
        let id = id?;
        if let Some(row) = rows.get(id.as_bytes())? {
            let read = decode_message(id, row.value()).in_row(MESSAGES, id);
            page.look_at(damage.left_out(read), row.value().len());
        }
        last = Some(id);
        rests.after_row();
    }
    Ok(page.ending(None))
}

/// Rests of a long read. While the writer commits, the read rests for longer than it works, so that
/// acceptance has the processor.
struct Rests<'a> {
    metrics: &'a StoreMetrics,
    /// Number of commits at the last check.
    commits: u64,
    /// Time at which the last commit was noticed. A read begins as if it had just noticed one: else
    /// it would work without rest until the writer gets the processor.
    last_commit: Instant,
    works_since: Instant,
    rows: usize,
}

impl<'a> Rests<'a> {
    fn new(metrics: &'a StoreMetrics, now: Instant) -> Self {
        Self { metrics, commits: metrics.commits(), last_commit: now, works_since: now, rows: 0 }
    }

    /// Rests if a rest is due and the writer is busy.
    fn after_row(&mut self) {
        self.rows += 1;
        if !self.rows.is_multiple_of(ROWS_WITHOUT_REST) {
            return;
        }
        let due = self.due(self.metrics.commits(), Instant::now());
        if !due.is_zero() {
            std::thread::sleep(due);
        }
        self.works_since = Instant::now();
    }

    /// Returns the length of the rest after this many commits.
    fn due(&mut self, commits: u64, now: Instant) -> Duration {
        if commits != self.commits {
            (self.commits, self.last_commit) = (commits, now);
        }
        if now.saturating_duration_since(self.last_commit) < BUSY {
            now.saturating_duration_since(self.works_since) * REST
        } else {
            Duration::ZERO
        }
    }
}

type Ids = Box<dyn Iterator<Item = Result<MessageId, redb::StorageError>>>;

/// The ids that can match, in the order in which they are checked, from the organisation's own if
/// the filter names one.
fn ids(
    transaction: &ReadTransaction,
    filter: &MessageFilter,
    window_now: &WindowTime,
) -> Result<Ids, ReadError> {
    let lead = transaction.open_table(META)?.get(ID_LEAD)?.map_or(0, |row| row.value());
    let (first, end) = listing::bounds(filter, window_now, lead);
    let Some(OrganisationId(number)) = filter.organisation else {
        let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(*end.as_bytes()));
        let all = transaction.open_table(MESSAGES)?;
        let rows = all.range((Bound::Included(*first.as_bytes()), end))?;
        return Ok(in_order(filter, rows.map(|row| Ok(MessageId::from_bytes(row?.0.value())))));
    };
    let end = match end {
        Some(end) => Bound::Excluded((number, *end.as_bytes())),
        None => Bound::Included((number, [u8::MAX; 16])),
    };
    let own = transaction.open_table(BY_ORGANISATION)?;
    let rows = own.range((Bound::Included((number, *first.as_bytes())), end))?;
    Ok(in_order(filter, rows.map(|row| Ok(MessageId::from_bytes(row?.0.value().1)))))
}

/// Puts ids, which come with the oldest first, into the order of a filter.
fn in_order(
    filter: &MessageFilter,
    ids: impl DoubleEndedIterator<Item = Result<MessageId, redb::StorageError>> + 'static,
) -> Ids {
    match Order::of(filter) {
        Order::NewestFirst => Box::new(ids.rev()),
        Order::OldestFirst => Box::new(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_rests_for_longer_than_it_works_while_the_writer_commits() {
        const WORK: Duration = Duration::from_micros(60);
        let metrics = StoreMetrics::default();
        let start = Instant::now();
        let mut rests = Rests::new(&metrics, start);
        assert_eq!(rests.due(0, start + WORK), WORK * REST, "a commit may be under way");
        rests.works_since = start + BUSY;
        assert_eq!(rests.due(0, start + BUSY + WORK), Duration::ZERO, "nobody else works");
        assert_eq!(rests.due(1, start + BUSY + WORK), WORK * REST);
        // No commit between two checks: the next one is on its way.
        rests.works_since = start + BUSY * 3 / 2;
        assert_eq!(rests.due(1, start + BUSY * 3 / 2 + WORK), WORK * REST);
        rests.works_since = start + BUSY * 3;
        assert_eq!(rests.due(1, start + BUSY * 3 + WORK), Duration::ZERO, "the writer is idle");
        assert_eq!(rests.due(2, start + BUSY * 3 + WORK), WORK * REST);
    }
}
