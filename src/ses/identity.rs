//! Identities: the domains that SES lets the account send from.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use crate::domain::mailbox::DomainName;
use crate::ses::SesClient;
use crate::ses::call::CallError;

/// A domain's identity at SES (SES v2 API reference, `GetEmailIdentity`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Whether SES lets the account send from the domain.
    pub verification: Verification,
    /// The Easy DKIM tokens: each is a CNAME `<token>._domainkey.<domain>` that points to
    /// `<token>.dkim.amazonses.com`. None where the account brings its own key.
    pub dkim_tokens: Vec<String>,
    /// Where SES stands in finding the DKIM records.
    pub dkim_status: SetupStatus,
    /// The custom MAIL FROM domain, if one is set.
    pub mail_from: Option<MailFrom>,
}

/// Whether SES lets the account send from a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// It does.
    Verified,
    /// It does not, or not yet.
    Unverified,
}

/// A custom MAIL FROM domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailFrom {
    /// The domain.
    pub domain: String,
    /// Where SES stands in finding its MX record.
    pub status: SetupStatus,
}

/// Where SES stands in finding DNS records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetupStatus {
    /// It has not been asked to look.
    NotStarted,
    /// It has not found them yet.
    Pending,
    /// It found them.
    Success,
    /// It has given up, or they are gone.
    Failed,
    /// It could not look, for now.
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

/// What asking for a new identity came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// It was created.
    Created,
    /// It had been there before, and is as it was.
    AlreadyThere,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    verified_for_sending_status: Option<bool>,
    dkim_attributes: Option<Dkim>,
    mail_from_attributes: Option<MailFromAnswer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Dkim {
    status: Option<String>,
    #[serde(default)]
    tokens: Vec<String>,
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
            Err(CallError::Refused { name: Some(name), .. })
                if name == "AlreadyExistsException" =>
            {
                Ok(Creation::AlreadyThere)
            }
            Err(error) => Err(error),
        }
    }

    /// The domain's identity; `None` where SES has none.
    pub async fn identity(&self, domain: &DomainName<'_>) -> Result<Option<Identity>, CallError> {
        // A domain name holds nothing that a path would have to escape.
        match self.get::<Answer>(&format!("/v2/email/identities/{domain}")).await {
            Ok(answer) => Ok(Some(Identity::from(answer))),
            Err(CallError::Refused { name: Some(name), .. }) if name == "NotFoundException" => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl From<Answer> for Identity {
    fn from(answer: Answer) -> Self {
        let status = |text: Option<String>| text.map_or(SetupStatus::NotStarted, SetupStatus::from);
        let (dkim_tokens, dkim_status) =
            answer.dkim_attributes.map_or((Vec::new(), None), |dkim| (dkim.tokens, dkim.status));
        Self {
            verification: match answer.verified_for_sending_status {
                Some(true) => Verification::Verified,
                Some(false) | None => Verification::Unverified,
            },
            dkim_tokens,
            dkim_status: status(dkim_status),
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
    use crate::ses::stub::{Answer as Stub, Server, client};

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
}
