//! Usage of an organisation: recipients of its accepted messages by UTC minutes, hours, days and
//! months, and the limits of these (contract, section 15).

use std::fmt;
use std::time::Duration;

use crate::organisation::Limits;
use crate::time::Timestamp;
use crate::worded;

/// Milliseconds of a minute, an hour and a day. UTC has no other minutes here: the clock leaves out
/// leap seconds, as Unix time does.
const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// The longest wait that a client is asked for.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

worded! {
    /// Stretch of time in which recipients are counted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Period {
        /// A minute.
        Minute = "minute",
        /// An hour.
        Hour = "hour",
        /// A day.
        Day = "day",
        /// A month of the calendar.
        Month = "month",
    }
}

impl Period {
    /// Returns the beginning of the period of an instant.
    pub fn start(self, at: Timestamp) -> Timestamp {
        let millis = at.unix_millis();
        match self {
            Self::Minute => Timestamp::from_unix_millis(millis - millis % MINUTE),
            Self::Hour => Timestamp::from_unix_millis(millis - millis % HOUR),
            Self::Day => Timestamp::from_unix_millis(millis - millis % DAY),
            Self::Month => first_of_month(&at.to_string()).expect("a timestamp's text has a month"),
        }
    }

    /// Returns the end of the period that begins at `start`.
    pub fn end(self, start: Timestamp) -> Timestamp {
        let millis = |millis: u64| start.plus(Duration::from_millis(millis));
        match self {
            Self::Minute => millis(MINUTE),
            Self::Hour => millis(HOUR),
            Self::Day => millis(DAY),
            // Any instant of the next month: a month has 28 to 31 days.
            Self::Month => self.start(millis(32 * DAY)),
        }
    }
}

/// Returns the beginning of the month that a text such as `2026-11` or `2026-11-21T…` names.
pub fn first_of_month(text: &str) -> Option<Timestamp> {
    let month = text.get(..7)?;
    Timestamp::parse_rfc3339(&format!("{month}-01T00:00:00Z")).ok()
}

/// Recipients that were accepted in one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Beginning of the period, in UTC.
    pub start: Timestamp,
    /// Number of recipients.
    pub used: u64,
}

impl Count {
    /// Returns the count of the period that `now` is in. If the clock was set back, no period
    /// begins again.
    fn at(self, period: Period, now: Timestamp) -> Self {
        if now < period.end(self.start) {
            return self;
        }
        Self { start: period.start(now), used: 0 }
    }
}

/// Recipients that an organisation had accepted in the periods of one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Count of the minute.
    pub minute: Count,
    /// Count of the hour.
    pub hour: Count,
    /// Count of the day.
    pub day: Count,
    /// Count of the month.
    pub month: Count,
}

/// Limit that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// Period of the limit.
    pub period: Period,
    /// Largest number of recipients in it.
    pub limit: u64,
    /// Number of recipients that it still allows.
    pub left: u64,
    /// End of the period and the wait for it, an hour at most; `None` if the request alone has more
    /// recipients than the limit.
    pub retry: Option<(Timestamp, Duration)>,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { period, limit, left, retry } = self;
        let period = period.as_str();
        match retry {
            None => write!(
                f,
                "the request has more recipients than the {limit} that your organisation may send \
                 to in one {period}; split it"
            ),
            Some((end, _)) => write!(
                f,
                "your organisation may send to {limit} recipients in one {period} and has {left} \
                 left; the {period} ends at {end}"
            ),
        }
    }
}

