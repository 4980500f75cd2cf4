//! The format of the arena: its head, the heads of its blocks and of its records.
//!
//! Each check is a hash whose seed is random and in the arena's head. So bytes that a client chose are
//! never taken for a head, and a scan follows lengths: it never searches.

use twox_hash::XxHash3_64;

use crate::{ArenaOwner, NotTaken};
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::message::{Acceptance, Cancellation, Failure, FailureCode};

/// Bytes of a block. The first block of the arena has its head.
pub(super) const BLOCK_BYTES: u64 = 256 * 1024;
/// Records begin at multiples of this.
pub(super) const ALIGNMENT: u64 = 16;

const MAGIC: &[u8; 16] = b"pillarbox bodies";
/// Version of the arena's format. A version of the service reads those of all earlier ones.
pub const VERSION: u32 = 2;

/// Seed of all checks of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seed(pub(super) u64);

/// The most bytes that are checked without an allocation.
const FEW_BYTES: usize = 192;

impl Seed {
    /// The check value of a head's parts.
    fn check(self, parts: &[&[u8]]) -> u64 {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > FEW_BYTES {
            return XxHash3_64::oneshot_with_seed(self.0, &parts.concat());
        }
        let (mut all, mut len) = ([0; FEW_BYTES], 0);
        for part in parts {
            all[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        XxHash3_64::oneshot_with_seed(self.0, &all[..len])
    }

    /// The check value of a record's content.
    pub(super) fn of_content(self, content: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.0, content)
    }
}

/// Head of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArenaHead {
    pub(super) owner: ArenaOwner,
    pub(super) seed: Seed,
    /// Origin of its times ([`Moments`](super::Moments)), if they count suspensions.
    pub(super) origin: Option<u64>,
}

impl ArenaHead {
    pub(super) const BYTES: usize = 80;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        self.encode_as(VERSION)
    }

    pub(super) fn encode_as(&self, version: u32) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..20].copy_from_slice(&version.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.owner.boot);
        bytes[40..56].copy_from_slice(&self.owner.store);
        bytes[56..64].copy_from_slice(&self.seed.0.to_le_bytes());
        let origin = self.origin.map_or(0, |origin| origin + 1);
        bytes[64..72].copy_from_slice(&origin.to_le_bytes());
        let check = self.seed.check(&[&bytes[..72]]);
        bytes[72..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, NotTaken> {
        if &bytes[..16] != MAGIC {
            return Err(NotTaken::Foreign);
        }
        let version = u32::from_le_bytes(part(bytes, 16));
        if version > VERSION {
            return Err(NotTaken::Newer { version });
        }
        let seed = Seed(u64::from_le_bytes(part(bytes, 56)));
        if seed.check(&[&bytes[..72]]) != u64::from_le_bytes(part(bytes, 72)) {
            return Err(NotTaken::Damaged);
        }
        Ok(Self {
            owner: ArenaOwner { boot: part(bytes, 24), store: part(bytes, 40) },
            seed,
            origin: u64::from_le_bytes(part(bytes, 64)).checked_sub(1),
        })
    }
}

/// Head of a run of blocks: one with many records, or as many as one large record needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHead {
    /// Blocks of the run.
    pub(super) blocks: u32,
    /// Random number of this use of the blocks. The checks of its records depend on it, so that
    /// what an earlier use left behind is never taken for one of them.
    pub(super) generation: u64,
}

impl BlockHead {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(&self, seed: Seed, block: u32) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        let check = seed.check(&[&block.to_le_bytes(), &bytes[..24]]);
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Returns `None` if no run begins at this block.
    pub(super) fn decode(bytes: &[u8], seed: Seed, block: u32) -> Option<Self> {
        let check = seed.check(&[&block.to_le_bytes(), &bytes[..24]]);
        let head = Self {
            blocks: u32::from_le_bytes(part(bytes, 0)),
            generation: u64::from_le_bytes(part(bytes, 8)),
        };
        (check == u64::from_le_bytes(part(bytes, 24)) && head.blocks > 0).then_some(head)
    }
}

/// Head of a record, apart from its live state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHead {
    pub(super) id: MessageId,
    pub(super) organisation: OrganisationId,
    pub(super) key: Option<KeyId>,
    /// Bytes of the encoded request.
    pub(super) request_len: u32,
    /// Bytes of the envelope, which follows.
    pub(super) envelope_len: u32,
    /// Time of acceptance, in nanoseconds of the monotonic clock of this boot.
    pub(super) accepted_at: u64,
    pub(super) content_check: u64,
}

/// Offset in a record of the mark that its message was cancelled: see [`CancelMark`].
pub(super) const CANCEL_MARK_AT: usize = 33;
/// Offset in a record at which the live state begins.
pub(super) const LIVE_AT: usize = 60;

