//! What an endpoint's answer to a delivery means.

use std::fmt;
use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::AttemptFailure;

/// Result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The endpoint took the delivery.
    Taken(StatusCode),
    /// The endpoint wants no more deliveries.
    Gone,
    /// It is to be tried again.
    Failed {
        /// Kind of the failure.
        failure: AttemptFailure,
        /// Sentence about it, without the URL.
        message: String,
        /// Wait that the endpoint asks for.
        retry_after: Option<Duration>,
    },
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(status) => write!(f, "status {}", status.as_u16()),
            Self::Gone => f.write_str("status 410"),
            Self::Failed { message, .. } => f.write_str(message),
        }
    }
}

/// Says what a status means; a status but 2xx and 410 is a failure.
pub(super) fn judge(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Answer {
    match status {
        StatusCode::GONE => Answer::Gone,
        status if status.is_success() => Answer::Taken(status),
        status => {
            let redirect =
                if status.is_redirection() { "; redirects are not followed" } else { "" };
            Answer::Failed {
                failure: AttemptFailure::Status(status.as_u16()),
                message: format!("status {}{redirect}", status.as_u16()),
                retry_after: retry_after(headers, now),
            }
        }
    }
}

/// Reads `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(SystemTime::from(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    #[test]
    fn only_2xx_is_taken_and_410_ends_it() {
        let judged =
            |status: u16| judge(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), NOON);
        for status in [200, 201, 202, 204, 299] {
            assert!(matches!(judged(status), Answer::Taken(_)), "{status}");
        }
        assert_eq!(judged(410), Answer::Gone);
        for status in [301, 302, 307, 308, 400, 401, 404, 408, 429, 500, 503] {
            let Answer::Failed { failure, message, .. } = judged(status) else {
                panic!("{status} is a failure");
            };
            assert_eq!(failure, AttemptFailure::Status(status));
            assert_eq!(message.contains("redirects"), status < 400);
        }
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, NOON)
        };
        assert_eq!(read("120"), Some(Duration::from_mins(2)));
        let later = httpdate::fmt_http_date(SystemTime::from(NOON.plus(Duration::from_mins(3))));
        assert_eq!(read(&later), Some(Duration::from_mins(3)));
        assert_eq!(read("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        for text in ["soon", "-1", "1.5", ""] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
