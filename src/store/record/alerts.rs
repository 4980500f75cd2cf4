//! Rows of alerts: their keys, the latest event of each subject, and the progress of its posts.

use serde::{Deserialize, Serialize};

use crate::error::RowError;
use crate::record::{decode, encode};
use pillarbox_domain::alert::{
    Alert, AlertDelivery, AlertEvent, AlertKey, News, NextAttempt, ReportedCondition,
};
use pillarbox_domain::id::{KeyId, OrganisationId};
use pillarbox_domain::time::Timestamp;

/// First bytes of keys. The order of the kinds is the stored format.
const CONDITION: u8 = 1;
const DOMAIN: u8 = 2;
const KEY_EXPIRY: u8 = 3;
const START: u8 = 4;
const SEPARATOR: u8 = 0;

/// The least key of an alert. Rows before it are other facts of the same table.
pub(crate) const FIRST_ALERT_KEY: &[u8] = &[CONDITION];

/// Key of the row with the time up to which the ends of API keys were checked.
pub(crate) const EXPIRIES_TOLD_KEY: &[u8] = &[0];

pub(crate) fn encode_alert_key(key: &AlertKey) -> Vec<u8> {
    let mut bytes = Vec::new();
    match key {
        AlertKey::Condition { node, code, about } => {
            bytes.push(CONDITION);
            bytes.extend_from_slice(node.as_bytes());
            bytes.push(SEPARATOR);
            bytes.extend_from_slice(code.as_bytes());
            bytes.push(SEPARATOR);
            bytes.extend_from_slice(about.as_bytes());
        }
        AlertKey::Domain { organisation, name } => {
            bytes.push(DOMAIN);
            bytes.extend_from_slice(&organisation.0.to_be_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        AlertKey::KeyExpiry(id) => {
            bytes.push(KEY_EXPIRY);
            bytes.extend_from_slice(&id.0.to_be_bytes());
        }
        AlertKey::Start { node } => {
            bytes.push(START);
            bytes.extend_from_slice(node.as_bytes());
        }
    }
    bytes
}

pub(crate) fn decode_alert_key(key: &[u8]) -> Result<AlertKey, RowError> {
    const INVALID: RowError = RowError::Invalid("an alert's key");
    let (kind, rest) = key.split_first().ok_or(INVALID)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| INVALID);
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).map_err(|_| INVALID);
    match *kind {
        CONDITION => {
            let mut parts = rest.splitn(3, |byte| *byte == SEPARATOR);
            let mut next = || text(parts.next().ok_or(INVALID)?);
            Ok(AlertKey::Condition { node: next()?, code: next()?, about: next()? })
        }
        DOMAIN => {
            let (organisation, name) = rest.split_at_checked(4).ok_or(INVALID)?;
            let organisation = OrganisationId(number(organisation)?);
            Ok(AlertKey::Domain { organisation, name: text(name)? })
        }
        KEY_EXPIRY => Ok(AlertKey::KeyExpiry(KeyId(number(rest)?))),
        START => Ok(AlertKey::Start { node: text(rest)? }),
        _ => Err(INVALID),
    }
}

#[derive(Serialize, Deserialize)]
struct AlertV1<'a> {
    at: u64,
    #[serde(borrow)]
    event: EventV1<'a>,
    /// Time of the news that was posted, failed attempts, and the next attempt.
    delivery: (u64, u32, NextV1),
}

/// The order of the variants is the stored format: new ones go to the end.
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
enum EventV1<'a> {
    Raised(ConditionV1<'a>),
    Cleared(ConditionV1<'a>),
    DomainVerified,
    DomainFailed,
    KeyExpiring { organisation: u32, label: &'a str, expires_at: u64 },
    Started,
}

#[derive(Serialize, Deserialize)]
struct ConditionV1<'a> {
    severity: &'a str,
    message: &'a str,
    advice: &'a str,
    since: u64,
}

#[derive(Serialize, Deserialize)]
enum NextV1 {
    At(u64),
    Taken,
    GivenUp,
}

impl<'a> From<&'a ReportedCondition> for ConditionV1<'a> {
    fn from(condition: &'a ReportedCondition) -> Self {
        let ReportedCondition { severity, message, advice, since } = condition;
        Self { severity, message, advice, since: since.unix_millis() }
    }
}

