//! SNS: topics by name, the confirmation of a subscription, and whether a post is SNS's own.
//!
//! Knows nothing of what is published.

use std::fmt;

use crate::ses::SesClient;
use crate::ses::call::CallError;
use crate::ses::query::{Service, text};

pub use certificate::CertificateError;
pub use certificates::{FetchError, NoClient, Trust};
pub use origin::{ForeignUrl, UnknownPartition};
pub use post::{Malformed, Verified};
pub use verifier::{Reason, Refused, Verifier, VerifierError};

mod certificate;
mod certificates;
mod origin;
mod post;
mod topic;
mod verifier;

pub use topic::Subscription;

pub(super) const SNS: Service = Service { name: "sns", version: "2010-03-31" };

/// The longest ARN of a topic, in bytes: its name has at most 256 characters (SNS API reference,
/// `CreateTopic`), and what is before it less. What strangers post as one is told in the log.
const MAX_ARN_BYTES: usize = 512;

/// The text is not the ARN of a topic.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the ARN of an SNS topic")]
pub struct NotATopic;

/// The ARN of a topic: `arn:<partition>:sns:<region>:<account>:<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicArn(String);

impl TopicArn {
    /// Reads an ARN.
    pub fn parse(text: &str) -> Result<Self, NotATopic> {
        let parts: Vec<_> = text.split(':').collect();
        let [arn, partition, service, region, account, name] = parts[..] else {
            return Err(NotATopic);
        };
        let is_lower = |text: &str| {
            let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            !text.is_empty() && text.bytes().all(allowed)
        };
        let is_name = |text: &str| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            !text.is_empty() && text.bytes().all(allowed)
        };
        let is_account = account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
        let is_arn = arn == "arn" && is_lower(partition) && service == "sns";
        if text.len() <= MAX_ARN_BYTES && is_arn && is_lower(region) && is_account && is_name(name)
        {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotATopic)
        }
    }

    /// The ARN.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The region, such as `eu-west-1`.
    pub fn region(&self) -> &str {
        self.0.split(':').nth(3).expect("an ARN has six parts")
    }
}

impl fmt::Display for TopicArn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SesClient {
    /// Confirms a subscription to the topic with the token that SNS posted; the subscription's
    /// ARN. From then on only the account's own signed calls can end it
    /// (`AuthenticateOnUnsubscribe`), and not the link that every post carries.
    pub async fn confirm_subscription(
        &self,
        topic: &TopicArn,
        token: &str,
    ) -> Result<String, CallError> {
        let parameters =
            [("TopicArn", topic.as_str()), ("Token", token), ("AuthenticateOnUnsubscribe", "true")];
        self.query(SNS, Some(topic.region()), "ConfirmSubscription", &parameters, |root| {
            text(root, "SubscriptionArn")
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ses::stub::{Answer, Server, client};

    #[test]
    fn a_topic_is_known_by_its_arn() {
        let topic = TopicArn::parse("arn:aws:sns:eu-west-1:123456789012:My-topic_1.fifo").unwrap();
        assert_eq!(topic.region(), "eu-west-1");
        assert!(TopicArn::parse("arn:aws-us-gov:sns:us-gov-west-1:123456789012:t").is_ok());
        for text in [
            "",
            "arn:aws:sqs:eu-west-1:123456789012:t",
            "arn:aws:sns:eu-west-1.evil.example/:123456789012:t",
            "arn:aws:sns:eu-west-1:12345678901:t",
            "arn:aws:sns:eu-west-1:123456789012:",
            "arn:aws:sns:eu-west-1:123456789012:t:0c9b7f5e",
            "arn:aws:sns::123456789012:t",
        ] {
            assert_eq!(TopicArn::parse(text), Err(NotATopic), "{text}");
        }
        let named = |length| format!("arn:aws:sns:eu-west-1:123456789012:{}", "t".repeat(length));
        assert!(TopicArn::parse(&named(256)).is_ok());
        assert_eq!(TopicArn::parse(&named(1_000)), Err(NotATopic));
    }

    #[tokio::test]
    async fn a_subscription_is_confirmed_by_a_signed_call_in_the_topics_region() {
        let body = r#"<ConfirmSubscriptionResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">
          <ConfirmSubscriptionResult>
            <SubscriptionArn>arn:aws:sns:us-east-2:123456789012:t:6b0e71bd</SubscriptionArn>
          </ConfirmSubscriptionResult>
          <ResponseMetadata><RequestId>075ecce8-8dac</RequestId></ResponseMetadata>
        </ConfirmSubscriptionResponse>"#;
        let server = Server::start(Answer::with_type(200, "text/xml", body)).await;
        let topic = TopicArn::parse("arn:aws:sns:us-east-2:123456789012:t").unwrap();
        let arn = client(&server.url()).confirm_subscription(&topic, "2336&f").await.unwrap();
        assert_eq!(arn, "arn:aws:sns:us-east-2:123456789012:t:6b0e71bd");
        let request = server.requests().remove(0);
        assert_eq!(
            String::from_utf8(request.body.clone()).unwrap(),
            "Action=ConfirmSubscription&Version=2010-03-31&TopicArn=arn%3Aaws%3Asns%3Aus-east-2%3A\
             123456789012%3At&Token=2336%26f&AuthenticateOnUnsubscribe=true"
        );
        assert!(request.header("authorization").unwrap().contains("/us-east-2/sns/aws4_request"));
    }
}
