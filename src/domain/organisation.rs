//! Organisations: the tenants whose keys, domains, messages and suppressions are kept apart.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::api_key::ApiKeyHash;
use crate::id::{KeyId, OrganisationId};
use crate::message_terms::MessageDefaults;
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
    /// The name, as the operator gave it.
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
    /// Verification state of a sender domain.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum DomainState {
        /// The provider has not verified the domain yet; no message may be sent from it.
        Pending = "pending",
        /// The provider says that messages may be sent from the domain.
        Verified = "verified",
        /// The operator said so, without asking the provider.
        Assumed = "assumed",
    }
}

impl DomainState {
    /// Returns true if messages may be sent from the domain.
    pub const fn is_verified(self) -> bool {
        matches!(self, Self::Verified | Self::Assumed)
    }
}

/// Permission of an organisation to send from a domain now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderStatus {
    /// The organisation may send.
    Verified,
    /// The domain is the organisation's, and the provider does not let it send for now.
    Unverified,
    /// The domain does not belong to the organisation, or no longer.
    DomainRemoved,
    /// The organisation does not exist, or no longer.
    OrganisationRemoved,
}

/// A domain that an organisation sends from, or wants to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SenderDomain {
    /// Organisation that sends from the domain.
    pub organisation: OrganisationId,
    /// The name, as A-labels in lower case.
    pub name: String,
    /// Verification state of the domain.
    pub state: DomainState,
    /// Time at which it was added.
    pub added_at: Timestamp,
    /// Time since which it is in its state.
    pub since: Timestamp,
    /// The provider's last answer about it; `None` if the provider was not asked yet.
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

/// The provider's answer about a domain, with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DomainCheck {
    /// Time of the question.
    pub at: Timestamp,
    /// Content of the answer.
    pub finding: Finding,
}

/// Progress of the provider's verification of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finding {
    /// Messages may be sent from it.
    Verified,
    /// The provider still searches for its DNS records.
    Pending,
    /// The provider could not check, and tries again.
    TemporaryFailure,
    /// The provider has given up.
    Failed,
    /// The provider knows no such domain.
    Unknown,
}

/// An API key as stored: its hash and what it may do, without the key itself.
#[derive(Debug, Clone)]
pub struct ApiKeyEntry {
    /// Number by which an operator names it.
    pub id: KeyId,
    /// Organisation that the key lets in.
    pub organisation: OrganisationId,
    /// Label that the operator gave to it.
    pub label: String,
    /// Time at which it was made.
    pub created_at: Timestamp,
    /// Time from which it lets nobody in; `None` if it has no end.
    pub expires_at: Option<Timestamp>,
    /// The hash of the key.
    pub hash: ApiKeyHash,
    /// Rights of the key.
    pub rights: Arc<KeyRights>,
}

impl ApiKeyEntry {
    /// Returns true if the key lets in at `now`: not from the moment of its expiry on.
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
        /// Every GET path of the API.
        Read = "read",
    }
}

/// Rights of an API key, and terms of messages that name none themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRights {
    /// Permitted uses, of which there is at least one.
    pub scopes: BTreeSet<Scope>,
    /// Domains that its senders may be of, as A-labels in lower case. If the set is empty, each
    /// domain of the organisation.
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

    /// Returns true if messages of this sender domain may be sent with the key.
    pub fn allow_sender(&self, name: &str) -> bool {
        self.domains.is_empty() || self.domains.contains(name)
    }
}

/// An organisation as the service knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Organisation {
    /// Number, which is not given again.
    pub id: OrganisationId,
    /// Name, as the operator gave it.
    pub name: OrganisationName,
    /// Destination of its mail.
    pub kind: OrganisationKind,
    /// The operator's order that its mail waits, if there is one.
    pub pause: Option<Pause>,
    /// The largest numbers of recipients that it may send to.
    pub limits: Limits,
}

impl Organisation {
    /// Returns an organisation that has just been added.
    pub const fn new(id: OrganisationId, name: OrganisationName, kind: OrganisationKind) -> Self {
        Self { id, name, kind, pause: None, limits: Limits::NONE }
    }
}

