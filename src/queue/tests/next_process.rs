//! What the next process knows of the messages of one that ended.

use super::*;

/// Takes up the only message of a queue as the next process does.
fn taken_up(queue: &MessageQueue) -> (Arc<MessageQueue>, TakenUp) {
    let (next, mut survivors) = next_process(queue);
    let taken_up = next.take_up(survivors.pop().unwrap(), OrganisationKind::Production).unwrap();
    assert_eq!(survivors.len(), 0);
    (next, taken_up)
}

#[test]
fn a_lost_answer_stays_open_until_its_loss_is_recorded_also_over_a_second_kill() {
    let fixture = Fixture::new();
    fixture.add(ACME, 1);
    fixture.send();
    let (second, taken_up_first) = taken_up(&fixture.queue);
    assert!(matches!(taken_up_first, TakenUp::Waits));
    let later = Instant::now() + Duration::from_secs(5);
    let claim = || second.claim(OrganisationKind::Production, later, MANY).unwrap();
    // The store could not be read, or the sender's domain is not verified for now.
    assert!(claim().put_back_untried(later).is_none());
    assert_eq!(claim().interruption, Interruption::EndOfProcess);
    assert!(claim().put_back_as_new().is_none());
    let (third, taken_up_second) = taken_up(&second);
    assert!(matches!(taken_up_second, TakenUp::Waits));
    let open = third.claim(OrganisationKind::Production, later, MANY).unwrap();
    let state = (open.interruption, open.acceptance, open.attempts);
    assert_eq!(state, (Interruption::EndOfProcess, Acceptance::Possible, 1));
    // From here on it is on the record.
    assert!(open.put_back(later, Acceptance::Possible).is_none());
    assert_eq!(
        third.claim(OrganisationKind::Production, later, MANY).unwrap().interruption,
        Interruption::None
    );
}

#[test]
fn an_answer_that_excludes_acceptance_is_known_to_the_next_process() {
    let fixture = Fixture::new();
    fixture.add(ACME, 1);
    let message = fixture.send();
    fixture.take(message.id).was_not_sent();
    let (next, taken_up) = taken_up(&fixture.queue);
    assert!(matches!(taken_up, TakenUp::Waits));
    let later = Instant::now() + Duration::from_secs(5);
    let claim = next.claim(OrganisationKind::Production, later, MANY).unwrap();
    let state = (claim.interruption, claim.acceptance, claim.attempts);
    assert_eq!(state, (Interruption::None, Acceptance::Excluded, 1));
}

#[test]
fn a_message_without_an_attempt_goes_at_once_in_the_next_process() {
    let fixture = Fixture::new();
    fixture.add(ACME, 1);
    let claim = fixture.take(fixture.claim().id);
    assert!(claim.put_back_untried(fixture.now + Duration::from_hours(1)).is_none());
    let (next, taken_up) = taken_up(&fixture.queue);
    assert!(matches!(taken_up, TakenUp::Waits));
    assert!(next.claim(OrganisationKind::Production, Instant::now(), MANY).is_some());
}

#[test]
fn a_failure_that_is_not_in_the_store_yet_is_known_to_the_next_process() {
    let fixture = Fixture::new();
    fixture.add(ACME, 20);
    let message = fixture.send();
    let failure = Failure {
        code: FailureCode::ProviderRejected,
        message: "the message must not be sent".repeat(40),
        provider_code: Some("MessageRejected".to_owned()),
    };
    fixture.take(message.id).has_failed(&failure, Acceptance::Excluded);
    let (_next, taken_up) = taken_up(&fixture.queue);
    let TakenUp::Ends(claim, Transition::Failed { failure: found, acceptance }) = taken_up else {
        panic!("{taken_up:?}");
    };
    assert_eq!((claim.attempts, acceptance), (1, Acceptance::Excluded));
    assert_eq!((found.code, found.provider_code), (failure.code, failure.provider_code));
    assert!(failure.message.starts_with(&found.message), "{}", found.message);
}
