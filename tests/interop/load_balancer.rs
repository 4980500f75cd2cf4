//! Two nodes behind `HAProxy`, with the configuration of `examples/`: what clients notice if a node is
//! drained, upgraded or killed. `tests/with-postgres.sh` starts the database.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_simulator::{Fault, Faults};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Program;
use crate::kit::{PATIENCE, Server, free_port, http_client, message_with};
use crate::nodes::Nodes;

const CLIENTS: usize = 8;
/// Pause of a client between two messages.
const PAUSE: Duration = Duration::from_millis(20);
/// Duration of each state of the nodes.
const PHASE: Duration = Duration::from_secs(4);
/// Time from a node's end until the balancer has surely noticed it: two checks, each with its
/// time-out.
const NOTICED: Duration = Duration::from_secs(5);

/// Answers that clients received.
#[derive(Default)]
struct History {
    /// Subjects and their ids.
    accepted: BTreeMap<String, String>,
    /// Subjects that were posted once and not accepted for sure, and when, with what was answered.
    failed: Vec<(String, Instant, String)>,
    /// Keys and all their ids.
    keyed: BTreeMap<String, BTreeSet<String>>,
}

/// Clients with connections that they keep, half of whom give each message a key.
struct Clients {
    history: Arc<Mutex<History>>,
    is_over: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Clients {
    fn start(base: &str, key: &str) -> Self {
        let (history, is_over) = (Arc::<Mutex<History>>::default(), Arc::<AtomicBool>::default());
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let (history, is_over) = (Arc::clone(&history), Arc::clone(&is_over));
            let http = http_client();
            let (url, key) = (format!("{base}/emails"), key.to_owned());
            tasks.spawn(async move {
                for number in 0.. {
                    let subject = format!("{client}-{number}");
                    let mut message = message_with("subject", json!(subject));
                    let is_keyed = client % 2 == 0;
                    if is_keyed {
                        message["idempotencyKey"] = json!(subject);
                    }
                    while !is_over.load(Ordering::SeqCst) {
                        let post = http.post(&url).bearer_auth(&key);
                        let post = post.header("content-type", "application/json");
                        let post = post.body(message.to_string());
                        let answer = match post.send().await {
                            Ok(answer) => Ok((answer.status(), answer.text().await)),
                            Err(error) => Err(error),
                        };
                        let mut history = history.lock().unwrap();
                        if let Ok((StatusCode::OK, Ok(text))) = &answer {
                            let body: Value = serde_json::from_str(text).unwrap();
                            let id = body["id"].as_str().unwrap().to_owned();
                            if is_keyed {
                                history
                                    .keyed
                                    .entry(subject.clone())
                                    .or_default()
                                    .insert(id.clone());
                            }
                            history.accepted.insert(subject, id);
                            break;
                        }
                        let failure = (subject.clone(), Instant::now(), format!("{answer:?}"));
                        history.failed.push(failure);
                        if !is_keyed {
                            break;
                        }
                    }
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    sleep(PAUSE).await;
                }
            });
        }
        Self { history, is_over, tasks }
    }

    fn failed(&self) -> Vec<(String, Instant, String)> {
        self.history.lock().unwrap().failed.clone()
    }

    fn accepted(&self) -> usize {
        self.history.lock().unwrap().accepted.len()
    }

    async fn stop(mut self) -> History {
        self.is_over.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut *self.history.lock().unwrap())
    }
}

/// Starts `HAProxy` with the example, and only the addresses changed; gives its own.
fn start_haproxy(nodes: &Nodes, servers: [&Server; 2]) -> (Program, String) {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/haproxy.cfg");
    let mut text = std::fs::read_to_string(example).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let port = |url: &str| url.rsplit(':').next().unwrap().to_owned();
    let mut changes = vec![("bind :8080".to_owned(), format!("bind {address}"))];
    for (name, server) in ["mail-a", "mail-b"].into_iter().zip(servers) {
        changes.push((
            format!("{name}:8025 port 8026"),
            format!("127.0.0.1:{} port {}", port(&server.base), port(&server.operator)),
        ));
    }
    for (from, to) in changes {
        assert_eq!(text.matches(&from).count(), 1, "{from}");
        text = text.replace(&from, &to);
    }
    let file = nodes.sites[0].directory().join("haproxy.cfg");
    std::fs::write(&file, text).unwrap();
    let child = Command::new("haproxy").args(["-db", "-f"]).arg(&file).spawn();
    (
        Program(child.expect("haproxy is installed; .ci/run installs it")),
        format!("http://{address}"),
    )
}

