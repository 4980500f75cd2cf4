//! What every backend of the store must do, tested through the store's own interface.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::domain::admission::{Admitted, admit};
use crate::domain::event::{BounceType, Event, EventDetail, EventType};
use crate::domain::id::{MessageId, MessageIds, OrganisationId};
use crate::domain::mailbox::DomainName;
use crate::domain::message::{Acceptance, Failure, FailureCode, Recorded, State, Transition};
use crate::domain::organisation::DomainState;
use crate::domain::policy::{IDEMPOTENCY_WINDOW, RECORD_RETENTION};
use crate::domain::request::{Draft, IdempotencyKey, SendRequest};
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::domain::time::Timestamp;
use crate::store::{
    Accepted, Applied, CACHE_BYTES, Change, LostMessages, MessageFilter, Reference, Report, Store,
    StoreError,
};

use disk::{Disk, Fault};

mod batch;
mod damage;
mod disk;
mod events;
mod feed;
mod history;
mod journal;
mod list;
mod organisations;
mod power;

const START: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const MILLISECOND: Duration = Duration::from_millis(1);

struct Fixture {
    store: Store,
    organisation: OrganisationId,
    ids: MessageIds,
}

impl Fixture {
    async fn on(store: Store) -> Self {
        let organisation = match store.organisation(&"acme".parse().unwrap()) {
            Some(organisation) => organisation,
            None => store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap(),
        };
        let domain = DomainName::parse("example.com").unwrap();
        store.put_domain(organisation.id, domain, DomainState::Assumed, START).await.unwrap();
        Self { store, organisation: organisation.id, ids: MessageIds::new() }
    }

    fn admitted<'a>(&self, key: Option<&'a str>) -> Admitted<'a> {
        let draft = Draft {
            from: Some("Ann <ann@example.com>"),
            to: Some(vec!["Bob@Example.org"]),
            subject: Some("Hello"),
            text: Some("Body".into()),
            idempotency_key: key,
            ..Draft::default()
        };
        let request = SendRequest::parse(draft).unwrap();
        admit(request, &self.store.facts(self.organisation)).unwrap()
    }

    async fn accept(&self, key: Option<&str>, now: Timestamp) -> Result<Accepted, StoreError> {
        let id = self.ids.next(now);
        let admitted = self.admitted(key);
        self.store.accept(id, self.organisation, &admitted, now, now, || {}).await
    }

    async fn new_message(&self) -> MessageId {
        let Accepted::New(id) = self.accept(None, START).await.unwrap() else {
            panic!("a message without a key is new");
        };
        id
    }

    fn state(&self, id: MessageId) -> State {
        self.store.message(id, START).unwrap().unwrap().state
    }
}

impl Store {
    /// A store on a disk in memory, with what makes its writes fail and what lets them succeed again.
    pub(crate) fn on_failing_disk(now: Timestamp) -> (Self, impl Fn(), impl Fn()) {
        let disk = Disk::formatted();
        let (store, _) =
            Self::start(disk.opener(CACHE_BYTES), now).expect("a formatted disk opens");
        let (failing, working) = (disk.clone(), disk);
        (store, move || failing.set(Fault::WritesFail), move || working.set(Fault::None))
    }
}

fn in_directory(directory: &tempfile::TempDir, now: Timestamp) -> Store {
    Store::open(directory.path(), now).unwrap().0
}

fn event(at: Timestamp, detail: EventDetail) -> Event {
    Event { occurred_at: at, recipients: vec!["Bob <bob@example.org>".to_owned()], detail }
}

fn hard_bounce() -> EventDetail {
    EventDetail::Bounce {
        bounce_type: BounceType::Permanent,
        sub_type: "General".to_owned(),
        diagnostic_code: Some("smtp; 550".to_owned()),
    }
}

#[tokio::test]
async fn an_accepted_message_reads_back_and_survives_a_reopen() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let id = fixture.new_message().await;
    let message = fixture.store.message(id, START).unwrap().unwrap();
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
    let message = fixture.store.message(id, START).unwrap().unwrap();
    drop(fixture);
    assert_eq!(in_directory(&directory, START).message(id, START).unwrap(), Some(message));
}

