//! Reading back: unknown ids, events, and the shape of the answers.

use serde_json::json;

use crate::kit::{Site, answer, message, message_with};

#[tokio::test]
async fn whatever_cannot_be_read_is_not_found_in_the_same_bytes() {
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    let mut answers = Vec::new();
    let upper = id.to_uppercase();
    let plain = id.replace('-', "");
    // `..` is none of them: a client makes `/events` of `/emails/../events`, which is the feed.
    for id in ["1", "0190b6a0-0000-7000-8000-000000000000", &upper, &plain, "%00", "...", "\u{e9}"]
    {
        for suffix in ["", "/events", "/timeline"] {
            let response = server.get(&format!("/emails/{id}{suffix}")).send().await.unwrap();
            let status = response.status();
            answers.push((status, response.text().await.unwrap()));
        }
    }
    assert_eq!(answers[0].0, 404);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}

#[tokio::test]
async fn a_message_without_events_has_an_empty_list() {
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    let response = server.get(&format!("/emails/{id}/events")).send().await.unwrap();
    assert_eq!(answer(response).await, (reqwest::StatusCode::OK, json!({ "events": [] })));
}

#[tokio::test]
async fn metadata_is_in_the_record_if_it_was_given_and_never_goes_to_the_provider() {
    let site = Site::new().await;
    let server = site.start();
    let metadata = json!({ "order": "1815", "Kunde": "Gr\u{fc}n \"&\" S\u{f6}hne", "a-b_c": " " });
    let mut ids = Vec::new();
    for given in [metadata.clone(), json!({})] {
        let id = server.send(&message_with("metadata", given.clone())).await;
        server.wait_for(&id, "sent").await;
        ids.push((id, given));
    }
    let without = server.send(&message()).await;
    server.wait_for(&without, "sent").await;
    for caught in site.simulator.messages() {
        assert!(!format!("{caught:?}").contains("1815"), "{caught:?}");
    }
    server.terminate().await;
    let server = site.start();
    for (id, given) in &ids {
        assert_eq!(server.record(id).await["metadata"], *given);
    }
    assert_eq!(server.record(&without).await.get("metadata"), None);
    let (_, page) = answer(server.get("/emails").send().await.unwrap()).await;
    assert_eq!(page["emails"][2]["metadata"], metadata);
    let shown = site.done(&["message", "show", &ids[0].0]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("metadata:        order=1815\n"), "{shown}");
}

#[tokio::test]
async fn the_operator_sees_the_message_too() {
    let site = Site::new().await;
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    let shown = site.done(&["message", "show", &id, "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["status"], "sent");
    let listed = site.done(&["message", "list"]);
    assert!(String::from_utf8(listed.stdout).unwrap().contains(&id));
    site.done(&["status"]);
}
