//! `GET /emails`: an organisation's own messages, newest first, in pages, filtered.

use std::time::{Duration, Instant};

use pillarbox_simulator::{EventOptions, Events, Options};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::kit::{PATIENCE, Server, Site, answer, message, message_with};

async fn list(server: &Server, query: &str) -> (StatusCode, Value) {
    answer(server.get(&format!("/emails{query}")).send().await.unwrap()).await
}

fn ids(page: &Value) -> Vec<&str> {
    page["emails"].as_array().unwrap().iter().map(|email| email["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn messages_are_listed_newest_first_in_pages_with_the_records_fields() {
    let site = Site::new().await;
    let server = site.start();
    assert_eq!(list(&server, "").await, (StatusCode::OK, json!({ "emails": [], "next": null })));
    let mut sent = Vec::new();
    for _ in 0..5 {
        sent.insert(0, server.send(&message()).await);
    }
    for id in &sent {
        server.wait_for(id, "sent").await;
    }
    let (status, page) = list(&server, "?limit=2").await;
    assert_eq!((status, ids(&page)), (StatusCode::OK, vec![&*sent[0], &*sent[1]]));
    let (_, record) =
        answer(server.get(&format!("/emails/{}", sent[0])).send().await.unwrap()).await;
    assert_eq!(page["emails"][0], record);
    assert_eq!(page["next"], sent[1]);
    let (_, page) = list(&server, &format!("?limit=3&before={}", sent[1])).await;
    assert_eq!(ids(&page), sent[2..]);
    assert_eq!(page["next"], Value::Null);
}

#[tokio::test]
async fn another_organisations_messages_are_in_no_list() {
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    let other = site.add_organisation("other", "other.example");
    for query in ["", "?limit=1", &format!("?before={id}"), "?recipient=ada%40example.net"] {
        let request = server.client.get(format!("{}/emails{query}", server.base));
        let listed = answer(request.bearer_auth(&other).send().await.unwrap()).await;
        assert_eq!(listed, (StatusCode::OK, json!({ "emails": [], "next": null })));
    }
}

#[tokio::test]
async fn filters_narrow_the_list() {
    let site = Site::new().await;
    let server = site.start();
    let ada = server.send(&message_with("to", json!(["Ada <ada@example.net>"]))).await;
    let bob = server.send(&message_with("to", json!(["bob@example.net"]))).await;
    for id in [&ada, &bob] {
        server.wait_for(id, "sent").await;
    }
    let (_, page) = list(&server, "?recipient=ADA%40Example.net").await;
    assert_eq!(ids(&page), [&ada]);
    let (_, page) = list(&server, "?status=failed").await;
    assert!(ids(&page).is_empty());
    let (_, page) = list(&server, "?status=sent").await;
    assert_eq!(ids(&page), [&bob, &ada]);
    let created = page["emails"][0]["createdAt"].as_str().unwrap().to_owned();
    let (_, page) = list(&server, &format!("?createdFrom={created}")).await;
    assert!(ids(&page).contains(&&*bob));
    let (_, page) = list(&server, "?createdBefore=2026-01-01T00:00:00Z").await;
    assert!(ids(&page).is_empty());
}

#[tokio::test]
async fn messages_are_found_by_their_latest_event() {
    let events = Events::On(EventOptions::default());
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    let server = site.start();
    let delivered = server.send(&message()).await;
    let bounce = json!(["bounce@simulator.amazonses.com"]);
    let bounced = server.send(&message_with("to", bounce)).await;
    for (id, event) in [(&delivered, "delivery"), (&bounced, "bounce")] {
        let end = Instant::now() + PATIENCE;
        while server.record(id).await["lastEvent"]["type"] != event {
            assert!(Instant::now() < end, "no {event}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (_, page) = list(&server, &format!("?lastEvent={event}")).await;
        assert_eq!(ids(&page), [id], "{event}");
    }
    for query in ["?lastEvent=complaint", "?lastEvent=bounce&status=failed"] {
        assert!(ids(&list(&server, query).await.1).is_empty(), "{query}");
    }
    let (_, page) = list(&server, "?lastEvent=bounce&status=sent").await;
    assert_eq!(ids(&page), [&bounced]);
}

#[tokio::test]
async fn a_wrong_parameter_is_refused_by_its_name() {
    let site = Site::new().await;
    let server = site.start();
    for (query, field) in [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?limit=x", "limit"),
        ("?before=1", "before"),
        ("?status=delivered", "status"),
        ("?lastEvent=opened", "lastEvent"),
        ("?lastEvent=", "lastEvent"),
        ("?recipient=Ada%20<ada@example.net>", "recipient"),
        ("?createdFrom=yesterday", "createdFrom"),
        ("?createdBefore=2026-13-01T00:00:00Z", "createdBefore"),
        ("?limit=1&limit=2", "limit"),
        ("?page=2", "page"),
    ] {
        let (status, body) = list(&server, query).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{query}");
        assert_eq!(body["error"]["code"], "ValidationError");
        assert_eq!(body["error"]["field"], field, "{query}");
    }
    let (_, body) = list(&server, "?created_from=2026-01-01T00:00:00Z").await;
    let text = body["error"]["message"].as_str().unwrap();
    assert!(text.contains("`createdFrom`"), "{text}");
}
