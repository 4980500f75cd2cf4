//! SES v2: the operations, and what each comes to.
//!
//! Must not know how a call arrived, or what goes wrong with it on purpose.

use std::time::SystemTime;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::AccountAccess;
use super::address::{Address, RecipientFate};
use super::answer::{Refusal, Reply, json as json_reply};
use super::canonical::percent_decode;
use super::faults::CallKind;
use super::send::{self, read_json};
use super::state::State;
use crate::domain::time::Timestamp;

/// `GetAccount`'s word for a quota without limit.
const UNLIMITED_QUOTA: f64 = -1.0;
/// What `GetAccount` reports as the rate where there is no limit: SES has no word for that.
const UNLIMITED_RATE: f64 = 1_000_000.0;

/// The operations, as found from method and path.
#[derive(Debug)]
pub(super) enum Operation {
    SendEmail,
    GetAccount,
    CreateEmailIdentity,
    ListEmailIdentities,
    GetEmailIdentity(String),
    PutEmailIdentityMailFromAttributes(String),
    CreateConfigurationSet,
    GetConfigurationSet(String),
    CreateEventDestination(String),
    UpdateEventDestination(String, String),
    ListEventDestinations(String),
    PutSuppressedDestination,
    GetSuppressedDestination(String),
    DeleteSuppressedDestination(String),
    Unknown,
}

impl Operation {
    pub(super) fn of(method: &Method, path: &str) -> Self {
        let Some(rest) = path.strip_prefix("/v2/email/") else { return Self::Unknown };
        let mut segments = rest.split('/');
        let resource = segments.next().unwrap_or_default();
        let named: Option<Vec<String>> =
            segments.map(|s| String::from_utf8(percent_decode(s)).ok()).collect();
        let Some(named) = named.filter(|named| named.iter().all(|s| !s.is_empty())) else {
            return Self::Unknown;
        };
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let owned = |name: &str| name.to_owned();
        match (method, resource, named.as_slice()) {
            (&Method::POST, "outbound-emails", []) => Self::SendEmail,
            (&Method::GET, "account", []) => Self::GetAccount,
            (&Method::POST, "identities", []) => Self::CreateEmailIdentity,
            (&Method::GET, "identities", []) => Self::ListEmailIdentities,
            (&Method::GET, "identities", [name]) => Self::GetEmailIdentity(owned(name)),
            (&Method::PUT, "identities", [name, "mail-from"]) => {
                Self::PutEmailIdentityMailFromAttributes(owned(name))
            }
            (&Method::POST, "configuration-sets", []) => Self::CreateConfigurationSet,
            (&Method::GET, "configuration-sets", [name]) => Self::GetConfigurationSet(owned(name)),
            (&Method::POST, "configuration-sets", [set, "event-destinations"]) => {
                Self::CreateEventDestination(owned(set))
            }
            (&Method::PUT, "configuration-sets", [set, "event-destinations", name]) => {
                Self::UpdateEventDestination(owned(set), owned(name))
            }
            (&Method::GET, "configuration-sets", [set, "event-destinations"]) => {
                Self::ListEventDestinations(owned(set))
            }
            (&Method::PUT, "suppression", ["addresses"]) => Self::PutSuppressedDestination,
            (&Method::GET, "suppression", ["addresses", address]) => {
                Self::GetSuppressedDestination(owned(address))
            }
            (&Method::DELETE, "suppression", ["addresses", address]) => {
                Self::DeleteSuppressedDestination(owned(address))
            }
            _ => Self::Unknown,
        }
    }

    pub(super) fn kind(&self) -> CallKind {
        if matches!(self, Self::SendEmail) { CallKind::Send } else { CallKind::Other }
    }
}

