//! Batches: what SQS asks of their entries, and how it answers for each.
//!
//! Must not know what the entries ask for.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::super::answer::Refusal;
use super::error::{query_code, rejected};

/// SQS: entries per batch.
const ENTRIES_MAX: usize = 10;
const ID_MAX: usize = 80;

/// Checks the ids of a batch.
pub(super) fn check<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Result<(), Refusal> {
    let count = ids.len();
    if count == 0 {
        let message = "There should be at least one entry in the request.";
        return Err(rejected("EmptyBatchRequest", message));
    }
    if count > ENTRIES_MAX {
        return Err(rejected(
            "TooManyEntriesInBatchRequest",
            format!(
                "Maximum number of entries per request are {ENTRIES_MAX}. You have sent {count}."
            ),
        ));
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let mut known = HashSet::new();
    for id in ids {
        if id.is_empty() || id.len() > ID_MAX || !id.bytes().all(allowed) {
            return Err(rejected(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and \
                 underscores. It can be at most 80 letters long.",
            ));
        }
        if !known.insert(id) {
            return Err(rejected("BatchEntryIdsNotDistinct", format!("Id {id} repeated.")));
        }
    }
    Ok(())
}

/// The answer: which entries went through, and why the others did not.
pub(super) fn answer(results: Vec<(String, Result<(), Refusal>)>) -> Value {
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (id, result) in results {
        match result {
            Ok(()) => successful.push(json!({ "Id": id })),
            Err(refusal) => failed.push(json!({
                "Id": id,
                "SenderFault": refusal.status.is_client_error(),
                "Code": query_code(refusal.name),
                "Message": refusal.message,
            })),
        }
    }
    json!({ "Successful": successful, "Failed": failed })
}
