//! Requirements on every engine of the store, tested through the store's own interface.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::limits::ALL_ORGANISATIONS;
use crate::rows::{Lock, Rows, Table};
use crate::suppressions;
use crate::{
    AcceptError, Accepted, Applied, Change, Engine, LostMessages, MessageFilter, NewMessage,
    NodeIdentity, NodePlace, PostgresServer, Reference, Report, Store, StoreError, StoreId,
    StoreOwner,
};
use pillarbox_domain::admission::{Admitted, admit};
use pillarbox_domain::event::{BounceType, Event, EventDetail, EventType};
use pillarbox_domain::id::{MessageId, MessageIds, OrganisationId};
use pillarbox_domain::limits::{IDEMPOTENCY_WINDOW, RECORD_RETENTION};
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{
    Acceptance, Cancellation, Failure, FailureCode, Recorded, State, Transition,
};
use pillarbox_domain::organisation::DomainState;
use pillarbox_domain::request::{Draft, IdempotencyKey, SendRequest};
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_domain::time::Timestamp;

mod alerts;
mod batch;
mod bodies;
mod events;
mod feed;
pub(super) mod history;
pub(super) mod list;
mod organisations;
mod rights;
mod rows;
mod terms;
mod timeline;
mod usage;
mod webhooks;

pub(super) const START: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

pub(super) struct Fixture {
    pub(super) store: Store,
    pub(super) organisation: OrganisationId,
    pub(super) ids: MessageIds,
}

impl Fixture {
    pub(super) async fn on(store: Store) -> Self {
        let organisation = match store.organisation(&"acme".parse().unwrap()) {
            Some(organisation) => organisation,
            None => store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap(),
        };
        let domain = DomainName::parse("example.com").unwrap();
        store.put_domain(organisation.id, domain, DomainState::Assumed, START).await.unwrap();
        Self { store, organisation: organisation.id, ids: MessageIds::new() }
    }

    pub(super) async fn admitted<'a>(&self, key: Option<&'a str>) -> Admitted<'a> {
        let draft = Draft {
            from: Some("Ann <ann@example.com>"),
            to: Some(vec!["Bob@Example.org"]),
            subject: Some("Hello"),
            text: Some("Body".into()),
            idempotency_key: key,
            ..Draft::default()
        };
        let request = SendRequest::parse(draft).unwrap();
        admit(request, &self.store.facts(self.organisation)).await.unwrap()
    }

    pub(super) async fn accept(
        &self,
        key: Option<&str>,
        now: Timestamp,
    ) -> Result<Accepted, StoreError> {
        let id = self.ids.next(now);
        let admitted = self.admitted(key).await;
        let message = NewMessage::new(id, self.organisation, &admitted, now, now, || {});
        self.store.accept(message).await.map_err(of_store)
    }

    pub(super) async fn new_message(&self) -> MessageId {
        let Accepted::New(id) = self.accept(None, START).await.unwrap() else {
            panic!("a message without a key is new");
        };
        id
    }

    pub(super) async fn state(&self, id: MessageId) -> State {
        self.store.message(id, START).await.unwrap().unwrap().state
    }
}

/// The store's own reason for not accepting messages.
pub(super) fn of_store(error: AcceptError) -> StoreError {
    match error {
        AcceptError::Store(error) => error,
        other => panic!("no right was to be looked at: {other}"),
    }
}

/// Opens the store that belongs to a directory: a file in it, or, if `TEST_POSTGRES_PORT` has
/// the port of a server, a database of its own there.
pub(super) async fn in_directory(directory: &tempfile::TempDir, now: Timestamp) -> Store {
    reopened(directory, now).await.0
}

/// As [`in_directory`], with the number of messages that the end of the last process failed.
async fn reopened(directory: &tempfile::TempDir, now: Timestamp) -> (Store, usize) {
    let (store, bodies_lost, _) = reopened_with(directory, |_| BTreeSet::new(), now).await;
    (store, bodies_lost)
}

