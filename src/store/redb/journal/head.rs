//! The journal's first block: the owner of the journal, and the marks of checkpoints.
//!
//! Each part is within a sector of its own, so it is written whole or not at all.

use std::io;

use redb::StorageBackend;

use crate::redb::journal::{BLOCK_BYTES, CHECKSUM_BYTES, Checkpoint, Epoch, checksum};

/// First bytes of the file. The digit is the version of its layout.
const MAGIC: &[u8; 16] = b"pillarbox jrnl 2";
/// The same of the layout that has no marks.
const UNMARKED_MAGIC: &[u8; 16] = b"pillarbox jrnl 1";
/// Bytes that name the owner: magic, two epochs, checksum.
const OWNER_BYTES: usize = 16 + 8 + 8 + CHECKSUM_BYTES;
/// Positions of the marks, in bytes. Each is in a sector of its own.
const MARKS_AT: [usize; 2] = [1024, 2048];
/// Bytes of a mark: epoch, record, checksum.
const MARK_BYTES: usize = 8 + 8 + CHECKSUM_BYTES;

#[derive(Debug)]
pub(super) struct Head {
    pub(super) layout: Layout,
    /// The epochs that own the journal, the current one first.
    pub(super) owners: [Epoch; 2],
    pub(super) marks: [Option<Checkpoint>; 2],
    /// Position of the mark that must stay, because the data file may need it.
    kept: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Of a version that wrote no marks, so none can be required.
    Unmarked,
    Marked,
}

impl Head {
    /// Returns the head of a journal that belongs only to its epoch, with the mark of a checkpoint.
    pub(super) fn new(checkpoint: Checkpoint) -> Self {
        Self {
            layout: Layout::Marked,
            owners: [checkpoint.epoch; 2],
            marks: [Some(checkpoint), None],
            kept: 0,
        }
    }

    /// Returns true if there is a mark after the checkpoint and before the record of this number.
    pub(super) fn has_mark_between(&self, checkpoint: Checkpoint, number: u64) -> bool {
        let of_epoch = self.marks.iter().flatten().filter(|mark| mark.epoch == checkpoint.epoch);
        of_epoch.map(|mark| mark.record).any(|mark| checkpoint.record < mark && mark < number)
    }

    /// Adds a mark beside that of the checkpoint that the data file has. In this way the first
    /// layout gets marks, which it does not read.
    pub(super) fn add_mark(&mut self, kept: Checkpoint, new: Checkpoint) {
        self.kept = self.marks.iter().position(|mark| *mark == Some(kept)).unwrap_or_else(|| {
            self.marks = [Some(kept), None];
            0
        });
        if kept != new {
            self.mark(new);
        }
    }

    /// Makes it the journal of a new epoch, and still of the one before. If the data file has the
    /// new epoch already, that may not be on its disk yet: then the owners stay.
    pub(super) fn take_over(&mut self, epoch: Epoch, before: Epoch) {
        if epoch != before {
            (self.owners, self.layout) = ([epoch, before], Layout::Marked);
        }
    }

    /// Returns true if this is the mark that stays.
    pub(super) fn is_kept(&self, checkpoint: Checkpoint) -> bool {
        self.marks[self.kept] == Some(checkpoint)
    }

    /// Replaces the mark that may be overwritten.
    pub(super) fn mark(&mut self, checkpoint: Checkpoint) {
        self.marks[1 - self.kept] = Some(checkpoint);
    }

    /// Protects the mark of a durable checkpoint from now on.
    pub(super) fn keep(&mut self, checkpoint: Checkpoint) {
        if self.marks[1 - self.kept] == Some(checkpoint) {
            self.kept = 1 - self.kept;
        }
    }

    pub(super) fn encode(&self, block: &mut [u8]) {
        block[..16].copy_from_slice(match self.layout {
            Layout::Unmarked => UNMARKED_MAGIC,
            Layout::Marked => MAGIC,
        });
        put_numbers(&mut block[16..OWNER_BYTES], self.owners.map(|epoch| epoch.0));
        let sum = checksum(&[&block[..OWNER_BYTES - CHECKSUM_BYTES]]);
        block[OWNER_BYTES - CHECKSUM_BYTES..OWNER_BYTES].copy_from_slice(&sum);
        for (at, mark) in MARKS_AT.into_iter().zip(self.marks) {
            let Some(mark) = mark else { continue };
            let bytes = &mut block[at..at + MARK_BYTES];
            put_numbers(bytes, [mark.epoch.0, mark.record]);
            let sum = checksum(&[&bytes[..16]]);
            bytes[16..].copy_from_slice(&sum);
        }
    }
}

/// Reads the head of a storage; `None` if it is no journal, or one that no data file needs any
/// more.
pub(super) fn read_head(storage: &dyn StorageBackend) -> io::Result<Option<Head>> {
    if storage.len()? < BLOCK_BYTES as u64 {
        return Ok(None);
    }
    let mut block = [0; BLOCK_BYTES];
    storage.read(0, &mut block)?;
    let layout = match &block[..16] {
        magic if magic == MAGIC => Layout::Marked,
        magic if magic == UNMARKED_MAGIC => Layout::Unmarked,
        _ => return Ok(None),
    };
    let Some(owners) = checked_numbers(&block[..OWNER_BYTES], 16) else { return Ok(None) };
    let marks = MARKS_AT.map(|at| {
        let [epoch, record] = checked_numbers(&block[at..at + MARK_BYTES], 0)?;
        Some(Checkpoint { epoch: Epoch(epoch), record })
    });
    let marks = if layout == Layout::Marked { marks } else { [None; 2] };
    Ok(Some(Head { layout, owners: owners.map(Epoch), marks, kept: 0 }))
}

fn put_numbers(bytes: &mut [u8], [first, second]: [u64; 2]) {
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..16].copy_from_slice(&second.to_le_bytes());
}

/// Reads the two numbers that begin at a position, if the checksum at the end is right.
fn checked_numbers(bytes: &[u8], at: usize) -> Option<[u64; 2]> {
    let (content, sum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    let number =
        |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("eight bytes"));
    (checksum(&[content]) == sum).then(|| [number(at), number(at + 8)])
}
