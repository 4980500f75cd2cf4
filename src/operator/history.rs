//! Counts of the last minutes to 90 days, as the page draws them.
//!
//! The last hour is in memory, in fine steps; older counts are stored by the hour. Counts come in
//! as they grow. Must not know its readers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Parts;
use pillarbox_admin::snapshot::NamedCounts;
use pillarbox_admin::{Refusal, shown_name};
use pillarbox_domain::history::{Hour, HourSteps};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::worded;
use pillarbox_store::History;
use pillarbox_store::organisation_counts::OrganisationCounts;

/// The most organisations with series of their own.
const MAX_ORGANISATIONS: usize = 20;
/// Number of steps of the ranges in memory.
const RECENT_STEPS: u64 = 60;
const MINUTES_STEP: Duration = Duration::from_secs(5);
const HOUR_STEP: Duration = Duration::from_mins(1);

worded! {
    /// A range up to now.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Range {
        Minutes5 = "5m",
        Hour1 = "1h",
        Day1 = "1d",
        Days7 = "7d",
        Days30 = "30d",
        Days90 = "90d",
    }
}

impl Range {
    /// Reads a range by its word; the error says which there are.
    fn parse(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|range| range.as_str() == text).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("{text:?} is not a range; give one of: {all}")
        })
    }
}

type Count = fn(&OrganisationCounts) -> u64;

/// Counts of messages and events, by the page's names.
pub(super) const COUNTED: [(&str, Count); 7] = [
    ("accepted", |counts| counts.accepted),
    ("sent", |counts| counts.sent),
    ("failed", |counts| counts.failed),
    ("suppressed", |counts| counts.suppressed),
    ("delivered", |counts| counts.deliveries),
    ("bounced", |counts| counts.bounces),
    ("complained", |counts| counts.complaints),
];

/// Series of a range, in steps of equal length: of all organisations together, and of those with the
/// most mail by name.
fn series(parts: &Parts, start: Timestamp, step_seconds: u64, history: &History) -> Value {
    let of = |steps: &[OrganisationCounts]| -> BTreeMap<_, Vec<_>> {
        COUNTED.map(|(name, count)| (name, steps.iter().map(count).collect())).into()
    };
    let organisations = history.organisations.iter();
    let organisations: BTreeMap<_, _> =
        organisations.map(|(id, steps)| (shown_name(&parts.store, *id), of(steps))).collect();
    json!({
        "start": start.to_string(),
        "step_seconds": step_seconds,
        "series": of(&history.total),
        "organisations": organisations,
    })
}

/// Returns what happened in a range up to now.
pub(super) async fn answer(
    parts: &Parts,
    recent: &RecentHistory,
    range: &str,
) -> Result<Value, Refusal> {
    let hour = Hour::of(parts.clock.now());
    let steps = match Range::parse(range).map_err(|message| Refusal { message })? {
        Range::Minutes5 => return Ok(recent.lock().minutes.answer(parts)),
        Range::Hour1 => return Ok(recent.lock().hour.answer(parts)),
        Range::Day1 => HourSteps::until(hour, 1, 24),
        Range::Days7 => HourSteps::until(hour, 1, 7 * 24),
        Range::Days30 => HourSteps::until(hour, 6, 30 * 4),
        Range::Days90 => HourSteps::until(hour, 24, 90),
    };
    let history = parts.history.read(steps, MAX_ORGANISATIONS).await?;
    Ok(series(parts, steps.first().start(), steps.length().as_secs(), &history))
}

/// Counts of the last hour, as far as the process has run.
#[derive(Debug)]
pub(super) struct RecentHistory(Mutex<Recent>);

#[derive(Debug)]
struct Recent {
    /// Counts at the last update.
    counts: Accounts,
    minutes: Steps,
    hour: Steps,
}

/// Counts of organisations; those that are counted together have no number.
type Accounts = BTreeMap<Option<OrganisationId>, OrganisationCounts>;

impl RecentHistory {
    /// Begins with no counts.
    pub(super) fn new(now: Timestamp) -> Self {
        let (minutes, hour) = (Steps::new(MINUTES_STEP, now), Steps::new(HOUR_STEP, now));
        Self(Mutex::new(Recent { counts: BTreeMap::new(), minutes, hour }))
    }

