//! Bodies of pending messages: the arena, anonymous memory that can outlive its process.
//!
//! It has the only copy of a body while the message waits, with what a later process has to know of
//! it: whose it is, how often it was tried, and whether a call is under way. Whoever holds the
//! arena's descriptor keeps it: a service manager, or the program that is executed in the place of
//! this one. Nothing of it is mapped or has a name in a file system.
//!
//! A record is whole before its message is committed, and its room is free again once the message's
//! final state is durable. Which of the records that are found are still pending is known to the
//! store alone.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;
use tracing::error;

use crate::domain::id::{KeyId, MessageId, OrganisationId};
use crate::domain::message::Acceptance;
use crate::domain::time::Timestamp;

use layout::{
    ArenaHead, BLOCK_BYTES, BlockHead, CallRecord, LIVE_AT, LiveRecord, RecordHead, Seed,
};
use room::{Freed, Placed, Room, Size, Slot, block_offset};

pub use layout::VERSION as ARENA_FORMAT;
pub use room::Usage;

mod layout;
mod room;
mod scan;

/// Name of the arena, for those who look at the process.
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
    #[error("it is no arena of pillarbox")]
    Foreign,
    /// A newer version has made it.
    #[error("a newer version of pillarbox has made it (format {version})")]
    Newer {
        /// Its format.
        version: u32,
    },
    /// Its head was changed.
    #[error("its head is damaged")]
    Damaged,
    /// It was made before the machine was started.
    #[error("it is of an earlier boot of this machine")]
    OtherBoot,
    /// It belongs to other data.
    #[error("it belongs to another data directory, database or node")]
    OtherStore,
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
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
    /// Its message.
    pub id: MessageId,
    /// Whose it is.
    pub organisation: OrganisationId,
    /// The API key that posted it, if it came with one.
    pub key: Option<KeyId>,
    /// When it was accepted.
    pub accepted_at: Instant,
    /// The encoded request, and the envelope behind it.
    pub content: &'a str,
    /// Bytes of the request.
    pub request_len: usize,
}

/// State of a message that a later process has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveState {
    /// Calls to the provider that were started.
    pub attempts: u32,
    /// Whether one of those that have ended may have been accepted.
    pub acceptance: Acceptance,
    /// When the next attempt is due.
    pub due: Instant,
    /// Its call.
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
        /// The provider's identifier.
        ses_message_id: String,
        /// When the provider accepted it.
        sent_at: Timestamp,
    },
}

/// Body that was found in an arena, with its message's state.
#[derive(Debug)]
pub struct Survivor {
    /// Its message.
    pub id: MessageId,
    /// Whose it is.
    pub organisation: OrganisationId,
    /// The API key that posted it, if it came with one.
    pub key: Option<KeyId>,
    /// When it was accepted.
    pub accepted_at: Instant,
    /// How it stood.
    pub live: LiveState,
    /// The body.
    pub body: Body,
}

/// The arena. Clones are the same one.
#[derive(Clone)]
pub struct BodyStore(Arc<Arena>);

struct Arena {
    file: File,
    seed: Seed,
    /// True while this process alone decides which bodies are there. If it is false, what is dropped
    /// stays in the memory: an earlier or later process has it as well.
    is_owned: AtomicBool,
    room: Mutex<Room>,
    moments: Moments,
}

/// A body in the arena. Its room is free again once nobody holds it.
pub struct Body {
    arena: Arc<Arena>,
    slot: Slot,
}

impl BodyStore {
    /// Makes an empty arena.
    pub fn create(owner: ArenaOwner) -> io::Result<Self> {
        let seed = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let head = ArenaHead { owner, seed: Seed(seed) };
        let file = File::from(new_memory()?);
        file.write_all_at(&head.encode(), 0)?;
        Ok(Self::with(file, head.seed, Room::default()))
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
        let found = scan::scan(&file, head.seed, &mut room)?;
        room.found_all();
        let store = Self::with(file, head.seed, room);
        store.leave();
        let arena = &store.0;
        let survivors = found.into_iter().map(|found| Survivor {
            id: found.head.id,
            organisation: found.head.organisation,
            key: found.head.key,
            accepted_at: arena.moments.instant(found.head.accepted_at),
            live: arena.live(found.live),
            body: Body { arena: Arc::clone(arena), slot: found.slot },
        });
        let survivors = survivors.collect();
        Ok((store, survivors))
    }

