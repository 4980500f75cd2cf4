//! `pillarbox dev`: what it prints works when pasted, and shows the whole life of a message.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::{DevProcess, PATIENCE, answer, http_client};

/// A `dev` process and what it printed.
pub(crate) struct Dev {
    /// The pasted line's address, API key and body.
    address: String,
    key: String,
    body: String,
    pub(crate) client: reqwest::Client,
    /// The operators' page: where it is, and its key.
    pub(crate) page: (String, String),
    process: DevProcess,
}

impl Dev {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::of(DevProcess::start(arguments))
    }

    fn of(mut process: DevProcess) -> Self {
        let page = process.told("page");
        let (page, page_key) = page.split_once("/#").expect("the page's key");
        let pasted = process.line(|line| line.contains(" -d '"));
        let between = |from: &str, to: &str| {
            let (_, rest) = pasted.split_once(from).unwrap();
            rest.split_once(to).unwrap().0.to_owned()
        };
        Self {
            address: between("curl -s ", "/emails"),
            key: between("Bearer ", "'"),
            body: between(" -d '", "'"),
            client: http_client(),
            page: (page.to_owned(), page_key.to_owned()),
            process,
        }
    }

    pub(crate) async fn post(&self, body: String) -> (u16, Value) {
        let request = self.client.post(format!("{}/emails", self.address)).bearer_auth(&self.key);
        let request = request.header("content-type", "application/json").body(body);
        let (status, body) = answer(request.send().await.unwrap()).await;
        (status.as_u16(), body)
    }

    /// Waits for a message's first delivery event; gives its record.
    pub(crate) async fn until_event(&self, id: &Value) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let path = format!("{}/emails/{}", self.address, id.as_str().unwrap());
            let request = self.client.get(path).bearer_auth(&self.key);
            let record = answer(request.send().await.unwrap()).await.1;
            if record["lastEvent"] != Value::Null {
                return record;
            }
            assert!(Instant::now() < end, "{record}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn the_printed_line_sends_a_message_that_is_delivered() {
    let dev = Dev::start(&[]);
    let (status, answered) = dev.post(dev.body.clone()).await;
    assert_eq!(status, 200, "{answered}");
    let record = dev.until_event(&answered["id"]).await;
    assert_eq!(
        (&record["status"], &record["lastEvent"]["type"]),
        (&json!("sent"), &json!("delivery"))
    );
}

#[tokio::test]
async fn each_delivery_bounce_and_complaint_is_a_line() {
    let mut dev = Dev::of(DevProcess::start_with_log(&[]));
    for (address, told) in [
        ("success@", "delivery"),
        ("bounce@", "bounce"),
        ("complaint@", "delivery"),
        ("complaint@", "complaint"),
    ] {
        let (_, answered) = dev.post(dev.body.replace("success@", address)).await;
        let id = answered["id"].as_str().unwrap();
        let line = dev.process.line(|line| line.contains(&format!(" {told} id={id}")));
        assert!(!line.contains('@'), "addresses are not for the log: {line}");
    }
}

#[tokio::test]
async fn a_bounce_suppresses_and_the_data_stays_with_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap().to_owned();
    let key = format!("pb_{}", "k".repeat(43));
    let arguments = ["--data-dir", &data, "--api-key", &key];
    let dev = Dev::start(&arguments);
    assert_eq!(dev.key, key);
    let bounces = dev.body.replace("success@", "bounce@");
    let (_, answered) = dev.post(bounces.clone()).await;
    assert_eq!(dev.until_event(&answered["id"]).await["lastEvent"]["type"], "bounce");
    drop(dev);
    let dev = Dev::start(&arguments);
    assert_eq!(dev.until_event(&answered["id"]).await["status"], "sent");
    let (status, refused) = dev.post(bounces).await;
    assert_eq!((status, &refused["error"]["code"]), (422, &json!("Suppressed")));
}
