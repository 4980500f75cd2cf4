//! Configuration sets: their handling of messages, and their event destinations.
//!
//! Knows nothing of what a set should do or publish.

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::SesClient;
use crate::account::Engagement;
use crate::error::CallError;

/// SES v2's word for what is not there, and that of its first version, which stand-ins use too.
const NOT_FOUND: [&str; 2] = ["NotFoundException", "ConfigurationSetDoesNotExist"];

/// Destination to which a configuration set publishes events (SES v2 API reference,
/// `EventDestination`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct EventDestination {
    /// Its name within the set.
    pub name: String,
    /// True if it publishes now.
    #[serde(default)]
    pub enabled: bool,
    /// The types of events that it publishes, such as `BOUNCE`.
    #[serde(default)]
    pub matching_event_types: Vec<String>,
    /// The SNS topic, if it publishes to one.
    pub sns_destination: Option<SnsDestination>,
    /// The `EventBridge` bus, if it publishes to one.
    pub event_bridge_destination: Option<EventBridgeDestination>,
}

/// A topic that events are published to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SnsDestination {
    /// ARN of the SNS topic.
    pub topic_arn: String,
}

/// A bus of `EventBridge`'s that events are published to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct EventBridgeDestination {
    /// ARN of the `EventBridge` bus.
    #[serde(default)]
    pub event_bus_arn: String,
}

impl EventDestination {
    /// Returns true if a queue can receive its events.
    pub fn is_on_a_way_back(&self) -> bool {
        self.sns_destination.is_some() || self.event_bridge_destination.is_some()
    }

    /// The topic's ARN, if it publishes to one.
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

/// The options of a configuration set (SES v2 API reference, `GetConfigurationSet`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetOptions {
    /// True if messages that name it are sent.
    pub sending_enabled: bool,
    /// Watching of their opens and clicks.
    pub engagement: Engagement,
    /// The domain that rewritten links point to, if it is not SES's own.
    pub redirect_domain: Option<String>,
}

#[derive(Deserialize)]
struct SetAnswer {
    #[serde(rename = "SendingOptions")]
    sending: Option<SendingOptions>,
    #[serde(rename = "TrackingOptions")]
    tracking: Option<TrackingOptions>,
    #[serde(rename = "VdmOptions")]
    vdm: Option<VdmOptions>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SendingOptions {
    sending_enabled: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TrackingOptions {
    custom_redirect_domain: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct VdmOptions {
    dashboard_options: Option<DashboardOptions>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DashboardOptions {
    engagement_metrics: Option<String>,
}

impl SesClient {
    /// Returns true if there is a configuration set of this name, which needs no escape in a path.
    pub async fn has_configuration_set(&self, name: &str) -> Result<bool, CallError> {
        let path = format!("/v2/email/configuration-sets/{name}");
        let found = self.get::<serde::de::IgnoredAny>(&path).await;
        Ok(CallError::found(found, &NOT_FOUND)?.is_some())
    }

    /// The options of the configuration set of this name; `None` if there is none.
    pub async fn set_options(&self, name: &str) -> Result<Option<SetOptions>, CallError> {
        // The configuration takes only names that nothing has to be escaped in.
        let found = self.get::<SetAnswer>(&format!("/v2/email/configuration-sets/{name}")).await;
        let Some(set) = CallError::found(found, &NOT_FOUND)? else { return Ok(None) };
        let sending = set.sending.and_then(|options| options.sending_enabled);
        let dashboard = set.vdm.and_then(|options| options.dashboard_options);
        let metrics = dashboard.and_then(|options| options.engagement_metrics);
        let redirect = set.tracking.and_then(|options| options.custom_redirect_domain);
        Ok(Some(SetOptions {
            // What an endpoint leaves out is taken for an ordinary set's.
            sending_enabled: sending.unwrap_or(true),
            engagement: metrics.as_deref().into(),
            redirect_domain: redirect.filter(|domain| !domain.is_empty()),
        }))
    }

    /// Creates a configuration set.
    pub async fn create_configuration_set(&self, name: &str) -> Result<(), CallError> {
        let body = json!({ "ConfigurationSetName": name }).to_string();
        self.tell(Method::POST, "/v2/email/configuration-sets", Bytes::from(body)).await
    }

    /// Returns the destinations to which a configuration set publishes events.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::{Answer as Stub, Server, client};

    #[tokio::test]
    async fn a_sets_options_are_read_or_it_is_not_there() {
        let body = r#"{"ConfigurationSetName":"mail","SendingOptions":{"SendingEnabled":false},
            "TrackingOptions":{"CustomRedirectDomain":"links.example.com"},
            "VdmOptions":{"DashboardOptions":{"EngagementMetrics":"ENABLED"}}}"#;
        let server = Server::start(Stub::json(200, body)).await;
        let options = client(&server.url()).set_options("mail").await.unwrap().unwrap();
        let expected = SetOptions {
            sending_enabled: false,
            engagement: Engagement::Watched,
            redirect_domain: Some("links.example.com".to_owned()),
        };
        assert_eq!(options, expected);
        let head = server.requests().remove(0).head;
        assert!(head.starts_with("GET /v2/email/configuration-sets/mail HTTP/1.1\r\n"), "{head}");

        let answer = Stub::error(404, "NotFoundException", "Configuration set <x> does not exist.");
        let server = Server::start(answer).await;
        assert_eq!(client(&server.url()).set_options("x").await, Ok(None));
    }
}
