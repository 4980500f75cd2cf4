//! The power of a disk: it runs, it is frozen while its users are killed, or it is off.
//!
//! While it is frozen, a write or a change of a directory takes place without a sync, and its caller
//! gets no answer: it is the operation in whose middle the power fails. After the cut, all callers
//! get EIO until the disk is started.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;

use crate::disk::{Disk, DiskError, Loss};
use crate::fault::{Fault, IgnoredSyncs};

/// Duration of a sync of a slow disk.
const SLOW_SYNC: Duration = Duration::from_secs(2);
/// Longest wait for the operation at which a disk is to be frozen.
const FREEZE_PATIENCE: Duration = Duration::from_millis(100);

/// A disk with power.
#[derive(Debug)]
pub struct Power {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) ignored: IgnoredSyncs,
}

#[derive(Debug)]
struct State {
    disk: Disk,
    phase: Phase,
    faults: BTreeSet<Fault>,
    random: Rng,
    /// Number of writes, syncs and changes of entries before the one at which it is frozen.
    freeze_after: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    On,
    Frozen,
    Off,
}

/// The disk and its faults while an operation takes place.
pub(crate) struct Running<'a> {
    pub(crate) disk: &'a mut Disk,
    pub(crate) random: &'a mut Rng,
    faults: &'a mut BTreeSet<Fault>,
    /// False in the middle of a cut: nothing is durable any more.
    pub(crate) syncs: bool,
}

impl Running<'_> {
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Returns true if a fault that happens once happens now.
    pub(crate) fn happens(&mut self, fault: Fault) -> bool {
        self.syncs && self.faults.remove(&fault)
    }
}

impl Power {
    /// A disk that runs. The seed is for the choices of its faults.
    pub fn new(disk: Disk, seed: u64, ignored: IgnoredSyncs) -> Self {
        let (faults, random) = (BTreeSet::new(), Rng::with_seed(seed));
        let state =
            Mutex::new(State { disk, phase: Phase::On, faults, random, freeze_after: None });
        Self { state, changed: Condvar::new(), ignored }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the disk a fault.
    pub fn add_fault(&self, fault: Fault) {
        self.lock().faults.insert(fault);
    }

    /// Begins a cut in the middle of the operation after so many others, or soon if there are no
    /// more. From then on nothing becomes durable, and no caller gets an answer.
    pub fn freeze_after(&self, operations: u64) {
        let mut state = self.lock();
        state.freeze_after = Some(operations);
        let is_on = |state: &mut State| state.phase == Phase::On;
        let waited = self.changed.wait_timeout_while(state, FREEZE_PATIENCE, is_on);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        (state.phase, state.freeze_after) = (Phase::Frozen, None);
    }

    /// Loses what is pending; all callers get EIO. Faults end.
    pub fn cut(&self, seed: u64) -> Loss {
        let mut state = self.lock();
        state.phase = Phase::Off;
        state.faults.clear();
        let loss = state.disk.cut(&mut Rng::with_seed(seed));
        drop(state);
        self.changed.notify_all();
        loss
    }

    /// Starts the disk with what survived. All callers from before the cut must have ended.
    pub fn start(&self) {
        self.lock().phase = Phase::On;
        self.changed.notify_all();
    }

    /// Reads.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&Disk) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let state = self.once_answered(self.lock())?;
        work(&state.disk)
    }

