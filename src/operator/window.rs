//! What was counted in the last 24 hours, out of counts that only grow: seen from snapshots an hour
//! apart, so that counting costs nothing more and memory is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::domain::id::OrganisationId;
use crate::tally::ledger::Account;

/// Between two snapshots: the window moves on by this.
const STEP: Duration = Duration::from_hours(1);
/// The window's length; up to a step more is in it.
const LENGTH: Duration = Duration::from_hours(24);

/// Every organisation's counts at one moment; those counted together have no number.
type Accounts = BTreeMap<Option<OrganisationId>, Account>;

/// A window over the organisations' accounts. At the start of the process, all counts are zero.
#[derive(Debug)]
pub(super) struct Window(VecDeque<(Instant, Accounts)>);

impl Window {
    /// A window that begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self(VecDeque::from([(now, Accounts::new())]))
    }

    /// Takes note of the counts now. To be called at least once a step.
    pub(super) fn look<'a>(
        &mut self,
        now: Instant,
        accounts: impl Iterator<Item = (Option<OrganisationId>, &'a Account)>,
    ) {
        if self.0.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= STEP) {
            self.0.push_back((now, accounts.map(|(id, account)| (id, *account)).collect()));
        }
        // The first one is the window's beginning: it goes once the next is old enough.
        while self.0.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= LENGTH) {
            self.0.pop_front();
        }
    }

    /// What an organisation's counts have grown by since the window's beginning.
    pub(super) fn since(&self, id: Option<OrganisationId>, account: &Account) -> Account {
        match self.0.front().and_then(|(_, accounts)| accounts.get(&id)) {
            Some(earlier) => account.since(earlier),
            None => *account,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACME: Option<OrganisationId> = Some(OrganisationId(1));

    fn sent(recipients: u64) -> Account {
        Account { sent_recipients: recipients, hard_bounces: recipients / 10, ..Account::default() }
    }

    #[test]
    fn what_is_older_than_a_day_counts_no_more() {
        let start = Instant::now();
        let mut window = Window::new(start);
        // Ten recipients a minute, for three days.
        for minute in 1..=3 * 24 * 60 {
            let account = sent(10 * minute);
            window.look(start + Duration::from_mins(minute), [(ACME, &account)].into_iter());
            let recent = window.since(ACME, &account);
            let least = minute.min(24 * 60) * 10;
            let most = minute.min(25 * 60) * 10;
            assert!((least..=most).contains(&recent.sent_recipients), "{minute}: {recent:?}");
            assert_eq!(recent.hard_bounces, recent.sent_recipients / 10);
            assert!(window.0.len() <= 26, "{}", window.0.len());
        }
        let all = sent(10 * 3 * 24 * 60);
        for later in [1, 23] {
            window.look(start + Duration::from_hours(72 + later), [(ACME, &all)].into_iter());
            assert_ne!(window.since(ACME, &all), Account::default());
        }
        for later in [24, 25] {
            window.look(start + Duration::from_hours(72 + later), [(ACME, &all)].into_iter());
        }
        assert_eq!(window.since(ACME, &all), Account::default(), "a day of silence");
    }

    #[test]
    fn an_organisation_that_came_later_counts_from_its_first_message() {
        let start = Instant::now();
        let mut window = Window::new(start);
        window.look(start + Duration::from_hours(30), [(ACME, &sent(5))].into_iter());
        assert_eq!(window.since(None, &sent(7)), sent(7));
    }
}
