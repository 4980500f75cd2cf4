//! Bodies of pending messages: the arena, anonymous memory that can outlive its process.
//!
//! It has the only copy of a body while the message waits. A record also has what a later process
//! needs: the organisation, the number of attempts, and the state of the call. The arena lives as
//! long as a process holds its descriptor: a service manager, or the program that is executed in
//! the place of this one. Nothing of it is mapped or has a name in a file system.
//!
//! A record is whole before its message is committed, and its room is free again once the message's
//! final state is durable. Only the store knows which of the found records are still pending.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use tokio::time::Instant;
use tracing::error;

use pillarbox_domain::attempt::RequestParts;
use pillarbox_domain::id::{KeyId, MessageId, OrganisationId};
use pillarbox_domain::message::{Acceptance, Cancellation, Failure};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pillarbox_runtime::sync::{Mutex, MutexGuard, between_accesses};

use layout::{
    ArenaHead, BLOCK_BYTES, BlockHead, CANCEL_MARK_AT, CallRecord, CancelMark, LIVE_AT, LiveRecord,
    RecordHead, Seed,
};
use room::{Freed, Memory, Place, Placed, Room, Size, Slot, block_offset};
use scan::Found;

pub use layout::VERSION as ARENA_FORMAT;
#[cfg(any(test, feature = "testing"))]
pub use moments::suspension;
pub use moments::{Moment, Moments};
pub use room::Usage;

mod layout;
pub(crate) mod moments;
mod room;
mod scan;

/// Name of the arena, as `/proc` lists it.
const NAME: &str = "pillarbox-bodies";

/// The process that an arena belongs to, and its successors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaOwner {
    /// The machine's boot: times in the arena count from it.
    pub boot: [u8; 16],
    /// The data file, or the cluster and the node.
    pub store: [u8; 16],
}

/// Reason why an arena cannot be taken over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It is something else.
    #[error("they were not made by pillarbox")]
    Foreign,
    /// A newer version has made it.
    #[error("a newer version of pillarbox made them (format {version})")]
    Newer {
        /// Version of the format.
        version: u32,
    },
    /// Its head was changed.
    #[error("their header is damaged")]
    Damaged,
    /// It was made before the machine was started.
    #[error("they were made before the last boot of this machine")]
    OtherBoot,
    /// It belongs to other data.
    #[error("they belong to another data directory, database or node")]
    OtherStore,
    /// It cannot be read.
    #[error("they cannot be read: {0}")]
    Io(String),
}

impl From<io::Error> for NotTaken {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

/// Body to be put into the arena.
#[derive(Debug, Clone, Copy)]
pub struct NewBody<'a> {
    /// Id of the message.
    pub id: MessageId,
    /// Organisation of the message.
    pub organisation: OrganisationId,
    /// The API key that posted it, if it came with one.
    pub key: Option<KeyId>,
    /// Time of acceptance.
    pub accepted_at: Instant,
    /// The encoded request, and the envelope behind it.
    pub content: &'a [u8],
    /// Bytes of the request.
    pub request_len: usize,
}

/// State of a message that a later process has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveState {
    /// Calls to the provider that were started.
    pub attempts: u32,
    /// Says if one of those that have ended may have been accepted.
    pub acceptance: Acceptance,
    /// Time of the next attempt.
    pub due: Instant,
    /// State of the latest call.
    pub call: CallState,
}

/// Call of a pending message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallState {
    /// None is under way.
    Idle,
    /// One is under way.
    UnderWay,
    /// The provider accepted the message, and that is not in the store yet.
    Answered {
        /// Id that SES gave the message.
        ses_message_id: String,
        /// Time at which the provider accepted it.
        sent_at: Timestamp,
    },
    /// The message has failed, and that is not in the store yet.
    Failed(Failure),
}

/// Body that was found in an arena, with its message's state.
#[derive(Debug)]
pub struct Survivor {
    /// Id of the message.
    pub id: MessageId,
    /// Organisation of the message.
    pub organisation: OrganisationId,
    /// The API key that posted it, if it came with one.
    pub key: Option<KeyId>,
    /// Time of acceptance.
    pub accepted_at: Instant,
    /// State at the end of the earlier process.
    pub live: LiveState,
    /// Reason not to send it again, if it was cancelled while its call was under way.
    pub cancellation: Option<Cancellation>,
    /// Body in the arena.
    pub body: Body,
}

/// The arena. Clones are the same one.
#[derive(Clone)]
pub struct BodyStore(Arc<Arena>);

