//! Subscriptions: confirmed by our own signed call, or ended.

use std::time::Duration;

use serde_json::{Value, json};

use super::pki::{other_key, sign, sns_key};
use super::web::response;
use super::{FILE, HOST, Place, TOPIC};
use crate::site::NOW;

/// What SNS answers to `ConfirmSubscription`.
pub(super) const ANSWER: &str = "<ConfirmSubscriptionResponse><ConfirmSubscriptionResult>\
    <SubscriptionArn>arn:aws:sns:eu-west-1:123456789012:pillarbox:6b0e71bd</SubscriptionArn>\
    </ConfirmSubscriptionResult></ConfirmSubscriptionResponse>";

/// SNS's question whether this endpoint wants the topic's messages.
pub(super) fn confirmation() -> Value {
    let mut post = json!({
        "Type": "SubscriptionConfirmation",
        "MessageId": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b",
        "Token": "2336412f37&fb687f5d51",
        "TopicArn": TOPIC,
        "Message": "You have chosen to subscribe to the topic.\nTo confirm, visit SubscribeURL.",
        "SubscribeURL": format!("https://{HOST}/?Action=ConfirmSubscription&Token=2336412f37"),
        "Timestamp": NOW.to_string(),
        "SignatureVersion": "2",
        "SigningCertURL": format!("https://{HOST}/{FILE}"),
    });
    sign(&mut post, &sns_key());
    post
}

#[tokio::test]
async fn a_subscription_is_confirmed_by_the_signed_call_alone() {
    let place = Place::new().await;
    assert_eq!(place.post(&confirmation()).await, 200);
    let calls = place.aws.requests();
    assert_eq!(calls.len(), 1);
    let (head, body) = calls[0].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST / HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("/eu-west-1/sns/aws4_request"), "signed for the topic's region: {head}");
    assert_eq!(
        body,
        "Action=ConfirmSubscription&Version=2010-03-31&TopicArn=arn%3Aaws%3Asns%3Aeu-west-1%3A\
         123456789012%3Apillarbox&Token=2336412f37%26fb687f5d51&AuthenticateOnUnsubscribe=true"
    );
    // Nothing but the certificate was asked of SNS's host.
    assert_eq!(place.host.requests().len(), 1);
    assert_eq!(place.site.feedback.trouble(), None);
}

#[tokio::test]
async fn a_forged_confirmation_causes_no_call() {
    for field in ["Token", "SubscribeURL", "Message", "MessageId"] {
        let place = Place::new().await;
        let mut post = confirmation();
        post[field] = json!("another");
        place.is_forged(&post, 1).await;
    }
    let place = Place::new().await;
    let mut post = confirmation();
    sign(&mut post, &other_key());
    place.is_forged(&post, 1).await;
}

#[tokio::test]
async fn a_confirmation_for_a_foreign_topic_causes_no_call() {
    let place = Place::new().await;
    let mut post = confirmation();
    post["TopicArn"] = json!("arn:aws:sns:eu-west-1:666666666666:pillarbox");
    sign(&mut post, &sns_key());
    place.is_forged(&post, 0).await;
}

#[tokio::test]
async fn a_confirmation_that_fails_is_told_and_comes_again() {
    let place = Place::new().await;
    place.aws.answer(|_| {
        let body = "<ErrorResponse><Error><Type>Sender</Type><Code>AuthorizationError</Code>\
                    <Message>not authorized</Message></Error></ErrorResponse>";
        response("403 Forbidden", "content-type: text/xml\r\n", body)
    });
    assert_eq!(place.post(&confirmation()).await, 503);
    let trouble = place.site.feedback.trouble().unwrap();
    assert!(trouble.contains("sns:ConfirmSubscription"), "{trouble}");
    assert!(trouble.contains(TOPIC) && trouble.contains("AuthorizationError"), "{trouble}");
    place.aws.answer(|_| super::ok(ANSWER));
    assert_eq!(place.post(&confirmation()).await, 200);
    assert_eq!(place.site.feedback.trouble(), None);
}

#[tokio::test]
async fn the_end_of_a_subscription_is_told_and_nothing_is_called() {
    let place = Place::new().await;
    let mut post = confirmation();
    post["Type"] = json!("UnsubscribeConfirmation");
    assert_eq!(place.post(&post).await, 403, "it was signed as something else");
    sign(&mut post, &sns_key());
    assert_eq!(place.post(&post).await, 200);
    let trouble = place.site.feedback.trouble().unwrap();
    assert!(trouble.contains(TOPIC) && trouble.contains("removed"), "{trouble}");
    assert_eq!(place.aws.connections(), 0);
    // Events that come show that it was subscribed again.
    place.site.clock.advance(Duration::from_mins(1));
    assert_eq!(place.post(&place.delivery()).await, 200);
    assert_eq!(place.site.feedback.trouble(), None);
}
