//! The API in Resend's shape with Resend's own SDKs, svix's library and django-anymail: each sends every
//! field, reads and lists, and gets its own types of errors; each verifies and reads webhooks.
//!
//! The registries that a gate reaches have the SDKs of Node and Python.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::Value;

use crate::Program;
use crate::kit::{DevProcess, PATIENCE, Server, Site, free_port, pillarbox};

const LISTENER: &str = "[resend_api]\nlisten = \"127.0.0.1:0\"";
/// Room for few messages.
const SMALL: &str =
    "max_request_bytes = 4096\nmax_reading_bytes = 16384\n[sending]\nmax_pending_bytes = 16384\n";

/// A program with Resend's SDK, and where its modules are.
fn program(name: &str) -> Command {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/resend");
    if std::path::Path::new(name).extension().is_some_and(|kind| kind == "py") {
        let python = std::env::var("RESEND_PYTHON");
        let mut command =
            Command::new(python.expect("a Python with: pip install resend svix django-anymail"));
        command.arg(format!("{directory}/{name}"));
        return command;
    }
    let modules = std::env::var("RESEND_NODE").expect("a directory with: npm install resend svix");
    // Node looks for a module beside the program alone.
    let copy = format!("{modules}/{name}");
    std::fs::copy(format!("{directory}/{name}"), &copy).unwrap();
    let mut command = Command::new("node");
    command.arg(copy);
    command
}

/// The service, and its address for Resend's clients.
fn start(site: &Site) -> (Server, String) {
    let server = site.start();
    let base = format!("http://{}", server.process.resend_listening());
    (server, base)
}

