//! API keys that expire, and what is known of their use.

use serde_json::Value;

use crate::kit::{Site, message};

fn keys(site: &Site) -> Vec<Value> {
    let output = site.done(&["key", "list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    list["keys"].as_array().unwrap().clone()
}

#[tokio::test]
async fn an_expired_key_is_answered_as_one_that_never_was() {
    let site = Site::new().await;
    let mut server = site.start();
    let end = std::time::SystemTime::now() + std::time::Duration::from_secs(3);
    let end = humantime::format_rfc3339_millis(end).to_string();
    let output = site.done(&["key", "add", "--org", "acme", "--expires", &end, "--json"]);
    let added: Value = serde_json::from_slice(&output.stdout).unwrap();
    server.key = added["key"].as_str().unwrap().to_owned();
    let until = std::time::Instant::now() + crate::kit::PATIENCE;
    let expired = loop {
        let response = server.post(&message()).send().await.unwrap();
        if response.status() == 401 {
            break response;
        }
        assert_eq!(response.status(), 200);
        assert!(std::time::Instant::now() < until, "it still lets in");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    server.key = format!("pb_{}", "A".repeat(43));
    let unknown = server.post(&message()).send().await.unwrap();
    let head = |response: &reqwest::Response| {
        let mut headers = response.headers().clone();
        for varies in ["x-request-id", "date"] {
            assert!(headers.remove(varies).is_some());
        }
        (response.status(), format!("{headers:?}"))
    };
    assert_eq!(head(&expired), head(&unknown));
    assert_eq!(expired.bytes().await.unwrap(), unknown.bytes().await.unwrap());
    assert_eq!(keys(&site)[1]["expiresAt"], end.as_str());
}

#[tokio::test]
async fn the_last_use_is_shown_and_kept() {
    let site = Site::new().await;
    assert_eq!(keys(&site)[0]["lastUsedAt"], Value::Null);
    let server = site.start();
    server.send(&message()).await;
    let used = keys(&site)[0]["lastUsedAt"].clone();
    assert!(used.is_string(), "{used}");
    server.terminate().await;
    assert_eq!(keys(&site)[0]["lastUsedAt"], used);
    assert_eq!(keys(&site)[0]["expiresAt"], Value::Null);
    let output = site.run(&["key", "add", "--org", "acme", "--expires", "2020-01-01"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("give a time in the future"), "{error}");
}
