//! Silence of the server: the purpose of each connection, the longest time for an answer, and the
//! connections by which none came in time.
//!
//! A connection may stop while the others work: its process on the server hangs, or the network
//! drops its data. Nothing else notices that.

use std::time::Duration;

use tokio::time::Instant;

use crate::locks::{Mutex, locked};
use pillarbox_domain::worded;

/// Time for which operators see a connection by which no answer came.
const SHOWN: Duration = Duration::from_mins(1);

worded! {
    /// Purpose of a connection. Operators see its word.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Purpose {
        Schema = "the schema",
        Start = "the start",
        Import = "an import",
        /// Signs of life, and parts of the pace and duties.
        Lease = "signs of life",
        Acceptance = "acceptance",
        /// Outcomes of calls, and events.
        Outcomes = "outcomes",
        /// All other changes.
        Administration = "administration and webhooks",
        /// Reads of single rows.
        Reads = "reads",
        /// Reads of many rows.
        Lists = "lists",
    }
}

impl Purpose {
    /// Returns the longest time for the answer to one statement. The server itself ends a wait for
    /// a lock sooner: see the options of a connection.
    pub(super) fn limit(self) -> Duration {
        match self {
            // The server itself ends a statement sooner.
            Self::Schema => Duration::from_secs(35),
            // An import may take hours.
            Self::Import => Duration::from_hours(24),
            Self::Reads => Duration::from_secs(5),
            Self::Start
            | Self::Lease
            | Self::Acceptance
            | Self::Outcomes
            | Self::Administration
            | Self::Lists => Duration::from_secs(10),
        }
    }
}

/// Record of connections by which no answer came in time.
#[derive(Default)]
pub(crate) struct Silence(Mutex<State>);

#[derive(Default)]
struct State {
    /// The last two times of each purpose.
    noted: Vec<Noted>,
    /// Transactions whose outcome is still searched for.
    doubts: Vec<Purpose>,
    /// Time at which the server itself last came back.
    back_since: Option<Instant>,
}

struct Noted {
    purpose: Purpose,
    last: Instant,
    before: Option<Instant>,
}

impl Silence {
    /// Notes a connection by which no answer came in time.
    pub(super) fn note(&self, purpose: Purpose) {
        let now = Instant::now();
        let mut state = locked(&self.0);
        match state.noted.iter_mut().find(|noted| noted.purpose == purpose) {
            Some(noted) => noted.before = Some(std::mem::replace(&mut noted.last, now)),
            None => state.noted.push(Noted { purpose, last: now, before: None }),
        }
    }

    /// Notes that the server itself is back. Connections that stopped before stopped with the
    /// server.
    pub(super) fn server_is_back(&self) {
        locked(&self.0).back_since = Some(Instant::now());
    }

    /// Notes that the outcome of a transaction is searched for and is not found at once.
    pub(super) fn doubt(&self, purpose: Purpose) -> InDoubt<'_> {
        locked(&self.0).doubts.push(purpose);
        InDoubt { silence: self, purpose }
    }

    pub(super) fn doubts(&self, purpose: Purpose) -> usize {
        locked(&self.0).doubts.iter().filter(|one| **one == purpose).count()
    }

    /// Returns the names of the purposes that have stopped, or had stopped within the last minute.
    pub(crate) fn shown(&self) -> Vec<&'static str> {
        let state = locked(&self.0);
        let is_shown = |purpose: &Purpose| {
            let mut lately = state.noted.iter().filter(|noted| noted.last.elapsed() < SHOWN);
            lately.any(|noted| noted.purpose == *purpose) || state.doubts.contains(purpose)
        };
        Purpose::ALL.into_iter().filter(is_shown).map(Purpose::as_str).collect()
    }

    /// Returns true if new connections do not help the work of duties: for one purpose, two
    /// connections stopped within a minute.
    pub(super) fn keeps_from_duties(&self) -> bool {
        const NEEDED: [Purpose; 3] = [Purpose::Administration, Purpose::Reads, Purpose::Lists];
        let state = locked(&self.0);
        let is_again = |noted: &Noted| {
            let counts = |before: &Instant| state.back_since.is_none_or(|back| *before > back);
            let again = noted.before.filter(counts).is_some_and(|one| noted.last - one < SHOWN);
            NEEDED.contains(&noted.purpose) && again && noted.last.elapsed() < SHOWN
        };
        state.noted.iter().any(is_again)
            || state.doubts.iter().any(|purpose| NEEDED.contains(purpose))
    }
}

/// A transaction whose outcome is searched for, until this is dropped.
pub(super) struct InDoubt<'a> {
    silence: &'a Silence,
    purpose: Purpose,
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.silence.0);
        if let Some(place) = state.doubts.iter().position(|one| *one == self.purpose) {
            state.doubts.swap_remove(place);
        }
    }
}