struct Arena {
    file: File,
    owner: ArenaOwner,
    seed: Seed,
    /// True while this process alone decides which bodies are there. If it is false, what is dropped
    /// stays in the memory: an earlier or later process has it as well.
    is_owned: AtomicBool,
    room: Mutex<Room>,
    /// Number of moves of records. Changes before the record's old place is used again.
    moves: AtomicU64,
    moments: Moments,
}

/// A body in the arena. Its room is free again once no holder is left.
pub struct Body {
    arena: Arc<Arena>,
    slot: Slot,
    hold: Hold,
}

impl RequestParts for Body {
    fn len_bytes(&self) -> usize {
        self.request_len()
    }

    fn part(&self, from: usize, len: usize) -> Option<Bytes> {
        match self.read_part(from, len) {
            Ok(part) => Some(part.into()),
            Err(error) => {
                error!(%error, "a body cannot be read");
                None
            }
        }
    }
}

/// Duty of a handle: it has to let its body go, or another one has it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Held,
    HandedOn,
}

/// A body in the arena, in as few bytes as can be: for messages that wait. Its room is free again
/// only after [`BodyStore::body`] has made a body of it and that has no holder left.
#[derive(Debug)]
#[must_use]
pub struct HeldBody(Slot);

impl BodyStore {
    /// Makes an empty arena.
    pub fn create(owner: ArenaOwner) -> io::Result<Self> {
        let seed = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let origin = Some(Moments::new(None).origin());
        let head = ArenaHead { owner, seed: Seed(seed), origin };
        let file = File::from(new_memory()?);
        file.write_all_at(&head.encode(), 0)?;
        Ok(Self::with(file, head, Room::default()))
    }

    /// Makes an empty arena that ends with this process.
    pub fn of_this_process() -> io::Result<Self> {
        Self::create(ArenaOwner { boot: [0; 16], store: [0; 16] })
    }

    /// Takes over the arena of an earlier process, with the bodies in it. A record that is not whole
    /// is left out. Until [`BodyStore::own`], nothing in it is freed: a start that fails leaves all to
    /// the next one.
    pub fn take_over(fd: OwnedFd, owner: ArenaOwner) -> Result<(Self, Vec<Survivor>), NotTaken> {
        let file = File::from(fd);
        let head = read_head(&file)?;
        if head.owner.boot != owner.boot {
            return Err(NotTaken::OtherBoot);
        }
        if head.owner.store != owner.store {
            return Err(NotTaken::OtherStore);
        }
        let mut room = Room::default();
        let found = without_copies(scan::scan(&file, head.seed, &mut room)?, &mut room);
        room.found_all();
        let store = Self::with(file, head, room);
        store.leave();
        let arena = &store.0;
        let survivors = found.into_iter().map(|found| Survivor {
            id: found.head.id,
            organisation: found.head.organisation,
            key: found.head.key,
            accepted_at: arena.moments.instant(Moment(found.head.accepted_at)),
            live: arena.live(found.live),
            cancellation: found.cancelled.0,
            body: Body::new(arena, found.slot),
        });
        let survivors = survivors.collect();
        Ok((store, survivors))
    }

    /// Counts the messages of an arena that may be pending: the store alone knows which are final.
    pub fn count_waiting(fd: OwnedFd) -> Result<usize, NotTaken> {
        let file = File::from(fd);
        let head = read_head(&file)?;
        let mut room = Room::default();
        let found = without_copies(scan::scan(&file, head.seed, &mut room)?, &mut room);
        let is_over = |found: &Found| found.live.as_ref().is_some_and(|live| live.call.is_over());
        Ok(found.iter().filter(|found| !is_over(found)).count())
    }

    fn with(file: File, ArenaHead { owner, seed, origin }: ArenaHead, room: Room) -> Self {
        let (is_owned, room, moves) = (AtomicBool::new(true), Mutex::new(room), AtomicU64::new(0));
        let moments = Moments::new(origin);
        Self(Arc::new(Arena { file, owner, seed, is_owned, room, moves, moments }))
    }

    /// Goes on in the place of the earlier process: from here on, dropped bodies are deleted, and
    /// the arena has the present format, because only that can read new records.
    pub fn own(&self) {
        let Arena { owner, seed, moments, .. } = *self.0;
        let head = ArenaHead { owner, seed, origin: Some(moments.origin()) };
        if let Err(error) = self.0.write(&head.encode(), 0) {
            error!(%error, "the format of the bodies' memory could not be recorded");
        }
        self.0.is_owned.store(true, Ordering::SeqCst);
        let freed = {
            let mut room = self.0.room();
            let unused = room.take_all_free();
            unused.into_iter().chain(room.free_empty()).collect::<Vec<_>>()
        };
        for freed in freed {
            self.0.give_back(freed);
        }
    }

