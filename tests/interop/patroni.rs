//! Nodes on `PostgreSQL` under Patroni, while its parts are killed, paused, cut off and switched over
//! under load. `tests/with-patroni.sh` starts the parts, each in a network namespace of its own.
//!
//! Each answer is kept. At the end of each fault the test compares the answers to clients with the
//! records of both nodes and the provider.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cluster::{History, IMPATIENT, Nodes, PAUSE, UNANSWERED};
use crate::kit::{self, PATIENCE};

const MEMBERS: [&str; 3] = ["pg1", "pg2", "pg3"];
/// Posters at each node.
const POSTERS: usize = 4;
/// A longer time without an acceptance is an outage.
const NOTABLE: Duration = Duration::from_secs(2);
/// Time that a node may take longer than Patroni to accept again.
const ALLOWED: Duration = Duration::from_secs(10);
/// Duration of a fault that Patroni has to act on: longer than its `ttl` of 20 s.
const HELD: Duration = Duration::from_secs(45);

/// Fault of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The primary's machine ends.
    PrimaryKilled,
    /// `PostgreSQL` of the primary ends; Patroni goes on.
    ServerOfThePrimaryKilled,
    /// The primary's machine stands still, and goes on after another one has taken over.
    PrimaryPaused,
    SwitchedOver,
    StandbyKilled,
    EtcdLost,
    PrimaryFromStandby,
    PrimaryFromEtcd,
    /// Both nodes lose the primary, and Patroni does not notice.
    PrimaryFromNodes,
    StandbyFromEtcd,
    /// Nothing reaches the primary any more, and it reaches nothing.
    PrimaryAlone,
    /// The primary reaches the nodes alone, and a process of its server ends. Once the server has
    /// recovered from that, it shows commits that no standby has.
    CutOffPrimaryCrashes,
}

const FAULTS: [Fault; 12] = [
    Fault::PrimaryKilled,
    Fault::ServerOfThePrimaryKilled,
    Fault::PrimaryPaused,
    Fault::SwitchedOver,
    Fault::StandbyKilled,
    Fault::EtcdLost,
    Fault::PrimaryFromStandby,
    Fault::PrimaryFromEtcd,
    Fault::PrimaryFromNodes,
    Fault::StandbyFromEtcd,
    Fault::PrimaryAlone,
    Fault::CutOffPrimaryCrashes,
];

/// The parts that `tests/with-patroni.sh` has started.
struct Cluster {
    directory: PathBuf,
    namespace: String,
    client: reqwest::Client,
}

/// Roles of the members, as Patroni reports them.
#[derive(Debug, Clone)]
struct Roles {
    primary: String,
    standby: String,
}

impl Cluster {
    fn new() -> Self {
        let variable = |name| std::env::var(name).expect("run this with tests/with-patroni.sh");
        Self {
            directory: variable("TEST_PATRONI").into(),
            namespace: variable("TEST_PATRONI_NAMESPACE"),
            client: kit::http_client(),
        }
    }

