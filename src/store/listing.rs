//! Listing: slots for large reads; for messages, the rows that a page checks and those that it
//! shows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::damage::Damage;
use crate::record::decode_message;
use crate::rows::{InTable, Table};
use crate::{ListError, Lister, MessageFilter, MessagePage, StoreError};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::message::Message;
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::shared_limits::{Slot, Slots, TooMany};
use pillarbox_runtime::sync::{spawn, spawn_blocking};

/// Largest number of rows that one page checks. A filter that matches little ends its page here.
const MAX_ROWS: usize = 10_000;
/// Approximate number of bytes of rows that one page holds. If messages have many recipients, pages
/// are short.
const MAX_BYTES: usize = 4 << 20;
/// Time for which one page is read. It ends here if the disk is slow, but not before [`SURE_ROWS`].
const MAX_TIME: Duration = Duration::from_millis(100);
/// Number of rows that one page checks however long that takes, so that each page makes progress.
pub(super) const SURE_ROWS: usize = 1_000;

/// Number of listings that may read at one time: they must not take the processor from acceptance.
const LISTINGS_AT_ONCE: usize = 4;
/// Number of listings of one lister that may read at one time, and number that may wait.
const LISTINGS_OF_ONE: usize = 2;
const LISTINGS_WAITING: usize = 64;

/// Slots for large reads: a limited number at one time, and a smaller number for one lister.
pub(super) struct Listings {
    all: Arc<Semaphore>,
    of_one: Slots<Lister>,
}

/// Slot for a large read. It is released when this is dropped.
pub(super) struct ReadSlot {
    own: Slot<Lister>,
    of_all: OwnedSemaphorePermit,
}

impl Default for Listings {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(LISTINGS_AT_ONCE)),
            of_one: Slots::new(LISTINGS_OF_ONE, LISTINGS_WAITING),
        }
    }
}

impl Listings {
    /// Waits for a slot, unless too many of the lister's reads wait already.
    pub(super) async fn slot(&self, lister: Lister) -> Result<ReadSlot, ListError> {
        let own = self.of_one.take(lister).await.map_err(|TooMany| ListError::TooMany)?;
        Ok(ReadSlot::of(own, Arc::clone(&self.all)).await)
    }
}

impl ReadSlot {
    async fn of(own: Slot<Lister>, all: Arc<Semaphore>) -> Self {
        let of_all = all.acquire_owned().await.expect("the semaphore is never closed");
        Self { own, of_all }
    }

    /// Waits for another slot, behind those that wait now: no reader continues while others wait.
    pub(super) async fn again(self) -> Self {
        let all = Arc::clone(self.of_all.semaphore());
        drop(self.of_all);
        Self::of(self.own, all).await
    }
}

/// Does work that takes the processor for long, on a thread that delays no request of others.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let working = spawn_blocking(work);
    working.await.expect("the work does not panic and is not aborted")
}

/// Reads a page in a slot, and returns the result of `then`. The caller may go meanwhile, but the
/// read continues, so it owns the slot.
pub(super) async fn list<P: Send + 'static, T: Send + 'static>(
    read: impl Future<Output = Result<(P, Option<ReadSlot>), StoreError>> + Send + 'static,
    then: impl FnOnce(P) -> T + Send + 'static,
) -> Result<T, ListError> {
    let listing = spawn(async move {
        let (page, slot) = read.await?;
        let made = blocking(move || {
            let _slot = slot;
            then(page)
        });
        Ok(made.await)
    });
    listing.await.expect("a listing does not panic and is not aborted")
}

/// Returns a message as readers see it, with the corrected time of its acceptance, unless its
/// retention is over at `window_now`.
pub(super) fn visible(message: Message, window_now: &WindowTime) -> Option<Message> {
    let created_at = window_now.corrected(message.created_at);
    let message = Message { created_at, ..message };
    (!message.is_expired(window_now.now())).then_some(message)
}

/// Returns the first id that can match, and the id that all matches are before, if there is one.
///
/// An id's instant is the stored instant of acceptance, or later. So nothing that was stored from
/// `t` on has an id before `t`. Nothing that was stored before `t` has an id later than `t` plus
/// the largest skew between an id and its acceptance, which is `lead` milliseconds.
fn bounds(
    filter: &MessageFilter,
    window_now: &WindowTime,
    lead: u64,
) -> (MessageId, Option<MessageId>) {
    let retained = window_now.now().minus(RECORD_RETENTION);
    let from = filter.created_from.map_or(retained, |at| at.max(retained));
    // Only the part before the first run's end; later runs are separated row by row.
    let zero = Timestamp::from_unix_millis(0);
    let earlier = window_now.before(from);
    let first = earlier.first().filter(|run| run.start == zero).map_or(zero, |run| run.end);
    let created = filter.created_before.map(|before| {
        let end = window_now.before(before).last().map_or(zero, |run| run.end);
        let end = end.unix_millis().saturating_add(lead);
        MessageId::first_of(Timestamp::from_unix_millis(end))
    });
    let wanted = filter.ids.as_ref();
    let ends = [filter.before, created, wanted.map(|ids| ids.end().successor())];
    let starts = [wanted.map(|ids| *ids.start()), filter.after.map(MessageId::successor)];
    let first = MessageId::first_of(first);
    let start = starts.into_iter().flatten().fold(first, MessageId::max);
    (start, ends.into_iter().flatten().min())
}

/// Order in which rows are checked. A page shows the newest first all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    NewestFirst,
    /// From the row right after a message on, among the oldest rows.
    OldestFirst,
}