    /// Leaves the bodies to a later process: what is dropped from here on stays for it.
    pub fn leave(&self) {
        self.0.is_owned.store(false, Ordering::SeqCst);
    }

    /// Measure of the times in it.
    pub fn moments(&self) -> Moments {
        self.0.moments
    }

    /// Puts a body in. Fails if there is no memory for it.
    pub fn put(&self, new: &NewBody<'_>) -> io::Result<Body> {
        let content = new.content;
        let len = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
        let head = RecordHead {
            id: new.id,
            organisation: new.organisation,
            key: new.key,
            request_len: len(new.request_len)?,
            envelope_len: len(content.len() - new.request_len)?,
            accepted_at: self.0.moments.moment(new.accepted_at).0,
            content_check: self.0.seed.of_content(content),
        };
        let live = LiveRecord {
            attempts: 0,
            acceptance: Acceptance::Excluded,
            due: head.accepted_at,
            call: CallRecord::Idle,
        };
        let live = live.encode(self.0.seed, new.id, content.len() as u64);
        let (live, _) = live.expect("a call that has not begun takes no room");
        let mut room = self.0.room();
        if room.is_full_for(content.len() as u64) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let placed = room.put(head.request_len, head.envelope_len, random);
        let body = Body::new(&self.0, placed.slot);
        let mut bytes = head.encode(self.0.seed, placed.generation);
        bytes[LIVE_AT..].copy_from_slice(&live);
        let written = match placed.size {
            // Others wait: a record behind this one is found by the length in the head of this one, and
            // it may be moved once they go on.
            Size::Small => {
                let written = self.0.begin(&placed, [&bytes, content]);
                if written.is_err() {
                    room.give_up(&placed);
                }
                drop(room);
                written
            }
            // No other thread writes to its blocks, and it is not moved, so others need not wait
            // for it.
            Size::Large => {
                let begun = self.0.begin(&placed, [&bytes, &[]]);
                drop(room);
                begun.and_then(|()| self.0.write(content, placed.place.content()))
            }
        };
        if let Some(freed) = placed.freed {
            self.0.give_back(freed);
        }
        // The body is dropped after the lock, which it takes.
        written.map(|()| body)
    }

    /// Makes a handle of a body that is held.
    #[expect(clippy::needless_pass_by_value, reason = "its hold becomes the handle's")]
    pub fn body(&self, held: HeldBody) -> Body {
        Body::new(&self.0, held.0)
    }

    /// Makes one more handle of a body that is held.
    pub fn hold(&self, held: &HeldBody) -> Body {
        self.0.room().hold(held.0);
        Body::new(&self.0, held.0)
    }

    /// Use of the arena.
    pub fn usage(&self) -> Usage {
        self.0.room().usage()
    }
}

impl AsFd for BodyStore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl Body {
    /// A handle that has a hold already.
    fn new(arena: &Arc<Arena>, slot: Slot) -> Self {
        Self { arena: Arc::clone(arena), slot, hold: Hold::Held }
    }

    /// Reduces it to a handle of a few bytes.
    pub fn into_held(mut self) -> HeldBody {
        self.hold = Hold::HandedOn;
        HeldBody(self.slot)
    }

    /// Bytes of the encoded request.
    pub fn request_len(&self) -> usize {
        usize::try_from(self.arena.room().place(self.slot).request_len).expect("it was in memory")
    }

    /// Bytes of the encoded request and the envelope.
    pub fn content_len(&self) -> usize {
        usize::try_from(self.arena.room().place(self.slot).content_len()).expect("it was in memory")
    }

    /// Reads the encoded request.
    pub fn request(&self) -> io::Result<Vec<u8>> {
        self.read(|place| (place.content(), u64::from(place.request_len)))
    }

    /// Reads a part of the encoded request, `len` bytes from `from` on.
    pub fn read_part(&self, from: usize, len: usize) -> io::Result<Vec<u8>> {
        self.read(|place| (place.content() + from as u64, len as u64))
    }

    /// Reads the envelope's text.
    pub fn envelope(&self) -> io::Result<String> {
        let text = self.read(|place| {
            (place.content() + u64::from(place.request_len), u64::from(place.envelope_len))
        })?;
        String::from_utf8(text).map_err(io::Error::other)
    }

