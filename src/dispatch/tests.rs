//! The dispatcher over a store whose disk fills up.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::*;
use pillarbox_body_store::BodyStore;
use pillarbox_domain::attempt::{Outcome, Problem, ProblemKind, ProviderAnswer, RequestBody};
use pillarbox_domain::envelope::Envelope;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{FailureCode, State, Status};
use pillarbox_domain::message_terms::Priority;
use pillarbox_domain::organisation::{DomainState, Organisation};
use pillarbox_domain::request::{Draft, SendRequest};
use pillarbox_domain::time::Timestamp;
use pillarbox_intake::Intake;
use pillarbox_queue::{AcceptedMessage, EncodedRequest};
use pillarbox_ses::send::RequestOptions;
use pillarbox_store::MessageFilter;

const START: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const MOMENT: Duration = Duration::from_millis(5);

/// Accepts every message, once the test lets it answer.
struct Gated {
    calls: Mutex<HashMap<Bytes, u32>>,
    gate: Semaphore,
}

impl Gated {
    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl Provider for Gated {
    async fn send(&self, _: OrganisationKind, _: &Envelope<'_>, request: RequestBody) -> Outcome {
        *self.calls.lock().unwrap().entry(request.whole().unwrap()).or_insert(0) += 1;
        drop(self.gate.acquire().await);
        Outcome::Sent { ses_message_id: "ses-1".to_owned() }
    }
}

async fn acme(store: &Store) -> Organisation {
    let acme = store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
    let domain = DomainName::parse("example.com").unwrap();
    store.put_domain(acme.id, domain, DomainState::Assumed, START).await.unwrap();
    acme
}

async fn until(mut done: impl FnMut() -> bool) {
    tokio::time::timeout(Duration::from_secs(20), async {
        while !done() {
            sleep(MOMENT).await;
        }
    })
    .await
    .expect("it happens in time");
}

/// Accepts messages into a queue.
async fn accept(store: &Store, queue: &Arc<MessageQueue>, acme: &Organisation, count: usize) {
    let clock = Clock::manual(START);
    let intake =
        Arc::new(Intake::new(store.clone(), Arc::clone(queue), clock, RequestOptions::default()));
    let mut accepting = JoinSet::new();
    for _ in 0..count {
        let (intake, acme) = (Arc::clone(&intake), acme.clone());
        accepting.spawn(async move {
            let draft = Draft {
                from: Some("ann@example.com"),
                to: Some(vec!["bob@example.org"]),
                subject: Some("Hello"),
                text: Some("Body".into()),
                ..Draft::default()
            };
            let request = SendRequest::parse(draft).unwrap();
            let prepared = intake.prepare(&acme, None, request, Some("test")).await.unwrap();
            intake.accept(prepared).await.unwrap();
        });
    }
    accepting.join_all().await;
}

/// Moves every message from one queue to another, to be sent within this time from its acceptance.
fn hand_over(from: &Arc<MessageQueue>, to: &MessageQueue, expires_in: Option<Duration>) {
    while let Some(claim) = from.claim(OrganisationKind::Production, Instant::now(), usize::MAX) {
        let message = &claim.message;
        let request = message.request().unwrap().whole().unwrap();
        let request = String::from_utf8(request.to_vec()).unwrap();
        let envelope = message.envelope().unwrap().with_terms(Priority::Normal, expires_in);
        let request = EncodedRequest::new(request, &envelope);
        let reserved = to.budget().reserve(message.organisation, request.len_bytes());
        let held = to.hold(AcceptedMessage {
            id: message.id,
            kind: OrganisationKind::Production,
            key: None,
            request,
            accepted_at: message.accepted_at,
            suppression_epoch: message.suppression_epoch.unwrap(),
            reservation: reserved.unwrap(),
        });
        to.add(held.unwrap());
        claim.finish();
    }
}

/// The outcomes of a thousand calls wait until the disk takes writes, and nothing is sent
/// meanwhile. Messages that expire meanwhile are not sent afterwards either.
#[tokio::test]
async fn outcomes_outlast_a_failing_disk_and_nothing_is_sent_twice_or_too_late() {
    const UNDER_WAY: usize = 1_000;
    const WAITING: usize = 100;
    const EXPIRING: usize = 50;
    let (store, fail, work) = Store::on_failing_disk(START);
    let acme = acme(&store).await;
    let new_queue = || Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 30));
    let (queue, later, expiring) = (new_queue(), new_queue(), new_queue());
    accept(&store, &queue, &acme, UNDER_WAY).await;
    accept(&store, &later, &acme, WAITING).await;
    accept(&store, &expiring, &acme, EXPIRING).await;

    let gated = Gated { calls: Mutex::default(), gate: Semaphore::new(0) };
    let settings = Settings {
        // One organisation alone may have half of them under way.
        max_in_flight: 2 * UNDER_WAY,
        backoff: Backoff::try_new(Duration::from_secs(1), Duration::from_mins(5)).unwrap(),
        retry_for: Duration::from_hours(12),
        on_unknown: OnUnknown::Retry,
        unknown_wait: Duration::ZERO,
        drain: Duration::from_mins(1),
    };
    let dispatcher = Dispatcher::new(
        store.clone(),
        Arc::clone(&queue),
        gated,
        Clock::manual(START),
        settings,
        Rate::Unlimited,
    );
    let (_phase, watched) = watch::channel(Phase::Running);
    let running = tokio::spawn(Arc::clone(&dispatcher).run(watched));
    until(|| dispatcher.provider().calls() == UNDER_WAY).await;
    fail();
    dispatcher.provider().gate.close();
    until(|| dispatcher.unrecorded.count() > 0).await;
    hand_over(&later, &queue, None);
    hand_over(&expiring, &queue, Some(20 * MOMENT));
    // Long enough for the store to take small writes now and then, and refuse the next.
    for _ in 0..50 {
        sleep(2 * MOMENT).await;
        assert!(dispatcher.unrecorded.count() > 0, "the disk is not full");
        assert_eq!(dispatcher.provider().calls(), UNDER_WAY, "a call started meanwhile");
    }

    work();
    until(|| queue.pending().messages == 0).await;
    let (mut messages, mut filter) = (Vec::new(), MessageFilter::default());
    // A page may be short and not the last.
    loop {
        let page = store.list(filter.clone(), 2_000, START).await.unwrap();
        messages.extend(page.messages);
        filter.before = page.next;
        if filter.before.is_none() {
            break;
        }
    }
    let (sent, expired): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| matches!(message.state, State::Sent { .. }));
    assert_eq!((sent.len(), expired.len()), (UNDER_WAY + WAITING, EXPIRING));
    assert!(sent.iter().all(|message| message.attempts == 1));
    for message in expired {
        let State::Failed { failure, .. } = &message.state else { panic!("{message:?}") };
        assert_eq!((failure.code, message.attempts), (FailureCode::Expired, 0), "{message:?}");
    }
    let calls = dispatcher.provider().calls.lock().unwrap();
    assert_eq!(calls.len(), UNDER_WAY + WAITING);
    assert!(calls.values().all(|calls| *calls == 1));
    running.abort();
}