/// Carries out one call whose signature has been checked.
pub(super) fn answer(state: &State, operation: &Operation, body: &[u8]) -> Result<Reply, Refusal> {
    let now = Instant::now();
    if operation.kind() == CallKind::Other && !state.admit_other_call(now) {
        return Err(Refusal::too_many_requests("Rate exceeded"));
    }
    let value = match operation {
        Operation::SendEmail => return send_email(state, body, now),
        Operation::GetAccount => account(state, now),
        Operation::CreateEmailIdentity => create_email_identity(state, body, now)?,
        Operation::ListEmailIdentities => state.read_identities().list(now),
        Operation::GetEmailIdentity(name) => state.identities().look(name, now)?,
        Operation::PutEmailIdentityMailFromAttributes(name) => {
            state.identities().put_mail_from(name, body)?
        }
        Operation::CreateConfigurationSet => state.configuration_sets().create(body)?,
        Operation::GetConfigurationSet(name) => state.read_configuration_sets().get(name)?,
        Operation::CreateEventDestination(set) => {
            state.configuration_sets().create_destination(set, body)?
        }
        Operation::UpdateEventDestination(set, name) => {
            state.configuration_sets().update_destination(set, name, body)?
        }
        Operation::ListEventDestinations(set) => {
            state.read_configuration_sets().list_destinations(set)?
        }
        Operation::PutSuppressedDestination => {
            state.suppressed().put(body, Timestamp::from(SystemTime::now()))?
        }
        Operation::GetSuppressedDestination(address) => state.suppressed().get(address)?,
        Operation::DeleteSuppressedDestination(address) => state.suppressed().delete(address)?,
        Operation::Unknown => {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "UnknownOperationException",
                "The simulator does not know this operation.",
            ));
        }
    };
    Ok(json_reply(StatusCode::OK, &value))
}

fn send_email(state: &State, body: &[u8], now: Instant) -> Result<Reply, Refusal> {
    let received_at = Timestamp::from(SystemTime::now());
    let mut message = send::read(body, state.ids.message_id(received_at), received_at)?;
    if let Some(name) = &message.configuration_set {
        state.read_configuration_sets().check(name)?;
    }
    let from = Address::parse(&message.from)?;
    if !state.read_identities().may_send(from, now) {
        return Err(Refusal::rejected(format!(
            "Email address is not verified. The following identities failed the check in region \
             {}: {}",
            state.region.to_ascii_uppercase(),
            message.from
        )));
    }
    state.limits().admit(message.recipients.len(), now)?;
    let suppressed = state.suppressed();
    for recipient in message.recipients.iter_mut().filter(|r| suppressed.holds(&r.address)) {
        recipient.fate = RecipientFate::Suppressed;
    }
    drop(suppressed);
    let reply = json_reply(StatusCode::OK, &json!({ "MessageId": message.id }));
    state.accept(message);
    Ok(reply)
}

fn account(state: &State, now: Instant) -> serde_json::Value {
    let mut limits = state.limits();
    let as_double = |count: u64| {
        #[expect(clippy::cast_precision_loss, reason = "the service model makes it a double")]
        let double = count as f64;
        double
    };
    json!({
        "DedicatedIpAutoWarmupEnabled": false,
        "EnforcementStatus": "HEALTHY",
        "ProductionAccessEnabled": state.access == AccountAccess::Production,
        "SendQuota": {
            "Max24HourSend": limits.daily_quota().map_or(UNLIMITED_QUOTA, as_double),
            "MaxSendRate": limits.send_rate().unwrap_or(UNLIMITED_RATE),
            "SentLast24Hours": as_double(limits.sent_last_24_hours(now)),
        },
        "SendingEnabled": true,
        "SuppressionAttributes": { "SuppressedReasons": [] },
        "VdmAttributes": { "VdmEnabled": "DISABLED" },
    })
}

fn create_email_identity(
    state: &State,
    body: &[u8],
    now: Instant,
) -> Result<serde_json::Value, Refusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Wire {
        email_identity: Option<String>,
        configuration_set_name: Option<String>,
    }
    let wire: Wire = read_json(body)?;
    let name = wire.email_identity.ok_or_else(|| Refusal::missing_member("emailIdentity"))?;
    if let Some(set) = &wire.configuration_set_name {
        state.read_configuration_sets().check(set)?;
    }
    state.identities().create(&name, wire.configuration_set_name, now)
}
