//! Posts that somebody else has made, or has made something else of.

use std::time::Duration;

use serde_json::{Value, json};

use super::pki::{other_key, sign, sns_key};
use super::web::{Web, ok};
use super::{FILE, HOST, Place, TOPIC};
use crate::document::about;
use crate::site::NOW;

/// A signed post with one field changed, after which it is signed again.
async fn changed(field: &str, value: Value) -> (Place, Value) {
    let place = Place::new().await;
    let mut post = place.delivery();
    post[field] = value;
    sign(&mut post, &sns_key());
    (place, post)
}

async fn refuses_url(url: &str) {
    let (place, post) = changed("SigningCertURL", json!(url)).await;
    // Every name leads to the host of the tests: had it been asked, it would have answered.
    let before = place.host.connections();
    assert_eq!(place.post(&post).await, 403);
    assert_eq!(place.host.connections(), before);
    assert_eq!(place.site.feedback.counts().forged, 1);
    place.is_unchanged();
    assert_eq!(place.post(&place.delivery()).await, 200);
}

#[tokio::test]
async fn a_post_signed_by_another_key_is_refused() {
    let place = Place::new().await;
    let mut post = place.delivery();
    sign(&mut post, &other_key());
    place.is_forged(&post, 1).await;
}

#[tokio::test]
async fn a_post_whose_message_was_altered_is_refused() {
    let place = Place::new().await;
    let mut post = place.delivery();
    post["Message"] = json!(about(place.message, "event-bounce-record.json").to_string());
    place.is_forged(&post, 1).await;
}

#[tokio::test]
async fn a_post_of_which_any_signed_field_was_altered_is_refused() {
    for (field, value) in [
        ("MessageId", json!("5dc2e5d1-0000-5000-8000-000000000001")),
        ("Subject", json!("Another")),
        ("Subject", Value::Null),
        ("Timestamp", json!(NOW.plus(Duration::from_secs(1)).to_string())),
    ] {
        let place = Place::new().await;
        let mut post = place.delivery();
        post[field] = value;
        place.is_forged(&post, 1).await;
    }
}

#[tokio::test]
async fn a_post_whose_type_was_altered_is_refused() {
    let place = Place::new().await;
    let mut post = place.delivery();
    post["Type"] = json!("SubscriptionConfirmation");
    post["Token"] = json!("token");
    post["SubscribeURL"] = json!("https://sns.eu-west-1.amazonaws.com/");
    place.is_forged(&post, 1).await;
}

#[tokio::test]
async fn fields_beside_the_signed_ones_say_nothing() {
    let place = Place::new().await;
    let mut post = place.delivery();
    let bounce = about(place.message, "event-bounce-record.json");
    for (field, value) in bounce.as_object().unwrap() {
        post[field] = value.clone();
    }
    assert_eq!(place.post(&post).await, 200);
    let events = place.site.store.events(place.message).unwrap();
    assert_eq!(events.len(), 1);
    let counts = place.site.feedback.counts();
    assert_eq!((counts.deliveries, counts.bounces), (1, 0));
}

#[tokio::test]
async fn a_field_that_is_there_twice_is_refused() {
    let place = Place::new().await;
    let bounce = about(place.message, "event-bounce-record.json").to_string();
    let post = place.delivery().to_string();
    let twice = [
        post.replacen('{', &format!("{{\"Message\":{},", json!(bounce)), 1),
        format!("{},\"Message\":{}}}", &post[..post.len() - 1], json!(bounce)),
    ];
    for twice in twice {
        assert_eq!(place.post_text(twice).await, 403);
        place.is_unchanged();
    }
}