/// As [`reopened`], with the messages that stay pending because `bodies` has their body.
async fn reopened_with(
    directory: &tempfile::TempDir,
    bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
    now: Timestamp,
) -> (Store, usize, BTreeSet<MessageId>) {
    if let Ok(port) = std::env::var("TEST_POSTGRES_PORT") {
        return postgres(directory.path(), port.parse().unwrap(), bodies, now).await;
    }
    let (owner, directory) = (StoreOwner::Service, directory.path());
    let (store, recovery) = Store::open_as(owner, directory, bodies, now).unwrap();
    (store, recovery.bodies_lost, recovery.kept)
}

/// As [`in_directory`], on a disk in memory if the store is a file.
async fn in_memory(directory: &tempfile::TempDir, now: Timestamp) -> Store {
    match std::env::var("TEST_POSTGRES_PORT") {
        Ok(_) => in_directory(directory, now).await,
        Err(_) => Store::on_failing_disk(now).0,
    }
}

async fn postgres(
    directory: &Path,
    port: u16,
    bodies: impl FnOnce(StoreId) -> BTreeSet<MessageId>,
    now: Timestamp,
) -> (Store, usize, BTreeSet<MessageId>) {
    let digest = Sha256::digest(directory.as_os_str().as_encoded_bytes());
    let database = format!("test_{}", hex::encode(&digest[..8]));
    let server = PostgresServer::with_database(port, &database).await;
    let identity = NodeIdentity {
        name: "test".to_owned(),
        directory: *digest.first_chunk().unwrap(),
        place: NodePlace::of(&std::fs::File::open(directory).unwrap()).unwrap(),
        dead_after: Duration::from_mins(3),
        least_dead_after: Duration::ZERO,
    };
    let (owner, answer_timeout) = (StoreOwner::Service, Duration::from_secs(8));
    let connected =
        Store::connect_as(owner, &server, identity, answer_timeout, bodies, |_| now).await;
    let (store, joined) = connected.unwrap();
    (store, joined.bodies_lost, joined.kept)
}

pub(super) fn event(at: Timestamp, detail: EventDetail) -> Event {
    Event { occurred_at: at, recipients: vec!["Bob <bob@example.org>".to_owned()], detail }
}

pub(super) fn hard_bounce() -> EventDetail {
    EventDetail::Bounce {
        bounce_type: BounceType::Permanent,
        sub_type: "General".to_owned(),
        diagnostic_code: Some("smtp; 550".to_owned()),
    }
}

#[tokio::test]
async fn an_accepted_message_reads_back_and_survives_a_reopen() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let message = fixture.store.message(id, START).await.unwrap().unwrap();
    assert_eq!((message.created_at, message.attempts), (START, 0));
    assert_eq!(message.recipients, ["Bob@Example.org"]);
    fixture
        .store
        .record(
            id,
            1,
            Transition::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START },
            START,
        )
        .await
        .unwrap();
    let message = fixture.store.message(id, START).await.unwrap().unwrap();
    assert_eq!(fixture.store.idempotency_key(id).unwrap(), None);
    drop(fixture);
    let store = in_directory(&directory, START).await;
    assert_eq!(store.message(id, START).await.unwrap(), Some(message));
    assert_eq!(store.newest().await.unwrap(), Some(id.instant()));
    assert_eq!(store.oldest(START).await.unwrap(), Some(START));
}

#[tokio::test]
async fn one_key_makes_one_message_however_many_ask_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Arc::new(Fixture::on(in_directory(&directory, START).await).await);
    let handed_over = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (fixture, handed_over) = (Arc::clone(&fixture), Arc::clone(&handed_over));
        tasks.spawn(async move {
            let id = fixture.ids.next(START);
            let admitted = fixture.admitted(Some("k")).await;
            let on_new = move || {
                handed_over.fetch_add(1, Ordering::SeqCst);
            };
            fixture
                .store
                .accept(NewMessage::new(id, fixture.organisation, &admitted, START, START, on_new))
                .await
                .unwrap()
        });
    }
    let answers = tasks.join_all().await;
    let new: Vec<_> = answers.iter().filter(|a| matches!(a, Accepted::New(_))).collect();
    assert_eq!((new.len(), handed_over.load(Ordering::SeqCst)), (1, 1));
    let Accepted::New(winner) = *new[0] else { unreachable!() };
    assert!(answers.iter().all(
        |answer| matches!(answer, Accepted::New(id) | Accepted::Replayed(id) if *id == winner)
    ));
}

