//! `pillarbox dev`: what it prints works when pasted, and shows the whole life of a message.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{PATIENCE, answer, install_crypto};

/// A `dev` process that ends with the test.
pub(crate) struct Dev {
    child: Child,
    /// The pasted line's address, API key and body.
    address: String,
    key: String,
    body: String,
    pub(crate) client: reqwest::Client,
    /// The operators' page: where it is, and its key.
    pub(crate) page: (String, String),
    /// `dev` ends where nobody can read what it prints.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Dev {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        install_crypto();
        let mut child = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
            .args(["dev", "--listen", "127.0.0.1:0", "--operator-listen", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = output.by_ref().map_while(Result::ok);
        let page = lines.find_map(|line| {
            let (base, key) = line.trim().strip_prefix("page ")?.trim().split_once("/#")?;
            Some((base.to_owned(), key.to_owned()))
        });
        let pasted = lines.find(|line| line.contains(" -d '")).expect("a curl line");
        let between = |from: &str, to: &str| {
            let (_, rest) = pasted.split_once(from).unwrap();
            rest.split_once(to).unwrap().0.to_owned()
        };
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self {
            child,
            address: between("curl -s ", "/emails"),
            key: between("Bearer ", "'"),
            body: between(" -d '", "'"),
            client,
            page: page.expect("where the page is"),
            _output: output,
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

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
