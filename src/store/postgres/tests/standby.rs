//! Commits that wait for a standby. The whole server waits for it, so these tests run alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use crate::domain::id::MessageIds;
use crate::store::Accepted;
use crate::store::postgres::connection::Connector;
use crate::store::postgres::tests::nodes::{Database, START, accept, all, organisation, until};

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