#[tokio::test]
async fn a_key_replays_for_exactly_24_hours_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let Accepted::New(first) = fixture.accept(Some("k"), START).await.unwrap() else { panic!() };
    let other = fixture.store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    let key = IdempotencyKey::parse("k").unwrap();
    assert_eq!(fixture.store.replay(other.id, key, START).await.unwrap(), None);
    drop(fixture);

    let end = START.plus(IDEMPOTENCY_WINDOW);
    let fixture = Fixture::on(in_directory(&directory, end.minus(MILLISECOND)).await).await;
    let last = fixture.accept(Some("k"), end.minus(MILLISECOND)).await.unwrap();
    assert_eq!(last, Accepted::Replayed(first));
    let Accepted::New(second) = fixture.accept(Some("k"), end).await.unwrap() else { panic!() };
    assert_ne!(first, second);
    fixture.store.purge(end.plus(MILLISECOND), 100).await.unwrap();
    let replay =
        fixture.store.replay(fixture.organisation, key, end.plus(MILLISECOND)).await.unwrap();
    assert_eq!(replay, Some(second), "expiry of the first use leaves the second alone");
}

#[tokio::test]
async fn several_keys_are_asked_for_at_one_time() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let mut expected = Vec::new();
    for key in ["a", "c"] {
        expected.push(Some(fixture.accept(Some(key), START).await.unwrap().id()));
        expected.push(None);
    }
    let keys = ["a", "b", "c", "d"].map(|key| IdempotencyKey::parse(key).unwrap());
    let replays = |keys| fixture.store.replays(fixture.organisation, keys, START.into());
    assert_eq!(replays(&keys).await.unwrap(), expected);
    assert_eq!(replays(&keys[3..]).await.unwrap(), [None]);
    assert_eq!(replays(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn a_restart_fails_what_was_pending_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let sent = fixture.new_message().await;
    let transition = Transition::Sent { ses_message_id: "s".to_owned(), sent_at: START };
    fixture.store.record(sent, 1, transition, START).await.unwrap();
    let mut pending = Vec::new();
    for _ in 0..50 {
        pending.push(fixture.new_message().await);
    }
    drop(fixture);
    let (store, bodies_lost) = reopened(&directory, START).await;
    assert_eq!(bodies_lost, 50);
    for id in pending {
        let message = store.message(id, START).await.unwrap().unwrap();
        assert_eq!(message.failure().unwrap().code, FailureCode::BodyLostOnRestart);
    }
    assert!(matches!(store.message(sent, START).await.unwrap().unwrap().state, State::Sent { .. }));
    drop(store);
    assert_eq!(reopened(&directory, START).await.1, 0);
}

#[tokio::test]
async fn a_final_state_never_moves_back() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let failed = Transition::Failed {
        failure: Failure::new(FailureCode::ProviderRejected, "no"),
        acceptance: Acceptance::Excluded,
    };
    assert_eq!(fixture.store.record(id, 1, failed, START).await.unwrap(), Recorded::Changed);
    let sent = Transition::Sent { ses_message_id: "s".to_owned(), sent_at: START };
    assert_eq!(fixture.store.record(id, 2, sent, START).await.unwrap(), Recorded::AlreadyFinal);
    let report = Report {
        message: Reference::Tag(id),
        organisation: None,
        ses_message_id: "s".to_owned(),
        accepted_at: START,
        event: None,
    };
    fixture.store.apply(report, START).await.unwrap();
    assert!(
        matches!(fixture.state(id).await, State::Failed { .. }),
        "a refusal for good is no doubt"
    );
}

