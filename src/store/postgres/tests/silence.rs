//! Connections that stay open and carry nothing any more, while the others work.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::nodes::{Database, START, accept, organisation, until};
use super::proxy::{Cut, Proxy};
use crate::{Accepted, Change, Duty, Health, MessageFilter, NodeState, Store, StoreError};
use pillarbox_domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, Recorded, Transition};
use pillarbox_domain::organisation::DomainState;
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};

/// Longest time until it shows that a connection is silent.
const SHOWN: Duration = Duration::from_secs(15);
/// Longest time until another connection answers the same.
const ANSWERED: Duration = Duration::from_secs(25);

/// Text that only one connection of a node has sent.
const ACCEPTANCE: &str = "INSERT INTO idempotency AS known";
const OUTCOMES: &str = "ORDER BY message.id FOR UPDATE OF message";
const ADMINISTRATION: &str =
    "INSERT INTO suppression (organisation, address, suppression, position)";
const READS: &str = "FROM feed_end WHERE last > $1";
const LISTS: &str = "current_setting('server_version_num')";
const LEASE: &str = "UPDATE node SET beat";

/// A node behind a proxy, with a message. Each of its connections has sent its usual statements.
struct Behind {
    database: Database,
    proxy: Proxy,
    node: Store,
    organisation: OrganisationId,
    ids: MessageIds,
    id: MessageId,
}

impl Behind {
    async fn new(accepting_connections: u8) -> Self {
        let database = Database::new().await;
        let proxy = Proxy::start(database.server.hosts[0].1).await;
        let mut behind = database.behind(&proxy);
        behind.server.accepting_connections = accepting_connections;
        let node = behind.node("a").await;
        let organisation = organisation(&node).await;
        let ids = MessageIds::new();
        let id = ids.next(START);
        accept(&node, organisation, id, None, &Arc::default()).await.unwrap();
        node.record(id, 1, retry(), START).await.unwrap();
        suppress(&node, organisation, "first@example.org").await.unwrap();
        node.list(MessageFilter::default(), 10, START).await.unwrap();
        Self { database, proxy, node, organisation, ids, id }
    }

    /// Makes the connection silent that has sent this, as soon as there is one.
    async fn silence(&self, text: &str) {
        until(text, async || self.proxy.silence(text) == 1).await;
    }

