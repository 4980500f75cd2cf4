//! Batches in Resend's shape.

use serde_json::{Value, json};

use super::{Resend, email_with};
use crate::kit::{answer, message, message_with};

fn ids(body: &Value) -> Vec<String> {
    let ids = body["data"].as_array().unwrap().iter();
    ids.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_strict_batch_is_accepted_whole_or_not_at_all() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let batch = json!([message(), email_with(json!({ "to": "eve@example.org" }))]);
    let post = resend.post("/emails/batch", &batch).header("x-batch-validation", "strict");
    let (status, body) = answer(post.send().await.unwrap()).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    let accepted = ids(&body);
    assert_eq!(accepted.len(), 2);
    assert_eq!(resend.server.record(&accepted[1]).await["to"], json!(["eve@example.org"]));
    let bad = json!([message(), message_with("subject", Value::Null)]);
    let (status, name, words) = resend.refused(resend.post("/emails/batch", &bad)).await;
    assert_eq!((status, name.as_str()), (422, "missing_required_field"));
    assert!(words.starts_with("emails[1].subject: "), "{words}");
    for wrong in [json!([]), json!({}), json!([7]), json!(vec![message(); 101])] {
        let (status, ..) = resend.refused(resend.post("/emails/batch", &wrong)).await;
        assert!([400, 422].contains(&status), "{status}");
    }
    let strange = resend.post("/emails/batch", &batch).header("x-batch-validation", "lax");
    assert_eq!(resend.refused(strange).await.1, "validation_error");
    assert_eq!(resend.get("/emails").await["data"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_permissive_batch_tells_which_are_refused_and_why() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let batch =
        json!([message_with("to", json!([])), message(), 7, message_with("from", json!("x"))]);
    let post = || resend.post("/emails/batch", &batch).header("x-batch-validation", "permissive");
    let (status, body) = answer(post().send().await.unwrap()).await;
    assert_eq!((status.as_u16(), ids(&body).len()), (200, 1), "{body}");
    let errors = body["errors"].as_array().unwrap();
    let indices: Vec<_> = errors.iter().map(|error| error["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 2, 3]);
    assert!(errors.iter().all(|error| error["message"].as_str().unwrap().starts_with("emails[")));
    let good = json!([message()]);
    let post = resend.post("/emails/batch", &good).header("x-batch-validation", "permissive");
    assert_eq!(answer(post.send().await.unwrap()).await.1["errors"], json!([]));
}

#[tokio::test]
async fn a_batchs_key_is_for_each_place_and_meets_no_other() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let batch = json!([message(), message(), message()]);
    let post = |batch: &Value| resend.post("/emails/batch", batch).header("Idempotency-Key", "k");
    let first = ids(&answer(post(&batch).send().await.unwrap()).await.1);
    assert_eq!(first.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    // A retry, also with another body and one more.
    let other = email_with(json!({ "subject": "Other" }));
    let again =
        ids(&answer(post(&json!([other, other, other, other])).send().await.unwrap()).await.1);
    assert_eq!(again[..3], first[..]);
    assert!(!first.contains(&again[3]));
    // The key of a single send is another one, over both listeners.
    let single = resend.post("/emails", &message()).header("Idempotency-Key", "k");
    let single = answer(single.send().await.unwrap()).await.1["id"].clone();
    assert!(!again.iter().any(|id| single == json!(id)));
    let mut body = message();
    body["idempotencyKey"] = json!("k");
    assert_eq!(json!(resend.server.send(&body).await), single);
    // Kept over a restart.
    for id in &again {
        resend.server.wait_for(id, "sent").await;
    }
    resend.server.terminate().await;
    let resend = Resend::start(&site);
    let kept = resend.post("/emails/batch", &batch).header("Idempotency-Key", "k");
    assert_eq!(ids(&answer(kept.send().await.unwrap()).await.1), first);
}
