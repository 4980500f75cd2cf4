//! The dashboard's queries on a real Prometheus, and the step that installs rules and dashboard.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::alarms::prometheus::Prometheus;
use crate::kit::{DevProcess, PATIENCE, answer, http_client};

const DASHBOARD: &str = include_str!("../../monitoring/dashboard.json");
const METRICS: &str = include_str!("../../docs/metrics.md");
/// Panels that are empty in `dev`, if nothing is wrong and there is no quota, by their titles.
const EMPTY_IN_DEV: [&str; 3] = ["Refusals", "Attempts that did not send", "Daily quota"];

/// The title and the expression of each query, with the values that Grafana puts in.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression.replace("$instance", ".*");
            queries.push((title.to_owned(), expression.replace("$__rate_interval", "1m")));
        }
    }
    queries
}

#[test]
fn the_dashboard_needs_no_recording_rules() {
    // Only rules give names with colons (Prometheus's naming practices).
    let mut queries = queries();
    queries.retain(|(_, expression)| expression.contains("pillarbox:"));
    assert!(queries.is_empty(), "{queries:?}");
}

#[test]
fn every_metric_of_the_dashboard_is_documented() {
    for (title, expression) in queries() {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("pillarbox_")) {
            // A histogram's series.
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            assert!(METRICS.contains(&format!("`{name}`")), "{title}: {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_dashboard_has_an_answer() {
    let mut dev = DevProcess::start(&[]);
    let (address, key) = (dev.told("address"), dev.told("API key"));
    let page = dev.told("page");
    let operators = page.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let prometheus = Prometheus::start([("dev", operators)].into_iter());
    prometheus.until_scraped(1).await;
    let client = http_client();
    let mut waiting = queries();
    waiting.retain(|(title, _)| !EMPTY_IN_DEV.contains(&&**title));
    assert!(waiting.len() > 30, "{waiting:?}");
    let end = Instant::now() + PATIENCE;
    for number in 0.. {
        // Rates need something that goes on.
        for to in ["success", "bounce", "complaint"] {
            let to = format!("{to}+{number}@simulator.amazonses.com");
            let message = json!({
                "from": "a@example.com", "to": [to], "subject": "Hello", "text": "Hello.",
            });
            let request = client.post(format!("{address}/emails")).bearer_auth(&key);
            let request = request.header("content-type", "application/json");
            let response = request.body(message.to_string()).send().await.unwrap();
            let (status, body) = answer(response).await;
            assert_eq!(status, 200, "{body}");
        }
        let mut unanswered = Vec::new();
        for (title, expression) in waiting {
            if prometheus.query(&expression).await.is_empty() {
                unanswered.push((title, expression));
            }
        }
        waiting = unanswered;
        if waiting.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "no answer to {waiting:#?}");
        sleep(Duration::from_millis(500)).await;
    }
}

/// Runs the step of the documentation; returns its output.
fn install(prometheus: &Path, grafana: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring/install.sh");
    let output = Command::new(script).args([prometheus, grafana]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn one_step_installs_rules_and_dashboard() {
    let directory = tempfile::tempdir().unwrap();
    let [prometheus, grafana] = ["prometheus", "grafana"].map(|name| directory.path().join(name));
    std::fs::create_dir(&prometheus).unwrap();
    std::fs::create_dir(&grafana).unwrap();

    // What it asks to add is a whole configuration, and Prometheus finds the rules by it.
    let told = install(&prometheus, &grafana);
    let (_, added) = told.split_once("\n\n").unwrap();
    let (added, _) = added.split_once("\n\n").unwrap();
    let configuration = prometheus.join("prometheus.yml");
    std::fs::write(&configuration, added).unwrap();
    let checked = Command::new("promtool").args(["check", "config"]).arg(configuration).output();
    let checked = checked.expect("promtool is installed: it is part of prometheus");
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success() && said.contains("1 rule files found"), "{said}");

    let told = install(&prometheus, &grafana);
    assert!(!told.contains("rule_files"), "nothing is left to add: {told}");
    let provider = std::fs::read_to_string(grafana.join("dashboards/pillarbox.yaml")).unwrap();
    let (_, path) = provider.split_once("path: ").unwrap();
    let installed = std::fs::read_to_string(Path::new(path.trim()).join("dashboard.json"));
    assert_eq!(installed.unwrap(), DASHBOARD);
}
