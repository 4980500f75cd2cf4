//! Rows of alerts: their keys, the latest event of each subject, and the progress of its posts.

use serde::{Deserialize, Serialize};

use crate::error::RowError;
use crate::record::{MillisV1, VERSION, body, decode, encode, encode_by};
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
    match key {
        AlertKey::Condition { node, code, about } => {
            let parts = [node, code, about].map(String::as_bytes);
            [&[CONDITION][..], &parts.join(&SEPARATOR)].concat()
        }
        AlertKey::Domain { organisation, name } => {
            [&[DOMAIN][..], &organisation.0.to_be_bytes(), name.as_bytes()].concat()
        }
        AlertKey::KeyExpiry(id) => [&[KEY_EXPIRY][..], &id.0.to_be_bytes()].concat(),
        AlertKey::Start { node } => [&[START][..], node.as_bytes()].concat(),
    }
}

pub(crate) fn decode_alert_key(key: &[u8]) -> Result<AlertKey, RowError> {
    const INVALID: RowError = RowError::Invalid("the alert's key");
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
#[serde(remote = "Alert")]
struct AlertV1 {
    #[serde(with = "NewsV1")]
    news: News,
    #[serde(with = "DeliveryV1")]
    delivery: AlertDelivery,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "News")]
struct NewsV1 {
    #[serde(with = "MillisV1")]
    at: Timestamp,
    #[serde(with = "EventV1")]
    event: AlertEvent,
}

/// The order of the variants is the stored format: new ones go to the end.
#[derive(Serialize, Deserialize)]
#[serde(remote = "AlertEvent")]
enum EventV1 {
    Raised(#[serde(with = "ConditionV1")] ReportedCondition),
    Cleared(#[serde(with = "ConditionV1")] ReportedCondition),
    DomainVerified,
    DomainFailed,
    KeyExpiring {
        #[serde(with = "OrganisationIdV1")]
        organisation: OrganisationId,
        label: String,
        #[serde(with = "MillisV1")]
        expires_at: Timestamp,
    },
    Started,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ReportedCondition")]
struct ConditionV1 {
    severity: String,
    message: String,
    advice: String,
    #[serde(with = "MillisV1")]
    since: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "OrganisationId")]
struct OrganisationIdV1(u32);

#[derive(Serialize, Deserialize)]
#[serde(remote = "AlertDelivery")]
struct DeliveryV1 {
    #[serde(with = "MillisV1")]
    of: Timestamp,
    attempts: u32,
    #[serde(with = "NextV1")]
    next: NextAttempt,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "NextAttempt")]
enum NextV1 {
    At(#[serde(with = "MillisV1")] Timestamp),
    Taken,
    GivenUp,
}

pub(crate) fn encode_alert(alert: &Alert) -> Vec<u8> {
    encode_by(VERSION, 512, |row| AlertV1::serialize(alert, row))
}

pub(crate) fn decode_alert(bytes: &[u8]) -> Result<Alert, RowError> {
    Ok(AlertV1::deserialize(&mut body(VERSION, bytes)?)?)
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