#[tokio::test]
async fn a_post_without_a_field_is_refused() {
    let fields = [
        "Type",
        "MessageId",
        "TopicArn",
        "Message",
        "Timestamp",
        "SignatureVersion",
        "Signature",
        "SigningCertURL",
    ];
    let place = Place::new().await;
    for field in fields {
        let mut post = place.delivery();
        post.as_object_mut().unwrap().remove(field);
        assert_eq!(place.post(&post).await, 403, "{field}");
    }
    for body in ["", "{}", "[]", "null", "\u{0}"] {
        assert_eq!(place.post_text(body.to_owned()).await, 403, "{body:?}");
    }
    place.is_unchanged();
    assert_eq!(place.host.connections(), 0);
    assert_eq!(place.site.feedback.counts().forged, 13);
}

#[tokio::test]
async fn a_certificate_from_a_foreign_host_is_never_fetched() {
    refuses_url(&format!("https://evil.example/{FILE}")).await;
}

#[tokio::test]
async fn a_certificate_from_a_look_alike_host_is_never_fetched() {
    refuses_url(&format!("https://{HOST}.evil.example/{FILE}")).await;
}

#[tokio::test]
async fn a_certificate_from_another_region_is_never_fetched() {
    refuses_url(&format!("https://sns.eu-west-2.amazonaws.com/{FILE}")).await;
    refuses_url(&format!("https://sns.eu-west-1x.amazonaws.com/{FILE}")).await;
}

#[tokio::test]
async fn a_certificate_from_another_service_of_aws_is_never_fetched() {
    refuses_url(&format!("https://s3.eu-west-1.amazonaws.com/{FILE}")).await;
}

#[tokio::test]
async fn a_certificates_url_with_a_user_is_refused() {
    refuses_url(&format!("https://{HOST}@evil.example/{FILE}")).await;
    refuses_url(&format!("https://user:password@{HOST}/{FILE}")).await;
}

#[tokio::test]
async fn a_certificates_url_with_a_query_is_refused() {
    refuses_url(&format!("https://{HOST}/{FILE}?a.pem")).await;
    refuses_url(&format!("https://{HOST}/?Action=GetTopicAttributes&a=.pem")).await;
}

#[tokio::test]
async fn a_certificates_url_with_a_fragment_is_refused() {
    refuses_url(&format!("https://{HOST}/x#{FILE}")).await;
}

#[tokio::test]
async fn a_certificates_url_with_a_port_is_refused() {
    refuses_url(&format!("https://{HOST}:8443/{FILE}")).await;
}

#[tokio::test]
async fn a_certificates_url_with_escapes_or_directories_is_refused() {
    refuses_url(&format!("https://{HOST}/%2e%2e/{FILE}")).await;
    refuses_url(&format!("https://{HOST}/a/{FILE}")).await;
}

#[tokio::test]
async fn a_certificates_url_without_tls_is_refused() {
    refuses_url(&format!("http://{HOST}/{FILE}")).await;
}

#[tokio::test]
async fn version_1_is_refused_and_the_trouble_says_what_to_set() {
    let (place, post) = changed("SignatureVersion", json!("1")).await;
    assert_eq!(place.post(&post).await, 403);
    let trouble = place.site.feedback.trouble().unwrap();
    assert!(trouble.contains(TOPIC), "{trouble}");
    assert!(trouble.contains("--attribute-name SignatureVersion"), "{trouble}");
    place.is_unchanged();
    assert_eq!(place.host.connections(), 0);
    assert_eq!(place.post(&place.delivery()).await, 200);
    assert_eq!(place.site.feedback.trouble(), None);
}

#[tokio::test]
async fn an_unknown_version_is_refused() {
    let (place, post) = changed("SignatureVersion", json!("3")).await;
    place.is_forged(&post, 0).await;
}

#[tokio::test]
async fn an_empty_signature_is_refused() {
    let place = Place::new().await;
    let mut post = place.delivery();
    post["Signature"] = json!("");
    place.is_forged(&post, 0).await;
}

#[tokio::test]
async fn a_signature_that_is_not_base64_is_refused() {
    let place = Place::new().await;
    let mut post = place.delivery();
    post["Signature"] = json!("***");
    place.is_forged(&post, 0).await;
}

