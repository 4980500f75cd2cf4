//! Priorities and ends of messages in the queue.

use super::*;
use pillarbox_body_store::suspension;
use pillarbox_domain::message_terms::Priority::{High, Normal};
use pillarbox_domain::message_terms::{MAX_EXPIRES_IN, MIN_EXPIRES_IN, Priority};

impl Fixture {
    fn add_as(&self, organisation: OrganisationId, priority: Priority) -> MessageId {
        self.add_with("example.com", organisation, priority, None)
    }

    fn add_with(
        &self,
        domain: &str,
        organisation: OrganisationId,
        priority: Priority,
        expires_in: Option<Duration>,
    ) -> MessageId {
        let id = self.ids.next(Timestamp::from_unix_millis(1));
        let recipient = Address::parse("bob@example.org").unwrap();
        let envelope = Envelope::new(&name(domain), [&recipient]);
        let envelope = envelope.with_terms(priority, expires_in);
        let held = self.queue.hold(AcceptedMessage {
            id,
            kind: OrganisationKind::Production,
            key: None,
            request: EncodedRequest::new("{}".to_owned(), &envelope),
            accepted_at: self.now,
            suppression_epoch: 0,
            reservation: self.queue.budget().reserve_always(organisation, 2),
        });
        self.queue.add(held.unwrap());
        id
    }

    /// Claims and makes so many calls, and returns their priorities.
    fn send_many(&self, calls: usize) -> Vec<Priority> {
        (0..calls).map(|_| self.finished().priority).collect()
    }

    /// Makes the next call, after which the message is no more.
    fn finished(&self) -> PendingMessage {
        let message = self.send();
        self.finish(message.id);
        message
    }

    fn expired(&self, now: Instant) -> Vec<MessageId> {
        let claims = self.queue.claim_expired(now, usize::MAX);
        claims.into_iter().map(|claim| self.hold(claim).id).collect()
    }
}

fn count(sent: &[Priority], priority: Priority) -> usize {
    sent.iter().filter(|one| **one == priority).count()
}

#[test]
fn a_high_message_starts_within_two_calls_however_many_normal_ones_wait() {
    let fixture = Fixture::new();
    for _ in 0..10_000 {
        fixture.add_as(ACME, Normal);
    }
    // At each of the ten places.
    for _ in 0..30 {
        let high = fixture.add_as(ACME, High);
        let sent = [fixture.finished().id, fixture.finished().id];
        assert!(sent.contains(&high));
        fixture.finished();
    }
}

#[test]
fn normal_messages_keep_one_of_ten_calls_and_others_places_are_not_saved_up() {
    let fixture = Fixture::new();
    for _ in 0..200 {
        fixture.add_as(ACME, Normal);
    }
    let alone = fixture.send_many(95);
    assert_eq!(count(&alone, High), 0, "one priority alone gets all");
    for _ in 0..200 {
        fixture.add_as(ACME, High);
    }
    let sent = fixture.send_many(100);
    for ten in sent.windows(10) {
        assert_eq!((count(ten, High), count(ten, Normal)), (9, 1), "{ten:?}");
    }
    let rest = fixture.send_many(205);
    assert_eq!(count(&rest, High), 110);
    assert_eq!(count(&rest[..110], High), 100 - 1, "{rest:?}");
}

#[test]
fn what_cannot_go_now_is_not_waited_for() {
    let fixture = Fixture::new();
    let later = fixture.now + Duration::from_secs(5);
    let backs_off = fixture.add_as(ACME, High);
    assert_eq!(fixture.send().id, backs_off);
    fixture.put_back(backs_off, later, Acceptance::Excluded);
    fixture.queue.pause_domain(ACME, &name("paused.example"), later);
    let held = fixture.add_with("paused.example", ACME, High, None);
    let normal: Vec<_> = (0..20).map(|_| fixture.add_as(ACME, Normal)).collect();
    for id in normal {
        assert_eq!(fixture.finished().id, id);
    }
    assert!(fixture.claim_at(fixture.now).is_none());
    let now = later + Duration::from_secs(1);
    let mut sent = [fixture.claim_at(now), fixture.claim_at(now)].map(|one| one.unwrap().id);
    sent.sort_unstable();
    assert_eq!(sent, [backs_off, held]);
}

