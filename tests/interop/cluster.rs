//! Nodes on one database, which a supervisor starts again, and clients of theirs that keep every
//! answer. Tests make things go wrong meanwhile, and compare at the end the answers to clients with
//! the records of the nodes and the provider.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_judge::history::{Answers, Entry, Event, OnUnknown, Page, Post, Read, Refusal, Run};
use pillarbox_simulator::Options;
use reqwest::StatusCode;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};

use crate::kit::{self, PATIENCE, Server, Site, message};

/// The organisation of all clients.
const ORGANISATION: &str = "acme";
const MESSAGE_ID_TAG: &str = "pillarbox-message-id";
/// Pause of a poster between two keys, so that the nodes are not at their limit.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// Time limit of a request's answer. A read and an acceptance end within `answer_timeout`, 8 s,
/// each.
pub(crate) const UNANSWERED: Duration = Duration::from_secs(20);
/// Wait of a client that repeats its request soon.
pub(crate) const IMPATIENT: Duration = Duration::from_secs(1);
/// Exit code of a node that the others took for dead.
const FENCED: i32 = 75;
const SIGKILL: i32 = 9;
/// Number of tasks that compare.
const COMPARING: usize = 8;

/// All answers that clients received.
#[derive(Default)]
pub(crate) struct History {
    /// Ids that were answered for a key.
    pub(crate) ids: BTreeMap<String, BTreeSet<String>>,
    /// Times at which each node accepted a message, or repeated the answer for one.
    pub(crate) accepted: BTreeMap<usize, Vec<Instant>>,
    pub(crate) refused: usize,
    /// Requests whose connection failed.
    pub(crate) disconnected: usize,
    /// Answers that must not be.
    pub(crate) wrong: Vec<String>,
    pub(crate) slowest: Duration,
}

/// Nodes, which a supervisor starts again.
pub(crate) struct Nodes {
    pub(crate) sites: Vec<Site>,
    servers: Mutex<Vec<Option<Arc<Server>>>>,
    pub(crate) history: Mutex<History>,
    /// All observations, for the judge.
    told: kit::History,
    /// Number of times that a node ended because the others took it for dead.
    pub(crate) fenced: AtomicUsize,
    /// Number of times that a node was killed.
    pub(crate) killed: AtomicUsize,
    is_over: AtomicBool,
}

