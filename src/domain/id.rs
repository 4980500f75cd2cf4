//! Identifiers: message ids that sort by acceptance, and the numbers of organisations and keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;

use uuid::{ContextV7, Uuid};

use crate::domain::time::Timestamp;

/// A message's identifier: a `UUIDv7`, shown in lower case with hyphens.
///
/// Ids order by acceptance within a process, so tables keyed by them grow at their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Uuid);

/// The text is not a message id in its one accepted spelling.
#[derive(Debug, thiserror::Error)]
#[error("not a message id")]
pub struct NotAMessageId;

impl MessageId {
    /// The id with these 16 bytes, as stored.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The 16 bytes, in an order that sorts as the ids do.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The smallest id of `instant`, or of the last one that an id can hold: a bound for ranges
    /// over time.
    pub fn first_of(instant: Timestamp) -> Self {
        let millis = instant.unix_millis().min((1 << 48) - 1);
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        Self::from_bytes(bytes)
    }

    /// The instant in the id (RFC 9562, section 5.7): that of acceptance, or a later one where the
    /// clock was set back or stood still.
    pub fn instant(&self) -> Timestamp {
        let mut millis = [0; 8];
        millis[2..].copy_from_slice(&self.as_bytes()[..6]);
        Timestamp::from_unix_millis(u64::from_be_bytes(millis))
    }
}

impl FromStr for MessageId {
    type Err = NotAMessageId;

    /// Accepts the canonical spelling alone, so that one message has one address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uuid = Uuid::try_parse(text).map_err(|_| NotAMessageId)?;
        let mut buffer = Uuid::encode_buffer();
        if uuid.hyphenated().encode_lower(&mut buffer) == text && uuid.get_version_num() == 7 {
            Ok(Self(uuid))
        } else {
            Err(NotAMessageId)
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// Makes message ids that grow strictly, also where the clock stands still or is set back.
#[derive(Debug, Default)]
pub struct MessageIds(Mutex<ContextV7>);

impl MessageIds {
    /// A generator with a freshly seeded counter.
    pub fn new() -> Self {
        Self(Mutex::new(ContextV7::new()))
    }

    /// The next id, for a message accepted at `now`.
    pub fn next(&self, now: Timestamp) -> MessageId {
        let seconds = now.unix_millis() / 1_000;
        let nanos = u32::try_from(now.unix_millis() % 1_000 * 1_000_000).expect("under a second");
        MessageId(Uuid::new_v7(uuid::Timestamp::from_unix(&self.0, seconds, nanos)))
    }
}

/// An organisation's number. Never given twice, also after the organisation is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrganisationId(pub u32);

/// An API key's number: what an operator names to revoke it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_though_the_clock_stands_still_or_goes_back() {
        let ids = MessageIds::new();
        let noon = Timestamp::from_unix_millis(1_800_000_000_000);
        let earlier = Timestamp::from_unix_millis(1_799_000_000_000);
        let mut last = ids.next(noon);
        for _ in 0..10_000 {
            for now in [noon, earlier] {
                let next = ids.next(now);
                assert!(next > last);
                last = next;
            }
        }
    }

    #[test]
    fn only_the_canonical_spelling_is_an_id() {
        let id = MessageIds::new().next(Timestamp::from_unix_millis(1_800_000_000_000));
        let text = id.to_string();
        assert_eq!(text.parse::<MessageId>().unwrap(), id);
        assert!(text.to_uppercase().parse::<MessageId>().is_err());
        assert!(text.replace('-', "").parse::<MessageId>().is_err());
        assert!(format!("{{{text}}}").parse::<MessageId>().is_err());
        assert!("".parse::<MessageId>().is_err());
    }

    #[test]
    fn an_instants_first_id_precedes_its_ids_and_follows_those_before() {
        let now = Timestamp::from_unix_millis(1_800_000_000_000);
        let ids = MessageIds::new();
        let before = ids.next(Timestamp::from_unix_millis(now.unix_millis() - 1));
        let at = ids.next(now);
        assert!(before < MessageId::first_of(now) && MessageId::first_of(now) <= at);
        assert_eq!(at.instant(), now);
    }
}
