//! Every refusal of the contract, and the order in which they are checked.

use std::time::Duration;

use pillarbox_simulator::Options;
use reqwest::Method;
use serde_json::{Value, json};

use crate::kit::{Server, Site, answer, message, message_with, refusal};

/// Posts a message; gives the refusal's status, code and field.
async fn refused(server: &Server, body: &Value) -> (u16, String, Option<String>) {
    refusal(server.post(body).send().await.unwrap()).await
}

fn expected(status: u16, code: &str, field: Option<&str>) -> (u16, String, Option<String>) {
    (status, code.to_owned(), field.map(str::to_owned))
}

fn invalid(field: &str) -> (u16, String, Option<String>) {
    expected(422, "ValidationError", Some(field))
}

/// A file that is taken.
fn file() -> Value {
    json!({ "filename": "first.pdf", "content": "QUJD" })
}

/// Two files, the second of which has a member changed.
fn file_with(member: &str, value: Value) -> Value {
    let (mut first, mut second) = (file(), file());
    first["content_id"] = json!("first");
    second[member] = value;
    json!([first, second])
}

#[tokio::test]
async fn a_key_that_opens_nothing_gets_one_and_the_same_answer() {
    let site = Site::new().await;
    let server = site.start();
    let output = site.done(&["key", "add", "--org", "acme", "--json"]);
    let revoked: Value = serde_json::from_slice(&output.stdout).unwrap();
    site.done(&["key", "revoke", &revoked["id"].to_string()]);
    let unknown = format!("Bearer pb_{}", "A".repeat(43));
    let revoked = format!("Bearer {}", revoked["key"].as_str().unwrap());
    let basic = format!("Basic {}", server.key);
    let mut answers = Vec::new();
    for header in
        [None, Some("Bearer"), Some("Bearer x"), Some(&*unknown), Some(&*revoked), Some(&*basic)]
    {
        for path in ["/emails", "/emails/1", "/nowhere"] {
            let mut request = server.client.get(format!("{}{path}", server.base));
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            let response = request.send().await.unwrap();
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            answers.push(answer(response).await);
        }
    }
    assert_eq!(answers[0].0, 401);
    assert_eq!(answers[0].1["error"]["code"], "Unauthorized");
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_told_apart() {
    let site = Site::new().await;
    let server = site.start();
    for path in ["/", "/email", "/emails/", "/emails/1/", "/emails/1/2", "/emailsx", "/EMAILS"] {
        let got = refusal(server.get(path).send().await.unwrap()).await;
        assert_eq!(got, expected(404, "NotFound", None), "{path}");
        let (_, answered) = answer(server.get(path).send().await.unwrap()).await;
        let message = answered["error"]["message"].as_str().unwrap();
        for there in [
            "/emails/batch",
            "/emails/{id}/cancel",
            "/emails/{id}/events",
            "/emails/{id}/timeline",
            "/events",
            "/openapi.json",
        ] {
            assert!(message.contains(there), "{path}: {message}");
        }
    }
    let cases = [
        (Method::DELETE, "/emails", "GET, POST"),
        (Method::PUT, "/emails", "GET, POST"),
        (Method::POST, "/emails/1", "GET"),
        (Method::DELETE, "/emails/1", "GET"),
        (Method::POST, "/emails/1/events", "GET"),
        (Method::POST, "/emails/1/timeline", "GET"),
        (Method::GET, "/emails/1/cancel", "POST"),
        (Method::GET, "/emails/batch", "POST"),
        (Method::POST, "/events", "GET"),
        (Method::POST, "/openapi.json", "GET"),
    ];
    for (method, path, allow) in cases {
        let request = server.client.request(method, format!("{}{path}", server.base));
        // No content type: 405 comes before 415.
        let response = request.bearer_auth(&server.key).body("{").send().await.unwrap();
        assert_eq!(response.headers()["allow"], allow);
        assert_eq!(refusal(response).await, expected(405, "MethodNotAllowed", None), "{path}");
    }
}

#[tokio::test]
async fn only_json_in_utf_8_is_taken() {
    let site = Site::new().await;
    let server = site.start();
    let body = message().to_string();
    for (content_type, status) in [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON;charset=\"UTF-8\"", 200),
        // RFC 9110, section 5.6.6: a semicolon may stand before nothing.
        ("application/json;", 200),
        ("application/json ; charset=utf-8; ", 200),
        ("application/json; charset=latin1", 415),
        ("application/json; version=2", 415),
        ("application/problem+json", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ] {
        let request = server.client.post(format!("{}/emails", server.base));
        let request = request.bearer_auth(&server.key).header("content-type", content_type);
        let response = request.body(body.clone()).send().await.unwrap();
        assert_eq!(response.status(), status, "{content_type}");
        if status == 415 {
            assert_eq!(refusal(response).await, expected(415, "UnsupportedMediaType", None));
        }
    }
    let request = server.client.post(format!("{}/emails", server.base));
    let response = request.bearer_auth(&server.key).body("{").send().await.unwrap();
    assert_eq!(refusal(response).await.0, 415, "415 comes before 400");
}

/// Each request has all the faults that are checked later.
#[tokio::test]
async fn of_several_faults_the_first_in_the_order_of_checks_is_the_answer() {
    let site = Site::with("max_request_bytes = 10000", Options::default()).await;
    let server = site.start();
    let request = |method: Method, path: &str, content_type: &str| {
        let request = server.client.request(method, format!("{}{path}", server.base));
        request.header("content-type", content_type).body("{".repeat(20_000))
    };
    let post = |content_type: &str| request(Method::POST, "/emails", content_type);
    for (request, expected) in [
        (post("text/plain"), (401, "Unauthorized")),
        (request(Method::PUT, "/nowhere", "text/plain"), (401, "Unauthorized")),
        (
            request(Method::PUT, "/nowhere", "text/plain").bearer_auth(&server.key),
            (404, "NotFound"),
        ),
        (
            request(Method::PUT, "/emails", "text/plain").bearer_auth(&server.key),
            (405, "MethodNotAllowed"),
        ),
        (post("text/plain").bearer_auth(&server.key), (415, "UnsupportedMediaType")),
        (post("application/json").bearer_auth(&server.key), (413, "PayloadTooLarge")),
    ] {
        let (status, code, _) = refusal(request.send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), expected);
    }
}

