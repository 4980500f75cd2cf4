use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::time::Duration;

use super::*;
use pillarbox_body_store::{ArenaOwner, BodyStore};
use pillarbox_domain::id::{KeyId, MessageIds};
use pillarbox_domain::mailbox::{Address, DomainName};
use pillarbox_domain::message::{FailureCode, Transition};
use pillarbox_domain::time::Timestamp;
use pillarbox_runtime::shared_limits::Exhausted;

mod next_process;
mod order;
mod readers;
mod terms;

const ACME: OrganisationId = OrganisationId(1);
const BETA: OrganisationId = OrganisationId(2);
/// Id of a test organisation.
const STAGING: OrganisationId = OrganisationId(9);
/// More calls than any of these tests has under way.
const MANY: usize = 1 << 20;

struct Fixture {
    queue: Arc<MessageQueue>,
    ids: MessageIds,
    now: Instant,
    /// Messages that are taken out.
    claims: RefCell<HashMap<MessageId, Claim>>,
}

impl Fixture {
    fn new() -> Self {
        Self {
            queue: Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 22)),
            ids: MessageIds::new(),
            now: Instant::now(),
            claims: RefCell::default(),
        }
    }

    fn add(&self, organisation: OrganisationId, recipients: u32) -> MessageId {
        self.add_from("example.com", organisation, recipients)
    }

    fn add_from(&self, domain: &str, organisation: OrganisationId, recipients: u32) -> MessageId {
        self.add_message(None, domain, organisation, recipients)
    }

    fn add_by(&self, key: Option<KeyId>, domain: &str, organisation: OrganisationId) -> MessageId {
        self.add_message(key, domain, organisation, 1)
    }

    fn add_message(
        &self,
        key: Option<KeyId>,
        domain: &str,
        organisation: OrganisationId,
        recipients: u32,
    ) -> MessageId {
        self.add_request("{}", key, domain, organisation, recipients)
    }

    fn add_request(
        &self,
        request: &str,
        key: Option<KeyId>,
        domain: &str,
        organisation: OrganisationId,
        recipients: u32,
    ) -> MessageId {
        let id = self.ids.next(Timestamp::from_unix_millis(1));
        let domain = name(domain);
        let recipient = Address::parse("bob@example.org").unwrap();
        let recipients = (0..recipients).map(|_| &recipient);
        let held = self.queue.hold(AcceptedMessage {
            id,
            kind: if organisation == STAGING {
                OrganisationKind::Test
            } else {
                OrganisationKind::Production
            },
            key,
            request: EncodedRequest::new(request.to_owned(), &Envelope::new(&domain, recipients)),
            accepted_at: self.now,
            suppression_epoch: 0,
            reservation: self.queue.budget().reserve(organisation, request.len()).unwrap(),
        });
        self.queue.add(held.unwrap());
        id
    }

    fn claim(&self) -> PendingMessage {
        self.claim_at(self.now).unwrap()
    }

    fn claim_at(&self, now: Instant) -> Option<PendingMessage> {
        self.claim_within(now, MANY)
    }

    fn claim_within(&self, now: Instant, max_calls: usize) -> Option<PendingMessage> {
        self.queue.claim(OrganisationKind::Production, now, max_calls).map(|claim| self.hold(claim))
    }

    fn hold(&self, claim: Claim) -> PendingMessage {
        let message = claim.message.clone();
        self.claims.borrow_mut().insert(claim.id(), claim);
        message
    }

    fn take(&self, id: MessageId) -> Claim {
        self.claims.borrow_mut().remove(&id).unwrap()
    }

    /// Claims the next message and makes its call.
    fn send(&self) -> PendingMessage {
        let message = self.claim();
        drop(self.start_call(message.id));
        message
    }

    fn start_call(&self, id: MessageId) -> Call {
        self.claims.borrow_mut().get_mut(&id).unwrap().start_call()
    }

    /// The calls that were started for a message that is taken out.
    fn attempts(&self, id: MessageId) -> u32 {
        self.claims.borrow()[&id].attempts
    }

    fn not_called(&self, id: MessageId) {
        self.claims.borrow_mut().get_mut(&id).unwrap().not_called();
    }

    fn finish(&self, id: MessageId) {
        self.take(id).finish();
    }

    fn put_back(&self, id: MessageId, due: Instant, acceptance: Acceptance) -> Option<Transition> {
        self.owed(self.take(id).put_back(due, acceptance))
    }

    fn put_back_as_new(&self, id: MessageId) -> Option<Transition> {
        self.owed(self.take(id).put_back_as_new())
    }

    fn owed(&self, cancelled: Option<(Claim, Transition)>) -> Option<Transition> {
        let (claim, end) = cancelled?;
        self.hold(claim);
        Some(end)
    }

    fn next(&self, now: Instant) -> Next {
        self.queue.next(OrganisationKind::Production, now, MANY)
    }

    /// The organisations whose calls start now, in order, with at most `max` under way.
    fn start_all(&self, max: usize) -> (Vec<OrganisationId>, Vec<Call>) {
        let (mut organisations, mut calls) = (Vec::new(), Vec::new());
        while let Some(message) = self.claim_within(self.now, max) {
            organisations.push(message.organisation);
            calls.push(self.start_call(message.id));
        }
        (organisations, calls)
    }
}

