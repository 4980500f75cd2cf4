//! Commits that wait for a standby. The whole server waits for it, so these tests run alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::postgres::connection::Connector;
use crate::postgres::tests::nodes::{Database, START, accept, all, organisation, until};
use crate::{Accepted, Store};
use pillarbox_domain::feed::{FeedPosition, FeedTypes};
use pillarbox_domain::id::MessageIds;
use pillarbox_domain::message::Transition;

/// The standby does not answer, and an operator cancels the wait for it. The server then says
/// that the commit was made, with a warning. Nobody knows whether the standby has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_wait_for_the_standby_was_cancelled_is_no_success() {
    let database = Database::new().await;
    let node = database.node("a").await;
    let organisation = organisation(&node).await;
    let operator = Connector::new(&database.server).connect().await.unwrap();
    let (ids, handed_over) = (MessageIds::new(), Arc::new(AtomicUsize::new(0)));
    operator.batch("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await.unwrap();
    operator.batch("SELECT pg_reload_conf()").await.unwrap();
    let waits = "
        SELECT pg_cancel_backend(pid) FROM pg_stat_activity
        WHERE wait_event = 'SyncRep' AND datname = current_database()";
    // The server takes the setting over a moment later: then the node's signs of life wait.
    let any = "
        SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()";
    until("the setting", async || !operator.query(any, &[]).await.unwrap().is_empty()).await;
    let id = ids.next(START);
    let (accepting, counter) = (node.clone(), Arc::clone(&handed_over));
    let answer =
        tokio::spawn(
            async move { accept(&accepting, organisation, id, Some("key"), &counter).await },
        );
    until("the wait", async || !operator.query(waits, &[]).await.unwrap().is_empty()).await;
    sleep(Duration::from_secs(1)).await;
    assert!(!answer.is_finished(), "the standby does not have it");
    assert_eq!(handed_over.load(Ordering::SeqCst), 0);
    operator.batch("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    operator.batch("SELECT pg_reload_conf()").await.unwrap();
    assert_eq!(answer.await.unwrap(), Ok(Accepted::New(id)));
    assert_eq!(handed_over.load(Ordering::SeqCst), 1);
    assert_eq!(all(&node).await.len(), 1);
}

/// An administrator cancels the wait of one node's outcome. It is visible then, and another node
/// must not report it until the standby has it: if the standby took over, applications would get it
/// twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_feed_tells_of_nothing_that_the_standby_does_not_have() {
    let database = Database::new().await;
    let (one, other) = (database.node("a").await, database.node("b").await);
    let organisation = organisation(&one).await;
    let operator = Connector::new(&database.server).connect().await.unwrap();
    let ids = MessageIds::new();
    let told = async |node: &Store| {
        let feed = node.feed(organisation, FeedPosition::START, FeedTypes::ALL, 9, START);
        // It does not wait for the standby.
        let page = timeout(Duration::from_secs(2), feed).await.expect("it answers").unwrap();
        page.entries.len()
    };
    let sent = |id| Transition::Sent { ses_message_id: format!("ses-{id}"), sent_at: START };
    let (first, second) = (ids.next(START), ids.next(START));
    for id in [first, second] {
        accept(&one, organisation, id, None, &Arc::default()).await.unwrap();
    }
    one.record(first, 1, sent(first), START).await.unwrap();
    until("the first entry", async || told(&other).await == 1).await;
    assert_eq!(told(&one).await, 1);
    // The node that recorded it knows its end at once, and that a feed grew once it has followed.
    let ends =
        || [&one, &other].map(|node| (*node.feed_grew().borrow(), node.feed_end(organisation)));
    until("both have followed it", async || ends().iter().all(|(grew, end)| grew == end)).await;
    let before = ends();

    operator.batch("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await.unwrap();
    operator.batch("SELECT pg_reload_conf()").await.unwrap();
    let any = "
        SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()";
    until("the setting", async || !operator.query(any, &[]).await.unwrap().is_empty()).await;
    let (recording, outcome) = (one.clone(), sent(second));
    let recorded = tokio::spawn(async move { recording.record(second, 1, outcome, START).await });
    let visible = "SELECT FROM feed";
    let cancel = "
        SELECT pg_cancel_backend(pid) FROM pg_stat_activity
        WHERE wait_event = 'SyncRep' AND datname = current_database()";
    until("it is visible", async || {
        operator.query(cancel, &[]).await.unwrap();
        operator.query(visible, &[]).await.unwrap().len() == 2
    })
    .await;
    for _ in 0..20 {
        operator.query(cancel, &[]).await.unwrap();
        assert_eq!((told(&one).await, told(&other).await), (1, 1), "the standby does not have it");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ends(), before);
    operator.batch("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    operator.batch("SELECT pg_reload_conf()").await.unwrap();
    recorded.await.unwrap().unwrap();
    until("both tell of it", async || told(&one).await == 2 && told(&other).await == 2).await;
    until("both have its end", async || ends().iter().all(|(_, end)| *end > before[0].1)).await;
}
