//! Errors in Resend's shape, also of requests that never reach the API.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{Resend, email_with, refusal};
use crate::kit::{answer, message, message_with};

#[tokio::test]
async fn keys_paths_and_methods_have_resends_names() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let client = &resend.server.client;
    let emails = format!("{}/emails", resend.base);
    let missing = client.get(&emails).send().await.unwrap();
    assert_eq!(missing.headers()["www-authenticate"], "Bearer");
    let (status, name, _) = refusal(missing).await;
    assert_eq!((status, name.as_str()), (401, "missing_api_key"));
    let wrong = client.get(&emails).bearer_auth("re_123").send().await.unwrap();
    assert!(!wrong.headers().contains_key("www-authenticate"));
    let (status, name, _) = refusal(wrong).await;
    assert_eq!((status, name.as_str()), (403, "invalid_api_key"));
    for (method, path, status, name) in [
        ("GET", "/suppressions", 404, "not_found"),
        ("GET", "/emails/1/attachments", 404, "not_found"),
        ("GET", "/emails/1/attachments/2", 404, "not_found"),
        ("GET", "/emails/1", 404, "not_found"),
        ("POST", "/emails/1/share", 404, "not_found"),
        ("GET", "/emails/", 404, "not_found"),
        ("GET", "/emailsx", 404, "not_found"),
        ("PATCH", "/emails/1", 405, "method_not_allowed"),
        ("PUT", "/emails", 405, "method_not_allowed"),
        ("GET", "/emails/batch", 405, "method_not_allowed"),
    ] {
        let refused = resend.refused(resend.request(method, path)).await;
        assert_eq!((refused.0, refused.1.as_str()), (status, name), "{method} {path}");
    }
    let (_, _, message) = resend.refused(resend.request("GET", "/emails/1/attachments")).await;
    assert!(message.contains("attachments are not kept"), "{message}");
}

#[tokio::test]
async fn a_key_that_may_not_is_a_restricted_one() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let key = |arguments: &[&str]| {
        let command = [&["key", "add", "--org", "acme", "--json"], arguments].concat();
        let added: Value = serde_json::from_slice(&site.done(&command).stdout).unwrap();
        added["key"].as_str().unwrap().to_owned()
    };
    let reader = key(&["--scope", "read"]);
    let elsewhere = key(&["--domain", "other.example"]);
    for key in [reader, elsewhere] {
        let url = format!("{}/emails", resend.base);
        let request = resend.server.client.post(url).bearer_auth(key);
        let request = request.header("content-type", "application/json");
        let (status, name, _) = resend.refused(request.body(message().to_string())).await;
        assert_eq!((status, name.as_str()), (401, "restricted_api_key"));
    }
}

