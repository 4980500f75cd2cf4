//! A running service with an HTTP client, and the requests and responses of its API.
//!
//! `Site` starts the service. This must not know how it was configured.

use std::time::{Duration, Instant};

use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use super::process::Process;
use super::{PATIENCE, http_client};

/// Exit code of a service whose stop lost messages.
const LOST_MESSAGES: i32 = 71;

/// The service as a process, and a client of it.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) base: String,
    /// Address of the operator listener.
    pub(crate) operator: String,
    pub(crate) key: String,
    pub(crate) client: reqwest::Client,
}

impl Server {
    /// Waits until the service listens.
    pub(crate) fn new(process: Process, key: &str) -> Self {
        Self {
            base: format!("http://{}", process.listening()),
            operator: format!("http://{}", process.operator_listening()),
            process,
            key: key.to_owned(),
            client: http_client(),
        }
    }

    /// A POST of JSON to `/emails` with the site's key.
    pub(crate) fn post(&self, body: &Value) -> RequestBuilder {
        self.post_bytes(body.to_string())
    }

    /// A POST of these bytes to `/emails` with the site's key.
    pub(crate) fn post_bytes(&self, body: impl Into<reqwest::Body>) -> RequestBuilder {
        let request = self.client.post(format!("{}/emails", self.base)).bearer_auth(&self.key);
        request.header("content-type", "application/json").body(body)
    }

    /// A GET with the site's key.
    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.base)).bearer_auth(&self.key)
    }

    /// A GET on the operator listener.
    pub(crate) async fn operator(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.operator)).send().await.unwrap()
    }

    /// Sends a message that must be accepted; gives its id.
    pub(crate) async fn send(&self, body: &Value) -> String {
        let response = self.post(body).send().await.unwrap();
        let (status, body) = answer(response).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    /// Reads a record that must be there.
    pub(crate) async fn record(&self, id: &str) -> Value {
        let (status, body) = answer(self.get(&format!("/emails/{id}")).send().await.unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }

    /// Waits until a message has this status.
    pub(crate) async fn wait_for(&self, id: &str, status: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let record = self.record(id).await;
            if record["status"] == status {
                return record;
            }
            assert!(Instant::now() < end, "still no {status}: {record}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until AWS has taken the credentials. Nodes that start ask it one after the other.
    pub(crate) async fn ready(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (status, document) = answer(self.operator("/readyz").await).await;
            if status == StatusCode::OK {
                return;
            }
            assert!(Instant::now() < end, "it does not become ready: {document}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Sends the process a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Ends the process as a crash does; gives all that it logged.
    pub(crate) fn kill(self) -> String {
        self.process.kill()
    }

    /// Ends the process in order; gives all that it logged. The simulator goes on meanwhile. The
    /// exit code and the last words must agree on whether messages were lost.
    pub(crate) async fn terminate(self) -> String {
        self.signal("TERM");
        let ended = tokio::task::spawn_blocking(move || self.process.wait());
        let (status, log) = ended.await.unwrap();
        let lost_nothing = log.contains("stopped bodies_lost=0");
        let expected = if lost_nothing { 0 } else { LOST_MESSAGES };
        assert_eq!(status.code(), Some(expected), "{status}: {log}");
        log
    }
}

/// A message that is accepted.
pub(crate) fn message() -> Value {
    json!({
        "from": "Ann <ann@example.com>",
        "to": ["bob@example.org"],
        "subject": "Hello",
        "text": "How are you?",
    })
}

/// A message with one field changed; `null` takes the field out.
pub(crate) fn message_with(field: &str, value: Value) -> Value {
    let mut message = message();
    let fields = message.as_object_mut().unwrap();
    fields.insert(field.to_owned(), value);
    fields.retain(|_, value| !value.is_null());
    message
}

/// A response's status and JSON body.
pub(crate) async fn answer(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text:?}"));
    (status, body)
}

/// A refusal's status, code and field, after the shape of the response has been checked.
pub(crate) async fn refusal(response: Response) -> (u16, String, Option<String>) {
    assert!(response.headers().contains_key("x-request-id"));
    assert_eq!(response.headers()["content-type"], "application/json");
    let (status, body) = answer(response).await;
    let error = &body["error"];
    assert!(!error["message"].as_str().unwrap().is_empty(), "{body}");
    let field = error.get("field").map(|field| field.as_str().unwrap().to_owned());
    let members = if field.is_some() { 3 } else { 2 };
    assert_eq!(error.as_object().unwrap().len(), members, "{body}");
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    (status.as_u16(), error["code"].as_str().unwrap().to_owned(), field)
}