#[tokio::test]
async fn what_is_not_one_json_object_is_refused_before_any_field() {
    let site = Site::new().await;
    let server = site.start();
    let deep = |levels: usize| {
        let inner = levels - 1;
        format!("{{\"x\":{}{}}}", "[".repeat(inner), "]".repeat(inner))
    };
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"[]".to_vec(),
        b"\"text\"".to_vec(),
        b"null".to_vec(),
        b"{} {}".to_vec(),
        b"{\"from\":1,}".to_vec(),
        b"{\"from\":\"a\",\"from\":\"b\"}".to_vec(),
        b"{\"from\":\"a\",\"fr\\u006fm\":\"b\"}".to_vec(),
        b"{\"x\":{\"y\":1,\"y\":2}}".to_vec(),
        b"{\"from\":\"\xff\"}".to_vec(),
        b"{\"from\":\"\xc0\xaf\"}".to_vec(),
        b"{\"from\":\"\\ud800\"}".to_vec(),
        b"\xef\xbb\xbf{}".to_vec(),
        b"{\"nowhere\":1".to_vec(),
        deep(33).into_bytes(),
    ];
    for body in bodies {
        let shown = String::from_utf8_lossy(&body).into_owned();
        let got = refusal(server.post_bytes(body).send().await.unwrap()).await;
        assert_eq!(got, expected(400, "InvalidJson", None), "{shown}");
    }
    let got = refusal(server.post_bytes(deep(32)).send().await.unwrap()).await;
    assert_eq!(got, invalid("x"), "32 levels are read");
}

