//! Webhooks and the official libraries of Standard Webhooks, in the programs that the page shows.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::Value;

use crate::Program;
use crate::kit::{PATIENCE, Site, free_port, message};

const MESSAGES: usize = 20;

/// A receiver of `examples/`, with the lines that it has printed.
struct Example {
    _program: Program,
    printed: Arc<Mutex<Vec<String>>>,
}

impl Example {
    fn start(mut command: Command, secret: &str, port: u16) -> Self {
        command.env("WEBHOOK_SECRET", secret).env("PORT", port.to_string());
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let printed = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&printed);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        Self { _program: Program(child), printed }
    }
}

/// The programs on `docs/webhooks.md`. The gate sets the place of the libraries.
fn programs() -> [Command; 2] {
    let python = std::env::var("STANDARDWEBHOOKS_PYTHON");
    let mut python = Command::new(python.expect("a Python with: pip install standardwebhooks"));
    python.arg("examples/receive.py");
    let modules = std::env::var("STANDARDWEBHOOKS_NODE");
    let modules = modules.expect("a directory with: npm install standardwebhooks");
    // Node searches for a module only beside the program.
    let program = format!("{modules}/receive.mjs");
    std::fs::copy("examples/receive.mjs", &program).unwrap();
    let mut node = Command::new("node");
    node.arg(program);
    [python, node]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_libraries_verify_every_delivery() {
    let site = Site::new().await;
    let server = site.start();
    let mut examples = Vec::new();
    for program in programs() {
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}/");
        let output = site.done(&["webhook", "add", "--org", "acme", &url, "--json"]);
        let added: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (id, secret) = (added["id"].to_string(), added["secret"].as_str().unwrap());
        let example = Example::start(program, secret, port);
        let end = Instant::now() + PATIENCE;
        while !site.run(&["webhook", "test", &id]).status.success() {
            assert!(Instant::now() < end, "the program does not take the test event");
            std::thread::sleep(Duration::from_millis(100));
        }
        examples.push((id, example));
    }
    for _ in 0..MESSAGES {
        server.send(&message()).await;
    }
    let end = Instant::now() + PATIENCE;
    for (id, example) in &examples {
        loop {
            let printed = example.printed.lock().unwrap().clone();
            // The Python program has a thread for each request: lines may run into each other.
            let sent = printed.concat().matches("email.sent").count();
            if sent == MESSAGES {
                assert!(printed[0].starts_with("email.test"), "{printed:?}");
                break;
            }
            assert!(Instant::now() < end, "endpoint {id} was told of {sent}: {printed:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    // Earlier secrets sign after a rotation, until they are ended: the programs have the first one.
    for (id, _) in &examples {
        for _ in 0..2 {
            site.done(&["webhook", "rotate", id]);
            assert!(site.run(&["webhook", "test", id]).status.success());
        }
        site.done(&["webhook", "rotate", "--now", id]);
        let refused = site.run(&["webhook", "test", id]);
        assert!(!refused.status.success(), "the only secret that signs is not the program's");
        assert!(String::from_utf8(refused.stdout).unwrap().contains("status 400"));
    }
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_libraries_verify_alerts() {
    const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
    for program in programs() {
        let port = free_port();
        let site = Site::empty("", Options::default()).await;
        let secret = site.directory().join("secret");
        std::fs::write(&secret, SECRET).unwrap();
        let alerts = format!(
            "[alerts]\nurl = \"http://127.0.0.1:{port}/\"\nsecret_file = \"{}\"\n",
            secret.display()
        );
        site.configure(&alerts, &format!("endpoint = \"{}\"\n", site.simulator.endpoint()));
        let server = site.start();
        let example = Example::start(program, SECRET, port);
        let end = Instant::now() + PATIENCE;
        loop {
            let examined = site.run(&["doctor", "--json"]).stdout;
            let examined: Value = serde_json::from_slice(&examined).unwrap();
            let checks = examined["checks"].as_array().unwrap();
            let alerts = checks.iter().find(|check| check["about"] == "alerts").unwrap();
            if alerts["verdict"] == "ok" {
                break;
            }
            assert!(Instant::now() < end, "the program does not take the test: {alerts}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // It answers before it prints.
        let printed = loop {
            let printed = example.printed.lock().unwrap().clone();
            if !printed.is_empty() {
                break printed;
            }
            assert!(Instant::now() < end, "the program prints nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(printed[0].starts_with("alerts.test"), "{printed:?}");
        server.terminate().await;
    }
}
