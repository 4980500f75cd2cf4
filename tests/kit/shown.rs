//! What operators read of a running service: its status, its metrics and its page.

use std::time::Instant;

use serde_json::Value;

use super::{PATIENCE, Server, Site};

/// Output of `status` for programs, with any exit code.
pub(crate) fn status(site: &Site) -> Value {
    serde_json::from_slice(&site.run(&["status", "--json"]).stdout).unwrap()
}

/// The value of a metric without labels, if it is there.
pub(crate) async fn metric(server: &Server, name: &str) -> Option<f64> {
    let text = server.operator("/metrics").await.text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

/// The page's next update of the service, with all that is wrong.
pub(crate) async fn look(site: &Site, server: &Server) -> String {
    let url = String::from_utf8(site.done(&["status", "--page"]).stdout).unwrap();
    let key = url.trim().split_once('#').unwrap().1;
    let live = server.client.get(format!("{}/page/live", server.operator)).bearer_auth(key);
    let mut live = live.send().await.unwrap();
    let mut told = String::new();
    let end = Instant::now() + PATIENCE;
    while !told.contains("event: state") || !told.ends_with("\n\n") {
        assert!(Instant::now() < end, "{told}");
        told.push_str(&String::from_utf8_lossy(&live.chunk().await.unwrap().unwrap()));
    }
    told
}