#[tokio::test]
async fn every_field_is_held_to_its_rule() {
    let site = Site::new().await;
    let server = site.start();
    let long = "x".repeat(999);
    let cases = [
        ("from", json!(null), "from"),
        ("from", json!(1), "from"),
        ("from", json!(["ann@example.com"]), "from"),
        ("from", json!(""), "from"),
        ("from", json!("ann"), "from"),
        ("from", json!("a@example.com, b@example.com"), "from"),
        ("from", json!("Ann\r\nBcc: x@y.org <ann@example.com>"), "from"),
        ("to", json!(null), "to"),
        ("to", json!([]), "to"),
        ("to", json!("bob@example.org"), "to"),
        ("to", json!(["bob@example.org", "nobody", "x"]), "to[1]"),
        ("to", json!(["bob@example.org", null]), "to[1]"),
        ("to", json!(["a@x.org, Bob <b@x.org>"]), "to[0]"),
        ("to", json!(["b\u{f6}b@example.org"]), "to[0]"),
        ("to", json!(["bob@[127.0.0.1]"]), "to[0]"),
        ("cc", json!(["bob@example.org\r\nBcc: x@y.org"]), "cc[0]"),
        ("cc", json!({}), "cc"),
        ("bcc", json!(["bob@example.org\u{0}"]), "bcc[0]"),
        ("reply_to", json!("x\n@example.com"), "reply_to"),
        ("reply_to", json!(["x@example.com"]), "reply_to"),
        ("subject", json!(null), "subject"),
        ("subject", json!("  "), "subject"),
        ("subject", json!("a\r\nBcc: x@y.org"), "subject"),
        ("subject", json!("a\tb"), "subject"),
        ("subject", json!(long), "subject"),
        ("html", json!(1), "html"),
        ("text", json!({}), "text"),
        ("headers", json!([]), "headers"),
        ("headers", json!({"Subject": "x"}), "headers.Subject"),
        ("headers", json!({"X Y": "x"}), "headers.X Y"),
        ("headers", json!({"X-A:": "x"}), "headers.X-A:"),
        ("headers", json!({"X-\u{e9}": "x"}), "headers.X-\u{e9}"),
        ("headers", json!({"X-A": "x\r\nBcc: x@y.org"}), "headers.X-A"),
        ("headers", json!({"X-A": "\u{e9}"}), "headers.X-A"),
        ("headers", json!({"X-A": ""}), "headers.X-A"),
        ("headers", json!({"X-A": "x".repeat(996)}), "headers.X-A"),
        ("headers", json!({"X-A": "x".repeat(994)}), "headers.X-A"),
        ("headers", json!({"List-Unsubscribe": "x".repeat(981)}), "headers.List-Unsubscribe"),
        ("headers", json!({"X-A": 1}), "headers.X-A"),
        ("headers", json!({"x-ses-configuration-set": "x"}), "headers.x-ses-configuration-set"),
        ("headers", json!({"X-A": "1", "x-a": "2"}), "headers.x-a"),
        ("metadata", json!([]), "metadata"),
        ("metadata", json!("order"), "metadata"),
        ("metadata", json!({"order": 1815}), "metadata.order"),
        ("metadata", json!({"order": null}), "metadata.order"),
        ("metadata", json!({"order": ""}), "metadata.order"),
        ("metadata", json!({"order": "x".repeat(501)}), "metadata.order"),
        ("metadata", json!({"order": "a\nb"}), "metadata.order"),
        ("metadata", json!({"order": "a\u{85}b"}), "metadata.order"),
        ("metadata", json!({"": "x"}), "metadata."),
        ("metadata", json!({"order id": "x"}), "metadata.order id"),
        ("metadata", json!({"\u{e9}": "x"}), "metadata.\u{e9}"),
        ("idempotencyKey", json!(""), "idempotencyKey"),
        ("idempotencyKey", json!("\u{1f4ee}".repeat(257)), "idempotencyKey"),
        ("idempotencyKey", json!(7), "idempotencyKey"),
        ("tag", json!(1), "tag"),
        ("attachments", json!({}), "attachments"),
        ("attachments", json!(["a"]), "attachments[0]"),
        ("attachments", json!([{ "content": "QUJD" }]), "attachments[0].filename"),
        ("attachments", json!([file(), { "filename": "a.pdf" }]), "attachments[1].content"),
        ("attachments", file_with("filename", json!("a")), "attachments[1].filename"),
        ("attachments", file_with("filename", json!("a.exe")), "attachments[1].filename"),
        ("attachments", file_with("filename", json!("../a.pdf")), "attachments[1].filename"),
        ("attachments", file_with("filename", json!("a\u{0}.pdf")), "attachments[1].filename"),
        ("attachments", file_with("filename", json!("")), "attachments[1].filename"),
        ("attachments", file_with("filename", json!(1)), "attachments[1].filename"),
        ("attachments", file_with("content", json!("")), "attachments[1].content"),
        ("attachments", file_with("content", json!("QUI")), "attachments[1].content"),
        ("attachments", file_with("content", json!("QU-_")), "attachments[1].content"),
        ("attachments", file_with("content", json!("QUJD\nQUJD")), "attachments[1].content"),
        ("attachments", file_with("content", json!([65])), "attachments[1].content"),
        ("attachments", file_with("content_type", json!("pdf")), "attachments[1].content_type"),
        (
            "attachments",
            file_with("content_type", json!("a/b; c=d")),
            "attachments[1].content_type",
        ),
        ("attachments", file_with("content_id", json!("<logo>")), "attachments[1].content_id"),
        ("attachments", file_with("content_id", json!("a b")), "attachments[1].content_id"),
        ("attachments", file_with("content_id", json!("first")), "attachments[1].content_id"),
        ("attachments", file_with("path", json!("/etc/passwd")), "attachments[1].path"),
        ("attachments", file_with("url", json!("https://x.org")), "attachments[1].url"),
        ("attachments", json!(vec![file(); 51]), "attachments"),
        ("attachments", json!(vec![json!({}); 200]), "attachments"),
        ("idempotency_key", json!("k"), "idempotency_key"),
        ("replyTo", json!("x@example.com"), "replyTo"),
    ];
    for (field, value, at) in cases {
        let body = message_with(field, value);
        // `null` takes a field out.
        assert_eq!(refused(&server, &body).await, invalid(at), "{body}");
    }
    let spelling = server.post(&message_with("idempotency_key", json!("k"))).send().await.unwrap();
    let message = answer(spelling).await.1["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("idempotencyKey"), "{message}");
}

#[tokio::test]
async fn limits_end_where_they_say() {
    let site = Site::with("max_request_bytes = 1048576", Options::default()).await;
    let server = site.start();
    let people = |count: usize, list: &str| -> Vec<String> {
        (0..count).map(|n| format!("{list}{n}@example.org")).collect()
    };
    for (to, cc, bcc) in [(49, 0, 0), (20, 15, 14), (50, 0, 0), (1, 24, 25), (17, 17, 16)] {
        let mut body = message_with("to", json!(people(to, "to")));
        body["cc"] = json!(people(cc, "cc"));
        body["bcc"] = json!(people(bcc, "bcc"));
        let id = server.send(&body).await;
        assert_eq!(server.record(&id).await["to"].as_array().unwrap().len(), to + cc + bcc);
    }
    for (to, cc, bcc) in [(51, 0, 0), (17, 17, 17), (1, 0, 50), (1, 50, 0)] {
        let mut body = message_with("to", json!(people(to, "to")));
        body["cc"] = json!(people(cc, "cc"));
        body["bcc"] = json!(people(bcc, "bcc"));
        let (status, code, _) = refused(&server, &body).await;
        assert_eq!((status, code.as_str()), (422, "ValidationError"), "{to} {cc} {bcc}");
    }
    for count in [1, 256] {
        for character in ["x", "\u{1f4ee}"] {
            server.send(&message_with("idempotencyKey", json!(character.repeat(count)))).await;
        }
    }
    server.send(&message_with("subject", json!("\u{e9}".repeat(998)))).await;
    let name = format!("X-{}", "a".repeat(124));
    server.send(&message_with("headers", json!({ name: "x" }))).await;
    server.send(&message_with("headers", json!({ "X-A": "x".repeat(993) }))).await;
    server.send(&message_with("headers", json!({ "X-": "x".repeat(994) }))).await;
    server.send(&message_with("headers", json!({ "List-Unsubscribe": "x".repeat(980) }))).await;
    let headers = |count: usize| -> Value {
        (0..count).map(|n| (format!("X-{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into()
    };
    server.send(&message_with("headers", headers(15))).await;
    assert_eq!(refused(&server, &message_with("headers", headers(16))).await, invalid("headers"));
    let members = |count: usize| -> Value {
        (0..count)
            .map(|n| (format!("{n:a>40}"), json!("\u{1f4ee}".repeat(500))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let id = server.send(&message_with("metadata", members(20))).await;
    assert_eq!(server.record(&id).await["metadata"], members(20));
    assert_eq!(refused(&server, &message_with("metadata", members(21))).await, invalid("metadata"));
    let name = "a".repeat(41);
    let got = refused(&server, &message_with("metadata", json!({ &*name: "x" }))).await;
    assert_eq!(got, invalid(&format!("metadata.{name}")));
    let name = format!("X-{}", "a".repeat(125));
    let got = refused(&server, &message_with("headers", json!({ name: "x" }))).await;
    assert_eq!((got.0, got.1.as_str()), (422, "ValidationError"));
}

#[tokio::test]
async fn a_body_is_required_and_one_is_enough() {
    let site = Site::new().await;
    let server = site.start();
    server.send(&message_with("html", json!("<p>both</p>"))).await;
    server.send(&message_with("html", json!(""))).await;
    let mut html_only = message_with("text", json!(null));
    html_only["html"] = json!("<p>html</p>");
    server.send(&html_only).await;
    for text in [json!(null), json!("")] {
        let got = refused(&server, &message_with("text", text)).await;
        assert_eq!(got, expected(422, "ValidationError", None));
    }
}

#[tokio::test]
async fn tags_domains_and_suppressions_have_their_own_codes_in_this_order() {
    let site = Site::new().await;
    let server = site.start();
    site.done(&["suppression", "add", "--org", "acme", "gone@example.org"]);
    site.done(&["suppression", "add", "--all", "never@example.org"]);
    for tag in ["marketing", "newsletter", "", "Transactional"] {
        let got = refused(&server, &message_with("tag", json!(tag))).await;
        assert_eq!(got, expected(422, "UnsupportedTag", Some("tag")));
    }
    for from in ["a@example.net", "a@sub.example.com", "a@xn--bcher-kva.example"] {
        let got = refused(&server, &message_with("from", json!(from))).await;
        assert_eq!(got, expected(422, "UnverifiedDomain", Some("from")));
    }
    let response = server.post(&message_with("from", json!("a@example.net"))).send().await.unwrap();
    let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    let told =
        "from: the domain example.net is not verified for your organisation; send from example.com";
    assert_eq!(body["error"]["message"], told);
    server.send(&message_with("from", json!("ann@EXAMPLE.com"))).await;
    for (field, value, at) in [
        ("to", json!(["a@x.org", "Gone <\"Gone\"@EXAMPLE.org>"]), "to[1]"),
        ("cc", json!(["gone@example.org"]), "cc[0]"),
        ("bcc", json!(["a@x.org", "never@example.org"]), "bcc[1]"),
    ] {
        let got = refused(&server, &message_with(field, value)).await;
        assert_eq!(got, expected(422, "Suppressed", Some(at)));
    }
    // Each of the three, with the next one wrong as well.
    let mut body = message_with("to", json!(["gone@example.org"]));
    body["from"] = json!("a@example.net");
    assert_eq!(refused(&server, &body).await.1, "UnverifiedDomain");
    body["tag"] = json!("marketing");
    assert_eq!(refused(&server, &body).await.1, "UnsupportedTag");
    body["subject"] = json!("");
    assert_eq!(refused(&server, &body).await.1, "ValidationError");
    site.done(&["suppression", "remove", "--org", "acme", "gone@example.org"]);
    server.send(&message_with("to", json!(["gone@example.org"]))).await;
}

#[tokio::test]
async fn too_large_a_body_is_refused_by_its_length_and_while_it_is_read() {
    let site = Site::with("max_request_bytes = 100000", Options::default()).await;
    let server = site.start();
    let fitting = message_with("text", json!("x".repeat(90_000)));
    server.send(&fitting).await;
    let large = message_with("text", json!("x".repeat(20_000_000)));
    let got = refused(&server, &large).await;
    assert_eq!(got, expected(413, "PayloadTooLarge", None));
}

#[tokio::test]
async fn a_full_queue_refuses_new_messages_and_still_answers_replays() {
    let site = Site::with(
        "max_request_bytes = 1024\n[sending]\nmax_pending_bytes = 4096",
        Options { latency: Duration::from_mins(1), ..Options::default() },
    )
    .await;
    let server = site.start();
    let keyed = message_with("idempotencyKey", json!("k"));
    let id = server.send(&keyed).await;
    let mut last = None;
    for _ in 0..20 {
        let response = server.post(&message()).send().await.unwrap();
        if response.status() == 503 {
            last = Some(response);
            break;
        }
    }
    let response = last.expect("the queue is full by now");
    let seconds: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert_eq!(refusal(response).await, expected(503, "QueueFull", None));
    let unverified = message_with("from", json!("a@example.net"));
    assert_eq!(refused(&server, &unverified).await.1, "UnverifiedDomain");
    let replay = server.post(&keyed).send().await.unwrap();
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    assert_eq!(answer(replay).await.1["id"], json!(id));
}

#[tokio::test]
async fn no_answer_lets_a_browser_in() {
    let site = Site::new().await;
    let server = site.start();
    let request = server.post(&message()).header("origin", "https://example.net");
    let response = request.send().await.unwrap();
    let cors = |name: &str| name.starts_with("access-control-");
    assert!(!response.headers().keys().any(|name| cors(name.as_str())));
    let preflight = server.client.request(Method::OPTIONS, format!("{}/emails", server.base));
    let response = preflight.header("origin", "https://example.net").send().await.unwrap();
    assert!(!response.headers().keys().any(|name| cors(name.as_str())));
    assert_eq!(response.status(), 401);
    // The page of `dev` is its own.
    let page = server.client.get(format!("{}/", server.base)).header("accept", "text/html");
    assert_eq!(refusal(page.send().await.unwrap()).await, expected(401, "Unauthorized", None));
}
