//! Scan of an arena that was taken over: from block to block and from record to record, by their
//! lengths.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::layout::{BLOCK_BYTES, BlockHead, CancelMark, LiveRecord, RecordHead, Seed};
use crate::room::{Room, Slot, block_offset};

/// Record that is whole.
pub(super) struct Found {
    pub(super) slot: Slot,
    pub(super) head: RecordHead,
    /// `None` if its check value is wrong.
    pub(super) live: Option<LiveRecord>,
    pub(super) cancelled: CancelMark,
}

/// Finds all whole records, and takes them into `room`. A record that was being moved may be found
/// twice.
pub(super) fn scan(file: &File, seed: Seed, room: &mut Room) -> io::Result<Vec<Found>> {
    let end = file.metadata()?.len();
    let mut found = Vec::new();
    let mut first = 1;
    let mut bytes = Vec::new();
    while block_offset(first) < end {
        let at = block_offset(first);
        read_up_to(file, at, BLOCK_BYTES.min(end - at), &mut bytes)?;
        let head = bytes.get(..BlockHead::BYTES).and_then(|b| BlockHead::decode(b, seed, first));
        // More blocks than there are: nothing that was written whole.
        let Some(run) =
            head.filter(|run| u64::from(run.blocks) <= (end - at).div_ceil(BLOCK_BYTES))
        else {
            first += 1;
            continue;
        };
        if run.blocks > 1 {
            let len = (u64::from(run.blocks) * BLOCK_BYTES).min(end - at);
            read_up_to(file, at, len, &mut bytes)?;
        }
        scan_run(&bytes, seed, first, run, room, &mut found);
        first += run.blocks;
    }
    Ok(found)
}

fn scan_run(
    bytes: &[u8],
    seed: Seed,
    first: u32,
    run: BlockHead,
    room: &mut Room,
    found: &mut Vec<Found>,
) {
    let mut whole = Vec::new();
    let mut filled = BlockHead::BYTES;
    while let Some(record) = bytes.get(filled..)
        && let Some(head) = RecordHead::decode(record, seed, run.generation)
    {
        let live = LiveRecord::decode(record, seed, head.id);
        let content_len = usize::try_from(head.content_len()).expect("it was in memory");
        let content = record.get(RecordHead::BYTES..).and_then(|rest| rest.get(..content_len));
        // The known end lies in the place of the content.
        let is_over = live.as_ref().is_some_and(|live| live.call.is_over());
        let is_whole = content
            .is_some_and(|content| is_over || seed.of_content(content) == head.content_check);
        if let Some(cancelled) = CancelMark::decode(record, seed, head.id)
            && is_whole
        {
            whole.push((filled, head, live, cancelled));
        }
        let len = RecordHead::record_len(head.content_len());
        filled += usize::try_from(len).expect("it was in memory");
    }
    room.found_run(first, run, filled as u64);
    for (at, head, live, cancelled) in whole {
        let slot = room.found(first, block_offset(first) + at as u64, &head);
        found.push(Found { slot, head, live, cancelled });
    }
}

/// Reads `len` bytes, or as many as there are.
fn read_up_to(file: &File, at: u64, len: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.clear();
    bytes.resize(usize::try_from(len).expect("it was in memory"), 0);
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    bytes.truncate(done);
    Ok(())
}
