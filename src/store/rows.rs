//! Rows: the data that the rules of the store read and change, the same on every engine.
//!
//! A rule is a function over [`Rows`]. It may run more than once before it is committed, so it
//! changes nothing but rows. If an engine has not read a row that the rule asks for, it stops the
//! rule with [`Stop::Unread`], reads the row and runs the rule from its start.

use std::ops::{Bound, RangeBounds as _};
use std::sync::Arc;

use crate::InMemory;
use crate::directory::OrganisationIndex;
use crate::error::{DamagedRow, RowError};
use crate::organisation_counts::Increment;
use crate::record::directory::decode_api_key;
use crate::record::webhooks::decode_webhook;
use crate::record::{ReportedChange, organisation_of};
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::Message;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::worded;

pub(super) use crate::tables::Table;

worded! {
    /// Number that exists once in the store. Its word is its key in a data file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Counter {
        /// The last number that an organisation got.
        LastOrganisation = "last_organisation",
        /// The last number that an API key got.
        LastKey = "last_key",
        /// The last number that an endpoint got.
        LastWebhook = "last_webhook",
        /// Messages whose body was lost, until an operator acknowledges them.
        LostMessages = "lost_messages",
        /// Time at which the last of them was found, in milliseconds.
        LostMessagesAt = "lost_messages_at",
    }
}

/// Rows that others must not change while a rule runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// The rows that the rule reads by their keys.
    Rows,
    /// Organisations, keys, domains and endpoints. Their followers are notified of the change.
    Directory,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Key(Vec<u8>);

