use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use redb::backends::InMemoryBackend;

use super::ownership::owners;
use super::*;
use crate::redb::JOURNAL_NAME;

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

impl Memory {
    /// Another memory with the same content.
    fn copied(&self) -> Self {
        let mut bytes = vec![0; usize::try_from(self.len().unwrap()).unwrap()];
        self.read(0, &mut bytes).unwrap();
        let copy = Self::default();
        copy.set_len(bytes.len() as u64).unwrap();
        copy.write(0, &bytes).unwrap();
        copy
    }
}

/// Memory that keeps its content after each write.
#[derive(Debug, Clone)]
struct History {
    now: Memory,
    states: Arc<Mutex<Vec<Memory>>>,
}

impl History {
    fn of(memory: &Memory) -> Self {
        Self { now: memory.clone(), states: Arc::new(Mutex::new(vec![memory.copied()])) }
    }

    fn states(&self) -> Vec<Memory> {
        self.states.lock().unwrap().iter().map(Memory::copied).collect()
    }
}

impl StorageBackend for History {
    fn len(&self) -> io::Result<u64> {
        self.now.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.now.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.now.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.now.write(offset, data)?;
        self.states.lock().unwrap().push(self.now.copied());
        Ok(())
    }
}

/// Opens a journal; returns it with the replayed changes.
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
    // The data file did not get the second epoch: the journal is still the first one's.
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
    journal.mark(checkpoint).unwrap();
    journal.restart(checkpoint);
    append(&mut journal, b"fourth");
    assert_eq!(open(&memory, Some(checkpoint), Epoch(33)).unwrap().1, [b"fourth"]);
    // A checkpoint that was not durable: its records are overwritten, which must be detected.
    let before = Checkpoint { epoch: SECOND, record: 0 };
    assert!(matches!(
        open(&memory, Some(before), Epoch(33)).unwrap_err(),
        JournalError::OfAnother(OfAnother::Newer)
    ));
}

/// Makes a checkpoint of everything.
fn make_checkpoint(journal: &mut Journal) -> Checkpoint {
    let checkpoint = journal.checkpoint();
    journal.mark(checkpoint).unwrap();
    journal.restart(checkpoint);
    checkpoint
}

#[test]
fn only_the_journal_with_the_mark_of_the_data_files_checkpoint_is_taken() {
    let memory = Memory::default();
    let (mut journal, _) = open(&memory, None, FIRST).unwrap();
    let (mut checkpoints, mut journals) = (vec![START], vec![memory.copied()]);
    for _ in 0..4 {
        append(&mut journal, b"one");
        append(&mut journal, b"two");
        checkpoints.push(make_checkpoint(&mut journal));
        append(&mut journal, b"three");
        journals.push(memory.copied());
    }
    for (of_file, checkpoint) in checkpoints.iter().enumerate() {
        for (of_journal, journal) in journals.iter().enumerate() {
            let opened = open(&journal.copied(), Some(*checkpoint), SECOND);
            match (of_file.cmp(&of_journal), opened) {
                (std::cmp::Ordering::Equal, Ok((_, replayed))) => {
                    assert_eq!(replayed.len(), usize::from(of_file > 0));
                }
                (std::cmp::Ordering::Greater, Err(JournalError::OfAnother(OfAnother::Older)))
                | (std::cmp::Ordering::Less, Err(JournalError::OfAnother(OfAnother::Newer))) => {}
                (_, opened) => panic!("{of_file} {of_journal}: {:?}", opened.map(|found| found.1)),
            }
        }
    }
}

#[test]
fn a_checkpoint_that_may_have_failed_keeps_its_mark_and_the_one_before() {
    let memory = Memory::default();
    let (mut journal, _) = open(&memory, None, FIRST).unwrap();
    append(&mut journal, b"one");
    let kept = make_checkpoint(&mut journal);
    append(&mut journal, b"two");
    // It is not known if the data file has it; it is tried again.
    for _ in 0..3 {
        let in_doubt = journal.checkpoint();
        journal.mark(in_doubt).unwrap();
        assert_eq!(open(&memory.copied(), Some(kept), SECOND).unwrap().1, [b"two"]);
        assert!(open(&memory.copied(), Some(in_doubt), SECOND).unwrap().1.is_empty());
    }
}

#[test]
fn a_record_in_doubt_is_void_once_a_checkpoint_has_its_number() {
    let memory = Memory::default();
    let (mut journal, _) = open(&memory, None, FIRST).unwrap();
    append(&mut journal, b"one");
    // It is on disk, but this is not known.
    append(&mut journal, b"doubt");
    (journal.last, journal.is_next_in_doubt) = (1, true);
    journal.position -= BLOCK_BYTES as u64;
    assert!(journal.is_doubt_on_disk());
    let void = journal.checkpoint();
    assert_eq!(void.record, 2);
    journal.mark(void).unwrap();
    assert_eq!(open(&memory.copied(), Some(START), SECOND).unwrap().1, [&b"one"[..], b"doubt"]);
    assert!(open(&memory.copied(), Some(void), SECOND).unwrap().1.is_empty());
    journal.restart(void);
    append(&mut journal, b"three");
    assert_eq!(open(&memory.copied(), Some(void), SECOND).unwrap().1, [b"three"]);
}