    /// Reads the API key that posted the message, if it came with one.
    pub fn key(&self) -> io::Result<Option<KeyId>> {
        let head = self.read(|place| (place.offset(), RecordHead::BYTES as u64))?;
        Ok(RecordHead::key_of(&head))
    }

    /// Reads a part of its record: the position in the arena, and the length.
    fn read(&self, part: impl Fn(&Place) -> (u64, u64)) -> io::Result<Vec<u8>> {
        let arena = &self.arena;
        loop {
            let room = arena.room();
            let (at, len) = part(&room.place(self.slot));
            let moves = arena.moves.load(Ordering::SeqCst);
            // Others need not wait for this read. If the record moves meanwhile, it is read again.
            drop(room);
            let bytes = arena.read(at, usize::try_from(len).map_err(io::Error::other)?)?;
            if arena.moves.load(Ordering::SeqCst) == moves {
                return Ok(bytes);
            }
        }
    }

    /// Writes the state of its message. The known end takes the place of the content.
    pub fn set_live(&self, id: MessageId, live: &LiveState) -> io::Result<()> {
        let call = match &live.call {
            CallState::Idle => CallRecord::Idle,
            CallState::UnderWay => CallRecord::UnderWay,
            CallState::Answered { ses_message_id, sent_at } => {
                CallRecord::Answered(sent_at.unix_millis(), ses_message_id.clone())
            }
            CallState::Failed(failure) => CallRecord::Failed(failure.clone()),
        };
        let Moment(due) = self.arena.moments.moment(live.due);
        let live = LiveRecord { attempts: live.attempts, acceptance: live.acceptance, due, call };
        let (bytes, end) = live
            .encode(self.arena.seed, id, self.content_len() as u64)
            .ok_or_else(|| io::Error::other("the end of its call is longer than the message"))?;
        let room = self.arena.room();
        let place = room.place(self.slot);
        let at = place.offset() + LIVE_AT as u64;
        if end.is_empty() {
            self.arena.write(&bytes, at)
        } else {
            // In one write: a kill finds both or neither.
            self.arena.write(&[&bytes[..], &end].concat(), at)
        }
    }

    /// Writes down that its message is not to be sent again.
    pub fn cancel(&self, id: MessageId, why: Cancellation) -> io::Result<()> {
        let mark = CancelMark(Some(why)).encode(self.arena.seed, id);
        let room = self.arena.room();
        self.arena.write(&mark, room.place(self.slot).offset() + CANCEL_MARK_AT as u64)
    }
}

impl Clone for Body {
    fn clone(&self) -> Self {
        self.arena.room().hold(self.slot);
        Self::new(&self.arena, self.slot)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.hold == Hold::HandedOn {
            return;
        }
        let is_owned = self.arena.is_owned.load(Ordering::SeqCst);
        let mut room = self.arena.room();
        let freed = room.release(self.slot, is_owned);
        let freed: Vec<Freed> = if is_owned {
            freed.into_iter().chain(self.arena.empty_a_block(&mut room)).collect()
        } else {
            Vec::new()
        };
        drop(room);
        for freed in freed {
            self.arena.give_back(freed);
        }
    }
}

// By hand: a body must reach no log.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

impl fmt::Debug for BodyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyStore").finish_non_exhaustive()
    }
}

