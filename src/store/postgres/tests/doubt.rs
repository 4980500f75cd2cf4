//! What a caller that gives up leaves behind.

use super::nodes::{Database, START, organisation, until};
use super::proxy::{Cut, Proxy};
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::store::Change;
use crate::store::postgres::connection::Connector;

fn suppression(address: &str) -> Suppression {
    Suppression {
        address: SuppressedAddress::parse(address).unwrap(),
        reason: SuppressionReason::Manual,
        since: START,
        cause: None,
    }
}

async fn is_stored(database: &Database, address: &str) -> bool {
    let connection = Connector::new(&database.server).connect().await.unwrap();
    let find = "SELECT FROM suppression WHERE address = $1";
    connection.query_opt(find, &[&address]).await.unwrap().is_some()
}

/// The server has made the commit that nobody waits for any more. A later transaction, whose commit
/// the server never gets, must not count as that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_waits_for_does_not_count_for_a_later_one() {
    let database = Database::new().await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let node = database.behind(&proxy).node("a").await;
    let organisation = organisation(&node).await;

    proxy.silence_commit(Cut::AfterTheCommit);
    let asked = tokio::spawn({
        let node = node.clone();
        async move { node.suppress(Some(organisation), suppression("first@example.org")).await }
    });
    until("the commit", async || proxy.has_cut()).await;
    until("the server's commit", async || is_stored(&database, "first@example.org").await).await;
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    proxy.release();

    proxy.cut(Cut::BeforeTheCommit, 0);
    let answer = node.suppress(Some(organisation), suppression("later@example.org")).await;
    assert!(proxy.has_cut());
    let is_stored = is_stored(&database, "later@example.org").await;
    assert_eq!(answer == Ok(Change::Made), is_stored, "answered {answer:?}, stored: {is_stored}");
}
