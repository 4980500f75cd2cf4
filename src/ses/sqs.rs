//! SQS, in its JSON protocol: receiving messages from a queue and deleting them; finding, creating
//! and setting up queues.
//!
//! Knows nothing of what is in the messages. These calls do not count towards SES's limits, so they
//! do not wait.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use reqwest::Url;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::SesClient;
use crate::call::{accepted, read};
use crate::endpoint::AWS_SUFFIXES;
use crate::error::CallError;
use crate::request::{Call, CallOptions, Reply};

/// The most messages in one call (SQS quotas: "batched message quota").
pub const MAX_MESSAGES: usize = 10;
/// Time that SQS waits for messages before it answers with none: its longest.
const WAIT_SECONDS: u8 = 20;
/// Time that a call may take beyond that.
const GRACE: Duration = Duration::from_secs(10);
/// The longest answer that is read. Ten documents of SES have under 200 KiB; a single message of
/// SQS's largest size, escaped, fits in it.
const MAX_ANSWER_BYTES: usize = 4 << 20;

const CONTENT_TYPE: (&str, &str) = ("content-type", "application/x-amz-json-1.0");
/// SQS's words for a queue that is not there: in the JSON protocol, and before it.
const NOT_FOUND: [&str; 3] =
    ["QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "NonExistentQueue"];

/// The text is not the URL of a queue.
#[derive(Debug, thiserror::Error)]
#[error("not the URL of an SQS queue")]
pub struct NotAQueue;

/// A queue. Clones are cheap.
#[derive(Clone)]
pub struct SqsQueue {
    client: SesClient,
    url: String,
    endpoint: Url,
    /// `None` if the URL does not name it: then it is the client's own.
    region: Option<String>,
}

impl fmt::Debug for SqsQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsQueue").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A message of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Received {
    /// SQS's own id for it.
    #[serde(rename = "MessageId", default)]
    pub id: String,
    /// The handle for deleting it.
    #[serde(rename = "ReceiptHandle")]
    pub receipt: String,
    /// Content of the message.
    #[serde(rename = "Body", default)]
    pub body: String,
}

#[derive(Deserialize)]
struct ReceiveAnswer {
    #[serde(rename = "Messages")]
    messages: Option<Vec<Received>>,
}

#[derive(Deserialize)]
struct DeleteAnswer {
    #[serde(rename = "Failed")]
    failed: Option<Vec<DeleteFailure>>,
}

#[derive(Deserialize)]
struct DeleteFailure {
    #[serde(rename = "Id")]
    id: String,
}

impl SqsQueue {
    /// The queue with this URL, asked with the client's credentials at the URL's own host.
    pub fn new(client: &SesClient, url: &str) -> Result<Self, NotAQueue> {
        let endpoint = Url::parse(url).and_then(|url| url.join("/")).map_err(|_| NotAQueue)?;
        let host = endpoint.host_str().ok_or(NotAQueue)?;
        let region = region_of(host).map(str::to_owned);
        Ok(Self { client: client.clone(), url: url.to_owned(), endpoint, region })
    }

    /// Receives up to `max` messages, which may be none; waits for the first one for a while.
    pub async fn receive(&self, max: usize) -> Result<Vec<Received>, CallError> {
        let request = json!({
            "QueueUrl": self.url,
            "MaxNumberOfMessages": max.clamp(1, MAX_MESSAGES),
            "WaitTimeSeconds": WAIT_SECONDS,
        });
        let timeout = Duration::from_secs(u64::from(WAIT_SECONDS)) + GRACE;
        let answer: ReceiveAnswer =
            self.ask("AmazonSQS.ReceiveMessage", &request, Some(timeout)).await?;
        Ok(answer.messages.unwrap_or_default())
    }

