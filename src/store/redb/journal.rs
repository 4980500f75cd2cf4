//! Journal: the file beside the data file in which a batch becomes durable by one write.
//!
//! A record holds the rows that one batch put and removed. Once it is on disk, the batch is
//! accepted; redb gets the rows without a sync. A checkpoint makes redb's file durable now and
//! then. After it the journal begins again at its start. Records that redb's file does not have yet
//! are replayed when the file is opened.
//!
//! The file begins with a block that names its owner and has the mark of the last checkpoint.
//! Records follow, each at the start of a block. A record is valid if its epoch, number and
//! checksum are right. The epoch is random and new at each start, so that bytes that a client chose
//! are never taken for a record.
//!
//! A mark is written before its checkpoint is made, in one of two places, alternately. So the mark
//! of the checkpoint that the data file has is there whenever the process ends, and a start
//! requires it: a journal without it is older than the data file, newer, or another's.

use std::io;

use redb::StorageBackend;
use sha2::{Digest, Sha256};

use crate::redb::data_file::FileId;
use head::Head;
use ownership::required_head;

pub(super) use direct_file::DirectFile;
pub(super) use ownership::{OfAnother, belongs_to, keep_of_another};

mod direct_file;
mod head;
mod ownership;

/// Alignment of a direct write, in memory and in the file, in bytes.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Length of a new journal in bytes.
pub(super) const FIRST_BYTES: u64 = 1 << 20;
/// Smallest growth of the file, in bytes.
const GROWTH_BYTES: u64 = 1 << 20;

/// Bytes of a checksum: the first of a SHA-256 digest.
const CHECKSUM_BYTES: usize = 16;
/// Bytes of a record before its changes: epoch, number, length of the changes, checksum.
const HEAD_BYTES: usize = 8 + 8 + 8 + CHECKSUM_BYTES;

/// Secret of one start, which identifies its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(pub(super) u64);

