//! Growth of counts in the last minutes and within a day: out of counts that only grow, seen from
//! snapshots a step apart, so that counting costs nothing more and memory is bounded. Of the day,
//! the history knows what was before the start of the process.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use pillarbox_admin::conditions::{DAY, LATELY, STUCK};
use pillarbox_admin::snapshot::{NamedCounts, Recent, Snapshot, Totals};
use pillarbox_domain::id::OrganisationId;
use pillarbox_store::CountsByOrganisation;
use pillarbox_store::organisation_counts::OrganisationCounts;

/// Steps in which the last minutes and the last day are kept.
const LATELY_STEP: Duration = Duration::from_secs(10);
const DAY_STEP: Duration = Duration::from_hours(1);

/// Counts of the last minutes and of the last day.
#[derive(Debug)]
pub(super) struct Trends {
    totals: Window<Totals>,
    minutes: Window<Accounts>,
    day: Window<Accounts>,
    /// Last time at which nothing was left to send, or a message was sent, and the number sent by
    /// then.
    progress: (Instant, u64),
}

impl Trends {
    /// Begins the windows now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            totals: Window::new(LATELY, LATELY_STEP, now),
            minutes: Window::new(LATELY, LATELY_STEP, now),
            day: Window::new(DAY, DAY_STEP, now),
            progress: (now, 0),
        }
    }

    /// Takes note of the counts now. To be called every few seconds.
    pub(super) fn look(&mut self, now: Instant, snapshot: &Snapshot) {
        let accounts =
            || snapshot.organisations().into_iter().map(|one| (one.id, one.counts)).collect();
        self.totals.look(now, || snapshot.totals);
        self.minutes.look(now, accounts);
        self.day.look(now, accounts);
        let sending = &snapshot.sending;
        let pending = &sending.pending;
        if pending.open_messages == 0 || sending.sent != self.progress.1 {
            self.progress = (now, sending.sent);
        }
    }

    /// Returns the growth of the counts of a snapshot; `last_day` is what the history has of it.
    pub(super) fn recent(&self, snapshot: &Snapshot, last_day: &CountsByOrganisation) -> Recent {
        let organisations = snapshot.organisations();
        // The history keeps fewer organisations apart, and the process has not run for so long.
        let day = |one: &NamedCounts| {
            let since_start = self.day.since(one.id, &one.counts);
            let stored = one.id.and_then(|id| last_day.get(&id)).copied().unwrap_or_default();
            if stored.changes() >= since_start.changes() { stored } else { since_start }
        };
        let minutes = |one: &NamedCounts| NamedCounts {
            counts: self.minutes.since(one.id, &one.counts),
            ..one.clone()
        };
        Recent {
            is_stuck: self.progress.0.elapsed() >= STUCK,
            totals: snapshot.totals.since(self.totals.beginning()),
            minutes: organisations.iter().map(minutes).collect(),
            day: organisations
                .into_iter()
                .map(|one| NamedCounts { counts: day(&one), ..one })
                .collect(),
        }
    }
}

/// Every organisation's counts at one moment; those counted together have no number.
type Accounts = BTreeMap<Option<OrganisationId>, OrganisationCounts>;

/// A window over counts. At the start of the process, all counts are zero.
#[derive(Debug)]
struct Window<T> {
    /// The window's length; up to a step more is in it.
    length: Duration,
    /// Between two snapshots: the window moves on by this.
    step: Duration,
    snapshots: VecDeque<(Instant, T)>,
}

impl<T: Default> Window<T> {
    /// A window of this length that begins now.
    fn new(length: Duration, step: Duration, now: Instant) -> Self {
        Self { length, step, snapshots: VecDeque::from([(now, T::default())]) }
    }

    /// Takes note of the counts now. To be called at least once a step.
    fn look(&mut self, now: Instant, counts: impl FnOnce() -> T) {
        let age = |at: &Instant| now.saturating_duration_since(*at);
        if self.snapshots.back().is_none_or(|(at, _)| age(at) >= self.step) {
            self.snapshots.push_back((now, counts()));
        }
        // The first one is the window's beginning: it goes once the next is old enough.
        while self.snapshots.get(1).is_some_and(|(at, _)| age(at) >= self.length) {
            self.snapshots.pop_front();
        }
    }

    /// The counts at the window's beginning.
    fn beginning(&self) -> &T {
        &self.snapshots.front().expect("the beginning is never taken away").1
    }
}

impl Window<Accounts> {
    /// Growth of an organisation's counts since the window's beginning.
    fn since(
        &self,
        id: Option<OrganisationId>,
        account: &OrganisationCounts,
    ) -> OrganisationCounts {
        self.beginning().get(&id).map_or(*account, |earlier| account.since(earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACME: Option<OrganisationId> = Some(OrganisationId(1));

    fn a_day(start: Instant) -> Window<Accounts> {
        Window::new(Duration::from_hours(24), Duration::from_hours(1), start)
    }

    fn acme(account: OrganisationCounts) -> Accounts {
        Accounts::from([(ACME, account)])
    }

    fn sent(recipients: u64) -> OrganisationCounts {
        OrganisationCounts {
            sent_recipients: recipients,
            hard_bounces: recipients / 10,
            ..OrganisationCounts::default()
        }
    }

    #[test]
    fn what_is_older_than_a_day_counts_no_more() {
        let start = Instant::now();
        let mut window = a_day(start);
        // Ten recipients a minute, for three days.
        for minute in 1..=3 * 24 * 60 {
            let account = sent(10 * minute);
            window.look(start + Duration::from_mins(minute), || acme(account));
            let recent = window.since(ACME, &account);
            let least = minute.min(24 * 60) * 10;
            let most = minute.min(25 * 60) * 10;
            assert!((least..=most).contains(&recent.sent_recipients), "{minute}: {recent:?}");
            assert_eq!(recent.hard_bounces, recent.sent_recipients / 10);
            assert!(window.snapshots.len() <= 26, "{}", window.snapshots.len());
        }
        let all = sent(10 * 3 * 24 * 60);
        for later in [1, 23] {
            window.look(start + Duration::from_hours(72 + later), || acme(all));
            assert_ne!(window.since(ACME, &all), OrganisationCounts::default());
        }
        for later in [24, 25] {
            window.look(start + Duration::from_hours(72 + later), || acme(all));
        }
        assert_eq!(window.since(ACME, &all), OrganisationCounts::default(), "a day of silence");
    }

    #[test]
    fn an_organisation_that_came_later_counts_from_its_first_message() {
        let start = Instant::now();
        let mut window = a_day(start);
        window.look(start + Duration::from_hours(30), || acme(sent(5)));
        assert_eq!(window.since(None, &sent(7)), sent(7));
    }
}