worded! {
    /// Destination of an organisation's mail. It does not change (contract, section 15).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum OrganisationKind {
        /// Its mail goes to the provider.
        Production = "production",
        /// A simulator inside the process answers, and nothing leaves it.
        Test = "test",
    }
}

/// An operator's order that an organisation's mail waits: no call to the provider starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Time at which the order was given.
    pub since: Timestamp,
    /// Treatment of send requests meanwhile.
    pub requests: PausedRequests,
}

worded! {
    /// Treatment of the send requests of a paused organisation.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum PausedRequests {
        /// They are accepted, and wait.
        Accepted = "accepted",
        /// They are refused with 503.
        Refused = "refused",
    }
}

/// The most recipients of accepted messages in each period; `None` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Limit of a minute of UTC.
    pub per_minute: Option<u64>,
    /// Limit of an hour of UTC.
    pub per_hour: Option<u64>,
    /// Limit of a day of UTC.
    pub per_day: Option<u64>,
    /// Limit of a month of UTC.
    pub per_month: Option<u64>,
}

impl Limits {
    /// No limit.
    pub const NONE: Self =
        Self { per_minute: None, per_hour: None, per_day: None, per_month: None };

    /// Returns true if there is no limit.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);

    #[test]
    fn a_name_has_1_to_64_letters_digits_underscores_and_hyphens() {
        for name in ["a", "Acme-2_b", "0", "_", "-", &"a".repeat(64)] {
            let read: OrganisationName = name.parse().unwrap();
            assert_eq!((read.as_str(), read.to_string().as_str()), (name, name));
        }
        for name in ["", &"a".repeat(65), "a b", "a.b", "acm\u{e9}", "a\n"] {
            assert!(name.parse::<OrganisationName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_domain_is_in_its_state_since_it_moved_there() {
        let domain =
            SenderDomain::new(OrganisationId(1), "x.org".to_owned(), DomainState::Pending, NOON);
        assert_eq!((domain.added_at, domain.since, domain.last_check), (NOON, NOON, None));
        let later = NOON.plus(Duration::from_secs(1));
        let same = domain.clone().moved(DomainState::Pending, later);
        assert_eq!(same, domain);
        let verified = domain.moved(DomainState::Verified, later);
        assert_eq!((verified.state, verified.since), (DomainState::Verified, later));
        assert_eq!(verified.added_at, NOON);
        let sends = DomainState::ALL.into_iter().filter(|state| state.is_verified());
        assert_eq!(sends.collect::<Vec<_>>(), [DomainState::Verified, DomainState::Assumed]);
    }

    #[test]
    fn a_key_lets_in_until_its_expiry() {
        let mut key = ApiKeyEntry {
            id: KeyId(1),
            organisation: OrganisationId(1),
            label: "app".to_owned(),
            created_at: NOON,
            expires_at: None,
            hash: ApiKeyHash([0; 32]),
            rights: Arc::new(KeyRights::all()),
        };
        assert!(key.is_live(NOON));
        let end = NOON.plus(Duration::from_secs(1));
        key.expires_at = Some(end);
        assert!(key.is_live(end.minus(Duration::from_millis(1))));
        assert!(!key.is_live(end));
    }

    #[test]
    fn a_key_without_domains_is_for_all_of_them() {
        let all = KeyRights::all();
        assert_eq!(all.scopes, Scope::ALL.into());
        assert!(all.allow_sender("x.org"));
        let one = KeyRights { domains: ["x.org".to_owned()].into(), ..all };
        assert!(one.allow_sender("x.org") && !one.allow_sender("mail.x.org"));
    }

    #[test]
    fn an_organisation_is_new_without_a_pause_or_a_limit() {
        let name = "acme".parse().unwrap();
        let acme = Organisation::new(OrganisationId(7), name, OrganisationKind::Test);
        assert_eq!((acme.pause, acme.limits.is_none()), (None, true));
        assert!(!Limits { per_day: Some(1), ..Limits::NONE }.is_none());
    }
}