fn name(domain: &str) -> DomainName<'_> {
    DomainName::parse(domain).unwrap()
}

#[test]
fn test_organisations_have_turns_and_calls_of_their_own() {
    let fixture = Fixture::new();
    // A gate that is set before the first message makes none of it production's.
    fixture.queue.set_gate(STAGING, Gate::OpensAt(fixture.now));
    for organisation in [STAGING, ACME, STAGING, BETA, STAGING] {
        fixture.add(organisation, 1);
    }
    let test = |max| fixture.queue.claim(OrganisationKind::Test, fixture.now, max);
    let mut tests = Vec::new();
    while let Some(mut claim) = test(4) {
        let PendingMessage { organisation, kind, .. } = claim.message;
        assert_eq!((organisation, kind), (STAGING, OrganisationKind::Test));
        let call = claim.start_call();
        tests.push((claim, call));
    }
    assert_eq!(tests.len(), 2, "one alone gets half");
    let next = |kind, max| fixture.queue.next(kind, fixture.now, max);
    assert_eq!(next(OrganisationKind::Test, 4), Next::AfterACall(None));
    assert_eq!(next(OrganisationKind::Test, 8), Next::Now);
    let (organisations, calls) = fixture.start_all(2);
    assert_eq!(organisations, [ACME, BETA], "calls of test organisations take none of the slots");
    assert_eq!(next(OrganisationKind::Production, 8), Next::Never);
    let pending = fixture.queue.pending();
    assert_eq!((pending.messages, pending.test_messages), (5, 3));
    assert_eq!((pending.in_flight, pending.test_in_flight), (4, 2));
    assert_eq!(pending.due_organisations, 0);
    assert_eq!(fixture.queue.calls(OrganisationKind::Test), 2);
    for (claim, call) in tests {
        drop(call);
        claim.finish();
    }
    drop(calls);
    assert_eq!(fixture.queue.calls(OrganisationKind::Test), 0);
    assert_eq!(fixture.queue.pending().test_messages, 1);
}

#[test]
fn an_organisations_calls_are_fewer_than_the_free_slots_when_the_next_one_starts() {
    let fixture = Fixture::new();
    for _ in 0..100 {
        fixture.add(ACME, 1);
    }
    let (_, mut calls) = fixture.start_all(20);
    assert_eq!(calls.len(), 10, "one alone gets half");
    assert_eq!(
        fixture.queue.next(OrganisationKind::Production, fixture.now, 20),
        Next::AfterACall(None)
    );
    // Another one goes on, and gets its part of what is left.
    for _ in 0..100 {
        fixture.add(BETA, 1);
    }
    let (organisations, more) = fixture.start_all(20);
    assert_eq!(organisations, [BETA; 5]);
    calls.truncate(6);
    let (organisations, _more) = fixture.start_all(20);
    assert_eq!(organisations, [ACME, ACME, BETA]);
    drop(more);
}

