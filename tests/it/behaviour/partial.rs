//! Partial batches: a refused message does not keep the others from being accepted.

use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::{Value, json};

use crate::behaviour::batch::{ACCEPTED, listed, post, refused, with_key};
use crate::kit::{PATIENCE, Server, Site, answer, message, message_with, metric, refusal};

fn partial(emails: &[Value]) -> Value {
    json!({ "emails": emails, "partial": true })
}

/// Sends a batch that must be answered with 200; gives the answers.
async fn send(server: &Server, emails: &[Value]) -> Vec<Value> {
    let response = post(server, &partial(emails)).send().await.unwrap();
    assert!(!response.headers().contains_key("retry-after"));
    let (status, body) = answer(response).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    assert_eq!(body["emails"].as_array().unwrap().len(), emails.len(), "{body}");
    body["emails"].as_array().unwrap().clone()
}

async fn refuses_whole(server: &Server, emails: &[Value], status: u16, code: &str) {
    let response = post(server, &partial(emails)).send().await.unwrap();
    assert!(response.headers().contains_key("retry-after"), "{response:?}");
    assert_eq!(refusal(response).await, (status, code.to_owned(), None));
}

fn bad(key: &str) -> Value {
    let mut email = with_key(key);
    email["to"] = json!(["nobody"]);
    email
}

fn is_new(answer: &Value) -> bool {
    answer.as_object().unwrap().len() == 1 && answer["id"].is_string()
}

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

