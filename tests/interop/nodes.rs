//! Several nodes on one database, as processes. `tests/with-postgres.sh` starts the server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use pillarbox_domain::time::Timestamp;
use pillarbox_simulator::{Fault, Faults, Options};
use serde_json::{Value, json};
use tokio::sync::MutexGuard;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cluster::{self, IMPATIENT, PAUSE};
use crate::kit::{self, PATIENCE, Server, Site, message};
use crate::{Program, set_clock};

/// After so long without a message to the provider, all have been sent.
const QUIET: Duration = Duration::from_secs(20);

/// Nodes on a database of their own, with one provider.
pub(crate) struct Nodes<const COUNT: usize = 2> {
    pub(crate) sites: [Site; COUNT],
}

/// Configuration of a node.
pub(crate) fn configuration(name: &str, database: &str) -> String {
    let port = std::env::var("TEST_POSTGRES_PORT");
    let port = port.expect("run this with tests/with-postgres.sh");
    format!(
        "[store]\nengine = \"postgres\"\n[store.postgres]\nhosts = [\"127.0.0.1:{port}\"]\n\
         database = \"{database}\"\n[cluster]\nnode = \"{name}\"\ndead_after = \"2m\"\n\
         [sending]\nmax_rate = 1000\n"
    )
}

/// Runs a statement as the superuser that the server was made with.
pub(crate) fn psql(database: &str, sql: &str) {
    let port = std::env::var("TEST_POSTGRES_PORT").unwrap();
    let run = std::process::Command::new("psql")
        .args(["-h", "127.0.0.1", "-p", &port, "-U", "pillarbox", "-q", database, "-c", sql])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
}

/// A standby that commits wait for. When it is dropped, they wait for none, as Patroni has it.
pub(crate) struct Standby {
    _receiver: Program,
    /// The server has one list of standbys, for all tests.
    _turn: MutexGuard<'static, ()>,
}

impl Standby {
    /// Starts one under this name, which keeps the server's log in a directory.
    pub(crate) async fn start(name: &str, directory: &Path) -> Self {
        static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let turn = TURN.lock().await;
        let port = std::env::var("TEST_POSTGRES_PORT").unwrap();
        std::fs::create_dir(directory).unwrap();
        let server = format!(
            "host=127.0.0.1 port={port} user=pillarbox dbname=postgres application_name={name}"
        );
        let receiver = std::process::Command::new("pg_receivewal")
            .args(["--synchronous", "--dbname", &server, "--directory"])
            .arg(directory)
            .spawn();
        let receiver = Program(receiver.expect("pg_receivewal is beside psql"));
        psql("postgres", &format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"));
        psql("postgres", "SELECT pg_reload_conf()");
        Self { _receiver: receiver, _turn: turn }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        psql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
        psql("postgres", "SELECT pg_reload_conf()");
    }
}

impl Nodes {
    /// Two nodes, and the first of them as it runs.
    pub(crate) async fn new(database: &str) -> (Self, Server) {
        Self::of(database).await
    }
}

impl<const COUNT: usize> Nodes<COUNT> {
    /// Nodes, and the first of them as it runs.
    pub(crate) async fn of(database: &str) -> (Self, Server) {
        psql("postgres", &format!("CREATE DATABASE {database}"));
        let mut one = Site::empty(&configuration("a", database), Options::default()).await;
        let endpoint = format!("endpoint = \"{}\"\n", one.simulator.endpoint());
        let first = one.start();
        one.key = one.add_organisation("acme", "example.com");
        let key = one.key.clone();
        let mut sites = vec![one];
        for name in ('b'..='z').take(COUNT - 1) {
            let site = Site::empty("", Options::default()).await;
            site.configure(&configuration(&name.to_string(), database), &endpoint);
            sites.push(site);
        }
        let nodes = Self { sites: sites.try_into().ok().expect("one for each") };
        (nodes, Server { key, ..first })
    }