/// Messages that a node accepted since its start.
async fn accepted_by(server: &Server) -> usize {
    let metrics = server.operator("/metrics").await.text().await.unwrap();
    let line = metrics.lines().find(|line| line.starts_with("pillarbox_accepted_messages_total"));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Starts two nodes, which keep their addresses after a restart, and `HAProxy` before them.
async fn start(database: &str) -> (Nodes, [Server; 2], Program, String) {
    let (nodes, first) = Nodes::new(database).await;
    first.terminate().await;
    for site in &nodes.sites {
        for listener in ["operator_listen", "listen"] {
            let zero = format!("\n{listener} = \"127.0.0.1:0\"");
            let text = std::fs::read_to_string(site.config()).unwrap();
            let text = format!("\n{text}")
                .replace(&zero, &format!("\n{listener} = \"127.0.0.1:{}\"", free_port()));
            std::fs::write(site.config(), text).unwrap();
        }
    }
    let (one, two) = (nodes.start(0), nodes.start(1));
    // The balancer takes some seconds to notice a node that was not ready.
    one.ready().await;
    two.ready().await;
    let (haproxy, base) = start_haproxy(&nodes, [&one, &two]);
    let end = Instant::now() + PATIENCE;
    let is_up = async || {
        let asked = one.client.get(format!("{base}/emails")).send().await;
        asked.is_ok_and(|answer| answer.status() == StatusCode::UNAUTHORIZED)
    };
    while !is_up().await {
        assert!(Instant::now() < end, "the balancer finds no node");
        sleep(Duration::from_millis(50)).await;
    }
    (nodes, [one, two], haproxy, base)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_answers_no_call_takes_no_node_from_the_load_balancer() {
    let (nodes, [one, _two], _haproxy, base) = start("unanswered").await;
    let simulator = &nodes.sites[0].simulator;
    simulator.set_faults(Faults::always(Fault::ResetAfter));
    let clients = Clients::start(&base, &one.key);
    // Longer than it takes to doubt the provider, and to notice a node that is not ready.
    sleep(4 * PHASE).await;
    assert_eq!(clients.failed(), [], "{} were accepted", clients.accepted());
    simulator.set_faults(Faults::none());
    let history = clients.stop().await;
    assert!(history.accepted.len() > 100, "{} were accepted", history.accepted.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_load_balancer_notice_no_drain_and_lose_little_by_a_crash() {
    let (nodes, [one, two], _haproxy, base) = start("balanced").await;
    let clients = Clients::start(&base, &one.key);
    sleep(PHASE).await;
    for node in [&one, &two] {
        let (its, all) = (accepted_by(node).await, clients.accepted());
        assert!(its > all / 3, "a node gets {its} of {all} messages");
    }

    // An upgrade: drained, stopped in order, and started again.
    nodes.sites[0].done(&["node", "drain", "b"]);
    sleep(NOTICED + PHASE).await;
    let before = accepted_by(&two).await;
    sleep(PHASE).await;
    assert_eq!(accepted_by(&two).await, before, "a drained node gets messages");
    two.terminate().await;
    sleep(PHASE).await;
    let two = nodes.start(1);
    sleep(PHASE).await;
    assert!(accepted_by(&two).await > 10, "the node gets none after its restart");
    assert_eq!(clients.failed(), [], "{} were accepted", clients.accepted());

    // A crash.
    let killed = Instant::now();
    one.kill();
    sleep(NOTICED + PHASE).await;
    let (failed, accepted) = (clients.failed(), clients.accepted());
    println!("{accepted} accepted, {} failed by the crash", failed.len());
    assert!(failed.len() <= 4 * CLIENTS, "{failed:?}");
    let late = failed.iter().find(|(_, at, _)| *at > killed + NOTICED);
    assert_eq!(late, None);
    sleep(PHASE).await;
    assert!(clients.accepted() > accepted + 10, "nothing is accepted after the crash");

    // The messages that it held are final once it is back.
    let _one = nodes.start(0);
    let history = clients.stop().await;
    let end = Instant::now() + PATIENCE;
    for (subject, id) in &history.accepted {
        loop {
            let record = two.record(id).await;
            match record["status"].as_str().unwrap() {
                "sent" => break,
                "failed" => {
                    assert_eq!(
                        record["error"]["code"], "body_lost_on_restart",
                        "{subject}: {record}"
                    );
                    break;
                }
                _ if Instant::now() < end => sleep(Duration::from_millis(50)).await,
                _ => panic!("{subject}: {record}"),
            }
        }
    }
    let mut times = BTreeMap::<String, usize>::new();
    for message in nodes.sites[0].simulator.messages() {
        *times.entry(message.subject.clone()).or_default() += 1;
    }
    times.retain(|_, times| *times > 1);
    assert!(times.is_empty(), "sent more than once: {times:?}");
    let doubled = history.keyed.iter().find(|(_, ids)| ids.len() > 1);
    assert_eq!(doubled, None);
}