impl Usage {
    /// Returns the usage in the periods of `now`, but not in periods before the known ones.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Self {
        Self {
            minute: self.minute.at(Period::Minute, now),
            hour: self.hour.at(Period::Hour, now),
            day: self.day.at(Period::Day, now),
            month: self.month.at(Period::Month, now),
        }
    }

    /// Adds recipients to every period.
    pub fn add(&mut self, recipients: u64) {
        for count in [&mut self.minute, &mut self.hour, &mut self.day, &mut self.month] {
            count.used = count.used.saturating_add(recipients);
        }
    }

    /// Adds recipients that were accepted elsewhere in the same periods or later ones.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |one: Count, other: Count| match one.start.cmp(&other.start) {
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Greater => one,
            std::cmp::Ordering::Equal => Count { used: one.used + other.used, ..one },
        };
        Self {
            minute: sum(self.minute, other.minute),
            hour: sum(self.hour, other.hour),
            day: sum(self.day, other.day),
            month: sum(self.month, other.month),
        }
    }

    /// Returns the count of a period.
    pub const fn of(&self, period: Period) -> Count {
        match period {
            Period::Minute => self.minute,
            Period::Hour => self.hour,
            Period::Day => self.day,
            Period::Month => self.month,
        }
    }

    /// Returns the usage of each limit that is set: its period, the recipients and the limit.
    pub fn within(&self, limits: &Limits) -> impl Iterator<Item = (Period, u64, u64)> {
        let of = |period| Some((period, self.of(period).used, limits.of(period)?));
        Period::ALL.into_iter().filter_map(of)
    }

    /// Returns the limit that this many further recipients would exceed, if there is one: one that
    /// the request alone exceeds, else the one whose period ends last. The usage is that of `now`.
    pub fn exceeded(&self, limits: &Limits, recipients: u64, now: Timestamp) -> Option<Exceeded> {
        let mut exceeded: Option<Exceeded> = None;
        for (period, used, limit) in self.within(limits) {
            // A limit may be set below the present usage. A request without recipients exceeds
            // none.
            if recipients == 0 || used.saturating_add(recipients) <= limit {
                continue;
            }
            let left = limit.saturating_sub(used);
            if recipients > limit {
                return Some(Exceeded { period, limit, left, retry: None });
            }
            let end = period.end(self.of(period).start);
            let wait = Duration::from_millis(end.unix_millis().saturating_sub(now.unix_millis()));
            // The longer period ends last.
            exceeded =
                Some(Exceeded { period, limit, left, retry: Some((end, retry_after(wait))) });
        }
        exceeded
    }
}

/// Returns whole seconds after which the period is over, an hour at most.
fn retry_after(wait: Duration) -> Duration {
    Duration::from_millis(
        u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).next_multiple_of(1_000),
    )
    .clamp(Duration::from_secs(1), MAX_RETRY_AFTER)
}

impl Limits {
    /// Returns the most recipients in a period; `None` for no limit.
    pub const fn of(&self, period: Period) -> Option<u64> {
        match period {
            Period::Minute => self.per_minute,
            Period::Hour => self.per_hour,
            Period::Day => self.per_day,
            Period::Month => self.per_month,
        }
    }

