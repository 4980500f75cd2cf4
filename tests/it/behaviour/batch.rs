//! Batches: all messages of one request, or none of them.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_judge::history::{Event, Post};
use pillarbox_simulator::Options;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::kit::{
    History, ORGANISATION, Server, Site, answer, message, message_with, metric, refusal,
};

pub(super) const ACCEPTED: &str = "pillarbox_accepted_messages_total";

pub(super) fn post(server: &Server, body: &Value) -> reqwest::RequestBuilder {
    let request = server.client.post(format!("{}/emails/batch", server.base));
    let request = request.bearer_auth(&server.key).header("content-type", "application/json");
    request.body(body.to_string())
}

/// Sends a batch that must be accepted; gives its answers.
async fn send(server: &Server, emails: &[Value]) -> Vec<Value> {
    let response = post(server, &json!({ "emails": emails })).send().await.unwrap();
    assert!(!response.headers().contains_key("idempotent-replayed"));
    let (status, body) = answer(response).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    body["emails"].as_array().unwrap().clone()
}

pub(super) async fn refused(server: &Server, body: &Value) -> (u16, String, Option<String>) {
    refusal(post(server, body).send().await.unwrap()).await
}

pub(super) fn with_key(key: &str) -> Value {
    message_with("idempotencyKey", json!(key))
}

