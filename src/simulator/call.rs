//! One AWS call: its fault, its signature, its operation and its answer, in SES's order.
//!
//! Must not know how connections are accepted.

use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::address::Address;
use super::answer::{AnswerBody, Refusal, Reply, json as json_reply};
use super::canonical::percent_decode;
use super::control;
use super::faults::{CallKind, Fault, Planned, internal_error};
use super::send::{self, read_json};
use super::server::{Cut, Severed};
use super::state::State;
use crate::domain::time::Timestamp;

/// SES v2: the longest message, and so more than the longest request that can succeed.
const BODY_MAX_BYTES: usize = 40 * 1024 * 1024;
/// What is read and thrown away beyond it, so that the client reads the refusal, not a reset.
const BODY_DISCARD_MAX_BYTES: usize = 40 * 1024 * 1024;
/// How long a body may take to arrive.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// SES: configuration sets per account and region.
const MAX_CONFIGURATION_SETS: usize = 10_000;
/// SES: the length of a configuration set's name.
const CONFIGURATION_SET_NAME_MAX: usize = 64;
/// `GetAccount`'s word for a quota without limit.
const UNLIMITED_QUOTA: f64 = -1.0;
/// What `GetAccount` reports as the rate where there is no limit: SES has no word for that.
const UNLIMITED_RATE: f64 = 1_000_000.0;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");

/// The operations, as found from method and path.
enum Operation {
    SendEmail,
    GetAccount,
    CreateEmailIdentity,
    ListEmailIdentities,
    GetEmailIdentity(String),
    CreateConfigurationSet,
    GetConfigurationSet(String),
    Unknown,
}

impl Operation {
    fn of(method: &Method, path: &str) -> Self {
        let Some(rest) = path.strip_prefix("/v2/email/") else { return Self::Unknown };
        let (resource, name) = match rest.split_once('/') {
            Some((resource, name)) if !name.is_empty() && !name.contains('/') => {
                (resource, String::from_utf8(percent_decode(name)).ok())
            }
            Some(_) => return Self::Unknown,
            None => (rest, None),
        };
        match (method, resource, name) {
            (&Method::POST, "outbound-emails", None) => Self::SendEmail,
            (&Method::GET, "account", None) => Self::GetAccount,
            (&Method::POST, "identities", None) => Self::CreateEmailIdentity,
            (&Method::GET, "identities", None) => Self::ListEmailIdentities,
            (&Method::GET, "identities", Some(name)) => Self::GetEmailIdentity(name),
            (&Method::POST, "configuration-sets", None) => Self::CreateConfigurationSet,
            (&Method::GET, "configuration-sets", Some(name)) => Self::GetConfigurationSet(name),
            _ => Self::Unknown,
        }
    }

    fn kind(&self) -> CallKind {
        if matches!(self, Self::SendEmail) { CallKind::Send } else { CallKind::Other }
    }
}

/// Answers one request, or severs its connection.
pub(super) async fn answer(
    state: &State,
    cut: &Cut,
    request: Request<Incoming>,
) -> Result<Reply, Severed> {
    if request.uri().path().starts_with(control::PREFIX) {
        return Ok(control::answer(state, request).await);
    }
    let operation = Operation::of(request.method(), request.uri().path());
    let planned = state.faults().next(operation.kind());
    if planned.fault == Fault::Down {
        return Err(cut.sever());
    }
    state.count_call();
    if planned.fault == Fault::ResetBefore {
        return Err(cut.sever());
    }
    let mut reply = handle(state, &operation, planned, request)
        .await
        .unwrap_or_else(|refusal| refusal.to_reply());
    let id = HeaderValue::try_from(state.next_uuid()).expect("a UUID is a header value");
    reply.headers_mut().insert(REQUEST_ID, id);
    spoil(reply, planned, cut).await
}

