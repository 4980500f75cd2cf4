//! `GetAccount`: how much and how fast the account may send.

use serde::Deserialize;

use crate::ses::SesClient;
use crate::ses::call::CallError;

/// The account's limits in this region (SES v2 API reference, `GetAccount`).
#[derive(Debug, Clone, PartialEq)]
pub struct Account {
    /// The most recipients in a second; finite and above 0.
    pub max_send_rate: f64,
    /// The most recipients in 24 hours; `None` where SES sets no limit.
    pub max_24_hour_send: Option<f64>,
    /// The recipients sent to in the last 24 hours.
    pub sent_last_24_hours: f64,
    /// Whether the account may send now.
    pub sending: Sending,
    /// To whom it may send.
    pub access: Access,
    /// What SES thinks of what it has sent.
    pub standing: Standing,
    /// Whether SES watches opens and clicks, for messages whose configuration set does not say.
    pub engagement: Engagement,
    /// Why SES puts addresses on the account's own suppression list, in its words.
    pub suppressed_reasons: Vec<String>,
}

/// What SES thinks of what the account has sent (`EnforcementStatus`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is wrong.
    Healthy,
    /// SES sees problems and may pause sending.
    Probation,
    /// SES has ended sending.
    Shutdown,
    /// The endpoint does not say, or says something else.
    Unknown,
}

/// Whether SES watches opens and clicks, for which it rewrites links and adds a pixel (SES v2 API
/// reference, `DashboardAttributes` and `TrackingConfigurationOverrides`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engagement {
    /// It does.
    Watched,
    /// It does not.
    NotWatched,
    /// It is not said here.
    NotSaid,
}

impl From<Option<&str>> for Engagement {
    fn from(metrics: Option<&str>) -> Self {
        match metrics {
            Some("ENABLED") => Self::Watched,
            Some(_) => Self::NotWatched,
            None => Self::NotSaid,
        }
    }
}

/// Whether an account may send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// It may.
    Enabled,
    /// Sending is paused, by SES or by the account's owner.
    Disabled,
}

/// To whom an account may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To anybody.
    Production,
    /// To verified identities and the mailbox simulator alone.
    Sandbox,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    send_quota: Quota,
    sending_enabled: Option<bool>,
    production_access_enabled: Option<bool>,
    enforcement_status: Option<String>,
    vdm_attributes: Option<Vdm>,
    suppression_attributes: Option<Suppression>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Vdm {
    vdm_enabled: Option<String>,
    dashboard_attributes: Option<Dashboard>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Dashboard {
    engagement_metrics: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suppression {
    suppressed_reasons: Option<Vec<String>>,
}

impl Vdm {
    fn engagement(&self) -> Engagement {
        if self.vdm_enabled.as_deref() != Some("ENABLED") {
            return Engagement::NotWatched;
        }
        let dashboard = self.dashboard_attributes.as_ref();
        dashboard.and_then(|dashboard| dashboard.engagement_metrics.as_deref()).into()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Quota {
    max_send_rate: f64,
    #[serde(rename = "Max24HourSend")]
    max_24_hour_send: Option<f64>,
    #[serde(rename = "SentLast24Hours")]
    sent_last_24_hours: Option<f64>,
}

impl SesClient {
    /// The account's limits as of now.
    pub async fn account(&self) -> Result<Account, CallError> {
        let answer: Answer = self.get("/v2/email/account").await?;
        let quota = answer.send_quota;
        if quota.max_send_rate <= 0.0 {
            return Err(CallError::Unreadable("MaxSendRate is not above 0".to_owned()));
        }
        Ok(Account {
            max_send_rate: quota.max_send_rate,
            // SES writes "no limit" as -1.
            max_24_hour_send: quota.max_24_hour_send.filter(|&limit| limit >= 0.0),
            sent_last_24_hours: quota.sent_last_24_hours.unwrap_or(0.0),
            // What an endpoint leaves out is taken for an ordinary account's.
            sending: match answer.sending_enabled {
                Some(false) => Sending::Disabled,
                Some(true) | None => Sending::Enabled,
            },
            access: match answer.production_access_enabled {
                Some(false) => Access::Sandbox,
                Some(true) | None => Access::Production,
            },
            standing: match answer.enforcement_status.as_deref() {
                Some("HEALTHY") => Standing::Healthy,
                Some("PROBATION") => Standing::Probation,
                Some("SHUTDOWN") => Standing::Shutdown,
                Some(_) | None => Standing::Unknown,
            },
            engagement: answer.vdm_attributes.map_or(Engagement::NotSaid, |vdm| vdm.engagement()),
            suppressed_reasons: answer
                .suppression_attributes
                .and_then(|attributes| attributes.suppressed_reasons)
                .unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ses::stub::{Answer as Stub, Server, client};

    #[tokio::test]
    async fn the_limits_are_read() {
        let body = r#"{"DedicatedIpAutoWarmupEnabled":true,"EnforcementStatus":"PROBATION",
            "VdmAttributes":{"VdmEnabled":"ENABLED",
              "DashboardAttributes":{"EngagementMetrics":"ENABLED"}},
            "SuppressionAttributes":{"SuppressedReasons":["BOUNCE"]},
            "ProductionAccessEnabled":false,"SendingEnabled":true,
            "SendQuota":{"Max24HourSend":200.0,"MaxSendRate":1.0,"SentLast24Hours":3.0}}"#;
        let server = Server::start(Stub::json(200, body)).await;
        let account = client(&server.url()).account().await.unwrap();
        let expected = Account {
            max_send_rate: 1.0,
            max_24_hour_send: Some(200.0),
            sent_last_24_hours: 3.0,
            sending: Sending::Enabled,
            access: Access::Sandbox,
            standing: Standing::Probation,
            engagement: Engagement::Watched,
            suppressed_reasons: vec!["BOUNCE".to_owned()],
        };
        assert_eq!(account, expected);
        let request = server.requests().remove(0);
        assert!(request.head.starts_with("GET /v2/email/account HTTP/1.1\r\n"), "{}", request.head);
        assert!(request.header("authorization").unwrap().contains("/eu-west-1/ses/aws4_request"));
    }

    #[tokio::test]
    async fn no_daily_limit_is_no_number() {
        let body = r#"{"SendQuota":{"Max24HourSend":-1,"MaxSendRate":14},"SendingEnabled":false}"#;
        let server = Server::start(Stub::json(200, body)).await;
        let account = client(&server.url()).account().await.unwrap();
        assert_eq!((account.max_24_hour_send, account.sending), (None, Sending::Disabled));
    }

    #[tokio::test]
    async fn an_endpoint_without_the_call_is_told_from_a_refusal() {
        let page = Stub::with_type(404, "text/html", "<!doctype html><title>404</title>");
        let server = Server::start(page).await;
        let error = client(&server.url()).account().await.unwrap_err();
        assert_eq!(error, CallError::NotSupported { status: 404 });

        let server = Server::start(Stub::error(429, "TooManyRequestsException", "Slow down")).await;
        let error = client(&server.url()).account().await.unwrap_err();
        assert!(matches!(error, CallError::Refused { status: 429, .. }), "{error:?}");

        let server = Server::start(Stub::json(200, "{}")).await;
        let error = client(&server.url()).account().await.unwrap_err();
        assert!(matches!(error, CallError::Unreadable(_)), "{error:?}");

        let error = client("http://127.0.0.1:1").account().await.unwrap_err();
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
    }
}