#[test]
fn a_paused_domain_is_tried_by_one_message_of_both_priorities() {
    let fixture = Fixture::new();
    let until = fixture.now + Duration::from_secs(5);
    fixture.queue.pause_domain(ACME, &name("example.com"), until);
    let normal = fixture.add_as(ACME, Normal);
    let high = fixture.add_as(ACME, High);
    assert!(fixture.claim_at(fixture.now).is_none());
    assert_eq!(fixture.claim_at(until).unwrap().id, high);
    assert!(fixture.claim_at(until).is_none(), "one tries it");
    assert!(fixture.queue.is_held(ACME, &name("example.com")));
    fixture.put_back_as_new(high);
    assert_eq!(fixture.claim_at(until).unwrap().id, high);
    fixture.finish(high);
    fixture.queue.resume_domain(ACME, &name("example.com"));
    assert_eq!(fixture.claim_at(until).unwrap().id, normal);
}

#[test]
fn a_message_that_ends_without_a_call_uses_up_no_place() {
    let fixture = Fixture::new();
    for _ in 0..20 {
        fixture.add_as(ACME, Normal);
        let id = fixture.add_as(ACME, High);
        assert_eq!(fixture.claim().id, id);
        fixture.finish(id);
    }
    for _ in 0..9 {
        fixture.add_as(ACME, High);
    }
    assert_eq!(fixture.send_many(9), [High; 9]);
}

#[test]
fn priorities_change_no_other_organisations_turns() {
    let order = |priority: fn(usize) -> Priority| {
        let fixture = Fixture::new();
        for n in 0..300 {
            fixture.add_as(ACME, priority(n));
            fixture.add_as(BETA, Normal);
        }
        (0..600).map(|_| fixture.finished().organisation).collect::<Vec<_>>()
    };
    let plain = order(|_| Normal);
    assert_eq!(order(|_| High), plain);
    assert_eq!(order(|n| if n % 3 == 0 { High } else { Normal }), plain);
}

#[test]
fn within_a_priority_retries_keep_the_order_of_acceptance() {
    let fixture = Fixture::new();
    let [first, second] = [fixture.add_as(ACME, High), fixture.add_as(ACME, High)];
    let normal = fixture.add_as(ACME, Normal);
    assert_eq!(fixture.send().id, first);
    fixture.put_back(first, fixture.now, Acceptance::Excluded);
    let sent: Vec<_> = (0..3).map(|_| fixture.finished().id).collect();
    assert_eq!(sent, [first, second, normal]);
}

#[test]
fn retries_of_both_priorities_are_brought_forward() {
    let fixture = Fixture::new();
    let ids = [fixture.add_as(ACME, Normal), fixture.add_as(ACME, High)];
    for _ in ids {
        let sent = fixture.send();
        fixture.put_back(sent.id, fixture.now + Duration::from_hours(1), Acceptance::Excluded);
    }
    assert!(fixture.claim_at(fixture.now).is_none());
    fixture.queue.bring_forward(fixture.now);
    assert_eq!(fixture.send_many(2), [High, Normal]);
}

#[test]
fn messages_expire_in_the_order_of_their_ends_and_not_before() {
    let fixture = Fixture::new();
    let minutes = Duration::from_mins;
    let add = |minutes| fixture.add_with("example.com", ACME, Normal, Some(minutes));
    let [late, early, between] = [add(MAX_EXPIRES_IN), add(MIN_EXPIRES_IN), add(minutes(3))];
    let without_end = fixture.add(ACME, 1);
    let at = |time| fixture.now + time;
    assert!(fixture.expired(at(minutes(1)) - Duration::from_nanos(1)).is_empty());
    assert_eq!(fixture.queue.claim_expired(at(minutes(9)), 1).len(), 1, "no more than asked for");
    // The claim was dropped, so it waits again, with the same end.
    assert_eq!(fixture.expired(at(minutes(1))), [early]);
    assert_eq!(fixture.expired(at(minutes(1))), []);
    fixture.finish(early);
    let firsts = fixture.queue.first_expiries([ACME, BETA].into());
    assert_eq!(firsts, [(ACME, at(minutes(3)))].into());
    assert_eq!(fixture.expired(at(minutes(3))), [between]);
    assert_eq!(fixture.queue.claim_expired(at(MAX_EXPIRES_IN), 9).len(), 1);
    let message = fixture.take(between).message.clone();
    assert_eq!(message.expires_in, Some(minutes(3)));
    assert_eq!(message.end(minutes(9)), at(minutes(3)));
    assert_eq!(message.end(minutes(2)), at(minutes(2)), "the service's own time is shorter");
    fixture.queue.proved_sent(late);
    assert_eq!(fixture.expired(at(MAX_EXPIRES_IN * 9)), [between]);
    assert_eq!(fixture.claim().id, without_end, "it never expires");
}

