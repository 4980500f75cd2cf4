//! What readers see of the pending messages, and what wakes those that wait for a change.

use tokio::time::timeout;

use super::*;
use pillarbox_domain::attempt::RequestBody;

const SOON: Duration = Duration::from_millis(1);

async fn is_told(wait: impl Future<Output = ()>) -> bool {
    timeout(SOON, wait).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_sender_is_woken_by_what_may_start_a_call() {
    let fixture = Fixture::new();
    let queue = Arc::clone(&fixture.queue);
    let changed = || is_told(queue.changed());
    assert!(!changed().await);
    let first = fixture.add(ACME, 1);
    assert!(changed().await);
    let second = fixture.add(ACME, 1);
    assert!(!changed().await, "it waits behind the first");
    queue.set_gate(ACME, Gate::Open);
    assert!(changed().await);
    queue.set_paused(HashSet::new());
    assert!(changed().await);
    queue.pause_domain(ACME, &name("example.org"), fixture.now);
    assert!(changed().await);
    queue.resume_domain(ACME, &name("example.org"));
    assert!(changed().await);
    queue.bring_forward(fixture.now);
    assert!(changed().await);
    assert_eq!(fixture.claim().id, first);
    let call = fixture.start_call(first);
    assert_eq!(queue.calls(OrganisationKind::Production), 1);
    assert!(!is_told(queue.call_ended()).await);
    drop(call);
    assert!(is_told(queue.call_ended()).await);
    assert_eq!(queue.calls(OrganisationKind::Production), 0);
    fixture.put_back(first, fixture.now, Acceptance::Excluded);
    assert!(changed().await);
    let claimed = fixture.claim().id;
    drop(fixture.take(claimed));
    assert!(changed().await, "of a claim that is dropped");
    queue.proved_sent(second);
    assert!(changed().await);
    queue.finish(first);
    assert!(changed().await);
    assert_eq!(queue.pending(), Pending::default());
}

#[test]
fn a_pending_message_is_known_with_its_age() {
    let fixture = Fixture::new();
    let queue = &fixture.queue;
    assert_eq!((queue.oldest(), queue.is_waiting(ACME)), (None, false));
    let (first, second) = (fixture.add(ACME, 1), fixture.add(BETA, 1));
    assert_eq!(queue.oldest(), Some(first));
    assert!(queue.is_waiting(ACME) && queue.is_waiting(BETA));
    let later = fixture.now + Duration::from_nanos(1);
    assert!(queue.is_pending_since_before(first, later));
    assert!(!queue.is_pending_since_before(first, fixture.now));
    assert_eq!(fixture.claim().id, first);
    let call = fixture.start_call(first);
    assert!(queue.is_waiting(ACME), "its call is under way");
    assert!(queue.is_pending_since_before(first, later));
    drop(call);
    fixture.finish(first);
    assert!(!queue.is_waiting(ACME));
    assert!(!queue.is_pending_since_before(first, later));
    assert_eq!(queue.oldest(), Some(second));
    let obstacle = Some(Failure::new(FailureCode::SendingPaused, "all wait"));
    queue.set_obstacle(obstacle.clone());
    assert_eq!(queue.live(second), Some(Live::Waiting { obstacle }));
    assert_eq!(queue.live(first), None);
}

#[test]
fn the_body_is_read_in_parts() {
    let fixture = Fixture::new();
    fixture.add(ACME, 1);
    let body = fixture.claim().request().unwrap();
    assert_eq!(body.len_bytes(), 2);
    assert_eq!(body.whole().as_deref(), Some(&b"{}"[..]));
    assert_eq!(body.part(1, 1).as_deref(), Some(&b"}"[..]));
    assert!(matches!(body, RequestBody::Whole(_)));
    // A large one stays where it is.
    let longest = "x".repeat(256 * 1024);
    fixture.add_request(&longest, None, "example.com", ACME, 1);
    assert!(matches!(fixture.claim().request().unwrap(), RequestBody::Whole(_)));
    let large = longest + "x";
    fixture.add_request(&large, None, "example.com", ACME, 1);
    let body = fixture.claim().request().unwrap();
    assert!(matches!(body, RequestBody::Parts(_)));
    assert_eq!(body.whole().as_deref(), Some(large.as_bytes()));
}

#[test]
fn the_request_and_the_envelope_count_together() {
    let domain = name("example.com");
    let recipient = Address::parse("bob@example.org").unwrap();
    let envelope = Envelope::new(&domain, [&recipient]);
    let request = EncodedRequest::new("{}".to_owned(), &envelope);
    assert_eq!(request.len_bytes(), 2 + envelope.as_str().len());
}

#[test]
fn a_drain_leaves_what_is_due_too_late_or_finds_no_rate() {
    let fixture = Fixture::new();
    let queue = &fixture.queue;
    let end = fixture.now + Duration::from_secs(10);
    for (due, acceptance) in [
        (end, Acceptance::Possible),
        (end + Duration::from_secs(1), Acceptance::Possible),
        (end - Duration::from_nanos(1), Acceptance::Possible),
        (end, Acceptance::Excluded),
    ] {
        let id = fixture.add(ACME, 1);
        assert_eq!(fixture.send().id, id);
        assert_eq!(fixture.put_back(id, due, acceptance), None);
    }
    fixture.add(BETA, 3);
    fixture.add(STAGING, 9);
    let forecast = |recipients| queue.forecast_drain(end, recipients, |_| false);
    let late = DrainForecast { retry: 2, ..DrainForecast::default() };
    assert_eq!(forecast(5.0), late);
    assert_eq!(forecast(4.9), DrainForecast { pace: 1, ..late });
    assert_eq!(forecast(0.0), DrainForecast { pace: 3, ..late });
    assert_eq!(forecast(0.0).messages(), 5);
    fixture.add_from("example.net", ACME, 1);
    queue.pause_domain(ACME, &name("example.net"), end);
    assert_eq!(forecast(5.0), DrainForecast { domain: 1, ..late });
    let all = DrainForecast { provider: 1, domain: 2, retry: 3, paused: 4, pace: 5 };
    assert_eq!(all.messages(), 15);
}

#[test]
fn the_oldest_message_is_found_behind_many_of_others() {
    let fixture = Fixture {
        queue: Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 30)),
        ..Fixture::new()
    };
    for _ in 0..1_100 {
        fixture.add(ACME, 1);
    }
    fixture.add(BETA, 1);
    let organisations: Vec<_> =
        fixture.queue.oldest_of([ACME, BETA, STAGING].into()).into_keys().collect();
    assert_eq!(organisations, [ACME, BETA]);
    assert_eq!(fixture.queue.count(&Selection::of(ACME)), 1_100);
}

#[test]
fn a_test_message_that_ends_at_a_start_is_counted_as_one() {
    let fixture = Fixture::new();
    fixture.add(STAGING, 1);
    let claim = fixture.queue.claim(OrganisationKind::Test, fixture.now, MANY).unwrap();
    claim.was_sent("1", Timestamp::from_unix_millis(1));
    let (next, mut survivors) = next_process(&fixture.queue);
    let taken_up = next.take_up(survivors.pop().unwrap(), OrganisationKind::Test).unwrap();
    let pending = next.pending();
    assert_eq!((pending.messages, pending.test_messages, pending.test_in_flight), (1, 1, 1));
    let TakenUp::Ends(ended, Transition::Sent { ses_message_id, .. }) = taken_up else {
        panic!("{taken_up:?}");
    };
    assert_eq!(ses_message_id, "1");
    ended.finish();
    assert_eq!(next.pending(), Pending::default());
}