/// Place in the journal up to which the data file has everything, as the data file keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) epoch: Epoch,
    /// Number of the last record whose changes the file has.
    pub(super) record: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum JournalError {
    #[error(transparent)]
    OfAnother(#[from] OfAnother),
    #[error("record {record} of the journal is damaged, although later ones exist")]
    Damaged { record: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) struct JournalFile {
    pub(super) storage: Box<dyn StorageBackend>,
    /// `None` if it is no file.
    pub(super) id: Option<FileId>,
}

#[derive(Debug)]
pub(super) struct Journal {
    storage: Box<dyn StorageBackend>,
    id: Option<FileId>,
    epoch: Epoch,
    head: Head,
    /// Number of the last record that is known to be on disk.
    last: u64,
    /// Beginning of the next record, in bytes.
    position: u64,
    /// Length of the file, in bytes.
    length: u64,
    /// The next record was begun, and it is not known if it is on disk.
    is_next_in_doubt: bool,
    buffer: AlignedBuffer,
}

impl Journal {
    /// Reads the records of a journal after a checkpoint, and changes nothing.
    pub(super) fn read_after<E: From<JournalError>>(
        file: JournalFile,
        checkpoint: Checkpoint,
        mut replay: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let head = required_head(&file, checkpoint)?;
        let journal = Self::over(file, checkpoint.epoch, head).map_err(JournalError::from)?;
        journal.replay_after(checkpoint, &mut replay)
    }

    /// Takes over a storage of whole blocks for a new epoch. Its records are those after
    /// `checkpoint`; without one there are none. Nothing is lost if the process ends before the
    /// data file knows of the new epoch: the journal is then still that of the old one. An epoch
    /// that an attempt to open it has used already may be used again.
    ///
    /// Calls `replay` with the changes of each record, in order.
    pub(super) fn open<E: From<JournalError>>(
        file: JournalFile,
        checkpoint: Option<Checkpoint>,
        epoch: Epoch,
        mut replay: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let start = Checkpoint { epoch, record: 0 };
        let head = match checkpoint {
            Some(checkpoint) => required_head(&file, checkpoint)?,
            None => Head::new(start),
        };
        let mut journal = Self::over(file, epoch, head).map_err(JournalError::from)?;
        if let Some(checkpoint) = checkpoint {
            journal.replay_after(checkpoint, &mut replay)?;
            // First the marks: a loss of power in the middle of a block may leave only a part of
            // it.
            journal.head.add_mark(checkpoint, start);
            journal.write_head().map_err(JournalError::from)?;
            journal.head.take_over(epoch, checkpoint.epoch);
        }
        journal.write_head().map_err(JournalError::from)?;
        Ok(journal)
    }

    /// A journal over a storage, before anything is replayed or written.
    fn over(file: JournalFile, epoch: Epoch, head: Head) -> io::Result<Self> {
        let JournalFile { storage, id } = file;
        Ok(Self {
            length: storage.len()?,
            storage,
            id,
            epoch,
            head,
            last: 0,
            position: BLOCK_BYTES as u64,
            is_next_in_doubt: false,
            buffer: AlignedBuffer::default(),
        })
    }

    /// Place up to which the data file has everything once a checkpoint that begins now is durable.
    /// It makes a record in doubt void.
    pub(super) fn checkpoint(&self) -> Checkpoint {
        let record = self.last + u64::from(self.is_next_in_doubt);
        Checkpoint { epoch: self.epoch, record }
    }

    /// Marks the checkpoint that is about to be made: a start of the data file that has it requires
    /// the mark. The mark of the last durable checkpoint stays.
    pub(super) fn mark(&mut self, checkpoint: Checkpoint) -> io::Result<()> {
        if self.head.is_kept(checkpoint) {
            return Ok(());
        }
        self.head.mark(checkpoint);
        self.write_head()
    }

    /// Begins again at the start, because a checkpoint is durable: the data file has everything.
    pub(super) fn restart(&mut self, checkpoint: Checkpoint) {
        self.head.keep(checkpoint);
        self.last = checkpoint.record;
        self.position = BLOCK_BYTES as u64;
        self.is_next_in_doubt = false;
    }

    /// Bytes of the records since the last checkpoint.
    pub(super) fn used_bytes(&self) -> u64 {
        self.position - BLOCK_BYTES as u64
    }

    /// Writes into the file that it belongs only to this epoch: the data file knows of the epoch.
    pub(super) fn own(&mut self) -> io::Result<()> {
        self.head.keep(self.checkpoint());
        self.head.owners = [self.epoch; 2];
        self.write_head()
    }

    /// Continues in another file, or stays in this one if that fails. Nothing of this one may be
    /// needed any more. Returns the checkpoint that the data file is to have then.
    pub(super) fn move_to(&mut self, file: JournalFile) -> io::Result<Checkpoint> {
        // A number that the previous file did not have, so that the two are not confused.
        let checkpoint = Checkpoint { epoch: self.epoch, record: self.last + 1 };
        let mut moved = Self::over(file, self.epoch, Head::new(checkpoint))?;
        moved.last = checkpoint.record;
        moved.write_head()?;
        *self = moved;
        Ok(checkpoint)
    }

    pub(super) fn id(&self) -> Option<FileId> {
        self.id
    }

    /// Writes into the file that no data file needs it any more.
    pub(super) fn disown(&mut self) -> io::Result<()> {
        self.storage.write(0, self.buffer.zeroed(BLOCK_BYTES))?;
        self.storage.sync_data()
    }

    /// Makes room for a record with this many bytes of changes. If that fails, the journal is as it
    /// was, and nothing is in doubt.
    pub(super) fn make_room(&mut self, changes: usize) -> io::Result<()> {
        let end = self.position + record_bytes(changes);
        if end > self.length {
            let length = end.max(self.length + GROWTH_BYTES).next_multiple_of(BLOCK_BYTES as u64);
            self.storage.set_len(length)?;
            self.length = length;
        }
        Ok(())
    }

    /// Writes the changes of a batch. After `Ok`, they are on disk. After an error it is not known
    /// if they are, until a checkpoint is durable. There must be room.
    pub(super) fn append(&mut self, changes: &[u8]) -> io::Result<()> {
        let number = self.last + 1;
        let bytes = usize::try_from(record_bytes(changes.len())).expect("a record is in memory");
        let record = self.buffer.zeroed(bytes);
        record[..8].copy_from_slice(&self.epoch.0.to_le_bytes());
        record[8..16].copy_from_slice(&number.to_le_bytes());
        record[16..24].copy_from_slice(&(changes.len() as u64).to_le_bytes());
        record[HEAD_BYTES..HEAD_BYTES + changes.len()].copy_from_slice(changes);
        let checksum = checksum(&[&record[..24], changes]);
        record[24..HEAD_BYTES].copy_from_slice(&checksum);
        self.is_next_in_doubt = true;
        self.storage.write(self.position, record)?;
        self.storage.sync_data()?;
        self.is_next_in_doubt = false;
        self.last = number;
        self.position += bytes as u64;
        Ok(())
    }

    /// Returns true if the record in doubt can be read.
    pub(super) fn is_doubt_on_disk(&self) -> bool {
        self.is_next_in_doubt
            && match self.read(self.epoch, self.position) {
                Ok(found) => found.is_some_and(|(number, _)| number == self.last + 1),
                Err(_) => true,
            }
    }

    /// Replays the records of this start after a checkpoint: those that are known to be on disk.
    pub(super) fn replay<E: From<JournalError>>(
        &self,
        checkpoint: Checkpoint,
        mut replay: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if checkpoint.epoch != self.epoch {
            return Err(JournalError::from(OfAnother::Start).into());
        }
        let (last, _) = self.replay_up_to(self.last, checkpoint, &mut replay)?;
        if last < self.last {
            return Err(JournalError::Damaged { record: last + 1 }.into());
        }
        Ok(())
    }

    /// Replays the records that an earlier start left, up to the first that is not whole: that
    /// record was not answered.
    fn replay_after<E: From<JournalError>>(
        &self,
        checkpoint: Checkpoint,
        replay: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (last, end) = self.replay_up_to(u64::MAX, checkpoint, replay)?;
        // A write that was cut off was the last one.
        for behind in (end..self.length).step_by(BLOCK_BYTES) {
            let found = self.read(checkpoint.epoch, behind).map_err(JournalError::from)?;
            if let Some((number, _)) = found.filter(|(number, _)| *number > last) {
                return Err(if self.head.has_mark_between(checkpoint, number) {
                    JournalError::from(OfAnother::Newer).into()
                } else {
                    JournalError::Damaged { record: last + 1 }.into()
                });
            }
        }
        Ok(())
    }

    /// Replays the records after a checkpoint, up to this number or the first that is not whole;
    /// returns the number of the last, and the position of the next one.
    fn replay_up_to<E: From<JournalError>>(
        &self,
        up_to: u64,
        checkpoint: Checkpoint,
        replay: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(u64, u64), E> {
        let (mut last, mut position) = (checkpoint.record, BLOCK_BYTES as u64);
        while last < up_to
            && let Some((number, changes)) =
                self.read(checkpoint.epoch, position).map_err(JournalError::from)?
            && number == last + 1
        {
            replay(&changes)?;
            position += record_bytes(changes.len());
            last = number;
        }
        Ok((last, position))
    }

    /// Reads the valid record of an epoch that begins at a position, if there is one.
    fn read(&self, epoch: Epoch, position: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        if position + BLOCK_BYTES as u64 > self.length {
            return Ok(None);
        }
        let mut head = [0; HEAD_BYTES];
        self.storage.read(position, &mut head)?;
        let number_at =
            |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let (number, length) = (number_at(8), number_at(16));
        let room = self.length - position - HEAD_BYTES as u64;
        if number_at(0) != epoch.0 || length > room {
            return Ok(None);
        }
        let mut changes = vec![0; usize::try_from(length).expect("less than the file's length")];
        self.storage.read(position + HEAD_BYTES as u64, &mut changes)?;
        let is_valid = checksum(&[&head[..24], &changes]) == head[24..];
        Ok(is_valid.then_some((number, changes)))
    }

    fn write_head(&mut self) -> io::Result<()> {
        let block = self.buffer.zeroed(BLOCK_BYTES);
        self.head.encode(block);
        if self.length < FIRST_BYTES {
            self.storage.set_len(FIRST_BYTES)?;
            self.length = FIRST_BYTES;
        }
        self.storage.write(0, block)?;
        self.storage.sync_data()
    }
}

/// Bytes that a record with this many bytes of changes takes up.
fn record_bytes(changes: usize) -> u64 {
    (HEAD_BYTES + changes).next_multiple_of(BLOCK_BYTES) as u64
}

fn checksum(parts: &[&[u8]]) -> [u8; CHECKSUM_BYTES] {
    let hash = parts.iter().fold(Sha256::new(), Sha256::chain_update);
    *hash.finalize().first_chunk().expect("a digest has 32 bytes")
}

/// Memory that begins at a multiple of [`BLOCK_BYTES`], as direct writes need it.
#[derive(Debug, Default)]
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    /// Returns this many zero bytes.
    fn zeroed(&mut self, length: usize) -> &mut [u8] {
        if self.memory.len() < length + BLOCK_BYTES {
            self.memory = vec![0; length.next_power_of_two() + BLOCK_BYTES];
            self.start = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        }
        let bytes = &mut self.memory[self.start..self.start + length];
        bytes.fill(0);
        bytes
    }
}

#[cfg(test)]
mod tests;
