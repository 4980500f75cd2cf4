//! Wall-clock instants in milliseconds.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A wall-clock instant: whole milliseconds since the Unix epoch.
///
/// Shown as RFC 3339 in UTC with three decimals: `2026-11-21T09:30:00.123Z`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// The text is not an RFC 3339 instant in UTC.
#[derive(Debug, thiserror::Error)]
#[error("not an RFC 3339 timestamp in UTC")]
pub struct NotATimestamp;

/// Reading of another machine's clock, to be compared with the time since this machine's boot.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    /// Time that it showed at some moment between question and answer.
    pub time: Timestamp,
    /// Time since this machine's boot at the question, suspension included.
    pub asked: Duration,
    /// The same at the answer.
    pub answered: Duration,
}

impl Timestamp {
    /// 9999-12-31T23:59:59.999Z: the last that has a text (RFC 3339 gives a year four digits).
    pub const LAST: Self = Self(253_402_300_799_999);

    /// An instant from milliseconds since the Unix epoch.
    pub const fn from_unix_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn unix_millis(self) -> u64 {
        self.0
    }

    /// Parses an RFC 3339 instant in UTC; digits beyond the millisecond are cut off.
    pub fn parse_rfc3339(text: &str) -> Result<Self, NotATimestamp> {
        // The library also takes other text between the seconds and a last `Z`.
        let rest = text.get("2026-11-21T09:30:00".len()..).ok_or(NotATimestamp)?;
        let fraction = rest.strip_suffix('Z').or_else(|| rest.strip_suffix("+00:00"));
        let fraction = fraction.ok_or(NotATimestamp)?;
        let is_number =
            |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !fraction.is_empty() && !fraction.strip_prefix('.').is_some_and(is_number) {
            return Err(NotATimestamp);
        }
        let time = humantime::parse_rfc3339(text).map_err(|_| NotATimestamp)?;
        Ok(Self::from(time))
    }

    /// Parses an RFC 3339 instant with any offset from UTC, as AWS's own tools write them.
    pub fn parse_rfc3339_with_offset(text: &str) -> Result<Self, NotATimestamp> {
        let date = "2026-11-21T".len();
        let signed = text.get(date..).and_then(|time| time.rfind(['+', '-']));
        let Some(sign_at) = signed.map(|at| date + at) else { return Self::parse_rfc3339(text) };
        let (local, offset) = text.split_at(sign_at);
        let number = |tens: u8, ones: u8| match (tens, ones) {
            (b'0'..=b'9', b'0'..=b'9') => Ok(u64::from((tens - b'0') * 10 + (ones - b'0'))),
            _ => Err(NotATimestamp),
        };
        // RFC 3339 has the colon; ISO 8601 also has the forms without it.
        let (hours, minutes) = match &offset.as_bytes()[1..] {
            [a, b, b':', c, d] | [a, b, c, d] => (number(*a, *b)?, number(*c, *d)?),
            [a, b] => (number(*a, *b)?, 0),
            _ => return Err(NotATimestamp),
        };
        if hours > 23 || minutes > 59 {
            return Err(NotATimestamp);
        }
        let local = Self::parse_rfc3339(&format!("{local}Z"))?;
        let distance = Duration::from_mins(hours * 60 + minutes);
        let utc =
            if offset.starts_with('+') { local.minus(distance) } else { local.plus(distance) };
        // A later one could not be shown.
        if utc <= Self::LAST { Ok(utc) } else { Err(NotATimestamp) }
    }

    /// The instant `duration` later; saturates at the end of time.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// The instant `duration` earlier; saturates at the epoch.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// Returns true if `window` has passed between `self` and `now`: true from exactly `window` on.
    pub fn is_past(self, window: Duration, now: Timestamp) -> bool {
        now.0.saturating_sub(self.0) >= millis(window)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<SystemTime> for Timestamp {
    /// Instants before the epoch (a clock that was not set) count as the epoch.
    fn from(time: SystemTime) -> Self {
        Self(millis(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_millis(timestamp.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis((*self).into()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::IDEMPOTENCY_WINDOW;

    #[test]
    fn reads_and_shows_the_contracts_form() {
        let text = "2026-11-21T09:30:00.123Z";
        assert_eq!(Timestamp::parse_rfc3339(text).unwrap().to_string(), text);
        assert_eq!(Timestamp::from_unix_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert!(Timestamp::parse_rfc3339("yesterday").is_err());
    }

    #[test]
    fn only_a_fraction_comes_between_the_seconds_and_the_zone() {
        let read = |rest: &str| Timestamp::parse_rfc3339(&format!("2026-11-21T09:30:00{rest}"));
        for (rest, millis) in [("Z", 0), ("+00:00", 0), (".5Z", 500), (".0159Z", 15)] {
            let whole = read("Z").unwrap().unix_millis();
            assert_eq!(read(rest).unwrap().unix_millis(), whole + millis, "{rest}");
        }
        for rest in [
            "", "ZZ", "zZ", "5Z", "ZabcZ", ".Z", ".+00:00", ".5", ".5+05:3Z", ".5+05:30", "\u{e9}Z",
        ] {
            assert!(read(rest).is_err(), "{rest}");
        }
    }

    #[test]
    fn an_offset_from_utc_is_taken_into_account() {
        let utc = Timestamp::parse_rfc3339("2020-04-10T21:03:05.114Z").unwrap();
        for text in [
            "2020-04-10T21:03:05.114Z",
            "2020-04-10T21:03:05.114+00:00",
            "2020-04-10T14:03:05.114000-07:00",
            "2020-04-11T02:33:05.114+05:30",
            "2020-04-11T02:33:05.114+0530",
            "2020-04-11T21:02:05.114+23:59",
            "2020-04-10T14:03:05.114-07",
            "2020-04-10T21:03:05.114-0000",
        ] {
            assert_eq!(Timestamp::parse_rfc3339_with_offset(text).unwrap(), utc, "{text}");
        }
        for text in [
            "",
            "+00:00",
            "2020-04-10T21:03:05+24:00",
            "2020-04-10T21:03:05+\u{e9}:0",
            "2020-04-10T21:03:05+1",
            "2020-04-10T21:03:05+",
            "2020-04-10T21:03:05+00:60",
            "2020-04-10+02:00",
            "2020-04-10T21:03:05",
            "2020-04-10T21:03:05Z+00:00",
            "2020-04-10T21:03:05z+00:00",
        ] {
            assert!(Timestamp::parse_rfc3339_with_offset(text).is_err(), "{text}");
        }
        let last = Timestamp::parse_rfc3339_with_offset("9999-12-31T22:59:59.999-01:00").unwrap();
        assert_eq!(last.to_string(), "9999-12-31T23:59:59.999Z");
        assert!(Timestamp::parse_rfc3339_with_offset("9999-12-31T23:00:00-01:00").is_err());
    }

    #[test]
    fn a_window_ends_at_exactly_its_length() {
        let start = Timestamp::from_unix_millis(1_000);
        let end = start.plus(IDEMPOTENCY_WINDOW);
        assert!(!start.is_past(IDEMPOTENCY_WINDOW, end.minus(Duration::from_millis(1))));
        assert!(start.is_past(IDEMPOTENCY_WINDOW, end));
        assert!(!end.is_past(IDEMPOTENCY_WINDOW, start), "a clock set back expires nothing");
    }
}
