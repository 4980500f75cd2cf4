use std::sync::Arc;

use proptest::prelude::*;
use redb::backends::InMemoryBackend;

use super::*;
use crate::store::redb::JOURNAL_NAME;

const FIRST: Epoch = Epoch(11);
const SECOND: Epoch = Epoch(22);
const START: Checkpoint = Checkpoint { epoch: FIRST, record: 0 };

/// Memory that outlives the journal on it.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<InMemoryBackend>);

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// Opens a journal; gives it with what it replayed.
fn open(
    memory: &Memory,
    checkpoint: Option<Checkpoint>,
    epoch: Epoch,
) -> Result<(Journal, Vec<Vec<u8>>), JournalError> {
    let mut replayed = Vec::new();
    let file = JournalFile { storage: Box::new(memory.clone()), id: None };
    let journal = Journal::open(file, checkpoint, epoch, |changes| {
        replayed.push(changes.to_vec());
        Ok::<(), JournalError>(())
    })?;
    Ok((journal, replayed))
}

fn append(journal: &mut Journal, changes: &[u8]) {
    journal.make_room(changes.len()).unwrap();
    journal.append(changes).unwrap();
}

/// A journal with three records, the second of which takes two blocks.
fn three_records() -> (Memory, [Vec<u8>; 3]) {
    let memory = Memory::default();
    let (mut journal, _) = open(&memory, None, FIRST).unwrap();
    let records = [vec![1; 10], vec![2; BLOCK_BYTES], vec![3; 20]];
    for changes in &records {
        append(&mut journal, changes);
    }
    (memory, records)
}

fn flip(memory: &Memory, block: u64, at: u64) {
    let mut byte = [0];
    memory.read(block * BLOCK_BYTES as u64 + at, &mut byte).unwrap();
    memory.write(block * BLOCK_BYTES as u64 + at, &[byte[0] ^ 1]).unwrap();
}

#[test]
fn records_after_the_checkpoint_are_replayed_in_order() {
    let (memory, records) = three_records();
    assert_eq!(open(&memory, Some(START), SECOND).unwrap().1, records);
    // The data file never learned of the second epoch: the journal is still the first one's.
    assert_eq!(open(&memory, Some(START), Epoch(33)).unwrap().1, records);
    let (mut journal, _) = open(&memory, Some(START), SECOND).unwrap();
    append(&mut journal, b"new");
    let kept = Checkpoint { epoch: SECOND, record: 0 };
    assert_eq!(open(&memory, Some(kept), Epoch(33)).unwrap().1, [b"new"]);
}

#[test]
fn a_record_that_is_not_whole_ends_the_replay() {
    for (block, at) in [(4, 0), (4, 8), (4, 16), (4, 24), (4, HEAD_BYTES as u64 + 3)] {
        let (memory, records) = three_records();
        flip(&memory, block, at);
        assert_eq!(open(&memory, Some(START), SECOND).unwrap().1, records[..2], "{block} {at}");
    }
}

#[test]
fn a_damaged_record_before_a_whole_one_is_no_torn_end() {
    for (block, record) in [(1, 1), (2, 2), (3, 2)] {
        let (memory, _) = three_records();
        flip(&memory, block, 30);
        let damaged = open(&memory, Some(START), SECOND).unwrap_err();
        assert!(
            matches!(damaged, JournalError::Damaged { record: found } if found == record),
            "{damaged:?}"
        );
    }
}

#[test]
fn what_a_checkpoint_has_is_not_replayed_though_it_lies_behind_new_records() {
    let (memory, records) = three_records();
    let (mut journal, _) = open(&memory, Some(START), SECOND).unwrap();
    for changes in &records {
        append(&mut journal, changes);
    }
    let checkpoint = journal.checkpoint();
    assert_eq!(checkpoint, Checkpoint { epoch: SECOND, record: 3 });
    journal.restart(checkpoint);
    append(&mut journal, b"fourth");
    assert_eq!(open(&memory, Some(checkpoint), Epoch(33)).unwrap().1, [b"fourth"]);
    // A checkpoint that was not durable: its records are overwritten, which must not go unnoticed.
    let before = Checkpoint { epoch: SECOND, record: 0 };
    assert!(matches!(
        open(&memory, Some(before), Epoch(33)).unwrap_err(),
        JournalError::Damaged { record: 1 }
    ));
}

