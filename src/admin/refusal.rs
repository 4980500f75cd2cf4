//! Refusals: what operators read if something was not done, and names and moments of the past that
//! are judged.

use serde::{Deserialize, Serialize};

use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::OrganisationName;
use pillarbox_domain::time::Timestamp;
use pillarbox_store::{ListError, StoreError};

/// Reason why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For a person to read: what is wrong, and what to do.
    pub message: String,
}

/// Result of what may be refused.
pub(super) type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl From<getrandom::Error> for Refusal {
    fn from(error: getrandom::Error) -> Self {
        Self::new(format!("the system returned no random numbers ({error}); try again"))
    }
}

impl From<ListError> for Refusal {
    fn from(error: ListError) -> Self {
        match error {
            ListError::Store(error) => error.into(),
            ListError::TooMany => Self::new(error.to_string()),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let advice = match error {
            StoreError::Unavailable => {
                "make room on the disk or repair it (with PostgreSQL: check the database and the \
                 network to it), then try again"
            }
            StoreError::FileLost => {
                "see pillarbox status for what to do; unless the file was overwritten, pillarbox \
                 backup FILE saves what the service holds"
            }
            StoreError::OutcomeOpen => "before you try again, check whether it was made",
            StoreError::Damaged => "check the disk, then restore a backup",
        };
        Self::new(format!("{error}; {advice}"))
    }
}

pub(super) fn organisation_name(text: &str) -> Result<OrganisationName> {
    text.parse().map_err(|rule| Refusal::new(format!("{text:?} cannot be a name: {rule}")))
}

pub(super) fn domain_name(text: &str) -> Result<DomainName<'_>> {
    DomainName::parse(text).map_err(|_| {
        Refusal::new(format!("{text:?} is not a domain name; write it like mail.example.com"))
    })
}

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
                 a duration such as 2h for two hours ago"
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
