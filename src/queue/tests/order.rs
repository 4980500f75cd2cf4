//! Order of acceptance, and the age of messages.

use super::*;
use pillarbox_body_store::suspension;

#[test]
fn a_retry_whose_time_has_come_goes_before_what_was_accepted_later() {
    let fixture = Fixture::new();
    let ids: Vec<_> = (0..3).map(|_| fixture.add(ACME, 1)).collect();
    assert_eq!(fixture.claim().id, ids[0]);
    assert_eq!(fixture.claim().id, ids[1]);
    let due = fixture.now + Duration::from_secs(5);
    fixture.put_back(ids[1], due, Acceptance::Excluded);
    fixture.put_back(ids[0], due + Duration::from_secs(1), Acceptance::Excluded);
    let last = fixture.add(ACME, 1);
    assert_eq!(fixture.claim().id, ids[2]);
    let later = due + Duration::from_secs(1);
    let order = [(); 3].map(|()| fixture.claim_at(later).unwrap().id);
    assert_eq!(order, [ids[0], ids[1], last]);
}

/// More of them than one step handles.
#[test]
fn many_retries_that_are_due_at_once_keep_the_order_of_acceptance() {
    let fixture = Fixture::new();
    let ids: Vec<_> = (0..5_000).map(|_| fixture.add(ACME, 1)).collect();
    for id in &ids {
        assert_eq!(fixture.claim().id, *id);
        fixture.put_back(*id, fixture.now + Duration::from_secs(5), Acceptance::Excluded);
    }
    let last = fixture.add(ACME, 1);
    let later = fixture.now + Duration::from_secs(5);
    let order: Vec<_> = (0..5_001).map(|_| fixture.claim_at(later).unwrap().id).collect();
    assert_eq!(order[..5_000], ids);
    assert_eq!(order[5_000], last);
}

#[test]
fn a_message_ages_while_the_machine_is_suspended_also_over_a_restart() {
    let fixture = Fixture::new();
    let hour = Duration::from_hours(1);
    let before = fixture.add(ACME, 1);
    suspension::add(hour);
    let after = fixture.add(ACME, 1);
    let old = |queue: &Arc<MessageQueue>| {
        let claims = queue.claim_older_than(Instant::now() - hour / 2, 9);
        claims.iter().map(|claim| claim.message.id).collect::<Vec<_>>()
    };
    assert_eq!(old(&fixture.queue), [before]);
    let (next, survivors) = next_process(&fixture.queue);
    for survivor in survivors {
        next.take_up(survivor, OrganisationKind::Production).unwrap();
    }
    assert_eq!(old(&next), [before]);
    suspension::add(hour);
    assert_eq!(old(&next), [before, after]);
}

#[test]
fn what_waits_is_known_by_organisation_and_by_domain() {
    let fixture = Fixture::new();
    for (domain, organisation, messages) in
        [("a.example", ACME, 3), ("b.example", ACME, 2), ("a.example", BETA, 4)]
    {
        for _ in 0..messages {
            fixture.add_from(domain, organisation, 1);
        }
    }
    fixture.queue.pause_domain(ACME, &name("a.example"), fixture.now + Duration::from_secs(5));
    assert_eq!(fixture.queue.waiting_from(ACME, &name("a.example")), 3);
    assert_eq!(fixture.queue.waiting_from(BETA, &name("a.example")), 4);
    assert_eq!(fixture.queue.waiting_from(ACME, &name("c.example")), 0);
    assert_eq!(fixture.queue.backlog(ACME).waiting, 5);
    // One whose call is under way waits no more; one that is retried later does.
    let mut sent = std::iter::repeat_with(|| fixture.send());
    let retried = sent.find(|message| message.organisation == ACME).unwrap().id;
    assert_eq!(fixture.queue.waiting_from(ACME, &name("b.example")), 1);
    fixture.put_back(retried, fixture.now + Duration::from_secs(9), Acceptance::Excluded);
    assert_eq!(fixture.queue.waiting_from(ACME, &name("b.example")), 2);
}

#[test]
fn a_gate_that_was_closed_before_the_first_message_stays_closed() {
    let fixture = Fixture::new();
    fixture.queue.set_gate(ACME, Gate::Closed);
    for organisation in [ACME, BETA, OrganisationId(3)] {
        fixture.add(organisation, 1);
    }
    assert_eq!(fixture.next(fixture.now), Next::Now);
    assert_eq!(fixture.queue.pending().due_organisations, 2);
    assert_eq!(fixture.claim().organisation, BETA);
    assert_eq!(fixture.claim().organisation, OrganisationId(3));
    assert_eq!(fixture.next(fixture.now), Next::Never);
}

#[test]
fn the_messages_of_a_queue_that_is_dropped_take_up_nothing() {
    let fixture = Fixture::new();
    fixture.add(ACME, 1);
    fixture.add(BETA, 1);
    let budget = fixture.queue.budget().clone();
    assert!(budget.in_use() > 0);
    drop(fixture);
    assert_eq!(budget.in_use(), 0);
}

#[test]
fn one_that_has_sent_much_is_served_behind_others_even_if_nothing_of_it_waited_in_between() {
    let fixture = Fixture::new();
    let large = fixture.add(ACME, 100);
    assert_eq!(fixture.claim().id, large);
    fixture.finish(large);
    for organisation in [ACME, BETA, BETA] {
        fixture.add(organisation, 1);
    }
    let order = [(); 3].map(|()| fixture.claim().organisation);
    assert_eq!(order, [BETA, BETA, ACME]);
}