#[test]
fn who_is_passed_over_keeps_its_place_and_makes_up_for_nothing() {
    let fixture = Fixture::new();
    for _ in 0..20 {
        fixture.add(ACME, 1);
    }
    let (_, calls) = fixture.start_all(4);
    assert_eq!(calls.len(), 2);
    for _ in 0..20 {
        fixture.add(BETA, 1);
    }
    // Its calls come back at once, so it goes on while the other waits for answers.
    for _ in 0..10 {
        let message = fixture.claim_within(fixture.now, 4).unwrap();
        assert_eq!(message.organisation, BETA);
        drop(fixture.start_call(message.id));
    }
    drop(calls);
    let first: Vec<_> = (0..8).map(|_| fixture.send().organisation).collect();
    assert_eq!(first[0], ACME);
    let of_acme = first.iter().filter(|o| **o == ACME).count();
    assert!((4..=5).contains(&of_acme), "{first:?}");
}

#[test]
fn a_paused_domain_waits_alone_and_is_tried_by_one_message() {
    let fixture = Fixture::new();
    let (bad, good) = ("lapsed.example", "example.com");
    let held: Vec<_> = (0..3).map(|_| fixture.add_from(bad, ACME, 1)).collect();
    let first = fixture.claim().id;
    assert_eq!(first, held[0]);
    let until = fixture.now + Duration::from_secs(10);
    fixture.queue.pause_domain(ACME, &name(bad), until);
    fixture.put_back_as_new(first);
    let other = fixture.add_from(good, ACME, 1);
    assert_eq!(fixture.claim().id, other);
    fixture.finish(other);
    assert_eq!(fixture.next(fixture.now), Next::At(until));
    assert!(fixture.queue.is_held(ACME, &name(bad)));

    // The first accepted tries the domain, and until its outcome is known no other goes.
    assert_eq!(fixture.claim_at(until).unwrap().id, first);
    assert_eq!(fixture.next(until), Next::Never);
    // It brought no result for the domain, so the next one tries.
    let due = until + Duration::from_mins(1);
    let retry = due + Duration::from_secs(1);
    fixture.put_back(first, retry, Acceptance::Excluded);
    assert_eq!(fixture.claim_at(until).unwrap().id, held[1]);
    fixture.finish(held[1]);
    assert_eq!(fixture.claim_at(until).unwrap().id, held[2]);
    fixture.queue.pause_domain(ACME, &name(bad), due);
    fixture.put_back_as_new(held[2]);
    assert_eq!(fixture.next(until), Next::At(due));
    assert_eq!(fixture.claim_at(due).unwrap().id, held[2]);
    fixture.queue.resume_domain(ACME, &name(bad));
    fixture.finish(held[2]);
    assert!(!fixture.queue.is_held(ACME, &name(bad)));
    assert_eq!(fixture.claim_at(retry).unwrap().id, first);
}

#[test]
fn behind_a_closed_gate_an_organisations_messages_wait_alone() {
    let fixture = Fixture::new();
    let time = fixture.now + Duration::from_secs(10);
    fixture.queue.set_gate(ACME, Gate::OpensAt(time));
    let held: Vec<_> = (0..2).map(|_| fixture.add(ACME, 1)).collect();
    let other = fixture.add(BETA, 1);
    assert_eq!(fixture.claim().id, other);
    assert_eq!(fixture.next(fixture.now), Next::At(time));
    let forecast = fixture.queue.forecast_drain(time, 10.0, |organisation| organisation == ACME);
    assert_eq!(forecast, DrainForecast { provider: 2, ..DrainForecast::default() });

    assert_eq!(fixture.claim_at(time).unwrap().id, held[0]);
    fixture.queue.set_gate(ACME, Gate::Closed);
    assert_eq!(fixture.next(time), Next::Never);
    fixture.queue.set_gate(ACME, Gate::Open);
    assert_eq!(fixture.claim_at(time).unwrap().id, held[1]);
}

