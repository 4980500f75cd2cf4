//! Room of the arena: which block has which records, and what is free.
//!
//! Small records share blocks; a large one has a run of blocks of its own. Knows no file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::layout::{ALIGNMENT, BLOCK_BYTES, BlockHead, RecordHead};

/// Bytes that an arena has at most, because places count in multiples of [`ALIGNMENT`].
const MAX_BYTES: u64 = u32::MAX as u64 * ALIGNMENT;
/// Free blocks whose memory is kept, because to write into it again takes half of the time.
const MAX_WARM_BLOCKS: usize = 32;
/// Bytes of partly used blocks that are let be beside a fifth of what is alive.
const SLACK_BYTES: u64 = if cfg!(schedules) { 0 } else { 16 * 1024 * 1024 };
/// Bytes of memory that the kernel gives and takes at least.
const PAGE_BYTES: u64 = 4096;

/// Places that are allocated together.
const PLACES: usize = 1024;

/// Number of a record, as long as it is there.
pub(super) type Slot = u32;

/// Place and size of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Offset in the arena, in multiples of [`ALIGNMENT`].
    at: u32,
    pub(super) request_len: u32,
    pub(super) envelope_len: u32,
    /// Handles that hold it; free if there is none.
    holders: u32,
}

impl Place {
    /// Returns the offset of its head, in bytes.
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.at) * ALIGNMENT
    }

    /// Returns the offset of its content, in bytes.
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

/// The places of all records, by their slots. They grow by a part at a time: a vector that has grown may
/// be half empty.
#[derive(Debug, Default)]
struct Places {
    parts: Vec<Vec<Place>>,
    /// The first free slot, if any. A free slot has the number of the next one in the place of a
    /// record's position; the last one has its own.
    free: Option<Slot>,
}

impl Places {
    fn add(&mut self, place: Place) -> Slot {
        if let Some(slot) = self.free {
            let next = std::mem::replace(self.get_mut(slot), place).at;
            self.free = (next != slot).then_some(next);
            return slot;
        }
        if self.parts.last().is_none_or(|part| part.len() == PLACES) {
            self.parts.push(Vec::with_capacity(PLACES));
        }
        let before = (self.parts.len() - 1) * PLACES;
        let part = self.parts.last_mut().expect("one was added");
        part.push(place);
        Slot::try_from(before + part.len() - 1).expect("fewer than 2^32 records are pending")
    }

    fn free(&mut self, slot: Slot) {
        let next = self.free.replace(slot).unwrap_or(slot);
        self.get_mut(slot).at = next;
    }

    fn get(&self, slot: Slot) -> &Place {
        &self.parts[slot as usize / PLACES][slot as usize % PLACES]
    }

    fn get_mut(&mut self, slot: Slot) -> &mut Place {
        &mut self.parts[slot as usize / PLACES][slot as usize % PLACES]
    }
}

fn block_of(offset: u64) -> u32 {
    u32::try_from(offset / BLOCK_BYTES).expect("an arena has fewer than 2^32 blocks")
}

/// Returns the offset of a block, in bytes.
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
    /// Records that were put here; some may have been removed or moved.
    slots: Vec<Slot>,
}

impl Run {
    fn memory(&self) -> u64 {
        self.filled.next_multiple_of(PAGE_BYTES)
    }
}

/// A record that got its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) slot: Slot,
    pub(super) place: Place,
    pub(super) generation: u64,
    /// The block whose head is to be written first, if the record is the first there.
    pub(super) new_run: Option<(u32, BlockHead)>,
    pub(super) size: Size,
    /// Blocks that are free by this, if any.
    pub(super) freed: Option<Freed>,
}

/// Size of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// It shares its block, and may be moved.
    Small,
    /// It has more blocks than one, of its own, and stays where it is.
    Large,
}

impl Size {
    fn of(record_len: u64) -> Self {
        if BlockHead::BYTES as u64 + record_len > BLOCK_BYTES { Self::Large } else { Self::Small }
    }
}

/// Blocks that are not used any more, and not yet by others: [`Room::reuse`] comes after what is to be
/// done with them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(super) struct Freed {
    /// All of them. The head of the first is to be made invalid.
    pub(super) blocks: Range<u32>,
    /// Fate of their memory.
    pub(super) memory: Memory,
}

/// Memory of free blocks: it stays, or goes back to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Kept,
    GivenBack,
}

/// Use of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Number of records.
    pub records: usize,
    /// Bytes of these records, with their heads.
    pub alive_bytes: u64,
    /// Bytes of memory that the arena takes up.
    pub memory_bytes: u64,
}

