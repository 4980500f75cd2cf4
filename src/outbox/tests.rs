use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::domain::id::MessageIds;
use crate::domain::mailbox::{Address, DomainName};
use crate::domain::time::Timestamp;
use crate::share::Exhausted;

const ACME: OrganisationId = OrganisationId(1);
const BETA: OrganisationId = OrganisationId(2);

struct Fixture {
    outbox: Outbox,
    ids: MessageIds,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self { outbox: Outbox::new(1 << 22), ids: MessageIds::new(), now: Instant::now() }
    }

    fn add(&self, organisation: OrganisationId, recipients: u32) -> MessageId {
        let id = self.ids.next(Timestamp::from_unix_millis(1));
        let domain = DomainName::parse("example.com").unwrap();
        let recipient = Address::parse("bob@example.org").unwrap();
        let recipients = (0..recipients).map(|_| &recipient);
        self.outbox.add(Parcel {
            id,
            organisation,
            envelope: Envelope::new(&domain, recipients),
            request: Bytes::from_static(b"{}"),
            accepted_at: self.now,
            suppression_epoch: 0,
            reservation: self.outbox.budget().reserve(organisation, 2).unwrap(),
        });
        id
    }

    fn claim(&self) -> Claim {
        self.outbox.claim(self.now).unwrap()
    }

    /// Claims the next message and starts its call.
    fn send(&self) -> Claim {
        let claim = self.claim();
        self.outbox.started(claim.parcel.id);
        claim
    }
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
    let place = (0..500).find(|_| fixture.send().parcel.id == late).unwrap();
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
        let claim = fixture.send();
        *served.entry(claim.parcel.organisation).or_insert(0) +=
            claim.parcel.envelope.recipient_count();
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
    let first: Vec<_> = (0..10).map(|_| fixture.send().parcel.organisation).collect();
    assert_eq!(first.iter().filter(|o| **o == BETA).count(), 5, "{first:?}");
}

#[test]
fn within_an_organisation_the_first_due_goes_first_and_new_before_retries() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.add(ACME, 1), fixture.add(ACME, 1));
    assert_eq!(fixture.claim().parcel.id, first);
    fixture.outbox.put_back(first, fixture.now, Acceptance::Excluded);
    assert_eq!(fixture.claim().parcel.id, second);
    assert_eq!(fixture.claim().parcel.id, first);
}

#[test]
fn a_retry_waits_until_it_is_due() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.claim();
    let due = fixture.now + Duration::from_secs(5);
    fixture.outbox.put_back(id, due, Acceptance::Possible);
    assert_eq!(fixture.outbox.next(fixture.now), Next::At(due));
    assert!(fixture.outbox.claim(due - Duration::from_millis(1)).is_none());
    assert_eq!(fixture.outbox.remaining(), [(id, 0, Acceptance::Possible)]);
    fixture.outbox.bring_forward(fixture.now);
    assert!(fixture.outbox.claim(fixture.now).is_none(), "an event may yet prove its acceptance");
    assert_eq!(fixture.outbox.claim(due).unwrap().parcel.id, id);
    fixture.outbox.settle(id);
    assert_eq!(fixture.outbox.next(due), Next::Never);
}

#[test]
fn a_retry_that_was_refused_can_be_brought_forward() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    fixture.claim();
    let due = fixture.now + Duration::from_secs(5);
    fixture.outbox.put_back(id, due, Acceptance::Excluded);
    fixture.outbox.bring_forward(fixture.now);
    assert_eq!(fixture.claim().parcel.id, id);
}

#[test]
fn proof_cancels_a_waiting_retry_and_keeps_a_call_from_being_repeated() {
    let fixture = Fixture::new();
    let (waiting, flying) = (fixture.add(ACME, 1), fixture.add(ACME, 1));
    fixture.outbox.proved_sent(waiting);
    assert_eq!(fixture.claim().parcel.id, flying);
    fixture.outbox.proved_sent(flying);
    fixture.outbox.put_back(flying, fixture.now, Acceptance::Possible);
    assert!(fixture.outbox.claim(fixture.now).is_none());
    let pending = fixture.outbox.pending();
    assert_eq!(pending, Pending { messages: 0, in_flight: 0, bytes: 0 });
}

#[test]
fn the_live_state_follows_the_call() {
    let fixture = Fixture::new();
    let id = fixture.add(ACME, 1);
    assert_eq!(fixture.outbox.live(id), Some(Live::Waiting { obstacle: None }));
    fixture.claim();
    assert_eq!(fixture.outbox.started(id), 1);
    assert_eq!(fixture.outbox.live(id), Some(Live::Sending { attempts: 1 }));
    fixture.outbox.settle(id);
    assert_eq!(fixture.outbox.live(id), None);
}

#[test]
fn the_budget_is_never_exceeded_and_is_released_with_the_message() {
    // Each has a charge of 800 bytes besides its own.
    let outbox = Outbox::new(2_200);
    let first = outbox.budget().reserve(ACME, 500).unwrap();
    assert!(outbox.budget().reserve(BETA, 101).is_err());
    assert!(outbox.budget().reserve(BETA, 100).is_ok());
    assert!(outbox.budget().reserve(BETA, usize::MAX - 400).is_err());
    drop(first);
    assert_eq!(outbox.budget().in_use(), 0);
}

#[test]
fn one_organisations_messages_leave_room_for_anothers() {
    let outbox = Outbox::new(100_000);
    let mut backlog = Vec::new();
    let refused = loop {
        match outbox.budget().reserve(ACME, 200) {
            Ok(reservation) => backlog.push(reservation),
            Err(refused) => break refused,
        }
    };
    assert_eq!((backlog.len(), refused.exhausted), (50, Exhausted::Share));
    let others = outbox.budget().reserve(BETA, 40_000).unwrap();
    let refused = outbox.budget().reserve(BETA, 20_000).unwrap_err();
    assert_eq!(refused.exhausted, Exhausted::Whole);
    // At least a second, and no more than a client can be asked to wait for.
    assert_eq!(refused.retry_after, Duration::from_mins(1));
    drop((backlog, others));
    assert_eq!(outbox.budget().in_use(), 0);
}
