//! What has gone wrong within the last minutes, and in an organisation's mail within a day: out of
//! counts that only grow.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::domain::attempt::ProblemKind;
use crate::metrics::organisations::OrganisationCounts;
use crate::operator::Parts;
use crate::operator::conditions::{Condition, ready, several};
use crate::operator::metrics::Named;
use crate::operator::window::{Accounts, Window};

/// How far back is looked, and how exactly: a window's length and step.
const MINUTES: (Duration, Duration) = (Duration::from_mins(5), Duration::from_secs(10));
/// How far back the minutes go, in words.
const LATELY: &str = " in the last 5 minutes";
const DAY: (Duration, Duration) = (Duration::from_hours(24), Duration::from_hours(1));
/// Fewer calls or commits than this are no trend.
const FEW: u64 = 3;

/// The share of recipients from which SES reviews an account, and the fewest recipients of whom a
/// share says something (AWS: "Sending review process FAQs").
struct Limit {
    permille: u64,
    least: u64,
}

const BOUNCES: Limit = Limit { permille: 50, least: 100 };
const COMPLAINTS: Limit = Limit { permille: 1, least: 1_000 };

/// Counts whose growth is a condition.
#[derive(Debug, Default)]
struct Counted {
    calls: u64,
    throttled: u64,
    commits: u64,
    slow_commits: u64,
    internal_errors: u64,
}

/// Counts of the last minutes and of the last day.
#[derive(Debug)]
pub(in crate::operator) struct Trends {
    counted: Window<Counted>,
    minutes: Window<Accounts>,
    day: Window<Accounts>,
}

impl Trends {
    /// Begins now.
    pub(in crate::operator) fn new(now: Instant) -> Self {
        Self {
            counted: Window::new(MINUTES.0, MINUTES.1, now),
            minutes: Window::new(MINUTES.0, MINUTES.1, now),
            day: Window::new(DAY.0, DAY.1, now),
        }
    }

    /// Takes note of the counts now. To be called every few seconds.
    pub(in crate::operator) fn look(
        &mut self,
        now: Instant,
        parts: &Parts,
        organisations: &[Named],
    ) {
        self.counted.look(now, || Counted::of(parts));
        self.minutes.look(now, || accounts(organisations));
        self.day.look(now, || accounts(organisations));
    }

    /// What became of an organisation's messages within the last day.
    pub(in crate::operator) fn of_day(&self, organisation: &Named) -> OrganisationCounts {
        self.day.since(organisation.id, &organisation.account)
    }

    /// Conditions of the last minutes and of the last day.
    pub(in crate::operator) fn conditions(
        &self,
        parts: &Parts,
        organisations: &[Named],
    ) -> Vec<Condition> {
        let mut found = Counted::of(parts).since(self.counted.beginning()).conditions();
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
        }
    }

    /// The conditions that the growth within the last minutes makes, by the alert rules' measures.
    fn conditions(&self) -> Vec<Condition> {
        let mut found = Vec::new();
        if self.internal_errors > 0 {
            found.push(ready(
                "internal_errors",
                format!(
                    "{} failed by a fault in the service{LATELY}",
                    several(self.internal_errors, "request")
                ),
                "Look for errors in the log, and report them with the request id",
            ));
        }
        if self.slow_commits >= FEW && self.slow_commits * 100 > self.commits {
            found.push(ready(
                "commits_slow",
                format!("{} commits took over half a second{LATELY}", self.slow_commits),
                "The disk is slow or shared, and every acceptance waits for it: see what else uses it",
            ));
        }
        if self.throttled >= FEW && self.throttled * 20 > self.calls {
            found.push(ready(
                "throttled",
                format!("SES throttled {} of {} calls{LATELY}", self.throttled, self.calls),
                "Something else sends from the same account, or sending.max_rate is above what it allows",
            ));
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
    Some(ready(
        "messages_failed",
        format!("{} of {worst}{others} failed{LATELY}", several(all, "message")),
        format!("See why: pillarbox message list --status failed --org {worst}"),
    ))
}

/// What an organisation's mail of the last day has come to.
fn reputation(name: &str, day: &OrganisationCounts) -> impl Iterator<Item = Condition> + use<> {
    let bounces = BOUNCES.of(day.hard_bounces, day.sent_recipients).map(|share| {
        ready(
            "bounces",
            format!("{share} of {name}'s mail of the last 24 hours bounced for good; SES reviews accounts from 5 % on"),
            "Its list is old or its sign-up unchecked. To stop it, revoke its key",
        )
    });
    let complaints = COMPLAINTS.of(day.complaints, day.sent_recipients).map(|share| {
        ready(
            "complaints",
            format!("{share} of {name}'s mail of the last 24 hours was complained about; SES reviews accounts from 0.1 % on"),
            "Find out what it sends, and to whom. To stop it, revoke its key",
        )
    });
    bounces.into_iter().chain(complaints)
}

impl Limit {
    /// The share of all, in words, where it is above half of the limit.
    fn of(&self, part: u64, all: u64) -> Option<String> {
        let is_near = all >= self.least && part * 2_000 > all * self.permille;
        // In hundredths of a percent.
        let share = part * 10_000 / all.max(1);
        is_near.then(|| format!("{}.{:02} %", share / 100, share % 100))
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
        let bad =
            Counted { calls: 100, throttled: 6, commits: 299, slow_commits: 3, internal_errors: 1 };
        let all = ["internal_errors", "commits_slow", "throttled"];
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
}
