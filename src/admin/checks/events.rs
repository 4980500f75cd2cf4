//! The way of events: the configuration set that publishes them and leaves messages alone, the queue
//! that is polled, and what its messages end in that fail.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::checks::{Examiner, Finding, unanswered};
use pillarbox_config::TrackingOverride;
use pillarbox_ses::account::Engagement;
use pillarbox_ses::configuration_set::{EventDestination, SetOptions};
use pillarbox_ses::error::CallError;
use pillarbox_ses::sqs::SqsQueue;

/// More waiting events than this are not just a moment's.
const LONG_QUEUE: u64 = 10_000;
const ACTION: &str = "sqs:GetQueueAttributes";
const SET: &str = "configuration set";
const TRACKING: &str = "tracking";
/// The events for which SES rewrites links and adds a pixel (SES v2 API reference,
/// `TrackingConfigurationOverrides`).
const REWRITING: [&str; 2] = ["OPEN", "CLICK"];
/// The events without which records stay wrong.
const NEEDED: [&str; 3] = ["DELIVERY", "BOUNCE", "COMPLAINT"];
/// The events without which they say less; `SEND` resolves a lost answer.
const USEFUL: [&str; 3] = ["SEND", "REJECT", "DELIVERY_DELAY"];

/// Redrive policy of a queue, for messages that are received again and again (SQS API reference,
/// `SetQueueAttributes`, `RedrivePolicy`).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RedrivePolicy {
    dead_letter_target_arn: String,
}