#[tokio::test]
async fn one_key_makes_one_message_however_many_ask_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Arc::new(Fixture::on(in_directory(&directory, START)).await);
    let handed_over = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (fixture, handed_over) = (Arc::clone(&fixture), Arc::clone(&handed_over));
        tasks.spawn(async move {
            let id = fixture.ids.next(START);
            let admitted = fixture.admitted(Some("k"));
            let on_new = move || {
                handed_over.fetch_add(1, Ordering::SeqCst);
            };
            fixture
                .store
                .accept(id, fixture.organisation, &admitted, START, START, on_new)
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
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let Accepted::New(first) = fixture.accept(Some("k"), START).await.unwrap() else { panic!() };
    let other = fixture.store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    let key = IdempotencyKey::parse("k").unwrap();
    assert_eq!(fixture.store.replay(other.id, key, START).unwrap(), None);
    drop(fixture);

    let end = START.plus(IDEMPOTENCY_WINDOW);
    let fixture = Fixture::on(in_directory(&directory, end.minus(MILLISECOND))).await;
    let last = fixture.accept(Some("k"), end.minus(MILLISECOND)).await.unwrap();
    assert_eq!(last, Accepted::Replayed(first));
    let Accepted::New(second) = fixture.accept(Some("k"), end).await.unwrap() else { panic!() };
    assert_ne!(first, second);
    fixture.store.purge(end.plus(MILLISECOND), 100).await.unwrap();
    let replay = fixture.store.replay(fixture.organisation, key, end.plus(MILLISECOND)).unwrap();
    assert_eq!(replay, Some(second), "expiry of the first use leaves the second alone");
}

#[tokio::test]
async fn a_restart_fails_what_was_pending_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let sent = fixture.new_message().await;
    let transition = Transition::Sent { ses_message_id: "s".to_owned(), sent_at: START };
    fixture.store.record(sent, 1, transition, START).await.unwrap();
    let mut pending = Vec::new();
    for _ in 0..50 {
        pending.push(fixture.new_message().await);
    }
    drop(fixture);
    let (store, recovery) = Store::open(directory.path(), START).unwrap();
    assert_eq!(recovery.bodies_lost, 50);
    for id in pending {
        let message = store.message(id, START).unwrap().unwrap();
        assert_eq!(message.failure().unwrap().code, FailureCode::BodyLostOnRestart);
    }
    assert!(matches!(store.message(sent, START).unwrap().unwrap().state, State::Sent { .. }));
    drop(store);
    assert_eq!(Store::open(directory.path(), START).unwrap().1.bodies_lost, 0);
}

#[tokio::test]
async fn a_final_state_never_moves_back() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
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
    assert!(matches!(fixture.state(id), State::Failed { .. }), "a refusal for good is no doubt");
}

#[tokio::test]
async fn proof_of_acceptance_corrects_a_message_whose_outcome_was_lost() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
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
        let message = fixture.store.message(id, START).unwrap().unwrap();
        let sent = State::Sent { ses_message_id: "ses".to_owned(), sent_at: START };
        assert_eq!((message.state, message.attempts), (sent, 1));
    }
    drop(fixture);
    assert_eq!(Store::open(directory.path(), START).unwrap().1.bodies_lost, 0);
}

#[tokio::test]
async fn repeats_and_disorder_of_events_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
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
        let last = fixture.store.message(id, START).unwrap().unwrap().last_event.unwrap();
        assert_eq!(last.event_type, EventType::Bounce);
        timelines.push(fixture.store.events(id).unwrap());
    }
    assert_eq!(timelines[0], [delivery, bounce]);
    assert_eq!(timelines[0], timelines[1]);
}

#[tokio::test]
async fn a_hard_bounce_suppresses_the_recipient_for_that_organisation_alone() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
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
    let listed = fixture.store.suppressions(None, 10).unwrap().suppressions;
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
async fn a_repeated_bounce_does_not_bring_back_a_suppression_that_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
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
    assert!(fixture.store.suppressions(None, 10).unwrap().suppressions.is_empty());
}

