//! The outcome of a message: one word wherever operators see it, and found by it.

use std::time::{Duration, Instant};

use pillarbox_simulator::{EventOptions, Events, Options};
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Server, Site, answer, message_with};

/// A recipient, and the outcome that it has at the simulator.
const RECIPIENTS: [(&str, &str); 4] = [
    ("ann@example.org", "delivered"),
    ("bounce@simulator.amazonses.com", "bounced"),
    ("complaint@simulator.amazonses.com", "complained"),
    ("suppressionlist@simulator.amazonses.com", "bounced"),
];

async fn site_with_events() -> Site {
    let events = Events::On(EventOptions::default());
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    site
}

fn text(site: &Site, arguments: &[&str]) -> String {
    String::from_utf8(site.done(arguments).stdout).unwrap()
}

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(site, &[arguments, &["--json"]].concat())).unwrap()
}

async fn wait_for_outcome(site: &Site, id: &str, outcome: &str) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let shown = json_of(site, &["message", "show", id]);
        if shown["outcome"] == outcome {
            return shown;
        }
        assert!(Instant::now() < end, "{id} does not become {outcome}: {shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn listed(server: &Server, key: &str, query: &str) -> Value {
    let url = format!("{}/page/messages?{query}", server.operator);
    let (status, body) =
        answer(server.client.get(url).bearer_auth(key).send().await.unwrap()).await;
    assert_eq!(status, 200, "{query}: {body}");
    body
}

