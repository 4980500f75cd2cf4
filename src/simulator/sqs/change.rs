//! What a receiver does with a receipt handle: delete the message, or change how long it stays
//! hidden; singly and in batches.
//!
//! Must not know how messages are received.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::super::answer::Refusal;
use super::super::queue::VisibilityChange;
use super::super::state::State;
use super::error::{invalid_parameter, invalid_receipt, missing_parameter, rejected};
use super::{VISIBILITY_MAX_SECONDS, batch, seconds};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DeleteWire {
    receipt_handle: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct VisibilityWire {
    receipt_handle: Option<String>,
    visibility_timeout: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct BatchWire<T> {
    #[serde(default = "Vec::new")]
    entries: Vec<Entry<T>>,
}

#[derive(Deserialize)]
struct Entry<T> {
    #[serde(rename = "Id", default)]
    id: String,
    #[serde(flatten)]
    change: T,
}

pub(super) fn delete(state: &State, wire: DeleteWire) -> Result<Option<Value>, Refusal> {
    delete_one(state, wire).map(|()| None)
}

pub(super) fn delete_batch(
    state: &State,
    wire: BatchWire<DeleteWire>,
) -> Result<Option<Value>, Refusal> {
    each(wire, |change| {
        if state.queue().fails_delete() {
            return Err(Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "We encountered an internal error. Please try again.",
            ));
        }
        delete_one(state, change)
    })
}

pub(super) fn visibility(state: &State, wire: VisibilityWire) -> Result<Option<Value>, Refusal> {
    change_one(state, wire).map(|()| None)
}

pub(super) fn visibility_batch(
    state: &State,
    wire: BatchWire<VisibilityWire>,
) -> Result<Option<Value>, Refusal> {
    each(wire, |change| change_one(state, change))
}

fn each<T>(
    wire: BatchWire<T>,
    change: impl Fn(T) -> Result<(), Refusal>,
) -> Result<Option<Value>, Refusal> {
    batch::check(wire.entries.iter().map(|entry| entry.id.as_str()))?;
    let results = wire.entries.into_iter().map(|entry| (entry.id, change(entry.change)));
    Ok(Some(batch::answer(results.collect())))
}

fn delete_one(state: &State, wire: DeleteWire) -> Result<(), Refusal> {
    let handle = wire.receipt_handle.ok_or_else(|| missing_parameter("ReceiptHandle"))?;
    state.queue().delete(&handle, Instant::now()).map_err(|_| invalid_receipt())
}

fn change_one(state: &State, wire: VisibilityWire) -> Result<(), Refusal> {
    let handle = wire.receipt_handle.ok_or_else(|| missing_parameter("ReceiptHandle"))?;
    let value = wire.visibility_timeout.ok_or_else(|| missing_parameter("VisibilityTimeout"))?;
    let visibility: Duration = seconds("VisibilityTimeout", value, VISIBILITY_MAX_SECONDS)?;
    let changed = state.queue().change_visibility(&handle, visibility, Instant::now());
    match changed.map_err(|_| invalid_receipt())? {
        VisibilityChange::Done => {
            state.queue_changed().notify_waiters();
            Ok(())
        }
        VisibilityChange::NotInFlight => {
            Err(rejected("MessageNotInflight", "The message is not in flight."))
        }
        VisibilityChange::Gone => {
            let reason =
                "Message does not exist or is not available for visibility timeout change.";
            Err(invalid_parameter(&handle, "ReceiptHandle", reason))
        }
    }
}
