//! Messages, read back: one by its id, or a page of them, newest first.

use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable};

use crate::domain::clock_corrections::WindowTime;
use crate::domain::event::EventType;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::mailbox::DomainName;
use crate::domain::message::{Message, Status};
use crate::domain::outcome::MessageOutcome;
use crate::domain::policy::RECORD_RETENTION;
use crate::domain::search::{SearchText, is_sent_from};
use crate::domain::suppression::SuppressedAddress;
use crate::domain::time::Timestamp;
use crate::shared_limits::TooMany;
use crate::store::damage::Damage;
use crate::store::error::{InRow, ReadError};
use crate::store::record::decode_message;
use crate::store::tables::{BY_ORGANISATION, ID_LEAD, IdKey, MESSAGES, META, Row};
use crate::store::{ListError, Shared, Store, StoreError};

/// How many rows one page looks at. A filter that matches little ends its page here.
const MAX_ROWS: usize = 10_000;
/// How many bytes of rows one page holds, about: where recipients are many, pages are short.
const MAX_BYTES: usize = 4 << 20;
/// How long one page is read. It ends here if the disk is slow, but not before [`SURE_ROWS`].
const MAX_TIME: Duration = Duration::from_millis(100);
/// How many rows one page looks at however long that takes, so that whoever goes on gets on.
const SURE_ROWS: usize = 1_000;

/// Which messages to list. What is not given excludes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Only those accepted before this one.
    pub before: Option<MessageId>,
    /// Only this organisation's.
    pub organisation: Option<OrganisationId>,
    /// Only those with this stored status.
    pub status: Option<Status>,
    /// Only those whose latest event is of this type.
    pub last_event: Option<EventType>,
    /// Only those with this outcome by what is stored: none is `sending`.
    pub outcome: Option<MessageOutcome>,
    /// Only those with this recipient.
    pub recipient: Option<SuppressedAddress>,
    /// Only those with this text in the address of a recipient.
    pub recipient_part: Option<SearchText>,
    /// Only those from an address of this domain.
    pub sender_domain: Option<DomainName<'static>>,
    /// Only those with each of these in the subject.
    pub subject_words: Vec<SearchText>,
    /// Only those accepted at this instant or after it.
    pub created_from: Option<Timestamp>,
    /// Only those accepted before this instant.
    pub created_before: Option<Timestamp>,
}

/// A page of messages, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePage {
    /// Those found. A page may be short, or empty, and not the last: what one read may cost is
    /// bounded.
    pub messages: Vec<Message>,
    /// Where to go on: the message that the next page's are to be older than. Nothing at the end.
    pub next: Option<MessageId>,
    /// How many rows were looked at.
    pub looked_at: usize,
}

/// Whose share of the listings one takes: many of one lister's wait for each other alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lister {
    /// An organisation, which lists its own messages.
    Organisation(OrganisationId),
    /// The operators, whichever organisation they look at.
    Operators,
}

