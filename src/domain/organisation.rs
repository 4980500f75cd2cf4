//! Organisations: the tenants whose keys, domains, messages and suppressions are kept apart.

use std::fmt;
use std::str::FromStr;

/// An organisation's name: 1 to 64 of `A-Za-z0-9_-`, because it travels in SES's message tags.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrganisationName(String);

/// The text cannot name an organisation.
#[derive(Debug, thiserror::Error)]
#[error("an organisation's name is 1 to 64 characters of A-Z, a-z, 0-9, _ and -")]
pub struct BadOrganisationName;

impl OrganisationName {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for OrganisationName {
    type Err = BadOrganisationName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadOrganisationName)
        }
    }
}

impl fmt::Display for OrganisationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
