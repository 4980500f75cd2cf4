//! What a caller that gives up and a lost answer leave behind.

use std::sync::Arc;
use std::time::Duration;

use super::nodes::{Database, START, accept, organisation, until};
use super::proxy::{Cut, Proxy};
use crate::domain::admission::admit;
use crate::domain::id::{MessageId, MessageIds, OrganisationId};
use crate::domain::mailbox::DomainName;
use crate::domain::organisation::DomainState;
use crate::domain::request::{Draft, SendRequest};
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::domain::time::Timestamp;
use crate::store::postgres::connection::Connector;
use crate::store::{Accepted, Change, NewMessage, Store};

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

/// Message as a client posts it at an instant, with what the node knows of its sender now.
async fn message<F: FnOnce() + Send + 'static>(
    node: &Store,
    organisation: OrganisationId,
    id: MessageId,
    key: Option<&str>,
    now: Timestamp,
    on_new: F,
) -> NewMessage<F> {
    let draft = Draft {
        from: Some("ann@example.com"),
        to: Some(vec!["bob@example.org"]),
        subject: Some("Hello"),
        text: Some("Body".into()),
        idempotency_key: key,
        ..Draft::default()
    };
    let request = SendRequest::parse(draft).unwrap();
    let admitted = admit(request, &node.facts(organisation)).await.unwrap();
    NewMessage::new(id, organisation, &admitted, now, now, on_new)
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

/// The transaction found another directory than the node's, and stored nothing. Its answer is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_over_another_directory_gives_no_message_of_an_expired_key() {
    const ROUNDS: usize = 20;
    let database = Database::new().await;
    let one = database.node("a").await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let mut behind = database.behind(&proxy);
    behind.server.accepting_connections = 1;
    let other = behind.node("b").await;
    let organisation = organisation(&one).await;
    let domain = DomainName::parse("example.com").unwrap();
    let ids = MessageIds::new();
    let later = START.plus(Duration::from_hours(25));
    for round in 0..ROUNDS {
        let key = format!("key-{round}");
        let first = ids.next(START);
        accept(&one, organisation, first, Some(&key), &Arc::default()).await.unwrap();
        until("the domain", async || {
            other.sender_status(organisation, &domain) == one.sender_status(organisation, &domain)
        })
        .await;
        let second = ids.next(later);
        let new = message(&other, organisation, second, Some(&key), later, || {}).await;
        // The other node learns of it a moment later.
        let another = DomainName::parse("other.example").unwrap();
        one.put_domain(organisation, another, DomainState::Assumed, START).await.unwrap();
        proxy.cut(Cut::AfterTheCommit, 0);
        let answer = other.accept(new).await;
        assert!(proxy.has_cut());
        assert_eq!(answer, Ok(Accepted::New(second)), "round {round}, the first was {first}");
        assert!(other.message(second, later).await.unwrap().is_some(), "round {round}");
    }
}
