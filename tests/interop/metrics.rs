//! The metrics and the alert rules as Prometheus's own tool reads them.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::kit::DevProcess;

fn promtool(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed: it is part of prometheus");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_finds_nothing_to_complain_of_in_the_metrics() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut dev = DevProcess::start(&[]);
    let page = dev.told("page");
    let (base, _) = page.split_once("/#").unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let metrics = client.get(format!("{base}/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\npillarbox_store_writable 1"), "{metrics}");
    let judged = promtool(&["check", "metrics"], &metrics);
    assert!(judged.status.success(), "{judged:?}\n{metrics}");
    assert!(judged.stdout.is_empty() && judged.stderr.is_empty(), "{judged:?}\n{metrics}");
    let judged = promtool(&["check", "metrics"], "pillarbox_x_total{ 1\n");
    assert!(!judged.status.success(), "it would find something: {judged:?}");
}

#[test]
fn the_rules_say_of_made_up_series_what_they_are_to_say() {
    for arguments in
        [&["check", "config", "prometheus.yml"][..], &["test", "rules", "alerts.test.yml"]]
    {
        let judged = promtool(arguments, "");
        assert!(judged.status.success(), "{judged:?}");
    }
    let rules = include_str!("../../monitoring/alerts.yml");
    let tests = include_str!("../../monitoring/alerts.test.yml");
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("\"{alert}\"")), "{alert} is made to fire nowhere");
    }
}