    /// Deletes messages by their receipts; the receipts whose messages are still there, in part
    /// or as a whole.
    pub async fn delete<'a>(&self, receipts: &[&'a str]) -> Result<Vec<&'a str>, CallError> {
        let mut failed = Vec::new();
        for receipts in receipts.chunks(MAX_MESSAGES) {
            let entries: Vec<_> = receipts
                .iter()
                .enumerate()
                .map(
                    |(index, receipt)| json!({ "Id": index.to_string(), "ReceiptHandle": receipt }),
                )
                .collect();
            let request = json!({ "QueueUrl": self.url, "Entries": entries });
            let answer: DeleteAnswer =
                self.ask("AmazonSQS.DeleteMessageBatch", &request, None).await?;
            let indexes = answer.failed.unwrap_or_default();
            let indexes = indexes.iter().filter_map(|failure| failure.id.parse::<usize>().ok());
            failed.extend(indexes.filter_map(|index| receipts.get(index).copied()));
        }
        Ok(failed)
    }

    /// All of its attributes by name, from the endpoint at which its messages are received: its
    /// region and host need not be the client's.
    pub async fn attributes(&self) -> Result<BTreeMap<String, String>, CallError> {
        let request = json!({ "QueueUrl": self.url, "AttributeNames": ["All"] });
        Ok(self.ask::<Attributes>("AmazonSQS.GetQueueAttributes", &request, None).await?.attributes)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        target: &'static str,
        request: &Value,
        timeout: Option<Duration>,
    ) -> Result<T, CallError> {
        let own = self.client.inner.transport.options();
        let region = self.region.as_deref().unwrap_or(own.region);
        let options = CallOptions { region, timeout, max_answer_bytes: MAX_ANSWER_BYTES };
        read(&self.client.call_sqs(options, &self.endpoint, target, request).await?)
    }
}

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

impl SesClient {
    /// The URL of the queue of this name in the client's region; `None` if there is none.
    pub async fn queue_url(&self, name: &str) -> Result<Option<String>, CallError> {
        let reply = self.ask_sqs("AmazonSQS.GetQueueUrl", &json!({ "QueueName": name })).await?;
        Ok(CallError::found(read::<QueueUrl>(&reply), &NOT_FOUND)?.map(|found| found.url))
    }

    /// Creates a queue in the client's region; its URL.
    pub async fn create_queue(
        &self,
        name: &str,
        attributes: &BTreeMap<&str, String>,
    ) -> Result<String, CallError> {
        let request = json!({ "QueueName": name, "Attributes": attributes });
        Ok(read::<QueueUrl>(&self.ask_sqs("AmazonSQS.CreateQueue", &request).await?)?.url)
    }

    /// All of a queue's attributes by name (SQS API reference, `GetQueueAttributes`).
    pub async fn queue_attributes(&self, url: &str) -> Result<BTreeMap<String, String>, CallError> {
        let request = json!({ "QueueUrl": url, "AttributeNames": ["All"] });
        Ok(read::<Attributes>(&self.ask_sqs("AmazonSQS.GetQueueAttributes", &request).await?)?
            .attributes)
    }

    /// Sets some of a queue's attributes.
    pub async fn set_queue_attributes(
        &self,
        url: &str,
        attributes: &BTreeMap<&str, String>,
    ) -> Result<(), CallError> {
        let request = json!({ "QueueUrl": url, "Attributes": attributes });
        accepted(&self.ask_sqs("AmazonSQS.SetQueueAttributes", &request).await?)
    }

    async fn ask_sqs(&self, target: &'static str, request: &Value) -> Result<Reply, CallError> {
        let options = self.inner.transport.options();
        let base = self.inner.endpoints.of("sqs", options.region);
        let url = Url::parse(&format!("{base}/"))
            .map_err(|error| CallError::Unreachable(error.to_string()))?;
        self.call_sqs(options, &url, target, request).await
    }

    async fn call_sqs(
        &self,
        options: CallOptions<'_>,
        url: &Url,
        target: &'static str,
        request: &Value,
    ) -> Result<Reply, CallError> {
        let call = Call {
            service: "sqs",
            method: Method::POST,
            url,
            headers: &[CONTENT_TYPE, ("x-amz-target", target)],
            body: Bytes::from(request.to_string()).into(),
        };
        Ok(self.inner.transport.call_on(options, &call).await?)
    }
}