async fn refusals(server: &Server, code: &str) -> f64 {
    let name = format!("pillarbox_refusals_total{{code=\"{code}\"}}");
    metric(server, &name).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refused_message_has_in_its_place_the_error_that_a_whole_batch_would_have() {
    let site = Site::new().await;
    site.done(&["suppression", "add", "--org", "acme", "gone@example.org"]);
    site.done(&["domain", "add", "--org", "acme", "elsewhere.example", "--assume-verified"]);
    let limited = site.done(&["key", "add", "--org", "acme", "--domain", "example.com", "--json"]);
    let limited: Value = serde_json::from_slice(&limited.stdout).unwrap();
    let mut server = site.start();
    server.key = limited["key"].as_str().unwrap().to_owned();
    let earlier = server.send(&with_key("earlier")).await;
    let wrong = [
        (message_with("to", json!(["a@x.org", "nobody"])), "ValidationError", ".to[1]"),
        (message_with("to", json!("a@x.org")), "ValidationError", ".to"),
        (message_with("text", json!("")), "ValidationError", ""),
        (message_with("subjct", json!("a")), "ValidationError", ".subjct"),
        (message_with("headers", json!({ "Y": "1" })), "ValidationError", ".headers.Y"),
        (
            message_with("attachments", json!([{ "filename": "a.exe", "content": "QUJD" }])),
            "ValidationError",
            ".attachments[0].filename",
        ),
        (message_with("metadata", json!({ "a": "" })), "ValidationError", ".metadata.a"),
        (with_key(""), "ValidationError", ".idempotencyKey"),
        (json!("x"), "ValidationError", ""),
        (Value::Null, "ValidationError", ""),
        (message_with("tag", json!("marketing")), "UnsupportedTag", ".tag"),
        (message_with("from", json!("a@other.example")), "UnverifiedDomain", ".from"),
        (message_with("from", json!("a@elsewhere.example")), "Forbidden", ".from"),
        (message_with("cc", json!(["gone@example.org"])), "Suppressed", ".cc[0]"),
    ];
    let mut emails = vec![with_key("earlier"), with_key("new"), message()];
    emails.splice(2..2, wrong.iter().map(|(email, ..)| email.clone()));
    let answers = send(&server, &emails).await;
    assert_eq!(answers[0], json!({ "id": earlier, "replayed": true }));
    assert!(is_new(&answers[1]) && is_new(answers.last().unwrap()), "{answers:?}");
    for (index, (email, code, path)) in (2..).zip(&wrong) {
        let field = format!("emails[{index}]{path}");
        assert_eq!(self::code(&answers[index]), *code, "{}", answers[index]);
        assert_eq!(answers[index]["error"]["field"], json!(field));
        let whole = [vec![message(); index], vec![email.clone(), message()]].concat();
        let (_, whole) =
            answer(post(&server, &json!({ "emails": whole })).send().await.unwrap()).await;
        assert_eq!(answers[index], whole);
    }
    assert_eq!(listed(&server).await, 3);
    for id in [&answers[1]["id"], &answers.last().unwrap()["id"]] {
        server.wait_for(id.as_str().unwrap(), "sent").await;
    }
    assert_eq!(metric(&server, ACCEPTED).await, Some(3.0));
    assert_eq!(metric(&server, "pillarbox_replays_total").await, Some(1.0));
    // Each of them counts as a request of its own does, here and in the whole batch.
    for (code, count) in [
        ("ValidationError", 20.0),
        ("UnsupportedTag", 2.0),
        ("Forbidden", 2.0),
        ("Suppressed", 2.0),
    ] {
        let counted = refusals(&server, code).await;
        assert!((counted - count).abs() < 0.5, "{code}: {counted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_message_binds_no_key_whichever_of_two_it_is() {
    let site = Site::new().await;
    let server = site.start();
    let emails = [bad("a"), with_key("a"), with_key("b"), bad("b"), with_key("a"), bad("c")];
    let answers = send(&server, &emails).await;
    assert!(is_new(&answers[1]) && is_new(&answers[2]), "{answers:?}");
    assert_eq!(answers[4], json!({ "id": answers[1]["id"], "replayed": true }));
    for index in [0, 3, 5] {
        assert_eq!(code(&answers[index]), "ValidationError");
    }
    assert_eq!(listed(&server).await, 2);
    // Repeated after a lost answer: what was accepted replays, and what was refused may be right now.
    let repeated = [with_key("a"), with_key("b"), with_key("c"), bad("a")];
    let again = send(&server, &repeated).await;
    assert_eq!(again[0], json!({ "id": answers[1]["id"], "replayed": true }));
    assert_eq!(again[1], json!({ "id": answers[2]["id"], "replayed": true }));
    assert!(is_new(&again[2]));
    assert_eq!(code(&again[3]), "ValidationError", "a replay is subject to the checks before it");
    // One message whose keys' requests come at one time.
    let (pair, alone) = ([bad("d"), with_key("d")], [with_key("d")]);
    let (one, two) = tokio::join!(send(&server, &pair), send(&server, &alone));
    assert_eq!(one[1]["id"], two[0]["id"]);
    assert_ne!(is_new(&one[1]), is_new(&two[0]), "{one:?} {two:?}");
    assert_eq!(listed(&server).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_malformed_as_a_whole_is_refused_whole() {
    let site = Site::new().await;
    let server = site.start();
    let with = |emails: Value| json!({ "partial": true, "emails": emails });
    for (body, code, field) in [
        (with(json!([])), "ValidationError", "emails"),
        (with(json!(vec![message(); 101])), "ValidationError", "emails"),
        (with(json!({})), "ValidationError", "emails"),
        (with(Value::Null), "ValidationError", "emails"),
        (json!({ "partial": true }), "ValidationError", "emails"),
        (json!({ "emails": [message()], "partial": "true" }), "ValidationError", "partial"),
        (json!({ "emails": [message()], "partial": 1 }), "ValidationError", "partial"),
        (json!({ "emails": [message()], "partial": {} }), "ValidationError", "partial"),
        (json!({ "emails": [message()], "Partial": true }), "ValidationError", "Partial"),
        (json!({ "emails": [message()], "partial": true, "x": 1 }), "ValidationError", "x"),
        // It is a field of batches alone.
        (
            json!({ "emails": [bad("k"), message()], "partial": false }),
            "ValidationError",
            "emails[0].to[0]",
        ),
        (
            json!({ "emails": [bad("k"), message()], "partial": null }),
            "ValidationError",
            "emails[0].to[0]",
        ),
    ] {
        let expected = (422, code.to_owned(), Some(field.to_owned()));
        assert_eq!(refused(&server, &body).await, expected, "{:.200}", body.to_string());
    }
    let single = server.post(&message_with("partial", json!(true))).send().await.unwrap();
    assert_eq!(refusal(single).await.2.as_deref(), Some("partial"));
    // Values that a reader drops cannot be distinguished from correct ones.
    let many = json!(vec![vec![vec![0; 100]; 100]; 5]);
    let many = format!(r#"{{"partial":true,"emails":[{},{{"headers":{many}}}]}}"#, message());
    let twice = r#"{"partial":true,"emails":[{"from":"a@example.com"},{"to":[],"to":[]}]}"#;
    for (body, expected) in [
        (many, (422, "ValidationError".to_owned(), Some("emails".to_owned()))),
        (twice.to_owned(), (400, "InvalidJson".to_owned(), None)),
    ] {
        let request = server.client.post(format!("{}/emails/batch", server.base));
        let request = request.bearer_auth(&server.key).header("content-type", "application/json");
        assert_eq!(refusal(request.body(body).send().await.unwrap()).await, expected);
    }
    assert_eq!(listed(&server).await, 0);
    assert_eq!(
        send(&server, &vec![message(); 100]).await.iter().filter(|a| is_new(a)).count(),
        100
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn all_refused_is_200_and_a_pause_refuses_the_whole_if_there_is_something_new() {
    let site = Site::new().await;
    let server = site.start();
    let earlier = server.send(&with_key("earlier")).await;
    for is_paused in [false, true] {
        if is_paused {
            site.done(&["org", "pause", "acme", "--refuse"]);
        }
        let answers = send(&server, &vec![bad("k"); 100]).await;
        for (index, answer) in answers.iter().enumerate() {
            assert_eq!(answer["error"]["field"], json!(format!("emails[{index}].to[0]")));
        }
        let answers = send(&server, &[bad("k"), with_key("earlier"), bad("earlier")]).await;
        assert_eq!(answers[1], json!({ "id": earlier, "replayed": true }));
        assert_eq!((code(&answers[0]), code(&answers[2])), ("ValidationError", "ValidationError"));
    }
    let emails = [with_key("new"), bad("k"), with_key("earlier")];
    refuses_whole(&server, &emails, 503, "Paused").await;
    assert_eq!(listed(&server).await, 1);
    site.done(&["org", "resume", "acme"]);
    assert!(is_new(&send(&server, &emails).await[0]), "its key was not bound");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_good_counts_as_one_request_for_the_limits() {
    let site = Site::new().await;
    let server = site.start();
    site.done(&["org", "limit", "acme", "--per-day", "5"]);
    let emails = [with_key("a"), bad("b"), message(), with_key("a"), bad("c")];
    let answers = send(&server, &emails).await;
    assert_eq!(answers.iter().filter(|answer| is_new(answer)).count(), 2);
    let (_, usage) = answer(server.get("/usage").send().await.unwrap()).await;
    assert_eq!(usage["day"]["used"], 2, "what is refused or replayed uses nothing");
    let four = [with_key("b"), bad("k"), with_key("a"), message(), message(), message()];
    refuses_whole(&server, &four, 429, "QuotaExceeded").await;
    assert_eq!(listed(&server).await, 2);
    let three = send(&server, &four[..5]).await;
    assert!(is_new(&three[0]), "its key was not bound: {three:?}");
    let (_, usage) = answer(server.get("/usage").send().await.unwrap()).await;
    assert_eq!(usage["day"]["used"], 5);
    // At the limit, refusals and replays are answered.
    let answers = send(&server, &[bad("k"), with_key("b")]).await;
    assert_eq!(answers[1], json!({ "id": three[0]["id"], "replayed": true }));
    // More than the limit itself.
    let response = post(&server, &partial(&[vec![message(); 6], vec![bad("k")]].concat()));
    let response = response.send().await.unwrap();
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(refusal(response).await, (429, "QuotaExceeded".to_owned(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_room_refuses_the_whole_and_leaves_nothing() {
    let more = "max_request_bytes = 16384\n[sending]\nmax_pending_bytes = 65536";
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let site = Site::with(more, slow).await;
    let mut server = site.start();
    let beta = site.add_organisation("beta", "example.com");
    let first = send(&server, &[with_key("a"), bad("b")]).await;
    let emails = [vec![message(); 8], vec![bad("k"), with_key("a")]].concat();
    for key in [server.key.clone(), beta] {
        server.key = key;
        let mut filled = 0;
        let said = loop {
            let (status, body) =
                answer(post(&server, &partial(&emails)).send().await.unwrap()).await;
            if status == 503 {
                assert_eq!(body["error"]["code"], "QueueFull", "{body}");
                break body["error"]["message"].to_string();
            }
            assert_eq!(status, 200, "{body}");
            filled += 1;
            assert!(filled < 1_000, "the queue never fills up");
        };
        assert!(said.contains("your organisation's share"), "{said}");
        let before = metric(&server, "pillarbox_queue_bytes").await.unwrap();
        refuses_whole(&server, &emails, 503, "QueueFull").await;
        let after = metric(&server, "pillarbox_queue_bytes").await.unwrap();
        assert!((after - before).abs() < 0.5, "{before} {after}");
        let answers = send(&server, &[bad("k"), bad("a")]).await;
        assert!(answers.iter().all(|answer| code(answer) == "ValidationError"));
    }
    server.key.clone_from(&site.key);
    let answers = send(&server, &[bad("k"), with_key("a")]).await;
    assert_eq!(answers[1], json!({ "id": first[0]["id"], "replayed": true }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_nothing_refuses_the_whole() {
    let site = Site::new().await;
    let server = site.start();
    send(&server, &[with_key("a"), bad("b")]).await;
    site.take_store_away();
    let emails = [with_key("b"), bad("k")];
    let end = Instant::now() + PATIENCE;
    // It notices within seconds.
    let refused = loop {
        let response = post(&server, &partial(&[message(), bad("k")])).send().await.unwrap();
        if response.status() != 200 {
            break response;
        }
        assert!(Instant::now() < end, "the store takes writes that is gone");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refusal(refused).await, (503, "StorageUnavailable".to_owned(), None));
    refuses_whole(&server, &emails, 503, "StorageUnavailable").await;
    // Problems that need no store are reported as before.
    let malformed = send(&server, &[bad("k"), bad("l")]).await;
    assert!(malformed.iter().all(|answer| code(answer) == "ValidationError"));
    site.give_store_back();
    let end = Instant::now() + PATIENCE;
    let answers = loop {
        let response = post(&server, &partial(&emails)).send().await.unwrap();
        if response.status() == 200 {
            break answer(response).await.1["emails"].clone();
        }
        assert!(Instant::now() < end, "the service does not recover: {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(is_new(&answers[0]), "its key was not bound: {answers}");
}