impl Key {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the number that begins at this byte.
    pub(super) fn number(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn large(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    pub(super) fn id(&self, at: usize) -> MessageId {
        MessageId::from_bytes(self.array(at))
    }

    /// Returns the bytes from this one on. The missing part of a shorter key is the least: 0.
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        for (byte, own) in array.iter_mut().zip(self.0.get(at..).unwrap_or_default()) {
            *byte = *own;
        }
        array
    }

    /// Returns the text from this byte on.
    pub(super) fn text(&self, at: usize) -> &str {
        self.0.get(at..).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// Returns the text from this byte on to a NUL or the end.
    pub(super) fn text_to_nul(&self, at: usize) -> &str {
        let rest = self.0.get(at..).unwrap_or_default();
        let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// Returns the same key with more behind it.
    #[must_use]
    pub(super) fn and(mut self, more: impl Into<Self>) -> Self {
        self.0.extend_from_slice(&more.into().0);
        self
    }

    /// Returns the first key that is after all that begin with this one, if there is such a key.
    fn after_all(&self) -> Option<Self> {
        let last = self.0.iter().rposition(|byte| *byte < u8::MAX)?;
        let mut bytes = self.0[..=last].to_vec();
        bytes[last] += 1;
        Some(Self(bytes))
    }
}

macro_rules! keys_of {
    ($($from:ty: |$value:ident| $bytes:expr;)+) => {$(
        impl From<$from> for Key {
            fn from($value: $from) -> Self {
                Self($bytes.to_vec())
            }
        }
    )+};
}

keys_of! {
    u32: |number| number.to_be_bytes();
    u64: |number| number.to_be_bytes();
    &str: |text| text.as_bytes();
    &[u8]: |bytes| bytes;
    [u8; 16]: |bytes| bytes;
    MessageId: |id| id.as_bytes();
}

impl<A: Into<Self>, B: Into<Self>> From<(A, B)> for Key {
    fn from((first, second): (A, B)) -> Self {
        first.into().and(second)
    }
}

impl<A: Into<Self>, B: Into<Self>, C: Into<Self>> From<(A, B, C)> for Key {
    fn from((first, second, third): (A, B, C)) -> Self {
        first.into().and(second).and(third)
    }
}

/// Run of keys, and the order in which its rows are read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct KeyRange {
    /// The least key.
    pub(super) from: Key,
    /// True if `from` itself is not in the run.
    pub(super) is_after: bool,
    /// The first key behind the run; `None` if it has no end.
    pub(super) end: Option<Key>,
    /// True if the row with the greatest key comes first.
    pub(super) is_descending: bool,
}

impl KeyRange {
    pub(super) fn all() -> Self {
        Self::default()
    }

    /// All keys that begin with this one.
    pub(super) fn of(prefix: impl Into<Key>) -> Self {
        let from = prefix.into();
        Self { end: from.after_all(), from, ..Self::default() }
    }

    /// All keys from one on, before another.
    pub(super) fn between(from: impl Into<Key>, end: impl Into<Key>) -> Self {
        Self { from: from.into(), end: Some(end.into()), ..Self::default() }
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.bounds().contains(key)
    }

    /// Returns the run as the bounds of a map's range.
    pub(super) fn bounds(&self) -> (Bound<&Key>, Bound<&Key>) {
        let from = &self.from;
        let from = if self.is_after { Bound::Excluded(from) } else { Bound::Included(from) };
        (from, self.end.as_ref().map_or(Bound::Unbounded, Bound::Excluded))
    }

    /// The same keys after this one.
    #[must_use]
    pub(super) fn after(self, key: impl Into<Key>) -> Self {
        Self { from: key.into(), is_after: true, ..self }
    }

    #[must_use]
    pub(super) fn descending(self) -> Self {
        Self { is_descending: true, ..self }
    }
}

/// Row of a message, and the number of the call that a node has reported, if one is under way.
pub(super) type MessageRow = (Vec<u8>, Option<u32>);

pub(super) type KeyedRow = (Key, Vec<u8>);

#[derive(Debug, Clone)]
pub(super) struct NewRow {
    pub(super) row: Vec<u8>,
    /// The organisation of the row, in tables that keep it.
    pub(super) organisation: Option<OrganisationId>,
}

impl NewRow {
    /// Finds out the organisation of a row. A row that cannot be read has none.
    pub(super) fn of(table: Table, key: &Key, row: Vec<u8>) -> Self {
        let id = key.number(0);
        let organisation = match table {
            Table::ApiKeys => decode_api_key(id, &row).ok().map(|key| key.organisation),
            Table::Webhooks => decode_webhook(id, &row).ok().map(|webhook| webhook.organisation),
            Table::Messages => organisation_of(&row),
            _ => None,
        };
        Self { row, organisation }
    }
}

/// Returns a row that is kept for a while from `at` on.
pub(super) fn timed(at: Timestamp, row: &[u8]) -> Vec<u8> {
    [at.unix_millis().to_be_bytes().as_slice(), row].concat()
}

/// Returns the time since which a row is kept, and the row.
pub(super) fn split_timed(timed: &[u8]) -> (Timestamp, &[u8]) {
    let (at, row) = timed.split_first_chunk().unwrap_or((&[0; 8], &[]));
    (Timestamp::from_unix_millis(u64::from_be_bytes(*at)), row)
}

/// Reason why a rule stops before its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// The engine has not read a row that the rule asked for. It reads the row and runs the rule
    /// again.
    Unread,
    /// A row that the rule needs cannot be read.
    Damaged(DamagedRow),
    /// The engine cannot continue. It keeps the reason.
    Failed,
}

impl From<DamagedRow> for Stop {
    fn from(row: DamagedRow) -> Self {
        Self::Damaged(row)
    }
}

pub(super) trait Rows {
    fn get(&mut self, table: Table, key: &Key) -> Result<Option<Vec<u8>>, Stop>;