/// The region in the name of one of AWS's own hosts ("Amazon SQS endpoints and quotas"): also of
/// the older form, of FIPS and dual-stack endpoints and of those within a private network.
fn region_of(host: &str) -> Option<&str> {
    let name = AWS_SUFFIXES.iter().find_map(|suffix| host.strip_suffix(suffix))?;
    let name = name.strip_suffix(".vpce").unwrap_or(name);
    if let Some(region) = name.strip_suffix(".queue") {
        return Some(region);
    }
    let (service, region) = name.rsplit_once('.')?;
    let service = service.rsplit('.').next().unwrap_or_default();
    matches!(service, "sqs" | "sqs-fips").then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::{Answer, Server, client};

    fn queue(server: &Server) -> SqsQueue {
        let ses = client(&server.url());
        SqsQueue::new(&ses, &format!("{}/123456789012/pillarbox", server.url())).unwrap()
    }

    #[tokio::test]
    async fn a_receive_is_signed_for_sqs_and_its_messages_are_read() {
        let body = r#"{"Messages":[{"Attributes":{"SenderId":"x"},"Body":"{\"a\":1}","MD5OfBody":"",
        "MessageId":"m-1","ReceiptHandle":"r-1"}]}"#;
        let server = Server::start(Answer::json(200, body)).await;
        let received = queue(&server).receive(10).await.unwrap();
        let expected =
            Received { id: "m-1".into(), receipt: "r-1".into(), body: r#"{"a":1}"#.into() };
        assert_eq!(received, [expected]);
        let request = server.requests().remove(0);
        assert!(request.head.starts_with("POST / HTTP/1.1\r\n"), "{}", request.head);
        assert_eq!(request.header("x-amz-target"), Some("AmazonSQS.ReceiveMessage"));
        assert_eq!(request.header("content-type"), Some("application/x-amz-json-1.0"));
        assert!(request.header("authorization").unwrap().contains("/eu-west-1/sqs/aws4_request"));
        let sent: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let url = format!("{}/123456789012/pillarbox", server.url());
        let expected = serde_json::json!({
            "QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20,
        });
        assert_eq!(sent, expected);
    }

    #[tokio::test]
    async fn no_messages_is_an_answer() {
        for body in ["{}", r#"{"Messages":null}"#, r#"{"Messages":[]}"#] {
            let server = Server::start(Answer::json(200, body)).await;
            assert_eq!(queue(&server).receive(10).await.unwrap(), []);
        }
    }

    #[tokio::test]
    async fn a_delete_goes_in_tens_and_names_what_is_still_there() {
        let body = r#"{"Successful":[{"Id":"0"}],"Failed":[{"Id":"1","SenderFault":true,
        "Code":"ReceiptHandleIsInvalid"}]}"#;
        let server = Server::start(Answer::json(200, body)).await;
        let receipts: Vec<String> = (0..12).map(|number| format!("r-{number}")).collect();
        let receipts: Vec<&str> = receipts.iter().map(String::as_str).collect();
        assert_eq!(queue(&server).delete(&receipts).await.unwrap(), ["r-1", "r-11"]);
        let requests = server.requests();
        assert_eq!(requests.len(), 2);
        let entries = |index: usize| {
            let body: serde_json::Value = serde_json::from_slice(&requests[index].body).unwrap();
            body["Entries"].as_array().unwrap().len()
        };
        assert_eq!((entries(0), entries(1)), (10, 2));
    }

    #[tokio::test]
    async fn calls_wait_for_no_turn() {
        let server = Server::start(Answer::json(200, "{}")).await;
        let queue = queue(&server);
        let start = tokio::time::Instant::now();
        for _ in 0..5 {
            queue.receive(10).await.unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_refusal_has_its_name() {
        let refusal =
            r#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"No such queue."}"#;
        let server = Server::start(Answer::json(400, refusal)).await;
        let error = queue(&server).receive(10).await.unwrap_err();
        let CallError::Refused { name, .. } = &error else { panic!("{error:?}") };
        assert_eq!(name.as_deref(), Some("QueueDoesNotExist"));
    }

    #[test]
    fn the_region_is_the_queues_own_where_its_url_is_awss() {
        let regions = [
            ("sqs.eu-west-1.amazonaws.com", Some("eu-west-1")),
            ("sqs.cn-north-1.amazonaws.com.cn", Some("cn-north-1")),
            ("us-west-2.queue.amazonaws.com", Some("us-west-2")),
            ("sqs-fips.us-east-1.amazonaws.com", Some("us-east-1")),
            ("sqs.eu-central-1.api.aws", Some("eu-central-1")),
            ("vpce-0a1b.sqs.eu-west-1.vpce.amazonaws.com", Some("eu-west-1")),
            ("127.0.0.1", None),
            ("sqs.eu-west-1.amazonaws.com.evil.example", None),
            ("localhost", None),
            ("email.eu-west-1.amazonaws.com", None),
        ];
        for (host, region) in regions {
            assert_eq!(region_of(host), region, "{host}");
        }
    }

    #[tokio::test]
    async fn a_queue_is_asked_about_at_its_own_host() {
        let answer = Answer::json(200, r#"{"Attributes":{"ApproximateNumberOfMessages":"7"}}"#);
        let server = Server::start(answer).await;
        let elsewhere = client("http://127.0.0.1:1");
        let queue = SqsQueue::new(&elsewhere, &format!("{}/123456789012/q", server.url())).unwrap();
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
