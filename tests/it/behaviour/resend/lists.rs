//! Pages of records in Resend's shape.

use serde_json::{Value, json};

use super::Resend;
use crate::kit::message;

fn ids(page: &Value) -> Vec<&str> {
    page["data"].as_array().unwrap().iter().map(|email| email["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn cursors_lead_to_older_and_to_newer_messages() {
    let site = Resend::site().await;
    let resend = Resend::start(&site);
    let empty = resend.get("/emails").await;
    assert_eq!(empty, json!({ "object": "list", "has_more": false, "data": [] }));
    let mut sent = Vec::new();
    for _ in 0..7 {
        sent.push(resend.send(&message()).await);
    }
    sent.reverse();
    let sent: Vec<_> = sent.iter().map(String::as_str).collect();
    let all = resend.get("/emails").await;
    assert_eq!((ids(&all), &all["has_more"]), (sent.clone(), &json!(false)));
    let page = async |query: &str| {
        let page = resend.get(&format!("/emails?{query}")).await;
        assert_eq!(page["object"], "list");
        (ids(&page).iter().map(|id| (*id).to_owned()).collect::<Vec<_>>(), page["has_more"] == true)
    };
    let expect = |range: std::ops::Range<usize>, has_more| {
        (sent[range].iter().map(|id| (*id).to_owned()).collect::<Vec<_>>(), has_more)
    };
    assert_eq!(page("limit=3").await, expect(0..3, true));
    assert_eq!(page(&format!("limit=3&after={}", sent[2])).await, expect(3..6, true));
    assert_eq!(page(&format!("limit=3&after={}", sent[5])).await, expect(6..7, false));
    assert_eq!(page(&format!("after={}", sent[6])).await, expect(7..7, false));
    // Back again: the page that is right before.
    assert_eq!(page(&format!("limit=3&before={}", sent[6])).await, expect(3..6, true));
    assert_eq!(page(&format!("limit=3&before={}", sent[3])).await, expect(0..3, false));
    assert_eq!(page(&format!("limit=3&before={}", sent[1])).await, expect(0..1, false));
    assert_eq!(page(&format!("before={}", sent[0])).await, expect(0..0, false));
    for query in [
        "limit=0",
        "limit=101",
        "after=1",
        "before=x",
        "page=2",
        "limit=1&limit=1",
        &format!("after={0}&before={0}", sent[1]),
    ] {
        let (status, name, _) =
            resend.refused(resend.request("GET", &format!("/emails?{query}"))).await;
        assert!(
            status == 422 && ["invalid_parameter", "validation_error"].contains(&&*name),
            "{query}"
        );
    }
}
