//! SNS: topics, and the queues that are subscribed to them.
//!
//! Knows nothing of what is published.

use std::collections::BTreeMap;
use std::fmt;

use crate::SesClient;
use crate::error::CallError;
use crate::query::{Service, elements, text};

const SNS: Service = Service { name: "sns", version: "2010-03-31" };

/// The longest ARN of a topic, in bytes: its name has at most 256 characters (SNS API reference,
/// `CreateTopic`), and what is before it less.
const MAX_ARN_BYTES: usize = 512;
/// The most pages of subscriptions that are read, of a hundred each. A topic of our own has one.
const MAX_PAGES: usize = 20;
/// SNS's word for a topic that is not there.
const NOT_FOUND: [&str; 1] = ["NotFound"];

/// The text is not the ARN of a topic.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the ARN of an SNS topic")]
pub struct NotATopic;

/// The ARN of a topic: `arn:<partition>:sns:<region>:<account>:<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicArn(String);

impl TopicArn {
    /// Reads an ARN of an SNS topic.
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

    /// Returns the ARN as text.
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

/// A subscription to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its ARN; something else while it waits to be confirmed.
    pub arn: String,
    /// The protocol of delivery, such as `sqs`.
    pub protocol: String,
    /// Endpoint of the subscription; with `sqs`, the queue's ARN.
    pub endpoint: String,
}

impl SesClient {
    /// A topic's attributes by name (SNS API reference, `GetTopicAttributes`); `None` if there is
    /// no such topic.
    pub async fn topic_attributes(
        &self,
        topic: &TopicArn,
    ) -> Result<Option<BTreeMap<String, String>>, CallError> {
        let parameters = [("TopicArn", topic.as_str())];
        let attributes = self
            .query(SNS, Some(topic.region()), "GetTopicAttributes", &parameters, |root| {
                elements(root, "entry")
                    .map(|entry| Some((text(entry, "key")?, text(entry, "value")?)))
                    .collect()
            })
            .await;
        CallError::found(attributes, &NOT_FOUND)
    }

    /// Creates a topic in the client's region, or finds the one of that name.
    pub async fn create_topic(&self, name: &str) -> Result<TopicArn, CallError> {
        self.query(SNS, None, "CreateTopic", &[("Name", name)], |root| {
            TopicArn::parse(&text(root, "TopicArn")?).ok()
        })
        .await
    }

    /// Sets one of a topic's attributes.
    pub async fn set_topic_attribute(
        &self,
        topic: &TopicArn,
        name: &str,
        value: &str,
    ) -> Result<(), CallError> {
        let parameters =
            [("TopicArn", topic.as_str()), ("AttributeName", name), ("AttributeValue", value)];
        let region = Some(topic.region());
        self.query(SNS, region, "SetTopicAttributes", &parameters, |_| Some(())).await
    }

    /// All subscriptions to a topic.
    pub async fn subscriptions(&self, topic: &TopicArn) -> Result<Vec<Subscription>, CallError> {
        let mut all = Vec::new();
        let mut next = String::new();
        for _ in 0..MAX_PAGES {
            let mut parameters = vec![("TopicArn", topic.as_str())];
            if !next.is_empty() {
                parameters.push(("NextToken", &next));
            }
            let region = Some(topic.region());
            let (page, token) = self
                .query(SNS, region, "ListSubscriptionsByTopic", &parameters, |root| {
                    let page: Option<Vec<_>> = elements(root, "member")
                        .map(|member| {
                            Some(Subscription {
                                arn: text(member, "SubscriptionArn")?,
                                protocol: text(member, "Protocol")?,
                                endpoint: text(member, "Endpoint")?,
                            })
                        })
                        .collect();
                    Some((page?, text(root, "NextToken").unwrap_or_default()))
                })
                .await?;
            all.extend(page);
            next = token;
            if next.is_empty() {
                break;
            }
        }
        Ok(all)
    }

    /// Subscribes a queue of the same account, which needs no confirmation. Messages come wrapped
    /// in SNS's notification, as they do unless a subscription asks for raw ones.
    pub async fn subscribe_queue(&self, topic: &TopicArn, queue: &str) -> Result<(), CallError> {
        let parameters = [("TopicArn", topic.as_str()), ("Protocol", "sqs"), ("Endpoint", queue)];
        self.query(SNS, Some(topic.region()), "Subscribe", &parameters, |_| Some(())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::{Answer, Server, client};

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

    fn topic() -> TopicArn {
        TopicArn::parse("arn:aws:sns:eu-west-1:123456789012:pillarbox").unwrap()
    }

    #[tokio::test]
    async fn attributes_are_read_and_a_missing_topic_has_none() {
        let body = r#"<GetTopicAttributesResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">
          <GetTopicAttributesResult><Attributes>
            <entry><key>Policy</key><value>{&quot;Version&quot;:&quot;2008-10-17&quot;}</value></entry>
            <entry><key>DisplayName</key><value/></entry>
          </Attributes></GetTopicAttributesResult>
          <ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>
          </GetTopicAttributesResponse>"#;
        let server = Server::start(Answer::with_type(200, "text/xml", body)).await;
        let attributes = client(&server.url()).topic_attributes(&topic()).await.unwrap().unwrap();
        assert_eq!(attributes["Policy"], r#"{"Version":"2008-10-17"}"#);
        assert_eq!(attributes["DisplayName"], "");

        let body = r#"<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error>
            <Type>Sender</Type><Code>NotFound</Code><Message>Topic does not exist</Message>
            </Error><RequestId>1</RequestId></ErrorResponse>"#;
        let server = Server::start(Answer::with_type(404, "text/xml", body)).await;
        assert_eq!(client(&server.url()).topic_attributes(&topic()).await, Ok(None));
    }

    #[tokio::test]
    async fn subscriptions_are_read_from_all_pages() {
        let page = |endpoint: &str, next: &str| {
            let body = format!(
                r#"<ListSubscriptionsByTopicResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">
                <ListSubscriptionsByTopicResult><Subscriptions><member>
                <TopicArn>{}</TopicArn><Protocol>sqs</Protocol>
                <SubscriptionArn>{0}:80289ba6</SubscriptionArn><Owner>123456789012</Owner>
                <Endpoint>{endpoint}</Endpoint></member></Subscriptions>{next}
                </ListSubscriptionsByTopicResult></ListSubscriptionsByTopicResponse>"#,
                topic()
            );
            Answer::with_type(200, "text/xml", &body)
        };
        let server = Server::with(move |request| {
            if String::from_utf8_lossy(&request.body).contains("NextToken=t2") {
                page("second", "")
            } else {
                page("first", "<NextToken>t2</NextToken>")
            }
        })
        .await;
        let all = client(&server.url()).subscriptions(&topic()).await.unwrap();
        let endpoints: Vec<_> = all.iter().map(|one| one.endpoint.as_str()).collect();
        assert_eq!(endpoints, ["first", "second"]);
    }
}
