//! SES v2: finds a call's operation and carries it out.
//!
//! Must not know how a call arrived, or its faults.

use std::time::SystemTime;

use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::address::{Address, RecipientFate};
use super::fault_injection::CallKind;
use super::protocol::{ErrorResponse, HttpResponse, json as json_response};
use super::send_email;
use super::state::{AccountAccess, State};
use pillarbox_domain::time::Timestamp;

/// `GetAccount`'s word for a quota without limit.
const UNLIMITED_QUOTA: f64 = -1.0;
/// `GetAccount`'s rate if there is no limit: SES has no word for that.
const UNLIMITED_RATE: f64 = 1_000_000.0;

/// The operations, by method and path.
#[derive(Debug)]
pub(super) enum SesOperation {
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

impl SesOperation {
    pub(super) fn of(method: &Method, path: &str) -> Self {
        let Some(rest) = path.strip_prefix("/v2/email/") else { return Self::Unknown };
        let mut segments = rest.split('/');
        let resource = segments.next().unwrap_or_default();
        let named = segments.map(|segment| percent_decode_str(segment).decode_utf8());
        let Ok(named) = named.collect::<Result<Vec<_>, _>>() else { return Self::Unknown };
        let named: Vec<&str> = named.iter().map(AsRef::as_ref).collect();
        if named.contains(&"") {
            return Self::Unknown;
        }
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
pub(super) fn handle(
    state: &State,
    operation: &SesOperation,
    body: &[u8],
) -> Result<HttpResponse, ErrorResponse> {
    let now = Instant::now();
    if operation.kind() == CallKind::Other && !state.admit_other_call(now) {
        return Err(ErrorResponse::too_many_requests("Rate exceeded"));
    }
    let value = match operation {
        SesOperation::SendEmail => return send_email(state, body, now),
        SesOperation::GetAccount => account(state, now),
        SesOperation::CreateEmailIdentity => {
            let check_set = |name: &str| state.configuration_sets().check(name);
            state.identities().create(body, check_set, now)?
        }
        SesOperation::ListEmailIdentities => state.identities().list(now),
        SesOperation::GetEmailIdentity(name) => state.identities().get(name, now)?,
        SesOperation::PutEmailIdentityMailFromAttributes(name) => {
            state.identities().put_mail_from(name, body)?
        }
        SesOperation::CreateConfigurationSet => state.configuration_sets().create(body)?,
        SesOperation::GetConfigurationSet(name) => state.configuration_sets().get(name)?,
        SesOperation::CreateEventDestination(set) => {
            state.configuration_sets().create_destination(set, body)?
        }
        SesOperation::UpdateEventDestination(set, name) => {
            state.configuration_sets().update_destination(set, name, body)?
        }
        SesOperation::ListEventDestinations(set) => {
            state.configuration_sets().list_destinations(set)?
        }
        SesOperation::PutSuppressedDestination => {
            state.suppressed().put(body, Timestamp::from(SystemTime::now()))?
        }
        SesOperation::GetSuppressedDestination(address) => state.suppressed().get(address)?,
        SesOperation::DeleteSuppressedDestination(address) => state.suppressed().delete(address)?,
        SesOperation::Unknown => {
            return Err(ErrorResponse::new(
                StatusCode::NOT_FOUND,
                "UnknownOperationException",
                "The simulator does not know this operation.",
            ));
        }
    };
    Ok(json_response(StatusCode::OK, &value))
}

fn send_email(state: &State, body: &[u8], now: Instant) -> Result<HttpResponse, ErrorResponse> {
    let received_at = Timestamp::from(SystemTime::now());
    let mut message = send_email::read(body, state.ids.message_id(received_at), received_at)?;
    if let Some(name) = &message.configuration_set {
        state.configuration_sets().check(name)?;
    }
    let from = Address::parse(&message.from)?;
    if !state.identities().may_send(from, now) {
        return Err(ErrorResponse::rejected(format!(
            "Email address is not verified. The following identities failed the check in region \
             {}: {}",
            state.region.to_ascii_uppercase(),
            message.from
        )));
    }
    state.limits().admit(message.recipients.len(), now)?;
    let suppressed = state.suppressed();
    for recipient in message.recipients.iter_mut().filter(|r| suppressed.contains(&r.address)) {
        recipient.fate = RecipientFate::Suppressed;
    }
    drop(suppressed);
    let response = json_response(StatusCode::OK, &json!({ "MessageId": message.id }));
    state.accept(message);
    Ok(response)
}

fn account(state: &State, now: Instant) -> Value {
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
