//! Scopes, sender domains and rotation of keys: every scope against every path and SMTP.

use pillarbox_domain::time::Timestamp;
use pillarbox_simulator::Options;
use reqwest::Method;
use serde_json::{Value, json};

use crate::kit::{Server, Site, SmtpClient, answer, codes, message};

const LISTEN: &str = "[smtp]\nlisten = \"127.0.0.1:0\"\n";
/// Every path and method of the API but the one that needs no key, and the scope that it needs.
const PATHS: [(Method, &str, &str); 10] = [
    (Method::POST, "/emails", "send"),
    (Method::POST, "/emails/batch", "send"),
    (Method::POST, "/emails/{id}/cancel", "send"),
    (Method::GET, "/usage", "read"),
    (Method::GET, "/emails", "read"),
    (Method::GET, "/emails/{id}", "read"),
    (Method::GET, "/emails/{id}/events", "read"),
    (Method::GET, "/emails/{id}/timeline", "read"),
    (Method::GET, "/events", "read"),
    (Method::GET, "/emails/nothing", "read"),
];

/// Adds a key with these options and returns it with its number.
fn add(site: &Site, options: &[&str]) -> (String, String) {
    let added = site.done(&[&["key", "add", "--org", "acme", "--json"], options].concat());
    let added: Value = serde_json::from_slice(&added.stdout).unwrap();
    (added["key"].as_str().unwrap().to_owned(), added["id"].to_string())
}

/// A key's number as it is listed.
fn of(number: &str) -> Value {
    number.parse::<u32>().unwrap().into()
}