    fn address(&self, part: &str) -> String {
        let path = self.directory.join(format!("{part}.address"));
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    fn namespace_of(&self, part: &str) -> String {
        format!("{}-{part}", self.namespace)
    }

    /// Sends a signal to all processes of a part.
    fn signal(&self, part: &str, signal: &str) {
        // Some may fork meanwhile.
        for _ in 0..3 {
            let pids = run("ip", &["netns", "pids", &self.namespace_of(part)]).stdout;
            for pid in String::from_utf8(pids).unwrap().split_whitespace() {
                let _ = Command::new("kill").args([&format!("-{signal}"), pid]).output().unwrap();
            }
        }
    }

    /// The first process of a member's `PostgreSQL`.
    fn postmaster(&self, member: &str) -> String {
        let path = self.directory.join(member).join("postmaster.pid");
        std::fs::read_to_string(path).unwrap().lines().next().unwrap().to_owned()
    }

    /// Ends `PostgreSQL` of a member, as a crash of its first process does.
    fn kill_server(&self, member: &str) {
        run("kill", &["-KILL", &self.postmaster(member)]);
    }

    /// Ends one process of a member's `PostgreSQL`, which then starts all of them again.
    fn kill_server_process(&self, member: &str) {
        let children = run("pgrep", &["-P", &self.postmaster(member)]).stdout;
        let children = String::from_utf8(children).unwrap();
        run("kill", &["-KILL", children.lines().next().unwrap()]);
    }

    fn start(&self, part: &str) {
        run(self.directory.join(format!("{part}.start")).to_str().unwrap(), &[]);
    }

    /// Loses all packets between two parts, in both directions.
    fn cut(&self, one: &str, other: &str) {
        for (at, to) in [(one, other), (other, one)] {
            // Frames to an address without an owner: no error, no answer.
            let (namespace, to) = (self.namespace_of(at), self.address(to));
            let nobody = ["lladdr", "02:00:00:00:00:99", "nud", "permanent"];
            let place = ["-n", &namespace, "neigh", "replace", &to, "dev", "eth0"];
            run("ip", &[place.as_slice(), &nobody].concat());
        }
    }

    fn join(&self, one: &str, other: &str) {
        for (at, to) in [(one, other), (other, one)] {
            let (namespace, to) = (self.namespace_of(at), self.address(to));
            run("ip", &["-n", &namespace, "neigh", "del", &to, "dev", "eth0"]);
        }
    }

    /// Waits until all members run, and one is the synchronous standby.
    async fn healthy(&self) -> Roles {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut said = String::new();
            for member in MEMBERS {
                let url = format!("http://{}:8008/cluster", self.address(member));
                let request = self.client.get(url).timeout(Duration::from_secs(2));
                let Ok(answer) = request.send().await else { continue };
                said = answer.text().await.unwrap_or_default();
                let roles = roles(&said);
                if let Some(roles) = roles {
                    return roles;
                }
            }
            assert!(Instant::now() < end, "the cluster does not recover: {said}");
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Asks Patroni for another primary.
    async fn switch_over(&self, roles: &Roles) {
        let url = format!("http://{}:8008/switchover", self.address(&roles.primary));
        let body = serde_json::json!({"leader": roles.primary, "candidate": roles.standby});
        let answer = self.client.post(url).body(body.to_string()).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{status}: {text}");
    }

    /// A command line of psql if no part is cut off.
    fn psql(&self, hosts: &[&str], database: &str, sql: &str) -> Command {
        let hosts: Vec<_> = hosts.iter().map(|host| self.address(host)).collect();
        let server = format!(
            "host={} user=pillarbox dbname={database} target_session_attrs=read-write \
             connect_timeout=2",
            hosts.join(",")
        );
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace_of("watch"), "timeout", "4"]);
        command.args(["psql", "-q", &server, "-c", sql]);
        command
    }
}

/// Roles in Patroni's description of a cluster that has all that it should have.
fn roles(cluster: &str) -> Option<Roles> {
    let cluster: Value = serde_json::from_str(cluster).ok()?;
    let members = cluster["members"].as_array()?;
    let timeline = |member: &Value| member["timeline"].as_i64();
    let with = |role: &str| {
        let runs = |m: &&Value| m["state"] == "running" || m["state"] == "streaming";
        members.iter().filter(runs).find(|member| member["role"] == role)
    };
    let (primary, standby, other) = (with("leader")?, with("sync_standby")?, with("replica")?);
    if timeline(primary) != timeline(standby) || timeline(primary) != timeline(other) {
        return None;
    }
    let name = |member: &Value| member["name"].as_str().unwrap().to_owned();
    Some(Roles { primary: name(primary), standby: name(standby) })
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    output
}

/// Writes to each member again and again, and keeps when one took it.
struct Probe {
    written: Arc<Mutex<Vec<Instant>>>,
    is_over: Arc<AtomicBool>,
}