#[test]
fn a_paused_test_organisation_hides_no_message_of_production() {
    let fixture = Fixture::new();
    for organisation in [STAGING, STAGING, STAGING, ACME] {
        fixture.add(organisation, 1);
    }
    fixture.queue.set_paused([STAGING].into());
    let pending = fixture.queue.pending();
    assert_eq!((pending.paused, pending.test_messages, pending.open_messages), (3, 3, 1));
    fixture.queue.set_paused([STAGING, ACME].into());
    let pending = fixture.queue.pending();
    assert_eq!((pending.paused, pending.test_messages, pending.open_messages), (4, 3, 0));
}

#[test]
fn a_paused_organisation_has_no_next_message_and_its_gate_is_not_the_pause() {
    let fixture = Fixture::new();
    let queue = &fixture.queue;
    let time = fixture.now + Duration::from_secs(10);
    let held: Vec<_> = (0..2).map(|_| fixture.add(ACME, 1)).collect();
    let other = fixture.add(BETA, 1);
    queue.set_paused([ACME].into());
    assert_eq!(fixture.claim().id, other);
    assert_eq!(fixture.next(fixture.now), Next::Never);
    queue.set_gate(ACME, Gate::Open);
    fixture.add(ACME, 1);
    assert_eq!(fixture.next(fixture.now), Next::Never);
    queue.bring_forward(time);
    assert_eq!(fixture.next(time), Next::Never);
    assert_eq!(queue.backlog(ACME), Backlog { waiting: 3, calls_under_way: 0 });
    assert_eq!((queue.pending().paused, queue.pending().due_organisations), (3, 0));
    let forecast = queue.forecast_drain(time, 10.0, |organisation| organisation == ACME);
    assert_eq!(forecast, DrainForecast { paused: 3, ..DrainForecast::default() });
    let oldest = queue.oldest_of([ACME, BETA].into());
    assert_eq!(oldest.keys().copied().collect::<Vec<_>>(), [ACME, BETA]);

    queue.set_gate(ACME, Gate::OpensAt(time));
    queue.set_paused([BETA].into());
    assert_eq!(fixture.next(fixture.now), Next::At(time));
    assert_eq!(fixture.claim_at(time).unwrap().id, held[0]);
    assert_eq!(queue.pending().paused, 0);
    // Their time goes on.
    queue.set_paused([ACME].into());
    assert_eq!(queue.claim_older_than(time, 10).len(), 2);
}

#[test]
fn a_gate_stays_closed_while_nothing_waits_behind_it() {
    let fixture = Fixture::new();
    fixture.queue.finish(fixture.add(ACME, 1));
    fixture.queue.set_gate(ACME, Gate::Closed);
    fixture.add(BETA, 1);
    fixture.send();
    let held = fixture.add(ACME, 1);
    assert_eq!(fixture.next(fixture.now), Next::Never);
    fixture.queue.set_gate(ACME, Gate::Open);
    assert_eq!(fixture.claim().id, held);
}

#[test]
fn a_domain_that_works_again_goes_on_in_the_order_of_acceptance_behind_what_was_due() {
    let fixture = Fixture::new();
    let bad = "lapsed.example";
    let held: Vec<_> = (0..4).map(|_| fixture.add_from(bad, ACME, 1)).collect();
    for id in &held[..2] {
        assert_eq!(fixture.claim().id, *id);
    }
    fixture.queue.pause_domain(ACME, &name(bad), fixture.now);
    // Refused one after the other, and put back in another order.
    fixture.put_back_as_new(held[1]);
    fixture.put_back_as_new(held[0]);
    let others: Vec<_> = (0..2).map(|_| fixture.add(ACME, 1)).collect();
    let probe = fixture.claim_at(fixture.now).unwrap().id;
    let later = fixture.now + Duration::from_secs(1);
    fixture.queue.resume_domain(ACME, &name(bad));
    fixture.finish(probe);
    let order: Vec<_> =
        std::iter::from_fn(|| fixture.claim_at(later)).map(|message| message.id).collect();
    let mut expected = others;
    expected.extend(held);
    expected.retain(|id| *id != probe);
    assert_eq!(order, expected);
}

