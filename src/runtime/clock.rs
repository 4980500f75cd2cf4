//! Clock: the only place that asks the system for the time, and its stand-in for tests.
//!
//! A wrong wall clock must purge nothing and expire no key. So there are three times:
//!
//! - [`Clock::now`] is the wall clock. It is this machine's, or that of the database that several
//!   nodes have in common ([`Clock::follow`]). So a node with a wrong clock does not harm the
//!   others. Only values that others compare with their own clocks, such as signatures, have
//!   [`Clock::machine_time`].
//! - [`Clock::record_time`] is the instant that is stored with a new message. It is the wall clock
//!   while the clock is trusted. During a doubt it is the last trusted instant plus the time that
//!   has passed since boot.
//! - [`Clock::window_time`] is the time by which windows are judged. It stops during a doubt.
//!
//! A doubt begins if the wall clock moves by over an hour against the time since boot, or if at the
//! start it is behind the file's time stamp or more than 24 hours ahead of it. A doubt ends if the
//! clock agrees again, if the kernel says that its clock is synchronised, or if an operator
//! confirms the clock. Then the error of the recorded instants is known. The file keeps it as a
//! correction ([`clock_corrections`](pillarbox_domain::clock_corrections)), so that each message
//! has its real age. A doubt and the corrections outlive the process: see [`TimeRecord`]. The clock
//! itself writes nothing. It proposes a record, and follows it once the record is durable.
//!
//! The time since boot is never wrong, so all instants of one process have the same error. A
//! correction therefore holds for everything that this process stored since its clock was last
//! confirmed. It holds for earlier processes too, but only if nobody ever confirmed the clock, and
//! only if it makes their instants later: no window may end too early.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, Guard};
use rustix::time::{ClockId, clock_gettime};

use pillarbox_domain::clock_corrections::{
    Adjustment, Assurance, Correction, StoredDoubt, TimeRecord, WindowTime, corrected, lead_millis,
    shifted,
};
use pillarbox_domain::time::{ClockReading, Timestamp};

pub use kernel::Synchronisation;

mod kernel;

/// Largest distance between the wall clock and the time since boot that is not a doubt.
const LARGEST_DRIFT: Duration = Duration::from_hours(1);
/// Largest distance of a start from the file's time stamp that is not a doubt.
const LONGEST_ABSENCE: Duration = Duration::from_hours(24);
/// Time for which a check of the clock holds, and largest distance between the wall clock and the
/// time since boot meanwhile.
const LOOK_HOLDS: Duration = Duration::from_secs(1);
/// Smallest difference between two instants.
const TICK: Duration = Duration::from_millis(1);

/// A source of wall-clock time. Cheap to clone; clones share their state.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Source,
    /// Read without a lock, because every request asks for the time.
    state: ArcSwap<State>,
    /// Held by each caller that changes the state.
    changing: Mutex<()>,
}

#[derive(Debug)]
enum Source {
    System {
        /// Unix time in milliseconds at which this machine was started, by the clock that it
        /// follows. It moves if that clock is set. If it is not set, this machine's clock counts.
        followed: OnceLock<AtomicU64>,
    },
    Manual {
        wall: AtomicU64,
        since_boot_millis: AtomicU64,
        synchronised: AtomicBool,
    },
}

#[derive(Debug, Clone)]
struct State {
    /// Calculated instant of the last moment without a doubt, and the time since boot then.
    stored: Timestamp,
    since_boot: Duration,
    corrections: Arc<[Correction]>,
    assurance: Assurance,
    /// First recorded instant of this process, or since the clock was last confirmed.
    unsure_from: Timestamp,
    doubt: Option<Doubt>,
    /// Number that grows with each change that makes a proposal outdated.
    generation: u64,
}

#[derive(Debug, Clone, Copy)]
struct Doubt {
    kept: StoredDoubt,
    cause: Cause,
}

/// Reason of a doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The clock moved while the process ran, or while others ran that follow the same one.
    Moved,
    /// At the start the clock was behind this time stamp, or too far ahead of it.
    Start { stamp: Timestamp },
}

/// Doubt of the wall clock, as operators see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    /// Time at which window time has stopped.
    pub since: Timestamp,
    /// Time that the clock should show by the time since boot; after a start, the earliest such
    /// time.
    pub expected: Timestamp,
    /// Time that the clock shows.
    pub wall: Timestamp,
    cause: Cause,
}