/// Fails every call in its own time, one after the other.
struct Down;

impl Provider for Down {
    async fn send(&self, _: OrganisationKind, _: &Envelope<'_>, _: RequestBody) -> Outcome {
        std::thread::sleep(Duration::from_millis(2));
        Outcome::NotSent(Problem {
            kind: ProblemKind::Unavailable,
            provider_code: None,
            message: "down".to_owned(),
            retry_after: None,
            answer: ProviderAnswer::Missing,
        })
    }
}

/// The calls of a burst started together, so they say one thing together, however late each runs.
#[tokio::test]
async fn a_burst_of_failures_does_not_count_as_failed_probes() {
    let (store, _fail, _work) = Store::on_failing_disk(START);
    let acme = acme(&store).await;
    let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 30));
    accept(&store, &queue, &acme, 60).await;
    let settings = Settings {
        max_in_flight: 256,
        backoff: Backoff::try_new(Duration::from_secs(30), Duration::from_mins(50)).unwrap(),
        retry_for: Duration::from_hours(12),
        on_unknown: OnUnknown::Retry,
        unknown_wait: Duration::ZERO,
        drain: Duration::from_mins(1),
    };
    let dispatcher = Dispatcher::new(
        store.clone(),
        Arc::clone(&queue),
        Down,
        Clock::manual(START),
        settings,
        Rate::Unlimited,
    );
    let (_phase, watched) = watch::channel(Phase::Running);
    let running = tokio::spawn(Arc::clone(&dispatcher).run(watched));
    until(|| dispatcher.metrics().not_sent(ProblemKind::Unavailable) == 60).await;
    until(|| queue.pending().in_flight == 0).await;
    let next = queue.next(OrganisationKind::Production, Instant::now(), 256);
    let Next::At(probe) = next else { panic!("no probe is to come") };
    let wait = probe - Instant::now();
    assert!(wait <= Duration::from_secs(30), "{wait:?}");
    running.abort();
}

/// One message whose call has been answered while the disk is full: its outcome waits. `end`
/// receives the dispatcher's phases, and makes the disk work again.
async fn outcome_that_waits_at_the_end(
    end: impl AsyncFnOnce(&watch::Sender<Phase>, &Store, &dyn Fn()),
) -> State {
    let (store, fail, work) = Store::on_failing_disk(START);
    let acme = acme(&store).await;
    let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 30));
    accept(&store, &queue, &acme, 1).await;
    let gated = Gated { calls: Mutex::default(), gate: Semaphore::new(0) };
    let settings = Settings {
        max_in_flight: 256,
        backoff: Backoff::try_new(Duration::from_secs(1), Duration::from_mins(5)).unwrap(),
        retry_for: Duration::from_hours(12),
        on_unknown: OnUnknown::Retry,
        unknown_wait: Duration::ZERO,
        drain: Duration::from_mins(1),
    };
    let clock = Clock::manual(START);
    let dispatcher = Dispatcher::new(store.clone(), queue, gated, clock, settings, Rate::Unlimited);
    let (phase, watched) = watch::channel(Phase::Running);
    let running = tokio::spawn(Arc::clone(&dispatcher).run(watched));
    until(|| dispatcher.provider().calls() == 1).await;
    fail();
    dispatcher.provider().gate.close();
    until(|| dispatcher.unrecorded.count() > 0).await;
    end(&phase, &store, &work).await;
    running.await.unwrap();
    let listed = store.list(MessageFilter::default(), 10, START).await.unwrap();
    listed.messages[0].state.clone()
}

