//! The DNS records of a domain that is sent from through SES, and whether SES has found them.
//!
//! Works from what SES said of the identity; asks no name server.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::identity::{Identity, MailFrom, SetupStatus};
use pillarbox_domain::mailbox::DomainName;

/// SPF policy of the MAIL FROM domain (SES developer guide, "Using a custom MAIL FROM domain").
const SPF: &str = "v=spf1 include:amazonses.com ~all";
/// The mildest policy there is (RFC 7489 section 6.3): it asks receivers for nothing.
const DMARC: &str = "v=DMARC1; p=none;";
/// The preference of the MAIL FROM domain's MX record, as SES asks for it.
const MX_PREFERENCE: u16 = 10;
/// Time for which resolvers may keep the records, in seconds.
const TTL_SECONDS: u32 = 3_600;

/// A DNS record to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its name, without a dot at its end.
    pub name: String,
    /// Type and value of the record.
    pub data: Data,
    /// Reason why the record is needed.
    pub purpose: Purpose,
    /// Its presence, as SES sees it.
    pub sight: RecordPresence,
}

/// Contents of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// It is another name for this one.
    Cname(String),
    /// Mail goes to this host.
    Mx {
        /// Lower ones come first.
        preference: u16,
        /// Name of the host.
        host: String,
    },
    /// A text, which is shorter than 256 octets and has no quote and no backslash.
    Txt(&'static str),
}

/// Purpose of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// Verifies the domain and signs its mail: needed.
    Dkim,
    /// Makes the custom MAIL FROM domain work: needed if there is one.
    MailFrom,
    /// Asks receivers for a treatment of mail that only claims to be the domain's: advice, for a
    /// domain that has no such record.
    Dmarc,
}

/// Presence of a record, as SES sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordPresence {
    /// SES found the record.
    Found,
    /// SES has not found it, or not all of its kind.
    Missing,
    /// SES does not check it.
    NotLookedFor,
}

impl From<SetupStatus> for RecordPresence {
    fn from(status: SetupStatus) -> Self {
        if status == SetupStatus::Success { Self::Found } else { Self::Missing }
    }
}

/// The records of a domain with this identity in this region.
pub fn records(domain: &DomainName<'_>, identity: &Identity, region: &str) -> Vec<Record> {
    let dkim = identity.dkim_tokens.iter().map(|token| Record {
        name: format!("{token}._domainkey.{domain}"),
        data: Data::Cname(format!("{token}.{}", identity.dkim_zone)),
        purpose: Purpose::Dkim,
        sight: identity.dkim_status.into(),
    });
    let mail_from = identity.mail_from.iter().flat_map(|mail_from| of_mail_from(mail_from, region));
    let dmarc = Record {
        name: format!("_dmarc.{domain}"),
        data: Data::Txt(DMARC),
        purpose: Purpose::Dmarc,
        sight: RecordPresence::NotLookedFor,
    };
    dkim.chain(mail_from).chain([dmarc]).collect()
}

fn of_mail_from(mail_from: &MailFrom, region: &str) -> [Record; 2] {
    let record = |data, sight| Record {
        name: mail_from.domain.clone(),
        data,
        purpose: Purpose::MailFrom,
        sight,
    };
    let host = format!("feedback-smtp.{region}.amazonses.com");
    [
        record(Data::Mx { preference: MX_PREFERENCE, host }, mail_from.status.into()),
        // SES's status is about the MX record alone.
        record(Data::Txt(SPF), RecordPresence::NotLookedFor),
    ]
}

impl Record {
    /// The record's type, such as `CNAME`.
    pub fn kind(&self) -> &'static str {
        match self.data {
            Data::Cname(_) => "CNAME",
            Data::Mx { .. } => "MX",
            Data::Txt(_) => "TXT",
        }
    }
}

impl fmt::Display for Data {
    /// As in a control panel: no quotes, and no dots at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cname(target) => f.write_str(target),
            Self::Mx { preference, host } => write!(f, "{preference} {host}"),
            Self::Txt(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Record {
    /// A line of a zone file (RFC 1035 section 5.1); its names are absolute, so it means the same
    /// in every zone's file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {TTL_SECONDS} IN {} ", self.name, self.kind())?;
        match &self.data {
            Data::Cname(target) => write!(f, "{target}."),
            Data::Mx { preference, host } => write!(f, "{preference} {host}."),
            Data::Txt(text) => write!(f, "\"{text}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Verification;

    #[test]
    fn the_records_are_lines_of_a_zone_file() {
        let identity = Identity {
            verification: Verification::Unverified,
            status: SetupStatus::Pending,
            reason: None,
            dkim_tokens: vec!["abc".to_owned()],
            dkim_zone: "dkim.amazonses.com".to_owned(),
            dkim_status: SetupStatus::Success,
            mail_from: Some(MailFrom {
                domain: "bounce.example.com".to_owned(),
                status: SetupStatus::Failed,
            }),
        };
        let domain = DomainName::parse("example.com").unwrap();
        let records = records(&domain, &identity, "eu-west-1");
        let lines: Vec<_> = records.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "abc._domainkey.example.com. 3600 IN CNAME abc.dkim.amazonses.com.",
                "bounce.example.com. 3600 IN MX 10 feedback-smtp.eu-west-1.amazonses.com.",
                "bounce.example.com. 3600 IN TXT \"v=spf1 include:amazonses.com ~all\"",
                "_dmarc.example.com. 3600 IN TXT \"v=DMARC1; p=none;\"",
            ]
        );
        let sights = records.iter().map(|record| record.sight);
        let expected = [
            RecordPresence::Found,
            RecordPresence::Missing,
            RecordPresence::NotLookedFor,
            RecordPresence::NotLookedFor,
        ];
        assert!(sights.eq(expected));
    }
}