#[test]
fn a_call_that_never_started_is_not_counted() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.claim();
    drop(fixture.start_call(id));
    assert_eq!(fixture.attempts(id), 1);
    fixture.not_called(id);
    assert_eq!(fixture.attempts(id), 0);
    assert_eq!(fixture.queue.live(id), Some(Live::Waiting { obstacle: None }));
    fixture.put_back(id, fixture.now, Acceptance::Excluded);
    assert_eq!(fixture.queue.remaining(), [(id, 0, Acceptance::Excluded)]);
}

#[test]
fn a_newcomer_does_not_wait_for_anothers_backlog() {
    let fixture = Fixture::new();
    for _ in 0..1_000 {
        fixture.add(ACME, 1);
    }
    for _ in 0..500 {
        fixture.send();
    }
    let late = fixture.add(BETA, 1);
    let place = (0..500).find(|_| fixture.send().id == late).unwrap();
    assert!(place <= 1, "{place} of the backlog went first");
}

#[test]
fn turns_are_shared_by_recipients() {
    let fixture = Fixture::new();
    for _ in 0..100 {
        fixture.add(ACME, 10);
        fixture.add(BETA, 1);
    }
    let mut served = HashMap::new();
    for _ in 0..55 {
        let message = fixture.send();
        *served.entry(message.organisation).or_insert(0) += message.recipients;
    }
    assert_eq!(served[&ACME], 50);
    assert_eq!(served[&BETA], 50);
}

#[test]
fn an_idle_time_earns_no_claim_to_more_than_the_share() {
    let fixture = Fixture::new();
    for _ in 0..100 {
        fixture.add(ACME, 1);
        fixture.send();
    }
    for _ in 0..10 {
        fixture.add(ACME, 1);
        fixture.add(BETA, 1);
    }
    let first: Vec<_> = (0..10).map(|_| fixture.send().organisation).collect();
    assert_eq!(first.iter().filter(|o| **o == BETA).count(), 5, "{first:?}");
}

#[test]
fn a_retry_waits_until_it_is_due() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.claim();
    let due = fixture.now + Duration::from_secs(5);
    fixture.put_back(id, due, Acceptance::Possible);
    assert_eq!(fixture.next(fixture.now), Next::At(due));
    assert!(fixture.claim_at(due - Duration::from_millis(1)).is_none());
    assert_eq!(fixture.queue.remaining(), [(id, 0, Acceptance::Possible)]);
    fixture.queue.bring_forward(fixture.now);
    assert!(fixture.claim_at(fixture.now).is_none(), "an event may yet prove its acceptance");
    assert_eq!(fixture.claim_at(due).unwrap().id, id);
    fixture.finish(id);
    assert_eq!(fixture.next(due), Next::Never);
}

#[test]
fn a_retry_that_was_refused_can_be_brought_forward() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.claim();
    let due = fixture.now + Duration::from_secs(5);
    fixture.put_back(id, due, Acceptance::Excluded);
    fixture.queue.bring_forward(fixture.now);
    assert_eq!(fixture.claim().id, id);
}

#[test]
fn proof_cancels_a_waiting_retry_and_keeps_a_call_from_being_repeated() {
    let fixture = Fixture::new();
    let (waiting, flying) = (fixture.add(ACME, 1), fixture.add(ACME, 1));
    fixture.queue.proved_sent(waiting);
    assert_eq!(fixture.claim().id, flying);
    fixture.queue.proved_sent(flying);
    fixture.put_back(flying, fixture.now, Acceptance::Possible);
    assert!(fixture.claim_at(fixture.now).is_none());
    let pending = fixture.queue.pending();
    assert_eq!(pending, Pending::default());
}

