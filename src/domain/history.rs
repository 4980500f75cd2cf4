//! Hours of the clock, by which counts are kept.

use std::time::Duration;

use crate::time::Timestamp;

/// Hour of UTC, as its number since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hour(u32);

impl Hour {
    const MILLIS: u64 = 3_600_000;

    /// Returns the hour that an instant is in.
    pub fn of(instant: Timestamp) -> Self {
        Self(u32::try_from(instant.unix_millis() / Self::MILLIS).unwrap_or(u32::MAX))
    }

    /// Returns the hour of this number.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Its number since the Unix epoch.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The instant at which it begins.
    pub fn start(self) -> Timestamp {
        Timestamp::from_unix_millis(u64::from(self.0) * Self::MILLIS)
    }

    /// Returns the time from an instant in it to its end: more than none.
    pub fn left_at(self, instant: Timestamp) -> Duration {
        let end = (u64::from(self.0) + 1) * Self::MILLIS;
        Duration::from_millis(end.saturating_sub(instant.unix_millis()))
    }
}

/// Steps of equal length that follow each other, each of whole hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HourSteps {
    first: Hour,
    hours_each: u32,
    count: u32,
}

impl HourSteps {
    /// Returns `count` steps, the last of which has the hour `now` in it. Each begins at a multiple
    /// of its length: a step of a day is a day of UTC.
    ///
    /// # Panics
    ///
    /// If a step has no hour, or if there is none.
    pub fn until(now: Hour, hours_each: u32, count: u32) -> Self {
        assert!(hours_each > 0 && count > 0, "there is a step, and it has an hour");
        let last = now.0 - now.0 % hours_each;
        Self { first: Hour(last.saturating_sub((count - 1) * hours_each)), hours_each, count }
    }

    /// The first hour.
    pub const fn first(self) -> Hour {
        self.first
    }

    /// The hour after the last one.
    pub const fn end(self) -> Hour {
        Hour(self.first.0.saturating_add(self.count * self.hours_each))
    }

    /// Number of steps.
    pub fn count(self) -> usize {
        usize::try_from(self.count).expect("at least 32 bits")
    }

    /// The length of a step.
    pub fn length(self) -> Duration {
        Duration::from_hours(u64::from(self.hours_each))
    }

    /// Returns the position of the step that an hour is in, if it is in one.
    pub fn position_of(self, hour: Hour) -> Option<usize> {
        let position = hour.0.checked_sub(self.first.0)? / self.hours_each;
        (position < self.count).then(|| usize::try_from(position).expect("at least 32 bits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instant(text: &str) -> Timestamp {
        Timestamp::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn an_hour_begins_at_its_full_hour_and_ends_before_the_next() {
        let hour = Hour::of(instant("2027-01-15T08:59:59.999Z"));
        assert_eq!(hour.start(), instant("2027-01-15T08:00:00Z"));
        assert_eq!(hour.left_at(instant("2027-01-15T08:59:59.999Z")), Duration::from_millis(1));
        assert_eq!(hour.left_at(hour.start()), Duration::from_hours(1));
        assert_eq!(Hour::of(instant("2027-01-15T09:00:00Z")).number(), hour.number() + 1);
    }

    #[test]
    fn steps_of_a_day_are_days_of_utc() {
        let steps = HourSteps::until(Hour::of(instant("2027-01-15T08:30:00Z")), 24, 90);
        assert_eq!(steps.first().start(), instant("2026-10-18T00:00:00Z"));
        assert_eq!(steps.end().start(), instant("2027-01-16T00:00:00Z"));
        assert_eq!((steps.count(), steps.length()), (90, Duration::from_hours(24)));
        let position = |text| steps.position_of(Hour::of(instant(text)));
        assert_eq!(position("2027-01-15T23:59:59Z"), Some(89));
        assert_eq!(position("2026-10-18T00:00:00Z"), Some(0));
        assert_eq!(position("2026-10-17T23:59:59Z"), None);
        assert_eq!(position("2027-01-16T00:00:00Z"), None);
    }
}
