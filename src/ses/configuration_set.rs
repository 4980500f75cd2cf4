//! Configuration sets and where they publish events.
//!
//! Knows nothing of what a set should publish.

use serde::{Deserialize, Serialize};

use crate::ses::SesClient;
use crate::ses::call::CallError;

/// Where a configuration set publishes events (SES v2 API reference, `EventDestination`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct EventDestination {
    /// Its name within the set.
    pub name: String,
    /// Whether it publishes now.
    #[serde(default)]
    pub enabled: bool,
    /// What it publishes, such as `BOUNCE`.
    #[serde(default)]
    pub matching_event_types: Vec<String>,
    /// The SNS topic, where it publishes to one.
    pub sns_destination: Option<SnsDestination>,
}

/// A topic that events are published to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SnsDestination {
    /// The topic's ARN.
    pub topic_arn: String,
}

impl EventDestination {
    /// The topic's ARN, where it publishes to one.
    pub fn topic(&self) -> Option<&str> {
        self.sns_destination.as_ref().map(|sns| sns.topic_arn.as_str())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Destinations {
    #[serde(default)]
    event_destinations: Vec<EventDestination>,
}

impl SesClient {
    /// Where a configuration set publishes events.
    pub async fn event_destinations(&self, set: &str) -> Result<Vec<EventDestination>, CallError> {
        let path = format!("/v2/email/configuration-sets/{set}/event-destinations");
        Ok(self.get::<Destinations>(&path).await?.event_destinations)
    }
}