#[tokio::test]
async fn proof_of_acceptance_corrects_a_message_whose_outcome_was_lost() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let queued = fixture.new_message().await;
    let unknown = fixture.new_message().await;
    let failed = Transition::Failed {
        failure: Failure::new(FailureCode::OutcomeUnknown, "no answer"),
        acceptance: Acceptance::Possible,
    };
    fixture.store.record(unknown, 1, failed, START).await.unwrap();
    for (id, applied) in [(queued, Applied::Sent(queued)), (unknown, Applied::Sent(unknown))] {
        let report = Report {
            message: Reference::Tag(id),
            organisation: None,
            ses_message_id: "ses".to_owned(),
            accepted_at: START,
            event: None,
        };
        assert_eq!(fixture.store.apply(report, START).await.unwrap(), applied);
        let message = fixture.store.message(id, START).await.unwrap().unwrap();
        let sent = State::Sent { ses_message_id: "ses".to_owned(), sent_at: START };
        assert_eq!((message.state, message.attempts), (sent, 1));
    }
    drop(fixture);
    assert_eq!(reopened(&directory, START).await.1, 0);
}

#[tokio::test]
async fn repeats_and_disorder_of_events_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let delivery = event(
        START.plus(Duration::from_secs(1)),
        EventDetail::Delivery { smtp_response: Some("250 ok".to_owned()) },
    );
    let bounce = event(START.plus(Duration::from_secs(2)), hard_bounce());
    let mut timelines = Vec::new();
    let ids = [fixture.new_message().await, fixture.new_message().await];
    let orders = [[&delivery, &bounce, &bounce], [&bounce, &delivery, &delivery]];
    for (id, order) in ids.into_iter().zip(orders) {
        for event in order {
            let report = Report {
                message: Reference::Tag(id),
                organisation: None,
                ses_message_id: "ses".to_owned(),
                accepted_at: START,
                event: Some(event.clone()),
            };
            fixture.store.apply(report, START).await.unwrap();
        }
        let last = fixture.store.message(id, START).await.unwrap().unwrap().last_event.unwrap();
        assert_eq!(last.event_type, EventType::Bounce);
        timelines.push(fixture.store.events(id).await.unwrap());
    }
    assert_eq!(timelines[0], [delivery, bounce]);
    assert_eq!(timelines[0], timelines[1]);
}

#[tokio::test]
async fn a_hard_bounce_suppresses_the_recipient_for_that_organisation_alone() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let before = fixture.store.suppression_epoch();
    let report = Report {
        message: Reference::Tag(id),
        organisation: None,
        ses_message_id: "ses".to_owned(),
        accepted_at: START,
        event: Some(event(START, hard_bounce())),
    };
    fixture.store.apply(report, START).await.unwrap();
    assert!(fixture.store.suppression_epoch() > before);
    let listed = fixture.store.suppressions(None, 10).await.unwrap().suppressions;
    let address = SuppressedAddress::parse("bob@example.org").unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].0, Some(fixture.organisation));
    assert_eq!(
        listed[0].1,
        Suppression {
            address: address.clone(),
            reason: SuppressionReason::Bounce,
            since: START,
            cause: Some(id)
        }
    );
    let undo = fixture.store.unsuppress(Some(fixture.organisation), address.clone()).await;
    assert_eq!(undo.unwrap(), Change::Made);
    let again = fixture.store.unsuppress(Some(fixture.organisation), address).await;
    assert_eq!(again.unwrap(), Change::None);
}

#[tokio::test]
async fn suppressions_are_listed_in_pages_that_follow_one_another() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let address = |name: &str| SuppressedAddress::parse(&format!("{name}@example.org")).unwrap();
    let names = ["ann", "bob", "cyd", "dan", "eve"];
    for name in names {
        let reason = SuppressionReason::Manual;
        let new = Suppression { address: address(name), reason, since: START, cause: None };
        store.suppress(None, new).await.unwrap();
    }
    let page = async |after: Option<&str>| {
        let after = after.map(&address);
        let page = store.suppressions(after.as_ref().map(|after| (None, after)), 2).await.unwrap();
        let listed: Vec<_> = page.suppressions.into_iter().map(|(_, one)| one.address).collect();
        (listed, page.next.map(|(_, next)| next))
    };
    assert_eq!(page(None).await, (["ann", "bob"].map(address).into(), Some(address("bob"))));
    assert_eq!(page(Some("bob")).await, (["cyd", "dan"].map(address).into(), Some(address("dan"))));
    assert_eq!(page(Some("dan")).await, (vec![address("eve")], None));
}

