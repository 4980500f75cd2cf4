//! Rows of the directory: organisations, API keys and sender domains.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::RowError;
use crate::record::{PriorityV3, decode, decode_as, encode, encode_as};
use pillarbox_domain::api_key::ApiKeyHash;
use pillarbox_domain::id::{KeyId, OrganisationId};
use pillarbox_domain::message_terms::{MessageDefaults, whole_millis};
use pillarbox_domain::organisation::{
    ApiKeyEntry, DomainCheck, DomainState, Finding, KeyRights, Limits, Organisation,
    OrganisationKind, Pause, PausedRequests, Scope, SenderDomain,
};
use pillarbox_domain::time::Timestamp;

stored_enum!(DomainStateV1 = DomainState { Pending, Verified, Assumed });
stored_enum!(FindingV2 = Finding { Verified, Pending, TemporaryFailure, Failed, Unknown });
stored_enum!(ScopeV3 = Scope { Send, Read });
stored_enum!(OrganisationKindV2 = OrganisationKind { Production, Test });
stored_enum!(PausedRequestsV2 = PausedRequests { Accepted, Refused });

/// An organisation that is more than a name; one that is not is a row of the first version, which
/// an earlier pillarbox reads too: the name.
#[derive(Serialize, Deserialize)]
struct OrganisationV2<'a> {
    name: &'a str,
    kind: OrganisationKindV2,
    pause: Option<(u64, PausedRequestsV2)>,
    /// By minute, hour, day and month.
    limits: [Option<u64>; 4],
}

const WITH_SETTINGS: u8 = 2;

pub(crate) fn encode_organisation(organisation: &Organisation) -> Vec<u8> {
    let Organisation { id, name, kind, pause, limits } = organisation;
    let size = 72;
    if *organisation == Organisation::new(*id, name.clone(), OrganisationKind::Production) {
        return encode(&name.as_str(), size);
    }
    let Limits { per_minute, per_hour, per_day, per_month } = *limits;
    let row = OrganisationV2 {
        name: name.as_str(),
        kind: (*kind).into(),
        pause: pause.map(|pause| (pause.since.unix_millis(), pause.requests.into())),
        limits: [per_minute, per_hour, per_day, per_month],
    };
    encode_as(WITH_SETTINGS, &row, size)
}

pub(crate) fn decode_organisation(id: u32, bytes: &[u8]) -> Result<Organisation, RowError> {
    let row = if bytes.first() == Some(&WITH_SETTINGS) {
        decode_as(WITH_SETTINGS, bytes)?
    } else {
        OrganisationV2 {
            name: decode(bytes)?,
            kind: OrganisationKindV2::Production,
            pause: None,
            limits: Default::default(),
        }
    };
    let [per_minute, per_hour, per_day, per_month] = row.limits;
    Ok(Organisation {
        id: OrganisationId(id),
        name: row.name.parse().map_err(|_| RowError::Invalid("the organisation's name"))?,
        kind: row.kind.into(),
        pause: row.pause.map(|(since, requests)| Pause {
            since: Timestamp::from_unix_millis(since),
            requests: requests.into(),
        }),
        limits: Limits { per_minute, per_hour, per_day, per_month },
    })
}

#[derive(Serialize, Deserialize)]
struct ApiKeyV1<'a> {
    organisation: u32,
    label: &'a str,
    created_at: u64,
    hash: [u8; 32],
}

/// Version of an API key that expires, with the time of that; one that does not is a row of the first
/// version, which an earlier pillarbox reads too.
const EXPIRING: u8 = 2;

/// An API key with limited rights.
#[derive(Serialize, Deserialize)]
struct ApiKeyV3<'a> {
    #[serde(borrow)]
    key: ApiKeyV1<'a>,
    expires_at: Option<u64>,
    scopes: Vec<ScopeV3>,
    #[serde(borrow)]
    domains: Vec<&'a str>,
}

const LIMITED: u8 = 3;

