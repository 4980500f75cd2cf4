//! Moments of the past, as operators write them: one reader for all commands.

use crate::{Refusal, Result};
use pillarbox_domain::time::Timestamp;

/// Reads an instant, a day (its beginning, in UTC) or a duration that ends at `now`.
pub(super) fn moment(text: &str, now: Timestamp) -> Result<Timestamp> {
    if let Ok(duration) = humantime::parse_duration(text) {
        return Ok(now.minus(duration));
    }
    Timestamp::parse_rfc3339_with_offset(text)
        .or_else(|_| Timestamp::parse_rfc3339(&format!("{text}T00:00:00Z")))
        .map_err(|_| {
            Refusal::new(format!(
                "{text:?} is not a time such as 2027-01-31T12:00:00Z, a day such as 2027-01-31, or \
                 a duration until now such as 2h"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_days_and_durations_are_read() {
        let now = Timestamp::parse_rfc3339("2026-11-21T12:00:00Z").unwrap();
        for (text, read) in [
            ("2h", "2026-11-21T10:00:00.000Z"),
            ("1d 12h", "2026-11-20T00:00:00.000Z"),
            ("2026-11-20", "2026-11-20T00:00:00.000Z"),
            ("2026-11-20T23:30:00Z", "2026-11-20T23:30:00.000Z"),
            ("2026-11-20T23:30:00+01:00", "2026-11-20T22:30:00.000Z"),
        ] {
            assert_eq!(moment(text, now).unwrap().to_string(), read, "{text}");
        }
        for text in ["", "soon", "2", "20.11.2026", "2026-11", "2026-11-20 23:30"] {
            let refusal = moment(text, now).unwrap_err();
            assert!(refusal.message.contains("such as 2h"), "{text}: {refusal:?}");
        }
    }
}