impl Nodes {
    /// So many nodes, each with its configuration, and one provider.
    pub(crate) async fn start(
        name: &str,
        count: usize,
        configuration: impl Fn(usize) -> String,
    ) -> Arc<Self> {
        let mut first = Site::empty(&configuration(0), Options::default()).await;
        let endpoint = format!("endpoint = \"{}\"\n", first.simulator.endpoint());
        let server = start(&first, "");
        first.key = first.add_organisation("acme", "example.com");
        drop(server);
        let key = first.key.clone();
        let mut sites = vec![first];
        for number in 1..count {
            let site = Site::empty("", Options::default()).await;
            site.configure(&configuration(number), &endpoint);
            sites.push(site);
        }
        let run = Run {
            on_unknown: OnUnknown::Retry,
            answers: Answers::Arrive,
            refusal: Refusal::MayBeOpen,
            suppression_delay: 1_000_000,
        };
        let told = kit::History::begin(name, run, &sites[0].simulator);
        let servers = sites.iter().map(|site| Some(Arc::new(start(site, &key))));
        let nodes = Arc::new(Self {
            servers: Mutex::new(servers.collect()),
            sites,
            history: Mutex::default(),
            told,
            fenced: AtomicUsize::new(0),
            killed: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        tokio::spawn(supervise(Arc::clone(&nodes)));
        tokio::spawn(follow(Arc::clone(&nodes)));
        nodes
    }

    pub(crate) fn count(&self) -> usize {
        self.sites.len()
    }

    /// A node, if it runs.
    pub(crate) fn server(&self, number: usize) -> Option<Arc<Server>> {
        self.servers.lock().unwrap()[number].clone()
    }

    /// Posts with a key to a node until it accepts; gives the id. `patience` is how long one request
    /// may take.
    pub(crate) async fn post(&self, number: usize, key: &str, patience: Duration) -> String {
        loop {
            match self.try_post(number, key, patience).await {
                Some(id) => return id,
                None => sleep(PAUSE * 5).await,
            }
        }
    }

    /// Posts with a key to a node; gives the id if it accepts.
    pub(crate) async fn try_post(
        &self,
        number: usize,
        key: &str,
        patience: Duration,
    ) -> Option<String> {
        let server = self.server(number)?;
        let mut body = message();
        body["idempotencyKey"] = key.into();
        body["subject"] = key.into();
        let (began, posted) = (Instant::now(), self.told.now());
        let answer = timeout(patience, async {
            let response = server.post(&body).send().await.ok()?;
            let status = response.status();
            let replayed = response.headers().contains_key("idempotent-replayed");
            Some((status, replayed, response.text().await.ok()?))
        });
        let answer = answer.await;
        self.tell_of_post(key, posted, answer.as_ref().ok().and_then(Option::as_ref));
        let answer = answer.map(|answer| answer.map(|(status, _, text)| (status, text)));
        if answer.is_err() && patience < UNANSWERED {
            return None;
        }
        self.note(number, key, began, answer)
    }

    fn tell_of_post(&self, key: &str, began: u64, answer: Option<&(StatusCode, bool, String)>) {
        let id = answer.and_then(|(_, _, text)| {
            let answer: Value = serde_json::from_str(text).ok()?;
            Some(answer["id"].as_str()?.to_owned())
        });
        self.told.write(&Event::Post(Post {
            began,
            ended: self.told.now(),
            organisation: ORGANISATION.to_owned(),
            key: Some(key.to_owned()),
            subject: key.to_owned(),
            status: answer.map(|(status, _, _)| status.as_u16()),
            id,
            replayed: answer.is_some_and(|(_, replayed, _)| *replayed),
        }));
    }

    /// Reads a page of the feed at a node; returns the entries, and the cursor of the next page.
    /// `None` if the node does not answer with one.
    async fn read_feed(
        &self,
        number: usize,
        reader: &str,
        after: Option<&str>,
    ) -> Option<(usize, String)> {
        let server = self.server(number)?;
        let began = self.told.now();
        let after = after.map(|cursor| format!("&after={cursor}")).unwrap_or_default();
        let answer = server.get(&format!("/events?limit=100{after}")).send().await.ok()?;
        if answer.status() != StatusCode::OK {
            return None;
        }
        let page: Value = serde_json::from_str(&answer.text().await.ok()?).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let entries = page["events"].as_array().unwrap().iter().map(|event| Entry {
            id: text(&event["id"]),
            kind: text(&event["type"]),
            message: text(&event["data"]["id"]),
        });
        let entries: Vec<_> = entries.collect();
        let count = entries.len();
        self.told.write(&Event::Feed(Page {
            began,
            ended: self.told.now(),
            organisation: ORGANISATION.to_owned(),
            reader: reader.to_owned(),
            entries,
        }));
        Some((count, text(&page["next"])))
    }

    /// Keeps an answer; gives the id if it is one of success.
    fn note(
        &self,
        number: usize,
        key: &str,
        began: Instant,
        answer: Result<Option<(StatusCode, String)>, Elapsed>,
    ) -> Option<String> {
        let mut history = self.history.lock().unwrap();
        history.slowest = history.slowest.max(began.elapsed());
        match answer {
            Ok(Some((StatusCode::OK, text))) => {
                let answer: Value = serde_json::from_str(&text).unwrap();
                let id = answer["id"].as_str().unwrap().to_owned();
                history.ids.entry(key.to_owned()).or_default().insert(id.clone());
                history.accepted.entry(number).or_default().push(Instant::now());
                return Some(id);
            }
            Ok(Some((StatusCode::SERVICE_UNAVAILABLE, _))) => history.refused += 1,
            Ok(Some((status, text))) => history.wrong.push(format!("{status}: {text}")),
            Ok(None) => history.disconnected += 1,
            Err(_) => history.wrong.push(format!("node {number} did not answer")),
        }
        None
    }

    /// Waits until all nodes have accepted something since.
    pub(crate) async fn all_accept(&self, since: Instant) {
        let end = Instant::now() + PATIENCE;
        let accepts = |number| {
            let history = self.history.lock().unwrap();
            let last = history.accepted.get(&number).and_then(|instants| instants.last());
            last.is_some_and(|at| *at > since)
        };
        while !(0..self.count()).all(accepts) {
            assert!(Instant::now() < end, "a node does not accept again: {}", self.logs());
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn logs(&self) -> String {
        let tail = |number| {
            let log = self.server(number).map(|server: Arc<Server>| server.log());
            let log = log.unwrap_or_default();
            // Lines about single messages are left out.
            let is_of_node = |line: &&str| !line.contains(" INFO ");
            log.lines().filter(is_of_node).collect::<Vec<_>>().join("\n")
        };
        (0..self.count()).map(tail).collect::<Vec<_>>().join("\n\n")
    }

    /// Ends them all in order.
    pub(crate) async fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        for number in 0..self.count() {
            let server = self.servers.lock().unwrap()[number].take().expect("it runs");
            let log = last(server).await.terminate().await;
            assert!(!log.contains("panicked"), "{log}");
        }
    }

    /// Compares the answers with what all nodes and the provider have. A message may have failed if
    /// a node ended meanwhile.
    pub(crate) async fn compare(
        self: &Arc<Self>,
        ids: &BTreeMap<String, BTreeSet<String>>,
        has_ended: bool,
    ) {
        let doubled: Vec<_> = ids.iter().filter(|(_, ids)| ids.len() != 1).collect();
        assert!(doubled.is_empty(), "keys with two ids: {doubled:?}");
        let all: Vec<_> = ids.iter().collect();
        let mut tasks = JoinSet::new();
        for part in all.chunks(all.len().div_ceil(COMPARING).max(1)) {
            let part = part.iter().map(|(key, ids)| ((*key).clone(), ids.first().unwrap().clone()));
            tasks.spawn(Arc::clone(self).compare_some(part.collect()));
        }
        let failed: usize = tasks.join_all().await.into_iter().sum();
        assert!(failed == 0 || has_ended, "{failed} messages failed, and no node ended");
        println!("    {} ids are there, {failed} of them failed with their node", ids.len());
        let repeated = self.sites[0].simulator.repeated_tags(MESSAGE_ID_TAG);
        assert!(repeated.is_empty(), "sent twice: {repeated:?}");
        let queued = self.sites[0].done(&["message", "list", "--status", "queued", "--json"]);
        let queued: Value = serde_json::from_slice(&queued.stdout).unwrap();
        assert_eq!(queued["messages"], Value::Array(Vec::new()), "each is accounted for");
        for number in 0..self.count() {
            let (reader, mut next) = (format!("reader at {number}"), None);
            while let Some((1.., after)) = self.read_feed(number, &reader, next.as_deref()).await {
                next = Some(after);
            }
        }
        println!("    {:?}", self.told.judge());
    }

    /// Compares some of them; returns how many failed.
    async fn compare_some(self: Arc<Self>, ids: Vec<(String, String)>) -> usize {
        let servers: Vec<_> =
            (0..self.count()).map(|number| self.server(number).expect("all run")).collect();
        let mut failed = 0;
        for (key, id) in ids {
            for number in 0..self.count() {
                assert_eq!(self.post(number, &key, UNANSWERED).await, id, "{key} at node {number}");
            }
            let record = self.settled(&servers, &id).await;
            let sent = self.sites[0].simulator.accepted_by_tag(MESSAGE_ID_TAG, &id);
            if record["status"] == "sent" {
                assert_eq!(sent, 1, "{record}");
            } else {
                // Its body went with its node. A call may have been under way.
                assert_eq!(record["error"]["code"], "body_lost_on_restart", "{record}");
                assert!(sent <= 1, "{record}");
                failed += 1;
            }
        }
        failed
    }

    /// Waits until a message has ended in the same way at all nodes; returns its record.
    async fn settled(&self, servers: &[Arc<Server>], id: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut records = Vec::new();
            for server in servers {
                let began = self.told.now();
                let record = server.record(id).await;
                self.told.write(&Event::Read(Read {
                    began,
                    ended: self.told.now(),
                    id: id.to_owned(),
                    status: Some(record["status"].as_str().unwrap().to_owned()),
                    attempts: record["attempts"].as_u64().unwrap(),
                }));
                records.push(record);
            }
            let status = |record: &Value| record["status"].as_str().unwrap().to_owned();
            let first = status(&records[0]);
            let is_final = first != "queued" && first != "sending";
            if is_final && records.iter().all(|record| status(record) == first) {
                return records.swap_remove(0);
            }
            assert!(Instant::now() < end, "{records:?}");
            sleep(PAUSE).await;
        }
    }
}

/// Starts a node. `TEST_PREVIOUS` may name a pillarbox of another version: each start takes the one
/// or the other at random then, as an upgrade of one node after the other does.
fn start(site: &Site, key: &str) -> Server {
    let mut command = match std::env::var("TEST_PREVIOUS") {
        Ok(previous) if fastrand::bool() => site.service_by(&previous),
        Ok(_) | Err(_) => site.service(),
    };
    command.env("RUST_LOG", "info");
    let server = site.start_by(command);
    Server { key: key.to_owned(), ..server }
}

/// Starts a node again if it was killed, or ended because the others took it for dead.
async fn supervise(nodes: Arc<Nodes>) {
    while !nodes.is_over.load(Ordering::SeqCst) {
        sleep(Duration::from_millis(200)).await;
        for number in 0..nodes.count() {
            let Some(server) = nodes.server(number) else { continue };
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.process.id()));
            // proc(5): the state of a process that has ended is Z.
            if !stat.unwrap().rsplit_once(") ").unwrap().1.starts_with('Z') {
                continue;
            }
            nodes.servers.lock().unwrap()[number] = None;
            let server = last(server).await;
            let (status, log) = server.process.wait();
            if status.signal() == Some(SIGKILL) {
                nodes.killed.fetch_add(1, Ordering::SeqCst);
                nodes.told.write_kill();
            } else {
                assert_eq!(status.code(), Some(FENCED), "{log}");
                nodes.fenced.fetch_add(1, Ordering::SeqCst);
            }
            let again = Arc::clone(&nodes);
            let server = tokio::task::spawn_blocking(move || {
                start(&again.sites[number], &again.sites[0].key)
            });
            nodes.servers.lock().unwrap()[number] = Some(Arc::new(server.await.unwrap()));
        }
    }
}

/// Follows the feed at any of the nodes.
async fn follow(nodes: Arc<Nodes>) {
    let mut next: Option<String> = None;
    while !nodes.is_over.load(Ordering::SeqCst) {
        let number = fastrand::usize(..nodes.count());
        match nodes.read_feed(number, "follower", next.as_deref()).await {
            Some((1.., after)) => next = Some(after),
            Some((0, _)) | None => sleep(PAUSE).await,
        }
    }
}

/// Waits until no other client uses the server.
async fn last(mut server: Arc<Server>) -> Server {
    loop {
        match Arc::try_unwrap(server) {
            Ok(server) => return server,
            Err(shared) => server = shared,
        }
        sleep(PAUSE).await;
    }
}
