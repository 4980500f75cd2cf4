//! The way of events: the queue that is polled, and what its messages end in that fail.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::admin::checks::{EventRoute, Examiner, unanswered};
use crate::admin::wire::Finding;
use crate::ses::error::CallError;
use crate::ses::sqs::SqsQueue;

/// More waiting events than this are not just a moment's.
const LONG_QUEUE: u64 = 10_000;
const ACTION: &str = "sqs:GetQueueAttributes";

/// What a queue does with messages that are received again and again (SQS API reference,
/// `SetQueueAttributes`, `RedrivePolicy`).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RedrivePolicy {
    dead_letter_target_arn: String,
}

impl EventRoute {
    /// Whether events are waited for at all.
    pub fn is_given(&self) -> bool {
        self.queue_url.is_some()
    }
}

impl Examiner<'_> {
    pub(super) async fn event_route(&self) -> Vec<Finding> {
        match &self.events.queue_url {
            Some(url) => self.queue(url).await,
            None => vec![Finding::warning(
                "events",
                "none are waited for: deliveries, bounces and complaints do not show, and a bounce \
                 suppresses nobody",
                "run pillarbox aws setup, or set ses.events.queue_url",
            )],
        }
    }

    async fn queue(&self, url: &str) -> Vec<Finding> {
        const ABOUT: &str = "event queue";
        let attributes = match self.attributes(url).await {
            Ok(attributes) => attributes,
            Err(error) if is_missing(&error) => {
                let message = format!("there is no queue {url}");
                let advice =
                    "create it (pillarbox aws setup does), or correct ses.events.queue_url";
                return vec![Finding::not_ok(ABOUT, message, advice)];
            }
            Err(error) => return vec![unanswered(ABOUT, ACTION, &error)],
        };
        let (waiting, in_flight) = (
            number(&attributes, "ApproximateNumberOfMessages"),
            number(&attributes, "ApproximateNumberOfMessagesNotVisible"),
        );
        let message = format!("readable; {waiting} events waiting, {in_flight} being read");
        let depth = if waiting > LONG_QUEUE {
            let advice = "see the service's log and pillarbox status for what holds it up";
            Finding::warning(ABOUT, message, advice)
        } else {
            Finding::ok(ABOUT, message)
        };
        vec![depth, self.dead_letters(url, attributes.get("RedrivePolicy")).await]
    }

    async fn attributes(&self, url: &str) -> Result<BTreeMap<String, String>, CallError> {
        match SqsQueue::new(self.ses, url) {
            Ok(queue) => queue.attributes().await,
            Err(error) => Err(CallError::Unreachable(error.to_string())),
        }
    }

    async fn dead_letters(&self, url: &str, policy: Option<&String>) -> Finding {
        const ABOUT: &str = "dead letters";
        let policy = policy.and_then(|text| serde_json::from_str::<RedrivePolicy>(text).ok());
        let Some(policy) = policy else {
            // The service itself keeps and deletes what it cannot read.
            return Finding::ok(
                ABOUT,
                "the queue has no dead-letter queue; the service needs none",
            );
        };
        // A dead-letter queue is of the same account and region as its queue.
        let name = policy.dead_letter_target_arn.rsplit(':').next().unwrap_or_default();
        let base = url.rsplit_once('/').map_or("", |(base, _)| base);
        match self.attributes(&format!("{base}/{name}")).await {
            Ok(attributes) => match number(&attributes, "ApproximateNumberOfMessages") {
                0 => Finding::ok(ABOUT, format!("none in {name}")),
                waiting => Finding::warning(
                    ABOUT,
                    format!("{waiting} in {name}: events that were received again and again"),
                    "see the service's log for the reason, then move them back: aws sqs \
                     start-message-move-task",
                ),
            },
            Err(error) if is_missing(&error) => Finding::not_ok(
                ABOUT,
                format!("the queue's dead-letter queue {name} is not there"),
                "create it (pillarbox aws setup does), or take the redrive policy away",
            ),
            // That it cannot be looked into keeps nothing from working.
            Err(error) => Finding::warning(
                ABOUT,
                format!("{name}: {error}"),
                format!("allow {ACTION} on it, to have it looked into"),
            ),
        }
    }
}

fn is_missing(error: &CallError) -> bool {
    matches!(error, CallError::Refused { name: Some(name), .. }
        if name.contains("QueueDoesNotExist") || name.contains("NonExistentQueue"))
}

fn number(attributes: &BTreeMap<String, String>, name: &str) -> u64 {
    attributes.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
}
