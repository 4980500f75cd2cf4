//! What strangers and failures may cost.

use std::time::Duration;

use pillarbox::http::provider::limits;
use serde_json::json;

use super::web::response;
use super::{HOST, Place};

#[tokio::test]
async fn many_certificate_urls_cause_few_fetches() {
    let place = Place::new().await;
    place.host.answer(|_| response("404 Not Found", "", ""));
    for number in 0..50 {
        let mut post = place.delivery();
        post["SigningCertURL"] = json!(format!("https://{HOST}/{number}.pem"));
        let status = place.post(&post).await;
        assert_eq!(status, if number < 8 { 403 } else { 503 });
    }
    assert_eq!(place.host.requests().len(), 8);
    // SNS tries again, and by then its own certificate may be fetched.
    place.serve_good_certificate();
    assert_eq!(place.post(&place.delivery()).await, 503);
    place.site.clock.advance(Duration::from_secs(10));
    assert_eq!(place.post(&place.delivery()).await, 200);
    // One that is kept needs no fetch.
    assert_eq!(place.post(&place.delivery()).await, 200);
    assert_eq!(place.host.requests().len(), 9);
}

#[tokio::test]
async fn a_fetch_that_failed_is_not_repeated_at_once() {
    let place = Place::new().await;
    place.host.answer(|_| response("500 Internal Server Error", "", ""));
    for _ in 0..20 {
        assert_eq!(place.post(&place.delivery()).await, 503);
    }
    assert_eq!(place.host.requests().len(), 1);
    let trouble = place.site.feedback.trouble().unwrap();
    assert!(trouble.contains("status 500") && trouble.contains("HTTPS"), "{trouble}");
    assert_eq!(place.site.feedback.counts().forged, 0);
    place.serve_good_certificate();
    place.site.clock.advance(Duration::from_secs(30));
    assert_eq!(place.post(&place.delivery()).await, 200);
    assert_eq!(place.site.feedback.trouble(), None);
}

#[tokio::test]
async fn posts_that_come_together_wait_for_one_fetch() {
    let place = Place::new().await;
    let post = place.delivery();
    let (a, b, c, d) =
        tokio::join!(place.post(&post), place.post(&post), place.post(&post), place.post(&post));
    assert_eq!([a, b, c, d], [200; 4]);
    assert_eq!(place.host.requests().len(), 1);
    assert_eq!(place.site.events(place.message), 1);
}

/// Posts a delivery, and gives one of a day later.
async fn a_day_after_the_first(place: &Place) -> serde_json::Value {
    assert_eq!(place.post(&place.delivery()).await, 200);
    place.site.clock.advance(Duration::from_hours(24));
    let mut post = place.delivery();
    post["Timestamp"] = json!(place.site.clock.now().to_string());
    super::sign(&mut post, &super::sns_key());
    post
}

#[tokio::test]
async fn a_certificate_is_fetched_again_after_a_day() {
    let place = Place::new().await;
    let post = a_day_after_the_first(&place).await;
    assert_eq!(place.post(&post).await, 200);
    assert_eq!(place.host.requests().len(), 2);
}

#[tokio::test]
async fn strangers_do_not_keep_a_known_certificate_from_being_used() {
    let place = Place::new().await;
    let post = a_day_after_the_first(&place).await;
    // They use up the fetches at the very moment at which it is to be fetched again.
    let mut forged = post.clone();
    forged["Message"] = json!("forged");
    for number in 0..10 {
        forged["SigningCertURL"] = json!(format!("https://{HOST}/{number}.pem"));
        assert_eq!(place.post(&forged).await, if number < 8 { 403 } else { 503 });
    }
    assert_eq!(place.post(&post).await, 200);
    // Once it may be fetched, it is.
    place.site.clock.advance(Duration::from_secs(30));
    let fetched = place.host.requests().len();
    assert_eq!(place.post(&post).await, 200);
    assert_eq!(place.host.requests().len(), fetched + 1);
}

#[tokio::test]
async fn a_post_of_the_largest_message_is_read_and_a_longer_one_is_not() {
    let place = Place::new().await;
    let mut post = place.delivery();
    // The largest message that there is, of characters that JSON has to escape.
    post["Message"] = json!("\"".repeat(256 * 1024));
    super::sign(&mut post, &super::sns_key());
    assert_eq!(place.post(&post).await, 200);
    let long = format!("{}{}", place.delivery(), " ".repeat(limits().max_request_bytes));
    assert_eq!(place.post_text(long).await, 413);
    place.is_unchanged();
}

#[tokio::test]
async fn there_is_one_path_and_one_method() {
    let place = Place::new().await;
    let base = place.url.strip_suffix("/provider/sns").unwrap();
    for path in ["/", "/provider", "/provider/sns/", "/emails"] {
        let request = place.client.post(format!("{base}{path}")).body(place.delivery().to_string());
        assert_eq!(request.send().await.unwrap().status(), 404, "{path}");
    }
    let got = place.client.get(&place.url).send().await.unwrap();
    assert_eq!(got.status(), 405);
    assert_eq!(got.headers()["allow"], "POST");
    place.is_unchanged();
}
