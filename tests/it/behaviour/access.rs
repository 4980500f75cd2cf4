//! Access: an organisation can learn nothing of another.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Instant;

use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Server, Site, answer, message, message_with, refusal};

/// All that a client sees of a response, but for the request's id and the time.
async fn seen(response: Response) -> (u16, Vec<(String, String)>, String) {
    let status = response.status().as_u16();
    let mut headers: Vec<_> = response
        .headers()
        .iter()
        .filter(|(name, _)| *name != "x-request-id" && *name != "date")
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    headers.sort();
    (status, headers, response.text().await.unwrap())
}

/// A request with another key.
fn with_key(request: RequestBuilder, key: &str) -> RequestBuilder {
    let mut request = request.build().unwrap();
    let value = format!("Bearer {key}").parse().unwrap();
    request.headers_mut().insert("authorization", value);
    RequestBuilder::from_parts(reqwest::Client::builder().no_proxy().build().unwrap(), request)
}

async fn get(server: &Server, key: &str, path: &str) -> (u16, Vec<(String, String)>, String) {
    seen(with_key(server.get(path), key).send().await.unwrap()).await
}

#[tokio::test]
async fn an_organisation_learns_nothing_of_another() {
    let site = Site::new().await;
    let other = site.add_organisation("other", "other.example");
    let server = site.start();
    let mine = server.send(&message_with("idempotencyKey", json!("order-17"))).await;
    server.wait_for(&mine, "sent").await;
    // The same bytes as for an id that does not exist.
    let nobodys = "0190b6a0-0000-7000-8000-000000000000";
    for suffix in ["", "/events", "/timeline"] {
        let hidden = get(&server, &other, &format!("/emails/{mine}{suffix}")).await;
        let absent = get(&server, &other, &format!("/emails/{nobodys}{suffix}")).await;
        assert_eq!(hidden, absent);
        assert_eq!(hidden.0, 404);
    }
    for query in ["?limit=100", &format!("?before={mine}"), "?recipient=bob%40example.org"] {
        let list = get(&server, &other, &format!("/emails{query}")).await;
        assert_eq!(list.2, "{\"emails\":[],\"next\":null}\n", "{query}");
    }
    // My domain is as unknown to it as one that does not exist.
    let from = |domain: &str| message_with("from", json!(format!("a@{domain}")));
    let refused = async |domain: &str| {
        let post = with_key(server.post(&from(domain)), &other);
        let (status, headers, body) = seen(post.send().await.unwrap()).await;
        (status, headers.len(), body.replace(domain, "DOMAIN"))
    };
    let hidden = refused("example.com").await;
    assert_eq!(hidden, refused("example.net").await);
    assert!(hidden.2.contains("UnverifiedDomain"), "{hidden:?}");
    // My key is free for it, and makes a message of its own.
    let mut theirs = from("other.example");
    theirs["idempotencyKey"] = json!("order-17");
    let response = with_key(server.post(&theirs), &other).send().await.unwrap();
    assert!(!response.headers().contains_key("idempotent-replayed"));
    let (_, accepted) = answer(response).await;
    assert_ne!(accepted["id"], json!(mine));
    // Whom I may not write to, it may.
    site.done(&["suppression", "add", "--org", "acme", "bob@example.org"]);
    assert_eq!(refusal(server.post(&message()).send().await.unwrap()).await.1, "Suppressed");
    theirs["idempotencyKey"] = Value::Null;
    let response = with_key(server.post(&theirs), &other).send().await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_revoked_key_ends_at_once_on_a_connection_that_is_open() {
    let site = Site::new().await;
    let output = site.done(&["key", "add", "--org", "acme", "--json"]);
    let key: Value = serde_json::from_slice(&output.stdout).unwrap();
    let server = site.start();
    let mut stream = TcpStream::connect(server.base.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET /emails HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        key["key"].as_str().unwrap()
    );
    let mut ask = || {
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 4_096];
        let count = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    for _ in 0..3 {
        assert!(ask().starts_with("HTTP/1.1 200 OK\r\n"));
    }
    site.done(&["key", "revoke", &key["id"].to_string()]);
    // The command has returned: nothing is let in from here on, so within no time at all.
    let refused = ask();
    assert!(refused.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{refused}");
    // Of the whole organisation, too.
    assert_eq!(server.get("/emails").send().await.unwrap().status(), 200);
    site.done(&["org", "remove", "acme"]);
    assert_eq!(server.get("/emails").send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn nobody_else_may_open_socket_or_file_whatever_the_umask() {
    let site = Site::new().await;
    // Made by the service, in place of what the commands made.
    for entry in std::fs::read_dir(site.data_dir()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let server = site.start_by(site.service_after("umask 000 &&"));
    let mode = |path: &std::path::Path| {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    };
    let socket = site.data_dir().parent().unwrap().join("admin.sock");
    assert_eq!(mode(&socket), 0o600);
    for entry in std::fs::read_dir(site.data_dir()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    site.done(&["org", "add", "another"]);
    drop(server);
}

#[tokio::test]
async fn a_second_process_leaves_the_socket_of_the_first_alone() {
    let site = Site::new().await;
    let server = site.start();
    let socket = site.data_dir().parent().unwrap().join("admin.sock");
    let inode = || std::fs::symlink_metadata(&socket).unwrap().ino();
    let before = inode();
    let second = site.run(&["serve"]);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert_eq!(inode(), before);
    site.done(&["status"]);
    // If an ended process left it there, the next one puts its own in its place.
    server.kill();
    assert_eq!(inode(), before);
    let _server = site.start();
    assert_ne!(inode(), before);
    site.done(&["status"]);
}

#[tokio::test]
async fn operators_are_asked_for_on_the_machine_alone_and_change_nothing() {
    assert!(pillarbox_config::Config::default().operator_listen.ip().is_loopback());
    assert!(pillarbox_config::Config::default().listen.ip().is_loopback());
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    let before = server.wait_for(&id, "sent").await;
    let keys = site.done(&["key", "list", "--json"]).stdout;
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        for path in ["/", "/healthz", "/readyz", "/metrics", "/emails", &format!("/emails/{id}")] {
            let request =
                server.client.request(method.clone(), format!("{}{path}", server.operator));
            let request = request.bearer_auth(&server.key).body(message().to_string());
            let status = request.send().await.unwrap().status().as_u16();
            assert!([404, 405].contains(&status), "{method} {path}: {status}");
        }
    }
    // Before the next use of the key, because each use is recorded.
    assert_eq!(site.done(&["key", "list", "--json"]).stdout, keys);
    assert_eq!(server.record(&id).await, before);
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test]
async fn documents_that_break_readers_are_refused_in_short_and_soon() {
    let site = Site::new().await;
    let server = site.start();
    let mib = 1024 * 1024;
    let refused = async |body: Vec<u8>| {
        let start = Instant::now();
        let got = refusal(server.post_bytes(body).send().await.unwrap()).await;
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
        (got.0, got.1)
    };
    let not_json = (400, "InvalidJson".to_owned());
    let invalid = (422, "ValidationError".to_owned());
    for open in ["[", "{\"a\":", "{\"a\":["] {
        let deep = open.repeat(9 * mib / open.len());
        assert_eq!(refused(deep.clone().into_bytes()).await, not_json, "{open}");
        assert_eq!(refused(format!("{{\"to\":{deep}").into_bytes()).await, not_json, "{open}");
    }
    let digits = "9".repeat(9 * mib);
    for number in [digits.clone(), format!("-0.{digits}"), format!("1e{digits}")] {
        assert_eq!(refused(format!("{{\"subject\":{number}}}").into_bytes()).await, invalid);
    }
    let mut keys: Vec<_> = (0..99).map(|number| format!("\"k{number}\":0")).collect();
    assert_eq!(refused(format!("{{{}}}", keys.join(",")).into_bytes()).await, invalid);
    keys.push("\"k0\":0".to_owned());
    assert_eq!(refused(format!("{{{}}}", keys.join(",")).into_bytes()).await, not_json);
    // No object of ours has as many, so it is not read to its end.
    let keys: Vec<_> = (0..200_000).map(|number| format!("\"k{number}\":0")).collect();
    assert_eq!(refused(format!("{{{}}}", keys.join(",")).into_bytes()).await, not_json);
    let long = "x".repeat(9 * mib);
    for field in ["subject", "from", "reply_to", "idempotencyKey"] {
        let body = message_with(field, json!(long)).to_string();
        assert_eq!(refused(body.into_bytes()).await, invalid, "{field}");
    }
    for bad in [
        &b"\xc0\x80"[..],
        b"\xe0\x80\x80",
        b"\xf0\x80\x80\x80",
        b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80",
        b"\0",
        b"\\ud800",
        b"\\udc00\\ud800",
        b"\\u00",
        b"\\x00",
    ] {
        let body = [&b"{\"subject\":\""[..], bad, b"\"}"].concat();
        assert_eq!(refused(body).await, not_json, "{}", bad.escape_ascii());
    }
    let body = message_with("subject", json!("a\0b")).to_string();
    assert_eq!(refused(body.into_bytes()).await, invalid);
    // What is only large goes through, byte for byte.
    let large = message_with("text", json!(long));
    let id = server.send(&large).await;
    server.wait_for(&id, "sent").await;
    assert_eq!(site.simulator.messages()[0].text.as_deref(), Some(&*long));
}