    /// Counts the messages of an arena that may be pending: the store alone knows which are final.
    pub fn count_waiting(fd: OwnedFd) -> Result<usize, NotTaken> {
        let file = File::from(fd);
        let head = read_head(&file)?;
        let found = scan::scan(&file, head.seed, &mut Room::default())?;
        let is_answered = |live: &LiveRecord| matches!(live.call, CallRecord::Answered(..));
        Ok(found.iter().filter(|found| !found.live.as_ref().is_some_and(is_answered)).count())
    }

    fn with(file: File, seed: Seed, room: Room) -> Self {
        let (is_owned, room) = (AtomicBool::new(true), Mutex::new(room));
        Self(Arc::new(Arena { file, seed, is_owned, room, moments: Moments::now() }))
    }

    /// Goes on in the place of the earlier process: from here on, dropped bodies are gone.
    pub fn own(&self) {
        self.0.is_owned.store(true, Ordering::SeqCst);
        for freed in self.0.room().free_empty() {
            self.0.give_back(&freed);
        }
    }

    /// Leaves the bodies to a later process: what is dropped from here on stays for it.
    pub fn leave(&self) {
        self.0.is_owned.store(false, Ordering::SeqCst);
    }

    /// Puts a body in. Fails if there is no memory for it.
    pub fn put(&self, new: &NewBody<'_>) -> io::Result<Body> {
        let content = new.content.as_bytes();
        let len = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
        let head = RecordHead {
            id: new.id,
            organisation: new.organisation,
            key: new.key,
            request_len: len(new.request_len)?,
            envelope_len: len(content.len() - new.request_len)?,
            accepted_at: self.0.moments.nanos(new.accepted_at),
            content_check: self.0.seed.of_content(content),
        };
        let live = LiveRecord {
            attempts: 0,
            acceptance: Acceptance::Excluded,
            due: head.accepted_at,
            call: CallRecord::Idle,
        };
        let mut room = self.0.room();
        let placed = room.put(head.request_len, head.envelope_len, random);
        let body = Body { arena: Arc::clone(&self.0), slot: placed.slot };
        let mut bytes = head.encode(self.0.seed, placed.generation);
        bytes[LIVE_AT..].copy_from_slice(&live.encode(self.0.seed, new.id));
        let written = match placed.size {
            Size::Small => {
                let written = self.0.begin(&placed, &[&bytes, content]);
                drop(room);
                written
            }
            // Nobody else writes to its blocks, so others need not wait for it.
            Size::Large => {
                let begun = self.0.begin(&placed, &[&bytes]);
                drop(room);
                begun.and_then(|()| self.0.write(content, placed.place.content()))
            }
        };
        // The body is dropped after the lock, which it takes.
        written.map(|()| body)
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
        let room = self.arena.room();
        let place = room.place(self.slot);
        let mut request = vec![0; usize::try_from(place.request_len).expect("it was in memory")];
        self.arena.file.read_exact_at(&mut request, place.content())?;
        Ok(request)
    }

    /// Reads a part of the encoded request, from `from` on.
    pub fn read_part(&self, from: usize, part: &mut [u8]) -> io::Result<()> {
        let room = self.arena.room();
        let place = room.place(self.slot);
        self.arena.file.read_exact_at(part, place.content() + from as u64)
    }

    /// Reads the envelope's text.
    pub fn envelope(&self) -> io::Result<String> {
        let room = self.arena.room();
        let place = room.place(self.slot);
        let mut text = vec![0; usize::try_from(place.envelope_len).expect("it was in memory")];
        let at = place.content() + u64::from(place.request_len);
        self.arena.file.read_exact_at(&mut text, at)?;
        drop(room);
        String::from_utf8(text).map_err(io::Error::other)
    }

    /// Reads the API key that posted the message, if it came with one.
    pub fn key(&self) -> io::Result<Option<KeyId>> {
        let room = self.arena.room();
        let mut bytes = [0; RecordHead::BYTES];
        self.arena.file.read_exact_at(&mut bytes, room.place(self.slot).offset())?;
        drop(room);
        Ok(RecordHead::key_of(&bytes))
    }

    /// Writes the state of its message. An answer takes the place of the content.
    pub fn set_live(&self, id: MessageId, live: &LiveState) -> io::Result<()> {
        let call = match &live.call {
            CallState::Idle => CallRecord::Idle,
            CallState::UnderWay => CallRecord::UnderWay,
            CallState::Answered { ses_message_id, sent_at } => {
                CallRecord::Answered(sent_at.unix_millis(), ses_message_id.clone())
            }
        };
        let due = self.arena.moments.nanos(live.due);
        let live = LiveRecord { attempts: live.attempts, acceptance: live.acceptance, due, call };
        let bytes = live.encode(self.arena.seed, id);
        let room = self.arena.room();
        let place = room.place(self.slot);
        let room_for_it = (RecordHead::BYTES - LIVE_AT) as u64 + place.content_len();
        if bytes.len() as u64 > room_for_it {
            return Err(io::Error::other("the provider's id is longer than the message"));
        }
        self.arena.write(&bytes, place.offset() + LIVE_AT as u64)
    }
}