async fn handle(
    state: &State,
    operation: &Operation,
    planned: Planned,
    request: Request<Incoming>,
) -> Result<Reply, Refusal> {
    let (parts, body) = request.into_parts();
    let body = read_body(body, BODY_MAX_BYTES, BODY_DISCARD_MAX_BYTES).await?;
    state.verifier.verify(&parts, &body, SystemTime::now())?;
    let latency = state.latency();
    if latency > Duration::ZERO {
        tokio::time::sleep(latency).await;
    }
    if let Some(refusal) = planned.fault.refusal() {
        return Err(refusal);
    }
    let now = Instant::now();
    if operation.kind() == CallKind::Other && !state.admit_other_call(now) {
        return Err(Refusal::too_many_requests("Rate exceeded"));
    }
    let value = match operation {
        Operation::SendEmail => return send_email(state, &body, now),
        Operation::GetAccount => account(state, now),
        Operation::CreateEmailIdentity => create_email_identity(state, &body, now)?,
        Operation::ListEmailIdentities => state.read_identities().list(now),
        Operation::GetEmailIdentity(name) => state.identities().look(name, now)?,
        Operation::CreateConfigurationSet => create_configuration_set(state, &body)?,
        Operation::GetConfigurationSet(name) => configuration_set(state, name)?,
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

/// Carries out the faults that strike after the call has been handled.
async fn spoil(reply: Reply, planned: Planned, cut: &Cut) -> Result<Reply, Severed> {
    match planned.fault {
        Fault::ResetAfter => Err(cut.sever()),
        Fault::Slow => {
            tokio::time::sleep(planned.slow_for).await;
            Ok(reply)
        }
        Fault::Truncated => Ok(reply.map(AnswerBody::truncate)),
        Fault::InternalErrorAfter => Ok(internal_error().to_reply()),
        _ => Ok(reply),
    }
}

fn send_email(state: &State, body: &[u8], now: Instant) -> Result<Reply, Refusal> {
    let received_at = Timestamp::from(SystemTime::now());
    let message = send::read(body, state.next_message_id(received_at), received_at)?;
    if let Some(name) = &message.configuration_set
        && !state.has_configuration_set(name)
    {
        return Err(no_configuration_set(name));
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
        "ProductionAccessEnabled": true,
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
    if let Some(set) = &wire.configuration_set_name
        && !state.has_configuration_set(set)
    {
        return Err(no_configuration_set(set));
    }
    state.identities().create(&name, wire.configuration_set_name, now)
}

fn create_configuration_set(state: &State, body: &[u8]) -> Result<serde_json::Value, Refusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Wire {
        configuration_set_name: Option<String>,
    }
    let wire: Wire = read_json(body)?;
    let name = wire
        .configuration_set_name
        .ok_or_else(|| Refusal::missing_member("configurationSetName"))?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let fits = (1..=CONFIGURATION_SET_NAME_MAX).contains(&name.len());
    if !fits || !name.bytes().all(allowed) {
        return Err(Refusal::bad_request(format!("Invalid configuration set name <{name}>.")));
    }
    let mut sets = state.configuration_sets();
    if sets.contains(&name) {
        return Err(Refusal::already_exists(format!("Configuration set <{name}> already exists.")));
    }
    if sets.len() >= MAX_CONFIGURATION_SETS {
        return Err(Refusal::limit_exceeded(format!(
            "Cannot have more than {MAX_CONFIGURATION_SETS} configuration sets."
        )));
    }
    sets.insert(name);
    Ok(json!({}))
}

fn configuration_set(state: &State, name: &str) -> Result<serde_json::Value, Refusal> {
    if !state.has_configuration_set(name) {
        return Err(no_configuration_set(name));
    }
    Ok(json!({
        "ConfigurationSetName": name,
        "DeliveryOptions": { "TlsPolicy": "OPTIONAL" },
        "ReputationOptions": { "ReputationMetricsEnabled": false },
        "SendingOptions": { "SendingEnabled": true },
        "Tags": [],
    }))
}

fn no_configuration_set(name: &str) -> Refusal {
    Refusal::not_found(format!("Configuration set <{name}> does not exist."))
}

/// Reads a body of at most `max` bytes; of a longer one, `discard_max` more are thrown away.
pub(super) async fn read_body(
    body: Incoming,
    max: usize,
    discard_max: usize,
) -> Result<Bytes, Refusal> {
    tokio::time::timeout(BODY_READ_TIMEOUT, collect(body, max, discard_max)).await.map_err(
        |_| {
            Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "RequestTimeoutException",
                "The request body came too slowly.",
            )
        },
    )?
}

async fn collect(mut body: Incoming, max: usize, discard_max: usize) -> Result<Bytes, Refusal> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut collected = BytesMut::with_capacity(if announced > max { 0 } else { announced });
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::bad_request("The request body broke off."))?;
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(data.len());
        if length <= max {
            collected.extend_from_slice(&data);
        } else {
            collected = BytesMut::new();
            if length - max > discard_max {
                break;
            }
        }
    }
    if length > max {
        return Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLargeException",
            format!("Message length is more than {max} bytes long."),
        ));
    }
    Ok(collected.freeze())
}