impl Probe {
    fn start(cluster: &Arc<Cluster>) -> Self {
        let table = "CREATE TABLE IF NOT EXISTS probe (n integer); INSERT INTO probe VALUES (0)";
        assert!(cluster.psql(&MEMBERS, "pillarbox", table).status().unwrap().success());
        let written = Arc::new(Mutex::new(Vec::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        for member in MEMBERS {
            let (cluster, written) = (Arc::clone(cluster), Arc::clone(&written));
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let sql = "UPDATE probe SET n = n + 1";
                    let done = cluster.psql(&[member], "pillarbox", sql).output().unwrap();
                    // A wait for the standby that was cancelled is a warning.
                    if done.status.success() && done.stderr.is_empty() {
                        written.lock().unwrap().push(Instant::now());
                    }
                    std::thread::sleep(Duration::from_millis(300));
                }
            });
        }
        Self { written, is_over }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Time in which nothing was accepted.
#[derive(Debug, Clone, Copy)]
struct Gap {
    from: Instant,
    to: Instant,
}

impl Gap {
    fn seconds(self) -> f64 {
        (self.to - self.from).as_secs_f64()
    }
}

/// Notable gaps between instants since a beginning.
fn gaps(instants: &[Instant], since: Instant) -> Vec<Gap> {
    let mut instants = instants.to_vec();
    instants.sort();
    let pairs = instants.windows(2).map(|pair| Gap { from: pair[0], to: pair[1] });
    pairs.filter(|gap| gap.to > since && gap.to - gap.from >= NOTABLE).collect()
}

/// Two nodes, which know the members in different orders.
async fn start_nodes(cluster: &Cluster, database: &str) -> Arc<Nodes> {
    let make = format!("CREATE DATABASE {database}");
    assert!(cluster.psql(&MEMBERS, "postgres", &make).status().unwrap().success());
    let nodes = Nodes::start(database, 2, |number| {
        let mut hosts = MEMBERS.map(|member| format!("\"{}:5432\"", cluster.address(member)));
        if number == 1 {
            hosts.reverse();
        }
        format!(
            "[store]\nengine = \"postgres\"\n[store.postgres]\nhosts = [{}]\n\
             ca_file = \"{}\"\ndatabase = \"{database}\"\n[cluster]\nnode = \"n{number}\"\n\
             dead_after = \"2m\"\n[sending]\nmax_rate = 1000\n",
            hosts.join(", "),
            std::env::var("TEST_PATRONI_CA").unwrap()
        )
    });
    nodes.await
}

/// Clients that post each key to one node and then to the other one, until they are stopped.
struct Load {
    tasks: JoinSet<()>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    fn start(nodes: &Arc<Nodes>, name: &str) -> Self {
        let (mut tasks, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        for poster in 0..2 * POSTERS {
            let (nodes, is_over) = (Arc::clone(nodes), Arc::clone(&is_over));
            let name = format!("{name}-{poster}");
            tasks.spawn(async move {
                for number in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("{name}-{number}");
                    // Both at once now and then, so that they also meet.
                    let (first, second) = (poster % 2, 1 - poster % 2);
                    let patience = if poster < POSTERS { UNANSWERED } else { IMPATIENT };
                    let post = async |number| nodes.post(number, &key, patience).await;
                    if number % 4 == 0 {
                        tokio::join!(post(first), post(second));
                    } else {
                        post(first).await;
                        post(second).await;
                    }
                    sleep(PAUSE).await;
                }
            });
        }
        Self { tasks, is_over }
    }

