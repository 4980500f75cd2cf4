//! Interoperation with a stand-in for AWS that was not written here: moto's server.
//!
//! What moto keeps is compared with what was posted; what it does not keep (reply-to, headers,
//! the text beside HTML) is compared as it went over the wire and moto accepted it.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use kit::{Finished, PATIENCE, Server, Site, free_port, http_client};
use pillarbox_simulator::Options;

mod alarms;
mod alerts;
mod browser;
mod cancel;
mod charsets;
mod cluster;
mod cluster_import;
mod dashboard;
mod disk;
mod engine;
#[path = "../kit/lib.rs"]
#[expect(dead_code, unused_imports, reason = "each test binary uses a part of the kit")]
mod kit;
mod limits;
mod load_balancer;
mod mail;
mod memory_limit;
mod metrics;
mod nodes;
mod openapi;
mod pasted;
#[cfg(feature = "long")]
mod patroni;
mod pause;
mod resend;
mod restored;
mod setup;
mod smtp;
mod socket_activation;
mod webhooks;

/// A program from outside that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The directory of an installed program, with what belongs to it.
fn beside(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let mut directories = std::env::split_paths(&path);
    directories.find(|directory| directory.join(program).exists()).unwrap_or_else(|| {
        panic!("{program} is not installed; .ci/run installs it");
    })
}

/// Has a program's wall clock be off by what a file says, such as `+95d`. It asks again each time.
fn set_clock(command: &mut Command, file: &Path) {
    // Directory in which Debian's faketime keeps its library.
    let found = std::fs::read_dir("/usr/lib").unwrap().find_map(|entry| {
        let directory = entry.unwrap().path().join("faketime");
        directory.join("libfaketime.so.1").exists().then_some(directory)
    });
    let directory = found.expect("libfaketime is installed: it is part of faketime");
    command.env("LD_PRELOAD", "libfaketime.so.1").env("LD_LIBRARY_PATH", directory);
    command.env("FAKETIME_TIMESTAMP_FILE", file);
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

async fn start_moto(client: &reqwest::Client) -> (Program, String) {
    let port = free_port().to_string();
    let child = Command::new("moto_server")
        .args(["-H", "127.0.0.1", "-p", &port])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("moto_server is installed: pip install 'moto[server]'");
    let base = format!("http://127.0.0.1:{port}");
    let end = Instant::now() + PATIENCE;
    while client.get(format!("{base}/moto-api/data.json")).send().await.is_err() {
        assert!(Instant::now() < end, "moto did not start");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    (Program(child), base)
}

/// Stands before moto and keeps what `SendEmail` was given, byte for byte.
async fn start_recorder(
    client: reqwest::Client,
    target: String,
) -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let sent = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&sent);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (client, target, kept) = (client.clone(), target.clone(), Arc::clone(&kept));
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                forward(client.clone(), target.clone(), Arc::clone(&kept), request)
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    (address, sent)
}

async fn forward(
    client: reqwest::Client,
    target: String,
    kept: Arc<Mutex<Vec<Value>>>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, reqwest::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    if head.uri.path().ends_with("/outbound-emails") {
        kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    }
    let url = format!("{target}{}", head.uri);
    let answer = client.request(head.method, url).headers(head.headers).body(body).send().await?;
    let status = answer.status();
    let mut response = hyper::Response::new(Full::new(answer.bytes().await?));
    *response.status_mut() = status;
    Ok(response)
}

/// A site whose provider is moto.
struct MotoSite {
    site: Site,
    /// The service, while it runs.
    server: Option<Server>,
    client: reqwest::Client,
    moto: String,
    sent: Arc<Mutex<Vec<Value>>>,
    _moto: Program,
}

impl MotoSite {
    async fn new() -> Self {
        let client = http_client();
        let (process, moto) = start_moto(&client).await;
        let (recorder, sent) = start_recorder(client.clone(), moto.clone()).await;
        let mut site = Site::empty("", Options::default()).await;
        site.reconfigure(&site.simulator.endpoint(), &recorder);
        site.done(&["org", "add", "acme"]);
        let key = site.done(&["key", "add", "--org", "acme", "--json"]);
        let key: Value = serde_json::from_slice(&key.stdout).unwrap();
        key["key"].as_str().unwrap().clone_into(&mut site.key);
        let server = Some(site.start());
        Self { site, server, client, moto, sent, _moto: process }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("the service runs")
    }