async fn request(
    server: &Server,
    key: &str,
    method: &Method,
    path: &str,
    body: Option<&Value>,
) -> (u16, Value) {
    let url = format!("{}{path}", server.base);
    let mut request = server.client.request(method.clone(), url).bearer_auth(key);
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body.to_string());
    }
    let (status, body) = answer(request.send().await.unwrap()).await;
    (status.as_u16(), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_path_and_smtp_needs_its_scope() {
    let site = Site::with(LISTEN, Options::default()).await;
    let server = site.start();
    let smtp = server.process.smtp_listening();
    let id = server.send(&message()).await;
    let keys = [
        (server.key.clone(), vec!["send", "read"]),
        (add(&site, &[]).0, vec!["send", "read"]),
        (add(&site, &["--scope", "send,read"]).0, vec!["send", "read"]),
        (add(&site, &["--scope", "send", "--scope", "read"]).0, vec!["send", "read"]),
        (add(&site, &["--scope", "send"]).0, vec!["send"]),
        (add(&site, &["--scope", "read"]).0, vec!["read"]),
    ];
    for (key, scopes) in &keys {
        for (method, path, needed) in &PATHS {
            let path = path.replace("{id}", &id);
            let body = match path.as_str() {
                "/emails/batch" => json!({ "emails": [message()] }),
                path if path.ends_with("/cancel") => json!({}),
                _ => message(),
            };
            let body = Some(&body).filter(|_| method == Method::POST);
            let (status, body) = request(&server, key, method, &path, body).await;
            if scopes.contains(needed) {
                let expected = if path == "/emails/nothing" { 404 } else { 200 };
                assert_eq!(status, expected, "{scopes:?} {method} {path}: {body}");
                continue;
            }
            assert_eq!(status, 403, "{scopes:?} {method} {path}: {body}");
            assert_eq!(body["error"]["code"], "Forbidden");
            let refusal = format!("this API key does not have the {needed} scope");
            assert_eq!(body["error"]["message"], refusal);
            assert!(body["error"]["field"].is_null(), "{body}");
        }
        // What comes before and after the scope in the order of checks.
        let (status, _) = request(&server, key, &Method::GET, "/nowhere", None).await;
        assert_eq!(status, 404);
        let (status, _) = request(&server, key, &Method::DELETE, "/emails", None).await;
        assert_eq!(status, 405);
        let post = server.client.post(format!("{}/emails", server.base)).bearer_auth(key);
        let (status, _) = answer(post.body("no JSON").send().await.unwrap()).await;
        let expected = if scopes.contains(&"send") { 415 } else { 403 };
        assert_eq!(status, expected, "the scope comes before the media type");
        let mut client = SmtpClient::login(&smtp, key).await.unwrap();
        let reply = client.ask("MAIL FROM:<ann@example.com>").await.unwrap();
        let expected = if scopes.contains(&"send") { "250 2.1.0" } else { "550 5.7.1" };
        assert_eq!(codes(&reply), expected, "{scopes:?}: {reply}");
        if expected.starts_with('5') {
            assert!(reply.contains("send scope"), "{reply}");
            assert_eq!(codes(&client.ask("RCPT TO:<b@x.org>").await.unwrap()), "503 5.5.1");
        }
    }
    for (scopes, said) in [("suppressions", "suppressions"), ("send,all", "all"), ("", "\"\"")] {
        let refused = site.run(&["key", "add", "--org", "acme", "--scope", scopes]);
        assert_eq!(refused.status.code(), Some(1), "{scopes}");
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains(said) && text.contains("send and read"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_some_domains_sends_from_no_other() {
    let site = Site::with(LISTEN, Options::default()).await;
    let server = site.start();
    let smtp = server.process.smtp_listening();
    site.done(&["domain", "add", "--org", "acme", "other.example", "--assume-verified"]);
    // A domain need not be the organisation's yet.
    let limits = ["--domain", "EXAMPLE.com", "--domain", "bücher.example"];
    let (key, number) = add(&site, &limits);
    let from = |from: &str| {
        let mut message = message();
        message["from"] = json!(from);
        message
    };
    let expect = async |sender: &str, status: u16, code: &str| {
        let (found, body) =
            request(&server, &key, &Method::POST, "/emails", Some(&from(sender))).await;
        assert_eq!((found, body["error"]["code"].as_str()), (status, Some(code)), "{sender}");
        assert_eq!(body["error"]["field"], "from", "{body}");
        let batch = json!({ "emails": [message(), from(sender)] });
        let (found, body) =
            request(&server, &key, &Method::POST, "/emails/batch", Some(&batch)).await;
        assert_eq!((found, body["error"]["code"].as_str()), (status, Some(code)), "{sender}");
        assert_eq!(body["error"]["field"], "emails[1].from", "{body}");
    };
    let (status, _) =
        request(&server, &key, &Method::POST, "/emails", Some(&from("Ann <a@example.com>"))).await;
    assert_eq!(status, 200);
    expect("ann@other.example", 403, "Forbidden").await;
    expect("ann@sub.example.com", 422, "UnverifiedDomain").await;
    expect("ann@bücher.example", 422, "UnverifiedDomain").await;
    site.done(&["domain", "add", "--org", "acme", "bücher.example", "--assume-verified"]);
    let sender = Some(from("ann@bücher.example"));
    let (status, _) = request(&server, &key, &Method::POST, "/emails", sender.as_ref()).await;
    assert_eq!(status, 200);
    // The domain comes before the suppression.
    site.done(&["suppression", "add", "--org", "acme", "bob@example.org"]);
    let sender = Some(from("ann@other.example"));
    let (status, _) = request(&server, &key, &Method::POST, "/emails", sender.as_ref()).await;
    assert_eq!(status, 403);
    site.done(&["suppression", "remove", "--org", "acme", "bob@example.org"]);

    let begin = async |sender: &str| {
        let mut client = SmtpClient::login(&smtp, &key).await.unwrap();
        let reply = client.ask(&format!("MAIL FROM:<{sender}>")).await.unwrap();
        (client, codes(&reply))
    };
    assert_eq!(begin("ann@other.example").await.1, "550 5.7.1");
    for (from, more, expected) in [
        ("ann@example.com", "", "250 2.0.0"),
        ("ann@other.example", "", "550 5.7.1"),
        ("ann@example.com", "Sender: ann@other.example\r\n", "550 5.7.1"),
        ("ann@example.com", "Resent-From: ann@other.example\r\n", "550 5.7.1"),
    ] {
        for sender in ["ann@example.com", ""] {
            let (mut client, begun) = begin(sender).await;
            assert_eq!(begun, "250 2.1.0");
            client.ask_for("RCPT TO:<bob@example.org>", "250 ").await.unwrap();
            client.ask_for("DATA", "354 ").await.unwrap();
            client.write(&format!("From: {from}\r\n{more}\r\nHi\r\n.\r\n")).await.unwrap();
            let reply = client.reply().await.unwrap();
            assert_eq!(codes(&reply), expected, "{from} {more}: {reply}");
        }
    }
    let listed = site.done(&["key", "list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let keys = listed["keys"].as_array().unwrap();
    let listed = keys.iter().find(|listed| listed["id"] == of(&number)).unwrap();
    assert_eq!(listed["domains"], json!(["example.com", "xn--bcher-kva.example"]));
    assert_eq!(listed["scopes"], json!(["send", "read"]));
    let table = String::from_utf8(site.done(&["key", "list"]).stdout).unwrap();
    assert!(table.contains("example.com,xn--bcher-kva.example"), "{table}");
    let refused = site.run(&["key", "add", "--org", "acme", "--domain", "no domain"]);
    assert_eq!(refused.status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_keeps_its_rights_and_the_old_one_ends_after_the_overlap() {
    let site = Site::new().await;
    let server = site.start();
    let rights = ["--name", "web", "--scope", "send", "--domain", "example.com"];
    let (old, number) = add(&site, &[&rights[..], &["--expires", "90d"]].concat());
    let rotate = |number: &str, more: &[&str]| {
        let rotated = site.done(&[&["key", "rotate", number, "--json"], more].concat());
        let rotated: Value = serde_json::from_slice(&rotated.stdout).unwrap();
        assert_eq!(rotated["organisation"], "acme");
        (rotated["key"].as_str().unwrap().to_owned(), rotated["id"].to_string())
    };
    let status = async |key: &str, path: &str| {
        let method = if path == "/emails" { Method::POST } else { Method::GET };
        let body = Some(message()).filter(|_| method == Method::POST);
        request(&server, key, &method, path, body.as_ref()).await.0
    };
    let (new, new_number) = rotate(&number, &[]);
    for key in [&old, &new] {
        assert_eq!((status(key, "/emails").await, status(key, "/events").await), (200, 403));
    }
    let listed = site.done(&["key", "list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let key = |number: &str| {
        let keys = listed["keys"].as_array().unwrap();
        keys.iter().find(|key| key["id"] == of(number)).unwrap().clone()
    };
    for member in ["label", "scopes", "domains", "organisation"] {
        assert_eq!(key(&number)[member], key(&new_number)[member], "{member}");
    }
    let time =
        |value: &Value| Timestamp::parse_rfc3339(value.as_str().unwrap()).unwrap().unix_millis();
    let lifetime = |key: &Value| time(&key["expiresAt"]) - time(&key["createdAt"]);
    assert_eq!(lifetime(&key(&new_number)), 90 * 86_400_000);
    let overlap = time(&key(&number)["expiresAt"]) - time(&key(&new_number)["createdAt"]);
    assert_eq!(overlap, 86_400_000, "a day is the default");
    // Without an overlap the old one ends at once.
    let (newest, _) = rotate(&new_number, &["--overlap", "0s"]);
    assert_eq!(status(&new, "/emails").await, 401);
    assert_eq!(status(&newest, "/emails").await, 200);
    let unknown = site.run(&["key", "rotate", "99"]);
    assert_eq!(unknown.status.code(), Some(1));
    let bad = site.run(&["key", "rotate", &number, "--overlap", "soon"]);
    assert_eq!(bad.status.code(), Some(1));
}