/// An API key that has defaults for its messages.
#[derive(Serialize, Deserialize)]
struct ApiKeyV4<'a> {
    #[serde(borrow)]
    key: ApiKeyV3<'a>,
    priority: PriorityV3,
    /// Milliseconds after the acceptance.
    expires_in: Option<u64>,
}

const WITH_DEFAULTS: u8 = 4;

pub(crate) fn encode_api_key(entry: &ApiKeyEntry) -> Vec<u8> {
    let key = ApiKeyV1 {
        organisation: entry.organisation.0,
        label: &entry.label,
        created_at: entry.created_at.unix_millis(),
        hash: entry.hash.0,
    };
    let size = 64 + entry.label.len();
    let KeyRights { scopes, domains, defaults } = &*entry.rights;
    let expires_at = entry.expires_at.map(Timestamp::unix_millis);
    if *entry.rights != KeyRights::all() {
        let scopes = scopes.iter().map(|scope| (*scope).into()).collect();
        let domains = domains.iter().map(String::as_str).collect();
        let key = ApiKeyV3 { key, expires_at, scopes, domains };
        let MessageDefaults { priority, expires_in } = *defaults;
        if *defaults == MessageDefaults::default() {
            return encode_as(LIMITED, &key, size);
        }
        let (priority, expires_in) = (priority.into(), expires_in.map(whole_millis));
        return encode_as(WITH_DEFAULTS, &ApiKeyV4 { key, priority, expires_in }, size);
    }
    match expires_at {
        Some(expires_at) => encode_as(EXPIRING, &(key, expires_at), size),
        None => encode(&key, size),
    }
}

pub(crate) fn decode_api_key(id: u32, bytes: &[u8]) -> Result<ApiKeyEntry, RowError> {
    let (row, expires_at, rights): (ApiKeyV1<'_>, _, _) = match bytes.first() {
        Some(&EXPIRING) => {
            let (key, expires_at) = decode_as(EXPIRING, bytes)?;
            (key, Some(expires_at), KeyRights::all())
        }
        Some(&LIMITED) => limited(decode_as(LIMITED, bytes)?, MessageDefaults::default()),
        Some(&WITH_DEFAULTS) => {
            let ApiKeyV4 { key, priority, expires_in } = decode_as(WITH_DEFAULTS, bytes)?;
            let expires_in = expires_in.map(Duration::from_millis);
            limited(key, MessageDefaults { priority: priority.into(), expires_in })
        }
        _ => (decode(bytes)?, None, KeyRights::all()),
    };
    Ok(ApiKeyEntry {
        id: KeyId(id),
        organisation: OrganisationId(row.organisation),
        label: row.label.to_owned(),
        created_at: Timestamp::from_unix_millis(row.created_at),
        expires_at: expires_at.map(Timestamp::from_unix_millis),
        hash: ApiKeyHash(row.hash),
        rights: Arc::new(rights),
    })
}

fn limited(row: ApiKeyV3<'_>, defaults: MessageDefaults) -> (ApiKeyV1<'_>, Option<u64>, KeyRights) {
    let ApiKeyV3 { key, expires_at, scopes, domains } = row;
    let scopes = scopes.into_iter().map(Scope::from).collect();
    let domains = domains.into_iter().map(str::to_owned).collect();
    (key, expires_at, KeyRights { scopes, domains, defaults })
}

/// Row from before checks were stored.
#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
pub(super) struct SenderDomainV1 {
    pub(super) state: DomainStateV1,
    pub(super) added_at: u64,
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
pub(crate) fn encode_domain(domain: &SenderDomain) -> Vec<u8> {
    let row = SenderDomainV2 {
        state: domain.state.into(),
        added_at: domain.added_at.unix_millis(),
        since: domain.since.unix_millis(),
        last_check: domain.last_check.map(|check| (check.at.unix_millis(), check.finding.into())),
    };
    encode_as(DOMAIN_V2, &row, 32)
}

pub(crate) fn decode_domain(
    organisation: u32,
    name: &str,
    bytes: &[u8],
) -> Result<SenderDomain, RowError> {
    let row = if bytes.first() == Some(&DOMAIN_V2) {
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