#[tokio::test]
async fn fields_are_refused_by_name() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    site.done(&["suppression", "add", "--org", "acme", "gone@example.org"]);
    for (body, status, name, words) in [
        (message_with("from", Value::Null), 422, "missing_required_field", "from: is required"),
        (message_with("to", Value::Null), 422, "missing_required_field", "to: is required"),
        (message_with("text", Value::Null), 422, "missing_required_field", "html and text"),
        (message_with("from", json!("ann")), 422, "invalid_from_address", "from: "),
        (message_with("from", json!("a@other.example")), 403, "validation_error", "other.example"),
        (message_with("to", json!("gone@example.org")), 422, "validation_error", "suppressed"),
        (message_with("to", json!(7)), 422, "validation_error", "a string or an array of strings"),
        (
            email_with(json!({ "scheduled_at": "in 1 hour" })),
            422,
            "validation_error",
            "scheduled_at",
        ),
        (email_with(json!({ "template": { "id": "x" } })), 422, "validation_error", "template"),
        (email_with(json!({ "react": {} })), 422, "validation_error", "react"),
        (email_with(json!({ "metadata": {} })), 422, "validation_error", "metadata: unknown field"),
        (
            email_with(json!({ "tags": [{ "name": "a b", "value": "c" }] })),
            422,
            "validation_error",
            "tags.a b",
        ),
        (
            email_with(
                json!({ "tags": [{ "name": "a", "value": "c" }, { "name": "a", "value": "d" }] }),
            ),
            422,
            "validation_error",
            "tags[1]",
        ),
        (
            email_with(json!({ "headers": { "Sender": "a@b.c" } })),
            422,
            "validation_error",
            "headers.Sender",
        ),
        (
            email_with(json!({ "headers": { "Reply-To": "a@b.c" } })),
            422,
            "validation_error",
            "headers.Reply-To",
        ),
        (
            email_with(json!({ "headers": { "Content-Type": "x" } })),
            422,
            "validation_error",
            "headers.Content-Type",
        ),
        (
            email_with(json!({ "headers": { "X-SES-A": "x" } })),
            422,
            "validation_error",
            "headers.X-SES-A",
        ),
        (
            email_with(json!({ "attachments": [{ "filename": "a.txt" }] })),
            422,
            "missing_required_field",
            "attachments[0].content",
        ),
        (
            email_with(json!({ "attachments": [{ "filename": "a.txt", "path": "https://x" }] })),
            422,
            "invalid_attachment",
            "attachments[0].path",
        ),
        (
            email_with(json!({ "attachments": [{ "filename": "a.exe", "content": [1] }] })),
            422,
            "invalid_attachment",
            "attachments[0].filename",
        ),
        (
            email_with(json!({ "attachments": [{ "filename": "a.txt", "content": [1, 256] }] })),
            422,
            "invalid_attachment",
            "list of bytes",
        ),
    ] {
        let refused = resend.refused(resend.post("/emails", &body)).await;
        assert_eq!((refused.0, refused.1.as_str()), (status, name), "{body} {refused:?}");
        assert!(refused.2.contains(words), "{refused:?}");
    }
    let long = "k".repeat(257);
    let refused =
        resend.refused(resend.post("/emails", &message()).header("Idempotency-Key", long)).await;
    assert_eq!((refused.0, refused.1.as_str()), (400, "invalid_idempotency_key"));
    let refused = resend.refused(resend.request("POST", "/emails").body("{}")).await;
    assert_eq!((refused.0, refused.1.as_str()), (415, "validation_error"));
    let refused = resend.refused(resend.post("/emails", &json!([]))).await;
    assert_eq!((refused.0, refused.1.as_str()), (400, "validation_error"));
}

#[tokio::test]
async fn limits_and_pauses_say_when_to_come_back() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    site.done(&["org", "limit", "acme", "--per-day", "1"]);
    resend.send(&message()).await;
    let refused = resend.post("/emails", &message()).send().await.unwrap();
    assert!(refused.headers().contains_key("retry-after"));
    let (status, name, _) = refusal(refused).await;
    assert_eq!((status, name.as_str()), (429, "daily_quota_exceeded"));
    site.done(&["org", "pause", "acme", "--refuse"]);
    let refused = resend.post("/emails", &message()).send().await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "60");
    let (status, name, _) = refusal(refused).await;
    assert_eq!((status, name.as_str()), (503, "application_error"));
}

#[tokio::test]
async fn what_never_comes_to_the_api_is_refused_in_the_same_shape() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let address = resend.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["statusCode"], &body["name"]), (&json!(400), &json!("validation_error")));
    let large = resend.post("/emails", &json!({ "text": "x".repeat(11 << 20) }));
    let (status, name, _) = resend.refused(large).await;
    assert_eq!((status, name.as_str()), (413, "validation_error"));
    // The main listener's answers are as they were.
    let own = resend.server.client.get(format!("{}/emails", resend.server.base));
    let (status, body) = answer(own.send().await.unwrap()).await;
    assert_eq!((status.as_u16(), &body["error"]["code"]), (401, &json!("Unauthorized")));
}
