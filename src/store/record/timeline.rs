//! Rows of messages' timelines.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::RowError;
use crate::record::{FailureV1, decode, encode};
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::timeline::{Step, StepKind};

stored_enum!(
    StepKindV1 = StepKind { AttemptFailed, Failed, Suppressed, Cancelled, Restarted, Expired }
);

#[derive(Serialize, Deserialize)]
struct StepV1<'a> {
    at: u64,
    kind: StepKindV1,
    /// 0 if it was no attempt.
    attempt: u32,
    /// Milliseconds to the next attempt.
    next_attempt_in: Option<u64>,
    #[serde(borrow)]
    failure: Option<FailureV1<'a>>,
}

pub(crate) fn encode_step(step: &Step) -> Vec<u8> {
    let Step { at, kind, attempt, attempts: _, failure, next_attempt_at } = step;
    let row = StepV1 {
        at: at.unix_millis(),
        kind: (*kind).into(),
        attempt: attempt.unwrap_or_default(),
        next_attempt_in: next_attempt_at
            .map(|next| next.unix_millis().saturating_sub(at.unix_millis())),
        failure: failure.as_ref().map(FailureV1::from),
    };
    encode(&row, 256)
}

pub(crate) fn decode_step(bytes: &[u8]) -> Result<Step, RowError> {
    let StepV1 { at, kind, attempt, next_attempt_in, failure } = decode(bytes)?;
    let at = Timestamp::from_unix_millis(at);
    Ok(Step {
        at,
        kind: kind.into(),
        attempt: (attempt > 0).then_some(attempt),
        attempts: attempt,
        failure: failure.map(Into::into),
        next_attempt_at: next_attempt_in.map(|wait| at.plus(Duration::from_millis(wait))),
    })
}