#[test]
fn a_message_that_was_not_tried_waits_until_it_is_due_unless_it_was_cancelled() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.claim();
    let due = fixture.now + Duration::from_secs(5);
    assert!(fixture.take(id).put_back_untried(due).is_none());
    assert_eq!(fixture.next(fixture.now), Next::At(due));
    assert_eq!(fixture.claim_at(due).unwrap().id, id);
    cancel(&fixture, &Selection::of(ACME));
    let (claim, end) = fixture.take(id).put_back_untried(due).unwrap();
    assert_eq!(claim.id(), id);
    assert!(
        matches!(end, Transition::Failed { failure, .. } if failure.code == FailureCode::Cancelled)
    );
}

fn cancel(fixture: &Fixture, selection: &Selection) -> (Vec<MessageId>, usize, usize) {
    let (mut ids, mut calls, mut others) = (Vec::new(), 0, 0);
    let mut after = None;
    loop {
        let Selected { taken, calls_under_way, not_pending, next } =
            fixture.queue.cancel(selection, after, Cancellation::ByOperator);
        ids.extend(taken.into_iter().map(|claim| fixture.hold(claim).id));
        (calls, others) = (calls + calls_under_way, others + not_pending);
        if next.is_none() {
            return (ids, calls, others);
        }
        after = next;
    }
}

#[test]
fn what_waits_is_cancelled_at_once_by_organisation_key_domain_or_id() {
    let fixture = Fixture::new();
    let (one, two) = (Some(KeyId(1)), Some(KeyId(2)));
    let first = fixture.add_by(one, "example.com", ACME);
    let second = fixture.add_by(two, "example.com", ACME);
    let third = fixture.add_by(two, "other.example", ACME);
    let others = fixture.add_by(one, "example.com", BETA);
    let domain = |text| Some(name(text));
    let of =
        |key, sender_domain| Selection::Organisation { organisation: ACME, key, sender_domain };
    let nothing = (Vec::new(), 0, 0);
    assert_eq!(cancel(&fixture, &of(one, domain("other.example"))), nothing);
    assert_eq!(cancel(&fixture, &of(two, domain("other.example"))), (vec![third], 0, 0));
    assert_eq!(cancel(&fixture, &of(two, None)).0, [second]);
    let unknown = fixture.ids.next(Timestamp::from_unix_millis(1));
    let named = Selection::Ids([first, unknown].into());
    assert_eq!(cancel(&fixture, &named), (vec![first], 0, 1));
    // They are claimed: the holder of the claim ends them.
    assert_eq!(cancel(&fixture, &of(None, None)), (Vec::new(), 0, 3));
    assert_eq!(fixture.claim().id, others);
    assert_eq!(fixture.next(fixture.now), Next::Never);
}

#[test]
fn a_large_queue_is_cancelled_in_steps_and_what_comes_later_is_not_forgotten() {
    let fixture = Fixture {
        queue: Arc::new(MessageQueue::new(BodyStore::of_this_process().unwrap(), 1 << 30)),
        ..Fixture::new()
    };
    let ids: Vec<_> =
        (0..1_700).map(|n| fixture.add(if n % 7 == 0 { BETA } else { ACME }, 1)).collect();
    let first = fixture.queue.cancel(&Selection::of(ACME), None, Cancellation::ByOperator);
    assert!(first.taken.len() <= 500 && first.next == Some(ids[499]), "{first:?}");
    let (rest, calls, ending) = cancel(&fixture, &Selection::of(ACME));
    assert_eq!((first.taken.len() + rest.len(), calls), (ids.len() - ids.len().div_ceil(7), 0));
    assert_eq!(ending, first.taken.len());
    assert_eq!(fixture.queue.pending().in_flight, first.taken.len() + rest.len());
}

#[test]
fn a_cancelled_call_does_not_wait_again_and_keeps_its_doubt() {
    for (acceptance, words) in [
        (Acceptance::Excluded, "the operator cancelled the message; the message was not sent"),
        (Acceptance::Possible, "it is unknown whether the message was accepted"),
    ] {
        let fixture = Fixture::new();
        let id = fixture.add(ACME, 1);
        fixture.send();
        assert_eq!(cancel(&fixture, &Selection::of(ACME)), (Vec::new(), 1, 0));
        let end = fixture.put_back(id, fixture.now, acceptance).unwrap();
        let Transition::Failed { failure, acceptance: kept } = end else { panic!("{end:?}") };
        assert_eq!((failure.code, kept), (FailureCode::Cancelled, acceptance));
        assert!(failure.message.ends_with(words), "{}", failure.message);
        assert!(fixture.claim_at(fixture.now).is_none());
        assert_eq!(fixture.queue.pending().in_flight, 1, "its end is not recorded yet");
        fixture.finish(id);
        assert_eq!(fixture.queue.pending(), Pending::default());
    }
}

