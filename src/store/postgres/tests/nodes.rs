//! Several nodes on one database, lost answers and dead nodes.
//!
//! They run with `tests/with-postgres.sh`, which starts the server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::conformance::of_store;
use crate::postgres::connection::Connector;
use crate::postgres::tests::proxy::{Cut, Proxy};
use crate::{
    AcceptError, Accepted, BatchMode, ConnectError, Health, ListError, Lister, MessageFilter,
    NewMessage, NodeIdentity, NodePlace, NodeState, PostgresServer, Store, StoreError,
};
use pillarbox_domain::admission::admit;
use pillarbox_domain::feed::{FeedPosition, FeedTypes};
use pillarbox_domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, Message, State, Transition};
use pillarbox_domain::organisation::{DomainState, SenderStatus};
use pillarbox_domain::request::{Draft, IdempotencyKey, SendRequest};
use pillarbox_domain::time::Timestamp;

pub(super) const START: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
/// Far shorter than in use: tests wait for it.
const DEAD_AFTER: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_mins(1);

/// Database of a test's own.
pub(super) struct Database {
    pub(super) server: PostgresServer,
}

impl Database {
    pub(super) async fn new() -> Self {
        let port = std::env::var("TEST_POSTGRES_PORT");
        let port = port.expect("run this with tests/with-postgres.sh").parse().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let name = format!("nodes_{}", name_of(directory.path()));
        Self { server: PostgresServer::with_database(port, &name).await }
    }

    /// The same database behind a proxy.
    pub(super) fn behind(&self, proxy: &Proxy) -> Self {
        let hosts = vec![("127.0.0.1".to_owned(), proxy.port)];
        Self { server: PostgresServer { hosts, ..self.server.clone() } }
    }

    pub(super) async fn node(&self, name: &str) -> Store {
        self.node_that_waits(name, PATIENCE).await
    }

    /// A node that takes others for dead after this time.
    pub(super) async fn node_that_waits(&self, name: &str, dead_after: Duration) -> Store {
        self.node_in(name, name, dead_after).await.unwrap().0
    }

    /// Starts a node with a data directory that is known by a name.
    async fn node_in(
        &self,
        directory: &str,
        name: &str,
        dead_after: Duration,
    ) -> Result<(Store, usize), ConnectError> {
        let identity = NodeIdentity {
            name: name.to_owned(),
            directory: *Sha256::digest(directory).first_chunk().unwrap(),
            place: here(),
            dead_after,
            least_dead_after: Duration::ZERO,
        };
        Store::connect(&self.server, identity, Duration::from_secs(8), |_| START).await
    }
}

/// Place of a node of this process.
fn here() -> NodePlace {
    NodePlace::of(&std::fs::File::open("/").unwrap()).unwrap()
}

fn name_of(path: &Path) -> String {
    hex::encode(&Sha256::digest(path.as_os_str().as_encoded_bytes())[..8])
}

pub(super) async fn organisation(store: &Store) -> OrganisationId {
    let added = store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
    let domain = DomainName::parse("example.com").unwrap();
    store.put_domain(added.id, domain, DomainState::Assumed, START).await.unwrap();
    added.id
}

