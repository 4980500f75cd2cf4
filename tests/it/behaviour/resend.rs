//! The API in Resend's shape, over HTTP, as its clients use it.

use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

use pillarbox_simulator::Options;

use crate::kit::{Server, Site, answer, message};

mod batch;
mod errors;
mod listener;
mod lists;
mod sending;
mod webhooks;

/// A site with the listener.
pub(super) const LISTENER: &str = "[resend_api]\nlisten = \"127.0.0.1:0\"";

/// The service with a client of its API in Resend's shape.
struct Resend {
    server: Server,
    base: String,
}

impl Resend {
    async fn site() -> Site {
        Site::with(LISTENER, Options::default()).await
    }

    fn start(site: &Site) -> Self {
        let server = site.start();
        let base = format!("http://{}", server.process.resend_listening());
        Self { server, base }
    }

    fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.base);
        self.server.client.request(method.parse().unwrap(), url).bearer_auth(&self.server.key)
    }

    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        let request = self.request("POST", path).header("content-type", "application/json");
        request.body(body.to_string())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = answer(self.request("GET", path).send().await.unwrap()).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Sends an email that must be accepted; gives its id.
    async fn send(&self, body: &Value) -> String {
        let (status, body) = answer(self.post("/emails", body).send().await.unwrap()).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    async fn refused(&self, request: RequestBuilder) -> (u16, String, String) {
        refusal(request.send().await.unwrap()).await
    }
}

/// A refusal's status, name and message, after the shape of the response has been checked.
async fn refusal(response: Response) -> (u16, String, String) {
    assert!(response.headers().contains_key("x-request-id"));
    assert_eq!(response.headers()["content-type"], "application/json");
    let (status, body) = answer(response).await;
    assert_eq!(body["statusCode"], status.as_u16(), "{body}");
    assert_eq!(body.as_object().unwrap().len(), 3, "{body}");
    let text = |member: &str| body[member].as_str().unwrap().to_owned();
    (status.as_u16(), text("name"), text("message"))
}

/// An email with these members besides those that are required.
fn email_with(more: Value) -> Value {
    let mut email = message();
    let Value::Object(more) = more else { panic!("members: {more}") };
    email.as_object_mut().unwrap().extend(more);
    email
}

/// Two recipients and one of each other field.
fn full_email() -> Value {
    email_with(json!({
        "to": ["Bob <bob@example.org>", "eve@example.org"],
        "cc": "carol@example.org",
        "bcc": ["dave@example.org"],
        "reply_to": ["desk@example.com", "Ann <ann@example.com>"],
        "html": "<p>How are you?</p><img src=\"cid:logo\">",
        "headers": {
            "X-Order": "1815",
            "List-Unsubscribe": "<https://example.com/u>",
            "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
            "In-Reply-To": "<1@example.com>",
            "References": "<0@example.com> <1@example.com>",
        },
        "tags": [{ "name": "kind", "value": "receipt" }],
        "attachments": [
            { "filename": "a.txt", "content": "SGVsbG8=" },
            { "filename": "b.bin", "content": [0, 127, 255] },
            { "filename": "logo.png", "content": "AAAA", "content_type": "image/png",
              "content_id": "logo" },
        ],
    }))
}
