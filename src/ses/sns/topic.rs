//! Topics and who is subscribed to them.

use std::collections::BTreeMap;

use crate::ses::SesClient;
use crate::ses::call::CallError;
use crate::ses::query::{elements, text};
use crate::ses::sns::{SNS, TopicArn};

/// The most pages of subscriptions that are read, of a hundred each. A topic of our own has one.
const MAX_PAGES: usize = 20;
/// SNS's word for a topic that is not there.
const NOT_FOUND: [&str; 1] = ["NotFound"];

/// A subscription to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its ARN; something else while it waits to be confirmed.
    pub arn: String,
    /// How it is delivered, such as `sqs`.
    pub protocol: String,
    /// To where; with `sqs`, the queue's ARN.
    pub endpoint: String,
}

impl SesClient {
    /// A topic's attributes by name (SNS API reference, `GetTopicAttributes`); `None` where there
    /// is no such topic.
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
        match attributes {
            Ok(attributes) => Ok(Some(attributes)),
            Err(error) if error.is_named(&NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
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
    use crate::ses::stub::{Answer, Server, client};

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
