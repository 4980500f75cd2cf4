//! Requests in a shape that two readers can take for different ones, each with a message hidden in
//! what may or may not be its body: none of them is ever accepted, and none of the connections
//! serves another request.

use std::time::Duration;

use serde_json::Value;

use crate::attack::{Attack, Kind};
use crate::client::{Client, get, post};
use crate::kit::PATIENCE;
use crate::patrons::Patrons;
use crate::site::{Running, Target};

const HIDDEN: &str = "Hidden";

/// Fields between the head's first lines and its empty line, and the form of the body; `LENGTH` is
/// the length of the hidden request.
const FRAMINGS: [(&str, &str); 30] = [
    ("Content-Length: LENGTH\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
    ("Transfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n"),
    ("Content-Length: 0\r\nContent-Length: LENGTH", ""),
    ("Content-Length: LENGTH\r\nContent-Length: LENGTH", ""),
    ("Content-Length: 0, 0", ""),
    ("Content-Length: +0", ""),
    ("Content-Length: -0", ""),
    ("Content-Length: 0x0", ""),
    ("Content-Length: 0 0", ""),
    ("Content-Length: ", ""),
    ("Content-Length: 0\r\n 1", ""),
    ("Content-Length : 0", ""),
    ("Content-Length\t: 0", ""),
    (" Content-Length: 0", ""),
    ("Content-Length: 0\nX-A: b", ""),
    ("X-A: b\nContent-Length: 0", ""),
    ("X-A: b\rContent-Length: 0", ""),
    ("X-A: b\0\r\nContent-Length: 0", ""),
    ("Transfer-Encoding: chunked, identity", "0\r\n\r\n"),
    ("Transfer-Encoding: identity, chunked", "0\r\n\r\n"),
    ("Transfer-Encoding: xchunked", "0\r\n\r\n"),
    ("Transfer-Encoding: \u{b}chunked", "0\r\n\r\n"),
    ("Transfer-Encoding:\r\n chunked", "0\r\n\r\n"),
    ("Transfer-Encoding : chunked", "0\r\n\r\n"),
    ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
    ("Transfer-Encoding: chunked", "0x0\r\n\r\n"),
    ("Transfer-Encoding: chunked", "-0\r\n\r\n"),
    ("Transfer-Encoding: chunked", "1\n{\r\n0\r\n\r\n"),
    ("Transfer-Encoding: chunked", "1\r\n{}\r\n0\r\n\r\n"),
    ("Transfer-Encoding: chunked", "10000000000000000\r\n\r\n"),
];

/// A request in one of the shapes, with a message behind it.
fn shaped(target: &Target, (fields, body): (&str, &str)) -> String {
    let hidden = post(target, HIDDEN);
    let fields = fields.replace("LENGTH", &hidden.len().to_string());
    format!(
        "POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\n{fields}\r\n\r\n{body}{hidden}",
        target.key
    )
}

/// All answers on one connection, one after the other.
async fn answers(target: &Target, request: &str) -> String {
    let mut client = Client::connect(target).await.unwrap();
    client.send(request).await.unwrap();
    client.rest(PATIENCE).await
}

async fn subjects(target: &Target) -> Vec<String> {
    let mut client = Client::connect(target).await.unwrap();
    let page = client.ask(get(target, "/emails?limit=100")).await.unwrap();
    let page: Value = serde_json::from_str(&page.body).unwrap();
    let emails = page["emails"].as_array().unwrap().iter();
    emails.map(|email| email["subject"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_shape_hides_a_message() {
    let site = Running::start("", None).await;
    let target = site.target();
    for shape in FRAMINGS {
        let answers = answers(&target, &shaped(&target, shape)).await;
        assert!(answers.starts_with("HTTP/1.1 400 "), "{shape:?}: {answers}");
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{shape:?}: {answers}");
    }
    assert_eq!(subjects(&target).await, Vec::<String>::new());
    // The same message in a visible form, so that the test would see it.
    let open = [post(&target, "Open"), post(&target, HIDDEN)].concat();
    let mut client = Client::connect(&target).await.unwrap();
    assert_eq!(client.ask(open).await.unwrap().status, 200);
    assert_eq!(client.answer().await.unwrap().status, 200);
    assert_eq!(subjects(&target).await, [HIDDEN, "Open"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_where_none_is_asked_for_is_no_request() {
    let site = Running::start("", None).await;
    let target = site.target();
    let hidden = post(&target, HIDDEN);
    let head = get(&target, "/emails?limit=1");
    let head = head.strip_suffix("\r\n").unwrap();
    let request = format!("{head}Content-Length: {}\r\n\r\n{hidden}", hidden.len());
    let mut client = Client::connect(&target).await.unwrap();
    assert_eq!(client.ask(request).await.unwrap().status, 200);
    assert_eq!(client.rest(Duration::from_millis(500)).await, "");
    assert_eq!(subjects(&target).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_served_while_others_try_every_shape() {
    let site = Running::start("", None).await;
    let before = site.process.open_files();
    let target = site.target();
    let attacker = tokio::spawn(async move {
        let mut tried = 0;
        loop {
            for shape in FRAMINGS {
                answers(&target, &shaped(&target, shape)).await;
                tried += 1;
            }
            if tried >= 2 * FRAMINGS.len() {
                return tried;
            }
        }
    });
    let mut served = Patrons::All.arrive(&site).await;
    let mut figures = served.measure(crate::length()).await;
    while !attacker.is_finished() {
        figures = served.measure(crate::length()).await;
    }
    println!("shapes, {} connections: {figures}", attacker.await.unwrap());
    site.until_open_files_are(before + 6).await;
    // And while they leave in the middle of everything.
    let attack = Attack::begin(Kind::HalfClosed, 20, &site.target()).await;
    attack.end().await;
    served.measure(Duration::from_millis(100)).await;
}
