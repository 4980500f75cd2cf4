//! `GET /events`: the feed of all messages' events, in pages that follow a cursor.

use std::time::{Duration, Instant};

use pillarbox_simulator::{EventOptions, Events, Options};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Server, Site, answer, is_on_postgres, message, message_with};

async fn feed(server: &Server, query: &str) -> (StatusCode, Value) {
    answer(server.get(&format!("/events{query}")).send().await.unwrap()).await
}

/// A page that must be given.
async fn page(server: &Server, query: &str) -> (Vec<Value>, String) {
    let (status, page) = feed(server, query).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    let events = page["events"].as_array().unwrap().clone();
    (events, page["next"].as_str().unwrap().to_owned())
}

/// Follows the feed from a cursor until there are so many events.
async fn follow(server: &Server, after: &str, number: usize) -> (Vec<Value>, String) {
    let (mut events, mut next) = (Vec::new(), after.to_owned());
    let end = Instant::now() + PATIENCE;
    while events.len() < number {
        assert!(Instant::now() < end, "only {events:?}");
        let query = if next.is_empty() { String::new() } else { format!("?after={next}&limit=2") };
        let more;
        (more, next) = page(server, &query).await;
        if more.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        events.extend(more);
    }
    (events, next)
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

async fn site_with_events() -> Site {
    let events = Events::On(EventOptions::default());
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_follows_what_becomes_of_messages_also_over_a_restart() {
    let site = site_with_events().await;
    let server = site.start();
    let (none, start) = page(&server, "").await;
    assert_eq!(none, Vec::<Value>::new());
    let mut body = message_with("to", json!(["Bob <bounce@simulator.amazonses.com>"]));
    body["metadata"] = json!({"order": "1815"});
    let id = server.send(&body).await;
    let (events, next) = follow(&server, &start, 2).await;
    assert_eq!(types(&events), ["email.sent", "email.bounce"]);
    let record = server.record(&id).await;
    let common = |rest: Value| {
        let mut data = json!({
            "id": id,
            "status": "sent",
            "to": ["Bob <bounce@simulator.amazonses.com>"],
            "metadata": {"order": "1815"},
        });
        data.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        data
    };
    assert_eq!(events[0]["data"], common(json!({"sesMessageId": record["sesMessageId"]})));
    let path = format!("/emails/{id}/events");
    let (_, timeline) = answer(server.get(&path).send().await.unwrap()).await;
    assert_eq!(events[1]["data"], common(json!({"event": timeline["events"][0]})));
    for event in &events {
        assert_eq!(event.as_object().unwrap().len(), 4, "{event}");
        assert!(event["timestamp"].as_str().unwrap() >= record["createdAt"].as_str().unwrap());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        assert!(event["id"].as_str().unwrap().chars().all(is_plain));
        assert!(next.chars().all(is_plain));
    }
    assert_ne!(events[0]["id"], events[1]["id"]);
    let (again, _) = page(&server, "").await;
    assert_eq!(again, events, "without a cursor, from the beginning");
    let (bounces, _) = page(&server, "?types=email.bounce,email.complaint").await;
    assert_eq!(bounces, events[1..]);
    server.terminate().await;

    let server = site.start();
    assert_eq!(page(&server, &format!("?after={next}")).await.0, Vec::<Value>::new());
    assert_eq!(page(&server, &format!("?after={start}")).await.0, events);
    server.send(&message()).await;
    let (more, _) = follow(&server, &next, 2).await;
    assert_eq!(types(&more), ["email.sent", "email.delivery"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_outlives_a_backup_that_is_restored_and_a_compaction() {
    let site = site_with_events().await;
    let server = site.start();
    server.send(&message()).await;
    let (first, cursor) = follow(&server, "", 2).await;
    let backup = site.directory().join("backup");
    site.back_up(&backup);
    server.send(&message()).await;
    let (_, lost) = follow(&server, &cursor, 2).await;
    server.terminate().await;
    site.restore(&backup);
    if !is_on_postgres() {
        site.done(&["compact"]);
    }

    let server = site.start();
    assert_eq!(page(&server, "").await.0, first);
    server.send(&message()).await;
    let (new, _) = follow(&server, &cursor, 2).await;
    assert_eq!(types(&new), ["email.sent", "email.delivery"]);
    let (same, _) = follow(&server, &lost, 2).await;
    assert_eq!(same, new, "what came after the restoration is behind every earlier cursor");
}

#[tokio::test]
async fn another_organisations_events_and_cursors_are_not_given() {
    let site = Site::new().await;
    let mut server = site.start();
    server.send(&message()).await;
    let (_, cursor) = follow(&server, "", 1).await;
    let own = std::mem::replace(&mut server.key, site.add_organisation("other", "other.example"));
    let (events, others) = page(&server, "").await;
    assert_eq!(events, Vec::<Value>::new());
    for (key, cursor) in [(server.key.clone(), cursor), (own, others)] {
        server.key = key;
        let (status, body) = feed(&server, &format!("?after={cursor}")).await;
        let error = (&body["error"]["code"], &body["error"]["field"]);
        assert_eq!(error, (&json!("ValidationError"), &json!("after")), "{status} {body}");
    }
}

#[tokio::test]
async fn a_wrong_parameter_of_the_feed_is_refused_by_its_name() {
    let site = Site::new().await;
    let server = site.start();
    let (_, cursor) = page(&server, "").await;
    for (query, field) in [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?after=", "after"),
        ("?after=1", "after"),
        (&format!("?after={cursor}A"), "after"),
        (&format!("?after={}", &cursor[1..]), "after"),
        ("?types=", "types"),
        ("?types=bounce", "types"),
        ("?types=email.bounce,", "types"),
        ("?types=email.bounce&types=email.sent", "types"),
        ("?before=1", "before"),
    ] {
        let (status, body) = feed(&server, query).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{query}");
        assert_eq!(body["error"]["code"], "ValidationError", "{query}");
        assert_eq!(body["error"]["field"], field, "{query}");
    }
    let stranger = server.client.get(format!("{}/events", server.base)).send().await.unwrap();
    assert_eq!(stranger.status(), StatusCode::UNAUTHORIZED);
    let posted = server.client.post(format!("{}/events", server.base)).bearer_auth(&server.key);
    let posted = posted.send().await.unwrap();
    assert_eq!(
        (posted.status(), &posted.headers()["allow"]),
        (StatusCode::METHOD_NOT_ALLOWED, &"GET".parse().unwrap())
    );
}
