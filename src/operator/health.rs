//! `/healthz` and `/readyz`: whether the process is alive, and whether it accepts requests.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use tokio::time::timeout;

use crate::{TEXT, response};
use pillarbox_admin::conditions::{self, Condition};
use pillarbox_admin::snapshot::Snapshot;
use pillarbox_http::rejection::JSON;

/// Time limit for an answer of the thread that writes the data file.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answer on `/readyz`.
#[derive(Serialize)]
struct ReadinessDocument {
    ready: bool,
    reasons: Vec<Condition>,
}

/// Waits for a sign of life of the thread that writes the data file. A store that refuses, because
/// the disk is full for example, gives it: a restart would not help, and could lose pending bodies.
pub(super) async fn health(answered: impl Future<Output = ()>) -> Response<Full<Bytes>> {
    let (status, text) = match timeout(PATIENCE, answered).await {
        Ok(()) => (StatusCode::OK, "ok\n"),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the store does not answer; see the log, and check the disk, or the database and the \
             network to it. If the store is a data file and this continues, restart the service\n",
        ),
    };
    response(status, TEXT, Full::from(text))
}

/// Response with the readiness, and with every condition that holds.
pub(super) fn readiness(snapshot: &Snapshot) -> Response<Full<Bytes>> {
    // Includes conditions that do not end readiness: the reader must not conclude that all is well.
    let reasons = conditions::immediate(snapshot);
    let ready = reasons.iter().all(|condition| condition.ready);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let document = ReadinessDocument { ready, reasons };
    let text = serde_json::to_vec(&document).expect("texts serialize");
    response(status, JSON, Full::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_whose_writer_does_not_answer_is_not_healthy() {
        assert_eq!(health(std::future::ready(())).await.status(), StatusCode::OK);
        let hung = health(std::future::pending()).await;
        assert_eq!(hung.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