    /// Changes something, and syncs it if [`Running::syncs`] says so. `is_sync` is true if the
    /// caller waits for the drive.
    pub(crate) fn change<T>(
        &self,
        is_sync: bool,
        work: impl FnOnce(Running<'_>) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let mut guard = self.lock();
        if is_sync && guard.phase == Phase::On && guard.faults.contains(&Fault::SlowSync) {
            let is_slow = |state: &mut State| {
                state.phase == Phase::On && state.faults.contains(&Fault::SlowSync)
            };
            let waited = self.changed.wait_timeout_while(guard, SLOW_SYNC, is_slow);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if guard.phase == Phase::Off {
            return Err(DiskError::Io);
        }
        match guard.freeze_after {
            Some(0) => {
                guard.phase = Phase::Frozen;
                self.changed.notify_all();
            }
            Some(left) => guard.freeze_after = Some(left - 1),
            None => {}
        }
        let State { disk, phase, faults, random, .. } = &mut *guard;
        let done = work(Running { disk, random, faults, syncs: *phase == Phase::On });
        drop(self.once_answered(guard)?);
        done
    }

    /// Waits while the disk is frozen; then there is no answer but EIO.
    fn once_answered<'a>(
        &self,
        guard: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, DiskError> {
        if guard.phase == Phase::On {
            return Ok(guard);
        }
        let frozen = self.changed.wait_while(guard, |state| state.phase == Phase::Frozen);
        drop(frozen);
        Err(DiskError::Io)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::disk::{Attributes, Kind, ROOT};

    fn power() -> (Arc<Power>, u64) {
        let mut disk = Disk::new(Attributes::new(0o755, 0, 0));
        let attributes = Attributes::new(0o600, 0, 0);
        let file = disk.create(ROOT, OsStr::new("a"), Kind::File, attributes).unwrap().number;
        disk.write(file, 0, b"old").unwrap();
        disk.sync(file).unwrap();
        disk.sync_directory(ROOT).unwrap();
        (Arc::new(Power::new(disk, 1, IgnoredSyncs::default())), file)
    }

    #[test]
    fn a_write_in_the_middle_of_a_cut_is_lost_or_not_and_gets_no_answer() {
        let mut found = BTreeSet::new();
        for seed in 0..16 {
            let (power, file) = power();
            power.freeze_after(0);
            let writer = Arc::clone(&power);
            let (began, begun) = std::sync::mpsc::channel();
            let writing = std::thread::spawn(move || {
                writer.change(true, |running| {
                    running.disk.write(file, 0, b"new")?;
                    assert!(!running.syncs);
                    began.send(()).unwrap();
                    Ok(())
                })
            });
            begun.recv().unwrap();
            assert!(!writing.is_finished());
            power.cut(seed);
            assert_eq!(writing.join().unwrap(), Err(DiskError::Io));
            assert_eq!(power.read(|disk| disk.inode(file)).map(drop), Err(DiskError::Io));
            power.start();
            found.insert(power.read(|disk| Ok(disk.read(file, 0, 9)?.to_vec())).unwrap());
        }
        assert_eq!(found, BTreeSet::from([b"new".to_vec(), b"old".to_vec()]));
    }

    #[test]
    fn a_disk_freezes_in_the_middle_of_an_operation() {
        let (power, file) = power();
        let writer = Arc::clone(&power);
        let writing = std::thread::spawn(move || {
            (0..=u8::MAX).find(|byte| {
                let write = |running: Running<'_>| {
                    running.disk.write(file, 0, &[*byte])?;
                    if running.syncs { running.disk.sync(file) } else { Ok(()) }
                };
                writer.change(true, write).is_err()
            })
        });
        power.freeze_after(9);
        power.cut(1);
        let last = writing.join().unwrap().unwrap();
        power.start();
        let there = power.read(|disk| Ok(disk.read(file, 0, 1)?[0])).unwrap();
        assert!(there == last || there == last - 1, "{there} and {last}");
        assert!(last >= 9, "{last}");
    }

    #[test]
    fn a_slow_sync_ends_with_a_cut() {
        let (power, file) = power();
        power.add_fault(Fault::SlowSync);
        let began = Instant::now();
        let syncer = Arc::clone(&power);
        let syncing =
            std::thread::spawn(move || syncer.change(true, |running| running.disk.sync(file)));
        power.freeze_after(0);
        power.cut(1);
        assert_eq!(syncing.join().unwrap(), Err(DiskError::Io));
        assert!(began.elapsed() < SLOW_SYNC);
    }
}
