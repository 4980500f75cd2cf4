//! Sender domains: added, checked with SES and withdrawn.

use crate::admin::wire::{
    DnsRecord, Domain, DomainCheck, DomainList, DomainRemoved, DomainReport, Refusal, Response,
    SesAnswer, Verification,
};
use crate::admin::{Admin, Place, domain_name};
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::{DomainState, SenderDomain};
use crate::ses::SesClient;
use crate::ses::call::CallError;
use crate::ses::identity::{self, Identity};
use crate::store::Change;

impl Admin {
    pub(super) async fn add_domain(
        &self,
        organisation: &str,
        domain: &str,
        verification: Verification,
    ) -> Result<Response, Refusal> {
        let organisation = self.organisation(organisation)?;
        let name = domain_name(domain)?;
        let (state, dns_records) = match verification {
            Verification::Assumed => (DomainState::Assumed, Vec::new()),
            Verification::BySes => {
                let ses = self.ses(
                    "start the service and add the domain then, or add it now with \
                     --assume-verified to skip SES",
                )?;
                let advice = "Nothing was changed. Put that right and add the domain again, or \
                              add it with --assume-verified to skip SES";
                let failed = |error: CallError| Refusal::new(format!("{error}. {advice}"));
                ses.create_identity(&name).await.map_err(failed)?;
                let identity = ses.identity(&name).await.map_err(failed)?;
                (state_by(identity.as_ref()), dns_records(&name, identity.as_ref()))
            }
        };
        let put = self.store.put_domain(organisation.id, name, state, self.clock.now()).await?;
        let added = put.ok_or_else(|| Self::gone(&organisation))?;
        Ok(Response::DomainAdded(DomainReport { domain: self.domain(&added), dns_records }))
    }

    pub(super) fn list_domains(&self, organisation: Option<&str>) -> Result<Response, Refusal> {
        let only = organisation.map(|name| self.organisation(name)).transpose()?;
        let domains = self
            .store
            .domains()
            .iter()
            .filter(|domain| only.as_ref().is_none_or(|only| only.id == domain.organisation))
            .map(|domain| self.domain(domain))
            .collect();
        Ok(Response::Domains(DomainList { domains }))
    }

    pub(super) async fn check_domain(&self, domain: &str) -> Result<Response, Refusal> {
        let name = domain_name(domain)?;
        if self.owned(&name).is_empty() {
            return Err(Refusal::new(format!(
                "no organisation has the domain {name}; `pillarbox domain add --org NAME {name}` \
                 adds it"
            )));
        }
        let ses = self.ses("start the service and check the domain then")?;
        let identity = ses.identity(&name).await.map_err(|error| {
            Refusal::new(format!("{error}. Nothing was changed; put that right and try again"))
        })?;
        let said = state_by(identity.as_ref());
        // What was withdrawn while SES was asked must not come back.
        for domain in self.owned(&name) {
            if domain.state != DomainState::Assumed && domain.state != said {
                let change =
                    self.store.change_domain(domain.organisation, name.clone(), domain.state, said);
                change.await?;
            }
        }
        Ok(Response::DomainChecked(DomainCheck {
            ses: match &identity {
                None => SesAnswer::Unknown,
                Some(_) if said == DomainState::Verified => SesAnswer::Verified,
                Some(_) => SesAnswer::Unverified,
            },
            domains: self.owned(&name).iter().map(|domain| self.domain(domain)).collect(),
            dns_records: dns_records(&name, identity.as_ref()),
        }))
    }

    pub(super) async fn remove_domain(
        &self,
        organisation: &str,
        domain: &str,
    ) -> Result<Response, Refusal> {
        let organisation = self.organisation(organisation)?;
        let name = domain_name(domain)?;
        match self.store.remove_domain(organisation.id, name.clone()).await? {
            Change::Made => Ok(Response::DomainRemoved(DomainRemoved {
                organisation: organisation.name.as_str().to_owned(),
                domain: name.as_str().to_owned(),
            })),
            Change::None => Err(Refusal::new(format!(
                "{} does not have the domain {name}; `pillarbox domain list` shows those there are",
                organisation.name
            ))),
        }
    }

    pub(super) fn ses(&self, advice: &str) -> Result<&SesClient, Refusal> {
        match &self.place {
            Place::Service { ses, .. } => Ok(ses),
            Place::File => Err(Refusal::new(format!(
                "no service runs, and only a running service asks SES: {advice}"
            ))),
        }
    }

    fn owned(&self, name: &DomainName<'_>) -> Vec<SenderDomain> {
        let mut domains = self.store.domains();
        domains.retain(|domain| domain.name == name.as_str());
        domains
    }

    fn domain(&self, domain: &SenderDomain) -> Domain {
        Domain {
            organisation: self.shown(domain.organisation),
            domain: domain.name.clone(),
            state: domain.state.as_str().to_owned(),
            added_at: domain.added_at.to_string(),
        }
    }
}

fn state_by(identity: Option<&Identity>) -> DomainState {
    match identity.map(|identity| identity.verification) {
        Some(identity::Verification::Verified) => DomainState::Verified,
        Some(identity::Verification::Unverified) | None => DomainState::Pending,
    }
}

/// The records of Easy DKIM (SES developer guide, "Easy DKIM in Amazon SES").
fn dns_records(name: &DomainName<'_>, identity: Option<&Identity>) -> Vec<DnsRecord> {
    let tokens = identity.map(|identity| identity.dkim_tokens.as_slice()).unwrap_or_default();
    let record = |token: &String| DnsRecord {
        record_type: "CNAME".to_owned(),
        name: format!("{token}._domainkey.{name}"),
        value: format!("{token}.dkim.amazonses.com"),
    };
    tokens.iter().map(record).collect()
}
