//! Changes that several connections make at one time.

use std::sync::Arc;
use std::time::Duration;

use crate::conformance::history::{last_hours, of};
use crate::directory::Directory;
use crate::postgres::connection::Connector;
use crate::postgres::tests::nodes::{Database, START, accept, organisation, until};
use crate::postgres::tests::proxy::{Cut, Proxy};
use crate::{PostgresServer, Reference, Report};
use pillarbox_domain::event::{BounceType, Event, EventDetail};
use pillarbox_domain::history::Hour;
use pillarbox_domain::id::MessageIds;
use pillarbox_domain::message::Transition;
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};

/// Backends of the database that wait for a lock.
const WAITING: &str = "
    SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";

/// Another node has read that the address is not suppressed when the operator suppresses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bounce_leaves_an_operators_suppression_of_that_moment_as_it_is() {
    let database = Database::new().await;
    let (one, other) = (database.node("a").await, database.node("b").await);
    let organisation = organisation(&one).await;
    let id = MessageIds::new().next(START);
    accept(&one, organisation, id, None, &Arc::default()).await.unwrap();
    let sent = Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START };
    one.record(id, 1, sent, START).await.unwrap();
    let address = SuppressedAddress::parse("bob@example.org").unwrap();
    let manual = Suppression {
        address: address.clone(),
        reason: SuppressionReason::Manual,
        since: START,
        cause: None,
    };
    let bounce = Report {
        message: Reference::Tag(id),
        organisation: None,
        ses_message_id: "ses-1".to_owned(),
        accepted_at: START,
        event: Some(Event {
            occurred_at: START,
            recipients: vec!["bob@example.org".to_owned()],
            detail: EventDetail::Bounce {
                bounce_type: BounceType::Permanent,
                sub_type: "General".to_owned(),
                diagnostic_code: None,
            },
        }),
    };
    let holder = Connector::new(&database.server).connect().await.unwrap();
    let watching = Connector::new(&database.server).connect().await.unwrap();
    let waiting = async |count: usize| {
        until("the wait", async || watching.query(WAITING, &[]).await.unwrap().len() == count)
            .await;
    };
    // A wait for a row that is changed would be in no order.
    holder.batch("BEGIN; SELECT FROM feed_counter FOR UPDATE").await.unwrap();
    let (operator, suppressed) = (other.clone(), manual.clone());
    let by_operator =
        tokio::spawn(async move { operator.suppress(Some(organisation), suppressed).await });
    waiting(1).await;
    let events = one.clone();
    let by_event = tokio::spawn(async move { events.apply(bounce, START).await });
    waiting(2).await;
    holder.batch("COMMIT").await.unwrap();
    by_operator.await.unwrap().unwrap();
    by_event.await.unwrap().unwrap();
    let known = one.suppressions(None, 10).await.unwrap().suppressions;
    assert_eq!(known, [(Some(organisation), manual)]);
    assert_eq!(one.events(id).await.unwrap().len(), 1, "the event itself is there");
}

/// A read of the directory that began before a change ends after one that has seen the change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_read_of_the_directory_does_not_bring_back_what_is_gone() {
    let database = Database::new().await;
    let store = database.node("a").await;
    let organisation = organisation(&store).await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let hosts = vec![("127.0.0.1".to_owned(), proxy.port)];
    let behind = PostgresServer { hosts, ..database.server.clone() };
    let directory = Arc::new(Directory::default());
    let slow = Connector::new(&behind).connect().await.unwrap();
    let quick = Connector::new(&database.server).connect().await.unwrap();
    let holder = Connector::new(&database.server).connect().await.unwrap();
    directory.read(&slow).await.unwrap();
    assert_eq!(directory.load().organisations.len(), 1);

    holder.batch("BEGIN; LOCK TABLE organisation IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let reader = Arc::clone(&directory);
    let late = tokio::spawn(async move { reader.read(&slow).await });
    until("the wait", async || quick.query(WAITING, &[]).await.unwrap().len() == 1).await;
    holder.batch("COMMIT").await.unwrap();
    proxy.stand_still();
    // Its answer may be on its way already: then there is nothing to see.
    store.remove_organisation(organisation).await.unwrap();
    directory.read(&quick).await.unwrap();
    let (version, known) = (directory.load().version, directory.load().organisations.len());
    assert_eq!(known, 0);
    proxy.go_on();
    late.await.unwrap().unwrap();
    assert_eq!((directory.load().version, directory.load().organisations.len()), (version, 0));
}