/// Accepts a message; `handed_over` counts the messages that the node has to send.
pub(super) async fn accept(
    store: &Store,
    organisation: OrganisationId,
    id: MessageId,
    key: Option<&str>,
    handed_over: &Arc<AtomicUsize>,
) -> Result<Accepted, StoreError> {
    let draft = Draft {
        from: Some("ann@example.com"),
        to: Some(vec!["bob@example.org"]),
        subject: Some("Hello"),
        text: Some("Body".into()),
        idempotency_key: key,
        ..Draft::default()
    };
    // Another node knows of the organisation a moment later.
    let request = || SendRequest::parse(draft.clone()).unwrap();
    let began = Instant::now();
    let admitted = loop {
        match admit(request(), &store.facts(organisation)).await {
            Ok(admitted) => break admitted,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    let handed_over = Arc::clone(handed_over);
    let on_new = move || {
        handed_over.fetch_add(1, Ordering::SeqCst);
    };
    let message = NewMessage::new(id, organisation, &admitted, START, START, on_new);
    store.accept(message).await.map_err(of_store)
}

pub(super) async fn all(store: &Store) -> Vec<Message> {
    let mut filter = MessageFilter::default();
    let mut all = Vec::new();
    loop {
        let page = store.list(filter.clone(), 1_000, START).await.unwrap();
        all.extend(page.messages);
        let Some(next) = page.next else { return all };
        filter.before = Some(next);
    }
}

pub(super) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_posted_to_all_nodes_at_one_time_make_one_message_each() {
    const KEYS: usize = 200;
    let database = Database::new().await;
    let nodes = [database.node("a").await, database.node("b").await, database.node("c").await];
    let organisation = organisation(&nodes[0]).await;
    let ids = Arc::new(MessageIds::new());
    let handed_over = Arc::new(AtomicUsize::new(0));
    let mut posts = JoinSet::new();
    for number in 0..KEYS {
        for node in &nodes {
            let (node, ids, handed_over) =
                (node.clone(), Arc::clone(&ids), Arc::clone(&handed_over));
            posts.spawn(async move {
                let key = format!("key-{number}");
                let id = ids.next(START);
                (number, accept(&node, organisation, id, Some(&key), &handed_over).await.unwrap())
            });
        }
    }
    let mut made: BTreeMap<usize, BTreeSet<MessageId>> = BTreeMap::new();
    let mut new = 0;
    for (number, accepted) in posts.join_all().await {
        new += usize::from(matches!(accepted, Accepted::New(_)));
        made.entry(number).or_default().insert(accepted.id());
    }
    assert!(made.values().all(|ids| ids.len() == 1), "one id for each key");
    assert_eq!((made.len(), new, handed_over.load(Ordering::SeqCst)), (KEYS, KEYS, KEYS));
    assert_eq!(all(&nodes[1]).await.len(), KEYS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_other_nodes_change_is_known_soon() {
    let database = Database::new().await;
    let (one, other) = (database.node("a").await, database.node("b").await);
    let organisation = organisation(&one).await;
    let domain = DomainName::parse("example.com").unwrap();
    until("the domain", async || {
        other.sender_status(organisation, &domain) == one.sender_status(organisation, &domain)
    })
    .await;
    let address =
        pillarbox_domain::suppression::SuppressedAddress::parse("bob@example.org").unwrap();
    let suppression = pillarbox_domain::suppression::Suppression {
        address: address.clone(),
        reason: pillarbox_domain::suppression::SuppressionReason::Manual,
        since: START,
        cause: None,
    };
    one.suppress(Some(organisation), suppression).await.unwrap();
    until("the suppression", async || other.is_suppressed(organisation, &address).await.unwrap())
        .await;
}

/// A node that changes the directory knows at once what another one has changed before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_change_the_directory_in_turn_know_all_changes() {
    let database = Database::new().await;
    let nodes = [database.node("a").await, database.node("b").await];
    for number in 0..20_u32 {
        let node = &nodes[number as usize % 2];
        let name = format!("org-{number}").parse().unwrap();
        node.add_organisation(name).await.unwrap().unwrap();
        let known = node.organisations().into_iter().map(|one| one.id.0).collect::<Vec<_>>();
        assert_eq!(known, (1..=number + 1).collect::<Vec<_>>());
    }
    for id in 1..=20 {
        let node = &nodes[id as usize % 3 % 2];
        let removed = node.remove_organisation(OrganisationId(id)).await.unwrap();
        assert_eq!(removed, crate::Change::Made);
        let known = node.organisations().into_iter().map(|one| one.id.0).collect::<Vec<_>>();
        assert_eq!(known, (id + 1..=20).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_nobody_waits_for_keeps_its_turn_until_the_server_has_answered() {
    let database = Database::new().await;
    let store = database.node("a").await;
    let organisation = organisation(&store).await;
    let list = || {
        let (store, lister) = (store.clone(), Lister::Organisation(organisation));
        let filter = MessageFilter { organisation: Some(organisation), ..MessageFilter::default() };
        tokio::spawn(async move {
            store.list_then(lister, filter, 1, START, |page| page.messages.len()).await
        })
    };
    let other = Connector::new(&database.server).connect().await.unwrap();
    other.batch("BEGIN; LOCK TABLE message IN ACCESS EXCLUSIVE MODE").await.unwrap();
    for _ in 0..2 {
        let listing = list();
        sleep(Duration::from_millis(200)).await;
        listing.abort();
        assert!(listing.await.unwrap_err().is_cancelled());
    }
    // They have the organisation's two slots: two may wait, and one more is refused.
    let waiting: Vec<_> = (0..64).map(|_| list()).collect();
    sleep(Duration::from_millis(200)).await;
    let refused = timeout(PATIENCE, list()).await.expect("it does not wait").unwrap();
    assert_eq!(refused, Err(ListError::TooMany));
    other.batch("COMMIT").await.unwrap();
    for listing in waiting {
        assert_eq!(listing.await.unwrap(), Ok(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_that_are_asked_for_at_one_time_share_transactions() {
    const ASKED: usize = 400;
    let database = Database::new().await;
    let store = database.node("a").await;
    let organisation = organisation(&store).await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    let id = ids.next(START);
    accept(&store, organisation, id, Some("k"), &handed_over).await.unwrap();
    let other = Connector::new(&database.server).connect().await.unwrap();
    let writes = async || {
        let sum = "SELECT sum(writes)::bigint FROM session";
        other.query_one(sum, &[]).await.unwrap().get::<_, i64>(0)
    };
    let before = writes().await;
    // Nobody writes until all have asked.
    other.batch("BEGIN; SELECT FROM session FOR UPDATE").await.unwrap();
    let mut asking = JoinSet::new();
    for _ in 0..ASKED {
        let store = store.clone();
        asking.spawn(async move {
            let key = IdempotencyKey::parse("k").unwrap();
            store.replay(organisation, key, START).await
        });
    }
    sleep(Duration::from_secs(1)).await;
    other.batch("COMMIT").await.unwrap();
    for replay in asking.join_all().await {
        assert_eq!(replay, Ok(Some(id)));
    }
    let transactions = writes().await - before;
    assert!(transactions < 10, "{transactions}");
}

/// On one thread, so that nobody asks again on another one while the answers are given.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn callers_that_were_answered_together_share_the_next_transaction_too() {
    const CALLERS: usize = 32;
    const ROUNDS: usize = 20;
    let mut database = Database::new().await;
    database.server.accepting_connections = 1;
    let node = database.node("a").await;
    let organisation = organisation(&node).await;
    let (ids, handed_over) = (Arc::new(MessageIds::new()), Arc::new(AtomicUsize::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (node, ids) = (node.clone(), Arc::clone(&ids));
        let handed_over = Arc::clone(&handed_over);
        callers.spawn(async move {
            for _ in 0..ROUNDS {
                let id = ids.next(START);
                accept(&node, organisation, id, None, &handed_over).await.unwrap();
            }
        });
    }
    callers.join_all().await;
    assert_eq!(all(&node).await.len(), CALLERS * ROUNDS);
    let connection = Connector::new(&database.server).connect().await.unwrap();
    // The session that accepts counts far more than the others.
    let row = connection.query_one("SELECT max(writes) FROM session", &[]).await.unwrap();
    let transactions = usize::try_from(row.get::<_, i64>(0)).unwrap();
    assert!(transactions < ROUNDS * 3 / 2, "{transactions} transactions for {ROUNDS} rounds");
}

/// The domain is withdrawn on one node; the other one has not heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_node_withdraws_is_not_accepted_any_more() {
    let database = Database::new().await;
    let (one, other) = (database.node("a").await, database.node("b").await);
    let organisation = organisation(&one).await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    accept(&other, organisation, ids.next(START), None, &handed_over).await.unwrap();
    for _ in 0..20 {
        let domain = || DomainName::parse("example.com").unwrap();
        let draft = Draft {
            from: Some("ann@example.com"),
            to: Some(vec!["bob@example.org"]),
            subject: Some("Hello"),
            text: Some("Body".into()),
            ..Draft::default()
        };
        let request = SendRequest::parse(draft).unwrap();
        let right = other.sending_right(organisation, None, || START).unwrap();
        let Ok(admitted) = admit(request, &other.facts(organisation)).await else { continue };
        one.remove_domain(organisation, domain()).await.unwrap();
        let message =
            NewMessage::new(ids.next(START), organisation, &admitted, START, START, || {});
        let refused = other.accept(message.by_right(right)).await;
        assert_eq!(
            refused,
            Err(AcceptError::UnverifiedDomain { index: 0, domain: domain().into_owned() })
        );
        one.put_domain(organisation, domain(), DomainState::Assumed, START).await.unwrap();
        until("the domain", async || {
            other.sender_status(organisation, &domain())
                == one.sender_status(organisation, &domain())
        })
        .await;
    }
    assert_eq!(all(&one).await.len(), 1);
}

/// The same for one message of a partial batch: the others are accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_node_withdraws_is_left_out_of_a_partial_batch() {
    let database = Database::new().await;
    let (one, other) = (database.node("a").await, database.node("b").await);
    let (organisation, ids) = (organisation(&one).await, MessageIds::new());
    let [withdrawn, kept] =
        ["example.com", "kept.example"].map(|name| DomainName::parse(name).unwrap().into_owned());
    let put = one.put_domain(organisation, kept.clone(), DomainState::Assumed, START);
    put.await.unwrap().unwrap();
    for domain in [&withdrawn, &kept] {
        until("the domain", async || {
            other.sender_status(organisation, domain) == SenderStatus::Verified
        })
        .await;
    }
    let mut batch = Vec::new();
    for from in ["ann@kept.example", "ann@example.com", "bob@kept.example"] {
        let draft = Draft {
            from: Some(from),
            to: Some(vec!["bob@example.org"]),
            subject: Some("Hello"),
            text: Some("Body".into()),
            ..Draft::default()
        };
        let right = other.sending_right(organisation, None, || START).unwrap();
        let request = SendRequest::parse(draft).unwrap();
        let admitted = admit(request, &other.facts(organisation)).await.unwrap();
        let message =
            NewMessage::new(ids.next(START), organisation, &admitted, START, START, || {});
        batch.push(message.by_right(right));
    }
    one.remove_domain(organisation, withdrawn.clone()).await.unwrap();
    let told = other.accept_all(batch, BatchMode::Partial).await.unwrap();
    assert!(matches!(told[0], Ok(Accepted::New(_))) && matches!(told[2], Ok(Accepted::New(_))));
    assert_eq!(told[1], Err(AcceptError::UnverifiedDomain { index: 1, domain: withdrawn }));
    assert_eq!((told.len(), all(&one).await.len()), (3, 2));
}

/// Other nodes show a call until its outcome is written, even if the call was not started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_takes_long_shows_on_other_nodes_until_it_ends() {
    let database = Database::new().await;
    let (holder, other) = (database.node("a").await, database.node("b").await);
    let organisation = organisation(&holder).await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    let (id, quick) = (ids.next(START), ids.next(START));
    for id in [id, quick] {
        accept(&holder, organisation, id, None, &handed_over).await.unwrap();
    }
    let read = async |id| other.message(id, START).await.unwrap().unwrap();
    let listed = async || {
        let mut calls: Vec<_> = all(&other).await.iter().map(|m| (m.id, m.calling)).collect();
        calls.sort();
        calls
    };
    holder.tell_of_call(id, 1);
    until("the call", async || read(id).await.calling == Some(1)).await;
    assert_eq!(listed().await, [(id, Some(1)), (quick, None)]);

    let failure = Failure::new(FailureCode::ProviderUnavailable, "it cannot be reached");
    let retry = Transition::RetryLater {
        failure: failure.clone(),
        acceptance: Acceptance::Excluded,
        next_attempt_at: None,
    };
    holder.record(id, 0, retry.clone(), START).await.unwrap();
    let waiting = read(id).await;
    assert_eq!((waiting.calling, waiting.failure()), (None, Some(&failure)));
    assert_eq!(listed().await, [(id, None), (quick, None)]);

    holder.tell_of_call(id, 1);
    until("the next call", async || read(id).await.calling == Some(1)).await;
    let sent = Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START };
    holder.record(id, 1, sent, START).await.unwrap();
    assert_eq!(read(id).await.calling, None);

    // Its outcome is written before the report to the others.
    holder.tell_of_call(quick, 1);
    holder.record(quick, 1, retry, START).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(read(quick).await.calling, None);
}

/// A node ends during a call. Its report of the call is all that is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_lost_during_a_call_says_so() {
    let database = Database::new().await;
    let dying = database.node("a").await;
    let living = database.node_that_waits("b", DEAD_AFTER).await;
    let organisation = organisation(&living).await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    let (called, waiting) = (ids.next(START), ids.next(START));
    for id in [called, waiting] {
        accept(&dying, organisation, id, None, &handed_over).await.unwrap();
    }
    dying.tell_of_call(called, 2);
    let read = async |id| living.message(id, START).await.unwrap().unwrap();
    until("the call", async || read(called).await.calling == Some(2)).await;
    drop(dying);
    until("the death", async || read(waiting).await.failure().is_some()).await;
    until("all of it", async || read(called).await.failure().is_some()).await;
    for (id, attempts, said) in [(called, 2, "was under way"), (waiting, 0, "may have been")] {
        let message = read(id).await;
        let failure = message.failure().unwrap();
        assert_eq!((failure.code, message.attempts), (FailureCode::BodyLostOnRestart, attempts));
        assert!(failure.message.contains(said), "{}", failure.message);
    }
}

/// A node ends without a message to the others. Another one fails its messages, once, and no sooner
/// than it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_messages_of_a_dead_node_fail_once_and_others_stay() {
    let database = Database::new().await;
    let dying = database.node("a").await;
    let living = database.node_that_waits("b", DEAD_AFTER).await;
    let also_living = database.node("c").await;
    let organisation = organisation(&living).await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        let id = ids.next(START);
        accept(&dying, organisation, id, None, &handed_over).await.unwrap();
        lost.push(id);
        let id = ids.next(START);
        accept(&living, organisation, id, None, &handed_over).await.unwrap();
        kept.push(id);
    }
    let sent = lost.pop().unwrap();
    let transition = Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START };
    dying.record(sent, 1, transition, START).await.unwrap();
    let died = Instant::now();
    drop(dying);
    let failure = async |id| {
        let message = living.message(id, START).await.unwrap().unwrap();
        message.failure().map(|failure| failure.code)
    };
    until("the death", async || failure(lost[0]).await.is_some()).await;
    // Its last beat was up to a second before.
    assert!(died.elapsed() >= DEAD_AFTER / 2, "{:?}", died.elapsed());
    until("the end of it", async || failure(*lost.last().unwrap()).await.is_some()).await;
    for id in &lost {
        assert_eq!(failure(*id).await, Some(FailureCode::BodyLostOnRestart));
    }
    let message = living.message(sent, START).await.unwrap().unwrap();
    assert!(matches!(message.state, State::Sent { .. }));
    for id in &kept {
        assert_eq!(failure(*id).await, None);
    }
    let count = also_living.lost_messages(Timestamp::from(std::time::SystemTime::now())).await;
    assert_eq!(count.unwrap().unwrap().messages, lost.len() as u64);
}

/// Nodes may be configured differently: the duration of the dead node's own calls counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_not_taken_for_dead_while_its_own_calls_may_be_under_way() {
    const LONGEST: Duration = Duration::from_secs(8);
    let database = Database::new().await;
    let identity = NodeIdentity {
        name: "a".to_owned(),
        directory: [7; 16],
        place: here(),
        dead_after: LONGEST,
        least_dead_after: LONGEST,
    };
    let connected =
        Store::connect(&database.server, identity, Duration::from_secs(8), |_| START).await;
    let living = database.node_that_waits("b", DEAD_AFTER).await;
    until("both are seen", async || living.nodes().len() == 2).await;
    let died = Instant::now();
    drop(connected);
    until("the death", async || living.nodes().len() == 1).await;
    // Its last beat was up to a second before.
    assert!(died.elapsed() + Duration::from_secs(2) >= LONGEST, "{:?}", died.elapsed());
}

/// A restored database has the names of machines that no longer exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_node_that_is_gone_is_taken_once_it_was_silent_for_long_enough() {
    let database = Database::new().await;
    let before = database.node("a").await;
    let organisation = organisation(&before).await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    let held = ids.next(START);
    accept(&before, organisation, held, None, &handed_over).await.unwrap();
    let refused = database.node_in("new", "a", PATIENCE).await.map(|_| ());
    assert_eq!(refused, Err(ConnectError::NameTaken("a".to_owned())), "it lives");

    drop(before);
    let began = Instant::now();
    let (node, lost) = database.node_in("new", "a", DEAD_AFTER).await.unwrap();
    assert!(began.elapsed() >= DEAD_AFTER, "{:?}", began.elapsed());
    assert_eq!((lost, node.nodes().len()), (1, 1));
    let message = node.message(held, START).await.unwrap().unwrap();
    assert_eq!(message.failure().unwrap().code, FailureCode::BodyLostOnRestart);

    // An operator says that it no longer exists.
    let other = database.node("b").await;
    drop(node);
    let starting = database.node_in("newest", "a", PATIENCE * 10);
    tokio::pin!(starting);
    assert!(timeout(Duration::from_secs(2), &mut starting).await.is_err(), "it waits");
    other.bury("a").await;
    timeout(PATIENCE, starting).await.expect("it starts").unwrap();
}

