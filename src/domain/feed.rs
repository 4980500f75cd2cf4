//! Event feed: changes of an organisation's messages for its applications, in one fixed order.
//!
//! A position is an entry's place in that order, and holds the instant at which the entry was
//! recorded. So positions that are given after a backup was restored are after all those that were
//! given before, and no reader of the feed skips an entry.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::clock_corrections::WindowTime;
use crate::event::{Event, EventType};
use crate::id::{MessageId, OrganisationId};
use crate::likely::likely;
use crate::limits::RECORD_RETENTION;
use crate::message::Message;
use crate::time::Timestamp;
use crate::worded;

/// Bits of a position behind its instant: they number the entries of one millisecond.
const COUNTER_BITS: u32 = 20;

/// Place of an entry in the order of all entries of a data file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedPosition(u64);

impl FeedPosition {
    /// Place before every entry.
    pub const START: Self = Self(0);

    /// Returns the position with this number, as stored.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns its number, which sorts as positions do.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Returns the first position of an instant.
    pub const fn first_of(instant: Timestamp) -> Self {
        Self(instant.unix_millis() << COUNTER_BITS)
    }

    /// Returns the instant at which the entry was recorded, or a later one if the clock was set
    /// back.
    pub const fn instant(self) -> Timestamp {
        Timestamp::from_unix_millis(self.0 >> COUNTER_BITS)
    }

    /// Returns the position of an entry that is recorded at an instant, after this one.
    #[must_use]
    pub fn next(self, recorded_at: Timestamp) -> Self {
        Self(self.0 + 1).max(Self::first_of(recorded_at))
    }
}

worded! {
    /// Type of an entry (contract section 11).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum FeedEventType {
        /// The provider accepted the message.
        Sent = "email.sent",
        /// The message will not be sent.
        Failed = "email.failed",
        /// The message will not be sent, because a recipient became suppressed.
        Suppressed = "email.suppressed",
        /// The recipient's server accepted it.
        Delivery = "email.delivery",
        /// The message came back from the recipient's server.
        Bounce = "email.bounce",
        /// The recipient called it unwanted.
        Complaint = "email.complaint",
        /// SES accepted it, then refused to send it on.
        Reject = "email.reject",
        /// The recipient's server does not take it for now.
        DeliveryDelay = "email.delivery_delay",
    }
}

impl From<EventType> for FeedEventType {
    fn from(event_type: EventType) -> Self {
        match event_type {
            EventType::Delivery => Self::Delivery,
            EventType::Bounce => Self::Bounce,
            EventType::Complaint => Self::Complaint,
            EventType::Reject => Self::Reject,
            EventType::DeliveryDelay => Self::DeliveryDelay,
        }
    }
}

/// The text is none of the feed's types. Holds the type that was probably meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct NotAFeedEventType(Option<&'static str>);

impl fmt::Display for NotAFeedEventType {
    /// Writes the end of a sentence that begins with the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = FeedEventType::ALL.map(FeedEventType::as_str);
        write!(f, "must be one of {}", names.join(", "))?;
        self.0.iter().try_for_each(|likely| write!(f, "; did you mean `{likely}`?"))
    }
}

impl FromStr for FeedEventType {
    type Err = NotAFeedEventType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = || Self::ALL.into_iter().map(Self::as_str);
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| NotAFeedEventType(likely(text, known())))
    }
}

/// Set of types. The default is all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedTypes(u8);

impl FeedTypes {
    /// Set of every type.
    pub const ALL: Self = Self(u8::MAX);

    /// Returns true if the type is in the set.
    pub const fn contains(self, event_type: FeedEventType) -> bool {
        self.0 & 1 << event_type as u8 != 0
    }

    /// Returns the types of the set.
    pub fn iter(self) -> impl Iterator<Item = FeedEventType> {
        FeedEventType::ALL.into_iter().filter(move |event_type| self.contains(*event_type))
    }
}

impl Default for FeedTypes {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<FeedEventType> for FeedTypes {
    fn from_iter<T: IntoIterator<Item = FeedEventType>>(types: T) -> Self {
        Self(types.into_iter().fold(0, |set, event_type| set | 1 << event_type as u8))
    }
}

/// The change that an entry reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedChange {
    /// The provider accepted the message.
    Sent,
    /// The message failed for good.
    Failed,
    /// The message was suppressed.
    Suppressed,
    /// The provider reported an event.
    Observed(Event),
}

