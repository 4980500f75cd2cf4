//! Sender domains: added, checked with SES and withdrawn.

use serde::{Deserialize, Serialize};

use crate::{
    Admin, DomainAdd, DomainCheck, DomainList, DomainRemove, Refusal, Result, domain_name,
};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::Cancellation;
use pillarbox_domain::organisation::{
    self, DomainState, Finding, Organisation, OrganisationKind, SenderDomain,
};
use pillarbox_maintenance::domain_verification::finding;
use pillarbox_queue::Selection;
use pillarbox_records::views::is_false;
use pillarbox_ses::error::CallError;
use pillarbox_ses::identity::records::{Purpose, RecordPresence, records};
use pillarbox_ses::identity::{Identity, SetupStatus};
use pillarbox_store::Change;

/// Advice if no service runs that could ask SES.
const CHECK_LATER: &str = "start the service and check the domain then";

/// Party that confirms that a domain may be sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verification {
    /// SES, once it found the domain's DNS records.
    BySes,
    /// The operator; SES is not asked.
    Assumed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Domain {
    pub organisation: String,
    /// The domain, as A-labels in lower case.
    pub domain: String,
    /// `pending`, `verified` or `assumed`.
    pub state: String,
    pub added_at: String,
    pub since: String,
    /// Last answer of SES; `None` if SES was never asked.
    pub last_check: Option<LastCheck>,
    /// True for a domain of a test organisation, which SES does not know.
    #[serde(default, skip_serializing_if = "is_false")]
    pub test: bool,
}

/// Last answer of SES about a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCheck {
    pub at: String,
    #[serde(with = "SesAnswer")]
    pub ses: Finding,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domains {
    pub domains: Vec<Domain>,
}

/// A sender domain with what its owner has to publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainReport {
    #[serde(flatten)]
    pub domain: Domain,
    /// The DNS records to publish; none if SES was not asked.
    pub dns_records: Vec<DnsRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsRecord {
    /// `CNAME`, `MX` or `TXT`.
    #[serde(rename = "type")]
    pub record_type: String,
    pub name: String,
    pub value: String,
    pub purpose: Purpose,
    pub ses: RecordPresence,
    pub zone_line: String,
}

/// Answer of SES about a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainChecked {
    #[serde(with = "SesAnswer")]
    pub ses: Finding,
    /// Reason why SES's last check failed, in SES's own word.
    pub reason: Option<String>,
    /// SES's status of the DKIM records; `None` if SES has no such identity.
    pub dkim: Option<SetupStatus>,
    pub mail_from: Option<MailFrom>,
    /// The domain, for each organisation that has it, as it stands now.
    pub domains: Vec<Domain>,
    pub dns_records: Vec<DnsRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailFrom {
    pub domain: String,
    pub setup: SetupStatus,
}

/// SES's status of a domain, as JSON has it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Finding", rename_all = "camelCase")]
enum SesAnswer {
    Verified,
    Pending,
    TemporaryFailure,
    Failed,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainRemoved {
    pub organisation: String,
    pub domain: String,
    pub messages_failed: usize,
    /// Messages from it whose call to the provider was under way. They are not tried again after
    /// it.
    pub calls_under_way: usize,
    /// Nodes that did not answer. The messages that they hold end when their attempt is due, and
    /// are not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_without_answer: Vec<String>,
}

pub(super) async fn add(admin: &Admin, call: DomainAdd) -> Result<DomainReport> {
    let organisation = admin.organisation(&call.organisation)?;
    let name = domain_name(&call.domain)?;
    let mail_from =
        call.mail_from.as_deref().map(|text| admin.mail_from(&name, text)).transpose()?;
    let is_test = organisation.kind == OrganisationKind::Test;
    let is_assumed = call.verification == Verification::Assumed;
    match mail_from {
        Some(_) if is_test => Err(Refusal::new(format!(
            "{} is a test organisation: its mail never goes to SES, so there is no MAIL FROM \
             domain; leave it out",
            organisation.name
        ))),
        Some(_) if is_assumed => Err(Refusal::new(
            "--mail-from needs SES, which pillarbox does not ask with --assume-verified; leave out \
             one of the two",
        )),
        // The verification of a test organisation's is not needed: nothing is sent from it.
        None if is_test || is_assumed => {
            let added = admin.put(&organisation, &name, DomainState::Assumed).await?;
            Ok(DomainReport { domain: admin.domain(&added), dns_records: Vec::new() })
        }
        mail_from => admin.add_at_ses(&organisation, &name, mail_from.as_ref()).await,
    }
}

pub(super) fn list(admin: &Admin, call: &DomainList) -> Result<Domains> {
    let (only, all) = (call.organisation.as_deref(), admin.store.domains());
    let domains = admin.only(only, all, |domain| domain.organisation)?;
    Ok(Domains { domains: domains.iter().map(|domain| admin.domain(domain)).collect() })
}

pub(super) async fn check(admin: &Admin, call: DomainCheck) -> Result<DomainChecked> {
    let name = domain_name(&call.domain)?;
    let identity = admin.identity_at_ses(&name).await?;
    let finding = finding(identity.as_ref());
    let check = organisation::DomainCheck { at: admin.clock.now(), finding };
    // A domain that was withdrawn while SES was asked must not come back. The operator asks, so one
    // check is enough.
    for domain in admin.owned(&name).into_iter().filter(|domain| !admin.is_of_test(domain)) {
        let from = domain.state;
        let to = if from == DomainState::Assumed { from } else { state_by(finding) };
        admin.store.change_domain(domain.organisation, name.clone(), from, to, check).await?;
    }
    admin.checked(&name, identity.as_ref())
}

pub(super) async fn remove(admin: &Admin, call: DomainRemove) -> Result<DomainRemoved> {
    let organisation = admin.organisation(&call.organisation)?;
    let name = domain_name(&call.domain)?;
    if admin.store.remove_domain(organisation.id, name.clone()).await? == Change::None {
        return Err(Refusal::new(format!(
            "{} does not have the domain {name}; to list the domains: pillarbox domain list",
            organisation.name
        )));
    }
    let selection = Selection::Organisation {
        organisation: organisation.id,
        key: None,
        sender_domain: Some(name.clone().into_owned()),
    };
    let cancelled = admin.cancel(selection, Cancellation::DomainRemoved).await;
    let (cancelled, nodes_without_answer) = cancelled.map_err(|error| {
        Refusal::new(format!(
            "{name} was removed, and no message from it is sent any more. Not all queued messages \
             are recorded as failed yet ({error}); the service records each of the others when its \
             turn in the queue comes"
        ))
    })?;
    Ok(DomainRemoved {
        organisation: organisation.name.as_str().to_owned(),
        domain: name.as_str().to_owned(),
        messages_failed: cancelled.cancelled,
        calls_under_way: cancelled.calls_under_way,
        nodes_without_answer,
    })
}

impl Admin {
    /// Asks SES about a domain, and changes nothing here.
    pub async fn domain_at_ses(&self, domain: &str) -> Result<DomainChecked> {
        let name = domain_name(domain)?;
        let identity = self.identity_at_ses(&name).await?;
        self.checked(&name, identity.as_ref())
    }