    /// Returns the rows of a run in its order, at most `limit`. The rule's [`Lock`], or a row that
    /// the rule has read before, guards them.
    fn range(
        &mut self,
        table: Table,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<KeyedRow>, Stop>;

    /// Puts a row, or replaces the one that is there.
    fn put(&mut self, table: Table, key: &Key, row: &[u8]) -> Result<(), Stop>;

    /// Removes a row if it is there.
    fn remove(&mut self, table: Table, key: &Key) -> Result<(), Stop>;

    /// Reads rows that the rule is about to ask for, so that the rule runs again once and not for
    /// each.
    fn read_ahead(&mut self, rows: &[(Table, Key)]) -> Result<(), Stop>;

    /// Removes the oldest of a table's timed rows if there are more than `most`, or at least as
    /// many and one is about to be put.
    fn make_room(&mut self, table: Table, most: usize, what: &'static str) -> Result<(), Stop>;

    /// Returns a number; 0 if it was not set yet.
    fn counter(&mut self, counter: Counter) -> Result<u64, Stop>;

    fn set_counter(&mut self, counter: Counter, value: u64) -> Result<(), Stop>;

    /// Returns the last position in the feed. Later commits are behind it.
    fn feed_end(&mut self) -> Result<FeedPosition, Stop>;

    /// Adds an entry to the feed of the message's organisation.
    fn report(
        &mut self,
        message: &Message,
        change: ReportedChange,
        now: Timestamp,
    ) -> Result<(), Stop>;

    /// Notes that a message is no longer pending.
    fn end_pending(&mut self, id: MessageId) -> Result<(), Stop>;

    /// Notes that no call for a pending message is under way.
    fn end_call(&mut self, id: MessageId);

    /// Finds a message by the provider's id that was accepted within [`SEARCH_WINDOW`] of
    /// `accepted_at`.
    ///
    /// [`SEARCH_WINDOW`]: crate::transitions::SEARCH_WINDOW
    fn find_sent(
        &mut self,
        ses_message_id: &str,
        accepted_at: Timestamp,
    ) -> Result<Option<MessageId>, Stop>;

    /// Notes the provider's id of a message.
    fn add_sent(
        &mut self,
        id: MessageId,
        ses_message_id: &str,
        sent_at: Timestamp,
    ) -> Result<(), Stop>;

    /// Counts something of an organisation once the transaction is durable.
    fn count(&mut self, organisation: OrganisationId, increment: Increment);

    /// Organisations, keys, domains and endpoints as of the last commit that changed them.
    fn directory(&self) -> Arc<OrganisationIndex>;

    /// Values in memory: the place at which rows that cannot be read are noted, and the messages that
    /// this process took up from the one before.
    fn memory(&self) -> &InMemory;
}

/// Returns the next number of a counter. No number is given twice.
pub(super) fn next_number(rows: &mut dyn Rows, counter: Counter) -> Result<u32, Stop> {
    let next = rows.counter(counter)? + 1;
    rows.set_counter(counter, next)?;
    Ok(u32::try_from(next).expect("fewer than four billion organisations and keys"))
}

/// Reads rows of one table [ahead](Rows::read_ahead).
pub(super) fn read_all(rows: &mut dyn Rows, table: Table, keys: &[Key]) -> Result<(), Stop> {
    rows.read_ahead(&keys.iter().map(|key| (table, key.clone())).collect::<Vec<_>>())
}

/// Adds the place of a row that cannot be read.
pub(super) trait InTable<T> {
    fn in_table(self, table: Table, id: impl std::fmt::Display) -> Result<T, DamagedRow>;
}

impl<T> InTable<T> for Result<T, RowError> {
    fn in_table(self, table: Table, id: impl std::fmt::Display) -> Result<T, DamagedRow> {
        self.map_err(|reason| DamagedRow::new(table.as_str(), id, &reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_keys_that_begin_with_its_prefix_and_no_other() {
        for number in [0, 1, 0xFF, 0xFFFF, 0x01FF_FFFF, u32::MAX - 1, u32::MAX] {
            let run = KeyRange::of(number);
            assert!(run.contains(&Key::from((number, 0_u64))), "{number}");
            assert!(run.contains(&Key::from((number, u64::MAX))), "{number}");
            if let Some(next) = number.checked_add(1) {
                assert!(!run.contains(&Key::from((next, 0_u64))), "{number}");
                assert_eq!(run.end.map(|end| end.number(0)), Some(next));
            }
            if let Some(before) = number.checked_sub(1) {
                assert!(!KeyRange::of(number).contains(&Key::from((before, u64::MAX))));
            }
        }
        let id = MessageId::from_bytes([0xFF; 16]);
        assert_eq!(KeyRange::of(id).end, None);
        let last = MessageId::from_bytes([[1; 8], [0xFF; 8]].concat().try_into().unwrap());
        let mut next = [0; 16];
        next[..8].copy_from_slice(&[1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(KeyRange::of(last).end.map(|end| end.id(0)), Some(MessageId::from_bytes(next)));
    }
}
