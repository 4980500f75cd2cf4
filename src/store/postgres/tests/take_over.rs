//! A node that starts again, beside another one, with bodies of its life before.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::postgres::connection::{Connection, Connector};
use crate::postgres::message_id;
use crate::postgres::tests::nodes::{Database, START, accept, organisation, until};
use crate::postgres::tests::proxy::{Cut, Proxy};
use crate::{ConnectError, Joined, NodeIdentity, NodePlace, Store, StoreError, StoreOwner};
use pillarbox_domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox_domain::message::{FailureCode, State, Transition};
use pillarbox_domain::time::Timestamp;

/// Silence after which a start elsewhere takes the name. A test waits for it.
const SILENCE: Duration = Duration::from_secs(3);
/// Messages that a life accepts.
const MESSAGES: usize = 6;
/// Statements that a start which was killed has sent before its commit, or has had committed.
const JOIN_OF_ONE_THAT_IS_KILLED: &str = "
BEGIN;
CREATE TEMP TABLE before AS SELECT * FROM node WHERE name = 'a';
DELETE FROM node WHERE name = 'a';
INSERT INTO node (name, directory, place, version, schema, started_at, least_dead_after)
SELECT name, directory, place, version, schema, started_at, least_dead_after FROM before;
UPDATE pending SET node = (SELECT id FROM node WHERE name = 'a')
WHERE node = (SELECT id FROM before)";
/// Statements of a node that takes this one for dead.
const BURIAL: &str = "BEGIN; DELETE FROM node WHERE name = 'a'";

/// Data directory of a node, and the boot of its machine.
struct Home {
    directory: TempDir,
}

impl Home {
    fn new() -> Self {
        let home = Self { directory: tempfile::tempdir().unwrap() };
        fs::write(home.boot(), "b00b5e11-0000-4000-8000-000000000001\n").unwrap();
        home
    }

    fn boot(&self) -> PathBuf {
        self.directory.path().join("boot_id")
    }

    /// The place of a process that holds this file of the directory.
    fn place(&self, lock: &str) -> NodePlace {
        let path = self.directory.path().join(lock);
        let lock = File::options().create(true).append(true).open(path).unwrap();
        NodePlace::in_boot(&self.boot(), &lock).unwrap()
    }
}

/// Starts the node "a" in a place, with these bodies.
async fn try_start(
    database: &Database,
    place: NodePlace,
    bodies: &BTreeSet<MessageId>,
) -> Result<(Store, Joined), ConnectError> {
    let identity = NodeIdentity {
        name: "a".to_owned(),
        // A copy of a data directory has the same number.
        directory: *Sha256::digest("a").first_chunk().unwrap(),
        place,
        dead_after: SILENCE,
        least_dead_after: Duration::ZERO,
    };
    let (owner, limit) = (StoreOwner::Service, Duration::from_secs(8));
    let bodies = |_| bodies.clone();
    Store::connect_as(owner, &database.server, identity, limit, bodies, |_| START).await
}

async fn start(database: &Database, home: &Home, bodies: &BTreeSet<MessageId>) -> (Store, Joined) {
    try_start(database, home.place("node"), bodies).await.unwrap()
}

/// Begins a start, which is to wait for another one's transaction.
fn begin_start(
    database: &Database,
    home: &Home,
    bodies: &BTreeSet<MessageId>,
) -> JoinHandle<(Store, Joined)> {
    let database = Database { server: database.server.clone() };
    let (place, bodies) = (home.place("node"), bodies.clone());
    tokio::spawn(async move { try_start(&database, place, &bodies).await.unwrap() })
}

/// Waits until another transaction waits for a lock of this connection.
async fn until_one_waits(database: &Database) {
    const WAITS: &str = "
        SELECT FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let connection = connect(database).await;
    until("a start waits", async || !connection.query(WAITS, &[]).await.unwrap().is_empty()).await;
}

async fn connect(database: &Database) -> Connection {
    Connector::new(&database.server).connect().await.unwrap()
}

/// Accepts messages on a node.
async fn accepted(store: &Store, ids: &MessageIds) -> (OrganisationId, BTreeSet<MessageId>) {
    let organisation = organisation(store).await;
    let mut accepted = BTreeSet::new();
    for _ in 0..MESSAGES {
        let id = ids.next(START);
        accept(store, organisation, id, None, &Arc::default()).await.unwrap();
        accepted.insert(id);
    }
    (organisation, accepted)
}

/// Kills a node that has accepted messages. It sends no message to the others.
async fn killed_with_messages(database: &Database, home: &Home) -> BTreeSet<MessageId> {
    let (store, _) = start(database, home, &BTreeSet::new()).await;
    accepted(&store, &MessageIds::new()).await.1
}

