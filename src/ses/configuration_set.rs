//! Configuration sets and where they publish events.
//!
//! Knows nothing of what a set should publish.

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::ses::SesClient;
use crate::ses::call::CallError;

/// SES v2's word for what is not there, and that of its first version, which stand-ins use too.
pub(super) const NOT_FOUND: [&str; 2] = ["NotFoundException", "ConfigurationSetDoesNotExist"];

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
    /// The `EventBridge` bus, where it publishes to one.
    pub event_bridge_destination: Option<EventBridgeDestination>,
}

/// A topic that events are published to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SnsDestination {
    /// The topic's ARN.
    pub topic_arn: String,
}

/// A bus of `EventBridge`'s that events are published to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct EventBridgeDestination {
    /// The bus's ARN.
    #[serde(default)]
    pub event_bus_arn: String,
}

impl EventDestination {
    /// Whether events go from it to where a queue can have them.
    pub fn is_on_a_way_back(&self) -> bool {
        self.sns_destination.is_some() || self.event_bridge_destination.is_some()
    }

    /// The topic's ARN, where it publishes to one.
    pub fn topic(&self) -> Option<&str> {
        self.sns_destination.as_ref().map(|sns| sns.topic_arn.as_str())
    }

    fn definition(&self) -> serde_json::Value {
        json!({
            "Enabled": self.enabled,
            "MatchingEventTypes": self.matching_event_types,
            "SnsDestination": self.sns_destination,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Destinations {
    #[serde(default)]
    event_destinations: Vec<EventDestination>,
}

impl SesClient {
    /// Whether there is a configuration set of this name, which needs no escape in a path.
    pub async fn has_configuration_set(&self, name: &str) -> Result<bool, CallError> {
        let path = format!("/v2/email/configuration-sets/{name}");
        match self.get::<serde::de::IgnoredAny>(&path).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_named(&NOT_FOUND) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a configuration set.
    pub async fn create_configuration_set(&self, name: &str) -> Result<(), CallError> {
        let body = json!({ "ConfigurationSetName": name }).to_string();
        self.tell(Method::POST, "/v2/email/configuration-sets", Bytes::from(body)).await
    }

    /// Where a configuration set publishes events.
    pub async fn event_destinations(&self, set: &str) -> Result<Vec<EventDestination>, CallError> {
        let path = format!("/v2/email/configuration-sets/{set}/event-destinations");
        Ok(self.get::<Destinations>(&path).await?.event_destinations)
    }

    /// Creates an event destination. SES checks that it may publish to the topic.
    pub async fn create_event_destination(
        &self,
        set: &str,
        destination: &EventDestination,
    ) -> Result<(), CallError> {
        let path = format!("/v2/email/configuration-sets/{set}/event-destinations");
        let body = json!({
            "EventDestinationName": destination.name,
            "EventDestination": destination.definition(),
        });
        self.tell(Method::POST, &path, Bytes::from(body.to_string())).await
    }

    /// Replaces the definition of the event destination of this name.
    pub async fn update_event_destination(
        &self,
        set: &str,
        destination: &EventDestination,
    ) -> Result<(), CallError> {
        let name = &destination.name;
        let path = format!("/v2/email/configuration-sets/{set}/event-destinations/{name}");
        let body = json!({ "EventDestination": destination.definition() });
        self.tell(Method::PUT, &path, Bytes::from(body.to_string())).await
    }
}
