//! Room of the arena: which block has which records, and what is free.
//!
//! Small records share blocks; a large one has a run of blocks of its own. Knows no file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::body_store::layout::{ALIGNMENT, BLOCK_BYTES, BlockHead, RecordHead};

/// Content from which on a record has blocks of its own.
const LARGE_BYTES: u64 = BLOCK_BYTES / 4;
/// Free blocks whose memory is kept, because to write into it again takes half of the time.
const MAX_WARM_BLOCKS: usize = 32;
/// Bytes of partly used blocks that are let be beside a fifth of what is alive.
const SLACK_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of memory that the kernel gives and takes at least.
const PAGE_BYTES: u64 = 4096;

/// Number of a record, as long as it is there.
pub(super) type Slot = u32;

/// Place and size of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Where it begins, in multiples of [`ALIGNMENT`].
    at: u32,
    pub(super) request_len: u32,
    pub(super) envelope_len: u32,
    /// Handles that hold it; free if there is none.
    holders: u32,
}

impl Place {
    /// Where its head begins, in bytes.
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.at) * ALIGNMENT
    }

    /// Where its content begins, in bytes.
    pub(super) fn content(&self) -> u64 {
        self.offset() + RecordHead::BYTES as u64
    }

    pub(super) fn content_len(&self) -> u64 {
        u64::from(self.request_len) + u64::from(self.envelope_len)
    }

    fn record_len(&self) -> u64 {
        RecordHead::record_len(self.content_len())
    }

    fn block(&self) -> u32 {
        block_of(self.offset())
    }
}

fn block_of(offset: u64) -> u32 {
    u32::try_from(offset / BLOCK_BYTES).expect("an arena has less than 2^32 blocks")
}

/// Where a block begins, in bytes.
pub(super) fn block_offset(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES
}

/// A run of blocks in use.
#[derive(Debug)]
struct Run {
    blocks: u32,
    generation: u64,
    /// Bytes that are taken up, from the run's beginning.
    filled: u64,
    /// Bytes of records that are there.
    alive: u64,
    /// Records that were put here; some may be gone or elsewhere.
    slots: Vec<Slot>,
}

impl Run {
    fn memory(&self) -> u64 {
        self.filled.next_multiple_of(PAGE_BYTES)
    }
}

/// A record that got its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) slot: Slot,
    pub(super) place: Place,
    pub(super) generation: u64,
    /// The block whose head is to be written first, if the record is the first there.
    pub(super) new_run: Option<(u32, BlockHead)>,
    pub(super) size: Size,
}

/// Size of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// It shares its block.
    Small,
    /// It has blocks of its own, and stays where it is.
    Large,
}

/// Blocks that are not used any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Freed {
    /// The first of them, whose head is to be made invalid.
    pub(super) first: u32,
    /// Blocks whose memory goes back to the kernel.
    pub(super) given_back: Range<u32>,
}

/// Use of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Records.
    pub records: usize,
    /// Bytes of these records, with their heads.
    pub alive_bytes: u64,
    /// Bytes of memory that the arena takes up.
    pub memory_bytes: u64,
}

/// Places, blocks and what is free.
#[derive(Debug)]
pub(super) struct Room {
    places: Vec<Place>,
    free_slots: Vec<Slot>,
    runs: BTreeMap<u32, Run>,
    /// Free runs below `end`: first block and number of blocks. No two touch.
    free: BTreeMap<u32, u32>,
    /// Free blocks whose memory is kept.
    warm: BTreeSet<u32>,
    /// First block that was never used.
    end: u32,
    /// The block that small records go to.
    current: Option<u32>,
    usage: Usage,
    /// Bytes of memory of blocks that small records share, and of their records.
    shared_memory: u64,
    shared_alive: u64,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free_slots: Vec::new(),
            runs: BTreeMap::new(),
            free: BTreeMap::new(),
            warm: BTreeSet::new(),
            // The first block has the arena's head.
            end: 1,
            current: None,
            usage: Usage::default(),
            shared_memory: 0,
            shared_alive: 0,
        }
    }
}

impl Room {
    /// Finds a place for a new record.
    pub(super) fn put(
        &mut self,
        request_len: u32,
        envelope_len: u32,
        generation: impl FnOnce() -> u64,
    ) -> Placed {
        let content_len = u64::from(request_len) + u64::from(envelope_len);
        let len = RecordHead::record_len(content_len);
        let (block, new_run) = self.room_for(len, content_len > LARGE_BYTES, generation);
        let at = self.append(block, len);
        let place = Place { at, request_len, envelope_len, holders: 1 };
        let slot = self.new_slot(place);
        self.usage.records += 1;
        self.take_in(slot, block, len);
        let generation = self.runs[&block].generation;
        let size = if content_len > LARGE_BYTES { Size::Large } else { Size::Small };
        Placed { slot, place, generation, new_run, size }
    }