fn ids(page: &Value) -> Vec<String> {
    let messages = page["messages"].as_array().unwrap().iter();
    messages.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn page_key(site: &Site) -> String {
    let url = text(site, &["status", "--page"]);
    url.trim().split_once('#').unwrap().1.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_one_outcome_wherever_an_operator_sees_it() {
    let site = site_with_events().await;
    let server = site.start();
    let key = page_key(&site);
    let mut sent = Vec::new();
    for (recipient, outcome) in RECIPIENTS {
        let id = server.send(&message_with("to", json!([recipient]))).await;
        let shown = wait_for_outcome(&site, &id, outcome).await;
        assert_eq!(shown["status"], "sent", "the status stays what the provider answered");
        let human = text(&site, &["message", "show", &id]);
        assert!(human.contains(&format!("\noutcome:         {outcome}\n")), "{human}");
        let url = format!("{}/page/messages/{id}", server.operator);
        let (_, detail) =
            answer(server.client.get(url).bearer_auth(&key).send().await.unwrap()).await;
        assert_eq!(detail["outcome"], outcome);
        let (_, record) = answer(server.get(&format!("/emails/{id}")).send().await.unwrap()).await;
        assert_eq!((&record["status"], record.get("outcome")), (&json!("sent"), None));
        sent.insert(0, (id, outcome));
    }
    let table = text(&site, &["message", "list"]);
    for (id, outcome) in &sent {
        let row = table.lines().find(|line| line.starts_with(&**id)).unwrap();
        assert!(row.contains(&format!("  {outcome}  ")), "{row}");
        assert!(!row.contains("  sent  "), "{row}");
    }
    for outcome in ["delivered", "bounced", "complained", "sent", "queued", "failed", "delayed"] {
        let expected: Vec<_> =
            sent.iter().filter(|(_, of)| *of == outcome).map(|(id, _)| id.clone()).collect();
        let page = listed(&server, &key, &format!("outcome={outcome}")).await;
        assert_eq!(ids(&page), expected, "{outcome}");
        let list = json_of(&site, &["message", "list", "--outcome", outcome]);
        assert_eq!(ids(&list), expected, "{outcome}");
        let messages = list["messages"].as_array().unwrap();
        assert!(messages.iter().all(|one| one["outcome"] == outcome));
    }
    let both = json_of(&site, &["message", "list", "--outcome", "bounced", "--status", "failed"]);
    assert_eq!(ids(&both), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_found_by_parts_of_what_they_say() {
    let site = Site::new().await;
    let other = site.add_organisation("other", "other.example");
    let server = site.start();
    let key = page_key(&site);
    let invoice = json!({
        "from": "Billing <billing@example.com>", "to": ["Eva <Eva.Smith@Example.ORG>"],
        "subject": "Your invoice of March", "text": "Hi", "tag": "transactional",
    });
    let welcome = json!({
        "from": "hello@example.com", "to": ["ann@example.net"], "cc": ["eva@example.net"],
        "subject": "Welcome, Ann", "text": "Hi", "tag": "transactional",
    });
    let invoice = server.send(&invoice).await;
    let welcome = server.send(&welcome).await;
    let theirs = json!({
        "from": "x@other.example", "to": ["bob@example.org"], "subject": "An offer",
        "text": "Hi", "tag": "transactional",
    });
    let posted = server.client.post(format!("{}/emails", server.base)).bearer_auth(&other);
    let posted = posted.header("content-type", "application/json").body(theirs.to_string());
    assert_eq!(posted.send().await.unwrap().status(), 200);
    for id in [&invoice, &welcome] {
        server.wait_for(id, "sent").await;
    }
    let all = listed(&server, &key, "organisation=acme").await;
    let accepted = |n: usize| all["messages"][n]["createdAt"].as_str().unwrap().to_owned();
    let (newer, older) = (accepted(0), accepted(1));
    let after = |from: &str, until: &str| format!("from={from}&until={until}");
    for (query, expected) in [
        ("recipient=eva.s".to_owned(), vec![&invoice]),
        ("recipient=EVA".to_owned(), vec![&welcome, &invoice]),
        ("recipient=%40example.net".to_owned(), vec![&welcome]),
        ("recipient=eva%20%3C".to_owned(), vec![]),
        ("sender_domain=EXAMPLE.com".to_owned(), vec![&welcome, &invoice]),
        ("sender_domain=example.org".to_owned(), vec![]),
        ("subject=MARCH%20invoice".to_owned(), vec![&invoice]),
        ("subject=invoice%20april".to_owned(), vec![]),
        ("subject=welcome&recipient=ann&organisation=acme&outcome=sent".to_owned(), vec![&welcome]),
        ("subject=welcome&organisation=other".to_owned(), vec![]),
        (after(&newer, "2100-01-01T00:00:00Z") + "&organisation=acme", vec![&welcome]),
        (after("2000-01-01T00:00:00Z", &newer), vec![&invoice]),
        (after(&older, &older), vec![]),
        (after("2100-01-01T00:00:00Z", "2000-01-01T00:00:00Z"), vec![]),
    ] {
        let page = listed(&server, &key, &query).await;
        assert_eq!(ids(&page).iter().collect::<Vec<_>>(), expected, "{query}");
        assert_eq!((&page["next"], &page["looked_back_to"]), (&Value::Null, &Value::Null));
        assert!(page["looked_at"].as_u64().unwrap() <= 3, "{query}: {page}");
    }
    let list =
        json_of(&site, &["message", "list", "--recipient", "smith@", "--subject", "invoice"]);
    assert_eq!(ids(&list), [&*invoice]);
    let list = json_of(
        &site,
        &[
            "message",
            "list",
            "--sender-domain",
            "example.com",
            "--until",
            &newer,
            "--since",
            &older,
        ],
    );
    assert_eq!(ids(&list), [&*invoice]);
    for (query, word) in [
        ("outcome=lost", "not an outcome"),
        ("sender_domain=a@b", "not a domain"),
        ("from=yesterday", "not a time"),
        ("until=2027-13-01T00:00:00Z", "not a time"),
        (&format!("subject={}", "x".repeat(201)), "at most 200"),
    ] {
        let url = format!("{}/page/messages?{query}", server.operator);
        let refused = server.client.get(url).bearer_auth(&key).send().await.unwrap();
        let (status, body) = answer(refused).await;
        assert_eq!(status, 400, "{query}");
        assert!(body["message"].as_str().unwrap().contains(word), "{body}");
    }
}