impl RecordHead {
    /// Bytes before the content, live state included.
    pub(super) const BYTES: usize = 80;

    /// Bytes of the content.
    pub(super) fn content_len(&self) -> u64 {
        u64::from(self.request_len) + u64::from(self.envelope_len)
    }

    /// Bytes of a record with a content of this many, up to the position at which the next one may
    /// begin.
    pub(super) fn record_len(content_len: u64) -> u64 {
        (Self::BYTES as u64 + content_len).next_multiple_of(ALIGNMENT)
    }

    /// Writes all but the mark of a cancellation and the live state, which stay zero.
    pub(super) fn encode(&self, seed: Seed, generation: u64) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.request_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.envelope_len.to_le_bytes());
        bytes[8..24].copy_from_slice(self.id.as_bytes());
        bytes[24..28].copy_from_slice(&self.organisation.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.key.map_or(0, |key| key.0).to_le_bytes());
        bytes[32] = u8::from(self.key.is_some());
        bytes[36..44].copy_from_slice(&self.accepted_at.to_le_bytes());
        bytes[44..52].copy_from_slice(&self.content_check.to_le_bytes());
        let check = Self::check(&bytes, seed, generation);
        bytes[52..60].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Returns `None` if no record of this use of the block begins here.
    pub(super) fn decode(bytes: &[u8], seed: Seed, generation: u64) -> Option<Self> {
        let bytes = bytes.get(..Self::BYTES)?;
        if Self::check(bytes, seed, generation) != u64::from_le_bytes(part(bytes, 52)) {
            return None;
        }
        Some(Self {
            id: MessageId::from_bytes(part(bytes, 8)),
            organisation: OrganisationId(u32::from_le_bytes(part(bytes, 24))),
            key: Self::key_of(bytes),
            request_len: u32::from_le_bytes(part(bytes, 0)),
            envelope_len: u32::from_le_bytes(part(bytes, 4)),
            accepted_at: u64::from_le_bytes(part(bytes, 36)),
            content_check: u64::from_le_bytes(part(bytes, 44)),
        })
    }

    /// Reads the key of a head whose check value is right.
    pub(super) fn key_of(bytes: &[u8]) -> Option<KeyId> {
        (bytes[32] == 1).then(|| KeyId(u32::from_le_bytes(part(bytes, 28))))
    }

    /// The check value of a head, which may be marked as cancelled later.
    fn check(bytes: &[u8], seed: Seed, generation: u64) -> u64 {
        let behind = CANCEL_MARK_AT + CancelMark::BYTES;
        seed.check(&[&generation.to_le_bytes(), &bytes[..CANCEL_MARK_AT], &bytes[behind..52]])
    }

    /// Makes the record that begins here one of another use of blocks.
    pub(super) fn move_to(record: &mut [u8], seed: Seed, generation: u64) {
        let check = Self::check(record, seed, generation);
        record[52..60].copy_from_slice(&check.to_le_bytes());
    }
}

/// Mark of a message that is not to be sent again, independent of its call's result. It is apart
/// from the live state, which others write at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CancelMark(pub(super) Option<Cancellation>);

impl CancelMark {
    pub(super) const BYTES: usize = 3;

    pub(super) fn encode(self, seed: Seed, id: MessageId) -> [u8; Self::BYTES] {
        let code = match self.0 {
            None => return [0; Self::BYTES],
            Some(Cancellation::ByOperator) => 1,
            Some(Cancellation::OrganisationRemoved) => 2,
            Some(Cancellation::DomainRemoved) => 3,
            Some(Cancellation::ByApplication) => 4,
        };
        let [first, second, ..] = seed.check(&[id.as_bytes(), &[code]]).to_le_bytes();
        [code, first, second]
    }

    /// Reads the mark of a record that begins here. Returns `None` if it is damaged.
    pub(super) fn decode(record: &[u8], seed: Seed, id: MessageId) -> Option<Self> {
        let bytes: [u8; Self::BYTES] = part(record, CANCEL_MARK_AT);
        let mark = Self(match bytes[0] {
            0 => None,
            1 => Some(Cancellation::ByOperator),
            2 => Some(Cancellation::OrganisationRemoved),
            3 => Some(Cancellation::DomainRemoved),
            4 => Some(Cancellation::ByApplication),
            _ => return None,
        });
        (mark.encode(seed, id) == bytes).then_some(mark)
    }
}

/// Live state of a record, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveRecord {
    pub(super) attempts: u32,
    pub(super) acceptance: Acceptance,
    /// Time of the next attempt, in nanoseconds of the monotonic clock of this boot.
    pub(super) due: u64,
    pub(super) call: CallRecord,
}

/// A record's call, as it is written. The known end lies in the place of the content, which is not
/// needed any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallRecord {
    Idle,
    UnderWay,
    /// The provider accepted the message: time in milliseconds, and its id.
    Answered(u64, String),
    /// The message has failed.
    Failed(Failure),
}