/// A node is stopped for longer than the others wait, and continues: it may neither accept nor
/// record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_others_took_for_dead_writes_nothing_any_more() {
    let database = Database::new().await;
    let (frozen, living) = (database.node("a").await, database.node("b").await);
    let organisation = organisation(&living).await;
    let (ids, handed_over) = (MessageIds::new(), Arc::new(AtomicUsize::new(0)));
    let held = ids.next(START);
    accept(&frozen, organisation, held, None, &handed_over).await.unwrap();
    // At one time, so that each of its connections that accept is in use.
    let many = async |count: usize| {
        let mut accepting = JoinSet::new();
        for _ in 0..count {
            let (frozen, id) = (frozen.clone(), ids.next(START));
            let handed_over = Arc::clone(&handed_over);
            accepting
                .spawn(async move { accept(&frozen, organisation, id, None, &handed_over).await });
        }
        accepting.join_all().await
    };
    let before = 1 + many(600).await.into_iter().flatten().count();
    assert_eq!(before, 601);
    // As if nobody had seen a beat of it: the row is removed, and its sessions with it.
    living.bury("a").await;
    for late in many(20).await {
        assert_eq!(late, Err(StoreError::Unavailable));
    }
    let transition = Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START };
    assert_eq!(frozen.record(held, 1, transition, START).await, Err(StoreError::Unavailable));
    assert!(frozen.is_fenced());
    assert_eq!(frozen.health(), Health::Refusing);
    until("the failure", async || {
        let message = living.message(held, START).await.unwrap().unwrap();
        message.failure().is_some_and(|failure| failure.code == FailureCode::BodyLostOnRestart)
    })
    .await;
    assert_eq!(all(&living).await.len(), before);
    assert_eq!(handed_over.load(Ordering::SeqCst), before);
}

