//! What SNS itself posts.

use std::time::Duration;

use pillarbox::domain::message::Status;
use pillarbox::feedback::Counts;
use serde_json::json;

use super::pki::{NAME, sign, sns_key};
use super::{NOWADAYS, Place};
use crate::document::delivery;
use crate::site::NOW;

#[tokio::test]
async fn an_event_of_snss_is_on_the_record_and_a_repeat_changes_nothing() {
    let place = Place::new().await;
    for number in 1..=3 {
        assert_eq!(place.post(&place.delivery()).await, 200);
        assert_eq!(place.site.events(place.message), 1);
        assert_eq!(place.status(), Status::Sent);
        let counts = Counts { deliveries: number, ..Counts::default() };
        assert_eq!(place.site.feedback.counts(), counts);
    }
    assert_eq!(place.host.requests().len(), 1, "the certificate is kept");
    assert_eq!(place.site.feedback.trouble(), None);
}

#[tokio::test]
async fn an_event_without_a_subject_is_believed() {
    let place = Place::new().await;
    let mut post = place.delivery();
    post.as_object_mut().unwrap().remove("Subject");
    sign(&mut post, &sns_key());
    assert_eq!(place.post(&post).await, 200);
    assert_eq!(place.site.events(place.message), 1);
}

#[tokio::test]
async fn an_event_of_a_message_that_is_not_known_is_kept_until_it_is() {
    let place = Place::new().await;
    let mut document = delivery(place.message);
    document["mail"].as_object_mut().unwrap().remove("tags");
    let mut post = place.delivery();
    post["Message"] = json!(document.to_string());
    sign(&mut post, &sns_key());
    assert_eq!(place.post(&post).await, 200);
    let counts = Counts { deliveries: 1, unmatched: 1, ..Counts::default() };
    assert_eq!(place.site.feedback.counts(), counts);
    assert_eq!(place.site.events(place.message), 0);
    // The tagged event tells which message SES's id is for, and the kept one follows.
    assert_eq!(place.post(&place.delivery()).await, 200);
    assert_eq!(place.site.events(place.message), 1);
}

#[tokio::test]
async fn a_document_that_cannot_be_read_is_taken_so_that_it_does_not_come_for_ever() {
    let place = Place::new().await;
    let mut post = place.delivery();
    post["Message"] = json!("not of SES's");
    sign(&mut post, &sns_key());
    assert_eq!(place.post(&post).await, 200);
    let counts = Counts { unreadable: 1, ..Counts::default() };
    assert_eq!(place.site.feedback.counts(), counts);
}

#[tokio::test]
async fn a_certificate_may_come_with_issuers_that_lead_to_a_root() {
    let place = Place::new().await;
    let certificate = place.authority.issue(&sns_key(), NAME, NOWADAYS);
    place.serve(certificate + &place.authority.pem);
    assert_eq!(place.post(&place.delivery()).await, 200);
}

#[tokio::test]
async fn the_names_of_newer_regions_are_known() {
    let place = Place::new().await;
    let name = "sns-signing.eu-west-1.amazonaws.com";
    place.serve(place.authority.issue(&sns_key(), name, NOWADAYS));
    assert_eq!(place.post(&place.delivery()).await, 200);
}

#[tokio::test]
async fn a_certificate_that_is_kept_is_good_until_it_expires() {
    let place = Place::new().await;
    // The tests begin on the fifteenth of January 2027, at eight o'clock.
    place.serve(place.authority.issue_until(&sns_key(), (2027, 1, 16)));
    assert_eq!(place.post(&place.delivery()).await, 200);
    place.site.clock.advance(Duration::from_hours(17));
    let mut post = place.delivery();
    post["Timestamp"] = json!(place.site.clock.now().to_string());
    sign(&mut post, &sns_key());
    assert_eq!(place.post(&post).await, 403);
    let trouble = place.site.feedback.trouble().unwrap();
    assert!(trouble.contains("expired"), "{trouble}");
    assert_eq!(place.host.requests().len(), 1);
}

#[tokio::test]
async fn a_post_that_a_wrong_clock_refuses_is_to_come_again() {
    let day = Duration::from_hours(24);
    for wrong in [NOW.plus(day), NOW.minus(day)] {
        let place = Place::new().await;
        place.site.clock.set(wrong);
        assert_eq!(place.post(&place.delivery()).await, 503);
        // One that is of that time, as far as it says, has a certificate that is not.
        place.serve(place.authority.issue_until(&sns_key(), (2027, 1, 1)));
        let mut post = place.delivery();
        post["Timestamp"] = json!(wrong.to_string());
        sign(&mut post, &sns_key());
        assert_eq!(place.post(&post).await, 503);
        assert_eq!(place.site.feedback.counts(), Counts::default());
        // What no other time can mend is refused for good all the same.
        post["SignatureVersion"] = json!("1");
        assert_eq!(place.post(&post).await, 403);
        place.is_unchanged();
    }
    let place = Place::new().await;
    place.site.clock.set(NOW.plus(day));
    assert_eq!(place.post(&place.delivery()).await, 503);
    place.site.clock.set(NOW);
    assert_eq!(place.post(&place.delivery()).await, 200);
    assert_eq!(place.site.events(place.message), 1);
}
