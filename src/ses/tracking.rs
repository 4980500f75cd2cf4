//! What a configuration set does with messages: whether it sends them, and whether it has SES
//! rewrite links and add a pixel.

use serde::Deserialize;

use crate::ses::SesClient;
use crate::ses::account::Engagement;
use crate::ses::call::CallError;
use crate::ses::configuration_set::NOT_FOUND;

/// The options of a configuration set (SES v2 API reference, `GetConfigurationSet`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetOptions {
    /// Whether messages that name it are sent.
    pub sending_enabled: bool,
    /// Whether SES watches opens and clicks of them.
    pub engagement: Engagement,
    /// The domain that rewritten links point to, where it is not SES's own.
    pub redirect_domain: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
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
    /// The options of the configuration set of this name; `None` where there is none.
    pub async fn set_options(&self, name: &str) -> Result<Option<SetOptions>, CallError> {
        // The configuration takes only names that nothing has to be escaped in.
        let set: Answer = match self.get(&format!("/v2/email/configuration-sets/{name}")).await {
            Ok(set) => set,
            Err(error) if error.is_named(&NOT_FOUND) => return Ok(None),
            Err(error) => return Err(error),
        };
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ses::stub::{Answer as Stub, Server, client};

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