/// Authority that confirms the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmedBy {
    /// Nobody confirms it.
    Nobody,
    /// The kernel says that its clock is synchronised.
    Kernel,
    /// An operator says that the clock is right.
    Operator,
}

/// Record that is to be made durable, with its consequence for the clock.
#[derive(Debug, Clone)]
pub struct Proposal {
    generation: u64,
    confirmed_by: ConfirmedBy,
    record: TimeRecord,
    end: Option<End>,
}

/// End of a doubt.
#[derive(Debug, Clone, Copy)]
struct End {
    /// First instant to store after the doubt, and the time since boot then.
    stored: Timestamp,
    since_boot: Duration,
    /// Bound of the corrected run. Until the proposal is adopted, instants must be stored before
    /// it.
    before: Timestamp,
}

/// Result of adopting a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adoption {
    /// The clock follows the proposal.
    Adopted,
    /// The clock changed meanwhile; a new proposal is needed.
    Outdated,
}

impl Clock {
    /// Returns the system's clock.
    pub fn system() -> Self {
        Self::new(Source::System { followed: OnceLock::new() })
    }

    /// Returns a clock that stops until it is set or moved on. Its kernel does not say that it is
    /// synchronised.
    pub fn manual(start: Timestamp) -> Self {
        Self::new(Source::Manual {
            wall: AtomicU64::new(start.unix_millis()),
            since_boot_millis: AtomicU64::new(0),
            synchronised: AtomicBool::new(false),
        })
    }

    fn new(source: Source) -> Self {
        let state = State {
            stored: source.wall(),
            since_boot: source.since_boot(),
            corrections: Arc::default(),
            assurance: Assurance::Never,
            unsure_from: source.wall(),
            doubt: None,
            generation: 0,
        };
        let state = ArcSwap::from_pointee(state);
        Self(Arc::new(Inner { source, state, changing: Mutex::new(()) }))
    }

    /// Compares the clock with a file's record, and applies the record's corrections. `newest` is
    /// the last instant that is stored in the file. Call it once, when the file is opened. Without
    /// a record there is no doubt.
    pub fn open(
        &self,
        record: Option<TimeRecord>,
        newest: Option<Timestamp>,
        confirmed_by: ConfirmedBy,
    ) {
        let Some(record) = record else { return };
        let (wall, since_boot) = (self.0.source.wall(), self.0.source.since_boot());
        let expected = corrected(&record.corrections, record.stamp);
        // If nobody ever confirmed the clock, the file's own instants may be wrong as well.
        let is_confirmed =
            confirmed_by != ConfirmedBy::Nobody && record.assurance == Assurance::Given;
        let is_trusted = record.doubt.is_none()
            && wall >= expected
            && (wall <= expected.plus(LONGEST_ABSENCE) || is_confirmed);
        let (stored, corrections, doubt) = if is_trusted {
            // Stored instants never decrease. No correction is needed once the clock is past them.
            let lead = lead_millis(expected, record.stamp);
            let mut corrections = record.corrections;
            let stored = if lead != 0 && wall > record.stamp {
                corrections.push(Correction { from: wall, shift_millis: 0 });
                wall
            } else {
                shifted(wall, lead.saturating_neg())
            };
            (stored, corrections, None)
        } else {
            // Messages that came after the stamp came before the doubt.
            let latest = record.stamp.plus(LARGEST_DRIFT);
            let newest = newest.filter(|newest| (record.stamp..=latest).contains(newest));
            let stored = newest.map_or(record.stamp, |newest| newest.plus(TICK));
            let begins = StoredDoubt { frozen_at: expected, unsure_from: stored };
            let kept = record.doubt.unwrap_or(begins);
            let cause = if record.doubt.is_some() && self.0.source.is_followed() {
                // Other nodes follow the same clock, and renew the record as long as they doubt it.
                Cause::Moved
            } else {
                Cause::Start { stamp: expected }
            };
            let doubt = Doubt { kept, cause };
            (stored, record.corrections, Some(doubt))
        };
        let _changing = self.changing();
        let generation = self.0.state.load().generation + 1;
        self.0.state.store(Arc::new(State {
            stored,
            since_boot,
            corrections: corrections.into(),
            assurance: record.assurance,
            unsure_from: stored,
            doubt,
            generation,
        }));
    }