impl Store {
    /// A message, unless its retention is over at `window_now`.
    pub fn message(
        &self,
        id: MessageId,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Message>, StoreError> {
        let window_now = window_now.into();
        let read = self
            .shared
            .database
            .read_row(MESSAGES, id.as_bytes(), |row| visible(row, id, &window_now));
        self.checked(&MESSAGES, id, read)
    }

    /// When the oldest record was made, past its window or not; of one that cannot be read, its
    /// id's instant. Returns `None` if there is no record.
    pub fn oldest(
        &self,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let read = self.shared.database.read_first(MESSAGES, |first| {
            let (id, row) = first?;
            let id = MessageId::from_bytes(id);
            Some(decode_message(id, row).map_or(id.instant(), |message| message.created_at))
        });
        let oldest = self.checked(&MESSAGES, "the oldest", read)?;
        let window_now = window_now.into();
        Ok(oldest.map(|stored| window_now.corrected(stored)))
    }

    /// Returns the stored instant of the last message's id, or `None` if there is no message.
    /// Reads what is published.
    pub fn newest(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(&MESSAGES, "the newest", |transaction| {
            let messages = transaction.open_table(MESSAGES)?;
            let last = messages.last()?;
            Ok(last.map(|(id, _)| MessageId::from_bytes(id.value()).instant()))
        })
    }

    /// A page of messages, newest first, at most `limit`, as operators read it.
    pub async fn list(
        &self,
        filter: MessageFilter,
        limit: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<MessagePage, ListError> {
        self.list_then(Lister::Operators, filter, limit, window_now, |page| page).await
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
        let window_now = window_now.into();
        let listed = self.read_in_turn(lister, move |shared| {
            let page = shared.database.read(|transaction| {
                read_page(transaction, &shared.damage, &filter, limit, &window_now)
            });
            page.map(then)
        });
        Ok(self.checked(&MESSAGES, "a list", listed.await?)?)
    }

    /// Reads much: only so many do so at one time, and fewer of one lister, so that acceptance has
    /// the processor. Reads everything that is durable by then.
    pub(super) async fn read_in_turn<T: Send + 'static>(
        &self,
        lister: Lister,
        read: impl FnOnce(&Shared) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        let own = self.shared.listings_of.take(lister).await;
        let own = own.map_err(|TooMany| ListError::TooMany)?;
        let listings = Arc::clone(&self.shared.listings);
        let turn = listings.acquire_owned().await.expect("the semaphore is never closed");
        self.published().await;
        let shared = Arc::clone(&self.shared);
        // Whoever asked may go meanwhile; the read does not, so the turns are its own.
        let reading = tokio::task::spawn_blocking(move || {
            let _turns = (own, turn);
            read(&shared)
        });
        Ok(reading.await.expect("a listing does not panic and is not aborted"))
    }
}

/// Returns the message of a row as readers see it, unless its retention is over at `window_now`.
pub(super) fn visible(
    row: Option<&[u8]>,
    id: MessageId,
    window_now: &WindowTime,
) -> Result<Option<Message>, ReadError> {
    let Some(row) = row else { return Ok(None) };
    let message = corrected(decode_message(id, row).in_row(MESSAGES, id)?, window_now);
    Ok((!message.is_expired(window_now.now())).then_some(message))
}

/// Returns a message as readers see it: with the corrected time of its acceptance.
fn corrected(message: Message, window_now: &WindowTime) -> Message {
    Message { created_at: window_now.corrected(message.created_at), ..message }
}

impl MessageFilter {
    fn matches(&self, message: &Message) -> bool {
        self.organisation.is_none_or(|organisation| organisation == message.organisation)
            && self.status.is_none_or(|status| status == message.status())
            && self.last_event.is_none_or(|wanted| is_last_event(wanted, message))
            && self.outcome.is_none_or(|wanted| has_outcome(wanted, message))
            && self.created_from.is_none_or(|from| from <= message.created_at)
            && self.created_before.is_none_or(|before| message.created_at < before)
            && self.recipient.as_ref().is_none_or(|wanted| is_recipient(wanted, message))
            && self.sender_domain.as_ref().is_none_or(|domain| is_sent_from(domain, &message.from))
            && self.subject_words.iter().all(|word| word.is_in(&message.subject))
            && self.recipient_part.as_ref().is_none_or(|part| has_in_recipient(part, message))
    }
}

fn has_outcome(wanted: MessageOutcome, message: &Message) -> bool {
    MessageOutcome::of_message(message, message.status()) == wanted
}

fn has_in_recipient(part: &SearchText, message: &Message) -> bool {
    message.recipients.iter().any(|recipient| part.is_in_address_of(recipient))
}

fn is_last_event(wanted: EventType, message: &Message) -> bool {
    message.last_event.is_some_and(|last| last.event_type == wanted)
}

fn is_recipient(wanted: &SuppressedAddress, message: &Message) -> bool {
    let mut recipients = message.recipients.iter();
    recipients.any(|given| SuppressedAddress::of_recipient(given).as_ref() == Some(wanted))
}

fn read_page(
    transaction: &ReadTransaction,
    damage: &Damage,
    filter: &MessageFilter,
    limit: usize,
    window_now: &WindowTime,
) -> Result<MessagePage, ReadError> {
    let mut page = Page {
        rows: transaction.open_table(MESSAGES)?,
        damage,
        filter,
        limit,
        window_now,
        began: Instant::now(),
        looked_at: 0,
        bytes: 0,
        messages: Vec::new(),
    };
    let mut last = None;
    for id in newest_first(transaction, filter, window_now)? {
        if page.is_full() {
            return Ok(page.ending(last));
        }
        let id = id?;
        page.look_at(id)?;
        last = Some(id);
    }
    Ok(page.ending(None))
}

type Ids = Box<dyn Iterator<Item = Result<MessageId, redb::StorageError>>>;

/// The ids that can match, from the organisation's own where the filter names one.
fn newest_first(
    transaction: &ReadTransaction,
    filter: &MessageFilter,
    window_now: &WindowTime,
) -> Result<Ids, ReadError> {
    let (first, end) = bounds(transaction, filter, window_now)?;
    let Some(OrganisationId(number)) = filter.organisation else {
        let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(*end.as_bytes()));
        let all = transaction.open_table(MESSAGES)?;
        let rows = all.range((Bound::Included(*first.as_bytes()), end))?.rev();
        return Ok(Box::new(rows.map(|row| Ok(MessageId::from_bytes(row?.0.value())))));
    };
    let end = match end {
        Some(end) => Bound::Excluded((number, *end.as_bytes())),
        None => Bound::Included((number, [u8::MAX; 16])),
    };
    let own = transaction.open_table(BY_ORGANISATION)?;
    let rows = own.range((Bound::Included((number, *first.as_bytes())), end))?.rev();
    Ok(Box::new(rows.map(|row| Ok(MessageId::from_bytes(row?.0.value().1)))))
}