/// Entry of the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedEntry {
    /// Place of the entry in the order of all entries.
    pub position: FeedPosition,
    /// Time at which the change was recorded.
    pub recorded_at: Timestamp,
    /// The message, with the state that it had after the change.
    pub message: Message,
    /// The change that the entry reports.
    pub change: FeedChange,
}

impl FeedEntry {
    /// Its identifier, the same whenever and however it is read.
    pub const fn id(&self) -> FeedEventId {
        FeedEventId { position: self.position, message: self.message.id }
    }

    /// Type under which a client reads the entry.
    pub fn event_type(&self) -> FeedEventType {
        match &self.change {
            FeedChange::Sent => FeedEventType::Sent,
            FeedChange::Failed => FeedEventType::Failed,
            FeedChange::Suppressed => FeedEventType::Suppressed,
            FeedChange::Observed(event) => event.event_type().into(),
        }
    }
}

/// Identifier of an entry, shown as `evt_` and 48 hexadecimal digits. Identifiers of a data file
/// sort as its entries do, and no two data files have one in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedEventId {
    position: FeedPosition,
    message: MessageId,
}

/// Beginning of each identifier.
const ID_PREFIX: &str = "evt_";

impl FeedEventId {
    /// Place of the entry in the order of all entries.
    pub const fn position(&self) -> FeedPosition {
        self.position
    }
}

impl fmt::Display for FeedEventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = hex::encode(self.position.0.to_be_bytes());
        write!(f, "{ID_PREFIX}{position}{}", hex::encode(self.message.as_bytes()))
    }
}

/// The text is no identifier of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an event id; an event id is {ID_PREFIX} followed by 48 hexadecimal digits")]
pub struct NotAFeedEventId;

impl FromStr for FeedEventId {
    type Err = NotAFeedEventId;

    /// Accepts only the form in which identifiers are shown.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 24];
        let digits = text.strip_prefix(ID_PREFIX).ok_or(NotAFeedEventId)?;
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| NotAFeedEventId)?;
        let (position, message) = bytes.split_first_chunk().expect("there are 24");
        let message = *message.first_chunk().expect("16 are left");
        let position = FeedPosition(u64::from_be_bytes(*position));
        let id = Self { position, message: MessageId::from_bytes(message) };
        if id.to_string() == text { Ok(id) } else { Err(NotAFeedEventId) }
    }
}

/// Number that a data file, its backups and its compacted copies have in common, and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedId(pub u64);

/// Cursor of a reader: the last position that it has seen, and the time at which the reader got it.
/// Valid for 90 days, for the organisation and the data file that it was given for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedCursor {
    /// The last position that the reader has seen.
    pub after: FeedPosition,
    /// Time at which the reader got the cursor.
    pub given_at: Timestamp,
}

/// Bytes of a cursor: position, time, and the beginning of a digest.
const CURSOR_BYTES: usize = 8 + 8 + CHECK_BYTES;
const CHECK_BYTES: usize = 8;

/// Reason why a cursor is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// It was not given to this organisation, or not by this data file.
    #[error("is not a cursor that this service gave to your organisation")]
    Foreign,
    /// It was given 90 days ago or earlier.
    #[error(
        "is older than 90 days, so some of the events after it may be gone; leave it out to begin \
         with the oldest event"
    )]
    Old,
}

impl FeedCursor {
    /// Returns the text for a reader: letters, digits, `_` and `-`.
    pub fn encode(self, feed: FeedId, organisation: OrganisationId) -> String {
        let mut bytes = Vec::with_capacity(CURSOR_BYTES);
        bytes.extend_from_slice(&self.after.0.to_be_bytes());
        bytes.extend_from_slice(&self.given_at.unix_millis().to_be_bytes());
        bytes.extend_from_slice(&self.check(feed, organisation));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads the text that a reader returns at `window_now`.
    pub fn parse(
        text: &str,
        feed: FeedId,
        organisation: OrganisationId,
        window_now: &WindowTime,
    ) -> Result<Self, CursorError> {
        let mut bytes = [0; CURSOR_BYTES];
        match URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
            Ok(CURSOR_BYTES) => {}
            Ok(_) | Err(_) => return Err(CursorError::Foreign),
        }
        let (after, rest) = bytes.split_first_chunk().expect("there are 24");
        let (given_at, check) = rest.split_first_chunk().expect("16 are left");
        let after = FeedPosition(u64::from_be_bytes(*after));
        let given_at = Timestamp::from_unix_millis(u64::from_be_bytes(*given_at));
        let cursor = Self { after, given_at };
        if *check != cursor.check(feed, organisation) {
            return Err(CursorError::Foreign);
        }
        if window_now.is_past(given_at, RECORD_RETENTION) {
            return Err(CursorError::Old);
        }
        Ok(cursor)
    }

