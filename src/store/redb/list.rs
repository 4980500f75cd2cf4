//! Listing messages, newest first, a bounded read at a time.

use std::ops::Bound;

use redb::{ReadOnlyTable, ReadTransaction};

use crate::domain::clock_corrections::WindowTime;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::Message;
use crate::domain::policy::RECORD_RETENTION;
use crate::domain::time::Timestamp;
use crate::store::redb::damage::{Damage, InRow};
use crate::store::redb::message::corrected;
use crate::store::redb::read_error::ReadError;
use crate::store::redb::record::message::decode_message;
use crate::store::redb::tables::{BY_ORGANISATION, ID_LEAD, IdKey, MESSAGES, META, Rows};
use crate::store::{MessageFilter, MessagePage};

/// How many rows one page looks at. A filter that matches little ends its page here.
const MAX_ROWS: usize = 10_000;
/// How many bytes of rows one page holds, about: where recipients are many, pages are short.
const MAX_BYTES: usize = 4 << 20;

/// Reads a page of at most `limit` messages. Rows that cannot be read are left out.
pub(in crate::store) fn list(
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
        looked_at: 0,
        bytes: 0,
        messages: Vec::new(),
    };
    let mut last = None;
    for id in newest_first(transaction, filter, window_now)? {
        if page.is_full() {
            return Ok(MessagePage { messages: page.messages, next: last });
        }
        let id = id?;
        page.look_at(id)?;
        last = Some(id);
    }
    Ok(MessagePage { messages: page.messages, next: None })
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
    rows: ReadOnlyTable<IdKey, Rows>,
    damage: &'a Damage,
    filter: &'a MessageFilter,
    limit: usize,
    window_now: &'a WindowTime,
    looked_at: usize,
    bytes: usize,
    messages: Vec<Message>,
}

impl Page<'_> {
    fn is_full(&self) -> bool {
        self.messages.len() >= self.limit || self.looked_at >= MAX_ROWS || self.bytes >= MAX_BYTES
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