    /// Sets the most recipients in a period.
    pub const fn set(&mut self, period: Period, limit: Option<u64>) {
        match period {
            Period::Minute => self.per_minute = limit,
            Period::Hour => self.per_hour = limit,
            Period::Day => self.per_day = limit,
            Period::Month => self.per_month = limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        Timestamp::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn periods_are_those_of_utc() {
        let at = time("2028-02-29T23:59:59.999Z");
        for (period, start, end) in [
            (Period::Minute, "2028-02-29T23:59:00Z", "2028-03-01T00:00:00Z"),
            (Period::Hour, "2028-02-29T23:00:00Z", "2028-03-01T00:00:00Z"),
            (Period::Day, "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"),
            (Period::Month, "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            assert_eq!(period.start(at), time(start), "{period:?}");
            assert_eq!(period.end(time(start)), time(end), "{period:?}");
        }
        let months =
            [("2026-12-31T23:59:59Z", "2027-01-01"), ("2027-01-01T00:00:00Z", "2027-02-01")];
        for (at, end) in months {
            let start = Period::Month.start(time(at));
            assert_eq!(Period::Month.end(start), time(&format!("{end}T00:00:00Z")));
        }
        assert_eq!(first_of_month("2026-11"), Some(time("2026-11-01T00:00:00Z")));
        for bad in ["", "2026-13", "2026-1", "26-11", "month-1"] {
            assert_eq!(first_of_month(bad), None, "{bad}");
        }
    }

    #[test]
    fn each_period_has_its_own_limit() {
        let mut limits = Limits::NONE;
        for (number, period) in (1..).zip(Period::ALL) {
            limits.set(period, Some(number));
        }
        let (per_minute, per_hour, per_day, per_month) = (Some(1), Some(2), Some(3), Some(4));
        assert_eq!(limits, Limits { per_minute, per_hour, per_day, per_month });
        assert_eq!(Period::ALL.map(|period| limits.of(period)), [1, 2, 3, 4].map(Some));
    }

    #[test]
    fn a_limit_is_reached_exactly_and_ends_with_its_period() {
        let now = time("2026-11-21T12:30:15.500Z");
        let mut usage = Usage::default().at(now);
        let limits = Limits { per_minute: Some(3), per_day: Some(5), ..Limits::NONE };
        usage.add(2);
        assert_eq!(usage.exceeded(&limits, 1, now), None);
        let exceeded = usage.exceeded(&limits, 2, now).unwrap();
        let next = time("2026-11-21T12:31:00Z");
        assert_eq!((exceeded.period, exceeded.left), (Period::Minute, 1));
        assert_eq!(exceeded.retry, Some((next, Duration::from_secs(45))), "44.5 s, whole seconds");
        assert_eq!(
            exceeded.to_string(),
            "your organisation may send to 3 recipients in one minute and has 1 left; the minute \
             ends at 2026-11-21T12:31:00.000Z"
        );
        assert_eq!(usage.exceeded(&Limits { per_minute: Some(1), ..limits }, 0, now), None);
        let alone_it_fits = usage.exceeded(&limits, 3, now).unwrap();
        assert!(alone_it_fits.retry.is_some());
        let alone = usage.exceeded(&limits, 4, now).unwrap();
        assert_eq!((alone.period, alone.retry), (Period::Minute, None));
        let shown = alone.to_string();
        assert!(
            shown.ends_with("the 3 that your organisation may send to in one minute; split it"),
            "{shown}"
        );
        usage.add(1);
        usage = usage.at(next);
        assert_eq!((usage.minute.used, usage.hour.used), (0, 3));
        usage.add(2);
        let exceeded = usage.exceeded(&limits, 1, next).unwrap();
        let tomorrow = time("2026-11-22T00:00:00Z");
        assert_eq!(exceeded.retry, Some((tomorrow, Duration::from_hours(1))), "at most an hour");
        assert_eq!(usage.at(tomorrow).exceeded(&limits, 3, tomorrow), None);
    }

    #[test]
    fn usage_of_two_places_is_added_in_the_same_period_and_the_later_one_counts() {
        let now = time("2026-12-01T00:00:10Z");
        let next = time("2026-12-01T00:01:00Z");
        let (mut here, mut there) = (Usage::default().at(now), Usage::default().at(next));
        here.add(2);
        there.add(3);
        for sum in [here.and(there), there.and(here)] {
            assert_eq!((sum.minute, sum.hour.used), (Count { start: next, used: 3 }, 5));
            assert_eq!((sum.day.used, sum.month.used), (5, 5));
        }
    }

    #[test]
    fn a_clock_that_is_set_back_begins_no_period_again() {
        let now = time("2026-12-01T00:00:10Z");
        let mut usage = Usage::default().at(now);
        usage.add(7);
        for back in ["2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z", "2020-01-01T00:00:00Z"] {
            let then = usage.at(time(back));
            assert_eq!(then, usage, "{back}");
            assert_eq!(then.at(now), usage);
        }
        let later = usage.at(time("2026-12-01T00:01:00Z"));
        assert_eq!((later.minute.used, later.hour.used, later.month.used), (0, 7, 7));
    }
}