pub(super) struct Page {
    pub(super) filter: MessageFilter,
    limit: usize,
    window_now: WindowTime,
    pub(super) order: Order,
    /// First id that was not checked yet.
    pub(super) first: MessageId,
    /// Id that all that were not checked yet are before, if there is one.
    pub(super) end: Option<MessageId>,
    /// The last message that was checked.
    pub(super) last: Option<MessageId>,
    began: Instant,
    looked_at: usize,
    bytes: usize,
    messages: Vec<Message>,
}

impl Page {
    /// Begins a page. `lead` is the largest skew between an id and its acceptance, in milliseconds.
    pub(super) fn new(
        filter: MessageFilter,
        limit: usize,
        window_now: WindowTime,
        lead: u64,
    ) -> Self {
        let (first, end) = bounds(&filter, &window_now, lead);
        let is_from_the_oldest = filter.after.is_some();
        Self {
            filter,
            limit,
            window_now,
            order: if is_from_the_oldest { Order::OldestFirst } else { Order::NewestFirst },
            first,
            end,
            last: None,
            began: Instant::now(),
            looked_at: 0,
            bytes: 0,
            messages: Vec::new(),
        }
    }

    /// Returns true if no more rows are to be checked.
    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= self.limit
            || self.looked_at >= MAX_ROWS
            || self.bytes >= MAX_BYTES
            || (self.looked_at >= SURE_ROWS && self.began.elapsed() >= MAX_TIME)
    }

    pub(super) fn rows_left(&self) -> usize {
        MAX_ROWS.saturating_sub(self.looked_at)
    }

    /// Checks the next message, and adds it if it has a row that can be read and is to be shown.
    pub(super) fn look_at(&mut self, id: MessageId, row: Option<&[u8]>, damage: &Damage) {
        self.last = Some(id);
        match self.order {
            Order::NewestFirst => self.end = Some(id),
            Order::OldestFirst => self.first = id.successor(),
        }
        let Some(row) = row else { return };
        self.looked_at += 1;
        let read = decode_message(id, row).in_table(Table::Messages, id);
        let message = damage.left_out(read).and_then(|read| visible(read, &self.window_now));
        if let Some(message) = message.filter(|message| self.filter.matches(message)) {
            self.bytes += row.len();
            self.messages.push(message);
        }
    }

    /// Ends the page; `next` is the last message that was checked, if there may be more.
    pub(super) fn ending(mut self, next: Option<MessageId>) -> MessagePage {
        if self.order == Order::OldestFirst {
            self.messages.reverse();
        }
        MessagePage { messages: self.messages, next, looked_at: self.looked_at }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use pillarbox_domain::clock_corrections::Correction;
    use pillarbox_domain::id::OrganisationId;

    #[test]
    fn a_page_ends_with_so_many_messages_rows_or_bytes() {
        let now = Timestamp::from_unix_millis(1_800_000_000_000);
        let page = || Page::new(MessageFilter::default(), 1, now.into(), 0);
        assert!(!page().is_full());
        assert_eq!(page().rows_left(), MAX_ROWS);
        assert_eq!(Page { looked_at: MAX_ROWS, ..page() }.rows_left(), 0);
        assert!(Page { looked_at: MAX_ROWS, ..page() }.is_full());
        assert!(Page { bytes: MAX_BYTES, ..page() }.is_full());
        assert!(Page { limit: 0, ..page() }.is_full());
        let began = |began| Page { looked_at: SURE_ROWS, began, ..page() };
        assert!(!began(Instant::now() + MAX_TIME).is_full());
        assert!(began(Instant::now().checked_sub(MAX_TIME).unwrap()).is_full());
    }

    #[test]
    fn a_page_counts_its_rows_and_the_bytes_of_those_that_it_shows() {
        // The instant at which the message was accepted.
        let now = Timestamp::from_unix_millis(1);
        let row = b"\x01\x01\x01\x05a@b.c\x01\x05d@e.f\x02Hi\x00\x00\x00\x00\x00";
        let mut page = Page::new(MessageFilter::default(), 9, now.into(), 0);
        for shown in 1..=2 {
            page.look_at(MessageId::first_of(now), Some(row), &Damage::default());
            assert_eq!((page.looked_at, page.bytes), (shown, shown * row.len()));
        }
    }

    #[test]
    fn a_page_begins_with_the_first_record_that_is_retained_by_the_corrected_clock() {
        let now = Timestamp::from_unix_millis(1_800_000_000_000);
        let first = |corrections: Vec<Correction>| {
            let window_now = WindowTime::new(now, &corrections.into());
            bounds(&MessageFilter::default(), &window_now, 0).0
        };
        assert_eq!(first(Vec::new()), MessageId::first_of(now.minus(RECORD_RETENTION)));
        // The clock began in 1970, and was set an hour later.
        let zero = Timestamp::from_unix_millis(0);
        let shift_millis = i64::try_from(now.unix_millis()).unwrap();
        let set = Correction { from: zero.plus(Duration::from_hours(1)), shift_millis: 0 };
        let corrections = vec![Correction { from: zero, shift_millis }, set];
        assert_eq!(first(corrections), MessageId::first_of(zero), "nothing before it is too old");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_reads_on_lets_others_have_their_turn_first() {
        let listings = Listings::default();
        let slot = |number| listings.slot(Lister::Organisation(OrganisationId(number)));
        let mut taken = Vec::new();
        for number in [1, 1, 2, 2] {
            taken.push(slot(number).await.unwrap());
        }
        let other = slot(3);
        tokio::pin!(other);
        assert!(timeout(MAX_TIME, &mut other).await.is_err());
        let again = taken.pop().unwrap().again();
        tokio::pin!(again);
        assert!(timeout(MAX_TIME, &mut again).await.is_err(), "it waits behind the other");
        drop(timeout(MAX_TIME, other).await.expect("the other has its slot").unwrap());
        drop(timeout(MAX_TIME, again).await.expect("then it goes on"));
    }
}