/// Either the commit is lost, or its answer. A message that was answered with success is there
/// once; a refused one is not there, and does not appear later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_a_commit_is_found_out() {
    lose_answers(async |_| {}).await;
}

/// The transaction of a node that does not know another node's change yet stores nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_a_commit_without_messages_is_found_out() {
    lose_answers(async |other| {
        let domain = DomainName::parse("changed.example.com").unwrap();
        let organisation = other.organisations()[0].id;
        other.put_domain(organisation, domain, DomainState::Assumed, START).await.unwrap();
    })
    .await;
}

/// Cuts a node's connection during commits; another node does something before each message.
async fn lose_answers(before: impl AsyncFn(&Store)) {
    let rounds = if cfg!(feature = "long") { 200 } else { 30 };
    let database = Database::new().await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let direct = database.node("direct").await;
    let organisation = organisation(&direct).await;
    let node = database.behind(&proxy).node("a").await;
    let (ids, handed_over) = (MessageIds::new(), Arc::new(AtomicUsize::new(0)));
    let (mut accepted, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..rounds {
        node.writable().await;
        let moment = if round % 2 == 0 { Cut::AfterTheCommit } else { Cut::BeforeTheCommit };
        proxy.cut(moment, round % 3);
        let began = Instant::now();
        while !proxy.has_cut() {
            assert!(began.elapsed() < PATIENCE, "the connection is never cut");
            let id = ids.next(START);
            let key = format!("key-{id}");
            let key = (round % 4 < 2).then_some(key.as_str());
            before(&direct).await;
            match accept(&node, organisation, id, key, &handed_over).await {
                Ok(answer) => {
                    assert_eq!(answer, Accepted::New(id));
                    accepted.insert(id);
                }
                Err(StoreError::Unavailable) => {
                    refused.insert(id);
                    node.writable().await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    // Time for anything that may still arrive.
    sleep(Duration::from_secs(1)).await;
    let stored: BTreeSet<MessageId> = all(&direct).await.iter().map(|message| message.id).collect();
    assert!(accepted.is_subset(&stored), "what was accepted is there");
    assert!(refused.is_disjoint(&stored), "what was refused is not there");
    assert_eq!(handed_over.load(Ordering::SeqCst), accepted.len());
}

/// The same for outcomes and their feed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_is_recorded_once_though_the_answer_is_lost() {
    let rounds = if cfg!(feature = "long") { 100 } else { 20 };
    let database = Database::new().await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let direct = database.node("direct").await;
    let organisation = organisation(&direct).await;
    let node = database.behind(&proxy).node("a").await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    let mut sent = Vec::new();
    for round in 0..rounds {
        let id = ids.next(START);
        node.writable().await;
        until("the acceptance", async || {
            accept(&node, organisation, id, None, &handed_over).await.is_ok()
        })
        .await;
        let moment = if round % 2 == 0 { Cut::AfterTheCommit } else { Cut::BeforeTheCommit };
        proxy.cut(moment, 0);
        // As the dispatcher does it: until the store has taken it.
        let transition =
            Transition::Sent { ses_message_id: format!("ses-{round}"), sent_at: START };
        until("the outcome", async || node.record(id, 1, transition.clone(), START).await.is_ok())
            .await;
        sent.push(id);
    }
    let told = async || {
        let feed = direct.feed(organisation, FeedPosition::START, FeedTypes::ALL, 1_000, START);
        let entries = feed.await.unwrap().entries;
        entries.iter().map(|entry| entry.message.id).collect::<Vec<_>>()
    };
    // The other node shows them once it has confirmed them.
    until("all of it", async || told().await.len() >= sent.len()).await;
    assert_eq!(told().await, sent, "each is told of once, in order");
}

/// A paused machine keeps its connections, takes new ones, and answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_left_for_the_one_that_took_over() {
    const LIMIT: Duration = Duration::from_secs(12);
    let database = Database::new().await;
    let port = database.server.hosts[0].1;
    let (old, new) = (Proxy::start(port).await, Proxy::start(port).await);
    let hosts = [&old, &new].map(|proxy| ("127.0.0.1".to_owned(), proxy.port)).to_vec();
    let both = Database { server: PostgresServer { hosts, ..database.server.clone() } };
    new.stand_still();
    let node = both.node("a").await;
    let organisation = organisation(&node).await;
    let (ids, handed_over) = (MessageIds::new(), Arc::default());
    let first = ids.next(START);
    accept(&node, organisation, first, Some("first"), &handed_over).await.unwrap();
    assert_eq!(all(&node).await.len(), 1);

    old.stand_still();
    new.go_on();
    let began = Instant::now();
    let second = ids.next(START);
    until("the acceptance", async || {
        accept(&node, organisation, second, Some("second"), &handed_over).await.is_ok()
    })
    .await;
    let sent = Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START };
    until("the outcome", async || node.record(first, 1, sent.clone(), START).await.is_ok()).await;
    until("the list", async || {
        let page = node.list(MessageFilter::default(), 1_000, START).await;
        page.is_ok_and(|page| page.messages.len() == 2)
    })
    .await;
    assert!(began.elapsed() < LIMIT, "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_its_database_calls_no_other_one_silent() {
    const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(22);
    let database = Database::new().await;
    let proxy = Proxy::start(database.server.hosts[0].1).await;
    let hosts = vec![("127.0.0.1".to_owned(), proxy.port)];
    let by_proxy = Database { server: PostgresServer { hosts, ..database.server.clone() } };
    let other = database.node("b").await;
    let node = by_proxy.node("a").await;
    until("both are seen", async || node.nodes().len() == 2).await;
    proxy.stand_still();
    let end = Instant::now() + LONGER_THAN_A_LEASE;
    let silent = || node.nodes().iter().any(|one| matches!(one.state, NodeState::Silent(_)));
    while Instant::now() < end {
        assert!(!silent(), "{:?}", node.nodes());
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(node.health(), Health::Refusing);
    proxy.go_on();
    until("it is back", async || {
        assert!(!silent(), "{:?}", node.nodes());
        node.health() == Health::Writable
    })
    .await;
    drop(other);
}