#[test]
fn a_journal_of_another_file_is_refused() {
    let (memory, _) = three_records();
    let other = Checkpoint { epoch: Epoch(99), record: 0 };
    assert!(matches!(open(&memory, Some(other), SECOND).unwrap_err(), JournalError::Foreign));
    let empty = Memory::default();
    assert!(matches!(open(&empty, Some(START), SECOND).unwrap_err(), JournalError::Foreign));
    let (memory, _) = three_records();
    flip(&memory, 0, 20);
    assert!(matches!(open(&memory, Some(START), SECOND).unwrap_err(), JournalError::Foreign));
}

#[test]
fn bytes_that_look_like_a_record_are_none_without_the_epoch() {
    let memory = Memory::default();
    let (mut journal, _) = open(&memory, None, FIRST).unwrap();
    append(&mut journal, b"first");
    let record = BLOCK_BYTES as u64;
    let mut bytes = vec![0; BLOCK_BYTES];
    memory.read(record, &mut bytes).unwrap();
    // A client that knows the layout, and not the epoch, has its record stored at a block's start.
    bytes[..8].copy_from_slice(&7_u64.to_le_bytes());
    bytes[8..16].copy_from_slice(&2_u64.to_le_bytes());
    let checksum = checksum(&[&bytes[..24], b"first"]);
    bytes[24..HEAD_BYTES].copy_from_slice(&checksum);
    memory.write(2 * record, &bytes).unwrap();
    assert_eq!(open(&memory, Some(START), SECOND).unwrap().1, [b"first"]);
}

proptest! {
    /// Whatever lies in the journal, no open panics, and nothing but whole records is replayed.
    #[test]
    fn any_bytes_behind_the_owners_are_read_or_refused(
        blocks in proptest::collection::vec((1..6_u64, 0..64_u64, any::<[u8; 8]>()), 0..12),
    ) {
        let (memory, records) = three_records();
        for (block, at, bytes) in blocks {
            memory.write(block * BLOCK_BYTES as u64 + at, &bytes).unwrap();
        }
        match open(&memory, Some(START), SECOND) {
            Ok((_, replayed)) => assert_eq!(replayed, records[..replayed.len()]),
            Err(JournalError::Damaged { record }) => assert!((1..=3).contains(&record)),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_journal_that_nobody_needs_says_so() {
    let (memory, _) = three_records();
    assert_eq!(owners(&memory).unwrap(), Some([FIRST, FIRST]));
    let (mut journal, _) = open(&memory, Some(START), SECOND).unwrap();
    assert_eq!(owners(&memory).unwrap(), Some([SECOND, FIRST]));
    journal.disown().unwrap();
    assert_eq!(owners(&memory).unwrap(), None);
}

#[test]
fn a_file_system_without_direct_writes_gets_synchronous_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(JOURNAL_NAME);
    assert!(DirectFile::open(&path).unwrap().is_none());
    let file = DirectFile::create(&path).unwrap();
    assert_eq!(file.len().unwrap(), FIRST_BYTES);
    // Neither place nor length is one that a direct write can have.
    file.write(BLOCK_BYTES as u64 + 1, b"odd").unwrap();
    let mut read = [0; 3];
    file.read(BLOCK_BYTES as u64 + 1, &mut read).unwrap();
    assert_eq!(&read, b"odd");
    file.set_len(FIRST_BYTES + BLOCK_BYTES as u64).unwrap();
    assert_eq!(file.len().unwrap(), FIRST_BYTES + BLOCK_BYTES as u64);
    assert_eq!(DirectFile::open(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(file);
    assert!(DirectFile::open(&path).unwrap().is_some());
}