    /// Asks SES for the identity of a domain that an organisation sends from.
    async fn identity_at_ses(&self, name: &DomainName<'_>) -> Result<Option<Identity>> {
        if self.owned(name).is_empty() {
            return Err(Refusal::new(format!(
                "no organisation has the domain {name}; `pillarbox domain add --org NAME {name}` \
                 adds it"
            )));
        }
        if self.owned(name).iter().all(|domain| self.is_of_test(domain)) {
            return Err(Refusal::new(format!(
                "only test organisations have the domain {name}: it counts as verified, and SES is \
                 not asked about it"
            )));
        }
        self.ses(CHECK_LATER)?.identity(name).await.map_err(|error| {
            Refusal::new(format!("{error}. Nothing was changed; correct the error and try again"))
        })
    }

    fn checked(&self, name: &DomainName<'_>, identity: Option<&Identity>) -> Result<DomainChecked> {
        Ok(DomainChecked {
            ses: finding(identity),
            reason: identity.and_then(|identity| identity.reason.clone()),
            dkim: identity.map(|identity| identity.dkim_status),
            mail_from: identity.and_then(|identity| identity.mail_from.as_ref()).map(|mail_from| {
                MailFrom { domain: mail_from.domain.clone(), setup: mail_from.status }
            }),
            domains: self.owned(name).iter().map(|domain| self.domain(domain)).collect(),
            dns_records: dns_records(name, identity, self.ses(CHECK_LATER)?.region()),
        })
    }

    async fn add_at_ses(
        &self,
        organisation: &Organisation,
        name: &DomainName<'_>,
        mail_from: Option<&DomainName<'_>>,
    ) -> Result<DomainReport> {
        let ses = self.ses(
            "start the service and add the domain then, or add it now with --assume-verified to \
             skip SES",
        )?;
        let advice = "The domain was not added. Correct the error and add it again, or add it \
                      with --assume-verified to skip SES";
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
    ) -> Result<SenderDomain> {
        let now = self.clock.now();
        let put = self.store.put_domain(organisation.id, name.clone(), state, now).await?;
        put.ok_or_else(|| Self::gone(organisation))
    }

    /// The custom MAIL FROM domain that is asked for. SES takes a sub-domain of the identity's
    /// that nothing else is sent from.
    fn mail_from<'a>(&self, domain: &DomainName<'_>, text: &'a str) -> Result<DomainName<'a>> {
        let name = domain_name(text)?;
        let is_below = name
            .as_str()
            .strip_suffix(domain.as_str())
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'));
        if !is_below {
            return Err(Refusal::new(format!(
                "the MAIL FROM domain {name} is not a sub-domain of {domain}; use one that has no \
                 other use, such as bounce.{domain}"
            )));
        }
        if !self.owned(&name).is_empty() {
            return Err(Refusal::new(format!(
                "the MAIL FROM domain {name} is a sender domain; use one that has no other use"
            )));
        }
        Ok(name)
    }

    /// Returns true if a domain is a test organisation's.
    fn is_of_test(&self, domain: &SenderDomain) -> bool {
        self.store.organisation_kind(domain.organisation) == Some(OrganisationKind::Test)
    }

    fn owned(&self, name: &DomainName<'_>) -> Vec<SenderDomain> {
        let mut domains = self.store.domains();
        domains.retain(|domain| domain.name == name.as_str());
        domains
    }

    /// A sender domain as it is shown.
    pub fn domain(&self, domain: &SenderDomain) -> Domain {
        Domain {
            organisation: self.shown(domain.organisation),
            domain: domain.name.clone(),
            state: domain.state.as_str().to_owned(),
            added_at: domain.added_at.to_string(),
            since: domain.since.to_string(),
            last_check: domain
                .last_check
                .map(|check| LastCheck { at: check.at.to_string(), ses: check.finding }),
            test: self.is_of_test(domain),
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
            purpose: record.purpose,
            ses: record.sight,
            zone_line: record.to_string(),
            name: record.name,
        })
        .collect()
}