    /// Waits until it shows that connections for this purpose are silent, however long that takes.
    async fn until_shown(&self, purpose: &str) {
        let began = Instant::now();
        while !self.node.silent_connections().contains(&purpose) {
            let shown = self.node.silent_connections();
            assert!(began.elapsed() < SHOWN, "{purpose} is not shown: {shown:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

fn retry() -> Transition {
    let failure = Failure::new(FailureCode::ProviderUnavailable, "it cannot be reached");
    Transition::RetryLater { failure, acceptance: Acceptance::Excluded, next_attempt_at: None }
}

fn sent() -> Transition {
    Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START }
}

async fn suppress(
    node: &Store,
    organisation: OrganisationId,
    address: &str,
) -> Result<Change, StoreError> {
    let suppression = Suppression {
        address: SuppressedAddress::parse(address).unwrap(),
        reason: SuppressionReason::Manual,
        since: START,
        cause: None,
    };
    node.suppress(Some(organisation), suppression).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_are_recorded_though_their_connection_is_silent() {
    let behind = Behind::new(2).await;
    behind.silence(OUTCOMES).await;
    let recorded = timeout(ANSWERED, behind.node.record(behind.id, 2, sent(), START));
    let (recorded, ()) = tokio::join!(recorded, behind.until_shown("outcomes"));
    assert_eq!(recorded, Ok(Ok(Recorded::Changed)));
    assert_eq!(behind.node.health(), Health::Writable);
}

/// The server has the transaction or not; the node finds out, and writes the outcome once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_whose_commit_is_silent_is_recorded() {
    for moment in [Cut::BeforeTheCommit, Cut::AfterTheCommit] {
        let behind = Behind::new(2).await;
        behind.proxy.silence_commit(moment);
        let recorded = timeout(ANSWERED, behind.node.record(behind.id, 2, sent(), START));
        let (recorded, ()) = tokio::join!(recorded, behind.until_shown("outcomes"));
        assert_eq!(recorded, Ok(Ok(Recorded::Changed)), "{moment:?}");
        let message = behind.node.message(behind.id, START).await.unwrap().unwrap();
        assert_eq!(message.attempts, 2, "{moment:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_accepted_though_a_connection_that_does_so_is_silent() {
    let behind = Behind::new(1).await;
    behind.silence(ACCEPTANCE).await;
    let handed_over = Arc::default();
    let post =
        || accept(&behind.node, behind.organisation, behind.ids.next(START), None, &handed_over);
    let (first, ()) = tokio::join!(timeout(ANSWERED, post()), behind.until_shown("acceptance"));
    assert_eq!(first, Ok(Err(StoreError::OutcomeOpen)), "the server may have it");
    let began = Instant::now();
    loop {
        match timeout(ANSWERED, post()).await.unwrap() {
            Ok(accepted) => break assert!(matches!(accepted, Accepted::New(_))),
            Err(error) => assert!(began.elapsed() < ANSWERED, "{error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(behind.node.health(), Health::Writable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administration_goes_on_though_its_connection_is_silent() {
    const PURPOSE: &str = "administration and webhooks";
    let behind = Behind::new(2).await;
    behind.silence(ADMINISTRATION).await;
    let change =
        timeout(ANSWERED, suppress(&behind.node, behind.organisation, "second@example.org"));
    let (change, ()) = tokio::join!(change, behind.until_shown(PURPOSE));
    assert_eq!(change, Ok(Ok(Change::Made)));
    // If a job is given up in its commit, the answer says whether it was made, or that this is
    // open.
    behind.proxy.silence_commit(Cut::BeforeTheCommit);
    let third = suppress(&behind.node, behind.organisation, "third@example.org");
    let answer = timeout(Duration::from_secs(40), third).await.unwrap();
    assert!(behind.proxy.has_cut());
    assert!(answer.is_err(), "{answer:?}");
    let fourth = suppress(&behind.node, behind.organisation, "fourth@example.org");
    assert_eq!(timeout(ANSWERED, fourth).await, Ok(Ok(Change::Made)));
    assert_eq!(behind.node.health(), Health::Writable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_changes_of_others_go_on_though_their_connection_is_silent() {
    let behind = Behind::new(2).await;
    let other = behind.database.node("b").await;
    behind.silence(READS).await;
    let read = timeout(ANSWERED, behind.node.message(behind.id, START));
    let (read, ()) = tokio::join!(read, behind.until_shown("reads"));
    assert_eq!(read.unwrap().unwrap().unwrap().id, behind.id);

    // The change of another node is known, and the next acceptance needs it.
    behind.silence(READS).await;
    let domain = || DomainName::parse("other.example").unwrap();
    let organisation = behind.organisation;
    until("the organisation", async || other.organisation_by_id(organisation).is_some()).await;
    other.put_domain(organisation, domain(), DomainState::Assumed, START).await.unwrap();
    let handed_over = Arc::default();
    let began = Instant::now();
    while accept(&behind.node, organisation, behind.ids.next(START), None, &handed_over)
        .await
        .is_err()
    {
        assert!(began.elapsed() < ANSWERED, "nothing is accepted");
        sleep(Duration::from_millis(50)).await;
    }
    until("the domain", async || {
        behind.node.sender_status(organisation, &domain())
            == other.sender_status(organisation, &domain())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_go_on_though_their_connection_is_silent() {
    let behind = Behind::new(2).await;
    behind.silence(LISTS).await;
    let list = || timeout(ANSWERED, behind.node.list(MessageFilter::default(), 10, START));
    let (listed, ()) = tokio::join!(list(), behind.until_shown("lists"));
    assert!(listed.unwrap().is_err(), "it may only have been slow: that is not asked again");
    assert_eq!(list().await.unwrap().unwrap().messages.len(), 1);
    assert_eq!(behind.node.health(), Health::Writable, "only signs of life say otherwise");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_though_the_connection_of_its_signs_of_life_is_silent() {
    let behind = Behind::new(2).await;
    behind.silence(LEASE).await;
    let began = Instant::now();
    while behind.node.health() == Health::Writable {
        assert!(began.elapsed() < SHOWN, "it says that it is well");
        sleep(Duration::from_millis(20)).await;
    }
    behind.until_shown("signs of life").await;
    until("it is back", async || behind.node.health() == Health::Writable).await;
}

/// Lists get no answer by any connection, so the node's deliveries stop. Other nodes deliver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_work_stands_still_gives_up_its_duties() {
    const GIVEN_UP: Duration = Duration::from_secs(45);
    let behind = Behind::new(2).await;
    let node = &behind.node;
    until("the duty", async || *node.has_duty(Duty::Webhooks).borrow()).await;
    let other = behind.database.node("b").await;
    until("both", async || node.nodes().len() == 2).await;
    behind.silence(LISTS).await;
    behind.proxy.silence_new(true);
    let began = Instant::now();
    let has_it = async |node: &Store| *node.has_duty(Duty::Webhooks).borrow();
    while !has_it(&other).await {
        assert!(began.elapsed() < GIVEN_UP, "the duty stays");
        assert!(node.list(MessageFilter::default(), 10, START).await.is_err());
        sleep(Duration::from_millis(50)).await;
    }
    println!("given up after {:.1} s", began.elapsed().as_secs_f64());
    assert!(!has_it(node).await, "two nodes deliver");
    assert_eq!(node.health(), Health::Writable);
    assert!(
        other.nodes().iter().all(|node| node.state == NodeState::Working),
        "{:?}",
        other.nodes()
    );
    // A single node keeps them, and one that works again may take them.
    behind.proxy.release();
    other.leave().await;
    drop(other);
    until("the duty", async || has_it(node).await).await;
}
