//! Log of refused requests: a line for each at the default level, so that an operator finds the id
//! that a client quotes. A flood of them is counted instead.
//!
//! Knows nothing of why a request is refused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep_until};

use crate::request_id::RequestId;

/// The most lines in [`PERIOD`].
const MAX_LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);

/// Code of a refusal, among a response's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalCode(pub &'static str);

/// Name of the organisation whose request was answered, among a response's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredTo(pub String);

/// Reason of a failure, for the log alone, among a response's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureCause(pub String);

/// Refusal, as the log has it.
#[derive(Debug, Clone, Copy)]
pub struct Refusal<'a> {
    /// Id of the request.
    pub request_id: RequestId,
    /// Organisation of the request, if it is known.
    pub organisation: Option<&'a str>,
    /// Status of the response.
    pub status: StatusCode,
    /// Code in its body.
    pub code: &'static str,
    /// Reason of a failure.
    pub cause: Option<&'a str>,
    /// Time from the request to its response, if it came so far.
    pub took: Option<Duration>,
}

/// Log of a listener's refused requests. Clones share the limit.
#[derive(Debug, Clone, Default)]
pub struct RefusalLog(Arc<Mutex<Period>>);

#[derive(Debug, Default)]
struct Period {
    begun: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl RefusalLog {
    /// Writes a line about a refusal, or counts it for the one line that is written at the end of the
    /// second. Needs a runtime.
    pub fn write(&self, refusal: &Refusal<'_>) {
        if self.has_room() {
            line(refusal);
        }
    }

    fn period(&self) -> MutexGuard<'_, Period> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a line may be written now, and else counts it. Needs a runtime.
    pub fn has_room(&self) -> bool {
        let now = Instant::now();
        let mut period = self.period();
        let end = match period.begun {
            Some(begun) if now < begun + PERIOD => begun + PERIOD,
            Some(_) | None => {
                // The period's own task reports the lines that the period before left out.
                (period.begun, period.lines) = (Some(now), 0);
                now + PERIOD
            }
        };
        if period.lines < MAX_LINES {
            period.lines += 1;
            return true;
        }
        period.left_out += 1;
        if period.left_out == 1 {
            let log = self.clone();
            tokio::spawn(async move {
                sleep_until(end).await;
                let left_out = std::mem::take(&mut log.period().left_out);
                tracing::warn!(
                    left_out,
                    "some refused requests were not logged, because there were too many in a second"
                );
            });
        }
        false
    }
}

fn line(refusal: &Refusal<'_>) {
    let Refusal { request_id, organisation, status, code, cause, took } = *refusal;
    let took_ms = took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    let http_status = status.as_u16();
    if status == StatusCode::INTERNAL_SERVER_ERROR {
        let error = cause;
        tracing::error!(
            %request_id, organisation, status = http_status, code, took_ms, error, "a request failed"
        );
    } else {
        tracing::info!(
            %request_id, organisation, status = http_status, code, took_ms, "a request was refused"
        );
    }
}