#[tokio::test]
async fn an_operation_that_panics_is_refused_for_good_and_the_store_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let panics = fixture.store.writer.run(0, |_| -> Result<(), _> { panic!("as it must") });
    assert_eq!(panics.await, Err(StoreError::Damaged));
    fixture.store.writable().await;
    assert!(matches!(fixture.accept(None, START).await, Ok(Accepted::New(_))));
}

#[tokio::test]
async fn records_are_read_for_exactly_90_days_and_purged_after() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
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
    assert!(fixture.store.message(id, end.minus(MILLISECOND)).unwrap().is_some());
    assert_eq!(
        fixture.store.list(filter.clone(), 9, end.minus(MILLISECOND)).await.unwrap().messages.len(),
        1
    );
    assert!(fixture.store.message(id, end).unwrap().is_none());
    assert!(fixture.store.list(filter, 9, end).await.unwrap().messages.is_empty());
    assert_eq!(fixture.store.purge(end, 10).await.unwrap().messages, 0, "its millisecond goes on");
    let purged = fixture.store.purge(end.plus(MILLISECOND), 10).await.unwrap();
    assert_eq!(purged.messages, 1);
    assert!(fixture.store.events(id).unwrap().is_empty());
    assert!(fixture.store.message(id, START).unwrap().is_none());
    assert_eq!(
        fixture.store.suppressions(None, 10).unwrap().suppressions.len(),
        1,
        "suppressions stay"
    );
}

#[tokio::test]
async fn a_purge_takes_bounded_steps() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
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

fn unseen(store: &Store, now: Timestamp) -> Option<(u64, Timestamp)> {
    store.lost_messages(now).unwrap().map(|lost| (lost.messages, lost.last_at))
}

#[tokio::test]
async fn losses_of_stops_and_starts_add_up_until_they_are_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    assert_eq!(unseen(&fixture.store, START), None);
    let mut pending = Vec::new();
    for _ in 0..5 {
        pending.push(fixture.new_message().await);
    }
    // A stop settles two, one of them twice. The process ends before it comes to the others.
    for id in [pending[0], pending[1]] {
        let recorded = fixture.store.record(id, 0, lost(START), START).await.unwrap();
        assert_eq!(recorded, Recorded::Changed);
    }
    let again = fixture.store.record(pending[0], 0, lost(START), START).await.unwrap();
    assert_eq!(again, Recorded::AlreadyFinal);
    assert_eq!(unseen(&fixture.store, START), Some((2, START)));
    drop(fixture);

    let next = START.plus(Duration::from_mins(1));
    drop(in_directory(&directory, next));
    let later = next.plus(Duration::from_mins(1));
    let store = in_directory(&directory, later);
    assert_eq!(unseen(&store, later), Some((5, next)), "a start without losses changes nothing");

    let seen = store.acknowledge_lost_messages(later).await.unwrap();
    assert_eq!(seen, Some(LostMessages { messages: 5, last_at: next }));
    assert_eq!(store.acknowledge_lost_messages(later).await.unwrap(), None);
    drop(store);
    assert_eq!(unseen(&in_directory(&directory, later), later), None);
}

#[tokio::test]
async fn a_loss_is_shown_for_a_day_and_then_no_longer_counted() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let ids = [fixture.new_message().await, fixture.new_message().await];
    fixture.store.record(ids[0], 0, lost(START), START).await.unwrap();
    let last_moment = START.plus(DAY).minus(MILLISECOND);
    assert_eq!(unseen(&fixture.store, last_moment), Some((1, START)));
    assert_eq!(unseen(&fixture.store, START.plus(DAY)), None);
    fixture.store.record(ids[1], 0, lost(START.plus(DAY)), START.plus(DAY)).await.unwrap();
    assert_eq!(unseen(&fixture.store, START.plus(DAY)), Some((1, START.plus(DAY))));
}
