//! STS: whose credentials these are.

use crate::ses::SesClient;
use crate::ses::call::CallError;
use crate::ses::query::{Service, text};

const STS: Service = Service { name: "sts", version: "2011-06-15" };

/// Who makes the calls (STS API reference, `GetCallerIdentity`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The account's number: twelve digits.
    pub account: String,
    /// The user or role, as an ARN.
    pub arn: String,
}

impl SesClient {
    /// Who makes the calls. It needs no permission, so it tells whether credentials are any good.
    pub async fn caller(&self) -> Result<Caller, CallError> {
        self.query(STS, None, "GetCallerIdentity", &[], |root| {
            Some(Caller { account: text(root, "Account")?, arn: text(root, "Arn")? })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use crate::ses::stub::{Answer, Server, client};

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
        let server = Server::start(Answer::with_type(200, "text/xml", body)).await;
        let caller = client(&server.url()).caller().await.unwrap();
        assert_eq!(caller.account, "123456789012");
        assert_eq!(caller.arn, "arn:aws:sts::123456789012:assumed-role/mail/i-0123456789abcdef0");
        let request = server.requests().remove(0);
        assert_eq!(request.body, b"Action=GetCallerIdentity&Version=2011-06-15");
        assert!(request.header("authorization").unwrap().contains("/eu-west-1/sts/aws4_request"));
    }
}
