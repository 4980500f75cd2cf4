//! The simulator's own API, unsigned and outside of AWS's paths: captured mail, faults, counts.
//!
//! Must not know the shapes of AWS's calls.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::captured::{CapturedMessage, Totals};
use super::fault_injection::{ErrorFault, Fault, FaultScope, Faults};
use super::protocol::{ErrorResponse, HttpResponse, json as json_response, read_body};
use super::queue::QueueCounts;
use super::state::State;

/// The paths of this API.
pub(super) const PREFIX: &str = "/simulator/";
/// The longest body, which bounds a script of faults.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// `PUT /simulator/faults`: the faults from now on.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FaultsWire {
    always: Option<Fault>,
    #[serde(default, rename = "chances")]
    probabilities: BTreeMap<Fault, f64>,
    /// The answer of the fault `error`.
    error: Option<ErrorFault>,
    /// In words: `15s`, `1m 30s`.
    slow_for: Option<String>,
    #[serde(default)]
    scope: FaultScope,
    #[serde(default)]
    script: Vec<Fault>,
    /// Starts the sequence anew.
    seed: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    calls: u64,
    kept: usize,
    #[serde(flatten)]
    totals: Totals,
    queue_calls: u64,
    #[serde(flatten)]
    queue: QueueCounts,
}

#[derive(Serialize)]
struct Listing<'a> {
    messages: Vec<&'a CapturedMessage>,
}

pub(super) async fn handle(state: &State, request: Request<Incoming>) -> HttpResponse {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let query = parts.uri.query().unwrap_or_default();
    let response = match (&parts.method, path.split_once('/')) {
        (&Method::GET, None) if path == "messages" => list(state, query),
        (&Method::GET, Some(("messages", id))) => show(state, id),
        (&Method::DELETE, None) if path == "messages" => {
            state.captured.clear();
            Ok(status(state))
        }
        (&Method::PUT, None) if path == "faults" => {
            match read_body(body, MAX_BODY_BYTES, 0).await {
                Ok(body) => set_faults(state, &body),
                Err(error) => Err(error),
            }
        }
        (&Method::GET, None) if path == "status" => Ok(status(state)),
        _ => Err(ErrorResponse::not_found("The simulator has no such page.")),
    };
    response.unwrap_or_else(|error| error.to_response())
}

fn status(state: &State) -> HttpResponse {
    let (kept, totals) = (state.captured.len(), state.captured.totals());
    let (calls, queue_calls) = (state.calls_total(), state.queue_calls_total());
    let queue = state.queue().counts(Instant::now());
    json_response(StatusCode::OK, &Status { calls, kept, totals, queue_calls, queue })
}

/// The captured messages, newest first; `to` picks those with this recipient, `limit` bounds them.
fn list(state: &State, query: &str) -> Result<HttpResponse, ErrorResponse> {
    let mut to = None;
    let mut limit = usize::MAX;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match name {
            "to" => to = Some(value),
            "limit" => {
                let number = value.parse();
                limit = number.map_err(|_| ErrorResponse::bad_request("limit must be a number"))?;
            }
            _ => return Err(ErrorResponse::bad_request(format!("unknown parameter {name}"))),
        }
    }
    let found = state.captured.find(limit, |message| {
        to.as_ref().is_none_or(|to| {
            message.recipients.iter().any(|recipient| recipient.address.eq_ignore_ascii_case(to))
        })
    });
    let messages = found.iter().map(AsRef::as_ref).collect();
    Ok(json_response(StatusCode::OK, &Listing { messages }))
}

fn show(state: &State, id: &str) -> Result<HttpResponse, ErrorResponse> {
    let message = state
        .captured
        .message(id)
        .ok_or_else(|| ErrorResponse::not_found("No such message is kept."))?;
    Ok(json_response(StatusCode::OK, message.as_ref()))
}

fn set_faults(state: &State, body: &[u8]) -> Result<HttpResponse, ErrorResponse> {
    let wire: FaultsWire = serde_json::from_slice(body)
        .map_err(|error| ErrorResponse::bad_request(error.to_string()))?;
    let mut faults = wire.always.map_or_else(Faults::none, Faults::always).with_scope(wire.scope);
    if let Some(text) = &wire.slow_for {
        faults = faults.with_slow_for(duration(text)?);
    }
    if let Some(error) = wire.error {
        faults = faults.with_error(error);
    }
    for (fault, probability) in wire.probabilities {
        faults = faults
            .with_probability(fault, probability)
            .map_err(|error| ErrorResponse::bad_request(error.to_string()))?;
    }
    let mut sequence = state.faults();
    sequence.set_faults(faults);
    sequence.set_script(wire.script);
    if let Some(seed) = wire.seed {
        sequence.restart(seed);
    }
    drop(sequence);
    Ok(status(state))
}

fn duration(text: &str) -> Result<Duration, ErrorResponse> {
    humantime::parse_duration(text)
        .map_err(|error| ErrorResponse::bad_request(format!("slowFor: {error}")))
}