/// An address in front of another one that loses the answer to the first connection's request.
fn losing_the_first_answer(target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let target = target.trim_start_matches("http://").to_owned();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
            let server = TcpStream::connect(&target).unwrap();
            let (mut from_client, mut to_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
            let (mut from_server, mut to_client) = (server, client);
            std::thread::spawn(move || {
                if number == 0 {
                    // All of it was received by then, and so the message is accepted.
                    let _ = from_server.read(&mut [0; 4096]);
                    let _ = to_client.shutdown(std::net::Shutdown::Both);
                } else {
                    let _ = std::io::copy(&mut from_server, &mut to_client);
                }
            });
        }
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn official_sdks_send_read_and_get_their_own_errors() {
    for name in ["sdk.py", "sdk.mjs"] {
        let site = Site::with(LISTENER, Options::default()).await;
        site.done(&["suppression", "add", "--org", "acme", "gone@example.org"]);
        let (server, base) = start(&site);
        let small = Site::with(&format!("{SMALL}{LISTENER}"), Options::default()).await;
        small.done(&["org", "pause", "acme"]);
        let (full_server, full) = start(&small);
        let mut command = program(name);
        command.args([&base, &losing_the_first_answer(&base), &full]);
        command.env("RESEND_API_KEY", &site.key).env("FULL_API_KEY", &small.key);
        command.env_remove("RESEND_BASE_URL");
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, b"all as expected\n");

        let language = if name == "sdk.py" { "python" } else { "node" };
        let end = Instant::now() + PATIENCE;
        let find = |subject: &str| {
            let subject = format!("{language}: {subject}");
            let messages = site.simulator.messages();
            messages.into_iter().filter(|one| one.subject == subject).collect::<Vec<_>>()
        };
        while find("every field").is_empty() || find("lost answer").is_empty() {
            assert!(Instant::now() < end, "{name}: they are not sent");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(find("lost answer").len(), 1);
        let all = &find("every field")[0];
        assert_eq!(all.reply_to, ["desk@example.com", "ann@example.com"]);
        assert_eq!((all.to.len(), all.cc.len(), all.bcc.len(), all.headers.len()), (2, 1, 1, 2));
        let files: Vec<_> = all.attachments.iter().map(|file| &file.content[..]).collect();
        assert_eq!(files, [&b"bytes"[..], b"base64", b"\x89PNG"]);
        assert_eq!(all.attachments[2].content_id.as_deref(), Some("logo"));
        server.terminate().await;
        full_server.kill();
    }
}

/// What a program prints.
struct Printed {
    _program: Program,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Printed {
    fn of(mut command: Command) -> (Self, std::process::ChildStdin) {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let reader = BufReader::new(child.stdout.take().unwrap()).lines();
        let input = child.stdin.take().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in reader.map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        (Self { _program: Program(child), lines }, input)
    }

    /// Waits for a line that begins and ends like this.
    fn wait_for(&self, start: &str, end: &str) -> String {
        let patience = Instant::now() + PATIENCE;
        loop {
            let lines = self.lines.lock().unwrap().clone();
            let found = lines.iter().find(|line| line.starts_with(start) && line.ends_with(end));
            if let Some(line) = found {
                return line.clone();
            }
            assert!(Instant::now() < patience, "no {start}…{end}: {lines:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// `pillarbox dev`, whose events are Amazon's.
struct Dev {
    base: String,
    key: String,
    socket: String,
    _process: DevProcess,
}

impl Dev {
    fn start() -> Self {
        let mut process = DevProcess::start(&[]);
        let base = process.told("Resend");
        let key = process.told("API key");
        let socket = format!("{}/admin.sock", process.told("data"));
        Self { base, key, socket, _process: process }
    }

    fn command(&self, arguments: &[&str]) -> Value {
        let mut command = pillarbox(arguments);
        let output = command.args(["--json", "--socket", &self.socket]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Adds an endpoint in Resend's form, and starts the program that it is.
    fn endpoint(&self, name: &str, types: &[&str]) -> (Printed, std::process::ChildStdin, String) {
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}/hook");
        let add = ["webhook", "add", "--org", "dev", "--format", "resend", &url];
        let added = self.command(&[&add[..], types].concat());
        let mut command = program(name);
        command
            .env("PORT", port.to_string())
            .env("WEBHOOK_SECRET", added["secret"].as_str().unwrap());
        command.env("RESEND_API_KEY", &self.key).env("RESEND_BASE_URL", &self.base);
        let (printed, input) = Printed::of(command);
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "{name} does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        (printed, input, added["id"].to_string())
    }
}

#[test]
fn svix_and_resends_sdk_verify_and_read_webhooks() {
    let dev = Dev::start();
    let (printed, _input, id) = dev.endpoint("webhook.mjs", &[]);
    assert_eq!(dev.command(&["webhook", "test", &id])["delivered"], true);
    printed.wait_for("email.test", " ");
    let send = |to: &str| {
        let body = format!(
            r#"{{"from":"a@example.com","to":["success@simulator.amazonses.com","{to}"],"subject":"s","text":"t"}}"#
        );
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "-H", "Content-Type: application/json", "-d", &body]);
        curl.args(["-H", &format!("Authorization: Bearer {}", dev.key)]);
        let output = curl.arg(format!("{}/emails", dev.base)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    send("bounce@simulator.amazonses.com");
    send("complaint@simulator.amazonses.com");
    printed.wait_for("email.sent success@simulator.amazonses.com,", " ");
    printed.wait_for("email.delivered ", " ");
    // The recipient that bounced, and not the first one.
    printed.wait_for("email.bounced bounce@simulator.amazonses.com", " Permanent");
    printed.wait_for("email.complained complaint@simulator.amazonses.com", " ");
    assert!(!printed.lines.lock().unwrap().iter().any(|line| line.starts_with("refused")));
}

#[test]
fn django_anymail_sends_and_is_told() {
    let dev = Dev::start();
    let (printed, mut input, _) =
        dev.endpoint("anymail_site.py", &["--types", "email.bounced,email.delivered"]);
    writeln!(input, "bounce@simulator.amazonses.com").unwrap();
    let sent = printed.wait_for("sent ", "");
    let id = sent.strip_prefix("sent ").unwrap();
    printed.wait_for("batch 2", "");
    printed.wait_for("refused 422", "");
    printed.wait_for("told bounced bounce@simulator.amazonses.com bounced", id);
    printed.wait_for("told delivered success@simulator.amazonses.com None", id);
}