    /// Stops once each key that was begun has been accepted by both nodes.
    async fn stop(mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        while let Some(ended) = timeout(PATIENCE, self.tasks.join_next()).await.unwrap() {
            ended.unwrap();
        }
    }
}

/// Injects a fault and heals it; gives the time from which on nothing is wrong any more that Patroni
/// could not see.
async fn inject(fault: Fault, cluster: &Cluster, roles: &Roles) -> Option<Instant> {
    let Roles { primary, standby } = roles;
    let cut = async |pairs: &[(&str, &str)]| {
        for (one, other) in pairs {
            cluster.cut(one, other);
        }
        sleep(HELD).await;
        for (one, other) in pairs {
            cluster.join(one, other);
        }
    };
    match fault {
        Fault::PrimaryKilled => {
            cluster.signal(primary, "KILL");
            sleep(HELD).await;
            cluster.start(primary);
        }
        Fault::ServerOfThePrimaryKilled => cluster.kill_server(primary),
        Fault::PrimaryPaused => {
            cluster.signal(primary, "STOP");
            sleep(HELD).await;
            cluster.signal(primary, "CONT");
        }
        Fault::SwitchedOver => cluster.switch_over(roles).await,
        Fault::StandbyKilled => {
            cluster.signal(standby, "KILL");
            sleep(HELD).await;
            cluster.start(standby);
        }
        Fault::EtcdLost => {
            cluster.signal("etcd", "KILL");
            sleep(HELD).await;
            cluster.start("etcd");
        }
        Fault::PrimaryFromStandby => cut(&[(primary, standby)]).await,
        Fault::PrimaryFromEtcd => cut(&[(primary, "etcd")]).await,
        Fault::StandbyFromEtcd => cut(&[(standby, "etcd")]).await,
        Fault::PrimaryFromNodes => {
            cut(&[(primary, "app")]).await;
            return Some(Instant::now());
        }
        Fault::PrimaryAlone => {
            let others = MEMBERS.iter().filter(|member| *member != primary);
            let others = others.copied().chain(["etcd", "app", "watch"]);
            let pairs: Vec<_> = others.map(|other| (primary.as_str(), other)).collect();
            cut(&pairs).await;
        }
        Fault::CutOffPrimaryCrashes => {
            let others = MEMBERS.iter().filter(|member| *member != primary);
            let others: Vec<_> = others.copied().chain(["etcd"]).collect();
            for other in &others {
                cluster.cut(primary, other);
            }
            sleep(Duration::from_millis(1_500)).await;
            cluster.kill_server_process(primary);
            sleep(HELD).await;
            for other in others {
                cluster.join(primary, other);
            }
        }
    }
    None
}

/// Makes one fault under load, and compares the answers before, meanwhile and after.
async fn endure(fault: Fault, round: usize, cluster: &Arc<Cluster>, nodes: &Arc<Nodes>) {
    let roles = cluster.healthy().await;
    *nodes.history.lock().unwrap() = History::default();
    let fenced = nodes.fenced.load(Ordering::SeqCst);
    let probe = Probe::start(cluster);
    let load = Load::start(nodes, &format!("{fault:?}-{round}"));
    nodes.all_accept(Instant::now() + Duration::from_secs(2)).await;

    let began = Instant::now();
    let healed = inject(fault, cluster, &roles).await;
    let after = cluster.healthy().await;
    // Consequences of a part's return come soon.
    let ended = Instant::now() + Duration::from_secs(5);
    nodes.all_accept(ended).await;
    let takes_writes = |written: &Vec<Instant>| written.last().is_some_and(|at| *at > ended);
    while !takes_writes(&probe.written.lock().unwrap()) {
        assert!(ended.elapsed() < PATIENCE, "Patroni's primary takes no writes");
        sleep(Duration::from_millis(50)).await;
    }
    load.stop().await;

    let written = probe.written.lock().unwrap().clone();
    drop(probe);
    let mut recoveries = gaps(&written, began);
    let mut told = format!("{fault:?} {} -> {}:", roles.primary, after.primary);
    for gap in &recoveries {
        let (from, to) = (gap.from.max(began) - began, gap.to - began);
        write!(told, " Patroni {:.1}-{:.1} s;", from.as_secs_f64(), to.as_secs_f64()).unwrap();
    }
    // Patroni knows nothing of a way that only the nodes have lost.
    recoveries.extend(healed.map(|healed| Gap { from: began, to: healed }));
    let History { ids, accepted, refused, disconnected, wrong, slowest } =
        std::mem::take(&mut *nodes.history.lock().unwrap());
    let mut late = Vec::new();
    for (number, accepted) in &accepted {
        for gap in gaps(accepted, began) {
            // The probe asks only now and then, so it may learn of it later than the nodes.
            let meanwhile = recoveries.iter().filter(|r| r.from < gap.to && r.to > gap.from);
            let possible = meanwhile.map(|recovery| recovery.to.min(gap.to)).max();
            let took = gap.to - possible.unwrap_or(gap.from);
            write!(
                told,
                " node {number} {:.1}-{:.1} s ({:.1} s more);",
                (gap.from.max(began) - began).as_secs_f64(),
                (gap.to - began).as_secs_f64(),
                took.as_secs_f64(),
            )
            .unwrap();
            if took > ALLOWED {
                late.push(format!("node {number}: {:.1} s", gap.seconds()));
            }
        }
    }
    let answers: usize = accepted.values().map(Vec::len).sum();
    let fenced = nodes.fenced.load(Ordering::SeqCst) - fenced;
    println!(
        "{told} {} keys, {answers} answers of 200, {refused} of 503, {disconnected} without \
         connection, {fenced} restarts, slowest {:.1} s",
        ids.len(),
        slowest.as_secs_f64()
    );
    nodes.compare(&ids, fenced > 0).await;
    assert_eq!(wrong, Vec::<String>::new(), "only 200 and 503 are right");
    assert_eq!(late, Vec::<String>::new(), "{told}\n{}", nodes.logs());
}

/// `PATRONI_FAULTS` names some of the faults, separated by commas; `PATRONI_ROUNDS` says how often
/// each is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_accepted_is_lost_or_doubled_while_patroni_fails_over() {
    let cluster = Arc::new(Cluster::new());
    let rounds = std::env::var("PATRONI_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let chosen = std::env::var("PATRONI_FAULTS").unwrap_or_default();
    let is_chosen = |fault: &Fault| {
        chosen.is_empty() || chosen.split(',').any(|name| name == format!("{fault:?}"))
    };
    cluster.healthy().await;
    let nodes = start_nodes(&cluster, "failover").await;
    for round in 0..rounds {
        for fault in FAULTS.into_iter().filter(is_chosen) {
            endure(fault, round, &cluster, &nodes).await;
        }
    }
    nodes.stop().await;
}