    /// Follows another machine's clock from now on, instead of this one's. Call it with each
    /// reading; the first one before [`Clock::open`]. A manual clock follows none.
    pub fn follow(&self, reading: ClockReading) {
        let Source::System { followed } = &self.0.source else { return };
        // The other clock was read at some moment between the question and the answer.
        let earliest = boot_millis(reading.time, reading.answered);
        let latest = boot_millis(reading.time, reading.asked);
        if let Some(boot) = followed.get() {
            let known = boot.load(Ordering::SeqCst);
            boot.store(known.clamp(earliest, latest), Ordering::SeqCst);
            return;
        }
        let _changing = self.changing();
        let _ = followed.set(AtomicU64::new(earliest.midpoint(latest)));
        let mut state = State::clone(&self.0.state.load());
        (state.stored, state.since_boot) = (self.0.source.wall(), self.0.source.since_boot());
        state.unsure_from = state.stored;
        state.generation += 1;
        self.0.state.store(Arc::new(state));
    }

    /// Returns the wall clock's time.
    pub fn now(&self) -> Timestamp {
        self.0.source.wall()
    }

    /// Returns the time of this machine's own clock, even if another clock is followed.
    pub fn machine_time(&self) -> Timestamp {
        match &self.0.source {
            Source::System { .. } => Timestamp::from(SystemTime::now()),
            Source::Manual { .. } => self.now(),
        }
    }

    /// Returns true if this machine's clock shows about the time of the one that is followed.
    pub fn agrees_with_machine(&self) -> bool {
        is_near(self.machine_time(), self.now())
    }

    /// Returns the instant to store with a message that comes in now.
    pub fn record_time(&self) -> Timestamp {
        if let Some((_, stored)) = self.last_look() {
            return stored;
        }
        let state = self.look();
        state.record_time(self.0.source.since_boot())
    }

    /// Returns the time by which windows are judged: now, unless the wall clock is in doubt.
    pub fn window_time(&self) -> WindowTime {
        self.record_and_window_time().1
    }

    /// Returns the instant whose minutes, hours, days and months count now. It continues while the
    /// wall clock is in doubt.
    pub fn period_time(&self) -> Timestamp {
        let (stored, window_now) = self.record_and_window_time();
        window_now.corrected(stored)
    }

    /// Returns [`Clock::record_time`] and [`Clock::window_time`] of one check of the clock.
    pub fn record_and_window_time(&self) -> (Timestamp, WindowTime) {
        if let Some((state, stored)) = self.last_look() {
            let now = corrected(&state.corrections, stored);
            return (stored, WindowTime::new(now, &state.corrections));
        }
        let state = self.look();
        let now = match state.doubt {
            Some(doubt) => doubt.kept.frozen_at,
            None => corrected(&state.corrections, state.stored),
        };
        let stored = state.record_time(self.0.source.since_boot());
        (stored, WindowTime::new(now, &state.corrections))
    }

    /// Returns the doubt that holds the window time back, if there is one.
    pub fn jump(&self) -> Option<Jump> {
        let state = self.look();
        let doubt = state.doubt?;
        let expected = state.expected(self.0.source.since_boot());
        let wall = self.0.source.wall();
        Some(Jump { since: doubt.kept.frozen_at, expected, wall, cause: doubt.cause })
    }

    /// Asks whether the kernel says that its clock is synchronised.
    pub async fn synchronisation(&self) -> Synchronisation {
        match &self.0.source {
            Source::System { .. } => kernel::ask().await,
            Source::Manual { synchronised, .. } => {
                if synchronised.load(Ordering::SeqCst) {
                    Synchronisation::Yes
                } else {
                    Synchronisation::No
                }
            }
        }
    }