const IDLE: u8 = 0;
const UNDER_WAY: u8 = 1;
const ANSWERED: u8 = 2;
const FAILED: u8 = 3;
/// The longest end that is kept. The provider's ids have 60 bytes, and its longest explanations about
/// 300.
const MAX_END_BYTES: usize = 512;
/// Stands between the texts of an end.
const SEPARATOR: char = '\0';

impl CallRecord {
    /// True if what is known of its end lies in the place of the content.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Answered(..) | Self::Failed(_))
    }

    /// Returns the byte for its kind, and the known end: at most `room` bytes, or `None` if that is
    /// too little. A long explanation of a failure is cut.
    fn encode(&self, room: usize) -> Option<(u8, Vec<u8>)> {
        let room = room.min(MAX_END_BYTES);
        Some(match self {
            Self::Idle => (IDLE, Vec::new()),
            Self::UnderWay => (UNDER_WAY, Vec::new()),
            Self::Answered(at, ses_id) => {
                let end = [at.to_le_bytes().as_slice(), ses_id.as_bytes()].concat();
                (ANSWERED, Some(end).filter(|end| end.len() <= room)?)
            }
            Self::Failed(Failure { code, message, provider_code }) => {
                let (code, provider) = (code.as_str(), provider_code.as_deref().unwrap_or(""));
                let mut end = format!("{code}{SEPARATOR}{provider}{SEPARATOR}");
                let left = room.checked_sub(end.len())?;
                end.push_str(&message[..message.floor_char_boundary(left)]);
                (FAILED, end.into_bytes())
            }
        })
    }

    /// Returns `None` if no version of the service has written it.
    fn decode(state: u8, end: &[u8]) -> Option<Self> {
        Some(match state {
            IDLE => Self::Idle,
            UNDER_WAY => Self::UnderWay,
            ANSWERED => {
                let (at, ses_id) = end.split_at_checked(8)?;
                let ses_id = String::from_utf8(ses_id.to_vec()).ok()?;
                Self::Answered(u64::from_le_bytes(part(at, 0)), ses_id)
            }
            FAILED => {
                let mut texts = str::from_utf8(end).ok()?.splitn(3, SEPARATOR);
                let code = texts.next()?;
                let code = FailureCode::ALL.into_iter().find(|known| known.as_str() == code)?;
                let provider_code = texts.next()?;
                let provider_code = (!provider_code.is_empty()).then(|| provider_code.to_owned());
                Self::Failed(Failure { code, message: texts.next()?.to_owned(), provider_code })
            }
            _ => return None,
        })
    }
}

impl LiveRecord {
    /// Bytes from [`LIVE_AT`] to the content.
    const BYTES: usize = RecordHead::BYTES - LIVE_AT;

    /// Writes the live state and, of a call that is over, what takes the place of the beginning of the
    /// content, which has `content_len` bytes. Returns `None` if the content is too short for that.
    pub(super) fn encode(
        &self,
        seed: Seed,
        id: MessageId,
        content_len: u64,
    ) -> Option<([u8; Self::BYTES], Vec<u8>)> {
        let room = usize::try_from(content_len).unwrap_or(usize::MAX);
        let (state, end) = self.call.encode(room)?;
        let mut bytes = [0; Self::BYTES];
        bytes[4..8].copy_from_slice(&self.attempts.to_le_bytes());
        bytes[8] = state;
        bytes[9] = u8::from(self.acceptance == Acceptance::Possible);
        let end_len = u16::try_from(end.len()).expect("an end has at most 512 bytes");
        bytes[10..12].copy_from_slice(&end_len.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.due.to_le_bytes());
        let check = live_check(seed, id, &bytes, &end);
        bytes[..4].copy_from_slice(&check);
        Some((bytes, end))
    }

    /// Reads the live state of a record that begins here. Returns `None` if its check value is wrong.
    pub(super) fn decode(record: &[u8], seed: Seed, id: MessageId) -> Option<Self> {
        let live = record.get(LIVE_AT..)?;
        let end_len = usize::from(u16::from_le_bytes(part(live.get(..Self::BYTES)?, 10)));
        let (live, end) = live.get(..Self::BYTES + end_len)?.split_at(Self::BYTES);
        if live_check(seed, id, live, end) != live[..4] {
            return None;
        }
        let call = CallRecord::decode(live[8], end)?;
        let acceptance = if live[9] == 0 { Acceptance::Excluded } else { Acceptance::Possible };
        let attempts = u32::from_le_bytes(part(live, 4));
        Some(Self { attempts, acceptance, due: u64::from_le_bytes(part(live, 12)), call })
    }
}

fn live_check(seed: Seed, id: MessageId, live: &[u8], end: &[u8]) -> [u8; 4] {
    let check = seed.check(&[id.as_bytes(), &live[4..], end]).to_le_bytes();
    part(&check, 0)
}

