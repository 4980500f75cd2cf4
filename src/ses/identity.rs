//! Identities: the domains that SES lets the account send from.

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::SesClient;
use crate::error::CallError;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::Finding;

pub mod records;

/// Zone that Easy DKIM's records point to unless the identity names another one.
const DKIM_ZONE: &str = "dkim.amazonses.com";

/// A domain's identity at SES (SES v2 API reference, `GetEmailIdentity`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Permission of the account to send from the domain.
    pub verification: Verification,
    /// SES's progress in verifying the domain.
    pub status: SetupStatus,
    /// The reason why the last check failed, in SES's word, such as `HOST_NOT_FOUND`.
    pub reason: Option<String>,
    /// The Easy DKIM tokens: each is a CNAME `<token>._domainkey.<domain>` that points to
    /// `<token>.<zone>`. Empty if the account brings its own key.
    pub dkim_tokens: Vec<String>,
    /// The zone that they point into; some regions have their own.
    pub dkim_zone: String,
    /// SES's progress in finding the DKIM records.
    pub dkim_status: SetupStatus,
    /// The custom MAIL FROM domain, if one is set.
    pub mail_from: Option<MailFrom>,
}

/// Permission of the account to send from a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// It may be sent from.
    Verified,
    /// It may not be sent from, or not yet.
    Unverified,
}

/// A custom MAIL FROM domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailFrom {
    /// Domain of the envelope's sender.
    pub domain: String,
    /// SES's progress in finding its MX record.
    pub status: SetupStatus,
}

/// SES's progress in finding DNS records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SetupStatus {
    /// It has not been asked to check.
    NotStarted,
    /// It has not found them yet.
    Pending,
    /// It found the records.
    Success,
    /// It has stopped the search, or the records were removed.
    Failed,
    /// It could not check, for now.
    TemporaryFailure,
    /// It says something that its documentation does not.
    Other,
}

impl From<String> for SetupStatus {
    fn from(text: String) -> Self {
        match text.as_str() {
            "NOT_STARTED" => Self::NotStarted,
            "PENDING" => Self::Pending,
            "SUCCESS" => Self::Success,
            "FAILED" => Self::Failed,
            "TEMPORARY_FAILURE" => Self::TemporaryFailure,
            _ => Self::Other,
        }
    }
}