    /// Returns the record that is to be made durable now. It ends a doubt if the clock is confirmed
    /// or agrees again.
    pub fn propose(&self, confirmed_by: ConfirmedBy) -> Proposal {
        let state = self.look();
        let (wall, since_boot) = (self.0.source.wall(), self.0.source.since_boot());
        let (recorded, expected) = (state.record_time(since_boot), state.expected(since_boot));
        let assurance = match confirmed_by {
            ConfirmedBy::Nobody => state.assurance,
            ConfirmedBy::Kernel | ConfirmedBy::Operator => Assurance::Given,
        };
        let record = TimeRecord {
            stamp: recorded,
            doubt: state.doubt.map(|doubt| doubt.kept),
            assurance,
            corrections: state.corrections.to_vec(),
        };
        let generation = state.generation;
        let ends =
            |doubt: &Doubt| confirmed_by != ConfirmedBy::Nobody || doubt.agrees(wall, expected);
        let Some(doubt) = state.doubt.filter(ends) else {
            return Proposal { generation, confirmed_by, record, end: None };
        };
        let mut corrections = record.corrections;
        let mut before = Timestamp::LAST;
        if !is_near(wall, expected) {
            let adjustment = Adjustment {
                unsure_from: doubt.kept.unsure_from.min(state.unsure_from),
                stored: recorded,
                right: wall,
                assurance: state.assurance,
            };
            corrections = adjustment.applied_to(&corrections);
            if let Some(last) = corrections.last().filter(|last| last.from > recorded) {
                before = last.from;
            }
        }
        let shift_millis = corrections.last().map_or(0, |last| last.shift_millis);
        let stored = shifted(wall, shift_millis.saturating_neg());
        let record = TimeRecord { stamp: stored, doubt: None, assurance, corrections };
        let end = Some(End { stored, since_boot, before });
        Proposal { generation, confirmed_by, record, end }
    }

    /// Follows a proposal from now on. Its record must be durable.
    pub fn adopt(&self, proposal: &Proposal) -> Adoption {
        let Proposal { generation, confirmed_by, record, end } = proposal;
        let _changing = self.changing();
        let mut state = State::clone(&self.0.state.load());
        let recorded = state.record_time(self.0.source.since_boot());
        if state.generation != *generation || end.is_some_and(|end| recorded >= end.before) {
            return Adoption::Outdated;
        }
        state.generation += 1;
        state.assurance = record.assurance;
        match confirmed_by {
            ConfirmedBy::Nobody => {}
            ConfirmedBy::Kernel | ConfirmedBy::Operator => state.unsure_from = record.stamp,
        }
        if let Some(End { stored, since_boot, before: _ }) = *end {
            state.corrections = record.corrections.clone().into();
            (state.stored, state.since_boot, state.doubt) = (stored, since_boot, None);
        }
        self.0.state.store(Arc::new(state));
        Adoption::Adopted
    }

    /// Ends a doubt if another process has ended its doubt of the same clock: `record` is the one
    /// that they share. Returns true if it is over.
    pub fn adopt_end(&self, record: TimeRecord) -> bool {
        let reached = corrected(&record.corrections, record.stamp);
        let is_end = record.doubt.is_none() && is_near(reached, self.now());
        if is_end {
            self.open(Some(record), None, ConfirmedBy::Operator);
        }
        is_end && self.jump().is_none()
    }

    /// Returns the state and the instant to store now, if the last check still holds: the clock was
    /// trusted a moment ago and has run evenly since.
    fn last_look(&self) -> Option<(Guard<Arc<State>>, Timestamp)> {
        let state = self.0.state.load();
        let (wall, since_boot) = (self.0.source.wall(), self.0.source.since_boot());
        let holds = state.doubt.is_none()
            && since_boot.saturating_sub(state.since_boot) < LOOK_HOLDS
            && is_within(LOOK_HOLDS, wall, state.expected(since_boot));
        let stored = state.stored_at(wall);
        holds.then_some((state, stored))
    }

    /// Compares the wall clock with the time since boot.
    fn look(&self) -> Guard<Arc<State>> {
        let _changing = self.changing();
        let (wall, since_boot) = (self.0.source.wall(), self.0.source.since_boot());
        let mut state = State::clone(&self.0.state.load());
        let agrees = is_near(wall, state.expected(since_boot));
        match state.doubt {
            Some(Doubt { cause: Cause::Start { .. }, .. }) => {}
            Some(Doubt { cause: Cause::Moved, .. }) if !agrees => {}
            None if !agrees => {
                let frozen_at = corrected(&state.corrections, state.stored);
                let kept = StoredDoubt { frozen_at, unsure_from: state.unsure_from };
                state.doubt = Some(Doubt { kept, cause: Cause::Moved });
                state.generation += 1;
            }
            doubt @ (None | Some(Doubt { cause: Cause::Moved, .. })) => {
                // Small steps of the clock are followed.
                state.stored = state.stored_at(wall);
                state.since_boot = since_boot;
                if doubt.is_some() {
                    state.doubt = None;
                    state.generation += 1;
                }
            }
        }
        self.0.state.store(Arc::new(state));
        self.0.state.load()
    }

