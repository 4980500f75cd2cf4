//! Sender domains of organisations, and the provider's answers about them.

use crate::alerts::put_news;
use crate::organisations::exists;
use crate::record::directory::{decode_domain, encode_domain};
use crate::rows::{Key, Lock, Rows, Stop, Table};
use crate::{Change, Store, StoreError};
use pillarbox_domain::alert::{AlertEvent, AlertKey};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{
    DomainCheck, DomainState, Finding, SenderDomain, SenderStatus,
};
use pillarbox_domain::time::Timestamp;

impl Store {
    /// Adds a sender domain, or sets the state of one that is there. Returns `None` if there is no
    /// such organisation.
    pub async fn put_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        state: DomainState,
        now: Timestamp,
    ) -> Result<Option<SenderDomain>, StoreError> {
        let name = name.into_owned();
        let put = move |rows: &mut dyn Rows| {
            if !exists(rows, organisation)? {
                return Ok(None);
            }
            let domain = match read(rows, organisation, &name)? {
                Some(known) => known.moved(state, now),
                None => SenderDomain::new(organisation, name.as_str().to_owned(), state, now),
            };
            write(rows, &domain)?;
            Ok(Some(domain))
        };
        self.change(Lock::Directory, 1, put).await
    }

    /// Writes the provider's answer about a sender domain and moves the domain from one state to
    /// another, which may be the same. Does nothing if it was changed or removed since it was read.
    pub async fn change_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
        from: DomainState,
        to: DomainState,
        check: DomainCheck,
    ) -> Result<Change, StoreError> {
        let name = name.into_owned();
        let alerting = self.memory().alerting.get();
        let change = move |rows: &mut dyn Rows| match read(rows, organisation, &name)? {
            Some(domain) if domain.state == from => {
                if let Some(event) = news(&domain, to, check.finding) {
                    let name = name.as_str().to_owned();
                    let key = AlertKey::Domain { organisation, name };
                    put_news(rows, alerting, &key, check.at, event)?;
                }
                let domain = domain.moved(to, check.at);
                write(rows, &SenderDomain { last_check: Some(check), ..domain })?;
                Ok(Change::Made)
            }
            Some(_) | None => Ok(Change::None),
        };
        self.change(Lock::Directory, 1, change).await
    }

    /// Withdraws a sender domain.
    pub async fn remove_domain(
        &self,
        organisation: OrganisationId,
        name: DomainName<'_>,
    ) -> Result<Change, StoreError> {
        let key = key(organisation, name.as_str());
        self.remove_row(Lock::Directory, Table::Domains, key).await
    }

    /// Returns the permission of an organisation to send from a domain now.
    pub fn sender_status(
        &self,
        organisation: OrganisationId,
        domain: &DomainName<'_>,
    ) -> SenderStatus {
        self.directory().load().sender_status(organisation, domain.as_str())
    }

    /// The first `limit` verified domains of an organisation that a condition holds for.
    pub(super) fn verified_domains(
        &self,
        organisation: OrganisationId,
        limit: usize,
        holds: impl Fn(&DomainName<'_>) -> bool,
    ) -> Vec<DomainName<'static>> {
        let directory = self.directory().load();
        let first = directory.domains.partition_point(|domain| domain.organisation < organisation);
        let own = directory.domains[first..].iter();
        let own = own.take_while(|domain| domain.organisation == organisation);
        let verified = own.filter(|domain| domain.state != DomainState::Pending);
        let names = verified.filter_map(|domain| DomainName::parse(&domain.name).ok());
        names.filter(|name| holds(name)).map(DomainName::into_owned).take(limit).collect()
    }

    /// All sender domains.
    pub fn domains(&self) -> Vec<SenderDomain> {
        self.directory().load().domains.clone()
    }
}

/// Returns the alert for operators if the provider now says this of a domain.
fn news(domain: &SenderDomain, to: DomainState, finding: Finding) -> Option<AlertEvent> {
    let is_new = domain.last_check.is_none_or(|check| check.finding != finding);
    match (domain.state, to) {
        (DomainState::Pending, DomainState::Verified) => Some(AlertEvent::DomainVerified),
        (DomainState::Verified, DomainState::Pending) => Some(AlertEvent::DomainFailed),
        (DomainState::Pending, DomainState::Pending) if is_new && finding == Finding::Failed => {
            Some(AlertEvent::DomainFailed)
        }
        _ => None,
    }
}

fn key(organisation: OrganisationId, name: &str) -> Key {
    Key::from((organisation.0, name))
}

/// Reads the domain's row; `None` also if it cannot be read, so that it can be added again.
fn read(
    rows: &mut dyn Rows,
    organisation: OrganisationId,
    name: &DomainName<'_>,
) -> Result<Option<SenderDomain>, Stop> {
    let row = rows.get(Table::Domains, &key(organisation, name.as_str()))?;
    Ok(row.and_then(|row| decode_domain(organisation.0, name.as_str(), &row).ok()))
}

fn write(rows: &mut dyn Rows, domain: &SenderDomain) -> Result<(), Stop> {
    rows.put(Table::Domains, &key(domain.organisation, &domain.name), &encode_domain(domain))
}
