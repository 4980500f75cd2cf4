//! The store on a drive that loses power at any write, again and again, also while the store opens.
//!
//! Each seed is one story: lives of a store, in batches that share a commit, with a loss of power
//! at the end of each. After each loss the store must hold everything that it promised, and nothing
//! that it refused. The bodies survive some of the losses: then pending messages have to stay
//! pending. `POWER_SEEDS` is the number of stories, `SEED` the first one.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ledger::Ledger;
use redb::{Database, StorageBackend};
use story::Story;

use crate::redb::CACHE_BYTES;
use crate::redb::open::{Opener, initialize};

mod ledger;
mod story;

const SEEDS: u64 = if cfg!(feature = "long") { 5_000 } else { 100 };

/// Counts of the events of a story.
#[derive(Debug, Default)]
struct Survived {
    losses: u64,
    losses_while_opening: u64,
    acknowledged: u64,
    /// Messages that a start kept pending.
    kept: u64,
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Runs the story of a seed; returns the broken promise, if there is one.
fn live(seed: u64, syncs: Syncs) -> Result<Survived, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    // A file that is not whole may make redb panic: then the store is lost as well.
    let lived = catch_unwind(AssertUnwindSafe(|| runtime.block_on(Story::new(seed, syncs).run())));
    runtime.shutdown_timeout(Duration::ZERO);
    lived.unwrap_or_else(|_| Err("panicked".to_owned()))
}

#[test]
fn nothing_acknowledged_is_lost_when_the_power_goes() {
    let (first, seeds) = (number("SEED", 1), number("POWER_SEEDS", SEEDS));
    let mut all = Survived::default();
    for seed in first..first + seeds {
        let survived = live(seed, Syncs::Honest);
        let survived = survived.unwrap_or_else(|broken| panic!("SEED={seed}: {broken}"));
        all.losses += survived.losses;
        all.losses_while_opening += survived.losses_while_opening;
        all.acknowledged += survived.acknowledged;
        all.kept += survived.kept;
        if (seed + 1 - first).is_multiple_of(500) {
            println!("{} seeds so far: {all:?}", seed + 1 - first);
        }
    }
    println!("{seeds} seeds from {first}: {all:?}, none lost");
    assert!(all.losses > seeds && all.acknowledged > 10 * seeds, "too little happened: {all:?}");
    assert!(all.kept > seeds || seeds < 20, "too few bodies survived: {all:?}");
    assert!(all.losses_while_opening > 0 || seeds < 20, "no loss hit a recovery");
}

#[test]
fn a_drive_that_lies_about_syncs_is_found_out() {
    let broken: Vec<String> = (1..=20).filter_map(|seed| live(seed, Syncs::Lying).err()).collect();
    println!("{broken:#?}");
    assert!(broken.len() > 10, "of 20 lying drives, only {} were found out", broken.len());
    let lost = broken.iter().filter(|what| what.contains("is lost"));
    assert!(lost.count() > 0, "no acknowledged message is missed: {broken:#?}");
}

/// `create_if_missing` gives the file its name only after a sync of all of it; before that, a start
/// finds no file and begins anew.
#[test]
fn a_new_file_is_whole_once_it_is_synced_whenever_the_power_goes_before_or_after() {
    let mut steps = 0;
    loop {
        let drive = Drive::empty();
        drive.lose_power_after(steps);
        let made = catch_unwind(AssertUnwindSafe(|| {
            let database = redb::Database::builder().create_with_backend(drive.clone());
            let made = database.is_ok_and(|database| initialize(&database).is_ok());
            made && redb::StorageBackend::sync_data(&drive).is_ok()
        }));
        if made.expect("a loss of power is an error and no panic") {
            for seed in 0..50 {
                let after = drive.after_loss(&mut fastrand::Rng::with_seed(seed));
                Ledger::default().open_empty(&after).unwrap();
            }
            break;
        }
        steps += 1;
        assert!(steps < 1_000, "the file is never made");
    }
    assert!(steps > 5, "a file is made in {steps} steps");
}

/// Unit that a drive writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// Effect of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syncs {
    /// It returns once everything written before is safe.
    Honest,
    /// It returns at once, and nothing is safe: a drive with a volatile cache that ignores flushes.
    Lying,
}

/// One of the two files of a drive; clones are the same file.
#[derive(Debug, Clone)]
pub(super) struct Drive {
    state: Arc<Mutex<State>>,
    file: Which,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Data,
    Journal,
}

#[derive(Debug, Clone, Default)]
struct Content {
    /// Content as the process reads it.
    seen: Vec<u8>,
    /// Content that every loss of power leaves.
    safe: Vec<u8>,
    /// Changes since the last sync, oldest first.
    unsafe_changes: Vec<Change>,
}

#[derive(Debug)]
struct State {
    syncs: Syncs,
    data: Content,
    journal: Content,
    /// Number of further changes and syncs that begin before the power is lost; `None` to keep it
    /// on.
    until_loss: Option<u64>,
    power: Power,
}

#[derive(Debug, PartialEq, Eq)]
enum Power {
    On,
    Off,
}

#[derive(Debug, Clone)]
enum Change {
    Length(usize),
    Write { offset: usize, data: Vec<u8> },
}