impl From<ConditionV1<'_>> for ReportedCondition {
    fn from(row: ConditionV1<'_>) -> Self {
        Self {
            severity: row.severity.to_owned(),
            message: row.message.to_owned(),
            advice: row.advice.to_owned(),
            since: Timestamp::from_unix_millis(row.since),
        }
    }
}

pub(crate) fn encode_alert(alert: &Alert) -> Vec<u8> {
    let event = match &alert.news.event {
        AlertEvent::Raised(condition) => EventV1::Raised(condition.into()),
        AlertEvent::Cleared(condition) => EventV1::Cleared(condition.into()),
        AlertEvent::DomainVerified => EventV1::DomainVerified,
        AlertEvent::DomainFailed => EventV1::DomainFailed,
        AlertEvent::KeyExpiring { organisation, label, expires_at } => EventV1::KeyExpiring {
            organisation: organisation.0,
            label,
            expires_at: expires_at.unix_millis(),
        },
        AlertEvent::Started => EventV1::Started,
    };
    let AlertDelivery { of, attempts, next } = alert.delivery;
    let next = match next {
        NextAttempt::At(at) => NextV1::At(at.unix_millis()),
        NextAttempt::Taken => NextV1::Taken,
        NextAttempt::GivenUp => NextV1::GivenUp,
    };
    let delivery = (of.unix_millis(), attempts, next);
    encode(&AlertV1 { at: alert.news.at.unix_millis(), event, delivery }, 512)
}

pub(crate) fn decode_alert(bytes: &[u8]) -> Result<Alert, RowError> {
    let AlertV1 { at, event, delivery: (of, attempts, next) } = decode(bytes)?;
    let instant = Timestamp::from_unix_millis;
    let event = match event {
        EventV1::Raised(condition) => AlertEvent::Raised(condition.into()),
        EventV1::Cleared(condition) => AlertEvent::Cleared(condition.into()),
        EventV1::DomainVerified => AlertEvent::DomainVerified,
        EventV1::DomainFailed => AlertEvent::DomainFailed,
        EventV1::KeyExpiring { organisation, label, expires_at } => AlertEvent::KeyExpiring {
            organisation: OrganisationId(organisation),
            label: label.to_owned(),
            expires_at: instant(expires_at),
        },
        EventV1::Started => AlertEvent::Started,
    };
    let next = match next {
        NextV1::At(at) => NextAttempt::At(instant(at)),
        NextV1::Taken => NextAttempt::Taken,
        NextV1::GivenUp => NextAttempt::GivenUp,
    };
    let delivery = AlertDelivery { of: instant(of), attempts, next };
    Ok(Alert { news: News { at: instant(at), event }, delivery })
}

pub(crate) fn encode_expiries_told(up_to: Timestamp) -> Vec<u8> {
    encode(&up_to.unix_millis(), 11)
}

pub(crate) fn decode_expiries_told(bytes: &[u8]) -> Result<Timestamp, RowError> {
    Ok(Timestamp::from_unix_millis(decode(bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_are_behind_the_first_and_apart() {
        let condition = |node: &str, code: &str, about: &str| AlertKey::Condition {
            node: node.to_owned(),
            code: code.to_owned(),
            about: about.to_owned(),
        };
        let keys = [
            condition("", "queue_stuck", ""),
            condition("a", "domain_paused", "example.com of acme"),
            AlertKey::Domain { organisation: OrganisationId(258), name: "example.com".to_owned() },
            AlertKey::KeyExpiry(KeyId(u32::MAX)),
            AlertKey::Start { node: String::new() },
            AlertKey::Start { node: "mail-a".to_owned() },
        ];
        for key in &keys {
            let encoded = encode_alert_key(key);
            assert!(*encoded >= *FIRST_ALERT_KEY && *encoded > *EXPIRIES_TOLD_KEY);
            assert_eq!(decode_alert_key(&encoded).unwrap(), *key);
        }
        for bad in [EXPIRIES_TOLD_KEY, &[], &[KEY_EXPIRY, 1]] {
            assert!(decode_alert_key(bad).is_err());
        }
    }
}
