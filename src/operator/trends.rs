//! Conditions of the last minutes, and of an organisation's mail within a day: out of counts that
//! only grow, seen from snapshots a step apart, so that counting costs nothing more and memory is
//! bounded.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::domain::attempt::ProblemKind;
use crate::domain::id::OrganisationId;
use crate::operator::Parts;
use crate::operator::conditions::{
    BOUNCES, COMPLAINTS, Condition, DAY, FEW, Kind, LATELY, Limit, SLOW_COMMIT_ONE_IN, STUCK,
    THROTTLED_ONE_IN, lately, several,
};
use crate::operator::metrics::Named;
use crate::organisation_counts::OrganisationCounts;

/// How exactly the last minutes and the last day are looked at.
const LATELY_STEP: Duration = Duration::from_secs(10);
const DAY_STEP: Duration = Duration::from_hours(1);

/// Counts whose growth is a condition.
#[derive(Debug, Default)]
struct Counted {
    calls: u64,
    throttled: u64,
    commits: u64,
    slow_commits: u64,
    internal_errors: u64,
    refused: u64,
}

/// Counts of the last minutes and of the last day.
#[derive(Debug)]
pub(super) struct Trends {
    counted: Window<Counted>,
    minutes: Window<Accounts>,
    day: Window<Accounts>,
    /// When the queue was last empty or a message sent, and how many were sent by then.
    progress: (Instant, u64),
}

impl Trends {
    /// Begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            counted: Window::new(LATELY, LATELY_STEP, now),
            minutes: Window::new(LATELY, LATELY_STEP, now),
            day: Window::new(DAY, DAY_STEP, now),
            progress: (now, 0),
        }
    }

    /// Takes note of the counts now. To be called every few seconds.
    pub(super) fn look(&mut self, now: Instant, parts: &Parts, organisations: &[Named]) {
        self.counted.look(now, || Counted::of(parts));
        self.minutes.look(now, || accounts(organisations));
        self.day.look(now, || accounts(organisations));
        let status = parts.dispatcher.status();
        if status.pending.messages == 0 || status.sent != self.progress.1 {
            self.progress = (now, status.sent);
        }
    }

    /// What became of an organisation's messages within the last day.
    pub(super) fn of_day(&self, organisation: &Named) -> OrganisationCounts {
        self.day.since(organisation.id, &organisation.account)
    }

    /// Conditions of the last minutes and of the last day.
    pub(super) fn conditions(&self, parts: &Parts, organisations: &[Named]) -> Vec<Condition> {
        let mut found = Vec::new();
        if self.progress.0.elapsed() >= STUCK {
            found.push(Kind::QueueStuck.found());
        }
        found.extend(Counted::of(parts).since(self.counted.beginning()).conditions());
        let lately = |one: &Named| self.minutes.since(one.id, &one.account).failed;
        found.extend(failed(organisations.iter().map(|one| (&*one.name, lately(one))).collect()));
        found.extend(organisations.iter().flat_map(|one| reputation(&one.name, &self.of_day(one))));
        found
    }
}

fn accounts(organisations: &[Named]) -> Accounts {
    organisations.iter().map(|one| (one.id, one.account)).collect()
}

impl Counted {
    fn of(parts: &Parts) -> Self {
        let (sending, store) = (parts.dispatcher.metrics(), parts.store.metrics());
        Self {
            calls: sending.calls(),
            throttled: sending.not_sent(ProblemKind::Throttled),
            commits: store.commits(),
            slow_commits: store.slow_commits(),
            internal_errors: parts.clients.refused("InternalError"),
            refused: parts.clients.refused("QueueFull"),
        }
    }

    /// What these counts have grown by since an earlier look.
    fn since(&self, earlier: &Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            throttled: self.throttled - earlier.throttled,
            commits: self.commits - earlier.commits,
            slow_commits: self.slow_commits - earlier.slow_commits,
            internal_errors: self.internal_errors - earlier.internal_errors,
            refused: self.refused - earlier.refused,
        }
    }

    /// The conditions that the growth within the last minutes makes.
    fn conditions(&self) -> Vec<Condition> {
        let mut found = Vec::new();
        let lately = lately();
        if self.internal_errors > 0 {
            let requests = several(self.internal_errors, "request");
            let message = format!("{requests} failed by a fault in the service{lately}");
            found.push(Kind::InternalErrors.says(message));
        }
        if self.refused > 0 {
            let requests = several(self.refused, "request");
            let message = format!("503 QueueFull was the answer to {requests}{lately}");
            found.push(Kind::RequestsRefused.says(message));
        }
        if self.slow_commits >= FEW && self.slow_commits * SLOW_COMMIT_ONE_IN > self.commits {
            let message = format!("{} commits took over half a second{lately}", self.slow_commits);
            found.push(Kind::CommitsSlow.says(message));
        }
        if self.throttled >= FEW && self.throttled * THROTTLED_ONE_IN > self.calls {
            let message =
                format!("SES throttled {} of {} calls{lately}", self.throttled, self.calls);
            found.push(Kind::Throttled.says(message));
        }
        found
    }
}