    /// Digest that only the data file's own number gives for this cursor and organisation.
    fn check(self, feed: FeedId, organisation: OrganisationId) -> [u8; CHECK_BYTES] {
        let mut digest = Sha256::new();
        digest.update(b"pillarbox feed cursor");
        digest.update(feed.0.to_be_bytes());
        digest.update(organisation.0.to_be_bytes());
        digest.update(self.after.0.to_be_bytes());
        digest.update(self.given_at.unix_millis().to_be_bytes());
        *digest.finalize().first_chunk().expect("a digest has 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
    const FEED: FeedId = FeedId(7);
    const ACME: OrganisationId = OrganisationId(1);

    #[test]
    fn positions_grow_also_if_the_clock_is_set_back() {
        let first = FeedPosition::START.next(NOON);
        assert_eq!(first.instant(), NOON);
        let second = first.next(NOON);
        let third = second.next(NOON.minus(Duration::from_hours(1)));
        assert!(first < second && second < third);
        assert_eq!(third.instant(), NOON);
        let millisecond = NOON.plus(Duration::from_millis(1));
        assert_eq!(third.next(millisecond), FeedPosition::first_of(millisecond));
        assert_eq!(FeedPosition::from_number(third.number()), third);
    }

    #[test]
    fn types_read_back_and_make_sets() {
        for event_type in FeedEventType::ALL {
            assert_eq!(event_type.as_str().parse(), Ok(event_type));
            assert!(FeedTypes::default().contains(event_type));
            let one = FeedTypes::from_iter([event_type, event_type]);
            assert_eq!(one.iter().collect::<Vec<_>>(), [event_type]);
        }
        assert_eq!("bounce".parse::<FeedEventType>(), Err(NotAFeedEventType(None)));
        let meant = Some("email.bounce");
        let unknown = "email.bounced".parse::<FeedEventType>().unwrap_err();
        assert_eq!(unknown, NotAFeedEventType(meant));
        let shown = unknown.to_string();
        assert!(shown.starts_with("must be one of email.sent, "), "{shown}");
        assert!(shown.ends_with("; did you mean `email.bounce`?"), "{shown}");
        assert_eq!(FeedEventType::ALL.into_iter().collect::<FeedTypes>(), FeedTypes::ALL);
    }

    #[test]
    fn ids_read_back_in_one_spelling_and_sort_as_positions() {
        let message = MessageId::first_of(NOON);
        let id = |position| FeedEventId { position, message };
        let (first, second) = (id(FeedPosition::first_of(NOON)), id(FeedPosition(u64::MAX)));
        assert_eq!(first.to_string().parse(), Ok(first));
        assert!(first.to_string() < second.to_string());
        let text = first.to_string();
        for bad in [&text[1..], &text[..51], &format!("{text}0"), &text.to_uppercase(), ""] {
            assert_eq!(bad.parse::<FeedEventId>(), Err(NotAFeedEventId), "{bad}");
        }
    }

    #[test]
    fn a_cursor_is_valid_for_90_days_for_its_own_organisation_and_file() {
        let cursor = FeedCursor { after: FeedPosition::START.next(NOON), given_at: NOON };
        let text = cursor.encode(FEED, ACME);
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
        let parse = |text: &str, feed, organisation, now: Timestamp| {
            FeedCursor::parse(text, feed, organisation, &now.into())
        };
        let end = NOON.plus(RECORD_RETENTION);
        let last = end.minus(Duration::from_millis(1));
        assert_eq!(parse(&text, FEED, ACME, last), Ok(cursor));
        assert_eq!(parse(&text, FEED, ACME, end), Err(CursorError::Old));
        assert_eq!(parse(&text, FeedId(8), ACME, NOON), Err(CursorError::Foreign));
        assert_eq!(parse(&text, FEED, OrganisationId(2), NOON), Err(CursorError::Foreign));
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert_eq!(parse(&other, FEED, ACME, NOON), Err(CursorError::Foreign), "{at}");
        }
        for bad in ["", "0", &text[1..], &format!("{text}A"), "ü"] {
            assert_eq!(parse(bad, FEED, ACME, NOON), Err(CursorError::Foreign), "{bad}");
        }
    }
}
