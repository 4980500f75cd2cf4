//! The operator listener: health, readiness and metrics, and that nothing can be changed there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pillarbox_simulator::{EventOptions, Events, Fault, Faults, Options};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::behaviour::tls::{self, Certificate};
use crate::kit::{PATIENCE, Server, Site, answer, is_on_postgres, message, message_with};

const RULES: &str = include_str!("../../../monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../../monitoring/dashboard.json");

/// The metrics by name and labels, as they are written.
pub(crate) async fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let response = server.operator("/metrics").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = response.text().await.unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Waits until these metrics have these values.
async fn wait_for(server: &Server, wanted: &[(&str, f64)]) -> BTreeMap<String, f64> {
    let end = Instant::now() + PATIENCE;
    loop {
        let metrics = metrics(server).await;
        let missing = wanted.iter().find(|(name, value)| metrics.get(*name) != Some(value));
        let Some((name, value)) = missing else { return metrics };
        let is = metrics.get(*name);
        assert!(Instant::now() < end, "{name} is {is:?} and not {value}: {metrics:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_counted() {
    let events = Events::On(EventOptions::default());
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    let server = site.start();
    let keyed = message_with("idempotencyKey", json!("k"));
    let id = server.send(&keyed).await;
    server.send(&keyed).await;
    server.wait_for(&id, "sent").await;
    let bounce = "bounce@simulator.amazonses.com";
    server.send(&message_with("to", json!(["ann@example.org", bounce]))).await;
    server.post(&message_with("tag", json!("marketing"))).send().await.unwrap();
    server.post(&message_with("from", json!("a@example.net"))).send().await.unwrap();
    server.client.get(&server.base).send().await.unwrap();
    let metrics = wait_for(
        &server,
        &[
            ("pillarbox_accepted_messages_total", 2.0),
            ("pillarbox_replays_total", 1.0),
            ("pillarbox_refusals_total{code=\"UnsupportedTag\"}", 1.0),
            ("pillarbox_refusals_total{code=\"UnverifiedDomain\"}", 1.0),
            ("pillarbox_refusals_total{code=\"Unauthorized\"}", 1.0),
            ("pillarbox_refusals_total{code=\"Suppressed\"}", 0.0),
            ("pillarbox_attempts_total{outcome=\"sent\"}", 2.0),
            ("pillarbox_attempt_duration_seconds_count", 2.0),
            ("pillarbox_queue_messages", 0.0),
            ("pillarbox_queue_bytes", 0.0),
            ("pillarbox_organisation_accepted_messages_total{organisation=\"acme\"}", 2.0),
            ("pillarbox_organisation_sent_messages_total{organisation=\"acme\"}", 2.0),
            ("pillarbox_organisation_sent_recipients_total{organisation=\"acme\"}", 3.0),
            ("pillarbox_organisation_hard_bounced_recipients_total{organisation=\"acme\"}", 1.0),
            ("pillarbox_organisation_events_total{organisation=\"acme\",type=\"bounce\"}", 1.0),
            ("pillarbox_organisation_events_total{organisation=\"acme\",type=\"delivery\"}", 2.0),
            ("pillarbox_event_documents_total{type=\"send\"}", 2.0),
            ("pillarbox_store_writable", 1.0),
            ("pillarbox_events_available", 1.0),
        ],
    )
    .await;
    let file = metrics.get("pillarbox_store_file_bytes");
    assert!(is_on_postgres() != file.is_some_and(|bytes| *bytes > 0.0), "{file:?}");
    assert!(metrics["pillarbox_connections"] >= 1.0);
    let checkpoints = metrics["pillarbox_store_checkpoint_duration_seconds_count"];
    let commits = metrics["pillarbox_store_commit_duration_seconds_count"] - checkpoints;
    assert!(commits >= 4.0, "{commits}");
    assert!(metrics["pillarbox_store_commit_operations_sum"] >= commits);
    let oldest = metrics["pillarbox_store_oldest_record_timestamp_seconds"];
    assert!(oldest > metrics["process_start_time_seconds"], "{oldest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_that_the_rules_and_the_dashboard_name_is_there() {
    let events = Events::On(EventOptions::default());
    let options = Options { events, daily_quota: Some(1_000), ..Options::default() };
    let site = Site::with("", options).await;
    let server = site.start();
    site.done(&["webhook", "add", "--org", "acme", "http://127.0.0.1:1/"]);
    site.done(&["org", "limit", "acme", "--per-month", "100"]);
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
    // The end of a paused organisation's messages is shown if any waits.
    site.done(&["org", "pause", "acme"]);
    server.send(&message()).await;
    // The quota is asked for in the background.
    let plain = wait_for(&server, &[("pillarbox_quota_recipients", 1_000.0)]).await;
    // A certificate is reported if there is one.
    let (site, _files) = tls::site(&Certificate::until(2100)).await;
    let secure = metrics(&site.start()).await;
    let there = plain.keys().chain(secure.keys()).map(|key| key.split('{').next().unwrap());
    // A database is reported if there is one; without it, its metrics are only named.
    let text = server.operator("/metrics").await.text().await.unwrap();
    let named = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let of_a_database = named.filter(|name| name.starts_with("pillarbox_postgres_"));
    let there: BTreeSet<_> = there.chain(of_a_database).collect();
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let queries = dashboard["panels"].as_array().unwrap().iter();
    let queries = queries.flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries = queries.map(|target| target["expr"].as_str().unwrap());
    let expressions = queries.chain(RULES.lines().filter(|line| !line.contains("summary: ")));
    let mut named = BTreeSet::new();
    for expression in expressions {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
        for word in expression.split(|c| !is_part(c)) {
            if word.starts_with("pillarbox_") || word.starts_with("process_") {
                named.insert(word);
            }
            if word.starts_with("pillarbox:") {
                assert!(RULES.contains(&format!("- record: {word}\n")), "{word}");
            }
        }
    }
    assert!(named.len() > 30, "{named:?}");
    let missing: Vec<_> = named.difference(&there).copied().collect();
    // A file is reported if there is one.
    let expected: &[&str] = if is_on_postgres() { &["pillarbox_store_file_bytes"] } else { &[] };
    assert_eq!(missing, expected);
}

/// Waits until the service is ready, as it is once SES has answered.
pub(crate) async fn wait_until_ready(server: &Server) -> serde_json::Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let (status, document) = answer(server.operator("/readyz").await).await;
        if status == StatusCode::OK {
            return document;
        }
        assert!(Instant::now() < end, "{document}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_says_what_is_wrong_and_health_goes_on() {
    let site = Site::new().await;
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    let server = site.start();
    let document = wait_until_ready(&server).await;
    assert_eq!(document, json!({"ready": true, "reasons": []}));
    let id = server.send(&message()).await;
    let end = Instant::now() + PATIENCE;
    // It says why mail does not go out, and accepts it all the same.
    let document = loop {
        let (status, document) = answer(server.operator("/readyz").await).await;
        assert_eq!(status, StatusCode::OK);
        if document["reasons"] != json!([]) {
            break document;
        }
        assert!(Instant::now() < end, "{document}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(document["ready"], true);
    let reason = &document["reasons"][0];
    assert_eq!(
        (&reason["code"], &reason["severity"]),
        (&json!("account_paused"), &json!("critical"))
    );
    assert!(
        reason["message"].as_str().unwrap().contains("the account is not allowed to send"),
        "{reason}"
    );
    assert!(reason["advice"].as_str().unwrap().contains("SES console"), "{reason}");
    wait_for(
        &server,
        &[
            ("pillarbox_provider_impaired{cause=\"account_paused\"}", 1.0),
            ("pillarbox_provider_impaired{cause=\"unreachable\"}", 0.0),
            ("pillarbox_queue_messages", 1.0),
        ],
    )
    .await;
    assert_eq!(server.operator("/healthz").await.status(), StatusCode::OK);
    site.simulator.set_faults(Faults::none());
    server.wait_for(&id, "sent").await;
    let ready = server.operator("/readyz").await;
    assert_eq!(ready.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_scrapers_are_answered_by_number_and_as_localhost_alone() {
    let site = Site::new().await;
    let server = site.start();
    wait_until_ready(&server).await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        let asked = |host: &'static str| {
            let url = format!("{}{path}", server.operator);
            server.client.get(url).header("host", host).send()
        };
        for host in ["127.0.0.1:8026", "localhost:8026", "LOCALHOST", "[::1]:8026", "10.0.0.7"] {
            assert_eq!(asked(host).await.unwrap().status(), StatusCode::OK, "{path} {host}");
        }
        for host in ["evil.example:8026", "127.0.0.1.evil.example", "localhost.evil.example"] {
            let (status, body) = answer(asked(host).await.unwrap()).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{path} {host}");
            assert!(body["error"]["message"].as_str().unwrap().contains("Host"), "{body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_scrapers_are_answered_by_a_name_that_the_operator_has_given() {
    let names = "operator_hosts = [\"pillarbox\", \"metrics.internal\"]";
    let site = Site::with(names, Options::default()).await;
    let server = site.start();
    wait_until_ready(&server).await;
    for (host, status) in [
        ("pillarbox:8026", StatusCode::OK),
        ("Metrics.Internal", StatusCode::OK),
        ("evil.example", StatusCode::FORBIDDEN),
    ] {
        let url = format!("{}/metrics", server.operator);
        let response = server.client.get(url).header("host", host).send().await.unwrap();
        assert_eq!(response.status(), status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_process_is_alive_and_not_ready() {
    let site = Site::new().await;
    site.simulator.set_faults(Faults::always(Fault::Down));
    let server = site.start();
    server.send(&message()).await;
    server.signal("TERM");
    let end = Instant::now() + PATIENCE;
    loop {
        let (status, document) = answer(server.operator("/readyz").await).await;
        let codes = document["reasons"].as_array().unwrap().iter();
        if codes.clone().any(|reason| reason["code"] == "stopping") {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            break;
        }
        assert!(Instant::now() < end, "{document}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.operator("/healthz").await.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_changed_on_the_operators_listener() {
    let site = Site::new().await;
    let server = site.start();
    wait_until_ready(&server).await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        let url = format!("{}{path}", server.operator);
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let response = server.client.request(method.clone(), &url).send().await.unwrap();
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert_eq!(response.headers()["allow"], "GET, HEAD");
        }
        let get = server.client.get(&url).send().await.unwrap();
        let head = server.client.head(&url).send().await.unwrap();
        assert_eq!((get.status(), head.status()), (StatusCode::OK, StatusCode::OK), "{path}");
        assert_eq!(get.headers()["content-type"], head.headers()["content-type"]);
        assert!(head.bytes().await.unwrap().is_empty());
    }
    for path in ["/emails", "/metrics/", "/healthz/x", "/page/nothing"] {
        let response = server.operator(path).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
    }
    // Nor is anything of it on the clients' listener.
    let response = server.get("/metrics").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}
