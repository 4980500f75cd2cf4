//! The configuration set: whether it sends, what it publishes, and that it leaves messages alone.

use crate::admin::checks::{Examiner, unanswered};
use crate::admin::wire::Finding;
use crate::ses::account::Engagement;
use crate::ses::configuration_set::EventDestination;
use crate::ses::configuration_set::SetOptions;

const ABOUT: &str = "configuration set";
const TRACKING: &str = "tracking";
/// The events for which SES rewrites links and adds a pixel (SES v2 API reference,
/// `TrackingConfigurationOverrides`).
const REWRITING: [&str; 2] = ["OPEN", "CLICK"];
/// The events without which records stay wrong.
const NEEDED: [&str; 3] = ["DELIVERY", "BOUNCE", "COMPLAINT"];
/// The events without which they say less; `SEND` settles what became of a lost answer.
const USEFUL: [&str; 3] = ["SEND", "REJECT", "DELIVERY_DELAY"];

impl Examiner<'_> {
    pub(super) async fn configuration_set(&self) -> Vec<Finding> {
        let Some(name) = self.ses.configuration_set() else {
            return vec![self.without_set()];
        };
        let options = match self.ses.set_options(name).await {
            Ok(Some(options)) => options,
            Ok(None) => {
                return vec![Finding::not_ok(
                    ABOUT,
                    format!("SES has no configuration set {name}, so it takes no message"),
                    "create it (pillarbox aws setup does), or correct ses.configuration_set",
                )];
            }
            Err(error) => return vec![unanswered(ABOUT, "ses:GetConfigurationSet", &error)],
        };
        let mut findings = vec![sending(name, &options)];
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
        let message = "none is named, so SES publishes no events of messages";
        if self.events.is_given() {
            let message = format!("{message}, and those that are waited for do not come");
            Finding::not_ok(ABOUT, message, advice)
        } else {
            Finding::warning(ABOUT, message, advice)
        }
    }

    /// Whether what the service waits for is published, where it waits for anything.
    fn published(&self, set: &str, destinations: &[EventDestination]) -> Option<Finding> {
        const ABOUT: &str = "event destination";
        if !self.events.is_given() {
            return None;
        }
        let advice = format!(
            "run pillarbox aws setup, or mend the event destinations of {set} in the SES console"
        );
        // Others are for figures or archives: nothing comes back from them.
        let enabled: Vec<_> = destinations
            .iter()
            .filter(|destination| destination.enabled && destination.is_on_a_way_back())
            .collect();
        let missing = |wanted: &[&str]| {
            let types = || enabled.iter().flat_map(|destination| &destination.matching_event_types);
            let missing: Vec<_> = wanted
                .iter()
                .filter(|wanted| !types().any(|published| published == **wanted))
                .map(|wanted| wanted.to_ascii_lowercase())
                .collect();
            missing.join(", ")
        };
        let (needed, useful) = (missing(&NEEDED), missing(&USEFUL));
        Some(if enabled.is_empty() {
            let message =
                format!("{set} has none that is enabled and publishes to SNS or EventBridge");
            Finding::not_ok(ABOUT, message, advice)
        } else if !needed.is_empty() {
            Finding::not_ok(ABOUT, format!("{set} does not publish: {needed}"), advice)
        } else if !useful.is_empty() {
            Finding::warning(ABOUT, format!("{set} does not publish: {useful}"), advice)
        } else {
            Finding::ok(ABOUT, format!("{set} publishes all events that are of use"))
        })
    }

    /// Whether SES touches messages of this set.
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
            let message = format!(
                "the event destination {name} of {set} asks for opens or clicks, for which SES \
                 rewrites links and adds a pixel"
            );
            let advice = format!("take OPEN and CLICK out of the event destination {name}");
            return if found.enabled {
                Finding::not_ok(TRACKING, message, advice)
            } else {
                Finding::warning(TRACKING, format!("{message} once it is enabled"), advice)
            };
        }
        let engagement = match options.engagement {
            // The account's word holds where the set has none.
            Engagement::NotSaid => {
                self.ses.account().await.map_or(Engagement::NotSaid, |account| account.engagement)
            }
            said => said,
        };
        if engagement == Engagement::Watched {
            return Finding::not_ok(
                TRACKING,
                format!(
                    "SES watches opens and clicks of {set}: it rewrites links and adds a pixel"
                ),
                "turn engagement tracking off for it in the SES console (Virtual Deliverability \
                 Manager)",
            );
        }
        if let Some(domain) = &options.redirect_domain {
            return Finding::warning(
                TRACKING,
                format!("{set} has {domain} for rewritten links, though nothing rewrites them now"),
                format!("take the custom redirect domain out of {set}"),
            );
        }
        Finding::ok(TRACKING, "SES rewrites no links and adds no pixel")
    }
}

fn sending(name: &str, options: &SetOptions) -> Finding {
    if options.sending_enabled {
        Finding::ok(ABOUT, format!("{name} is there and sends"))
    } else {
        Finding::not_ok(
            ABOUT,
            format!("sending is paused for {name}"),
            format!(
                "aws sesv2 put-configuration-set-sending-options --configuration-set-name {name} \
                 --sending-enabled ends that"
            ),
        )
    }
}