/// The store takes writes again, and before the outcome is offered to it once more, the drain ends.
#[tokio::test]
async fn the_end_of_the_drain_writes_a_known_outcome_and_nothing_over_it() {
    let state = outcome_that_waits_at_the_end(async |phase, store, work| {
        work();
        store.writable().await;
        phase.send_replace(Phase::Draining { until: Instant::now(), rest: Rest::Lost });
    });
    let state = state.await;
    assert!(matches!(state, State::Sent { .. }), "{state:?}");
}

/// The store takes writes again a moment after the drain.
#[tokio::test]
async fn a_known_outcome_is_written_if_the_store_comes_back_soon_after_the_drain() {
    let state = outcome_that_waits_at_the_end(async |phase, _, work| {
        phase.send_replace(Phase::Draining { until: Instant::now(), rest: Rest::Lost });
        sleep(Duration::from_millis(500)).await;
        work();
    });
    let state = state.await;
    assert!(matches!(state, State::Sent { .. }), "{state:?}");
}

/// Another program goes on: an outcome that is known is written all the same.
#[tokio::test]
async fn a_handover_writes_a_known_outcome() {
    let state = outcome_that_waits_at_the_end(async |phase, store, work| {
        work();
        store.writable().await;
        phase.send_replace(Phase::Handover { until: Instant::now() });
    });
    let state = state.await;
    assert!(matches!(state, State::Sent { .. }), "{state:?}");
}

/// Three messages, of which one has a call under way, when a phase begins in which none may start.
/// `answers`: the call ends in that phase. Gives how many messages the store has as sent, and that the
/// others are as they were.
async fn sent_in_the_end(last: impl FnOnce() -> Phase, answers: bool) -> usize {
    let (store, _fail, _work) = Store::on_failing_disk(START);
    let acme = acme(&store).await;
    let queue = Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 30));
    accept(&store, &queue, &acme, 3).await;
    let gated = Gated { calls: Mutex::default(), gate: Semaphore::new(0) };
    let settings = Settings {
        // One organisation alone may have half of them under way.
        max_in_flight: 2,
        backoff: Backoff::try_new(Duration::from_secs(1), Duration::from_mins(5)).unwrap(),
        retry_for: Duration::from_hours(12),
        on_unknown: OnUnknown::Retry,
        unknown_wait: Duration::ZERO,
        drain: Duration::from_mins(1),
    };
    let clock = Clock::manual(START);
    let same = Arc::clone(&queue);
    let dispatcher = Dispatcher::new(store.clone(), same, gated, clock, settings, Rate::Unlimited);
    let (phase, watched) = watch::channel(Phase::Running);
    let running = tokio::spawn(Arc::clone(&dispatcher).run(watched));
    until(|| dispatcher.provider().calls() == 1).await;
    phase.send_replace(last());
    if answers {
        sleep(Duration::from_millis(100)).await;
        dispatcher.provider().gate.add_permits(1);
    }
    tokio::time::timeout(Duration::from_secs(20), running).await.expect("it ends").unwrap();
    assert_eq!(dispatcher.provider().calls(), 1, "no call started");
    let listed = store.list(MessageFilter::default(), 10, START).await.unwrap().messages;
    let (sent, others): (Vec<_>, Vec<_>) =
        listed.into_iter().partition(|message| matches!(message.state, State::Sent { .. }));
    for message in others {
        assert_eq!(message.status(), Status::Queued, "{message:?}");
    }
    assert_eq!(queue.pending().messages, 3 - sent.len());
    sent.len()
}

#[tokio::test]
async fn a_handover_ends_with_the_calls_under_way_and_starts_none() {
    let until = || Instant::now() + Duration::from_mins(5);
    assert_eq!(sent_in_the_end(|| Phase::Handover { until: until() }, true).await, 1);
}

#[tokio::test]
async fn a_handover_waits_for_no_call_longer_than_it_may_and_loses_no_message() {
    let until = || Instant::now() + Duration::from_millis(50);
    assert_eq!(sent_in_the_end(|| Phase::Handover { until: until() }, false).await, 0);
}

/// Its message would be sent again by the program that goes on with it.
#[tokio::test]
async fn the_end_of_a_drain_cuts_off_no_call_if_the_rest_is_kept() {
    let last = || Phase::Draining { until: Instant::now(), rest: Rest::Kept };
    assert_eq!(sent_in_the_end(last, true).await, 1);
    assert_eq!(sent_in_the_end(last, false).await, 0, "one that hangs has its time and no more");
}
