//! The operators' page from outside of a browser: access, content and protection.

use std::time::Duration;

use pillarbox_simulator::{Fault, Faults};
use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Server, Site, answer, message, message_with};

const DATA: [&str; 11] = [
    "/page/live",
    "/page/messages",
    "/page/messages/x",
    "/page/suppressions",
    "/page/webhooks",
    "/page/organisations",
    "/page/domains",
    "/page/history",
    "/page/caught",
    "/page/caught/x",
    "/page/caught/x/y",
];
const FILES: [&str; 6] = ["/", "/page.css", "/page.js", "/captured.js", "/nodes.js", "/icon.svg"];

/// The key in the address that `status --page` prints.
fn key(site: &Site, server: &Server) -> String {
    let output = site.done(&["status", "--page"]);
    let url = String::from_utf8(output.stdout).unwrap();
    let (base, key) = url.trim().split_once("/#").unwrap();
    assert_eq!(base, server.operator);
    assert!(!server.log().contains(key));
    key.to_owned()
}

fn get(server: &Server, path: &str) -> RequestBuilder {
    server.client.get(format!("{}{path}", server.operator))
}

async fn read(server: &Server, key: &str, path: &str) -> Value {
    let (status, body) = answer(get(server, path).bearer_auth(key).send().await.unwrap()).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_told_to_those_with_the_key_alone() {
    let site = Site::new().await;
    let server = site.start();
    let key = key(&site, &server);
    for path in DATA {
        let other = if key.starts_with('A') { 'B' } else { 'A' };
        let wrong = format!("{other}{}", &key[1..]);
        for request in [
            get(&server, path),
            get(&server, path).bearer_auth(&wrong),
            get(&server, path).bearer_auth(&server.key),
            get(&server, &format!("{path}?key={key}")),
        ] {
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{path}");
        }
        let url = format!("{}{path}", server.operator);
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            let request = server.client.request(method, &url).bearer_auth(&key);
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        }
    }
    let unknown = get(&server, "/page/messages/x").bearer_auth(&key).send().await.unwrap();
    assert_eq!(unknown.status(), StatusCode::BAD_REQUEST);
    let log = server.terminate().await;
    assert!(!log.contains(&key), "the key is in the log");
    let again = site.start();
    assert_ne!(key, self::key(&site, &again), "a key ends with its process");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_somebody_elses_reads_nothing_and_cannot_frame_it() {
    let site = Site::new().await;
    let server = site.start();
    let key = key(&site, &server);
    for path in FILES.into_iter().chain(DATA) {
        let rebound = get(&server, path).bearer_auth(&key).header("host", "evil.example:8026");
        assert_eq!(rebound.send().await.unwrap().status(), StatusCode::FORBIDDEN, "{path}");
    }
    for path in FILES.into_iter().chain(["/page/messages", "/page/live"]) {
        let response = get(&server, path).bearer_auth(&key).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let headers = response.headers();
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["referrer-policy"], "no-referrer");
        assert_eq!(headers["cache-control"], "no-store");
        assert!(!headers.contains_key("access-control-allow-origin"));
        assert!(!headers.contains_key("set-cookie"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_found_by_organisation_status_recipient_and_id() {
    let site = Site::new().await;
    site.add_organisation("other", "other.example");
    let server = site.start();
    let key = key(&site, &server);
    let sent = server.send(&message()).await;
    server.wait_for(&sent, "sent").await;
    let hers = server.send(&message_with("to", json!(["Éva <eva@example.org>"]))).await;
    server.wait_for(&hers, "sent").await;
    for (query, expected) in [
        ("", vec![&hers, &sent]),
        ("?organisation=acme&status=sent", vec![&hers, &sent]),
        ("?organisation=other", vec![]),
        ("?status=failed", vec![]),
        ("?recipient=eva%40example.org", vec![&hers]),
        ("?recipient=EVA@Example.ORG&status=sent", vec![&hers]),
        (&format!("?before={hers}"), vec![&sent]),
    ] {
        let list = read(&server, &key, &format!("/page/messages{query}")).await;
        let found: Vec<_> = list["messages"].as_array().unwrap().iter().collect();
        let ids: Vec<_> = found.iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!(ids, expected, "{query}");
    }
    let record = read(&server, &key, &format!("/page/messages/{hers}")).await;
    assert_eq!(record["to"], json!(["Éva <eva@example.org>"]));
    let wrong = get(&server, "/page/messages?status=lost").bearer_auth(&key).send().await.unwrap();
    let (status, body) = answer(wrong).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body["message"].as_str().unwrap().contains("not a status"), "{body}");
    site.done(&["suppression", "add", "--org", "acme", "bob@example.net"]);
    let list = read(&server, &key, "/page/suppressions").await;
    assert_eq!(list["suppressions"][0]["address"], "bob@example.net");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_tells_each_second_how_it_goes_and_ends_with_the_service() {
    let site = Site::new().await;
    let server = site.start();
    let key = key(&site, &server);
    let request = get(&server, "/page/live").bearer_auth(&key);
    let mut stream = request.send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    until(&mut stream, &mut text, "event: state\n").await;
    assert!(text.starts_with("event: history\ndata: ["), "{text}");
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    let id = server.send(&message()).await;
    until(&mut stream, &mut text, "the account is not allowed to send").await;
    site.simulator.set_faults(Faults::none());
    server.wait_for(&id, "sent").await;
    until(&mut stream, &mut text, "\"sent\",1]").await;
    server.signal("TERM");
    while let Ok(Some(_)) = tokio::time::timeout(PATIENCE, stream.chunk()).await.unwrap() {}
    server.process.wait();
}

/// Reads on until there was this.
async fn until(stream: &mut reqwest::Response, text: &mut String, wanted: &str) {
    while !text.contains(wanted) {
        let chunk = tokio::time::timeout(PATIENCE + Duration::from_mins(2), stream.chunk()).await;
        let chunk = chunk.expect("the stream goes on").unwrap().expect("more is told");
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
}