    pub(crate) fn start(&self, number: usize) -> Server {
        let server = self.sites[number].start();
        Server { key: self.sites[0].key.clone(), ..server }
    }
}

/// Time limit of all faults together.
const LONGEST: Duration = Duration::from_mins(15);
/// Recipients a second of all nodes together, in the tests that count them.
const RATE: u32 = 100;

/// Clients that post each key to two nodes until they are stopped; either node may accept it.
struct Posters {
    tasks: JoinSet<()>,
    is_over: Arc<AtomicBool>,
}

impl Posters {
    fn start(nodes: &Arc<cluster::Nodes>) -> Self {
        let (mut tasks, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        for poster in 0..10 {
            let (nodes, is_over) = (Arc::clone(nodes), Arc::clone(&is_over));
            tasks.spawn(async move {
                for number in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("key-{poster}-{number}");
                    let post = async || {
                        while nodes
                            .try_post(fastrand::usize(..nodes.count()), &key, IMPATIENT)
                            .await
                            .is_none()
                        {
                            sleep(PAUSE).await;
                        }
                    };
                    // Now and then at one time, so that they also meet.
                    if number % 4 == 0 {
                        tokio::join!(post(), post());
                    } else {
                        post().await;
                        post().await;
                    }
                    sleep(PAUSE * 4).await;
                }
            });
        }
        Self { tasks, is_over }
    }

