//! Clients that attack by misuse of their connections: well-behaved clients are served all the
//! while.
//!
//! Everywhere, each request of the clients that behave is answered with success while an attack
//! goes on, and afterwards the process has no more files open than before. The judge checks the
//! answers to these clients, too: each of their messages is sent once, and no other. The long form
//! also holds their 99th percentile to three times what it is without the attack, with more
//! connections:
//! `cargo test --release --features long --test network -- --nocapture --test-threads 1`;
//! `NETWORK_SECONDS` sets the duration of each measurement.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

mod attack;
mod client;
mod descriptors;
mod documents;
mod frames;
mod hostile;
mod http2;
mod keyless;
#[path = "../kit/lib.rs"]
#[expect(dead_code, unused_imports, reason = "each test binary uses a part of the kit")]
mod kit;
mod neighbours;
mod patrons;
mod resend;
mod secure;
mod shapes;
mod site;
mod smtp;

use std::time::Duration;

use attack::{Attack, Kind};
use patrons::{Figures, Patrons};
use site::Running;

/// Number of connections of an attack, unless it has its own.
const CONNECTIONS: usize = if cfg!(feature = "long") { 2_000 } else { 200 };
/// For attacks that only hold connections open.
const HELD: usize = if cfg!(feature = "long") { 10_000 } else { 400 };
/// Number of times that the long form measures without and with the attack, alternately.
const ROUNDS: usize = if cfg!(feature = "long") { 5 } else { 1 };

/// A client that an attack holds up waits for a timeout of the service, the shortest of which is
/// ten seconds. No machine is so slow that a request takes as long by itself.
const HELD_UP: Duration = Duration::from_secs(8);

fn length() -> Duration {
    let seconds = std::env::var("NETWORK_SECONDS").map(|text| text.parse().unwrap());
    seconds.map_or(Duration::from_secs(if cfg!(feature = "long") { 5 } else { 1 }), |seconds| {
        Duration::from_secs(seconds)
    })
}

/// Serves patrons during an attack; the long form compares with what they had before.
async fn withstand(kind: Kind, connections: usize, patrons: Patrons, more: &str) {
    // Those who attack and those who behave come from one address here, as from a proxy.
    let more = format!("trusted_proxies = [\"127.0.0.0/8\"]\n{more}");
    let mut site = Running::start(&more, None).await;
    site.write_history(&format!("{kind:?}"));
    let before = site.process.open_files();
    let (mut calm, mut attacked) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut served = patrons.arrive(&site).await;
        if cfg!(feature = "long") {
            calm.push(served.measure(length()).await);
        }
        let attack = Attack::begin(kind, connections, &site.target()).await;
        if cfg!(feature = "long") {
            // What is compared is the attack that goes on, not its first blow.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        attacked.push(served.measure(length()).await);
        attack.end().await;
    }
    site.until_open_files_are(before).await;
    patrons.arrive(&site).await.measure(Duration::from_millis(100)).await;
    site.judge().await;
    let attacked = Figures::median(attacked);
    println!("{kind:?}, {connections} connections: {attacked}");
    assert!(attacked.p99 < HELD_UP, "{kind:?}: {attacked}");
    if !calm.is_empty() {
        let calm = Figures::median(calm);
        let ratio = attacked.p99.as_secs_f64() / calm.p99.as_secs_f64();
        println!("{kind:?}, {connections} connections: without {calm}; p99 x {ratio:.2}");
        assert!(ratio <= 3.0, "{kind:?}: {ratio:.2}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections() {
    withstand(Kind::Silent, HELD, Patrons::All, "max_connections = 24000\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections() {
    withstand(Kind::Idle, HELD, Patrons::All, "max_connections = 24000\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads() {
    withstand(Kind::SlowHead, CONNECTIONS, Patrons::All, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies() {
    withstand(Kind::SlowBody, CONNECTIONS, Patrons::All, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_bodies() {
    withstand(Kind::StalledBody, CONNECTIONS, Patrons::All, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read() {
    withstand(Kind::Unread, CONNECTIONS, Patrons::All, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_closed_connections() {
    withstand(Kind::HalfClosed, CONNECTIONS, Patrons::All, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelines() {
    withstand(Kind::Pipelined, 8, Patrons::All, "").await;
}

/// More connections than are served: new ones cannot come in, those that are there stay served.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_beyond_the_limit() {
    withstand(Kind::Flood, 400, Patrons::Staying, "max_connections = 200\n").await;
}