#[tokio::test]
async fn a_suppression_that_cannot_be_read_is_told_until_it_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let address = SuppressedAddress::parse("bob@example.org").unwrap();
    let key = suppressions::key(ALL_ORGANISATIONS, &address);
    let damage = move |rows: &mut dyn Rows| rows.put(Table::Suppressions, &key, b"?");
    store.change(Lock::Rows, 1, damage).await.unwrap();
    let page = store.suppressions(None, 10).await.unwrap();
    assert_eq!((page.suppressions, page.damaged), (vec![], vec![(None, address.clone())]));
    assert_eq!(store.damage().rows().len(), 1);
    assert_eq!(store.unsuppress(None, address).await.unwrap(), Change::Made);
    assert_eq!(store.damage().rows().len(), 0);
}

#[tokio::test]
async fn a_message_that_an_operator_cancels_does_not_count_as_failed() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let cancelled = Cancellation::ByOperator.transition(Acceptance::Excluded);
    fixture.store.record(id, 0, cancelled, START).await.unwrap();
    let counts = fixture.store.metrics().organisations.get()[&fixture.organisation];
    assert_eq!((counts.accepted, counts.cancelled, counts.failed), (1, 1, 0));
}

#[tokio::test]
async fn a_data_file_keeps_an_idempotency_key_as_text() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.accept(Some("order-7"), START).await.unwrap().id();
    let is_file = matches!(fixture.store.engine, Engine::Redb(_));
    let expected = is_file.then(|| "order-7".to_owned());
    assert_eq!(fixture.store.idempotency_key(id).unwrap(), expected);
}

#[tokio::test]
async fn a_repeated_bounce_does_not_bring_back_a_suppression_that_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let report = Report {
        message: Reference::Tag(fixture.new_message().await),
        organisation: None,
        ses_message_id: "ses".to_owned(),
        accepted_at: START,
        event: Some(event(START, hard_bounce())),
    };
    fixture.store.apply(report.clone(), START).await.unwrap();
    let address = SuppressedAddress::parse("bob@example.org").unwrap();
    fixture.store.unsuppress(Some(fixture.organisation), address).await.unwrap();
    fixture.store.apply(report, START).await.unwrap();
    assert!(fixture.store.suppressions(None, 10).await.unwrap().suppressions.is_empty());
}

#[tokio::test]
async fn a_suppression_for_all_organisations_is_one_of_each_and_its_own_row() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let other = store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap().id;
    let address = SuppressedAddress::parse_stored("bob@example.org").unwrap();
    let reason = SuppressionReason::Manual;
    let new = Suppression { address: address.clone(), reason, since: START, cause: None };
    store.suppress(None, new.clone()).await.unwrap();
    store.suppress(Some(other), new).await.unwrap();
    let scopes: Vec<_> = store.suppressions(None, 10).await.unwrap().suppressions;
    let scopes: Vec<_> = scopes.into_iter().map(|(organisation, _)| organisation).collect();
    assert_eq!(scopes, [None, Some(other)]);
    let of = async |organisation| {
        let found = store.suppressions_of(organisation, &address).await.unwrap();
        found.into_iter().map(|(organisation, _)| organisation).collect::<Vec<_>>()
    };
    assert_eq!(of(other).await, [Some(other), None]);
    assert_eq!(of(fixture.organisation).await, [None]);
    for removed in [None, Some(other)] {
        for of in [fixture.organisation, other] {
            let is_left = removed.is_none() || of == other;
            assert_eq!(store.is_suppressed(of, &address).await.unwrap(), is_left);
        }
        store.unsuppress(removed, address.clone()).await.unwrap();
    }
    assert!(!store.is_suppressed(other, &address).await.unwrap());
}

