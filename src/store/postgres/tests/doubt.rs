//! Effects of a caller that gives up, of a lost answer and of a panic.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::nodes::{Database, START, accept, all, organisation, until};
use super::proxy::{Cut, Proxy};
use crate::postgres::connection::Connector;
use crate::{Accepted, Change, Health, NewApiKey, NewMessage, Store};
use pillarbox_domain::admission::admit;
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::Transition;
use pillarbox_domain::organisation::{DomainState, KeyRights};
use pillarbox_domain::request::{Draft, IdempotencyKey, SendRequest};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::tasks::Task;

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
    !connection.query(find, &[&address]).await.unwrap().is_empty()
}

/// Message as a client posts it at an instant, with this node's present knowledge of its sender.
async fn message(
    node: &Store,
    organisation: OrganisationId,
    id: MessageId,
    key: Option<&str>,
    now: Timestamp,
    on_new: impl FnOnce() + Send + 'static,
) -> NewMessage {
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
/// does not reach the server, must not count as that one.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_one_message_costs_the_others_nothing() {
    let mut database = Database::new().await;
    database.server.accepting_connections = 1;
    let node = database.node("a").await;
    let organisation = organisation(&node).await;
    let ids = MessageIds::new();
    let panics = || panic!("one message's own fault");
    let new = message(&node, organisation, ids.next(START), None, START, panics).await;
    let answer = node.accept(new).await;
    assert!(answer.is_err(), "nobody has its body: {answer:?}");
    let next = accept(&node, organisation, ids.next(START), None, &Arc::default()).await;
    assert!(matches!(next, Ok(Accepted::New(_))), "{next:?}");
    assert_eq!(node.health(), Health::Writable);
    assert_eq!(all(&node).await.len(), 2);
}

/// Changes that make each task of the engine panic: a column of a type that it does not know.
const FAULTS: [(&str, &str); 7] = [
    ("acceptance", "ALTER TABLE idempotency ALTER organisation TYPE bigint"),
    ("outcomes", "ALTER TABLE message ALTER record TYPE text USING encode(record, 'hex')"),
    ("replays", "ALTER TABLE idempotency ALTER message TYPE text"),
    ("signs_of_life", "ALTER TABLE node ALTER beat TYPE integer"),
    ("other_nodes_changes", "ALTER TABLE cluster ALTER directory_version TYPE integer"),
    ("database_state", "ALTER TABLE cluster ALTER version TYPE bigint"),
    (
        "dead_nodes_messages",
        "ALTER TABLE pending ALTER calling TYPE bigint;
        INSERT INTO pending (id, node) VALUES ('01a3185c-5000-74ce-94c5-8df399f88396', 0)",
    ),
];
/// Statements are prepared anew by new connections.
const END_CONNECTIONS: &str = "
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_each_task_is_told_and_nothing_is_accepted_after_it() {
    const LIMIT: Duration = Duration::from_secs(30);
    for (task, fault) in FAULTS {
        let database = Database::new().await;
        let node = database.node("a").await;
        let organisation = organisation(&node).await;
        let ids = MessageIds::new();
        let id = ids.next(START);
        accept(&node, organisation, id, Some("key"), &Arc::default()).await.unwrap();
        assert_eq!(node.health(), Health::Writable);
        let operator = Connector::new(&database.server).connect().await.unwrap();
        operator.batch(fault).await.unwrap();
        operator.batch(END_CONNECTIONS).await.unwrap();
        let at_work = async {
            loop {
                let new = message(&node, organisation, ids.next(START), None, START, || {}).await;
                let sent = Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START };
                // Each may get no answer: that of the task that ends.
                match task {
                    "acceptance" => drop(timeout(LIMIT, node.accept(new)).await),
                    "outcomes" => drop(timeout(LIMIT, node.record(id, 1, sent, START)).await),
                    "replays" => {
                        let key = IdempotencyKey::parse("key").unwrap();
                        drop(timeout(LIMIT, node.replay(organisation, key, START)).await);
                    }
                    _ => {}
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let ended = tokio::select! {
            ended = timeout(LIMIT, node.task_ended()) => ended,
            never = at_work => never,
        };
        assert_eq!(ended.map(Task::name), Ok(task));
        assert_eq!(node.health(), Health::Refusing, "{task}");
    }
}

/// Nobody knows whether the use was stored, so it is stored again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_use_of_a_key_is_stored_though_the_first_attempt_is_given_up() {
    let database = Database::new().await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let node = database.behind(&proxy).node("a").await;
    let organisation = organisation(&node).await;
    let hash = ApiKey::generate().unwrap().hash();
    let key =
        NewApiKey { label: "first".to_owned(), expires_at: None, hash, rights: KeyRights::all() };
    node.add_api_key(organisation, key, START).await.unwrap().unwrap();
    assert!(node.authenticate(&hash, START).is_some());

    proxy.silence_commit(Cut::BeforeTheCommit);
    let storing = tokio::spawn({
        let node = node.clone();
        async move { node.store_key_use().await }
    });
    until("the commit", async || proxy.has_cut()).await;
    storing.abort();
    assert!(storing.await.unwrap_err().is_cancelled());
    // The server keeps the first one's locks until it notices that its client has gone.
    until("the second attempt", async || node.store_key_use().await.is_ok()).await;
    let connection = Connector::new(&database.server).connect().await.unwrap();
    let used = "SELECT used_at FROM api_key";
    let used: Option<i64> = connection.query_one(used, &[]).await.unwrap().get(0);
    assert_eq!(used.map(i64::unsigned_abs), Some(START.unix_millis()));
}
