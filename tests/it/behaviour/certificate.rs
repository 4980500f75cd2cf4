//! A certificate that is over, or whose successor cannot be used, is reported in all places that
//! operators read.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::behaviour::tls::{Certificate, site};
use crate::kit::{PATIENCE, Site, look, metric, status};

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_successor_is_told_until_it_is_put_right() {
    const EXPIRY: &str = "pillarbox_certificate_expiry_timestamp_seconds";
    const RENEWAL: &str = "pillarbox_certificate_renewal_timestamp_seconds";
    const REFUSED: &str = "pillarbox_certificate_refused";
    let good = Certificate::until(2100);
    let (site, files) = site(&good).await;
    let server = site.start();
    let certificate = &status(&site)["certificate"];
    assert_eq!(certificate["expiresAt"], "2100-01-01T00:00:00.000Z");
    assert_eq!(certificate["troubles"], Value::Array(Vec::new()));
    assert_eq!(metric(&server, EXPIRY).await, Some(4_102_444_800.0));
    assert_eq!(metric(&server, RENEWAL).await, Some(4_102_444_800.0 - 14.0 * 86_400.0));
    assert_eq!(metric(&server, REFUSED).await, Some(0.0));

    std::fs::write(&files.certificate, "no certificate").unwrap();
    server.signal("HUP");
    let end = Instant::now() + PATIENCE;
    while metric(&server, REFUSED).await != Some(1.0) {
        assert!(Instant::now() < end, "nobody is told");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let text = String::from_utf8(site.done(&["status"]).stdout).unwrap();
    assert!(text.contains("the old one stays in use: the certificate"), "{text}");
    assert!(text.contains("send SIGHUP again"), "{text}");
    let told = look(&site, &server).await;
    assert!(told.contains("certificate_refused"), "{told}");
    assert_eq!(metric(&server, EXPIRY).await, Some(4_102_444_800.0), "the old one is in use");

    Certificate::until(2010 + 15).write(&files);
    server.signal("HUP");
    while metric(&server, REFUSED).await != Some(0.0) {
        assert!(Instant::now() < end, "what was put right is still told");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let troubles = &status(&site)["certificate"]["troubles"];
    assert!(troubles[0].as_str().unwrap().contains("expired at 2025-01-01"), "{troubles}");
    assert_eq!(troubles.as_array().unwrap().len(), 1, "{troubles}");
    let told = look(&site, &server).await;
    assert!(
        told.contains("certificate_expired") && !told.contains("certificate_refused"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_has_no_certificate_to_tell_of() {
    let site = Site::new().await;
    let server = site.start();
    assert_eq!(status(&site)["certificate"], Value::Null);
    assert_eq!(metric(&server, "pillarbox_certificate_refused").await, None);
}
