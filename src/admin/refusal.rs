//! Refusals: what operators read if something was not done, and names that are judged.

use serde::{Deserialize, Serialize};

use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::OrganisationName;
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
        Self::new(format!("the system gives no random numbers ({error}); try again"))
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
            StoreError::Unavailable => "make room or repair the disk, then try again",
            StoreError::FileLost => {
                "see pillarbox status for what to do; pillarbox backup FILE saves what the service \
                 holds"
            }
            StoreError::OutcomeOpen => "check whether it was made before you try again",
            StoreError::Damaged => "restore a backup of the data directory",
        };
        Self::new(format!("{error}; {advice}"))
    }
}

pub(super) fn organisation_name(text: &str) -> Result<OrganisationName> {
    text.parse().map_err(|rule| Refusal::new(format!("{text:?} cannot be a name: {rule}")))
}

pub(super) fn domain_name(text: &str) -> Result<DomainName<'_>> {
    DomainName::parse(text).map_err(|_| {
        Refusal::new(format!("{text:?} is not a domain name; write it as in mail.example.com"))
    })
}