/// Messages that failed within the last minutes, by organisation.
fn failed(mut organisations: Vec<(&str, u64)>) -> Option<Condition> {
    organisations.retain(|(_, count)| *count > 0);
    organisations.sort_by_key(|(_, count)| Reverse(*count));
    let all: u64 = organisations.iter().map(|(_, count)| count).sum();
    let (worst, _) = organisations.first()?;
    let others = match organisations.len() - 1 {
        0 => String::new(),
        1 => " and another organisation".to_owned(),
        others => format!(" and {others} other organisations"),
    };
    let message = format!("{} of {worst}{others} failed{}", several(all, "message"), lately());
    Some(Kind::MessagesFailed.names(message, "ORG", worst))
}

/// What an organisation's mail of the last day has come to.
fn reputation(name: &str, day: &OrganisationCounts) -> impl Iterator<Item = Condition> + use<> {
    let bounces = BOUNCES.of(day.hard_bounces, day.sent_recipients).map(|share| {
        Kind::Bounces.says(format!(
            "{share} of {name}'s mail of the last 24 hours bounced for good; SES reviews accounts \
             from 5 % on"
        ))
    });
    let complaints = COMPLAINTS.of(day.complaints, day.sent_recipients).map(|share| {
        Kind::Complaints.says(format!(
            "{share} of {name}'s mail of the last 24 hours was complained about; SES reviews \
             accounts from 0.1 % on"
        ))
    });
    bounces.into_iter().chain(complaints)
}

impl Limit {
    /// The share of all, in words, if it is above half of the limit.
    fn of(&self, part: u64, all: u64) -> Option<String> {
        let is_near = all >= self.least && part * 2_000 > all * self.permille;
        // In hundredths of a percent.
        let share = part * 10_000 / all.max(1);
        is_near.then(|| format!("{}.{:02} %", share / 100, share % 100))
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
    /// What an organisation's counts have grown by since the window's beginning.
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

    fn codes(found: impl IntoIterator<Item = Condition>) -> Vec<&'static str> {
        found.into_iter().map(|condition| condition.code).collect()
    }

    #[test]
    fn a_few_throttled_calls_among_many_are_no_trouble() {
        let quiet = Counted {
            calls: 100,
            throttled: 5,
            commits: 300,
            slow_commits: 3,
            ..Counted::default()
        };
        assert!(codes(quiet.conditions()).is_empty());
        let few =
            Counted { calls: 2, throttled: 2, commits: 2, slow_commits: 2, ..Counted::default() };
        assert!(codes(few.conditions()).is_empty());
        let bad = Counted {
            calls: 100,
            throttled: 6,
            commits: 299,
            slow_commits: 3,
            internal_errors: 1,
            refused: 1,
        };
        let all = ["internal_errors", "requests_refused", "commits_slow", "throttled"];
        assert_eq!(codes(bad.conditions()), all);
        assert!(codes(bad.since(&bad).conditions()).is_empty(), "what is over is told no more");
    }

    #[test]
    fn failed_messages_are_told_with_who_has_the_most() {
        assert_eq!(failed(vec![("acme", 0)]), None);
        let told = |counts| failed(counts).unwrap().message;
        let one = told(vec![("acme", 1), ("beta", 0)]);
        assert_eq!(one, "1 message of acme failed in the last 5 minutes");
        let two = told(vec![("acme", 2), ("beta", 3)]);
        assert_eq!(two, "5 messages of beta and another organisation failed in the last 5 minutes");
    }

    #[test]
    fn a_reputation_is_told_from_half_the_limit_on_and_not_for_a_handful() {
        let day = |sent_recipients, hard_bounces, complaints| {
            let account = OrganisationCounts {
                sent_recipients,
                hard_bounces,
                complaints,
                ..OrganisationCounts::default()
            };
            codes(reputation("acme", &account))
        };
        assert!(day(99, 99, 99).is_empty());
        assert!(day(1_000, 25, 0).is_empty());
        assert_eq!(day(1_000, 26, 0), ["bounces"]);
        assert!(day(2_000, 0, 1).is_empty());
        assert_eq!(day(1_999, 0, 1), ["complaints"]);
        assert_eq!(BOUNCES.of(52, 1_000).as_deref(), Some("5.20 %"));
    }

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