pub(super) async fn listed(server: &Server) -> usize {
    let (_, page) = answer(server.get("/emails?limit=100").send().await.unwrap()).await;
    page["emails"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_batch_is_answered_in_its_order_and_every_message_is_sent() {
    let site = Site::new().await;
    let server = site.start();
    let emails: Vec<_> = (0..100).map(|n| message_with("subject", json!(format!("{n}")))).collect();
    let answers = send(&server, &emails).await;
    assert_eq!(answers.len(), 100);
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
        let record = server.wait_for(answer["id"].as_str().unwrap(), "sent").await;
        assert_eq!(record["subject"], json!(n.to_string()));
    }
    assert_eq!(site.simulator.accepted_total(), 100);
    assert_eq!(metric(&server, ACCEPTED).await, Some(100.0));
    // What a message of its own can have, one of a batch can.
    let mut email = message_with("metadata", json!({ "order": "1815" }));
    email["attachments"] = json!([{ "filename": "a.pdf", "content": "QUJD" }]);
    let id = send(&server, &[email]).await[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(server.wait_for(&id, "sent").await["metadata"]["order"], "1815");
    assert_eq!(*site.simulator.messages().last().unwrap().attachments[0].content, *b"ABC");
}

#[tokio::test]
async fn equal_keys_and_replays_are_one_message_each() {
    let site = Site::new().await;
    let server = site.start();
    let earlier = server.send(&with_key("earlier")).await;
    let emails =
        [with_key("a"), message(), with_key("earlier"), with_key("a"), with_key("earlier")];
    let answers = send(&server, &emails).await;
    let id = |n: usize| &answers[n]["id"];
    let replayed: Vec<_> = answers.iter().map(|answer| answer.get("replayed").cloned()).collect();
    let yes = Some(json!(true));
    assert_eq!(replayed, [None, None, yes.clone(), yes.clone(), yes.clone()]);
    assert_eq!((id(2), id(3), id(4)), (&json!(earlier), id(0), &json!(earlier)));
    assert_ne!(id(0), id(1));
    assert_eq!(listed(&server).await, 3);
    // The whole batch again: what has a key replays.
    let again = send(&server, &emails).await;
    assert_eq!((&again[0]["id"], &again[0]["replayed"]), (id(0), &json!(true)));
    assert_ne!(&again[1]["id"], id(1));
    assert_eq!(listed(&server).await, 4);
}

#[tokio::test]
async fn batches_and_single_messages_that_race_for_a_key_get_one_id() {
    let site = Site::new().await;
    let server = site.start();
    let mut posts = JoinSet::new();
    for n in 0..40 {
        let single = server.post(&with_key("k"));
        let batch = post(&server, &json!({ "emails": [with_key(&n.to_string()), with_key("k")] }));
        posts.spawn(async move {
            let (status, body) = answer(single.send().await.unwrap()).await;
            assert_eq!(status, 200, "{body}");
            body["id"].clone()
        });
        posts.spawn(async move {
            let (status, body) = answer(batch.send().await.unwrap()).await;
            assert_eq!(status, 200, "{body}");
            body["emails"][1]["id"].clone()
        });
    }
    let ids = posts.join_all().await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(metric(&server, ACCEPTED).await, Some(41.0));
}

#[tokio::test]
async fn one_wrong_message_refuses_all_with_its_path() {
    let site = Site::new().await;
    let server = site.start();
    site.done(&["suppression", "add", "--org", "acme", "gone@example.org"]);
    let third = |field: &str, value: Value| {
        let wrong = message_with(field, value);
        json!({ "emails": [with_key("k"), message(), wrong] })
    };
    for (body, code, field) in [
        (third("to", json!(["a@x.org", "nobody"])), "ValidationError", "emails[2].to[1]"),
        (third("to", json!("a@x.org")), "ValidationError", "emails[2].to"),
        (third("subjct", json!("a")), "ValidationError", "emails[2].subjct"),
        (third("text", json!("")), "ValidationError", "emails[2]"),
        (third("headers", json!({ "Y": "1" })), "ValidationError", "emails[2].headers.Y"),
        (
            third("attachments", json!([{ "filename": "a.exe", "content": "QUJD" }])),
            "ValidationError",
            "emails[2].attachments[0].filename",
        ),
        (third("metadata", json!({ "a": "" })), "ValidationError", "emails[2].metadata.a"),
        (third("idempotencyKey", json!("")), "ValidationError", "emails[2].idempotencyKey"),
        (third("tag", json!("marketing")), "UnsupportedTag", "emails[2].tag"),
        (third("from", json!("a@other.example")), "UnverifiedDomain", "emails[2].from"),
        (third("cc", json!(["gone@example.org"])), "Suppressed", "emails[2].cc[0]"),
        (json!({ "emails": [message(), "x"] }), "ValidationError", "emails[1]"),
        (json!({ "emails": [null] }), "ValidationError", "emails[0]"),
        (json!({ "emails": [] }), "ValidationError", "emails"),
        (json!({ "emails": vec![message(); 101] }), "ValidationError", "emails"),
        (json!({ "emails": vec![message(); 200] }), "ValidationError", "emails"),
        (json!({ "emails": {} }), "ValidationError", "emails"),
        (json!({ "emails": null }), "ValidationError", "emails"),
        (json!({}), "ValidationError", "emails"),
        (json!({ "email": [message()] }), "ValidationError", "email"),
        (message(), "ValidationError", "from"),
    ] {
        let expected = (422, code.to_owned(), Some(field.to_owned()));
        assert_eq!(refused(&server, &body).await, expected);
    }
    // The fields of all come before the domain of the first.
    let stranger = message_with("from", json!("a@other.example"));
    let body = json!({ "emails": [stranger, message_with("subject", json!(""))] });
    assert_eq!(refused(&server, &body).await.2.as_deref(), Some("emails[1].subject"));
    assert_eq!(listed(&server).await, 0);
    assert_eq!(metric(&server, ACCEPTED).await, Some(0.0));
    // No key is bound.
    let answers = send(&server, &[with_key("k")]).await;
    assert_eq!(answers[0].get("replayed"), None);

    let get = server.get("/emails/batch").send().await.unwrap();
    assert_eq!(get.headers()["allow"], "POST");
    assert_eq!(refusal(get).await.1, "MethodNotAllowed");
    let array = post(&server, &json!([message()])).send().await.unwrap();
    assert_eq!(refusal(array).await.1, "InvalidJson");
}

#[tokio::test]
async fn a_batch_that_finds_no_room_leaves_nothing_and_one_of_replays_needs_none() {
    let more = "max_request_bytes = 16384\n[sending]\nmax_pending_bytes = 65536";
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let site = Site::with(more, slow).await;
    let server = site.start();
    let bytes = async || metric(&server, "pillarbox_queue_bytes").await.unwrap();
    let first = send(&server, &[with_key("a"), with_key("b")]).await;
    let batch = json!({ "emails": vec![message(); 8] });
    let mut taken = 2.0;
    let refused = loop {
        let response = post(&server, &batch).send().await.unwrap();
        if response.status() != 200 {
            assert!(response.headers().contains_key("retry-after"));
            break refusal(response).await;
        }
        taken += 8.0;
    };
    assert_eq!(refused, (503, "QueueFull".to_owned(), None));
    assert!(taken > 2.0, "some of them find room");
    let full = bytes().await;
    assert_eq!(metric(&server, ACCEPTED).await, Some(taken));
    // Refused again and again, it holds nothing back.
    for _ in 0..5 {
        let mut emails = vec![message(); 8];
        emails[0] = with_key("a");
        emails.push(with_key("new"));
        assert_eq!(self::refused(&server, &json!({ "emails": emails })).await.1, "QueueFull");
    }
    assert!((bytes().await - full).abs() < 0.5);
    let replays = send(&server, &[with_key("b"), with_key("a"), with_key("b")]).await;
    assert_eq!(replays[0]["id"], first[1]["id"]);
    assert!(replays.iter().all(|replay| replay["replayed"] == true));
    assert_eq!(metric(&server, ACCEPTED).await, Some(taken));
}

/// Messages of one batch. The next batch repeats half of them.
const OF_A_BATCH: usize = 10;

/// Posts a batch and records the answer for each of its messages; returns true if it is accepted.
async fn post_and_tell(server: &Server, batch: usize, history: &History) -> bool {
    let first = batch * OF_A_BATCH / 2;
    let keys: Vec<_> = (first..first + OF_A_BATCH).map(|n| format!("key {n}")).collect();
    let emails = keys.iter().map(|key| {
        let mut email = with_key(key);
        email["subject"] = json!(key);
        email
    });
    let body = json!({ "emails": emails.collect::<Vec<_>>() });
    let began = history.now();
    let told = async {
        let response = post(server, &body).send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, serde_json::from_str::<Value>(&response.text().await.ok()?).unwrap()))
    };
    let told = told.await;
    for (n, key) in keys.into_iter().enumerate() {
        let one = told.as_ref().map(|(_, body)| &body["emails"][n]);
        history.write(&Event::Post(Post {
            began,
            ended: history.now(),
            organisation: ORGANISATION.to_owned(),
            key: Some(key.clone()),
            subject: key,
            status: told.as_ref().map(|(status, _)| *status),
            id: one.and_then(|one| one["id"].as_str()).map(str::to_owned),
            replayed: one.is_some_and(|one| one["replayed"] == true),
        }));
    }
    told.is_some_and(|(status, _)| status == 200)
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_share_messages_and_are_repeated_after_kills_double_nothing() {
    const BATCHES: usize = 24;
    const KILLS: usize = 4;
    let site = Site::new().await;
    let history = History::by_default("batches", &site.simulator);
    let mut left: Vec<usize> = (0..BATCHES).collect();
    for kills in 0.. {
        let server = Arc::new(site.start());
        let mut posts = JoinSet::new();
        for &batch in &left {
            let (server, history) = (Arc::clone(&server), history.clone());
            posts.spawn(async move { (batch, post_and_tell(&server, batch, &history).await) });
        }
        if kills < KILLS {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..40))).await;
            server.signal("KILL");
        }
        let mut all_are_accepted = true;
        for (batch, is_accepted) in posts.join_all().await {
            all_are_accepted &= is_accepted;
            // Some are repeated all the same.
            if is_accepted && batch % 3 != 0 {
                left.retain(|one| *one != batch);
            }
        }
        if kills < KILLS {
            history.write(&Event::Killed { at: history.now() });
        }
        if kills < KILLS || !all_are_accepted {
            continue;
        }
        let summary = history.finish(&server.base, &server.key, &site.simulator).await;
        println!("{summary:?}");
        let messages = (BATCHES + 1) * OF_A_BATCH / 2;
        assert_eq!((summary.messages, summary.killed), (messages, KILLS));
        return;
    }
}