#[tokio::test]
async fn all_suppressions_are_known_after_a_restart_however_many_they_are() {
    const PARTS: usize = 5;
    const PART: usize = 5_001;
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (organisation, scopes) = (fixture.organisation, [None, Some(fixture.organisation)]);
    let address =
        |number: usize| SuppressedAddress::parse(&format!("user{number}@example.org")).unwrap();
    for part in 0..PARTS {
        let suppressions = (part * PART..(part + 1) * PART).map(|number| {
            let (address, reason) = (address(number), SuppressionReason::Manual);
            (scopes[number % 2], Suppression { address, reason, since: START, cause: None })
        });
        fixture.store.suppress_all(suppressions.collect()).await.unwrap();
    }
    drop(fixture);
    let store = in_directory(&directory, START).await;
    for number in 0..PARTS * PART {
        assert!(store.is_suppressed(organisation, &address(number)).await.unwrap(), "{number}");
    }
    assert!(!store.is_suppressed(organisation, &address(PARTS * PART)).await.unwrap());
    let other = OrganisationId(organisation.0 + 1);
    assert!(!store.is_suppressed(other, &address(1)).await.unwrap());
}

#[tokio::test]
async fn records_are_read_for_exactly_90_days_and_purged_after() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let report = Report {
        message: Reference::Tag(id),
        organisation: None,
        ses_message_id: "ses".to_owned(),
        accepted_at: START,
        event: Some(event(START, hard_bounce())),
    };
    fixture.store.apply(report, START).await.unwrap();
    let end = START.plus(RECORD_RETENTION);
    let filter = MessageFilter::default();
    assert!(fixture.store.message(id, end.minus(MILLISECOND)).await.unwrap().is_some());
    assert_eq!(
        fixture.store.list(filter.clone(), 9, end.minus(MILLISECOND)).await.unwrap().messages.len(),
        1
    );
    assert!(fixture.store.message(id, end).await.unwrap().is_none());
    assert!(fixture.store.list(filter, 9, end).await.unwrap().messages.is_empty());
    assert_eq!(fixture.store.purge(end, 10).await.unwrap().messages, 0, "its millisecond goes on");
    let purged = fixture.store.purge(end.plus(MILLISECOND), 10).await.unwrap();
    assert_eq!(purged.messages, 1);
    assert!(fixture.store.events(id).await.unwrap().is_empty());
    assert!(fixture.store.message(id, START).await.unwrap().is_none());
    assert_eq!(
        fixture.store.suppressions(None, 10).await.unwrap().suppressions.len(),
        1,
        "suppressions stay"
    );
}

#[tokio::test]
async fn a_purge_takes_bounded_steps() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    for _ in 0..25 {
        fixture.accept(Some(&fixture.ids.next(START).to_string()), START).await.unwrap();
    }
    let end = START.plus(RECORD_RETENTION).plus(MILLISECOND);
    for expected in [10, 10, 5, 0] {
        let purged = fixture.store.purge(end, 10).await.unwrap();
        assert_eq!((purged.messages, purged.idempotency_keys), (expected, expected));
    }
}

const DAY: Duration = Duration::from_hours(24);

fn lost(found_at: Timestamp) -> Transition {
    Transition::BodyLost { acceptance: Acceptance::Excluded, message: "stopped", found_at }
}

async fn unseen(store: &Store, now: Timestamp) -> Option<(u64, Timestamp)> {
    store.lost_messages(now).await.unwrap().map(|lost| (lost.messages, lost.last_at))
}

#[tokio::test]
async fn losses_of_stops_and_starts_add_up_until_they_are_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    assert_eq!(unseen(&fixture.store, START).await, None);
    let unset_clock = Timestamp::from_unix_millis(0);
    assert_eq!(unseen(&fixture.store, unset_clock).await, None, "not even a loss of none");
    let mut pending = Vec::new();
    for _ in 0..5 {
        pending.push(fixture.new_message().await);
    }
    // A stop finishes two messages, one of them twice. The process ends before it comes to the
    // others.
    for id in [pending[0], pending[1]] {
        let recorded = fixture.store.record(id, 0, lost(START), START).await.unwrap();
        assert_eq!(recorded, Recorded::Changed);
    }
    let again = fixture.store.record(pending[0], 0, lost(START), START).await.unwrap();
    assert_eq!(again, Recorded::AlreadyFinal);
    assert_eq!(unseen(&fixture.store, START).await, Some((2, START)));
    assert_eq!(fixture.store.metrics().bodies_lost(), 2);
    drop(fixture);

    let next = START.plus(Duration::from_mins(1));
    drop(in_directory(&directory, next).await);
    let later = next.plus(Duration::from_mins(1));
    let store = in_directory(&directory, later).await;
    assert_eq!(
        unseen(&store, later).await,
        Some((5, next)),
        "a start without losses changes nothing"
    );

    let seen = store.acknowledge_lost_messages(later).await.unwrap();
    assert_eq!(seen, Some(LostMessages { messages: 5, last_at: next }));
    assert_eq!(store.acknowledge_lost_messages(later).await.unwrap(), None);
    drop(store);
    assert_eq!(unseen(&in_directory(&directory, later).await, later).await, None);
}