impl Examiner<'_> {
    pub(super) async fn configuration_set(&self) -> Vec<Finding> {
        let mut findings = vec![self.tracking_override()];
        findings.extend(self.named_set().await);
        findings
    }

    /// Finding about the override that turns tracking off for each message.
    fn tracking_override(&self) -> Finding {
        const ABOUT: &str = "tracking override";
        match self.ses.tracking_override() {
            TrackingOverride::Always => {
                Finding::ok(ABOUT, "each message turns off open and click tracking for itself")
            }
            TrackingOverride::Auto if !self.ses.went_without_override() => Finding::ok(
                ABOUT,
                "each message turns off open and click tracking for itself, if the endpoint \
                 supports that",
            ),
            TrackingOverride::Auto => Finding::warning(
                ABOUT,
                "the endpoint does not support ConfigurationOverrides, so messages go without it: \
                 whether links are rewritten depends on the configuration set and the account",
                "to keep links as they are, turn off open and click tracking in both",
            ),
            TrackingOverride::Never => Finding::warning(
                ABOUT,
                "messages do not turn off open and click tracking: whether links are rewritten \
                 depends on the configuration set and the account",
                "set ses.tracking_override = true if the endpoint supports ConfigurationOverrides",
            ),
        }
    }

    async fn named_set(&self) -> Vec<Finding> {
        let Some(name) = self.ses.configuration_set() else {
            return vec![self.without_set()];
        };
        let options = match self.ses.set_options(name).await {
            Ok(Some(options)) => options,
            Ok(None) => {
                return vec![Finding::not_ok(
                    SET,
                    format!("SES has no configuration set {name}, so it accepts no message"),
                    "create it (pillarbox aws setup does), or correct ses.configuration_set",
                )];
            }
            Err(error) => return vec![unanswered(SET, "ses:GetConfigurationSet", &error)],
        };
        let mut findings = vec![set_sending(name, &options)];
        match self.ses.event_destinations(name).await {
            Ok(destinations) => {
                findings.extend(self.published(name, &destinations));
                findings.push(self.tracking(name, &options, &destinations).await);
            }
            Err(error) => {
                let action = "ses:GetConfigurationSetEventDestinations";
                findings.push(unanswered("event destination", action, &error));
            }
        }
        findings
    }

    fn without_set(&self) -> Finding {
        let advice = "run pillarbox aws setup, or set ses.configuration_set";
        let message = "ses.configuration_set is not set, so SES publishes no events about messages";
        if self.events_queue.is_some() {
            let message = format!("{message}, and none arrive at ses.events.queue_url");
            Finding::not_ok(SET, message, advice)
        } else {
            Finding::warning(SET, message, advice)
        }
    }

    /// Finding about the event types that the set publishes; `None` if the service waits for none.
    fn published(&self, set: &str, destinations: &[EventDestination]) -> Option<Finding> {
        const ABOUT: &str = "event destination";
        self.events_queue?;
        let advice = format!(
            "run pillarbox aws setup, or correct the event destinations of {set} in the SES console"
        );
        // Others are for figures or archives: nothing comes back from them.
        let enabled: Vec<_> = destinations
            .iter()
            .filter(|destination| destination.enabled && destination.is_on_a_way_back())
            .collect();
        let missing = |wanted: &[&str]| {
            let types = || enabled.iter().flat_map(|destination| &destination.matching_event_types);
            let missing = wanted.iter().filter(|wanted| !types().any(|it| it == **wanted));
            missing.map(|wanted| wanted.to_ascii_lowercase()).collect::<Vec<_>>().join(", ")
        };
        let (needed, useful) = (missing(&NEEDED), missing(&USEFUL));
        Some(if enabled.is_empty() {
            let message = format!("{set} has no enabled event destination at SNS or EventBridge");
            Finding::not_ok(ABOUT, message, advice)
        } else if !needed.is_empty() {
            Finding::not_ok(ABOUT, format!("{set} does not publish: {needed}"), advice)
        } else if !useful.is_empty() {
            Finding::warning(ABOUT, format!("{set} does not publish: {useful}"), advice)
        } else {
            Finding::ok(ABOUT, format!("{set} publishes all useful events"))
        })
    }

    /// Finding about open and click tracking by this set, for which SES changes messages.
    async fn tracking(
        &self,
        set: &str,
        options: &SetOptions,
        destinations: &[EventDestination],
    ) -> Finding {
        let rewriting = |destination: &&EventDestination| {
            let types = &destination.matching_event_types;
            types.iter().any(|published| REWRITING.contains(&published.as_str()))
        };
        if let Some(found) = destinations.iter().find(rewriting) {
            let name = &found.name;
            let own = match self.ses.tracking_override() {
                TrackingOverride::Never => "",
                TrackingOverride::Auto if self.ses.went_without_override() => "",
                TrackingOverride::Always | TrackingOverride::Auto => {
                    ", but not in pillarbox's own messages, which turn this off"
                }
            };
            let message = |so: &str| {
                format!(
                    "the event destination {name} of {set} asks for opens or clicks{so} SES \
                     rewrites links and adds a pixel{own}"
                )
            };
            let advice = format!("remove OPEN and CLICK from the event destination {name}");
            return if found.enabled {
                Finding::not_ok(TRACKING, message(", so"), advice)
            } else {
                let message = message(", but is disabled; once it is enabled,");
                Finding::warning(TRACKING, message, advice)
            };
        }
        let engagement = match options.engagement {
            // The account's setting holds if the set has none.
            Engagement::NotSaid => {
                self.ses.account().await.map_or(Engagement::NotSaid, |account| account.engagement)
            }
            said => said,
        };
        if engagement == Engagement::Watched {
            return Finding::not_ok(
                TRACKING,
                format!("SES tracks opens and clicks of {set}: it rewrites links and adds a pixel"),
                "turn engagement tracking off for it in the SES console (Virtual Deliverability \
                 Manager)",
            );
        }
        if let Some(domain) = &options.redirect_domain {
            return Finding::warning(
                TRACKING,
                format!(
                    "{set} has the redirect domain {domain}, although nothing rewrites links now"
                ),
                format!("remove the custom redirect domain from {set}"),
            );
        }
        Finding::ok(TRACKING, "SES rewrites no links and adds no pixel")
    }

    pub(super) async fn event_route(&self) -> Vec<Finding> {
        match self.events_queue {
            Some(url) => self.queue(url).await,
            None => vec![Finding::warning(
                "events",
                "pillarbox reads no delivery events: it does not learn of deliveries, bounces and \
                 complaints, and suppresses no bounced address",
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
        let waiting = number(&attributes, "ApproximateNumberOfMessages");
        let in_flight = number(&attributes, "ApproximateNumberOfMessagesNotVisible");
        let message = format!("readable; {waiting} events waiting, {in_flight} being read");
        let depth = if waiting > LONG_QUEUE {
            let advice = "the service's log and pillarbox status say what delays it";
            Finding::warning(ABOUT, message, advice)
        } else {
            Finding::ok(ABOUT, message)
        };
        vec![depth, self.dead_letters(url, attributes.get("RedrivePolicy")).await]
    }

    async fn attributes(&self, url: &str) -> Result<BTreeMap<String, String>, CallError> {
        let queue = SqsQueue::new(self.ses, url);
        queue.map_err(|error| CallError::Unreachable(error.to_string()))?.attributes().await
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
                0 => Finding::ok(ABOUT, format!("none in the dead-letter queue {name}")),
                waiting => Finding::warning(
                    ABOUT,
                    format!("{waiting} in {name}: events that were received again and again"),
                    format!(
                        "see the service's log for the reason, then move them back: aws sqs \
                         start-message-move-task --source-arn {}",
                        policy.dead_letter_target_arn
                    ),
                ),
            },
            Err(error) if is_missing(&error) => Finding::not_ok(
                ABOUT,
                format!("the queue's dead-letter queue {name} does not exist"),
                "create it (pillarbox aws setup does), or remove the redrive policy",
            ),
            // A failure to check this keeps nothing from working.
            Err(error) => Finding::warning(
                ABOUT,
                format!("{name}: {error}"),
                format!("allow {ACTION} on it, so that pillarbox can check it"),
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

fn set_sending(name: &str, options: &SetOptions) -> Finding {
    if options.sending_enabled {
        Finding::ok(SET, format!("{name} exists and sends"))
    } else {
        Finding::not_ok(
            SET,
            format!("sending is paused for {name}"),
            format!(
                "resume it: aws sesv2 put-configuration-set-sending-options \
                 --configuration-set-name {name} --sending-enabled"
            ),
        )
    }
}
