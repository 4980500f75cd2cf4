//! Readiness: what the provider, the account or an organisation suffers from is a condition with a
//! severity, and never takes the instance out of its load balancer.

use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, Faults, Options};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::behaviour::operator::wait_until_ready;
use crate::kit::{Finished, PATIENCE, Server, Site, answer, message, message_with};

/// Conditions of `/readyz`, which must answer 200.
async fn ready_with(server: &Server) -> Vec<Value> {
    let (status, document) = answer(server.operator("/readyz").await).await;
    assert_eq!(status, StatusCode::OK, "{document}");
    assert_eq!(document["ready"], true, "{document}");
    document["reasons"].as_array().unwrap().clone()
}

fn with_code<'a>(conditions: &'a [Value], code: &str) -> Option<&'a Value> {
    conditions.iter().find(|condition| condition["code"] == code)
}

/// Waits until the conditions are so; the service must be ready all the while.
async fn ready_until(server: &Server, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let end = Instant::now() + PATIENCE;
    loop {
        let conditions = ready_with(server).await;
        if is_so(&conditions) {
            return conditions;
        }
        assert!(Instant::now() < end, "{conditions:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn status(site: &Site, arguments: &[&str]) -> Finished {
    Finished::run(site.command(&[&["status"], arguments].concat())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_organisation_without_answers_is_a_warning_and_the_service_stays_ready() {
    let more = "[sending]\nretry_initial = \"50ms\"\nretry_max = \"200ms\"";
    let site = Site::with(more, Options::default()).await;
    let server = site.start();
    wait_until_ready(&server).await;
    site.simulator.set_faults(Faults::always(Fault::InternalError));
    let id = server.send(&message()).await;
    // SES answers questions about the account meanwhile, so it is not the provider.
    let told = |conditions: &[Value]| with_code(conditions, "organisation_paused").is_some();
    let conditions = ready_until(&server, told).await;
    let paused = with_code(&conditions, "organisation_paused").unwrap();
    assert_eq!(paused["severity"], "warning", "{paused}");
    assert_eq!(with_code(&conditions, "unreachable"), None, "{conditions:?}");
    let shown = status(&site, &[]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.out.contains("calls for acme"), "{shown:?}");
    site.simulator.set_faults(Faults::none());
    server.wait_for(&id, "sent").await;
    ready_until(&server, |conditions| with_code(conditions, "organisation_paused").is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_with_nothing_left_to_send_are_forgotten_once_ses_answers() {
    // A second lost answer would be an attempt that these settings exclude.
    let site = Site::with("[sending]\non_unknown = \"fail\"", Options::default()).await;
    let beta = site.add_organisation("beta", "beta.example");
    let server = site.start();
    wait_until_ready(&server).await;
    site.simulator.script(vec![Fault::ResetAfter; 12]);
    for _ in 0..6 {
        server.send(&message()).await;
        let from_beta = message_with("from", json!("b@beta.example")).to_string();
        let post = server.client.post(format!("{}/emails", server.base)).bearer_auth(&beta);
        let post = post.header("content-type", "application/json").body(from_beta);
        assert_eq!(post.send().await.unwrap().status(), StatusCode::OK);
        // Calls that are under way together are evidence about one moment.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ready_until(&server, |conditions| with_code(conditions, "unreachable").is_some()).await;
    site.done(&["message", "cancel", "--org", "acme"]);
    site.done(&["message", "cancel", "--org", "beta"]);
    // No message goes out any more that could show that SES answers.
    site.simulator.script(Vec::new());
    ready_until(&server, |conditions| {
        with_code(conditions, "unreachable").is_none()
            && with_code(conditions, "organisation_paused").is_none()
    })
    .await;
    let shown = status(&site, &[]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.out.contains("takes messages"), "{shown:?}");
    let sent = server.send(&message()).await;
    server.wait_for(&sent, "sent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_account_suffers_from_is_critical_and_the_service_stays_ready() {
    for (fault, code) in [
        (Fault::SendingPaused, "account_paused"),
        (Fault::QuotaExhausted, "quota_exhausted"),
        (Fault::AccessDenied, "setup_fault"),
    ] {
        let site = Site::new().await;
        let server = site.start();
        wait_until_ready(&server).await;
        site.simulator.set_faults(Faults::always(fault));
        let id = server.send(&message()).await;
        let told = |conditions: &[Value]| with_code(conditions, code).is_some();
        let conditions = ready_until(&server, told).await;
        let condition = with_code(&conditions, code).unwrap();
        assert_eq!(
            (&condition["severity"], &condition["ready"]),
            (&json!("critical"), &json!(true))
        );
        let shown = status(&site, &[]).await;
        assert_eq!(shown.code, 1, "{shown:?}");
        assert!(!shown.out.contains("takes messages"), "{shown:?}");
        assert!(shown.err.contains(code), "{shown:?}");
        site.simulator.set_faults(Faults::none());
        server.wait_for(&id, "sent").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_ends_readiness_until_it_takes_writes_again() {
    let site = Site::new().await;
    let server = site.start();
    wait_until_ready(&server).await;
    site.take_store_away();
    let end = Instant::now() + PATIENCE;
    let document = loop {
        let (status, document) = answer(server.operator("/readyz").await).await;
        if status == StatusCode::SERVICE_UNAVAILABLE {
            break document;
        }
        assert!(Instant::now() < end, "{document}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let reasons = document["reasons"].as_array().unwrap();
    assert!(reasons.iter().any(|one| one["ready"] == false && one["severity"] == "critical"));
    site.give_store_back();
    wait_until_ready(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_cannot_be_reached_is_told_at_the_start_before_any_message() {
    let site = Site::new().await;
    for (endpoint, reason) in [
        ("http://ses.invalid", "ses.invalid"),
        ("http://127.0.0.1:1", "refused"),
        // TLS, at a listener without it.
        (&site.simulator.endpoint().replace("http://", "https://"), "127.0.0.1"),
    ] {
        site.configure("", &format!("endpoint = \"{endpoint}\"\n"));
        let server = site.start();
        let told = |conditions: &[Value]| with_code(conditions, "unreachable").is_some();
        // It stays ready: the queue is there for that.
        let end = Instant::now() + PATIENCE;
        let conditions = loop {
            let (_, document) = answer(server.operator("/readyz").await).await;
            let conditions = document["reasons"].as_array().unwrap().clone();
            if told(&conditions) {
                break conditions;
            }
            assert!(Instant::now() < end, "{endpoint}: {conditions:?}: {}", server.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        ready_with(&server).await;
        let condition = with_code(&conditions, "unreachable").unwrap();
        let message = condition["message"].as_str().unwrap();
        if endpoint.starts_with("http:") {
            assert!(message.contains(reason), "{endpoint}: {message}");
        }
        assert!(server.log().contains("SES cannot be reached"), "{}", server.log());
        let shown = status(&site, &[]).await;
        assert!(shown.out.contains("no call to the provider succeeds"), "{shown:?}");
        server.terminate().await;
    }
    site.configure("", &format!("endpoint = \"{}\"\n", site.simulator.endpoint()));
    let server = site.start();
    wait_until_ready(&server).await;
    assert_eq!(with_code(&ready_with(&server).await, "unreachable"), None);
}
