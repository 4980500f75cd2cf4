//! Queues by name: finding, creating and setting them up.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Method;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::ses::SesClient;
use crate::ses::call::{CallError, accepted, read};
use crate::ses::sqs::{CONTENT_TYPE, Queue};
use crate::ses::transport::{Call, Reply};

/// SQS's words for a queue that is not there: in the JSON protocol, and before it.
const NOT_FOUND: [&str; 3] =
    ["QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "NonExistentQueue"];

#[derive(Deserialize)]
struct QueueUrl {
    #[serde(rename = "QueueUrl")]
    url: String,
}

#[derive(Deserialize)]
struct Attributes {
    #[serde(rename = "Attributes", default)]
    attributes: BTreeMap<String, String>,
}

impl Queue {
    /// All of its attributes by name, asked where its messages are received: its region and host
    /// need not be the client's.
    pub async fn attributes(&self) -> Result<BTreeMap<String, String>, CallError> {
        const TARGET: (&str, &str) = ("x-amz-target", "AmazonSQS.GetQueueAttributes");
        let request = json!({ "QueueUrl": self.url, "AttributeNames": ["All"] });
        Ok(self.ask::<Attributes>(TARGET, &request, None).await?.attributes)
    }
}

impl SesClient {
    /// The URL of the queue of this name in the client's region; `None` where there is none.
    pub async fn queue_url(&self, name: &str) -> Result<Option<String>, CallError> {
        const TARGET: (&str, &str) = ("x-amz-target", "AmazonSQS.GetQueueUrl");
        let reply = self.ask_sqs(TARGET, &json!({ "QueueName": name })).await?;
        match read::<QueueUrl>(&reply) {
            Ok(found) => Ok(Some(found.url)),
            Err(error) if error.is_named(&NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a queue in the client's region; its URL.
    pub async fn create_queue(
        &self,
        name: &str,
        attributes: &BTreeMap<&str, String>,
    ) -> Result<String, CallError> {
        const TARGET: (&str, &str) = ("x-amz-target", "AmazonSQS.CreateQueue");
        let request = json!({ "QueueName": name, "Attributes": attributes });
        Ok(read::<QueueUrl>(&self.ask_sqs(TARGET, &request).await?)?.url)
    }

    /// All of a queue's attributes by name (SQS API reference, `GetQueueAttributes`).
    pub async fn queue_attributes(&self, url: &str) -> Result<BTreeMap<String, String>, CallError> {
        const TARGET: (&str, &str) = ("x-amz-target", "AmazonSQS.GetQueueAttributes");
        let request = json!({ "QueueUrl": url, "AttributeNames": ["All"] });
        Ok(read::<Attributes>(&self.ask_sqs(TARGET, &request).await?)?.attributes)
    }

    /// Sets some of a queue's attributes.
    pub async fn set_queue_attributes(
        &self,
        url: &str,
        attributes: &BTreeMap<&str, String>,
    ) -> Result<(), CallError> {
        const TARGET: (&str, &str) = ("x-amz-target", "AmazonSQS.SetQueueAttributes");
        let request = json!({ "QueueUrl": url, "Attributes": attributes });
        accepted(&self.ask_sqs(TARGET, &request).await?)
    }

    async fn ask_sqs(
        &self,
        target: (&'static str, &'static str),
        request: &impl Serialize,
    ) -> Result<Reply, CallError> {
        let transport = &self.inner.transport;
        let base = self.inner.endpoints.of("sqs", transport.terms().region);
        let url = Url::parse(&format!("{base}/"))
            .map_err(|error| CallError::Unreachable(error.to_string()))?;
        let body = serde_json::to_vec(request).expect("strings and maps become JSON");
        let call = Call {
            service: "sqs",
            method: Method::POST,
            url: &url,
            headers: &[CONTENT_TYPE, target],
            body: Bytes::from(body),
        };
        Ok(transport.call(&call).await?)
    }
}

#[cfg(test)]
mod tests {
    use crate::ses::sqs::Queue;
    use crate::ses::stub::{Answer, Server, client};

    #[tokio::test]
    async fn a_queue_is_asked_about_at_its_own_host() {
        let answer = Answer::json(200, r#"{"Attributes":{"ApproximateNumberOfMessages":"7"}}"#);
        let server = Server::start(answer).await;
        let elsewhere = client("http://127.0.0.1:1");
        let queue = Queue::new(&elsewhere, &format!("{}/123456789012/q", server.url())).unwrap();
        let attributes = queue.attributes().await.unwrap();
        assert_eq!(attributes["ApproximateNumberOfMessages"], "7");
        let request = server.requests().remove(0);
        assert_eq!(request.header("x-amz-target"), Some("AmazonSQS.GetQueueAttributes"));
    }

    #[tokio::test]
    async fn a_queue_is_found_by_name_or_is_not_there() {
        let answer = Answer::json(200, r#"{"QueueUrl":"https://x.org/123456789012/q"}"#);
        let server = Server::start(answer).await;
        let url = client(&server.url()).queue_url("q").await.unwrap();
        assert_eq!(url.as_deref(), Some("https://x.org/123456789012/q"));
        let request = server.requests().remove(0);
        assert_eq!(request.header("x-amz-target"), Some("AmazonSQS.GetQueueUrl"));
        assert_eq!(request.body, br#"{"QueueName":"q"}"#);
        assert!(request.header("authorization").unwrap().contains("/eu-west-1/sqs/aws4_request"));

        let body = r#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist",
            "message":"The specified queue does not exist."}"#;
        let server = Server::start(Answer::json(400, body)).await;
        assert_eq!(client(&server.url()).queue_url("q").await, Ok(None));
    }
}