#[tokio::test]
async fn a_loss_is_shown_for_a_day_and_then_no_longer_counted() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let ids = [fixture.new_message().await, fixture.new_message().await];
    fixture.store.record(ids[0], 0, lost(START), START).await.unwrap();
    let last_moment = START.plus(DAY).minus(MILLISECOND);
    assert_eq!(unseen(&fixture.store, last_moment).await, Some((1, START)));
    assert_eq!(unseen(&fixture.store, START.plus(DAY)).await, None);
    fixture.store.record(ids[1], 0, lost(START.plus(DAY)), START.plus(DAY)).await.unwrap();
    assert_eq!(unseen(&fixture.store, START.plus(DAY)).await, Some((1, START.plus(DAY))));
}

impl Store {
    /// Rows that find messages, once all is published.
    async fn rows_of_indexes(&self) -> u64 {
        match &self.engine {
            Engine::Redb(engine) => {
                engine.published().await;
                engine.rows_of_indexes()
            }
            Engine::Postgres(engine) => Box::pin(engine.rows_of_indexes()).await,
        }
    }

    /// Makes a message's record one that cannot be read.
    pub(super) async fn damage_message(&self, id: MessageId) {
        match &self.engine {
            Engine::Redb(engine) => engine.damage_message(id).await,
            Engine::Postgres(engine) => Box::pin(engine.damage_message(id)).await,
        }
    }

    /// Takes a node for dead.
    #[cfg(feature = "interop")]
    pub(super) async fn bury(&self, name: &str) {
        match &self.engine {
            Engine::Redb(_) => panic!("the default engine has no nodes"),
            Engine::Postgres(engine) => engine.bury(name).await,
        }
    }

    /// Number of rows of the feed, with overturned failures.
    pub(super) async fn rows_of_feed(&self) -> u64 {
        match &self.engine {
            Engine::Redb(engine) => engine.rows_of_feed(),
            Engine::Postgres(engine) => Box::pin(engine.rows_of_feed()).await,
        }
    }
}

#[tokio::test]
async fn a_purge_leaves_nothing_that_finds_a_record_which_could_not_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let sent = |ses_message_id: &str, sent_at| Transition::Sent {
        ses_message_id: ses_message_id.to_owned(),
        sent_at,
    };
    let mut ids = Vec::new();
    for (ses_message_id, sent_at) in [("a", START), ("b", START.plus(Duration::from_secs(9)))] {
        let id = fixture.new_message().await;
        fixture.store.record(id, 1, sent(ses_message_id, sent_at), START).await.unwrap();
        ids.push(id);
    }
    fixture.store.damage_message(ids[1]).await;
    let later = START.plus(Duration::from_hours(1));
    let Accepted::New(kept) = fixture.accept(None, later).await.unwrap() else { panic!() };
    fixture.store.record(kept, 1, sent("c", later), later).await.unwrap();
    let all = fixture.store.rows_of_indexes().await;
    let end = START.plus(RECORD_RETENTION).plus(Duration::from_mins(30));
    assert_eq!(fixture.store.purge(end, 10).await.unwrap().messages, 2);
    assert_eq!(fixture.store.rows_of_indexes().await, all / 3, "those of the last message");
    assert!(fixture.store.message(kept, later).await.unwrap().is_some());
    fixture.store.purge(later.plus(RECORD_RETENTION).plus(MILLISECOND), 10).await.unwrap();
    assert_eq!(fixture.store.rows_of_indexes().await, 0);
}
