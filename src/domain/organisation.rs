//! Organisations: the tenants whose keys, domains, messages and suppressions are kept apart.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::api_key::ApiKeyHash;
use crate::id::{KeyId, OrganisationId};
use crate::terms::MessageDefaults;
use crate::time::Timestamp;
use crate::worded;

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

worded! {
    /// How far a sender domain is verified.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum DomainState {
        /// The provider has not verified it yet; it cannot be sent from.
        Pending = "pending",
        /// The provider says that it may be sent from.
        Verified = "verified",
        /// The operator said so, without asking the provider.
        Assumed = "assumed",
    }
}

impl DomainState {
    /// Whether messages may be sent from the domain.
    pub const fn is_verified(self) -> bool {
        matches!(self, Self::Verified | Self::Assumed)
    }
}

/// Whether an organisation may send from a domain now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderStatus {
    /// It may.
    Verified,
    /// The domain is the organisation's, and the provider does not let it send for now.
    Unverified,
    /// The domain is not the organisation's, or not any more.
    DomainRemoved,
    /// There is no such organisation, or not any more.
    OrganisationRemoved,
}

/// A domain that an organisation sends from, or wants to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SenderDomain {
    /// Whose it is.
    pub organisation: OrganisationId,
    /// The name, as A-labels in lower case.
    pub name: String,
    /// How far it is verified.
    pub state: DomainState,
    /// When it was added.
    pub added_at: Timestamp,
    /// Since when it is in its state.
    pub since: Timestamp,
    /// What the provider last said of it; `None` where it was never asked.
    pub last_check: Option<DomainCheck>,
}

impl SenderDomain {
    /// Returns a domain that is added now.
    pub fn new(
        organisation: OrganisationId,
        name: String,
        state: DomainState,
        now: Timestamp,
    ) -> Self {
        Self { organisation, name, state, added_at: now, since: now, last_check: None }
    }

    /// Returns the domain in this state, which it keeps if it is in it already.
    #[must_use]
    pub fn moved(self, state: DomainState, now: Timestamp) -> Self {
        let since = if self.state == state { self.since } else { now };
        Self { state, since, ..self }
    }
}

/// What the provider said of a domain, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DomainCheck {
    /// When it was asked.
    pub at: Timestamp,
    /// What it said.
    pub finding: Finding,
}

/// Where the provider stands in verifying a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finding {
    /// It may be sent from.
    Verified,
    /// The provider still looks for its DNS records.
    Pending,
    /// The provider could not look, and tries again.
    TemporaryFailure,
    /// The provider has given up looking.
    Failed,
    /// The provider knows no such domain.
    Unknown,
}

/// An API key as stored: never the key itself.
#[derive(Debug, Clone)]
pub struct ApiKeyEntry {
    /// Its number.
    pub id: KeyId,
    /// Whose it is.
    pub organisation: OrganisationId,
    /// What the operator calls it.
    pub label: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops letting anybody in; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// The hash of the key.
    pub hash: ApiKeyHash,
    /// What it may be used for.
    pub rights: Arc<KeyRights>,
}

impl ApiKeyEntry {
    /// Whether it lets in at `now`: not from the moment of its expiry on.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

worded! {
    /// Use of the API that a key may be limited to (contract, section 15).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Scope {
        /// Every POST path, and SMTP.
        Send = "send",
        /// Every GET path.
        Read = "read",
    }
}

/// What an API key may be used for, and what it says of its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRights {
    /// At least one.
    pub scopes: BTreeSet<Scope>,
    /// Domains that its senders may be of, as A-labels in lower case. If there is none, each domain of
    /// the organisation.
    pub domains: BTreeSet<String>,
    /// Terms of messages that name none themselves.
    pub defaults: MessageDefaults,
}

impl KeyRights {
    /// Returns the rights of a key that is not limited, and says nothing of its messages.
    pub fn all() -> Self {
        let defaults = MessageDefaults::default();
        Self { scopes: Scope::ALL.into(), domains: BTreeSet::new(), defaults }
    }

    /// Whether messages of this sender domain may be sent with the key.
    pub fn allow_sender(&self, name: &str) -> bool {
        self.domains.is_empty() || self.domains.contains(name)
    }
}

/// An organisation as the service knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Organisation {
    /// Its number.
    pub id: OrganisationId,
    /// Its name.
    pub name: OrganisationName,
    /// Where its mail goes.
    pub kind: OrganisationKind,
    /// The operator's order that its mail waits, if there is one.
    pub pause: Option<Pause>,
    /// The most that it may send.
    pub limits: Limits,
}

impl Organisation {
    /// Returns an organisation that has just been added.
    pub const fn new(id: OrganisationId, name: OrganisationName, kind: OrganisationKind) -> Self {
        Self { id, name, kind, pause: None, limits: Limits::NONE }
    }
}

worded! {
    /// Destination of an organisation's mail. It never changes (contract, section 15).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum OrganisationKind {
        /// It goes to the provider.
        Production = "production",
        /// A simulator inside the process answers, and nothing leaves it.
        Test = "test",
    }
}

/// An operator's order that an organisation's mail waits: no call to the provider starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// When it was given.
    pub since: Timestamp,
    /// What happens to send requests meanwhile.
    pub requests: PausedRequests,
}

worded! {
    /// What happens to the send requests of an organisation that is paused.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum PausedRequests {
        /// They are accepted, and wait.
        Accepted = "accepted",
        /// They get 503.
        Refused = "refused",
    }
}

/// The most recipients of accepted messages in each period; `None` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// In a minute.
    pub per_minute: Option<u64>,
    /// In an hour.
    pub per_hour: Option<u64>,
    /// In a day.
    pub per_day: Option<u64>,
    /// In a month.
    pub per_month: Option<u64>,
}

impl Limits {
    /// No limit.
    pub const NONE: Self =
        Self { per_minute: None, per_hour: None, per_day: None, per_month: None };

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}
