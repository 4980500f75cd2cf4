//! When a key is to expire, as operators write it.

use crate::admin::wire::Refusal;
use crate::domain::time::Timestamp;

/// Reads a duration from `now` on, a day (from its beginning, in UTC) or an instant, which must be
/// still to come.
pub(super) fn parse(text: &str, now: Timestamp) -> Result<Timestamp, Refusal> {
    let end = match humantime::parse_duration(text) {
        Ok(duration) => now.plus(duration),
        Err(_) => Timestamp::parse_rfc3339(text)
            .or_else(|_| Timestamp::parse_rfc3339(&format!("{text}T00:00:00Z")))
            .map_err(|_| {
                Refusal::new(format!(
                    "{text:?} is neither a duration such as 90d nor a date such as 2027-01-31 or \
                     2027-01-31T12:00:00Z"
                ))
            })?,
    };
    // Beyond it, a timestamp has no text.
    if end <= now || end > Timestamp::LAST {
        return Err(Refusal::new(format!("a key cannot expire at {text}: give a time to come")));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_days_and_instants_are_read_and_the_past_is_not() {
        let now = Timestamp::parse_rfc3339("2026-11-21T12:00:00Z").unwrap();
        for (text, end) in [
            ("90d", "2027-02-19T12:00:00.000Z"),
            ("1h 30m", "2026-11-21T13:30:00.000Z"),
            ("2027-01-31", "2027-01-31T00:00:00.000Z"),
            ("2026-11-21T12:00:00.001Z", "2026-11-21T12:00:00.001Z"),
        ] {
            assert_eq!(parse(text, now).unwrap().to_string(), end);
        }
        for text in ["", "soon", "0s", "2026-11-21", "2026-11-21T12:00:00Z", "9000y", "31.1.2027"] {
            assert!(parse(text, now).is_err(), "{text}");
        }
    }
}
