//! Sender domains: added, checked with SES and withdrawn.

use crate::admin::wire::{
    DnsRecord, Domain, DomainCheck, DomainList, DomainRemoved, DomainReport, LastCheck, MailFrom,
    Purpose, Refusal, Response, SesAnswer, Setup, Sight, Verification,
};
use crate::admin::{Admin, Place, domain_name};
use crate::dispatch::Cancelled;
use crate::domain::mailbox::DomainName;
use crate::domain::message::Cancellation;
use crate::domain::organisation::{self, DomainState, Finding, Organisation, SenderDomain};
use crate::domain_verification::finding;
use crate::queue::Selection;
use crate::ses::SesClient;
use crate::ses::error::CallError;
use crate::ses::identity::records::{self, records};
use crate::ses::identity::{Identity, SetupStatus};
use crate::store::Change;

impl Admin {
    pub(super) async fn add_domain(
        &self,
        organisation: &str,
        domain: &str,
        verification: Verification,
        mail_from: Option<&str>,
    ) -> Result<Response, Refusal> {
        let organisation = self.organisation(organisation)?;
        let name = domain_name(domain)?;
        let mail_from = mail_from.map(|text| self.mail_from(&name, text)).transpose()?;
        let report = match (verification, mail_from) {
            (Verification::Assumed, None) => {
                let added = self.put(&organisation, &name, DomainState::Assumed).await?;
                DomainReport { domain: self.domain(&added), dns_records: Vec::new() }
            }
            (Verification::Assumed, Some(_)) => {
                return Err(Refusal::new(
                    "SES is not asked about a domain that is assumed to be verified, so it cannot \
                     be given a MAIL FROM domain; leave out one of the two",
                ));
            }
            (Verification::BySes, mail_from) => {
                self.add_at_ses(&organisation, &name, mail_from.as_ref()).await?
            }
        };
        Ok(Response::DomainAdded(report))
    }

    async fn add_at_ses(
        &self,
        organisation: &Organisation,
        name: &DomainName<'_>,
        mail_from: Option<&DomainName<'_>>,
    ) -> Result<DomainReport, Refusal> {
        let ses = self.ses(
            "start the service and add the domain then, or add it now with --assume-verified to \
             skip SES",
        )?;
        let advice = "The domain was not added. Put that right and add it again, or add it with \
                      --assume-verified to skip SES";
        let failed = |error: CallError| Refusal::new(format!("{error}. {advice}"));
        ses.create_identity(name).await.map_err(failed)?;
        if let Some(mail_from) = mail_from {
            ses.set_mail_from(name, mail_from).await.map_err(failed)?;
        }
        let identity = ses.identity(name).await.map_err(failed)?;
        let finding = finding(identity.as_ref());
        let state = state_by(finding);
        let mut added = self.put(organisation, name, state).await?;
        let check = organisation::DomainCheck { at: self.clock.now(), finding };
        let noted = self.store.change_domain(organisation.id, name.clone(), state, state, check);
        if noted.await? == Change::Made {
            added.last_check = Some(check);
        }
        let dns_records = dns_records(name, identity.as_ref(), ses.region());
        Ok(DomainReport { domain: self.domain(&added), dns_records })
    }

    async fn put(
        &self,
        organisation: &Organisation,
        name: &DomainName<'_>,
        state: DomainState,
    ) -> Result<SenderDomain, Refusal> {
        let now = self.clock.now();
        let put = self.store.put_domain(organisation.id, name.clone(), state, now).await?;
        put.ok_or_else(|| Self::gone(organisation))
    }

