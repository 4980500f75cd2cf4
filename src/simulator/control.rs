//! The simulator's own API, unsigned and outside of AWS's paths: what was caught, what is to go
//! wrong, how much was done.
//!
//! Must not know SES's shapes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::answer::{Refusal, Reply, json as json_reply};
use super::call::read_body;
use super::canonical::percent_decode;
use super::caught::{CaughtMessage, Totals};
use super::faults::{Fault, FaultScope, Faults};
use super::queue::QueueCounts;
use super::state::State;

/// Where this API lives.
pub(super) const PREFIX: &str = "/simulator/";
/// The longest body, which bounds a script of faults.
const BODY_MAX_BYTES: usize = 1024 * 1024;

/// `PUT /simulator/faults`: everything that goes wrong from now on.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FaultsWire {
    always: Option<Fault>,
    #[serde(default)]
    chances: BTreeMap<Fault, f64>,
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
    messages: Vec<&'a CaughtMessage>,
}

pub(super) async fn answer(state: &State, request: Request<Incoming>) -> Reply {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let query = parts.uri.query().unwrap_or_default();
    let answered = match (&parts.method, path.split_once('/')) {
        (&Method::GET, None) if path == "messages" => list(state, query),
        (&Method::GET, Some(("messages", id))) => show(state, id),
        (&Method::DELETE, None) if path == "messages" => {
            state.caught().clear();
            Ok(status(state))
        }
        (&Method::PUT, None) if path == "faults" => {
            match read_body(body, BODY_MAX_BYTES, 0).await {
                Ok(body) => set_faults(state, &body),
                Err(refusal) => Err(refusal),
            }
        }
        (&Method::GET, None) if path == "status" => Ok(status(state)),
        _ => Err(Refusal::not_found("The simulator has no such page.")),
    };
    answered.unwrap_or_else(|refusal| refusal.to_reply())
}

fn status(state: &State) -> Reply {
    let (kept, totals) = {
        let caught = state.caught();
        (caught.kept().len(), caught.totals())
    };
    let (calls, queue_calls) = (state.calls_total(), state.queue_calls_total());
    let queue = state.queue().counts(Instant::now());
    json_reply(StatusCode::OK, &Status { calls, kept, totals, queue_calls, queue })
}

/// The kept messages, newest first; `to` picks those with this recipient, `limit` bounds them.
fn list(state: &State, query: &str) -> Result<Reply, Refusal> {
    let mut to = None;
    let mut limit = usize::MAX;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = String::from_utf8_lossy(&percent_decode(value)).into_owned();
        match name {
            "to" => to = Some(value),
            "limit" => {
                let number = value.parse();
                limit = number.map_err(|_| Refusal::bad_request("limit must be a number"))?;
            }
            _ => return Err(Refusal::bad_request(format!("unknown parameter {name}"))),
        }
    }
    let is_wanted = |message: &Arc<CaughtMessage>| {
        to.as_ref().is_none_or(|to| {
            message.recipients.iter().any(|outcome| outcome.address.eq_ignore_ascii_case(to))
        })
    };
    let caught = state.caught();
    let found: Vec<Arc<CaughtMessage>> =
        caught.kept().iter().rev().filter(|m| is_wanted(m)).take(limit).cloned().collect();
    drop(caught);
    let messages = found.iter().map(AsRef::as_ref).collect();
    Ok(json_reply(StatusCode::OK, &Listing { messages }))
}

fn show(state: &State, id: &str) -> Result<Reply, Refusal> {
    let found = state.caught().kept().iter().find(|message| message.id == id).cloned();
    let message = found.ok_or_else(|| Refusal::not_found("No such message is kept."))?;
    Ok(json_reply(StatusCode::OK, message.as_ref()))
}

fn set_faults(state: &State, body: &[u8]) -> Result<Reply, Refusal> {
    let wire: FaultsWire =
        serde_json::from_slice(body).map_err(|error| Refusal::bad_request(error.to_string()))?;
    let mut faults = wire.always.map_or_else(Faults::none, Faults::always).with_scope(wire.scope);
    if let Some(text) = &wire.slow_for {
        faults = faults.with_slow_for(duration(text)?);
    }
    for (fault, probability) in wire.chances {
        faults = faults
            .with_chance(fault, probability)
            .map_err(|error| Refusal::bad_request(error.to_string()))?;
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

fn duration(text: &str) -> Result<Duration, Refusal> {
    humantime::parse_duration(text)
        .map_err(|error| Refusal::bad_request(format!("slowFor: {error}")))
}
