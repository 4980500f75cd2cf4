//! SQS: receiving messages from a queue and deleting them, in its JSON protocol.
//!
//! Knows nothing of what is in the messages. These calls do not count towards SES's limits, so
//! they wait for no turn.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use reqwest::Url;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ses::SesClient;
use crate::ses::call::{CallError, read};
use crate::ses::endpoint::AWS_SUFFIXES;
use crate::ses::transport::{Call, Terms};

mod admin;

/// The most messages in one call (SQS quotas: "batched message quota").
pub const MAX_MESSAGES: usize = 10;
/// How long SQS waits for messages before it answers with none: its longest.
const WAIT_SECONDS: u8 = 20;
/// What a call that waits may take beyond that.
const GRACE: Duration = Duration::from_secs(10);
/// The longest answer that is read. Ten documents of SES have under 200 KiB; a single message of
/// SQS's largest size, escaped, fits in it.
const MAX_ANSWER_BYTES: usize = 4 << 20;

const CONTENT_TYPE: (&str, &str) = ("content-type", "application/x-amz-json-1.0");
const RECEIVE: (&str, &str) = ("x-amz-target", "AmazonSQS.ReceiveMessage");
const DELETE_BATCH: (&str, &str) = ("x-amz-target", "AmazonSQS.DeleteMessageBatch");

/// The text is not the URL of a queue.
#[derive(Debug, thiserror::Error)]
#[error("not the URL of an SQS queue")]
pub struct NotAQueue;

/// A queue. Clones are cheap.
#[derive(Clone)]
pub struct Queue {
    client: SesClient,
    url: String,
    endpoint: Url,
    /// `None` where the URL does not say: then it is the client's own.
    region: Option<String>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A message of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Received {
    /// SQS's own id for it.
    #[serde(rename = "MessageId", default)]
    pub id: String,
    /// What it is deleted by.
    #[serde(rename = "ReceiptHandle")]
    pub receipt: String,
    /// Its content.
    #[serde(rename = "Body", default)]
    pub body: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveRequest<'a> {
    queue_url: &'a str,
    max_number_of_messages: usize,
    wait_time_seconds: u8,
}

#[derive(Deserialize)]
struct ReceiveAnswer {
    #[serde(rename = "Messages")]
    messages: Option<Vec<Received>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteRequest<'a> {
    queue_url: &'a str,
    entries: Vec<DeleteEntry<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteEntry<'a> {
    id: String,
    receipt_handle: &'a str,
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

impl Queue {
    /// The queue with this URL, asked with the client's credentials at the URL's own host.
    pub fn new(client: &SesClient, url: &str) -> Result<Self, NotAQueue> {
        let endpoint = Url::parse(url).and_then(|url| url.join("/")).map_err(|_| NotAQueue)?;
        let host = endpoint.host_str().ok_or(NotAQueue)?;
        let region = region_of(host).map(str::to_owned);
        Ok(Self { client: client.clone(), url: url.to_owned(), endpoint, region })
    }

    /// Receives up to `max` messages, which may be none; waits for the first one for a while.
    pub async fn receive(&self, max: usize) -> Result<Vec<Received>, CallError> {
        let request = ReceiveRequest {
            queue_url: &self.url,
            max_number_of_messages: max.clamp(1, MAX_MESSAGES),
            wait_time_seconds: WAIT_SECONDS,
        };
        let timeout = Duration::from_secs(u64::from(WAIT_SECONDS)) + GRACE;
        let answer: ReceiveAnswer = self.ask(RECEIVE, &request, Some(timeout)).await?;
        Ok(answer.messages.unwrap_or_default())
    }

    /// Deletes messages by their receipts; the receipts whose messages are still there, in part
    /// or as a whole.
    pub async fn delete<'a>(&self, receipts: &[&'a str]) -> Result<Vec<&'a str>, CallError> {
        let mut failed = Vec::new();
        for receipts in receipts.chunks(MAX_MESSAGES) {
            let entries = receipts
                .iter()
                .enumerate()
                .map(|(index, &receipt_handle)| DeleteEntry {
                    id: index.to_string(),
                    receipt_handle,
                })
                .collect();
            let request = DeleteRequest { queue_url: &self.url, entries };
            let answer: DeleteAnswer = self.ask(DELETE_BATCH, &request, None).await?;
            let indexes = answer.failed.unwrap_or_default();
            let indexes = indexes.iter().filter_map(|failure| failure.id.parse::<usize>().ok());
            failed.extend(indexes.filter_map(|index| receipts.get(index).copied()));
        }
        Ok(failed)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        target: (&'static str, &'static str),
        request: &impl Serialize,
        timeout: Option<Duration>,
    ) -> Result<T, CallError> {
        let transport = &self.client.inner.transport;
        let own = transport.terms();
        let region = self.region.as_deref().unwrap_or(own.region);
        let terms = Terms { region, timeout, max_answer_bytes: MAX_ANSWER_BYTES };
        let body = serde_json::to_vec(request).expect("strings and lists become JSON");
        let call = Call {
            service: "sqs",
            method: Method::POST,
            url: &self.endpoint,
            headers: &[CONTENT_TYPE, target],
            body: Bytes::from(body),
        };
        read(&transport.call_on(terms, &call).await?)
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
mod tests;
