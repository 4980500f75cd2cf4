//! Certificates that are not SNS's, or not good now.

use std::time::Duration;

use super::pki::{Authority, NAME, Years, self_signed, sns_key};
use super::web::response;
use super::{FILE, HOST, NOWADAYS, Place};

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let place = Place::new().await;
    let certificate = place.authority.issue(&sns_key(), NAME, Years(2025, 2027));
    refuses_until_refetched(&place, certificate, "expired").await;
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_yet_is_refused() {
    let place = Place::new().await;
    let certificate = place.authority.issue(&sns_key(), NAME, Years(2028, 2030));
    refuses_until_refetched(&place, certificate, "not valid yet").await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    for name in ["sns.amazonaws.com.evil.example", "sns-signing.eu-west-2.amazonaws.com"] {
        let place = Place::new().await;
        let certificate = place.authority.issue(&sns_key(), name, NOWADAYS);
        refuses_until_refetched(&place, certificate, "not for SNS").await;
    }
}

#[tokio::test]
async fn a_certificate_of_a_foreign_chain_is_refused() {
    let place = Place::new().await;
    let foreign = Authority::new("Somebody Else");
    let certificate = foreign.issue(&sns_key(), NAME, NOWADAYS) + &foreign.pem;
    refuses_until_refetched(&place, certificate, "issuer").await;
}

#[tokio::test]
async fn a_certificate_in_a_trusted_authoritys_name_but_of_another_key_is_refused() {
    let place = Place::new().await;
    let foreign = Authority::new("Amazon RSA 2048 M01");
    let certificate = foreign.issue(&sns_key(), NAME, NOWADAYS);
    refuses_until_refetched(&place, certificate, "issuer").await;
}

#[tokio::test]
async fn a_certificate_that_signs_itself_is_refused() {
    let place = Place::new().await;
    refuses_until_refetched(&place, self_signed(&sns_key()), "issuer").await;
}

#[tokio::test]
async fn an_authoritys_own_certificate_is_refused() {
    let place = Place::new().await;
    let certificate = place.authority.pem.clone();
    refuses_until_refetched(&place, certificate, "issuer").await;
}

/// A certificate that could be read is kept for a day, whatever it turns out to be good for.
async fn refuses_until_refetched(place: &Place, certificate: String, what: &str) {
    place.serve(certificate);
    assert_eq!(place.post(&place.delivery()).await, 403);
    let trouble = place.site.feedback.trouble().unwrap();
    assert!(trouble.contains(what), "{trouble}");
    place.is_unchanged();
    assert_eq!(place.site.feedback.counts().forged, 1);
    // The same post with a good certificate, from another file, is taken.
    place.serve_good_certificate();
    let mut post = place.delivery();
    post["SigningCertURL"] = format!("https://{HOST}/another.pem").into();
    assert_eq!(place.post(&post).await, 200);
}

#[tokio::test]
async fn a_file_that_is_no_certificate_is_refused() {
    let place = Place::new().await;
    place.serve("<html>".to_owned());
    place.is_forged(&place.delivery(), 1).await;
}

#[tokio::test]
async fn a_redirect_in_the_fetch_is_not_followed() {
    let place = Place::new().await;
    let other = format!("location: https://{HOST}/other.pem\r\n");
    let good = super::ok(&place.authority.issue(&sns_key(), NAME, NOWADAYS));
    place.host.answer(move |request| {
        if request.starts_with("GET /other.pem ") {
            good.clone()
        } else {
            response("302 Found", &other, "")
        }
    });
    place.is_forged(&place.delivery(), 1).await;
    assert!(place.host.requests()[0].starts_with(&format!("GET /{FILE} ")));
}

#[tokio::test]
async fn a_host_whose_own_certificate_is_foreign_is_not_believed() {
    let foreign = Authority::new("Somebody Else");
    let place = Place::with_host_of(Some(&foreign)).await;
    assert_eq!(place.post(&place.delivery()).await, 503);
    assert!(place.host.connections() > 0);
    assert!(place.host.requests().is_empty());
    place.is_unchanged();
    place.site.clock.advance(Duration::from_mins(1));
    assert_eq!(place.post(&place.delivery()).await, 503);
}
