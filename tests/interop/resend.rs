//! The API in Resend's shape with Resend's own SDKs, svix's library and django-anymail: each sends every
//! field, reads and lists, and gets its own types of errors; each verifies and reads webhooks. Then the
//! recipes of `docs/resend.md`, in Next.js, better-auth and Deno.
//!
//! The registries that a gate reaches have the SDKs of Node and Python.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::{Value, json};

use crate::Program;
use crate::kit::{DevProcess, PATIENCE, Server, Site, free_port, pillarbox};

/// The page with the recipes.
const PAGE: &str = include_str!("../../docs/resend.md");
const LISTENER: &str = "[resend_api]\nlisten = \"127.0.0.1:0\"";
/// Room for few messages.
const SMALL: &str =
    "max_request_bytes = 4096\nmax_reading_bytes = 16384\n[sending]\nmax_pending_bytes = 16384\n";

/// A program with Resend's SDK, and the directory of its modules.
fn program(name: &str) -> Command {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/resend");
    if Path::new(name).extension().is_some_and(|kind| kind == "py") {
        let python = std::env::var("RESEND_PYTHON");
        let mut command =
            Command::new(python.expect("a Python with: pip install resend svix django-anymail"));
        command.arg(format!("{directory}/{name}"));
        return command;
    }
    let modules = std::env::var("RESEND_NODE").expect("a directory with: npm install resend svix");
    // Node searches for a module only beside the program.
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

/// A program that listens, and what it prints.
struct Running {
    _program: Program,
    lines: Arc<Mutex<Vec<String>>>,
    input: ChildStdin,
    address: String,
}

impl Running {
    /// Starts a program, and waits until it listens on this port.
    fn on(port: u16, mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let reader = BufReader::new(child.stdout.take().unwrap()).lines();
        let input = child.stdin.take().unwrap();
        let program = Program(child);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in reader.map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "it does not listen: {:?}", lines.lock().unwrap());
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { _program: program, lines, input, address: format!("http://127.0.0.1:{port}") }
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

/// The status and the body of the answer to a request.
fn curl(arguments: &[&str]) -> (u16, String) {
    let mut curl = Command::new("curl");
    let output = curl.args(["-sS", "-w", "\n%{http_code}"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let answer = String::from_utf8(output.stdout).unwrap();
    let (body, status) = answer.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

/// The status and the JSON of the answer to JSON.
fn post(url: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let (status, answer) = curl(&["-H", "Content-Type: application/json", "-d", &body, url]);
    (status, serde_json::from_str(&answer).unwrap_or_default())
}

/// `pillarbox dev`, whose events are Amazon's.
struct Dev {
    base: String,
    key: String,
    socket: String,
    caught: String,
    _process: DevProcess,
}

impl Dev {
    fn start() -> Self {
        let mut process = DevProcess::start(&[]);
        let base = process.told("Resend");
        let key = process.told("API key");
        let socket = format!("{}/admin.sock", process.told("data"));
        let caught = process.told("captured");
        Self { base, key, socket, caught, _process: process }
    }

    fn command(&self, arguments: &[&str]) -> Value {
        let mut command = pillarbox(arguments);
        let output = command.args(["--json", "--socket", &self.socket]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Starts a program that is to send through this service, and listens on this port.
    fn running(&self, port: u16, mut command: Command) -> Running {
        command.env("PORT", port.to_string());
        command.env("RESEND_API_KEY", &self.key).env("RESEND_BASE_URL", &self.base);
        Running::on(port, command)
    }

    /// Adds an endpoint in Resend's form at this path, and starts the program that it is.
    fn endpoint(&self, mut command: Command, path: &str, types: &[&str]) -> (Running, String) {
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}/{path}");
        let add = ["webhook", "add", "--org", "dev", "--format", "resend", &url];
        let added = self.command(&[&add[..], types].concat());
        command.env("WEBHOOK_SECRET", added["secret"].as_str().unwrap());
        (self.running(port, command), added["id"].to_string())
    }

    /// Requests something of Resend's API.
    fn request(&self, path: &str, arguments: &[&str]) -> Value {
        let key = format!("Authorization: Bearer {}", self.key);
        let url = format!("{}{path}", self.base);
        let (status, answer) = curl(&[&["-H", &key, &url][..], arguments].concat());
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// The message with this subject, once the simulator has it.
    fn caught(&self, subject: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let (_, answer) = curl(&[&self.caught]);
            let all: Value = serde_json::from_str(&answer).unwrap();
            let mut messages = all["messages"].as_array().unwrap().iter();
            if let Some(message) = messages.find(|one| one["subject"] == subject) {
                return message.clone();
            }
            assert!(Instant::now() < end, "no {subject}: {all}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn svix_and_resends_sdk_verify_and_read_webhooks() {
    let dev = Dev::start();
    let (endpoint, id) = dev.endpoint(program("webhook.mjs"), "hook", &[]);
    assert_eq!(dev.command(&["webhook", "test", &id])["delivered"], true);
    endpoint.wait_for("email.test", " ");
    let send = |to: &str| {
        let body = format!(
            r#"{{"from":"a@example.com","to":["success@simulator.amazonses.com","{to}"],"subject":"s","text":"t"}}"#
        );
        dev.request("/emails", &["-H", "Content-Type: application/json", "-d", &body]);
    };
    send("bounce@simulator.amazonses.com");
    send("complaint@simulator.amazonses.com");
    endpoint.wait_for("email.sent success@simulator.amazonses.com,", " ");
    endpoint.wait_for("email.delivered ", " ");
    // The recipient that bounced, and not the first one.
    endpoint.wait_for("email.bounced bounce@simulator.amazonses.com", " Permanent");
    endpoint.wait_for("email.complained complaint@simulator.amazonses.com", " ");
    assert!(!endpoint.lines.lock().unwrap().iter().any(|line| line.starts_with("refused")));
}

#[test]
fn django_anymail_sends_and_is_told() {
    let dev = Dev::start();
    let types = ["--types", "email.bounced,email.delivered"];
    let (mut site, _) = dev.endpoint(program("anymail_site.py"), "hook", &types);
    writeln!(site.input, "bounce@simulator.amazonses.com").unwrap();
    let sent = site.wait_for("sent ", "");
    let id = sent.strip_prefix("sent ").unwrap();
    site.wait_for("batch 2", "");
    site.wait_for("refused 422", "");
    site.wait_for("told bounced bounce@simulator.amazonses.com bounced", id);
    site.wait_for("told delivered success@simulator.amazonses.com None", id);
}

/// Directory of the installed packages of the recipes.
fn installed() -> PathBuf {
    std::env::var_os("RESEND_RECIPES").expect("a directory with what .ci/run installs").into()
}

/// A directory with the programs of a recipe, each at the path that is its first line, and below the
/// packages that it needs.
fn recipe(heading: &str) -> PathBuf {
    let directory = installed().join(heading);
    let _ = std::fs::remove_dir_all(&directory);
    let (_, section) = PAGE.split_once(&format!("\n### {heading}\n")).expect("a recipe");
    let section = section.split("\n## ").next().unwrap().split("\n### ").next().unwrap();
    for block in section.split("\n```").skip(1).step_by(2) {
        let mut parts = block.splitn(3, '\n').skip(1);
        let path = parts.next().and_then(|line| line.strip_prefix("// ")).expect("a path");
        let path = directory.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, parts.next().unwrap()).unwrap();
    }
    directory
}

#[test]
fn next_js_sends_and_verifies_webhooks_by_the_recipe() {
    let directory = recipe("Next.js");
    // As `create-next-app` does it. The rest is added by Next.js itself.
    let strict = r#"{"compilerOptions":{"strict":true}}"#;
    std::fs::write(directory.join("tsconfig.json"), strict).unwrap();
    let next = |arguments: &[&str]| {
        let mut next = Command::new("node");
        next.arg("../node_modules/next/dist/bin/next").args(arguments);
        next.current_dir(&directory).env("NEXT_TELEMETRY_DISABLED", "1");
        next
    };
    // It is built without the address and the key.
    let output = next(&["build"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let dev = Dev::start();
    let start = next(&["start", "--hostname", "127.0.0.1"]);
    let (site, webhook) = dev.endpoint(start, "api/webhooks", &[]);
    assert_eq!(dev.command(&["webhook", "test", &webhook])["delivered"], true);
    assert_eq!(post(&format!("{}/api/webhooks", site.address), &json!({})).0, 400);

    let send = format!("{}/api/send", site.address);
    let to = ["success@simulator.amazonses.com", "bounce@simulator.amazonses.com"];
    let (status, answer) = post(&send, &json!({"to": to, "name": "Ada <3"}));
    assert_eq!(status, 200, "{answer}");
    let id = answer["id"].as_str().unwrap();
    assert_eq!(dev.request(&format!("/emails/{id}"), &[])["to"], json!(to));
    let html = dev.caught("Welcome")["html"].to_string();
    assert!(html.contains("Ada &lt;3"), "{html}");
    site.wait_for(id, " bounced: bounce@simulator.amazonses.com");

    let (status, answer) = post(&send, &json!({"to": "nobody", "name": "Ada"}));
    assert_eq!((status, &answer["name"]), (422, &json!("validation_error")));
}

#[test]
fn better_auth_confirms_addresses_and_resets_passwords_by_the_recipe() {
    let directory = recipe("better-auth");
    for (name, text) in [
        ("database.ts", include_str!("resend/database.ts")),
        ("server.ts", include_str!("resend/server.ts")),
        ("package.json", r#"{"type":"module"}"#),
    ] {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let mut compile = Command::new(installed().join("node_modules/.bin/tsc"));
    compile.args(["--strict", "--skipLibCheck", "--module", "nodenext", "--types", "node"]);
    compile.args(["--target", "es2022", "server.ts"]).current_dir(&directory);
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let dev = Dev::start();
    let port = free_port();
    let mut node = Command::new("node");
    node.arg(directory.join("server.js"));
    node.env("BETTER_AUTH_URL", format!("http://127.0.0.1:{port}"));
    let server = dev.running(port, node);
    let base = format!("{}/api/auth", server.address);
    let call = |path: &str, body: &Value| post(&format!("{base}/{path}"), body);
    let email = "success@simulator.amazonses.com";
    let account = json!({"name": "Ada", "email": email, "password": "analytical"});
    assert_eq!(call("sign-up/email", &account).0, 200);
    assert_eq!(call("sign-in/email", &account).0, 403, "the address is not confirmed");

    let mail = dev.caught("Confirm your address");
    assert_eq!(mail["to"], json!([email]));
    assert_eq!(curl(&[mail["text"].as_str().unwrap().trim()]).0, 302);
    assert_eq!(call("sign-in/email", &account).0, 200);

    assert_eq!(call("request-password-reset", &json!({"email": email})).0, 200);
    let mail = dev.caught("Reset your password");
    let (_, link) = mail["text"].as_str().unwrap().split_once("/reset-password/").unwrap();
    let (token, _) = link.split_once('?').unwrap();
    let reset = json!({"token": token, "newPassword": "difference"});
    assert_eq!(call("reset-password", &reset).0, 200);
    assert_eq!(call("sign-in/email", &account).0, 401, "the password has changed");
    assert_eq!(call("sign-in/email", &json!({"email": email, "password": "difference"})).0, 200);
}

#[test]
fn an_edge_function_sends_by_the_recipe() {
    let directory = recipe("Supabase");
    let dev = Dev::start();
    let path = directory.join("supabase/functions/welcome/index.ts");
    let program = std::fs::read_to_string(&path).unwrap();
    let url = "https://mail.example.com:8028/emails";
    assert!(program.contains(url), "{program}");
    std::fs::write(&path, program.replace(url, &format!("{}/emails", dev.base))).unwrap();

    let port = free_port();
    let mut deno = Command::new(installed().join("node_modules/.bin/deno"));
    deno.args(["run", "--check", "--no-remote", "--allow-net", "--allow-env"]).arg(path);
    deno.env("DENO_SERVE_ADDRESS", format!("tcp:127.0.0.1:{port}"));
    deno.env("DENO_DIR", directory.join("cache")).env("DENO_NO_UPDATE_CHECK", "1");
    let function = dev.running(port, deno);
    let to = "success@simulator.amazonses.com";
    let (status, answer) = post(&function.address, &json!({"to": to}));
    assert_eq!(status, 200, "{answer}");
    let read = dev.request(&format!("/emails/{}", answer["id"].as_str().unwrap()), &[]);
    assert_eq!((&read["to"], &read["subject"]), (&json!([to]), &json!("Welcome")));
    assert_eq!(dev.caught("Welcome")["html"], "<strong>It works.</strong>");

    let (status, answer) = post(&function.address, &json!({"to": "nobody"}));
    assert_eq!((status, &answer["name"]), (422, &json!("validation_error")));
}