/// Rows of sessions that nobody uses any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_leaves_no_session_behind() {
    const LOST: usize = 12;
    let database = Database::new().await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let direct = database.node("direct").await;
    let organisation = organisation(&direct).await;
    let node = database.behind(&proxy).node("a").await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    let watching = Connector::new(&database.server).connect().await.unwrap();
    let sessions = async || {
        let count = "SELECT count(*) FROM session JOIN node ON node.id = session.node
            WHERE node.name = 'a'";
        watching.query_one(count, &[]).await.unwrap().get::<_, i64>(0)
    };
    let before = sessions().await;
    let kill = "
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    for round in 0..LOST {
        if round % 3 == 0 {
            proxy.cut(Cut::AfterTheCommit, 0);
        } else {
            watching.query(kill, &[]).await.unwrap();
        }
        let id = ids.next(START);
        until("the acceptance", async || {
            node.writable().await;
            accept(&node, organisation, id, None, &handed_over).await.is_ok()
        })
        .await;
    }
    until("rows of lost sessions go", async || sessions().await <= before).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(sessions().await <= before, "and no new ones come");
    let id = ids.next(START);
    accept(&node, organisation, id, None, &handed_over).await.unwrap();
    assert!(!node.is_fenced() && !direct.is_fenced());
    let index = "
        SELECT FROM pg_indexes WHERE tablename = 'session' AND indexdef LIKE '%(node)%'";
    assert_eq!(watching.query(index, &[]).await.unwrap().len(), 1);
}

/// An administrator may have set another level for the database or the user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_isolation_level_is_the_nodes_own() {
    let database = Database::new().await;
    let connection = Connector::new(&database.server).connect().await.unwrap();
    let name = database.server.database.clone();
    for setting in
        ["default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on"]
    {
        connection.batch(&format!("ALTER DATABASE {name} SET {setting}")).await.unwrap();
    }
    let connection = Connector::new(&database.server).connect().await.unwrap();
    let level = "SELECT current_setting('transaction_isolation')";
    let level: String = connection.query_one(level, &[]).await.unwrap().get(0);
    assert_eq!(level, "read committed");
    let (one, other) = (database.node("a").await, database.node("b").await);
    let organisation = organisation(&one).await;
    for node in [&one, &other] {
        let id = MessageIds::new().next(START);
        accept(node, organisation, id, Some("key"), &Arc::default()).await.unwrap();
    }
}

/// Two nodes add to the same hour, whose rows neither of them has found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_nodes_count_at_one_time_adds_up() {
    const ROUNDS: u64 = 20;
    let database = Database::new().await;
    let (one, other) = (database.node("a").await, database.node("b").await);
    for round in 0..ROUNDS {
        let hour = Hour::from_number(Hour::of(START).number() - u32::try_from(round % 3).unwrap());
        let counts = || of([(1, 1), (2, 10)]);
        let (first, second) =
            tokio::join!(one.add_to_history(hour, counts()), other.add_to_history(hour, counts()));
        assert_eq!((first, second), (Ok(()), Ok(())));
    }
    let history = last_hours(&one, 3, 5).await;
    let sum: u64 = history.total.iter().map(|counts| counts.accepted).sum();
    assert_eq!(sum, ROUNDS * 2 * 11);
}