/// The `N` bytes at a position.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("a head has all of its bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEED: Seed = Seed(7);
    const ID: MessageId = MessageId::from_bytes([3; 16]);

    fn record() -> RecordHead {
        RecordHead {
            id: ID,
            organisation: OrganisationId(7),
            key: Some(KeyId(9)),
            request_len: 3000,
            envelope_len: 40,
            accepted_at: 5,
            content_check: 77,
        }
    }

    #[test]
    fn heads_read_as_they_were_written() {
        for origin in [None, Some(0), Some(7)] {
            let owner = ArenaOwner { boot: [1; 16], store: [2; 16] };
            let head = ArenaHead { owner, seed: SEED, origin };
            assert_eq!(ArenaHead::decode(&head.encode()).unwrap(), head);
        }
        let block = BlockHead { blocks: 3, generation: 8 };
        assert_eq!(BlockHead::decode(&block.encode(SEED, 5), SEED, 5), Some(block));
        assert_eq!(BlockHead::decode(&block.encode(SEED, 5), SEED, 6), None, "of another block");
        for key in [None, Some(KeyId(0)), Some(KeyId(1))] {
            let record = RecordHead { key, ..record() };
            assert_eq!(RecordHead::decode(&record.encode(SEED, 8), SEED, 8), Some(record));
        }
        assert_eq!(RecordHead::decode(&record().encode(SEED, 8), SEED, 9), None, "of another use");
    }

    #[test]
    fn a_newer_or_foreign_arena_is_told_apart_from_a_damaged_one() {
        let head = ArenaHead {
            owner: ArenaOwner { boot: [1; 16], store: [2; 16] },
            seed: SEED,
            origin: None,
        };
        let changed = |at: usize, to: u8| {
            let mut bytes = head.encode();
            bytes[at] = to;
            ArenaHead::decode(&bytes).unwrap_err()
        };
        assert_eq!(changed(0, b'x'), NotTaken::Foreign);
        assert_eq!(changed(16, 3), NotTaken::Newer { version: 3 });
        assert_eq!(changed(30, 9), NotTaken::Damaged);
    }

    #[test]
    fn a_cancellation_is_read_as_it_was_marked_and_no_bit_of_it_may_change() {
        use Cancellation::{ByApplication, ByOperator, DomainRemoved, OrganisationRemoved};
        let reasons = [ByOperator, OrganisationRemoved, DomainRemoved, ByApplication];
        for why in [None].into_iter().chain(reasons.map(Some)) {
            let mark = CancelMark(why);
            let mut bytes = record().encode(SEED, 8);
            let mark_at = CANCEL_MARK_AT..CANCEL_MARK_AT + CancelMark::BYTES;
            bytes[mark_at.clone()].copy_from_slice(&mark.encode(SEED, ID));
            assert_eq!(RecordHead::decode(&bytes, SEED, 8), Some(record()));
            assert_eq!(CancelMark::decode(&bytes, SEED, ID), Some(mark));
            for place in mark_at {
                for bit in 0..8 {
                    let mut bytes = bytes;
                    bytes[place] ^= 1 << bit;
                    assert_eq!(CancelMark::decode(&bytes, SEED, ID), None);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn live_states_read_as_they_were_written_and_no_byte_may_change(
            attempts: u32, due: u64, possible: bool, state in 0_u8..4, at: u64,
            ses_id in "[0-9a-f-]{0,80}", message in ".{0,120}", place: prop::sample::Index, bit in 0_u32..8,
        ) {
            let call = match state {
                IDLE => CallRecord::Idle,
                UNDER_WAY => CallRecord::UnderWay,
                ANSWERED => CallRecord::Answered(at, ses_id),
                _ => CallRecord::Failed(Failure {
                    code: FailureCode::ProviderRejected,
                    message,
                    provider_code: Some(ses_id).filter(|code| !code.is_empty()),
                }),
            };
            let acceptance = if possible { Acceptance::Possible } else { Acceptance::Excluded };
            let live = LiveRecord { attempts, acceptance, due, call };
            let mut bytes = record().encode(SEED, 8).to_vec();
            bytes.truncate(LIVE_AT);
            let (state, end) = live.encode(SEED, ID, 3040).unwrap();
            bytes.extend_from_slice(&[&state[..], &end].concat());
            prop_assert_eq!(LiveRecord::decode(&bytes, SEED, ID), Some(live));
            prop_assert_eq!(RecordHead::decode(&bytes, SEED, 8), Some(record()));

            let place = LIVE_AT + place.index(bytes.len() - LIVE_AT);
            bytes[place] ^= 1 << bit;
            prop_assert_eq!(LiveRecord::decode(&bytes, SEED, ID), None);
        }
    }
}