impl Clone for Body {
    fn clone(&self) -> Self {
        self.arena.room().hold(self.slot);
        Self { arena: Arc::clone(&self.arena), slot: self.slot }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let mut room = self.arena.room();
        let freed = room.release(self.slot);
        if !self.arena.is_owned.load(Ordering::SeqCst) {
            return;
        }
        if let Some(freed) = freed {
            self.arena.give_back(&freed);
        }
        self.arena.empty_a_block(&mut room);
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
        self.file.write_all_at(bytes, at)
    }

    /// Writes the beginning of a record, by which a scan finds it, and before it the head of its
    /// block, if it is the first there.
    fn begin(&self, placed: &Placed, record: &[&[u8]]) -> io::Result<()> {
        if let Some((first, run)) = placed.new_run {
            self.write(&run.encode(self.seed, first), block_offset(first))?;
        }
        let mut at = placed.place.offset();
        let parts: Vec<IoSlice<'_>> = record.iter().map(|part| IoSlice::new(part)).collect();
        let mut written = rustix::io::pwritev(&self.file, &parts, at)?;
        // Less than all is written if the machine runs out of memory, for example.
        for part in record {
            if let Some(rest) = part.get(written..) {
                self.write(rest, at + written as u64)?;
            }
            at += part.len() as u64;
            written = written.saturating_sub(part.len());
        }
        Ok(())
    }

    /// Makes the head of blocks invalid, and gives memory back to the kernel.
    fn give_back(&self, freed: &Freed) {
        let first = block_offset(freed.first);
        let range = &freed.given_back;
        let given_back = if range.is_empty() {
            self.write(&[0; BlockHead::BYTES], first)
        } else {
            let len = block_offset(range.end) - first;
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, hole, first, len).map_err(io::Error::from)
        };
        if let Err(error) = given_back {
            error!(%error, "memory of bodies that are gone could not be given back");
        }
    }

    /// Moves the records of one block elsewhere, if blocks with few records take too much memory.
    fn empty_a_block(&self, room: &mut Room) {
        let Some(slots) = room.to_empty() else { return };
        for slot in slots {
            if let Err(error) = self.relocate(room, slot) {
                error!(%error, "a body could not be moved; its block stays");
                return;
            }
        }
    }

    fn relocate(&self, room: &mut Room, slot: Slot) -> io::Result<()> {
        let old = room.place(slot);
        let len = RecordHead::BYTES + usize::try_from(old.content_len()).expect("it was in memory");
        let mut record = vec![0; len];
        self.file.read_exact_at(&mut record, old.offset())?;
        let placed = room.place_anew(slot, random);
        RecordHead::move_to(&mut record, self.seed, placed.generation);
        self.begin(&placed, &[&record])?;
        // From here on the copy counts. Until its head is invalid, the old one is the same.
        self.write(&[0; RecordHead::BYTES - LIVE_AT], old.offset() + LIVE_AT as u64)?;
        if let Some(freed) = room.move_to(&placed) {
            self.give_back(&freed);
        }
        Ok(())
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
        };
        LiveState { attempts, acceptance, due: self.moments.instant(due), call }
    }
}

/// Measure of the times in the arena: nanoseconds of the monotonic clock, which all processes of a
/// boot share.
#[derive(Debug, Clone, Copy)]
struct Moments {
    base: Instant,
    base_nanos: u64,
}

impl Moments {
    fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let nanos = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        Self { base: Instant::now(), base_nanos: nanos }
    }

    fn nanos(self, time: Instant) -> u64 {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let after = nanos(time.saturating_duration_since(self.base));
        let before = nanos(self.base.saturating_duration_since(time));
        self.base_nanos.saturating_add(after).saturating_sub(before)
    }

    fn instant(self, nanos: u64) -> Instant {
        let after = Duration::from_nanos(nanos.saturating_sub(self.base_nanos));
        let before = Duration::from_nanos(self.base_nanos.saturating_sub(nanos));
        let later = self.base.checked_add(after).unwrap_or(self.base);
        later.checked_sub(before).unwrap_or(later)
    }
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