/// The first id that can match and the one that all are before, if there is such a one.
///
/// An id's instant is that of acceptance, as it was stored, or later. So nothing that was stored
/// from `t` on has an id before `t`, and nothing that was stored before `t` has one later than `t`
/// and the most that an id was ever ahead.
fn bounds(
    transaction: &ReadTransaction,
    filter: &MessageFilter,
    window_now: &WindowTime,
) -> Result<(MessageId, Option<MessageId>), ReadError> {
    let retained = window_now.now().minus(RECORD_RETENTION);
    let from = filter.created_from.map_or(retained, |at| at.max(retained));
    // Only what is before it from the beginning on; later runs are told apart row by row.
    let zero = Timestamp::from_unix_millis(0);
    let earlier = window_now.before(from);
    let first = earlier.first().filter(|run| run.start == zero).map_or(zero, |run| run.end);
    let created = match filter.created_before {
        Some(before) => {
            let lead = transaction.open_table(META)?.get(ID_LEAD)?.map_or(0, |row| row.value());
            let end = window_now.before(before).last().map_or(zero, |run| run.end);
            let end = end.unix_millis().saturating_add(lead);
            Some(MessageId::first_of(Timestamp::from_unix_millis(end)))
        }
        None => None,
    };
    // With neither, there is no end.
    let end = match (filter.before, created) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    };
    Ok((MessageId::first_of(first), end))
}

/// A page in the making.
struct Page<'a> {
    rows: ReadOnlyTable<IdKey, Row>,
    damage: &'a Damage,
    filter: &'a MessageFilter,
    limit: usize,
    window_now: &'a WindowTime,
    began: Instant,
    looked_at: usize,
    bytes: usize,
    messages: Vec<Message>,
}

impl Page<'_> {
    fn is_full(&self) -> bool {
        self.messages.len() >= self.limit
            || self.looked_at >= MAX_ROWS
            || self.bytes >= MAX_BYTES
            || (self.looked_at >= SURE_ROWS && self.began.elapsed() >= MAX_TIME)
    }

    fn ending(self, next: Option<MessageId>) -> MessagePage {
        MessagePage { messages: self.messages, next, looked_at: self.looked_at }
    }

    fn look_at(&mut self, id: MessageId) -> Result<(), ReadError> {
        self.looked_at += 1;
        let Some(row) = self.rows.get(id.as_bytes())? else { return Ok(()) };
        let read = decode_message(id, row.value()).in_row(MESSAGES, id);
        let Some(message) = self.damage.left_out(read) else { return Ok(()) };
        let message = corrected(message, self.window_now);
        if !message.is_expired(self.window_now.now()) && self.filter.matches(&message) {
            self.bytes += row.value().len();
            self.messages.push(message);
        }
        Ok(())
    }
}