/// Places, blocks and what is free.
#[derive(Debug)]
pub(super) struct Room {
    places: Places,
    runs: BTreeMap<u32, Run>,
    /// Free runs below `end`: first block and number of blocks. No two touch.
    free: BTreeMap<u32, u32>,
    /// Free blocks whose memory is kept.
    warm: BTreeSet<u32>,
    /// Free blocks that are about to be warm.
    soon_warm: usize,
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
            places: Places::default(),
            runs: BTreeMap::new(),
            free: BTreeMap::new(),
            warm: BTreeSet::new(),
            soon_warm: 0,
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
        let size = Size::of(len);
        let (block, new_run, freed) = self.room_for(len, size, generation);
        let at = self.append(block, len);
        let place = Place { at, request_len, envelope_len, holders: 1 };
        let slot = self.places.add(place);
        self.usage.records += 1;
        self.take_in(slot, block, len);
        let generation = self.runs[&block].generation;
        Placed { slot, place, generation, new_run, size, freed }
    }

    /// Finds another place for a small record that stays itself.
    pub(super) fn place_anew(&mut self, slot: Slot, generation: impl FnOnce() -> u64) -> Placed {
        let old = *self.places.get(slot);
        let len = old.record_len();
        let (block, new_run, freed) = self.room_for(len, Size::Small, generation);
        let place = Place { at: self.append(block, len), ..old };
        let generation = self.runs[&block].generation;
        Placed { slot, place, generation, new_run, size: Size::Small, freed }
    }

    /// True if there may be no room for a record with this content, however much memory there is.
    pub(super) fn is_full_for(&self, content_len: u64) -> bool {
        let len = BlockHead::BYTES as u64 + RecordHead::record_len(content_len);
        block_offset(self.end).saturating_add(len.next_multiple_of(BLOCK_BYTES)) > MAX_BYTES
    }

    /// Abandons the rest of a block, because a record there could not be written: a scan would not
    /// find the records behind it.
    pub(super) fn give_up(&mut self, placed: &Placed) {
        self.current = self.current.filter(|current| *current != placed.place.block());
    }

    /// Takes out all free blocks, with any data that an earlier process left in them.
    pub(super) fn take_all_free(&mut self) -> Vec<Freed> {
        let free = std::mem::take(&mut self.free).into_iter();
        free.map(|(first, blocks)| Freed {
            blocks: first..first + blocks,
            memory: Memory::GivenBack,
        })
        .collect()
    }

    /// Takes the record to the place that [`Room::place_anew`] found.
    pub(super) fn move_to(&mut self, placed: &Placed) -> Option<Freed> {
        let slot = placed.slot;
        let old = std::mem::replace(self.places.get_mut(slot), placed.place);
        // A handle may have been made or dropped meanwhile; there is no such time, because this is
        // locked.
        let (len, block) = (old.record_len(), placed.place.block());
        self.take_in(slot, block, len);
        self.let_go(old.block(), len);
        self.free_if_empty(old.block())
    }

    /// Takes in a record that was found, in a run that [`Room::found_run`] has.
    pub(super) fn found(&mut self, run: u32, offset: u64, head: &RecordHead) -> Slot {
        let at = u32::try_from(offset / ALIGNMENT).expect("an arena is smaller than 64 GiB");
        let (request_len, envelope_len) = (head.request_len, head.envelope_len);
        let place = Place { at, request_len, envelope_len, holders: 1 };
        let slot = self.places.add(place);
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
        *self.places.get(slot)
    }

    pub(super) fn hold(&mut self, slot: Slot) {
        self.places.get_mut(slot).holders += 1;
    }

    /// Releases one hold on a record. Returns the blocks that are free by this, if any. If another
    /// process has the arena as well, none is.
    pub(super) fn release(&mut self, slot: Slot, is_owned: bool) -> Option<Freed> {
        let place = self.places.get_mut(slot);
        place.holders -= 1;
        if place.holders > 0 {
            return None;
        }
        let (block, len) = (place.block(), place.record_len());
        self.usage.records -= 1;
        if self.usage.records == 0 {
            // After a large backlog there would be many.
            self.places = Places::default();
            for run in self.runs.values_mut() {
                run.slots.clear();
            }
        } else {
            self.places.free(slot);
        }
        self.let_go(block, len);
        if is_owned { self.free_if_empty(block) } else { None }
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
            let place = self.places.get(*slot);
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

    /// The run that a record of this length goes to.
    fn room_for(
        &mut self,
        len: u64,
        size: Size,
        generation: impl FnOnce() -> u64,
    ) -> (u32, Option<(u32, BlockHead)>, Option<Freed>) {
        let current = self.current.filter(|_| size == Size::Small);
        if let Some(current) = current.filter(|first| self.runs[first].filled + len <= BLOCK_BYTES)
        {
            return (current, None, None);
        }
        let bytes = BlockHead::BYTES as u64 + len;
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES)).expect("a record is no arena");
        let head = BlockHead { blocks, generation: generation() };
        let first = self.take_free(blocks);
        self.add_run(first, head, BlockHead::BYTES as u64);
        let full = match size {
            Size::Small => self.current.replace(first),
            Size::Large => None,
        };
        let freed = full.and_then(|full| {
            self.runs.get_mut(&full).expect("the run is in use").slots.shrink_to_fit();
            // Until now it was kept for the next record.
            self.free_if_empty(full)
        });
        (first, Some((first, head)), freed)
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

    /// Takes up `len` bytes at the end of a run; returns the position at which they begin.
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
    fn let_go(&mut self, block: u32, len: u64) {
        // The only record of a run begins in its first block.
        let run = self.runs.get_mut(&block).expect("a record's run is in use");
        run.alive -= len;
        self.usage.alive_bytes -= len;
        if run.blocks == 1 {
            self.shared_alive -= len;
        }
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
        let memory = if run.blocks == 1 && self.warm.len() + self.soon_warm < MAX_WARM_BLOCKS {
            self.soon_warm += 1;
            Memory::Kept
        } else {
            Memory::GivenBack
        };
        Some(Freed { blocks: first..first + run.blocks, memory })
    }

    /// Lets others use blocks that are free.
    pub(super) fn reuse(&mut self, freed: Freed) {
        let Freed { blocks, memory } = freed;
        if memory == Memory::Kept {
            self.soon_warm -= 1;
            self.warm.insert(blocks.start);
            self.usage.memory_bytes += BLOCK_BYTES;
        }
        self.add_free(blocks.start, blocks.end - blocks.start);
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