#[test]
fn a_proof_wins_over_a_cancellation() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.send();
    cancel(&fixture, &Selection::of(ACME));
    fixture.queue.proved_sent(id);
    assert_eq!(fixture.put_back(id, fixture.now, Acceptance::Possible), None);
    assert_eq!(fixture.queue.pending().messages, 0);
}

#[test]
fn a_call_that_never_started_is_cancelled_before_it_waits_again() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.send();
    fixture.not_called(id);
    assert_eq!(cancel(&fixture, &Selection::of(ACME)), (Vec::new(), 1, 0));
    assert!(fixture.put_back_as_new(id).is_some());
    assert!(fixture.claim_at(fixture.now).is_none());
}

#[test]
fn the_messages_of_a_paused_domain_are_cancelled_too() {
    let fixture = Fixture::new();
    let (trying, waiting) = (fixture.add(ACME, 1), fixture.add(ACME, 1));
    fixture.queue.pause_domain(ACME, &name("example.com"), fixture.now);
    fixture.send();
    assert_eq!(cancel(&fixture, &Selection::of(ACME)), (vec![waiting], 1, 0));
    let end = fixture.put_back(trying, fixture.now, Acceptance::Excluded);
    assert!(end.is_some());
    for id in [trying, waiting] {
        fixture.finish(id);
    }
    assert!(!fixture.queue.is_held(ACME, &name("example.com")));
    assert_eq!(fixture.queue.pending(), Pending::default());
}

#[test]
fn a_claim_that_is_dropped_has_its_message_wait_again_with_all_that_is_open() {
    let fixture = Fixture::new();
    let (untried, called, unsent) =
        (fixture.add(ACME, 1), fixture.add(ACME, 1), fixture.add(ACME, 1));
    for id in [untried, called, unsent] {
        assert_eq!(fixture.claim().id, id);
    }
    drop((fixture.start_call(called), fixture.start_call(unsent)));
    fixture.not_called(unsent);
    for id in [untried, called, unsent] {
        drop(fixture.take(id));
    }
    assert_eq!(fixture.queue.pending().in_flight, 0);
    let due = match fixture.next(fixture.now) {
        Next::At(due) => due,
        other => panic!("what ended its holder must not end one after the other: {other:?}"),
    };
    assert!(due <= Instant::now() + Duration::from_secs(1));
    let later = Instant::now() + Duration::from_secs(1);
    for (id, attempts, interruption) in [
        (untried, 0, Interruption::BeforeCall),
        (called, 1, Interruption::DuringCall),
        (unsent, 0, Interruption::BeforeCall),
    ] {
        let claim = fixture.queue.claim(OrganisationKind::Production, later, MANY).unwrap();
        assert_eq!((claim.id(), claim.attempts, claim.interruption), (id, attempts, interruption));
        assert_eq!(claim.acceptance, Acceptance::Possible);
        claim.finish();
    }
    assert_eq!(fixture.queue.pending().messages, 0);
}

#[test]
fn a_claim_that_is_dropped_after_a_proof_leaves_nothing() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.send();
    fixture.queue.proved_sent(id);
    drop(fixture.take(id));
    assert_eq!(fixture.queue.pending(), Pending::default());
}

