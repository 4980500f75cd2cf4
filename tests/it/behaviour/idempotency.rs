//! Idempotency: one key, one message, for one organisation.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::kit::{Site, answer, message, message_with, metric, refusal};

#[tokio::test]
async fn two_hundred_concurrent_posts_of_one_key_make_one_message() {
    let site = Site::new().await;
    let server = site.start();
    let body = message_with("idempotencyKey", json!("order-17"));
    let mut posts = JoinSet::new();
    for _ in 0..200 {
        let post = server.post(&body);
        posts.spawn(async move {
            let response = post.send().await.unwrap();
            let replayed = response.headers().contains_key("idempotent-replayed");
            let (status, body) = answer(response).await;
            assert_eq!(status, 200);
            (body["id"].as_str().unwrap().to_owned(), replayed)
        });
    }
    let answers = posts.join_all().await;
    let id = &answers[0].0;
    assert!(answers.iter().all(|(other, _)| other == id));
    assert_eq!(answers.iter().filter(|(_, replayed)| !replayed).count(), 1);
    server.wait_for(id, "sent").await;
    assert_eq!(site.simulator.accepted_total(), 1);
}

#[tokio::test]
async fn a_changed_body_is_still_a_replay_and_a_refused_request_binds_no_key() {
    let site = Site::new().await;
    let server = site.start();
    let mut body = message_with("idempotencyKey", json!("k"));
    body["subject"] = json!("");
    assert_eq!(refusal(server.post(&body).send().await.unwrap()).await.0, 422);
    body["subject"] = json!("First");
    let id = server.send(&body).await;
    body["subject"] = json!("Second");
    body["to"] = json!(["other@example.org"]);
    let replay = server.post(&body).header("idempotency-key", "another").send().await.unwrap();
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    assert_eq!(answer(replay).await.1, json!({ "id": id }));
    assert_eq!(server.record(&id).await["subject"], "First");
}

#[tokio::test]
async fn a_replay_is_still_subject_to_suppression_and_domain() {
    let site = Site::new().await;
    let server = site.start();
    let body = message_with("idempotencyKey", json!("k"));
    let id = server.send(&body).await;
    site.done(&["suppression", "add", "--org", "acme", "bob@example.org"]);
    assert_eq!(refusal(server.post(&body).send().await.unwrap()).await.1, "Suppressed");
    site.done(&["suppression", "remove", "--org", "acme", "bob@example.org"]);
    assert_eq!(server.send(&body).await, id);
    site.done(&["domain", "remove", "--org", "acme", "example.com"]);
    assert_eq!(refusal(server.post(&body).send().await.unwrap()).await.1, "UnverifiedDomain");
}

#[tokio::test]
async fn organisations_share_no_keys_and_no_messages() {
    let site = Site::new().await;
    let other = site.add_organisation("other", "other.example");
    let server = site.start();
    let body = message_with("idempotencyKey", json!("k"));
    let mine = server.send(&body).await;
    let mut theirs = body.clone();
    theirs["from"] = json!("x@other.example");
    let request = server.client.post(format!("{}/emails", server.base)).bearer_auth(&other);
    let request = request.header("content-type", "application/json").body(theirs.to_string());
    let (status, answered) = answer(request.send().await.unwrap()).await;
    assert_eq!(status, 200, "{answered}");
    assert_ne!(answered["id"], json!(mine));
    // Another organisation's domain and message get the same answer as absent ones.
    let get = |path: String, key: &str| {
        server.client.get(format!("{}{path}", server.base)).bearer_auth(key)
    };
    for path in ["", "/events", "/timeline"].map(|suffix| format!("/emails/{mine}{suffix}")) {
        let hidden = get(path, &other).send().await.unwrap().text().await.unwrap();
        let absent = get("/emails/0190b6a0-0000-7000-8000-000000000000".to_owned(), &other);
        assert_eq!(hidden, absent.send().await.unwrap().text().await.unwrap());
    }
}

#[tokio::test]
async fn an_idempotency_key_header_is_ignored_and_the_answer_says_so() {
    const NOTICE: &str =
        "the Idempotency-Key header is not implemented; put idempotencyKey into the JSON body";
    const METRIC: &str = "pillarbox_ignored_idempotency_headers_total";
    let site = Site::new().await;
    let server = site.start();
    assert!(
        !server.post(&message()).send().await.unwrap().headers().contains_key("pillarbox-notice")
    );
    assert_eq!(metric(&server, METRIC).await, Some(0.0));
    let post = |body: &Value| server.post(body).header("idempotency-key", "k").send();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let response = post(&message()).await.unwrap();
        assert_eq!(response.headers()["pillarbox-notice"], NOTICE);
        assert!(!response.headers().contains_key("idempotent-replayed"));
        let (status, body) = answer(response).await;
        assert_eq!(status, 200, "{body}");
        ids.push(body["id"].clone());
    }
    assert_ne!(ids[0], ids[1]);
    let refused = post(&message_with("subject", json!(""))).await.unwrap();
    assert_eq!(refused.headers()["pillarbox-notice"], NOTICE);
    assert_eq!(refusal(refused).await.1, "ValidationError");
    assert_eq!(metric(&server, METRIC).await, Some(3.0));
}