async fn is_queued(store: &Store, id: MessageId) -> bool {
    let message = store.message(id, START).await.unwrap().unwrap();
    match &message.state {
        State::Queued { .. } => true,
        State::Failed { failure, .. } => {
            assert_eq!(failure.code, FailureCode::BodyLostOnRestart);
            false
        }
        other => panic!("{id} is {other:?}"),
    }
}

/// Waits until all of them have failed.
async fn until_failed(store: &Store, ids: &BTreeSet<MessageId>) {
    for id in ids {
        until("the failure", async || !is_queued(store, *id).await).await;
    }
}

fn all_kept(kept: &BTreeSet<MessageId>) -> Joined {
    Joined { bodies_lost: 0, kept: kept.clone() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_in_the_same_place_takes_over_what_has_a_body_and_nothing_of_other_nodes() {
    let (database, home) = (Database::new().await, Home::new());
    let ids = MessageIds::new();
    let (a, _) = start(&database, &home, &BTreeSet::new()).await;
    let other = database.node("b").await;
    let (organisation, accepted) = accepted(&a, &ids).await;
    drop(a);
    let others = ids.next(START);
    accept(&other, organisation, others, None, &Arc::default()).await.unwrap();
    let with: BTreeSet<_> = accepted.iter().copied().step_by(2).collect();
    let without: BTreeSet<_> = accepted.difference(&with).copied().collect();
    let bodies: BTreeSet<_> = with.iter().copied().chain([others]).collect();
    // Also if the start itself is killed and made again.
    for bodies_lost in [without.len(), 0, 0] {
        let (store, joined) = start(&database, &home, &bodies).await;
        assert_eq!(joined, Joined { bodies_lost, kept: with.clone() });
        for id in with.iter().chain([&others]) {
            assert!(is_queued(&store, *id).await);
        }
        for id in &without {
            assert!(!is_queued(&store, *id).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_a_body_and_no_record_that_can_be_read_does_not_stay_pending() {
    let (database, home) = (Database::new().await, Home::new());
    let (store, _) = start(&database, &home, &BTreeSet::new()).await;
    let (_, accepted) = accepted(&store, &MessageIds::new()).await;
    let [damaged, missing, sent, ..] = *accepted.iter().copied().collect::<Vec<_>>() else {
        panic!("there are more")
    };
    let transition = Transition::Sent { ses_message_id: "s".to_owned(), sent_at: START };
    store.record(sent, 1, transition, START).await.unwrap();
    drop(store);
    let connection = connect(&database).await;
    let id = |id: MessageId| uuid::Uuid::from_bytes(*id.as_bytes());
    for (statement, id) in [
        ("UPDATE message SET record = '\\x09' WHERE id = $1", id(damaged)),
        ("DELETE FROM message WHERE id = $1", id(missing)),
        ("INSERT INTO pending (id, node) SELECT $1, id FROM node WHERE name = 'a'", id(sent)),
    ] {
        assert_eq!(connection.execute(statement, &[&id]).await.unwrap(), 1);
    }
    let whole: BTreeSet<_> = accepted.iter().copied().skip(3).collect();
    for bodies_lost in [3, 0] {
        let (store, joined) = start(&database, &home, &accepted).await;
        assert_eq!(joined, Joined { bodies_lost, kept: whole.clone() });
        let marks = connection.query("SELECT id FROM pending", &[]).await.unwrap();
        let marks: BTreeSet<_> = marks.iter().map(|row| message_id(row.get(0))).collect();
        assert_eq!(marks, whole, "nothing else stays pending");
        assert_eq!(store.message(damaged, START).await, Err(StoreError::Damaged));
        let told: Vec<_> = store.damaged().into_iter().map(|row| row.id).collect();
        assert_eq!(told, [damaged.to_string()]);
        let message = store.message(sent, START).await.unwrap().unwrap();
        assert!(matches!(message.state, State::Sent { .. }));
    }
}

/// The connection ends with the process: before the server gets a commit of the start, or after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_killed_in_the_middle_of_joining_leaves_everything_to_the_next_one() {
    let (database, home) = (Database::new().await, Home::new());
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let behind = database.behind(&proxy);
    let bodies = killed_with_messages(&database, &home).await;
    let (mut cuts, mut refused) = (0, 0);
    for after in 0.. {
        let mut has_cut = true;
        for moments in [
            &[Cut::BeforeTheCommit][..],
            &[Cut::AfterTheCommit],
            // Twice in a row.
            &[Cut::AfterTheCommit, Cut::BeforeTheCommit],
            &[Cut::AfterTheCommit, Cut::AfterTheCommit],
        ] {
            for moment in moments {
                proxy.cut(*moment, after);
                let started = try_start(&behind, home.place("node"), &bodies).await;
                has_cut &= proxy.has_cut();
                proxy.cut(*moment, usize::MAX);
                match started {
                    // It continues by another connection, and is killed then.
                    Ok((store, joined)) => {
                        assert_eq!(joined, all_kept(&bodies), "{moment:?} after {after} commits");
                        drop(store);
                    }
                    Err(ConnectError::Server(_)) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
                cuts += u32::from(has_cut);
            }
            let (store, joined) = start(&database, &home, &bodies).await;
            assert_eq!(joined, all_kept(&bodies), "{moments:?} after {after} commits");
            for id in &bodies {
                assert!(is_queued(&store, *id).await);
            }
        }
        if !has_cut {
            break;
        }
    }
    println!("{cuts} starts were cut, {refused} of them failed");
    assert!(refused >= 6, "{refused} of {cuts}");
}

/// The server still has the transaction of a start that was killed, as if it waited for its
/// standby.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_waits_for_the_transaction_of_one_that_was_killed_and_takes_over_either_way() {
    for end in ["COMMIT", "ROLLBACK"] {
        let (database, home) = (Database::new().await, Home::new());
        let bodies = killed_with_messages(&database, &home).await;
        let killed = connect(&database).await;
        killed.batch(JOIN_OF_ONE_THAT_IS_KILLED).await.unwrap();
        let starting = begin_start(&database, &home, &bodies);
        until_one_waits(&database).await;
        killed.batch(end).await.unwrap();
        let (store, joined) = starting.await.unwrap();
        assert_eq!(joined, all_kept(&bodies), "{end}");
        for id in &bodies {
            assert!(is_queued(&store, *id).await);
        }
    }
}

/// Its messages are the other node's to fail, so it must not send them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_takes_nothing_over_once_another_node_took_its_life_before_for_dead() {
    let (database, home) = (Database::new().await, Home::new());
    let bodies = killed_with_messages(&database, &home).await;
    let died = Instant::now();
    let living = database.node_that_waits("b", SILENCE).await;
    until_failed(&living, &bodies).await;
    assert!(died.elapsed() >= SILENCE, "{:?}", died.elapsed());
    for _ in 0..2 {
        let (store, joined) = start(&database, &home, &bodies).await;
        assert_eq!(joined, Joined { bodies_lost: 0, kept: BTreeSet::new() });
        for id in &bodies {
            assert!(!is_queued(&store, *id).await);
        }
    }
    let lost = living.lost_messages(Timestamp::from(SystemTime::now()));
    assert_eq!(lost.await.unwrap().unwrap().messages, MESSAGES as u64, "each once");
}

/// Both at one time: either all messages are taken over, or all of them fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_at_the_moment_of_its_burial_takes_over_all_or_nothing() {
    for end in ["COMMIT", "ROLLBACK"] {
        let (database, home) = (Database::new().await, Home::new());
        let bodies = killed_with_messages(&database, &home).await;
        let other = connect(&database).await;
        other.batch(BURIAL).await.unwrap();
        let starting = begin_start(&database, &home, &bodies);
        until_one_waits(&database).await;
        other.batch(end).await.unwrap();
        let (store, joined) = starting.await.unwrap();
        if end == "COMMIT" {
            assert_eq!(joined, Joined { bodies_lost: MESSAGES, kept: BTreeSet::new() });
            until_failed(&store, &bodies).await;
        } else {
            assert_eq!(joined, all_kept(&bodies));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_from_a_copy_of_the_directory_or_after_a_reboot_takes_nothing_over() {
    for is_copy in [true, false] {
        let (database, home) = (Database::new().await, Home::new());
        let (original, _) = start(&database, &home, &BTreeSet::new()).await;
        let (_, bodies) = accepted(&original, &MessageIds::new()).await;
        let place = if is_copy {
            home.place("copy")
        } else {
            fs::write(home.boot(), "b00b5e11-0000-4000-8000-000000000002\n").unwrap();
            home.place("node")
        };
        // As long as the original lives, nothing of it changes.
        let refused = try_start(&database, place.clone(), &bodies).await.map(drop);
        assert_eq!(refused, Err(ConnectError::NameTaken("a".to_owned())));
        for id in &bodies {
            assert!(is_queued(&original, *id).await);
        }
        drop(original);
        let began = Instant::now();
        let (store, joined) = try_start(&database, place, &bodies).await.unwrap();
        assert!(began.elapsed() >= SILENCE, "{:?}", began.elapsed());
        assert_eq!(joined, Joined { bodies_lost: MESSAGES, kept: BTreeSet::new() });
        until_failed(&store, &bodies).await;
    }
}