    /// The custom MAIL FROM domain that is asked for. SES takes a sub-domain of the identity's
    /// that nothing else is sent from.
    fn mail_from<'a>(
        &self,
        domain: &DomainName<'_>,
        text: &'a str,
    ) -> Result<DomainName<'a>, Refusal> {
        let name = domain_name(text)?;
        let is_below = name
            .as_str()
            .strip_suffix(domain.as_str())
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'));
        if !is_below {
            return Err(Refusal::new(format!(
                "the MAIL FROM domain {name} is not a sub-domain of {domain}; take one that is \
                 used for nothing else, such as bounce.{domain}"
            )));
        }
        if !self.owned(&name).is_empty() {
            return Err(Refusal::new(format!(
                "the MAIL FROM domain {name} is a sender domain; take one that is used for nothing \
                 else"
            )));
        }
        Ok(name)
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
        let finding = finding(identity.as_ref());
        let check = organisation::DomainCheck { at: self.clock.now(), finding };
        // What was withdrawn while SES was asked must not come back. The operator asks, and so
        // one look is enough.
        for domain in self.owned(&name) {
            let (from, to) = match domain.state {
                DomainState::Assumed => (DomainState::Assumed, DomainState::Assumed),
                state => (state, state_by(finding)),
            };
            self.store.change_domain(domain.organisation, name.clone(), from, to, check).await?;
        }
        Ok(Response::DomainChecked(DomainCheck {
            ses: finding.into(),
            reason: identity.as_ref().and_then(|identity| identity.reason.clone()),
            dkim: identity.as_ref().map(|identity| identity.dkim_status.into()),
            mail_from: identity.as_ref().and_then(|identity| identity.mail_from.as_ref()).map(
                |mail_from| MailFrom {
                    domain: mail_from.domain.clone(),
                    setup: mail_from.status.into(),
                },
            ),
            domains: self.owned(&name).iter().map(|domain| self.domain(domain)).collect(),
            dns_records: dns_records(&name, identity.as_ref(), ses.region()),
        }))
    }

    pub(super) async fn remove_domain(
        &self,
        organisation: &str,
        domain: &str,
    ) -> Result<Response, Refusal> {
        let organisation = self.organisation(organisation)?;
        let name = domain_name(domain)?;
        if self.store.remove_domain(organisation.id, name.clone()).await? == Change::None {
            return Err(Refusal::new(format!(
                "{} does not have the domain {name}; `pillarbox domain list` shows those there are",
                organisation.name
            )));
        }
        let selection = Selection::Organisation {
            organisation: organisation.id,
            key: None,
            sender_domain: Some(name.clone().into_owned()),
        };
        let cancelled = self.cancel(selection, Cancellation::DomainRemoved).await;
        let Cancelled { cancelled, calls_under_way, .. } = cancelled.map_err(|error| {
            Refusal::new(format!(
                "{name} was withdrawn, and nothing from it is sent any more; but not all queued \
                 messages are recorded as failed yet ({error}): each is as its turn comes"
            ))
        })?;
        Ok(Response::DomainRemoved(DomainRemoved {
            organisation: organisation.name.as_str().to_owned(),
            domain: name.as_str().to_owned(),
            messages_failed: cancelled,
            calls_under_way,
        }))
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
            since: domain.since.to_string(),
            last_check: domain
                .last_check
                .map(|check| LastCheck { at: check.at.to_string(), ses: check.finding.into() }),
        }
    }
}

fn state_by(finding: Finding) -> DomainState {
    match finding {
        Finding::Verified => DomainState::Verified,
        Finding::Pending | Finding::TemporaryFailure | Finding::Failed | Finding::Unknown => {
            DomainState::Pending
        }
    }
}

fn dns_records(name: &DomainName<'_>, identity: Option<&Identity>, region: &str) -> Vec<DnsRecord> {
    let records = identity.map(|identity| records(name, identity, region)).unwrap_or_default();
    records
        .into_iter()
        .map(|record| DnsRecord {
            record_type: record.kind().to_owned(),
            value: record.data.to_string(),
            purpose: match record.purpose {
                records::Purpose::Dkim => Purpose::Dkim,
                records::Purpose::MailFrom => Purpose::MailFrom,
                records::Purpose::Dmarc => Purpose::Dmarc,
            },
            ses: match record.sight {
                records::Sight::Found => Sight::Found,
                records::Sight::Missing => Sight::Missing,
                records::Sight::NotLookedFor => Sight::NotLookedFor,
            },
            zone_line: record.to_string(),
            name: record.name,
        })
        .collect()
}

impl From<Finding> for SesAnswer {
    fn from(finding: Finding) -> Self {
        match finding {
            Finding::Verified => Self::Verified,
            Finding::Pending => Self::Pending,
            Finding::TemporaryFailure => Self::TemporaryFailure,
            Finding::Failed => Self::Failed,
            Finding::Unknown => Self::Unknown,
        }
    }
}

impl From<SetupStatus> for Setup {
    fn from(status: SetupStatus) -> Self {
        match status {
            SetupStatus::NotStarted => Self::NotStarted,
            SetupStatus::Pending => Self::Pending,
            SetupStatus::Success => Self::Success,
            SetupStatus::Failed => Self::Failed,
            SetupStatus::TemporaryFailure => Self::TemporaryFailure,
            SetupStatus::Other => Self::Other,
        }
    }
}