    /// Finds another place for a small record that stays itself.
    pub(super) fn place_anew(&mut self, slot: Slot, generation: impl FnOnce() -> u64) -> Placed {
        let old = self.places[slot as usize];
        let len = old.record_len();
        let (block, new_run) = self.room_for(len, false, generation);
        let place = Place { at: self.append(block, len), ..old };
        let generation = self.runs[&block].generation;
        Placed { slot, place, generation, new_run, size: Size::Small }
    }

    /// Takes the record to the place that [`Room::place_anew`] found.
    pub(super) fn move_to(&mut self, placed: &Placed) -> Option<Freed> {
        let slot = placed.slot;
        let old = std::mem::replace(&mut self.places[slot as usize], placed.place);
        // A handle may have come or gone meanwhile; there is no such time, because this is locked.
        let (len, block) = (old.record_len(), placed.place.block());
        self.take_in(slot, block, len);
        self.let_go(old.block(), len)
    }

    /// Takes in a record that was found, in a run that [`Room::found_run`] has.
    pub(super) fn found(&mut self, run: u32, offset: u64, head: &RecordHead) -> Slot {
        let at = u32::try_from(offset / ALIGNMENT).expect("an arena is smaller than 64 GiB");
        let (request_len, envelope_len) = (head.request_len, head.envelope_len);
        let place = Place { at, request_len, envelope_len, holders: 1 };
        let slot = self.new_slot(place);
        self.usage.records += 1;
        self.take_in(slot, run, place.record_len());
        slot
    }

    /// Takes in a run of blocks that was found, of which this many bytes are filled.
    pub(super) fn found_run(&mut self, first: u32, head: BlockHead, filled: u64) {
        self.add_run(first, head, filled);
        self.end = self.end.max(first + head.blocks);
    }

    /// Ends the taking in: what is neither in a run nor behind the last is free.
    pub(super) fn found_all(&mut self) {
        let mut next = 1;
        for (first, run) in &self.runs {
            if *first > next {
                self.free.insert(next, first - next);
            }
            next = first + run.blocks;
        }
    }

    /// Frees the runs that have no record.
    pub(super) fn free_empty(&mut self) -> Vec<Freed> {
        let empty: Vec<u32> =
            self.runs.iter().filter(|(_, run)| run.alive == 0).map(|(first, _)| *first).collect();
        empty.into_iter().filter_map(|first| self.free_if_empty(first)).collect()
    }

    pub(super) fn place(&self, slot: Slot) -> Place {
        self.places[slot as usize]
    }

    pub(super) fn hold(&mut self, slot: Slot) {
        self.places[slot as usize].holders += 1;
    }

    /// Gives up one hold on a record. Returns the blocks that are free by this, if any.
    pub(super) fn release(&mut self, slot: Slot) -> Option<Freed> {
        let place = &mut self.places[slot as usize];
        place.holders -= 1;
        if place.holders > 0 {
            return None;
        }
        let (block, len) = (place.block(), place.record_len());
        self.free_slots.push(slot);
        self.usage.records -= 1;
        self.let_go(block, len)
    }