#[test]
fn a_journal_goes_on_in_another_file_under_a_number_that_the_first_never_had() {
    let (memory, other) = (Memory::default(), Memory::default());
    let (mut journal, _) = open(&memory, None, FIRST).unwrap();
    append(&mut journal, b"one");
    let before = make_checkpoint(&mut journal);
    let file = JournalFile { storage: Box::new(other.clone()), id: None };
    let moved = journal.move_to(file).unwrap();
    append(&mut journal, b"two");
    assert_eq!(open(&other.copied(), Some(moved), SECOND).unwrap().1, [b"two"]);
    assert!(matches!(
        open(&memory, Some(moved), SECOND).unwrap_err(),
        JournalError::OfAnother(OfAnother::Older)
    ));
    assert!(matches!(
        open(&other, Some(before), SECOND).unwrap_err(),
        JournalError::OfAnother(OfAnother::Newer)
    ));
}

/// Copies of a journal's first block as a loss of power may leave them: with each selection of the
/// sectors that a write changes.
fn torn(before: &Memory, after: &Memory) -> Vec<Memory> {
    const SECTOR: usize = 512;
    let [old, new] = [before, after].map(|memory| {
        let mut block = [0; BLOCK_BYTES];
        memory.read(0, &mut block).unwrap();
        block
    });
    let changed: Vec<_> = (0..BLOCK_BYTES)
        .step_by(SECTOR)
        .filter(|at| old[*at..at + SECTOR] != new[*at..at + SECTOR])
        .collect();
    let selections = 0..1_u32 << changed.len();
    let copies = selections.map(|selection| {
        let copy = before.copied();
        for (bit, at) in changed.iter().enumerate() {
            if selection >> bit & 1 == 1 {
                copy.write(*at as u64, &new[*at..at + SECTOR]).unwrap();
            }
        }
        copy
    });
    copies.collect()
}

/// Makes a journal one of the layout that had no marks.
fn without_marks(memory: &Memory) {
    let mut block = vec![0; BLOCK_BYTES];
    block[..16].copy_from_slice(b"pillarbox jrnl 1");
    block[16..24].copy_from_slice(&FIRST.0.to_le_bytes());
    block[24..32].copy_from_slice(&FIRST.0.to_le_bytes());
    let sum = checksum(&[&block[..32]]);
    block[32..48].copy_from_slice(&sum);
    memory.write(0, &block).unwrap();
}

#[test]
fn a_start_may_be_cut_off_at_any_write_also_the_first_one_of_a_version_that_makes_marks() {
    for has_marks in [true, false] {
        let (memory, records) = three_records();
        if !has_marks {
            without_marks(&memory);
        }
        let history = History::of(&memory);
        let file = JournalFile { storage: Box::new(history.clone()), id: None };
        let taken = Journal::open(file, Some(START), SECOND, |_| Ok::<(), JournalError>(()));
        let opened = history.states();
        // Now the data file has the new epoch, or not: its commit is in doubt.
        taken.unwrap().own().unwrap();
        let owned = history.states();
        let is_as_before = |memory: &Memory| {
            assert_eq!(open(memory, Some(START), Epoch(33)).unwrap().1, records, "{has_marks}");
        };
        for pair in opened.windows(2) {
            torn(&pair[0], &pair[1]).iter().for_each(is_as_before);
        }
        is_as_before(&opened.last().unwrap().copied());
        let new = Checkpoint { epoch: SECOND, record: 0 };
        for pair in owned[opened.len() - 1..].windows(2) {
            for memory in torn(&pair[0], &pair[1]) {
                assert!(open(&memory, Some(new), Epoch(33)).unwrap().1.is_empty(), "{has_marks}");
            }
        }
    }
}

#[test]
fn an_attempt_to_open_it_may_be_made_again_though_nobody_knows_what_became_of_the_last() {
    let (memory, records) = three_records();
    let new = Checkpoint { epoch: SECOND, record: 0 };
    for seen in [START, new, START, new] {
        let replayed = open(&memory, Some(seen), SECOND).unwrap().1;
        assert_eq!(replayed.len(), if seen == START { 3 } else { 0 });
        assert_eq!(open(&memory.copied(), Some(START), Epoch(33)).unwrap().1, records);
        assert!(open(&memory.copied(), Some(new), Epoch(33)).unwrap().1.is_empty());
    }
}

#[test]
fn a_journal_of_another_file_is_refused() {
    let (memory, _) = three_records();
    let other = Checkpoint { epoch: Epoch(99), record: 0 };
    assert!(matches!(
        open(&memory, Some(other), SECOND).unwrap_err(),
        JournalError::OfAnother(OfAnother::Start)
    ));
    let empty = Memory::default();
    assert!(matches!(
        open(&empty, Some(START), SECOND).unwrap_err(),
        JournalError::OfAnother(OfAnother::Start)
    ));
    let (memory, _) = three_records();
    flip(&memory, 0, 20);
    assert!(matches!(
        open(&memory, Some(START), SECOND).unwrap_err(),
        JournalError::OfAnother(OfAnother::Start)
    ));
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
    /// No content of the journal makes an open panic, and only whole records are replayed.
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
    // A direct write can have neither this place nor this length.
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