    async fn command(&self, arguments: &[&str]) -> String {
        let finished = Finished::run(self.site.command(arguments)).await;
        assert_eq!(finished.code, 0, "{arguments:?}: {finished:?}");
        finished.out
    }

    /// Posts a message and waits until moto has accepted it; gives moto's id for it.
    async fn deliver(&self, message: &Value) -> String {
        let id = self.server().send(message).await;
        let record = self.server().wait_for(&id, "sent").await;
        record["sesMessageId"].as_str().unwrap().to_owned()
    }

    /// The message as moto keeps it.
    async fn kept(&self, id: &str) -> Value {
        let data: Value = read(self.client.get(format!("{}/moto-api/data.json", self.moto))).await;
        let mut messages = data["ses"]["Message"].as_array().unwrap().iter();
        messages.rfind(|m| m["id"] == id).expect("moto kept the message").clone()
    }
}

async fn read(request: reqwest::RequestBuilder) -> Value {
    let text = request.send().await.unwrap().text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

#[tokio::test]
async fn what_moto_keeps_is_what_was_posted() {
    let place = MotoSite::new().await;
    // The identity is made at moto, which verifies no domain: the operator vouches for it.
    place.command(&["domain", "add", "--org", "acme", "example.com"]).await;
    place.command(&["domain", "check", "example.com"]).await;
    place.command(&["domain", "add", "--org", "acme", "example.com", "--assume-verified"]).await;

    let text = json!({
        "from": "ann@example.com", "to": ["bob@example.org"], "subject": "Text", "text": "A\r\nB",
    });
    let kept = place.kept(&place.deliver(&text).await).await;
    assert_eq!(
        (&kept["source"], &kept["subject"], &kept["body"]),
        (&json!("ann@example.com"), &json!("Text"), &json!("A\r\nB"))
    );
    assert_eq!(kept["destinations"]["ToAddresses"], json!(["bob@example.org"]));

    let html = json!({
        "from": "J\u{fc}rgen Gro\u{df} <ann@example.com>",
        "to": ["Bob <bob@example.org>", "cy@example.org"],
        "cc": ["dee@example.org"], "bcc": ["eve@example.org"],
        "subject": "Gr\u{fc}\u{df}e \u{1f4ee}", "html": "<p>\u{e9}</p>",
    });
    let kept = place.kept(&place.deliver(&html).await).await;
    assert_eq!(kept["subject"], html["subject"]);
    assert_eq!(kept["body"], html["html"]);
    assert_eq!(
        decoded(&kept["source"]),
        ("J\u{fc}rgen Gro\u{df}".into(), "ann@example.com".into())
    );
    let to = kept["destinations"]["ToAddresses"].as_array().unwrap();
    assert_eq!(decoded(&to[0]), ("Bob".into(), "bob@example.org".into()));
    assert_eq!(to[1], "cy@example.org");
    assert_eq!(kept["destinations"]["CcAddresses"], html["cc"]);
    assert_eq!(kept["destinations"]["BccAddresses"], html["bcc"]);

    let both = json!({
        "from": "ann@example.com", "to": ["bob@example.org"], "subject": "Both",
        "html": "<b>h</b>", "text": "t", "reply_to": "\u{c9}va <help@example.com>",
        "headers": {"X-Order": "17", "List-Unsubscribe": "<https://example.com/u>"},
    });
    let kept = place.kept(&place.deliver(&both).await).await;
    assert_eq!(kept["body"], both["html"]);
    let sent = place.sent.lock().unwrap().last().unwrap().clone();
    let simple = &sent["Content"]["Simple"];
    assert_eq!(simple["Body"]["Text"]["Data"], both["text"]);
    assert_eq!(simple["Body"]["Html"]["Data"], both["html"]);
    assert_eq!(
        simple["Headers"],
        json!([
            {"Name": "List-Unsubscribe", "Value": "<https://example.com/u>"},
            {"Name": "X-Order", "Value": "17"},
        ])
    );
    let reply_to = &sent["ReplyToAddresses"][0];
    assert_eq!(decoded(reply_to), ("\u{c9}va".into(), "help@example.com".into()));
}

/// The name and address of a mail header, as Python's email package reads them.
fn decoded(header: &Value) -> (String, String) {
    let program = "import sys, json\nfrom email.headerregistry import HeaderRegistry\n\
                   h = HeaderRegistry()('to', sys.argv[1])\n\
                   a = h.addresses[0]\nprint(json.dumps([a.display_name, a.addr_spec]))";
    let header = header.as_str().unwrap();
    let output = Command::new("python3").args(["-c", program, header]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}
