//! Queues by name: finding, creating and setting them up.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Method;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::ses::SesClient;
use crate::ses::call::{CallError, read};
use crate::ses::sqs::CONTENT_TYPE;
use crate::ses::transport::{Call, Reply};

#[derive(Deserialize)]
struct Attributes {
    #[serde(rename = "Attributes", default)]
    attributes: BTreeMap<String, String>,
}

impl SesClient {
    /// All of a queue's attributes by name (SQS API reference, `GetQueueAttributes`).
    pub async fn queue_attributes(&self, url: &str) -> Result<BTreeMap<String, String>, CallError> {
        const TARGET: (&str, &str) = ("x-amz-target", "AmazonSQS.GetQueueAttributes");
        let request = json!({ "QueueUrl": url, "AttributeNames": ["All"] });
        Ok(read::<Attributes>(&self.ask_sqs(TARGET, &request).await?)?.attributes)
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
