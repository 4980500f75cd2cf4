//! Resources that nodes on one database share: the provider's pace, duties, and the times of calls.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::postgres::connection::Connector;
use crate::postgres::tests::nodes::{Database, until};
use crate::postgres::tests::proxy::Proxy;
use crate::{Duty, NodeLoad, Store};

/// The provider's rate is that of all nodes together, also while nodes come and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_the_pace_are_never_more_than_the_whole() {
    let database = Database::new().await;
    let names = ["a", "b", "c", "d", "e"];
    let mut nodes: BTreeMap<&str, Store> = BTreeMap::new();
    let mut greatest = 0.0_f64;
    for step in 0..20 {
        let name = names[step * 2 % names.len()];
        match nodes.remove(name) {
            // In order, or without a message.
            Some(node) if step % 3 == 0 => node.leave().await,
            Some(node) => drop(node),
            None => {
                nodes.insert(name, database.node(name).await);
            }
        }
        for node in nodes.values() {
            node.say_load(demand(fastrand::u32(0..4)));
        }
        let until = Instant::now() + Duration::from_millis(700);
        while Instant::now() < until {
            let parts: f64 = nodes.values().map(|node| *node.share().borrow()).sum();
            greatest = greatest.max(parts);
            assert!(parts <= 1.0 + 1e-9, "{parts} after step {step}");
            sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(greatest > 0.9, "nobody has anything to lend: {greatest}");
}

/// A node may vanish at any moment, and the server keeps its locks until it notices that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_the_lock_for_the_parts_of_the_pace_while_a_node_is_waited_for() {
    const LATENCY: Duration = Duration::from_millis(50);
    const LOCK_OF_ONE_THAT_WAITS: &str = "
        SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE locktype = 'advisory' AND state LIKE 'idle%' AND datname = current_database()";
    let database = Database::new().await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let far = database.behind(&proxy).node("a").await;
    let watching = Connector::new(&database.server).connect().await.unwrap();
    proxy.slow_down(LATENCY);
    let is_held = async || !watching.query(LOCK_OF_ONE_THAT_WAITS, &[]).await.unwrap().is_empty();
    let mut beats = far.server_clock().unwrap();
    for _ in 0..3 {
        beats.borrow_and_update();
        let beat = beats.changed();
        tokio::pin!(beat);
        loop {
            // The server reads locks and states one after the other, so a statement that ends in
            // between is seen once. A wait for the node would be seen twice.
            let is_held = is_held().await && is_held().await;
            assert!(!is_held, "the lock is held while the node is waited for");
            if timeout(Duration::from_millis(5), &mut beat).await.is_ok() {
                break;
            }
        }
    }
    assert!(*far.share().borrow() > 0.999, "it has all of it");
}

fn demand(demand: u32) -> NodeLoad {
    NodeLoad { demand, ..NodeLoad::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pace_goes_where_messages_wait() {
    let database = Database::new().await;
    let (one, other) = (database.node("a").await, database.node("b").await);
    for (demands, parts) in [
        ([0, 0], [0.5, 0.5]),
        ([1, 0], [0.95, 0.05]),
        ([1, 1], [0.5, 0.5]),
        ([1, 3], [0.275, 0.725]),
        ([0, 7], [0.05, 0.95]),
    ] {
        one.say_load(demand(demands[0]));
        other.say_load(demand(demands[1]));
        let is = |node: &Store, part: f64| (*node.share().borrow() - part).abs() < 1e-9;
        until("the parts", async || is(&one, parts[0]) && is(&other, parts[1])).await;
    }
}

/// Nobody takes it for dead yet, but its part and duties are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_part_and_the_duties_of_a_node_that_is_gone_are_taken_over() {
    const DEAD_AFTER: Duration = Duration::from_mins(10);
    const LIMIT: Duration = Duration::from_secs(40);
    let database = Database::new().await;
    let gone = database.node_that_waits("a", DEAD_AFTER).await;
    until("the duty", async || *gone.has_duty(Duty::Webhooks).borrow()).await;
    let other = database.node_that_waits("b", DEAD_AFTER).await;
    until("the part", async || (*other.share().borrow() - 0.5).abs() < 1e-9).await;
    drop(gone);
    let began = Instant::now();
    let (mut share, mut delivers) = (other.share(), other.has_duty(Duty::Webhooks));
    timeout(LIMIT, share.wait_for(|share| *share > 0.999)).await.expect("the part").unwrap();
    timeout(LIMIT, delivers.wait_for(|delivers| *delivers)).await.expect("the duty").unwrap();
    println!("taken over after {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!(other.nodes().len(), 2, "it is not dead yet");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_the_provider_begin_one_after_the_other_whichever_node_makes_them() {
    const INTERVAL: Duration = Duration::from_secs(1);
    const CALLS: u32 = 10;
    let database = Database::new().await;
    let nodes = [database.node("a").await, database.node("b").await];
    let began = Instant::now();
    let mut taking = JoinSet::new();
    for call in 0..CALLS {
        let node = nodes[call as usize % 2].clone();
        taking.spawn(async move { node.take_call_slot(INTERVAL).await.unwrap() });
    }
    let mut waits = taking.join_all().await;
    waits.sort_unstable();
    // Each slot is returned as the time that is left, which is less by the time of the answers.
    let took = began.elapsed();
    for (wait, place) in waits.iter().zip(0..CALLS) {
        let slot = INTERVAL * place;
        assert!(*wait <= slot && *wait + took >= slot, "{waits:?} within {took:?}");
    }
    assert!(nodes[0].nodes().iter().all(|node| !node.duties.iter().any(|d| d.contains("call"))));

    // A clock that was set back leaves no wait of a day.
    let connection = Connector::new(&database.server).connect().await.unwrap();
    let ahead = "UPDATE duty SET until = until + interval '1 day' WHERE node = 0";
    assert_eq!(connection.execute(ahead, &[]).await.unwrap(), 1);
    assert!(nodes[1].take_call_slot(INTERVAL).await.unwrap() < INTERVAL);
}