#[tokio::test]
async fn a_post_for_a_foreign_topic_is_refused_and_named() {
    let foreign = "arn:aws:sns:eu-west-1:666666666666:pillarbox";
    let (place, post) = changed("TopicArn", json!(foreign)).await;
    assert_eq!(place.post(&post).await, 403);
    let trouble = place.site.feedback.trouble().unwrap();
    assert!(trouble.contains(foreign) && trouble.contains("sns_topics"), "{trouble}");
    place.is_unchanged();
    assert_eq!(place.host.connections(), 0);
    // Once a post was SNS's own, a stranger's is no trouble of ours.
    assert_eq!(place.post(&place.delivery()).await, 200);
    assert_eq!(place.post(&post).await, 403);
    assert_eq!(place.site.feedback.trouble(), None);
}

#[tokio::test]
async fn a_text_that_is_no_topic_is_not_repeated() {
    let (place, post) = changed("TopicArn", json!("\u{1b}[31mevil")).await;
    assert_eq!(place.post(&post).await, 403);
    assert_eq!(place.site.feedback.trouble(), None);
}

#[tokio::test]
async fn a_forgery_is_counted_and_no_trouble() {
    let place = Place::new().await;
    let mut post = place.delivery();
    sign(&mut post, &other_key());
    assert_eq!(place.post(&post).await, 403);
    post["SigningCertURL"] = json!("https://evil.example/certificate.pem");
    assert_eq!(place.post(&post).await, 403);
    post["SignatureVersion"] = json!("3");
    assert_eq!(place.post(&post).await, 403);
    assert_eq!(place.post_text("{}".to_owned()).await, 403);
    assert_eq!(place.site.feedback.counts().forged, 4);
    assert_eq!(place.site.feedback.trouble(), None);
}

#[tokio::test]
async fn an_old_post_is_refused_when_it_is_played_again() {
    let place = Place::new().await;
    let post = place.delivery();
    place.site.clock.advance(Duration::from_hours(1));
    assert_eq!(place.post(&post).await, 200, "an hour is allowed");
    place.site.clock.advance(Duration::from_millis(1));
    assert_eq!(place.post(&post).await, 403);
    assert_eq!(place.site.feedback.counts().forged, 1);
}

#[tokio::test]
async fn a_post_from_the_future_is_refused() {
    let future = NOW.plus(Duration::from_hours(1)).plus(Duration::from_millis(1));
    let (place, post) = changed("Timestamp", json!(future.to_string())).await;
    place.is_forged(&post, 0).await;
}

#[tokio::test]
async fn a_post_without_a_readable_time_is_refused() {
    let (place, post) = changed("Timestamp", json!("now")).await;
    place.is_forged(&post, 0).await;
}

#[tokio::test]
async fn raw_delivery_is_refused_and_the_trouble_says_what_to_set() {
    let place = Place::new().await;
    let body = crate::document::delivery(place.message).to_string();
    let request = place.client.post(&place.url).header("x-amz-sns-rawdelivery", "true").body(body);
    assert_eq!(request.send().await.unwrap().status(), 403);
    let trouble = place.site.feedback.trouble().unwrap();
    assert!(trouble.contains("RawMessageDelivery"), "{trouble}");
    place.is_unchanged();
}

#[tokio::test]
async fn a_subscribe_url_that_points_inside_is_never_fetched() {
    let place = Place::new().await;
    let inside = Web::start(None, ok("")).await;
    let mut post = super::confirmed::confirmation();
    post["SubscribeURL"] = json!(format!("http://{}/latest/meta-data", inside.address));
    sign(&mut post, &other_key());
    assert_eq!(place.post(&post).await, 403);
    // Not even where SNS itself has signed it.
    sign(&mut post, &sns_key());
    assert_eq!(place.post(&post).await, 200);
    assert_eq!(place.aws.requests().len(), 1);
    assert_eq!(inside.connections(), 0);
}