    /// Stops once each key that was begun has been accepted twice.
    async fn stop(mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        while let Some(ended) = timeout(PATIENCE, self.tasks.join_next()).await.unwrap() {
            ended.unwrap();
        }
    }
}

/// Keeps a node from running for a while, longer than until the others take it for dead.
async fn pause(nodes: Arc<cluster::Nodes>, number: usize) {
    let server = nodes.server(number).expect("it runs");
    server.signal("STOP");
    sleep(Duration::from_mins(3)).await;
    server.signal("CONT");
}

/// Kills nodes at random, and pauses some, under load; compares with the answers to clients.
async fn endure(count: usize, kills: usize, pauses: usize) {
    let database = format!("nodes_{count}");
    psql("postgres", &format!("CREATE DATABASE {database}"));
    let nodes = cluster::Nodes::start(&database, count, |number| {
        let rate = format!("max_rate = {RATE}\n");
        configuration(&format!("n{number}"), &database).replace("max_rate = 1000\n", &rate)
    });
    let nodes = nodes.await;
    let mut sent = nodes.sites[0].simulator.subscribe();
    let counting = tokio::spawn(async move {
        let mut recipients = Vec::new();
        // It ends with the simulator, or is ended once all has been sent.
        while let Ok(Ok(message)) = timeout(QUIET, sent.recv()).await {
            let at = message.received_at.unix_millis();
            recipients.extend(message.recipients.iter().map(|_| at));
        }
        recipients
    });
    let began = Instant::now();
    let posters = Posters::start(&nodes);
    nodes.all_accept(Instant::now()).await;
    for _ in 0..kills {
        sleep(Duration::from_millis(fastrand::u64(200..1_500))).await;
        if let Some(server) = nodes.server(fastrand::usize(..count)) {
            server.signal("KILL");
        }
    }
    nodes.all_accept(Instant::now()).await;
    // The last one stays alive, and watches the others.
    let pausing = (0..pauses).map(|number| pause(Arc::clone(&nodes), number));
    pausing.collect::<JoinSet<_>>().join_all().await;
    while nodes.fenced.load(Ordering::SeqCst) < pauses {
        sleep(PAUSE).await;
        assert!(began.elapsed() < LONGEST, "a paused node goes on: {}", nodes.logs());
    }
    nodes.all_accept(Instant::now()).await;
    posters.stop().await;
    let history = std::mem::take(&mut *nodes.history.lock().unwrap());
    let (killed, fenced) =
        (nodes.killed.load(Ordering::SeqCst), nodes.fenced.load(Ordering::SeqCst));
    println!(
        "{count} nodes: {killed} killed, {fenced} fenced, {} keys, {} answers of 503, {} without \
         connection, slowest {:.1} s",
        history.ids.len(),
        history.refused,
        history.disconnected,
        history.slowest.as_secs_f64()
    );
    assert_eq!(history.wrong, Vec::<String>::new(), "only 200 and 503 are right");
    nodes.compare(&history.ids, killed + fenced > 0).await;
    let most = most_in_a_second(&counting.await.unwrap());
    println!("    {most} recipients in the fullest second, at {RATE} a second");
    // A node's bucket holds one recipient beyond its rate, and a message has at most 50.
    let bound = f64::from(RATE) * 1.01 + f64::from(u32::try_from(count).unwrap()) + 49.0;
    assert!(f64::from(most) <= bound, "{most} recipients in a second");
    nodes.stop().await;
}

/// The most instants within any second. They are in milliseconds.
fn most_in_a_second(instants: &[u64]) -> u32 {
    let mut instants = instants.to_vec();
    instants.sort_unstable();
    let mut first = 0;
    let counts = instants.iter().enumerate().map(|(last, at)| {
        while at - instants[first] >= 1_000 {
            first += 1;
        }
        last - first + 1
    });
    counts.max().unwrap_or(0).try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_account_for_each_message_though_they_are_killed_and_paused() {
    let (kills, pauses) = if cfg!(feature = "long") { (200, 1) } else { (6, 0) };
    endure(2, kills, pauses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_account_for_each_message_though_they_are_killed_and_paused() {
    let (kills, pauses) = if cfg!(feature = "long") { (200, 3) } else { (6, 0) };
    endure(5, kills, pauses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_listed_drained_and_forgotten() {
    let (nodes, first) = Nodes::new("node_commands").await;
    let second = nodes.start(1);
    let [one, two] = &nodes.sites;
    let list = |site: &Site| {
        let listed = site.done(&["node", "list", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed["nodes"].as_array().unwrap().clone()
    };
    let state = |site: &Site, name: &str| {
        let listed = list(site);
        let found = listed.iter().find(|node| node["name"] == name);
        found.map_or(Value::Null, |node| node["state"].clone())
    };
    let until = async |so: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < end, "{:?}", list(one));
            sleep(Duration::from_millis(50)).await;
        }
    };
    until(&|| list(one).len() == 2 && list(two).len() == 2).await;
    until(&|| list(one).iter().all(|node| node["share"] == 0.5)).await;
    let listed = list(two);
    assert_eq!((&listed[0]["name"], &listed[0]["answers"]), (&"a".into(), &false.into()));
    assert_eq!((&listed[1]["name"], &listed[1]["answers"]), (&"b".into(), &true.into()));
    let with_duties = listed.iter().map(|node| node["duties"].clone());
    let with_duties: Vec<_> = with_duties.filter(|duties| *duties != json!([])).collect();
    assert_eq!(with_duties, [json!(["domains", "purge", "webhooks"])]);

    // By a command on the other node. The messages that it holds are sent, and readiness says why
    // it takes no more.
    nodes.sites[0].simulator.set_faults(Faults::always(Fault::Down));
    let waiting = first.send(&message()).await;
    one.done(&["node", "drain", "b"]);
    until(&|| state(one, "b") == "draining" && state(two, "b") == "draining").await;
    // Readiness says so before the first message is refused.
    second.send(&message()).await;
    let end = Instant::now() + PATIENCE;
    let refused = loop {
        let answer = second.post(&message()).send().await.unwrap();
        if answer.status() != 200 {
            break answer;
        }
        assert!(Instant::now() < end, "it is not drained");
        sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(refused.status(), 503);
    let (_, answer) = kit::answer(refused).await;
    assert_eq!(answer["error"]["code"], "ShuttingDown", "{answer}");
    let status = two.done(&["status"]);
    assert!(
        String::from_utf8_lossy(&status.stdout).contains("is draining this node"),
        "{status:?}"
    );
    for _ in 0..5 {
        first.send(&message()).await;
    }
    until(&|| list(two)[0]["pendingMessages"] == 6).await;
    until(&|| list(two)[0]["conditions"].to_string().contains("unreachable")).await;
    one.done(&["node", "drain", "b", "--undo"]);
    until(&|| state(two, "b") == "working").await;
    while second.post(&message()).send().await.unwrap().status() != 200 {
        assert!(Instant::now() < end, "the drain does not end");
        sleep(Duration::from_millis(100)).await;
    }

    // A node that lives is not forgotten; a dead one is, and the messages that it held have failed.
    let kept = two.run(&["node", "forget", "a"]);
    let said = String::from_utf8_lossy(&kept.stderr).into_owned();
    assert!(!kept.status.success() && said.contains("sign of life"), "{said}");
    first.kill();
    until(&|| state(two, "a") == "silent").await;
    let doctor = two.run(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("node a") && said.contains("node forget a"), "{said}");
    two.done(&["node", "forget", "a"]);
    until(&|| list(two).len() == 1).await;
    let end = Instant::now() + PATIENCE;
    loop {
        let record = second.record(&waiting).await;
        if record["status"] == "failed" {
            assert_eq!(record["error"]["code"], "body_lost_on_restart", "{record}");
            break;
        }
        assert!(Instant::now() < end, "{record}");
        sleep(Duration::from_millis(50)).await;
    }
    for (arguments, reason) in [
        (["node", "forget", "a"], "there is no node a"),
        (["node", "drain", "c"], "there is no node c"),
    ] {
        let refused = two.run(&arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(reason), "{said}");
    }
    one.simulator.set_faults(Faults::default());
    second.terminate().await;
    let offline = two.run(&["doctor"]);
    let said = String::from_utf8_lossy(&offline.stdout).into_owned();
    assert!(said.contains("PostgreSQL 1") && said.contains("schema 12"), "{said}");
}

/// The node that holds a message knows at once that a call is under way, and the other one soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_takes_long_shows_on_the_other_node() {
    const CALL: Duration = Duration::from_secs(6);
    /// The contract's two seconds, and one for a busy machine.
    const SOON: Duration = Duration::from_secs(3);
    let (nodes, first) = Nodes::new("long_calls").await;
    let second = nodes.start(1);
    let [one, two] = &nodes.sites;
    one.simulator.set_faults(Faults::always(Fault::Slow).with_slow_for(CALL));
    let began = Instant::now();
    let id = first.send(&message()).await;
    let until = async |status: &str, limit: Duration| loop {
        let record = second.record(&id).await;
        if record["status"] == status {
            return record;
        }
        assert!(began.elapsed() < limit, "not {status}: {record}");
        sleep(Duration::from_millis(20)).await;
    };
    let record = until("sending", SOON).await;
    println!("told of after {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!((&record["attempts"], &record["error"]), (&1.into(), &Value::Null), "{record}");
    let sending = kit::answer(second.get("/emails?status=sending").send().await.unwrap()).await.1;
    assert_eq!(sending["emails"][0]["id"], *id, "{sending}");
    let shown = two.done(&["message", "show", &id, "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&shown["status"], &shown["attempts"]), (&"sending".into(), &1.into()), "{shown}");
    let record = until("sent", PATIENCE).await;
    assert_eq!(record["attempts"], 1, "{record}");
    assert!(began.elapsed() >= CALL, "{:?}", began.elapsed());

    one.simulator.set_faults(Faults::always(Fault::Down));
    let waiting = first.send(&message()).await;
    let end = Instant::now() + PATIENCE;
    let record = loop {
        let record = second.record(&waiting).await;
        if record["error"] != Value::Null {
            break record;
        }
        assert!(Instant::now() < end, "{record}");
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((&record["status"], &record["attempts"]), (&"queued".into(), &1.into()), "{record}");
}

/// All messages come to one node, as they do if a load balancer keeps another one in reserve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_messages_leaves_the_pace_to_the_others() {
    // Below the account's own.
    const RATE: u32 = 10;
    const MESSAGES: u32 = 120;
    let (nodes, first) = Nodes::new("lent_pace").await;
    let [one, _] = &nodes.sites;
    let second = nodes.start(1);
    for site in &nodes.sites {
        site.reconfigure("max_rate = 1000", &format!("max_rate = {RATE}"));
    }
    first.signal("HUP");
    second.signal("HUP");
    let part = |name: &str| {
        let listed = one.done(&["node", "list", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        let nodes = listed["nodes"].as_array().unwrap();
        nodes.iter().find(|node| node["name"] == name).unwrap()["share"].as_f64().unwrap()
    };
    let until_part = async |name: &str, wanted: f64| {
        let end = Instant::now() + PATIENCE;
        while (part(name) - wanted).abs() > 1e-9 {
            assert!(Instant::now() < end, "{} of {name}, not {wanted}", part(name));
            sleep(Duration::from_millis(50)).await;
        }
    };
    until_part("a", 0.5).await;
    first.send(&message()).await;
    until_part("a", 0.95).await;
    let began = Instant::now();
    for _ in 0..MESSAGES {
        first.send(&message()).await;
    }
    while one.simulator.messages().len() <= MESSAGES as usize {
        assert!(began.elapsed() < PATIENCE, "{}", one.simulator.messages().len());
        sleep(Duration::from_millis(20)).await;
    }
    let rate = f64::from(MESSAGES) / began.elapsed().as_secs_f64();
    println!("{rate:.1} a second of {RATE}; evenly it were half of that");
    assert!(rate > 0.8 * f64::from(RATE), "{rate}");
    // A node without messages sends its first one at once all the same.
    let id = second.send(&message()).await;
    let end = Instant::now() + Duration::from_secs(5);
    while second.record(&id).await["status"] != "sent" {
        assert!(Instant::now() < end, "it waits");
        sleep(Duration::from_millis(20)).await;
    }
    until_part("b", 0.5).await;
}

/// Signatures apart, a node's own clock does not count: the database's does, for all nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_wrong_clock_deletes_nothing_and_forgets_no_key() {
    let (nodes, first) = Nodes::new("wrong_clock").await;
    let keyed = |key: &str| {
        let mut message = message();
        message["idempotencyKey"] = key.into();
        message
    };
    let known = first.send(&keyed("known")).await;
    let clock = nodes.sites[1].directory().join("clock");
    for off in ["+100d", "-100d"] {
        std::fs::write(&clock, off).unwrap();
        let mut command = nodes.sites[1].service();
        set_clock(&mut command, &clock);
        let second = Server { key: first.key.clone(), ..nodes.sites[1].start_by(command) };
        assert_eq!(second.send(&keyed("known")).await, known, "{off}");
        let new = second.send(&keyed(off)).await;
        assert_eq!(first.send(&keyed(off)).await, new, "{off}");
        assert!(seconds_from_now(&first.record(&new).await) < 10, "{off}");
        // Its clock is wrong for AWS as well, so it fails.
        let status = nodes.sites[1].run(&["status"]);
        let said = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(said.contains("This machine's clock"), "{off}: {said}");
        assert_eq!(first.record(&known).await["id"], known);
        second.kill();
    }
}

/// Conditions of a site's node.
fn conditions(site: &Site) -> String {
    let status = site.done(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    status["conditions"].to_string()
}

/// Waits until a node doubts the clock, or does so no more.
async fn until_clock_is(site: &Site, is_in_doubt: bool, patience: Duration) {
    let end = Instant::now() + patience;
    while conditions(site).contains("clock_jumped") != is_in_doubt {
        assert!(Instant::now() < end, "{is_in_doubt}: {}", conditions(site));
        sleep(Duration::from_millis(100)).await;
    }
}

/// `tests/with-postgres.sh` gives its server a clock that can be set, if it is asked to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_whose_clock_is_set_wrong_deletes_nothing_and_forgets_no_key() {
    let clock = std::env::var("TEST_POSTGRES_CLOCK").expect("run this with POSTGRES_CLOCK=faked");
    let set = |off: &str| std::fs::write(&clock, off).unwrap();
    let (nodes, first) = Nodes::new("database_clock").await;
    let second = nodes.start(1);
    let keyed = |key: &str| {
        let mut message = message();
        message["idempotencyKey"] = key.into();
        message
    };
    let (sent, known) = (Instant::now(), first.send(&keyed("known")).await);
    for (number, off) in ["+95d", "-95d"].into_iter().enumerate() {
        set(off);
        for site in &nodes.sites {
            until_clock_is(site, true, PATIENCE).await;
        }
        let new = second.send(&keyed(off)).await;
        for server in [&first, &second] {
            assert_eq!(server.send(&keyed("known")).await, known, "{off}");
            assert_eq!(server.send(&keyed(off)).await, new, "{off}");
            assert_eq!(server.record(&known).await["id"], known);
        }
        assert!(seconds_from_now(&first.record(&new).await) < 10, "{off}, {number}");
        set("+0");
        for site in &nodes.sites {
            until_clock_is(site, false, PATIENCE).await;
        }
    }

    // A node that starts after a jump to within a day has no data of its own to doubt the clock by.
    // The others have reported it.
    second.terminate().await;
    set("+20h");
    until_clock_is(&nodes.sites[0], true, PATIENCE).await;
    sleep(Duration::from_secs(3)).await;
    let second = nodes.start(1);
    until_clock_is(&nodes.sites[1], true, Duration::from_secs(5)).await;
    assert_eq!(second.send(&keyed("known")).await, known);
    set("+0");
    for site in &nodes.sites {
        until_clock_is(site, false, PATIENCE).await;
    }

    // It was wrong before, and is right now: one command is enough, for all nodes. A long run waits
    // until the other one checks; a short one starts it again.
    set("+95d");
    for site in &nodes.sites {
        until_clock_is(site, true, PATIENCE).await;
    }
    if cfg!(feature = "long") {
        sleep(Duration::from_secs(61)).await;
        nodes.sites[0].done(&["clock", "confirm"]);
        until_clock_is(&nodes.sites[1], false, Duration::from_secs(62)).await;
    } else {
        nodes.sites[0].done(&["clock", "confirm"]);
    }
    let second = if cfg!(feature = "long") {
        second
    } else {
        second.terminate().await;
        nodes.start(1)
    };
    for (site, server) in nodes.sites.iter().zip([&first, &second]) {
        until_clock_is(site, false, PATIENCE).await;
        assert_eq!(server.send(&keyed("known")).await, known);
        let in_95_days = Duration::from_hours(95 * 24).as_secs();
        let age = seconds_from_now(&server.record(&known).await).abs_diff(in_95_days);
        let since = sent.elapsed().as_secs();
        assert!(
            age.abs_diff(since) < 10,
            "the time that is right now counts for what came before: {age} s in {since}"
        );
    }
}

/// Distance of a message's acceptance from now by this machine's clock, in seconds.
fn seconds_from_now(record: &Value) -> u64 {
    let created_at = Timestamp::parse_rfc3339(record["createdAt"].as_str().unwrap()).unwrap();
    created_at.unix_millis().abs_diff(Timestamp::from(SystemTime::now()).unix_millis()) / 1000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_a_file_is_refused_with_what_to_do() {
    let (nodes, server) = Nodes::new("no_file").await;
    let backup = nodes.sites[0].run(&["backup", "copy.redb"]);
    let said = String::from_utf8_lossy(&backup.stderr).into_owned();
    assert!(!backup.status.success() && said.contains("pg_dump"), "{said}");
    // A second process of the same data directory must not take the first one's place.
    nodes.sites[1].reconfigure("node = \"b\"", "node = \"a\"");
    let taken = nodes.sites[1].command(&["serve"]).output().unwrap();
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(!taken.status.success() && said.contains("cluster"), "{said}");
    server.terminate().await;
    let offline = nodes.sites[0].run(&["org", "list"]);
    let said = String::from_utf8_lossy(&offline.stderr).into_owned();
    assert!(!offline.status.success() && said.contains("running node"), "{said}");
}

/// SES takes one call a second of each account, those that send apart (SES API quotas).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_ask_ses_at_one_time_do_so_one_after_the_other() {
    let (nodes, first) = Nodes::new("account").await;
    let second = nodes.start(1);
    let simulator = &nodes.sites[0].simulator;
    let calls = async |count: u64| {
        let end = Instant::now() + PATIENCE;
        while simulator.calls_total() < count {
            assert!(Instant::now() < end, "{} calls", simulator.calls_total());
            sleep(Duration::from_millis(2)).await;
        }
        Instant::now()
    };
    let asked_at_start = 2;
    calls(asked_at_start).await;
    // Longer than the distance of two calls.
    sleep(Duration::from_secs(3)).await;
    for node in [&first, &second] {
        node.signal("HUP");
    }
    let one = calls(asked_at_start + 1).await;
    let other = calls(asked_at_start + 2).await;
    assert!(other - one >= Duration::from_secs(1), "{:?} apart", other - one);
}
