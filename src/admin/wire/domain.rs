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
    /// The DNS records by which SES verifies it; none where it was not asked.
    pub dns_records: Vec<DnsRecord>,
}

/// A DNS record to publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsRecord {
    /// `CNAME`.
    #[serde(rename = "type")]
    pub record_type: String,
    /// Its name.
    pub name: String,
    /// What it points to.
    pub value: String,
}

/// What SES says of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainCheck {
    /// Where SES stands.
    pub ses: SesAnswer,
    /// The domain, for each organisation that has it, as it stands now.
    pub domains: Vec<Domain>,
    /// The DNS records by which SES verifies it.
    pub dns_records: Vec<DnsRecord>,
}

/// Where SES stands with a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SesAnswer {
    /// It lets the account send from it.
    Verified,
    /// It has not found the DNS records.
    Unverified,
    /// It has no such identity.
    Unknown,
}

/// A withdrawn sender domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainRemoved {
    /// The name of the organisation.
    pub organisation: String,
    /// The domain.
    pub domain: String,
}