    /// Moves a manual clock on, wall clock and time since boot together. On the system's clock, the
    /// call does nothing.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual { wall, since_boot_millis, .. } = &self.0.source {
            let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
            wall.fetch_add(millis, Ordering::SeqCst);
            since_boot_millis.fetch_add(millis, Ordering::SeqCst);
        }
    }

    /// Sets only a manual clock's wall time, like a wrong setting of the date. On the system's
    /// clock, the call does nothing.
    pub fn set(&self, now: Timestamp) {
        if let Source::Manual { wall, .. } = &self.0.source {
            wall.store(now.unix_millis(), Ordering::SeqCst);
        }
    }

    /// Lets a manual clock's kernel say from now on that it is synchronised. On the system's clock,
    /// the call does nothing.
    pub fn synchronise(&self) {
        if let Source::Manual { synchronised, .. } = &self.0.source {
            synchronised.store(true, Ordering::SeqCst);
        }
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.0.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the time since this machine's boot, suspension included: a suspended machine has no
/// wrong clock.
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).expect("a time since boot is not before it")
}

/// Returns the Unix time of a boot that was this long before an instant, in milliseconds.
fn boot_millis(instant: Timestamp, since_boot: Duration) -> u64 {
    let since_boot = u64::try_from(since_boot.as_millis()).unwrap_or(u64::MAX);
    instant.unix_millis().saturating_sub(since_boot)
}

fn is_near(wall: Timestamp, expected: Timestamp) -> bool {
    is_within(LARGEST_DRIFT, wall, expected)
}

fn is_within(distance: Duration, wall: Timestamp, expected: Timestamp) -> bool {
    u128::from(wall.unix_millis().abs_diff(expected.unix_millis())) <= distance.as_millis()
}

impl State {
    fn record_time(&self, since_boot: Duration) -> Timestamp {
        self.stored.plus(since_boot.saturating_sub(self.since_boot))
    }

    /// Returns the instant to store while the wall clock is trusted and shows `wall`.
    fn stored_at(&self, wall: Timestamp) -> Timestamp {
        let shift = self.corrections.last().map_or(0, |last| last.shift_millis);
        shifted(wall, shift.saturating_neg())
    }

    /// Returns the time that the wall clock should show.
    fn expected(&self, since_boot: Duration) -> Timestamp {
        corrected(&self.corrections, self.record_time(since_boot))
    }
}

impl Doubt {
    /// Returns true if a start with this clock would not begin a doubt.
    fn agrees(&self, wall: Timestamp, expected: Timestamp) -> bool {
        match self.cause {
            Cause::Moved => is_near(wall, expected),
            Cause::Start { stamp } => (stamp..=expected.plus(LONGEST_ABSENCE)).contains(&wall),
        }
    }
}

impl Proposal {
    /// Returns the record that is to be made durable.
    pub fn record(&self) -> &TimeRecord {
        &self.record
    }
}

impl fmt::Display for Jump {
    /// Writes the end of a sentence that begins with "the clock".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, wall, since: _, cause } = self;
        match cause {
            Cause::Moved => {
                write!(
                    f,
                    "jumped: it shows {wall}, but judging by the time that has passed it should \
                     show {expected}"
                )
            }
            Cause::Start { stamp } if wall < stamp => {
                write!(f, "is in doubt: it shows {wall}, but the store was in use at {stamp}")
            }
            Cause::Start { stamp } => write!(
                f,
                "is in doubt: it shows {wall}, more than 24 hours after the last use of the \
                 store at {stamp}"
            ),
        }
    }
}

impl Source {
    fn wall(&self) -> Timestamp {
        match self {
            Self::System { followed } => match followed.get() {
                Some(boot) => {
                    let boot = Timestamp::from_unix_millis(boot.load(Ordering::SeqCst));
                    boot.plus(self.since_boot())
                }
                None => Timestamp::from(SystemTime::now()),
            },
            Self::Manual { wall, .. } => Timestamp::from_unix_millis(wall.load(Ordering::SeqCst)),
        }
    }

    /// Returns true if it is another machine's clock.
    fn is_followed(&self) -> bool {
        match self {
            Self::System { followed } => followed.get().is_some(),
            Self::Manual { .. } => false,
        }
    }

    fn since_boot(&self) -> Duration {
        match self {
            Self::System { .. } => since_boot(),
            Self::Manual { since_boot_millis, .. } => {
                Duration::from_millis(since_boot_millis.load(Ordering::SeqCst))
            }
        }
    }
}

#[cfg(test)]
mod tests;
