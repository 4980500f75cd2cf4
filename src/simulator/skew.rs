//! A clock that is off: the simulator's own time, and how HTTP shows it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use crate::domain::time::Timestamp;

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// How far the simulator's clock is from the system's, in seconds.
#[derive(Debug, Default)]
pub(super) struct ClockOffset(AtomicI64);

impl ClockOffset {
    pub(super) fn set(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }

    /// The simulator's time.
    pub(super) fn now(&self) -> SystemTime {
        let seconds = self.0.load(Ordering::Relaxed);
        let apart = Duration::from_secs(seconds.unsigned_abs());
        let now = SystemTime::now();
        if seconds < 0 { now - apart } else { now + apart }
    }
}

/// A time as HTTP's `Date` has it (RFC 9110 section 5.6.7).
pub(super) fn http_date(time: SystemTime) -> String {
    let time = Timestamp::from(time);
    let text = time.to_string();
    let day = usize::try_from(time.unix_millis() / 86_400_000 % 7).expect("below seven");
    let month: usize = text[5..7].parse().expect("RFC 3339 has the month there");
    format!(
        "{}, {} {} {} {} GMT",
        DAYS[day],
        &text[8..10],
        MONTHS[month - 1],
        &text[..4],
        &text[11..19]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_in_the_form_of_http() {
        // The example of RFC 9110 section 5.6.7.
        let time = Timestamp::parse_rfc3339("1994-11-06T08:49:37Z").unwrap();
        assert_eq!(http_date(time.into()), "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