impl Drive {
    /// A drive that safely holds an empty store.
    pub(super) fn formatted(syncs: Syncs) -> Self {
        let drive = Self::empty();
        let database = Database::builder().create_with_backend(drive.clone()).unwrap();
        initialize(&database).unwrap();
        drop(database);
        let content = drive.state().data.seen.clone();
        Self::with(content, Vec::new(), syncs)
    }

    /// Opens a store on it.
    pub(super) fn opener(&self) -> Opener {
        let data = self.clone();
        let journal = Self { state: Arc::clone(&self.state), file: Which::Journal };
        Opener::backend(CACHE_BYTES, move || data.clone(), move || journal.clone())
    }

    /// A drive without any content.
    pub(super) fn empty() -> Self {
        Self::with(Vec::new(), Vec::new(), Syncs::Honest)
    }

    fn with(data: Vec<u8>, journal: Vec<u8>, syncs: Syncs) -> Self {
        let content =
            |bytes: Vec<u8>| Content { safe: bytes.clone(), seen: bytes, ..Content::default() };
        let state = State {
            syncs,
            data: content(data),
            journal: content(journal),
            until_loss: None,
            power: Power::On,
        };
        Self { state: Arc::new(Mutex::new(state)), file: Which::Data }
    }

    /// Cuts the power after this many further changes and syncs, in the middle of the next one.
    pub(super) fn lose_power_after(&self, steps: u64) {
        self.state().until_loss = Some(steps);
    }

    /// Keeps the power on.
    pub(super) fn stay_on(&self) {
        self.state().until_loss = None;
    }

    /// Returns true if the power is off.
    pub(super) fn is_off(&self) -> bool {
        self.state().power == Power::Off
    }

    /// Cuts the power, if it is still on, and returns the drive as it comes back.
    pub(super) fn after_loss(&self, random: &mut fastrand::Rng) -> Self {
        let mut state = self.state();
        state.power = Power::Off;
        let [data, journal] = [&state.data, &state.journal].map(|file| file.after_loss(random));
        Self::with(data, journal, state.syncs)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Content {
    /// Content after a loss of power.
    fn after_loss(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut content = self.safe.clone();
        let number = self.unsafe_changes.len();
        // Number of the changes that the drive had begun, and the chance that a sector arrived.
        let (begun, chance) = match random.u8(0..4) {
            0 => (0, 0.0),
            1 => (number, 1.0),
            2 => (random.usize(0..=number), 1.0),
            _ => (number, [0.1, 0.5, 0.9][random.usize(0..3)]),
        };
        for (position, change) in self.unsafe_changes[..begun].iter().enumerate() {
            let torn = position + 1 == begun && begun < number;
            let chance = if torn { 0.5 } else { chance };
            match change {
                Change::Length(length) if random.f64() < chance => content.resize(*length, 0),
                Change::Length(_) => {}
                Change::Write { offset, data } => {
                    write_sectors(&mut content, *offset, data, || random.f64() < chance);
                }
            }
        }
        content
    }
}

/// Writes those sectors that arrive.
fn write_sectors(
    content: &mut [u8],
    offset: usize,
    data: &[u8],
    mut arrives: impl FnMut() -> bool,
) {
    let mut start = 0;
    while start < data.len() {
        let end = data.len().min(start + SECTOR - (offset + start) % SECTOR);
        if arrives()
            && let Some(place) = content.get_mut(offset + start..offset + end)
        {
            place.copy_from_slice(&data[start..end]);
        }
        start = end;
    }
}

impl State {
    fn file(&mut self, which: Which) -> &mut Content {
        match which {
            Which::Data => &mut self.data,
            Which::Journal => &mut self.journal,
        }
    }

    fn is_on(&self) -> io::Result<()> {
        match self.power {
            Power::On => Ok(()),
            Power::Off => Err(io::Error::other("there is no power")),
        }
    }

    /// Returns true if the step that has begun also ends.
    fn step(&mut self) -> io::Result<()> {
        match &mut self.until_loss {
            Some(0) => self.power = Power::Off,
            Some(steps) => *steps -= 1,
            None => {}
        }
        self.is_on()
    }
}

impl StorageBackend for Drive {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.is_on()?;
        Ok(state.file(self.file).seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let mut state = self.state();
        state.is_on()?;
        let bytes = state.file(self.file).seen.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let length = usize::try_from(len).unwrap();
        let mut state = self.state();
        state.is_on()?;
        let file = state.file(self.file);
        file.seen.resize(length, 0);
        file.unsafe_changes.push(Change::Length(length));
        state.step()
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.is_on()?;
        state.step()?;
        if state.syncs == Syncs::Honest {
            let file = state.file(self.file);
            for change in std::mem::take(&mut file.unsafe_changes) {
                match change {
                    Change::Length(length) => file.safe.resize(length, 0),
                    Change::Write { offset, data } => {
                        write_sectors(&mut file.safe, offset, &data, || true);
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let mut state = self.state();
        state.is_on()?;
        let file = state.file(self.file);
        let bytes = file.seen.get_mut(offset..offset + data.len());
        bytes.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        file.unsafe_changes.push(Change::Write { offset, data: data.to_vec() });
        state.step()
    }
}