    /// Takes note of the counts now. To be called every second.
    pub(super) fn look(&self, now: Timestamp, organisations: &[NamedCounts]) {
        let mut recent = self.lock();
        let mut grown = Accounts::new();
        for NamedCounts { id, counts, .. } in organisations {
            let before = recent.counts.insert(*id, *counts).unwrap_or_default();
            let new = counts.since(&before);
            if new != OrganisationCounts::default() {
                grown.insert(*id, new);
            }
        }
        recent.minutes.add(now, &grown);
        recent.hour.add(now, &grown);
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last steps of a length.
#[derive(Debug)]
struct Steps {
    millis: u64,
    /// The number of the step that lasts, since the Unix epoch.
    last: u64,
    /// Those in which anything happened, by their numbers.
    counted: VecDeque<(u64, Accounts)>,
}

impl Steps {
    fn new(length: Duration, now: Timestamp) -> Self {
        let millis = u64::try_from(length.as_millis()).expect("a step is short");
        Self { millis, last: now.unix_millis() / millis, counted: VecDeque::new() }
    }

    fn add(&mut self, now: Timestamp, grown: &Accounts) {
        let number = now.unix_millis() / self.millis;
        if number < self.last {
            // The clock was set back.
            self.counted.clear();
        }
        self.last = number;
        while self.counted.front().is_some_and(|(first, _)| first + RECENT_STEPS <= number) {
            self.counted.pop_front();
        }
        if grown.is_empty() {
            return;
        }
        if self.counted.back().is_none_or(|(last, _)| *last != number) {
            self.counted.push_back((number, Accounts::new()));
        }
        let (_, step) = self.counted.back_mut().expect("it was put there");
        for (id, counts) in grown {
            let own = step.entry(*id).or_default();
            *own = own.plus(counts);
        }
    }

    fn first(&self) -> u64 {
        self.last.saturating_sub(RECENT_STEPS - 1)
    }

    /// Counts of all organisations, and those of each of the ones with the most mail.
    fn counts(&self) -> History {
        let positions = usize::try_from(self.last - self.first() + 1).expect("there are few");
        let nothing = vec![OrganisationCounts::default(); positions];
        let mut all = Accounts::new();
        for (id, counts) in self.counted.iter().flat_map(|(_, step)| step) {
            let sum = all.entry(*id).or_default();
            *sum = sum.plus(counts);
        }
        let mut by_mail: Vec<_> = all.into_iter().collect();
        by_mail.sort_by_key(|(_, sum)| Reverse(sum.accepted + sum.sent));
        let first = by_mail.into_iter().filter_map(|(id, _)| id).take(MAX_ORGANISATIONS);
        let mut organisations: BTreeMap<_, _> = first.map(|id| (id, nothing.clone())).collect();
        let mut total = nothing;
        for (number, step) in &self.counted {
            let position = number.checked_sub(self.first()).and_then(|n| usize::try_from(n).ok());
            let Some(position) = position.filter(|position| *position < total.len()) else {
                continue;
            };
            for (id, counts) in step {
                total[position] = total[position].plus(counts);
                if let Some(own) = id.and_then(|id| organisations.get_mut(&id)) {
                    own[position] = own[position].plus(counts);
                }
            }
        }
        History { total, organisations }
    }

    fn answer(&self, parts: &Parts) -> Value {
        let start = Timestamp::from_unix_millis(self.first() * self.millis);
        series(parts, start, self.millis / 1_000, &self.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillarbox_domain::organisation::OrganisationKind;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    fn accepted(id: u32, accepted: u64) -> NamedCounts {
        let counts = OrganisationCounts { accepted, ..OrganisationCounts::default() };
        let kind = OrganisationKind::Production;
        NamedCounts { id: Some(OrganisationId(id)), name: format!("o{id}"), kind, counts }
    }

    fn series(recent: &RecentHistory) -> Vec<u64> {
        let History { total, .. } = recent.lock().minutes.counts();
        total.iter().map(|counts| counts.accepted).collect()
    }

    #[test]
    fn each_step_has_what_happened_in_it_and_old_ones_go() {
        let recent = RecentHistory::new(NOON);
        for second in 0..=600 {
            recent.look(NOON.plus(Duration::from_secs(second)), &[accepted(1, 2 * second)]);
        }
        let steps = series(&recent);
        assert_eq!(steps.len(), 60);
        assert!(steps[..59].iter().all(|&step| step == 10), "{steps:?}");
        assert_eq!(steps[59], 2, "the last step has only begun");
        let History { total, .. } = recent.lock().hour.counts();
        assert_eq!(total.iter().map(|counts| counts.accepted).sum::<u64>(), 1_200);
        recent.look(NOON.plus(Duration::from_hours(2)), &[accepted(1, 1_200)]);
        assert_eq!(series(&recent), [0; 60]);
    }

    #[test]
    fn a_clock_that_is_set_back_begins_anew() {
        let recent = RecentHistory::new(NOON);
        recent.look(NOON, &[accepted(1, 5)]);
        let earlier = NOON.minus(Duration::from_hours(3));
        recent.look(earlier, &[accepted(1, 6)]);
        assert_eq!(series(&recent).iter().sum::<u64>(), 1);
        assert_eq!(series(&recent)[59], 1);
    }

    #[test]
    fn only_the_organisations_with_the_most_mail_have_series() {
        let recent = RecentHistory::new(NOON);
        let all: Vec<_> = (1..=50).map(|id| accepted(id, u64::from(id))).collect();
        recent.look(NOON, &all);
        let History { total, organisations } = recent.lock().minutes.counts();
        assert_eq!(total[59].accepted, 50 * 51 / 2);
        let ids: Vec<_> = organisations.keys().map(|id| id.0).collect();
        assert_eq!(ids, (31..=50).collect::<Vec<_>>());
    }

    #[test]
    fn ranges_are_read_by_their_words() {
        for range in Range::ALL {
            assert_eq!(Range::parse(range.as_str()), Ok(range));
        }
        assert!(Range::parse("2d").unwrap_err().contains("5m, 1h, 1d, 7d, 30d, 90d"));
    }
}