    /// A block that is worth being emptied, with its records: the memory of blocks with few records
    /// is too much.
    pub(super) fn to_empty(&self) -> Option<Vec<Slot>> {
        if self.shared_memory <= self.shared_alive + self.shared_alive / 5 + SLACK_BYTES {
            return None;
        }
        let shared = self.runs.iter().filter(|(first, run)| {
            run.blocks == 1 && Some(**first) != self.current && run.alive < run.filled
        });
        let (first, run) = shared.min_by_key(|(_, run)| run.alive)?;
        let is_here = |slot: &Slot| {
            let place = self.places[*slot as usize];
            place.holders > 0 && place.block() == *first
        };
        let mut slots: Vec<Slot> = run.slots.iter().copied().filter(is_here).collect();
        slots.sort_unstable();
        slots.dedup();
        Some(slots)
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    fn new_slot(&mut self, place: Place) -> Slot {
        if let Some(slot) = self.free_slots.pop() {
            self.places[slot as usize] = place;
            return slot;
        }
        let slot = Slot::try_from(self.places.len()).expect("less than 2^32 records are pending");
        self.places.push(place);
        slot
    }

    /// The run that a record of this length goes to.
    fn room_for(
        &mut self,
        len: u64,
        is_large: bool,
        generation: impl FnOnce() -> u64,
    ) -> (u32, Option<(u32, BlockHead)>) {
        let current = self.current.filter(|_| !is_large);
        if let Some(current) = current.filter(|first| self.runs[first].filled + len <= BLOCK_BYTES)
        {
            return (current, None);
        }
        let bytes = BlockHead::BYTES as u64 + len;
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES)).expect("a record is no arena");
        let head = BlockHead { blocks, generation: generation() };
        let first = self.take_free(blocks);
        self.add_run(first, head, BlockHead::BYTES as u64);
        if !is_large {
            self.current = Some(first);
        }
        (first, Some((first, head)))
    }

    fn add_run(&mut self, first: u32, head: BlockHead, filled: u64) {
        let BlockHead { blocks, generation } = head;
        let run = Run { blocks, generation, filled, alive: 0, slots: Vec::new() };
        self.usage.memory_bytes += run.memory();
        if blocks == 1 {
            self.shared_memory += run.memory();
        }
        self.runs.insert(first, run);
    }

    /// Takes up `len` bytes at the end of a run; returns where they begin.
    fn append(&mut self, first: u32, len: u64) -> u32 {
        let run = self.runs.get_mut(&first).expect("the run is in use");
        let at = block_offset(first) + run.filled;
        let before = run.memory();
        run.filled += len;
        let more = run.memory() - before;
        self.usage.memory_bytes += more;
        if run.blocks == 1 {
            self.shared_memory += more;
        }
        u32::try_from(at / ALIGNMENT).expect("an arena is smaller than 64 GiB")
    }

    fn take_in(&mut self, slot: Slot, first: u32, len: u64) {
        let run = self.runs.get_mut(&first).expect("the run is in use");
        run.slots.push(slot);
        run.alive += len;
        self.usage.alive_bytes += len;
        if run.blocks == 1 {
            self.shared_alive += len;
        }
    }

    /// Takes account of a record of `len` bytes that is not in a block any more.
    fn let_go(&mut self, block: u32, len: u64) -> Option<Freed> {
        // The only record of a run begins in its first block.
        let run = self.runs.get_mut(&block).expect("a record's run is in use");
        run.alive -= len;
        self.usage.alive_bytes -= len;
        if run.blocks == 1 {
            self.shared_alive -= len;
        }
        self.free_if_empty(block)
    }

    fn free_if_empty(&mut self, first: u32) -> Option<Freed> {
        if self.runs[&first].alive > 0 || self.current == Some(first) {
            return None;
        }
        let run = self.runs.remove(&first)?;
        self.usage.memory_bytes -= run.memory();
        if run.blocks == 1 {
            self.shared_memory -= run.memory();
        }
        let given_back = if run.blocks == 1 && self.warm.len() < MAX_WARM_BLOCKS {
            self.warm.insert(first);
            self.usage.memory_bytes += BLOCK_BYTES;
            first..first
        } else {
            first..first + run.blocks
        };
        self.add_free(first, run.blocks);
        Some(Freed { first, given_back })
    }

    /// Takes a run of free blocks, warm ones first if it is one.
    fn take_free(&mut self, blocks: u32) -> u32 {
        let warm = self.warm.first().copied().filter(|_| blocks == 1);
        let first = warm.or_else(|| {
            let mut large_enough = self.free.iter().filter(|(_, free)| **free >= blocks);
            large_enough.next().map(|(first, _)| *first)
        });
        let Some(first) = first else {
            let first = self.end;
            self.end += blocks;
            return first;
        };
        let (&start, &len) =
            self.free.range(..=first).next_back().expect("a free block is in a free run");
        self.free.remove(&start);
        if start < first {
            self.free.insert(start, first - start);
        }
        if first + blocks < start + len {
            self.free.insert(first + blocks, start + len - first - blocks);
        }
        for block in first..first + blocks {
            if self.warm.remove(&block) {
                self.usage.memory_bytes -= BLOCK_BYTES;
            }
        }
        first
    }

    fn add_free(&mut self, first: u32, blocks: u32) {
        let (mut first, mut blocks) = (first, blocks);
        if let Some((&before, &len)) = self.free.range(..first).next_back()
            && before + len == first
        {
            self.free.remove(&before);
            (first, blocks) = (before, len + blocks);
        }
        if let Some(len) = self.free.remove(&(first + blocks)) {
            blocks += len;
        }
        self.free.insert(first, blocks);
    }
}