impl Arena {
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        between_accesses();
        self.file.write_all_at(bytes, at)
    }

    /// Reads `len` bytes from position `at`.
    fn read(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let done = bytes.len();
            between_accesses();
            // The kernel may read as far as there is room for, which may be more.
            match rustix::io::pread(&self.file, spare_capacity(&mut bytes), at + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => bytes.truncate(len),
            }
        }
        Ok(bytes)
    }

    /// Writes the beginning of a record, by which a scan finds it, and before it the head of its
    /// block, if it is the first there.
    fn begin(&self, placed: &Placed, record: [&[u8]; 2]) -> io::Result<()> {
        if let Some((first, run)) = placed.new_run {
            self.write(&run.encode(self.seed, first), block_offset(first))?;
        }
        let mut at = placed.place.offset();
        between_accesses();
        let mut written = rustix::io::pwritev(&self.file, &record.map(IoSlice::new), at)?;
        // Less than all is written if the machine runs out of memory, for example.
        for part in record {
            if let Some(rest) = part.get(written..).filter(|rest| !rest.is_empty()) {
                self.write(rest, at + written as u64)?;
            }
            at += part.len() as u64;
            written = written.saturating_sub(part.len());
        }
        Ok(())
    }

    /// Makes the head of blocks invalid, or gives their memory back to the kernel, and lets others
    /// use them. Nothing is locked meanwhile, and no record uses them.
    fn give_back(&self, freed: Freed) {
        let first = block_offset(freed.blocks.start);
        between_accesses();
        let given_back = match freed.memory {
            Memory::Kept => self.write(&[0; BlockHead::BYTES], first),
            Memory::GivenBack => {
                let len = block_offset(freed.blocks.end) - first;
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, hole, first, len).map_err(io::Error::from)
            }
        };
        if let Err(error) = given_back {
            error!(%error, "the memory of removed bodies could not be freed");
        }
        self.room().reuse(freed);
    }

    /// Moves the records of one block elsewhere, if blocks with few records take too much memory.
    /// Returns the blocks that are free by this.
    fn empty_a_block(&self, room: &mut Room) -> Vec<Freed> {
        let mut freed = Vec::new();
        for slot in room.to_empty().unwrap_or_default() {
            if let Err(error) = self.relocate(room, slot, &mut freed) {
                error!(%error, "a body could not be moved, so its memory stays in use");
                break;
            }
        }
        freed
    }

    fn relocate(&self, room: &mut Room, slot: Slot, freed: &mut Vec<Freed>) -> io::Result<()> {
        let old = room.place(slot);
        if room.is_full_for(old.content_len()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let len = RecordHead::BYTES as u64 + old.content_len();
        let mut record =
            self.read(old.offset(), usize::try_from(len).map_err(io::Error::other)?)?;
        let placed = room.place_anew(slot, random);
        RecordHead::move_to(&mut record, self.seed, placed.generation);
        freed.extend(placed.freed.clone());
        if let Err(error) = self.begin(&placed, [&record, &[]]) {
            room.give_up(&placed);
            return Err(error);
        }
        // From here on the copy counts. Until its head is invalid, the old one is the same.
        self.moves.fetch_add(1, Ordering::SeqCst);
        let made_invalid =
            self.write(&[0; RecordHead::BYTES - LIVE_AT], old.offset() + LIVE_AT as u64);
        freed.extend(room.move_to(&placed));
        made_invalid
    }

    fn live(&self, record: Option<LiveRecord>) -> LiveState {
        // If it cannot be read, a call counts as under way.
        let Some(LiveRecord { attempts, acceptance, due, call }) = record else {
            let (attempts, due, call) = (1, Instant::now(), CallState::UnderWay);
            return LiveState { attempts, acceptance: Acceptance::Possible, due, call };
        };
        let call = match call {
            CallRecord::Idle => CallState::Idle,
            CallRecord::UnderWay => CallState::UnderWay,
            CallRecord::Answered(at, ses_message_id) => {
                CallState::Answered { ses_message_id, sent_at: Timestamp::from_unix_millis(at) }
            }
            CallRecord::Failed(failure) => CallState::Failed(failure),
        };
        LiveState { attempts, acceptance, due: self.moments.instant(Moment(due)), call }
    }
}

/// Leaves one of the copies of each record: its process ended while it moved the record. The state of
/// the old one is made invalid once the copy is whole, so if both can be read, they are the same.
fn without_copies(found: Vec<Found>, room: &mut Room) -> Vec<Found> {
    let mut places = HashMap::with_capacity(found.len());
    let mut left: Vec<Found> = Vec::with_capacity(found.len());
    for one in found {
        let place = *places.entry(one.head.id).or_insert(left.len());
        let copy = match left.get_mut(place) {
            None => {
                left.push(one);
                continue;
            }
            Some(other) if other.live.is_none() => std::mem::replace(other, one),
            Some(_) => one,
        };
        // Blocks without a record are free once this process owns them.
        let none = room.release(copy.slot, false);
        debug_assert_eq!(none, None, "nothing is freed of an arena that others have");
    }
    left
}

fn read_head(file: &File) -> Result<ArenaHead, NotTaken> {
    let mut head = [0; ArenaHead::BYTES];
    file.read_exact_at(&mut head, 0).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => NotTaken::Foreign,
        _ => error.into(),
    })?;
    ArenaHead::decode(&head)
}

/// Makes memory that no file system has.
fn new_memory() -> io::Result<OwnedFd> {
    // Older kernels do not know that it is never to be executed.
    let memory = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(NAME, MemfdFlags::CLOEXEC))?;
    ftruncate(&memory, BLOCK_BYTES)?;
    Ok(memory)
}

fn random() -> u64 {
    fastrand::u64(..)
}

#[cfg(test)]
mod tests;