#[test]
fn the_first_end_of_an_organisation_is_found_behind_many_of_others() {
    let fixture = Fixture::new();
    let minutes = Duration::from_mins;
    // More of them than one step handles.
    for _ in 0..501 {
        fixture.add_with("example.com", ACME, Normal, Some(minutes(1)));
    }
    fixture.add_with("example.com", BETA, Normal, Some(minutes(3)));
    let firsts = fixture.queue.first_expiries([ACME, BETA].into());
    let at = |time| fixture.now + time;
    assert_eq!(firsts, [(ACME, at(minutes(1))), (BETA, at(minutes(3)))].into());
}

#[test]
fn a_message_expires_while_the_machine_is_suspended() {
    let fixture = Fixture::new();
    let add = || fixture.add_with("example.com", ACME, Normal, Some(MIN_EXPIRES_IN));
    let before = add();
    suspension::add(MIN_EXPIRES_IN);
    let after = add();
    assert_eq!(fixture.expired(fixture.now), [before]);
    suspension::add(MIN_EXPIRES_IN);
    assert_eq!(fixture.expired(fixture.now), [after]);
}

#[test]
fn a_message_with_a_call_under_way_expires_after_it() {
    let fixture = Fixture::new();
    let end = fixture.now + MIN_EXPIRES_IN;
    let id = fixture.add_with("example.com", ACME, High, Some(MIN_EXPIRES_IN));
    assert_eq!(fixture.send().id, id);
    assert_eq!(fixture.expired(end), []);
    fixture.put_back(id, end + MIN_EXPIRES_IN, Acceptance::Possible);
    assert_eq!(fixture.expired(end), [id], "though its retry is later");
    assert_eq!(fixture.take(id).acceptance, Acceptance::Possible);
}

#[test]
fn paused_organisations_and_domains_keep_no_message_from_expiring() {
    let fixture = Fixture::new();
    let expires_in = Some(MIN_EXPIRES_IN);
    let [paused, closed, held] = [
        fixture.add_with("example.com", ACME, Normal, expires_in),
        fixture.add_with("example.com", BETA, Normal, expires_in),
        fixture.add_with("paused.example", OrganisationId(3), Normal, expires_in),
    ];
    fixture.queue.set_paused([ACME].into());
    fixture.queue.set_gate(BETA, Gate::Closed);
    let later = fixture.now + Duration::from_hours(9);
    fixture.queue.pause_domain(OrganisationId(3), &name("paused.example"), later);
    assert!(fixture.claim_at(fixture.now).is_none());
    assert_eq!(fixture.expired(fixture.now + MIN_EXPIRES_IN), [paused, closed, held]);
}

#[test]
fn a_later_process_keeps_priority_end_and_order() {
    let fixture = Fixture::new();
    let expires_in = Some(Duration::from_mins(5));
    let mut ids = Vec::new();
    for n in 0..30 {
        let priority = if n % 2 == 0 { Normal } else { High };
        ids.push(fixture.add_with("example.com", ACME, priority, expires_in));
    }
    let plain = fixture.add(ACME, 1);
    // One waits for a retry.
    let first = fixture.send();
    fixture.put_back(first.id, fixture.now, Acceptance::Excluded);
    let (queue, survivors) = next_process(&fixture.queue);
    for survivor in survivors {
        queue.take_up(survivor, OrganisationKind::Production).unwrap();
    }
    let now = Instant::now();
    let mut sent = Vec::new();
    while let Some(mut claim) = queue.claim(OrganisationKind::Production, now, MANY) {
        drop(claim.start_call());
        let PendingMessage { id, priority, expires_in: kept, accepted_at, .. } = claim.message;
        assert_eq!(kept, expires_in.filter(|_| id != plain));
        let drift = fixture.now.max(accepted_at) - fixture.now.min(accepted_at);
        assert!(drift < Duration::from_millis(1), "{drift:?}");
        sent.push((priority, id));
        claim.finish();
    }
    let of = |wanted| sent.iter().filter(move |(p, _)| *p == wanted).map(|(_, id)| *id);
    assert!(of(High).is_sorted() && of(Normal).is_sorted());
    assert_eq!(of(High).next(), Some(first.id), "a retry keeps its place");
    assert_eq!((of(High).count(), of(Normal).count()), (15, 16));
    assert_eq!(sent.iter().position(|(p, _)| *p == Normal), Some(9), "{sent:?}");
}
