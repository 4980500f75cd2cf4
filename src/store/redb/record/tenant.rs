//! Rows of organisations, API keys, sender domains and suppressions.

use serde::{Deserialize, Serialize};

use crate::domain::api_key::ApiKeyHash;
use crate::domain::id::{KeyId, MessageId, OrganisationId};
use crate::domain::organisation::{
    ApiKeyEntry, DomainCheck, DomainState, Finding, OrganisationName, SenderDomain,
};
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::domain::time::Timestamp;
use crate::store::redb::record::{RowError, decode, decode_as, encode, encode_as, version};

// The order of the variants is the stored format: new ones go to the end.
stored_enum!(ReasonV1 = SuppressionReason { Bounce, Complaint, Manual });
stored_enum!(DomainStateV1 = DomainState { Pending, Verified, Assumed });
stored_enum!(FindingV2 = Finding { Verified, Pending, TemporaryFailure, Failed, Unknown });

#[derive(Serialize, Deserialize)]
struct SuppressionV1 {
    reason: ReasonV1,
    since: u64,
    cause: Option<[u8; 16]>,
}

/// The row of a suppression; its address is the key.
pub(in crate::store) fn encode_suppression(suppression: &Suppression) -> Vec<u8> {
    let row = SuppressionV1 {
        reason: suppression.reason.into(),
        since: suppression.since.unix_millis(),
        cause: suppression.cause.map(|id| *id.as_bytes()),
    };
    encode(&row, 32)
}

/// Reads a suppression's row.
pub(in crate::store) fn decode_suppression(
    address: &str,
    bytes: &[u8],
) -> Result<Suppression, RowError> {
    let row: SuppressionV1 = decode(bytes)?;
    Ok(Suppression {
        address: SuppressedAddress::from_stored(address),
        reason: row.reason.into(),
        since: Timestamp::from_unix_millis(row.since),
        cause: row.cause.map(MessageId::from_bytes),
    })
}

#[derive(Serialize, Deserialize)]
struct OrganisationV1<'a> {
    name: &'a str,
}

/// The row of an organisation.
pub(in crate::store) fn encode_organisation(name: &OrganisationName) -> Vec<u8> {
    encode(&OrganisationV1 { name: name.as_str() }, 72)
}

/// Reads an organisation's row.
pub(in crate::store) fn decode_organisation(bytes: &[u8]) -> Result<OrganisationName, RowError> {
    let row: OrganisationV1<'_> = decode(bytes)?;
    row.name.parse().map_err(|_| RowError::Invalid("an organisation's name"))
}

#[derive(Serialize, Deserialize)]
struct ApiKeyV1<'a> {
    organisation: u32,
    label: &'a str,
    created_at: u64,
    hash: [u8; 32],
}

/// An API key that expires; one that does not is a row of the first version, which an earlier
/// pillarbox reads too.
#[derive(Serialize, Deserialize)]
struct ApiKeyV2<'a> {
    #[serde(borrow)]
    key: ApiKeyV1<'a>,
    expires_at: u64,
}

/// The version of [`ApiKeyV2`].
const EXPIRING: u8 = 2;

/// The row of an API key.
pub(in crate::store) fn encode_api_key(entry: &ApiKeyEntry) -> Vec<u8> {
    let key = ApiKeyV1 {
        organisation: entry.organisation.0,
        label: &entry.label,
        created_at: entry.created_at.unix_millis(),
        hash: entry.hash.0,
    };
    let size = 64 + entry.label.len();
    match entry.expires_at.map(Timestamp::unix_millis) {
        Some(expires_at) => encode_as(EXPIRING, &ApiKeyV2 { key, expires_at }, size),
        None => encode(&key, size),
    }
}

