//! The AWS account: how much and how fast it may send, whose credentials call it, and the
//! suppression list that SES keeps beside ours.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::SesClient;
use crate::error::CallError;
use crate::query::{Service, text};
use pillarbox_domain::suppression::SuppressedAddress;

const STS: Service = Service { name: "sts", version: "2011-06-15" };
/// Characters that are escaped in a segment of a path: all but RFC 3986's unreserved ones, as AWS's
/// own clients do it.
const ESCAPED_IN_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The account's limits in this region (SES v2 API reference, `GetAccount`).
#[derive(Debug, Clone, PartialEq)]
pub struct Account {
    /// The most recipients in a second; finite and above 0.
    pub max_send_rate: f64,
    /// The most recipients in 24 hours; `None` if SES sets no limit.
    pub max_24_hour_send: Option<f64>,
    /// The recipients sent to in the last 24 hours.
    pub sent_last_24_hours: f64,
    /// Permission to send now.
    pub sending: Sending,
    /// To whom it may send.
    pub access: Access,
    /// SES's verdict on what it has sent.
    pub standing: EnforcementStatus,
    /// Watching of opens and clicks, for messages whose configuration set does not say.
    pub engagement: Engagement,
    /// The reasons for which SES puts addresses on the account's suppression list, in its words.
    pub suppressed_reasons: Vec<String>,
}

/// SES's verdict on what the account has sent (`EnforcementStatus`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnforcementStatus {
    /// Nothing is wrong.
    Healthy,
    /// SES sees problems and may pause sending.
    Probation,
    /// SES has ended sending.
    Shutdown,
    /// The endpoint returns none, or another value.
    Unknown,
}

/// Watching of opens and clicks, for which SES rewrites links and adds a pixel (SES v2 API
/// reference, `DashboardAttributes` and `TrackingConfigurationOverrides`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engagement {
    /// Opens or clicks are watched.
    Watched,
    /// Neither is watched.
    NotWatched,
    /// The answer does not have it.
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

/// Permission of an account to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// The account may send.
    Enabled,
    /// Sending is paused, by SES or by the account's owner.
    Disabled,
}

/// Recipients that an account may send to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All recipients.
    Production,
    /// Only verified identities and the mailbox simulator.
    Sandbox,
}

/// User or role that makes the calls (STS API reference, `GetCallerIdentity`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The account's number: twelve digits.
    pub account: String,
    /// The user or role, as an ARN.
    pub arn: String,
}

/// Result of taking an address from the account's suppression list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is on the list no more.
    Removed,
    /// It was not on the list.
    NotThere,
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
                Some("HEALTHY") => EnforcementStatus::Healthy,
                Some("PROBATION") => EnforcementStatus::Probation,
                Some("SHUTDOWN") => EnforcementStatus::Shutdown,
                Some(_) | None => EnforcementStatus::Unknown,
            },
            engagement: answer.vdm_attributes.map_or(Engagement::NotSaid, |vdm| vdm.engagement()),
            suppressed_reasons: answer
                .suppression_attributes
                .and_then(|attributes| attributes.suppressed_reasons)
                .unwrap_or_default(),
        })
    }

    /// Returns the identity of the caller. It needs no permission, so it shows whether credentials
    /// work.
    pub async fn caller(&self) -> Result<Caller, CallError> {
        self.query(STS, None, "GetCallerIdentity", &[], |root| {
            Some(Caller { account: text(root, "Account")?, arn: text(root, "Arn")? })
        })
        .await
    }

    /// Takes an address from the account's list (SES v2 API reference,
    /// `DeleteSuppressedDestination`).
    pub async fn unsuppress(&self, address: &SuppressedAddress) -> Result<Removal, CallError> {
        let address = address.to_string();
        let encoded = utf8_percent_encode(&address, ESCAPED_IN_PATH);
        let path = format!("/v2/email/suppression/addresses/{encoded}");
        let removed = CallError::found(self.delete(&path).await, &["NotFoundException"])?;
        Ok(removed.map_or(Removal::NotThere, |()| Removal::Removed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::{Answer as Stub, Server, client};

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
            standing: EnforcementStatus::Probation,
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

    #[tokio::test]
    async fn the_account_and_the_role_are_read() {
        let body = r#"<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
          <GetCallerIdentityResult>
            <Arn>arn:aws:sts::123456789012:assumed-role/mail/i-0123456789abcdef0</Arn>
            <UserId>ARO123EXAMPLE123:i-0123456789abcdef0</UserId>
            <Account>123456789012</Account>
          </GetCallerIdentityResult>
          <ResponseMetadata><RequestId>01234567-89ab-cdef</RequestId></ResponseMetadata>
        </GetCallerIdentityResponse>"#;
        let server = Server::start(Stub::with_type(200, "text/xml", body)).await;
        let caller = client(&server.url()).caller().await.unwrap();
        assert_eq!(caller.account, "123456789012");
        assert_eq!(caller.arn, "arn:aws:sts::123456789012:assumed-role/mail/i-0123456789abcdef0");
        let request = server.requests().remove(0);
        assert_eq!(request.body, b"Action=GetCallerIdentity&Version=2011-06-15");
        assert!(request.header("authorization").unwrap().contains("/eu-west-1/sts/aws4_request"));
    }

    #[tokio::test]
    async fn an_address_is_taken_from_the_list_and_one_that_is_not_there_is_no_error() {
        let address = SuppressedAddress::parse("Bob+a/b@Example.org").unwrap();
        for (answer, removal) in [
            (Stub::json(200, "{}"), Ok(Removal::Removed)),
            (Stub::json(200, ""), Ok(Removal::Removed)),
            (Stub::error(404, "NotFoundException", "Not there."), Ok(Removal::NotThere)),
        ] {
            let server = Server::start(answer).await;
            assert_eq!(client(&server.url()).unsuppress(&address).await, removal);
            let head = server.requests().remove(0).head;
            let path = "/v2/email/suppression/addresses/bob%2Ba%2Fb%40example.org";
            assert!(head.starts_with(&format!("DELETE {path} HTTP/1.1\r\n")), "{head}");
        }
        let server = Server::start(Stub::json(404, "no such page")).await;
        let missing = client(&server.url()).unsuppress(&address).await;
        assert_eq!(missing, Err(CallError::NotSupported { status: 404 }));
    }
}