#[test]
fn a_cancellation_outlives_the_claim_that_was_to_heed_it() {
    let later = Instant::now() + Duration::from_mins(1);
    for is_called in [false, true] {
        let fixture = Fixture::new();
        let id = fixture.add(ACME, 1);
        fixture.claim();
        let call = is_called.then(|| fixture.start_call(id));
        let (taken, calls, others) = cancel(&fixture, &Selection::of(ACME));
        assert_eq!((taken.len(), calls, others), (0, call.iter().count(), usize::from(!is_called)));
        drop(fixture.take(id));
        let claim = fixture.queue.claim(OrganisationKind::Production, later, MANY).unwrap();
        assert_eq!(claim.cancellation, Some(Cancellation::ByOperator));
    }
}

#[test]
fn a_claim_that_is_dropped_while_it_tries_a_domain_lets_the_next_one_try() {
    let fixture = Fixture::new();
    let ids = [fixture.add(ACME, 1), fixture.add(ACME, 1)];
    fixture.queue.pause_domain(ACME, &name("example.com"), fixture.now);
    assert_eq!(fixture.claim().id, ids[0]);
    assert_eq!(fixture.next(fixture.now), Next::Never);
    drop(fixture.take(ids[0]));
    assert_eq!(fixture.claim().id, ids[1]);
}

#[test]
fn a_message_that_ends_without_a_call_takes_its_organisations_turn() {
    let fixture = Fixture::new();
    for _ in 0..1_000 {
        fixture.add(ACME, 1);
    }
    for _ in 0..500 {
        fixture.finish(fixture.claim().id);
    }
    // One whose number is higher, so that it comes later among equals.
    let late = fixture.add(BETA, 1);
    let ended = (0..500).find(|_| {
        let message = fixture.claim();
        fixture.finish(message.id);
        message.id == late
    });
    assert!(ended.unwrap() <= 1, "{ended:?} of the backlog ended first");
}

#[test]
fn the_live_state_follows_the_call() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    assert_eq!(fixture.queue.live(id), Some(Live::Waiting { obstacle: None }));
    fixture.claim();
    let _call = fixture.start_call(id);
    assert_eq!(fixture.attempts(id), 1);
    assert_eq!(fixture.queue.live(id), Some(Live::Sending { attempts: 1 }));
    fixture.finish(id);
    assert_eq!(fixture.queue.live(id), None);
}

#[test]
fn the_budget_is_never_exceeded_and_is_released_with_the_message() {
    // Each has a charge of 400 bytes besides its own.
    let queue = MessageQueue::new(BodyStore::of_this_process().unwrap(), 1_400);
    let first = queue.budget().reserve(ACME, 500).unwrap();
    assert!(queue.budget().reserve(BETA, 101).is_err());
    assert!(queue.budget().reserve(BETA, 100).is_ok());
    assert!(queue.budget().reserve(BETA, usize::MAX - 400).is_err());
    drop(first);
    assert_eq!(queue.budget().in_use(), 0);
}

#[test]
fn one_organisations_messages_leave_room_for_anothers() {
    let queue = MessageQueue::new(BodyStore::of_this_process().unwrap(), 100_000);
    let mut backlog = Vec::new();
    let refused = loop {
        match queue.budget().reserve(ACME, 200) {
            Ok(reservation) => backlog.push(reservation),
            Err(refused) => break refused,
        }
    };
    assert_eq!((backlog.len(), refused.exhausted), (84, Exhausted::Share));
    let others = queue.budget().reserve(BETA, 40_000).unwrap();
    let refused = queue.budget().reserve(BETA, 20_000).unwrap_err();
    assert_eq!(refused.exhausted, Exhausted::Whole);
    // At least a second, and no more than a client can be asked to wait for.
    assert_eq!(refused.retry_after, Duration::from_mins(1));
    drop((backlog, others));
    assert_eq!(queue.budget().in_use(), 0);
}

/// Takes over the bodies of a queue as the next process does; returns its queue and what is left.
fn next_process(queue: &MessageQueue) -> (Arc<MessageQueue>, Vec<Survivor>) {
    let owner = ArenaOwner { boot: [0; 16], store: [0; 16] };
    let memory = queue.bodies().as_fd().try_clone_to_owned().unwrap();
    let (bodies, survivors) = BodyStore::take_over(memory, owner).unwrap();
    (Arc::new(MessageQueue::new(bodies, 1 << 22)), survivors)
}
