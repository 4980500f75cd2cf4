//! Sender domains on the administration's wire.

use serde::{Deserialize, Serialize};

/// A sender domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Domain {
    /// The name of the organisation.
    pub organisation: String,
    /// The domain, as A-labels in lower case.
    pub domain: String,
    /// `pending`, `verified` or `assumed`.
    pub state: String,
    /// When it was added.
    pub added_at: String,
    /// Since when it is in its state.
    pub since: String,
    /// What SES last said of it; `None` where it was never asked.
    pub last_check: Option<LastCheck>,
}

/// What SES last said of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCheck {
    /// When it was asked.
    pub at: String,
    /// What it said.
    pub ses: SesAnswer,
}

/// Sender domains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainList {
    /// By organisation, then by name.
    pub domains: Vec<Domain>,
}

/// A sender domain with what its owner has to publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainReport {
    /// The domain.
    #[serde(flatten)]
    pub domain: Domain,
    /// The DNS records to publish; none where SES was not asked.
    pub dns_records: Vec<DnsRecord>,
}

/// A DNS record to publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsRecord {
    /// `CNAME`, `MX` or `TXT`.
    #[serde(rename = "type")]
    pub record_type: String,
    /// Its name.
    pub name: String,
    /// What it says, as a control panel takes it.
    pub value: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Whether it is there, as SES sees it.
    pub ses: Sight,
    /// The record as a line of a zone file.
    pub zone_line: String,
}

/// What a DNS record is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// Verifies the domain and signs its mail: needed.
    Dkim,
    /// Makes the custom MAIL FROM domain work: needed where there is one.
    MailFrom,
    /// Advice, for a domain that has no such record.
    Dmarc,
}

/// Whether a DNS record is there, as SES sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Sight {
    /// SES found it.
    Found,
    /// SES has not found it, or not all of its kind.
    Missing,
    /// SES does not look for it.
    NotLookedFor,
}

/// What SES says of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainCheck {
    /// Where SES stands.
    pub ses: SesAnswer,
    /// Why SES's last look failed, in its own word.
    pub reason: Option<String>,
    /// Where SES stands with the DKIM records; `None` where it has no such identity.
    pub dkim: Option<Setup>,
    /// The custom MAIL FROM domain, if there is one.
    pub mail_from: Option<MailFrom>,
    /// The domain, for each organisation that has it, as it stands now.
    pub domains: Vec<Domain>,
    /// The DNS records that it needs.
    pub dns_records: Vec<DnsRecord>,
}

/// A custom MAIL FROM domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailFrom {
    /// The domain.
    pub domain: String,
    /// Where SES stands with its MX record.
    pub setup: Setup,
}

/// Where SES stands in finding DNS records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Setup {
    /// It has not been asked to look.
    NotStarted,
    /// It has not found them yet.
    Pending,
    /// It found them.
    Success,
    /// It has given up, or they are gone.
    Failed,
    /// It could not look, for now.
    TemporaryFailure,
    /// It says something that its documentation does not.
    Other,
}

/// Where SES stands with a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SesAnswer {
    /// It lets the account send from it.
    Verified,
    /// It still looks for the DNS records.
    Pending,
    /// It could not look, and tries again.
    TemporaryFailure,
    /// It has given up looking.
    Failed,
    /// It has no such identity.
    Unknown,
}

/// A withdrawn sender domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainRemoved {
    /// The name of the organisation.
    pub organisation: String,
    /// The domain.
    pub domain: String,
    /// Queued messages from it, which have failed now.
    #[serde(default)]
    pub messages_failed: usize,
    /// Messages from it whose call to the provider was under way. They are not tried again after
    /// it.
    #[serde(default)]
    pub calls_under_way: usize,
}
