//! Name servers that do not answer: calls to other names go on, and so does everything without
//! calls.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::Value;
use tokio::time::sleep;

use crate::kit::{PATIENCE, Receiver, Reply, Server, Site, message};

/// Name server of the test. Port 53 of any address in 127.0.0.0/8 is only for root.
const NAME_SERVER: &str = "127.83.7.53";
/// Longer than a listing or a call takes on a busy machine, and less than a resolution that gets no
/// answer (resolv.conf(5): twice 5 seconds).
const SOON: Duration = Duration::from_secs(4);
/// Organisations, each with endpoints of its own.
const ORGANISATIONS: usize = 4;
/// Endpoints of each organisation whose names get no answer.
const DEAD: usize = 10;
/// Events for each endpoint: as many as it receives at one time.
const EVENTS: usize = 16;

/// Starts the service with a name server that takes questions and never answers.
fn start(site: &Site, silent: &UdpSocket) -> Server {
    assert_eq!(silent.local_addr().unwrap().port(), 53);
    let resolv_conf = site.directory().join("resolv.conf");
    std::fs::write(&resolv_conf, format!("nameserver {NAME_SERVER}\n")).unwrap();
    let script = format!(
        "mount --bind '{}' /etc/resolv.conf && exec \"$0\" serve --config \"$1\"",
        resolv_conf.display()
    );
    let binary = env!("CARGO_BIN_EXE_pillarbox");
    let mut command =
        site.service_in("unshare", &["--map-root-user", "--mount", "sh", "-c", &script, binary]);
    command.env("RUST_LOG", "info");
    site.start_by(command)
}

fn silent_name_server() -> UdpSocket {
    let bound = UdpSocket::bind((NAME_SERVER, 53));
    bound.expect("port 53 can be bound: run this test as root")
}

async fn list(server: &Server) {
    let listed = server.get("/emails?limit=1").send().await.unwrap();
    assert_eq!(listed.status(), 200);
    listed.bytes().await.unwrap();
}

/// Duration of an action.
async fn timed(what: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    what.await;
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_whose_names_get_no_answer_hold_nobody_up() {
    let silent = silent_name_server();
    let site = Site::with("", Options::default()).await;
    // SES is called by a name too. It is in /etc/hosts.
    site.reconfigure("http://127.0.0.1:", "http://localhost:");
    let receiver = Receiver::start(Reply::Status(200)).await;
    let url = receiver.url.replace("127.0.0.1", "localhost");
    site.done(&["webhook", "add", "--org", "acme", &url, "--types", "email.sent"]);
    let mut keys = Vec::new();
    for organisation in 0..ORGANISATIONS {
        let name = format!("dead{organisation}");
        keys.push(site.add_organisation(&name, "example.com"));
        for endpoint in 0..DEAD {
            let url = format!("http://hooks-{endpoint}.{name}.example.org/");
            site.done(&["webhook", "add", "--org", &name, &url, "--types", "email.sent"]);
        }
    }
    let server = start(&site, &silent);
    for key in &keys {
        for _ in 0..EVENTS {
            let request = server.client.post(format!("{}/emails", server.base)).bearer_auth(key);
            let request = request.header("content-type", "application/json");
            let response = request.body(message().to_string()).send().await.unwrap();
            assert_eq!(response.status(), 200);
        }
    }
    // Until they are all being resolved.
    let end = Instant::now() + PATIENCE;
    loop {
        let listed = site.done(&["webhook", "list", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        let webhooks = listed["webhooks"].as_array().unwrap().iter();
        let busy = webhooks.filter(|one| one["deliveries"]["inFlight"].as_u64() > Some(0)).count();
        if busy >= ORGANISATIONS * DEAD {
            break;
        }
        assert!(Instant::now() < end, "{busy} endpoints are being called");
        sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..5 {
        let took = timed(list(&server)).await;
        assert!(took < SOON, "a listing took {took:?}");
        let seen = receiver.count();
        let took = timed(async {
            let id = server.send(&message()).await;
            server.wait_for(&id, "sent").await;
        });
        let took = took.await;
        assert!(took < SOON, "a message took {took:?}");
        let took = timed(async { drop(receiver.wait_for(seen + 1).await) }).await;
        assert!(took < SOON, "an endpoint whose name is known was told after {took:?}");
        sleep(Duration::from_millis(400)).await;
    }
    // Attempts that are under way have five seconds; the stop does not wait for resolutions.
    let took = timed(async { drop(server.terminate().await) }).await;
    assert!(took < Duration::from_secs(9), "a stop took {took:?}");
}