/// Reads an API key's row.
pub(in crate::store) fn decode_api_key(id: u32, bytes: &[u8]) -> Result<ApiKeyEntry, RowError> {
    let (row, expires_at) = match bytes.first() {
        Some(&EXPIRING) => {
            let row: ApiKeyV2<'_> = decode_as(EXPIRING, bytes)?;
            (row.key, Some(Timestamp::from_unix_millis(row.expires_at)))
        }
        _ => (decode::<ApiKeyV1<'_>>(bytes)?, None),
    };
    Ok(ApiKeyEntry {
        id: KeyId(id),
        organisation: OrganisationId(row.organisation),
        label: row.label.to_owned(),
        created_at: Timestamp::from_unix_millis(row.created_at),
        expires_at,
        hash: ApiKeyHash(row.hash),
    })
}

/// Before checks were remembered.
#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct SenderDomainV1 {
    state: DomainStateV1,
    added_at: u64,
}

#[derive(Serialize, Deserialize)]
struct SenderDomainV2 {
    state: DomainStateV1,
    added_at: u64,
    since: u64,
    last_check: Option<(u64, FindingV2)>,
}

const DOMAIN_V2: u8 = 2;

/// The row of a sender domain; its name is the key.
pub(in crate::store) fn encode_domain(domain: &SenderDomain) -> Vec<u8> {
    let row = SenderDomainV2 {
        state: domain.state.into(),
        added_at: domain.added_at.unix_millis(),
        since: domain.since.unix_millis(),
        last_check: domain.last_check.map(|check| (check.at.unix_millis(), check.finding.into())),
    };
    encode_as(DOMAIN_V2, &row, 32)
}

/// Reads a sender domain's row.
pub(in crate::store) fn decode_domain(
    organisation: u32,
    name: &str,
    bytes: &[u8],
) -> Result<SenderDomain, RowError> {
    let row = if version(bytes) == Some(DOMAIN_V2) {
        decode_as(DOMAIN_V2, bytes)?
    } else {
        let SenderDomainV1 { state, added_at } = decode(bytes)?;
        SenderDomainV2 { state, added_at, since: added_at, last_check: None }
    };
    Ok(SenderDomain {
        organisation: OrganisationId(organisation),
        name: name.to_owned(),
        state: row.state.into(),
        added_at: Timestamp::from_unix_millis(row.added_at),
        since: Timestamp::from_unix_millis(row.since),
        last_check: row.last_check.map(|(at, finding)| DomainCheck {
            at: Timestamp::from_unix_millis(at),
            finding: finding.into(),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_one_that_never_expires_as_it_always_did() {
        let mut entry = ApiKeyEntry {
            id: KeyId(7),
            organisation: OrganisationId(1),
            label: "app".to_owned(),
            created_at: Timestamp::from_unix_millis(1_800_000_000_000),
            expires_at: None,
            hash: ApiKeyHash([9; 32]),
        };
        // Organisation, length and text of the label, the time as a varint, the hash.
        let mut first = vec![1, 1, 3, b'a', b'p', b'p', 0x80, 0xa0, 0xf1, 0xc2, 0xb1, 0x34];
        first.extend([9; 32]);
        assert_eq!(encode_api_key(&entry), first);
        assert_eq!(decode_api_key(7, &first).unwrap().expires_at, None);
        entry.expires_at = Some(Timestamp::from_unix_millis(1_900_000_000_000));
        let read = decode_api_key(7, &encode_api_key(&entry)).unwrap();
        assert_eq!((read.expires_at, read.label.as_str()), (entry.expires_at, "app"));
        assert!(decode_api_key(7, &[3, 0]).is_err(), "a version of tomorrow");
    }

    #[test]
    fn a_domain_of_the_first_version_has_never_been_checked() {
        let row = encode(&SenderDomainV1 { state: DomainStateV1::Verified, added_at: 7 }, 16);
        assert_eq!(row, [1, 1, 7], "the bytes that the first version wrote");
        let read = decode_domain(3, "example.com", &row).unwrap();
        let added_at = Timestamp::from_unix_millis(7);
        let expected = SenderDomain {
            organisation: OrganisationId(3),
            name: "example.com".to_owned(),
            state: DomainState::Verified,
            added_at,
            since: added_at,
            last_check: None,
        };
        assert_eq!(read, expected);
        let check = DomainCheck { at: Timestamp::from_unix_millis(9), finding: Finding::Failed };
        let checked = SenderDomain { last_check: Some(check), ..expected };
        let again = decode_domain(3, "example.com", &encode_domain(&checked)).unwrap();
        assert_eq!(again, checked);
    }
}