/// Result of asking for a new identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// The resource was created.
    Created,
    /// It had been there before, and is as it was.
    AlreadyThere,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    verified_for_sending_status: Option<bool>,
    verification_status: Option<String>,
    verification_info: Option<VerificationInfo>,
    dkim_attributes: Option<Dkim>,
    mail_from_attributes: Option<MailFromAnswer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct VerificationInfo {
    error_type: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Dkim {
    status: Option<String>,
    tokens: Option<Vec<String>>,
    signing_attributes_origin: Option<String>,
    signing_hosted_zone: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct MailFromAnswer {
    #[serde(default)]
    mail_from_domain: String,
    mail_from_domain_status: Option<String>,
}

impl SesClient {
    /// Creates the domain's identity with Easy DKIM, unless it is there already.
    pub async fn create_identity(&self, domain: &DomainName<'_>) -> Result<Creation, CallError> {
        let body = json!({ "EmailIdentity": domain.as_str() }).to_string();
        let path = "/v2/email/identities";
        match self.post::<serde::de::IgnoredAny>(path, Bytes::from(body)).await {
            Ok(_) => Ok(Creation::Created),
            Err(error) if error.is_named(&["AlreadyExistsException"]) => Ok(Creation::AlreadyThere),
            Err(error) => Err(error),
        }
    }

    /// The domain's identity; `None` if SES has none.
    pub async fn identity(&self, domain: &DomainName<'_>) -> Result<Option<Identity>, CallError> {
        // A domain name holds nothing that a path would have to escape.
        let found = self.get::<Answer>(&format!("/v2/email/identities/{domain}")).await;
        Ok(CallError::found(found, &["NotFoundException"])?.map(Identity::from))
    }

    /// Has bounces of the domain's mail come back to `mail_from`, in place of SES's own domain. As
    /// long as its MX record is not found, SES goes on with its own domain.
    pub async fn set_mail_from(
        &self,
        domain: &DomainName<'_>,
        mail_from: &DomainName<'_>,
    ) -> Result<(), CallError> {
        let body = json!({
            "MailFromDomain": mail_from.as_str(),
            "BehaviorOnMxFailure": "USE_DEFAULT_VALUE",
        });
        let path = format!("/v2/email/identities/{domain}/mail-from");
        self.tell(Method::PUT, &path, Bytes::from(body.to_string())).await
    }
}

impl Identity {
    /// Returns the meaning for the domain. While SES checks, not being verified is no failure.
    pub fn finding(&self) -> Finding {
        match (self.verification, self.status) {
            (Verification::Verified, _) => Finding::Verified,
            (Verification::Unverified, SetupStatus::Failed) => Finding::Failed,
            (Verification::Unverified, SetupStatus::TemporaryFailure) => Finding::TemporaryFailure,
            (Verification::Unverified, _) => Finding::Pending,
        }
    }
}

impl From<Answer> for Identity {
    fn from(answer: Answer) -> Self {
        let status = |text: Option<String>| text.map_or(SetupStatus::NotStarted, SetupStatus::from);
        let dkim = answer.dkim_attributes.unwrap_or_default();
        // With a key of the account's own, the token is its selector and there is no CNAME.
        let own_key = dkim.signing_attributes_origin.as_deref() == Some("EXTERNAL");
        let tokens = dkim.tokens.filter(|_| !own_key).unwrap_or_default();
        Self {
            verification: match answer.verified_for_sending_status {
                Some(true) => Verification::Verified,
                Some(false) | None => Verification::Unverified,
            },
            // An endpoint that does not say leaves it at DKIM's, by which domains are verified.
            status: status(answer.verification_status.or_else(|| dkim.status.clone())),
            reason: answer.verification_info.and_then(|info| info.error_type),
            dkim_tokens: tokens,
            dkim_zone: dkim
                .signing_hosted_zone
                .filter(|zone| !zone.is_empty())
                .unwrap_or_else(|| DKIM_ZONE.to_owned()),
            dkim_status: status(dkim.status),
            mail_from: answer
                .mail_from_attributes
                .filter(|mail_from| !mail_from.mail_from_domain.is_empty())
                .map(|mail_from| MailFrom {
                    domain: mail_from.mail_from_domain,
                    status: status(mail_from.mail_from_domain_status),
                }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::{Answer as Stub, Server, client};

    fn domain() -> DomainName<'static> {
        DomainName::parse("example.com").unwrap()
    }

    #[tokio::test]
    async fn an_identity_is_read_with_its_dns_records() {
        let body = r#"{"IdentityType":"DOMAIN","FeedbackForwardingStatus":true,
            "VerifiedForSendingStatus":true,"VerificationStatus":"SUCCESS",
            "DkimAttributes":{"SigningEnabled":true,"Status":"SUCCESS","Tokens":["a","b","c"]},
            "MailFromAttributes":{"MailFromDomain":"mail.example.com",
              "MailFromDomainStatus":"PENDING","BehaviorOnMxFailure":"USE_DEFAULT_VALUE"}}"#;
        let server = Server::start(Stub::json(200, body)).await;
        let identity = client(&server.url()).identity(&domain()).await.unwrap().unwrap();
        assert_eq!(identity.verification, Verification::Verified);
        assert_eq!(identity.dkim_tokens, ["a", "b", "c"]);
        assert_eq!(identity.dkim_status, SetupStatus::Success);
        let mail_from =
            MailFrom { domain: "mail.example.com".into(), status: SetupStatus::Pending };
        assert_eq!(identity.mail_from, Some(mail_from));
        assert_eq!((identity.dkim_zone.as_str(), identity.reason), ("dkim.amazonses.com", None));
        let head = server.requests().remove(0).head;
        assert!(head.starts_with("GET /v2/email/identities/example.com HTTP/1.1\r\n"), "{head}");
    }

    #[tokio::test]
    async fn a_domain_unknown_to_ses_has_no_identity() {
        let answer = Stub::error(404, "NotFoundException", "Email identity does not exist.");
        let server = Server::start(answer).await;
        assert_eq!(client(&server.url()).identity(&domain()).await, Ok(None));
    }

    #[tokio::test]
    async fn an_identity_that_is_there_already_is_no_error() {
        let answer = Stub::error(400, "AlreadyExistsException", "Email identity already exists");
        let server = Server::start(answer).await;
        let client = client(&server.url());
        assert_eq!(client.create_identity(&domain()).await, Ok(Creation::AlreadyThere));
        let request = server.requests().remove(0);
        assert!(request.head.starts_with("POST /v2/email/identities HTTP/1.1\r\n"));
        assert_eq!(request.body, br#"{"EmailIdentity":"example.com"}"#);

        let server = Server::start(Stub::json(200, r#"{"IdentityType":"DOMAIN"}"#)).await;
        let client = super::tests::client(&server.url());
        assert_eq!(client.create_identity(&domain()).await, Ok(Creation::Created));
    }

    #[tokio::test]
    async fn what_is_not_verified_yet_is_told_from_what_failed() {
        for (status, finding) in [
            ("NOT_STARTED", Finding::Pending),
            ("PENDING", Finding::Pending),
            ("TEMPORARY_FAILURE", Finding::TemporaryFailure),
            ("FAILED", Finding::Failed),
        ] {
            let body = json!({
                "VerifiedForSendingStatus": false,
                "VerificationStatus": status,
                "VerificationInfo": { "ErrorType": "HOST_NOT_FOUND" },
            });
            let server = Server::start(Stub::json(200, &body.to_string())).await;
            let identity = client(&server.url()).identity(&domain()).await.unwrap().unwrap();
            assert_eq!(identity.finding(), finding, "{status}");
            assert_eq!(identity.reason.as_deref(), Some("HOST_NOT_FOUND"));
        }
    }

    #[tokio::test]
    async fn a_zone_of_its_own_and_a_key_of_the_accounts_own_are_heeded() {
        let zone = "dkim.eusc-de-east-1.amazonses.example";
        let body = json!({ "DkimAttributes": {
            "Tokens": ["a"], "SigningHostedZone": zone, "SigningAttributesOrigin": "AWS_SES" } });
        let server = Server::start(Stub::json(200, &body.to_string())).await;
        let identity = client(&server.url()).identity(&domain()).await.unwrap().unwrap();
        assert_eq!((identity.dkim_zone.as_str(), identity.dkim_tokens.len()), (zone, 1));

        let body = json!({ "DkimAttributes": {
            "Tokens": ["selector"], "SigningAttributesOrigin": "EXTERNAL" } });
        let server = Server::start(Stub::json(200, &body.to_string())).await;
        let identity = client(&server.url()).identity(&domain()).await.unwrap().unwrap();
        assert!(identity.dkim_tokens.is_empty());
    }

    #[tokio::test]
    async fn a_mail_from_domain_falls_back_to_ses_own_where_its_mx_is_not_found() {
        let server = Server::start(Stub::json(200, "{}")).await;
        let mail_from = DomainName::parse("bounce.example.com").unwrap();
        client(&server.url()).set_mail_from(&domain(), &mail_from).await.unwrap();
        let request = server.requests().remove(0);
        let line = "PUT /v2/email/identities/example.com/mail-from HTTP/1.1\r\n";
        assert!(request.head.starts_with(line), "{}", request.head);
        let sent: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let expected = json!({
            "MailFromDomain": "bounce.example.com", "BehaviorOnMxFailure": "USE_DEFAULT_VALUE" });
        assert_eq!(sent, expected);
    }
}
