//! The provider's reports: matching, overtaking, repetition, and retention.

use std::time::Duration;

use proptest::prelude::*;

use crate::conformance::{
    Fixture, MILLISECOND, START, event, hard_bounce, in_directory, in_memory,
};
use crate::{Applied, DeadLetter, Reference, Report, Store};
use pillarbox_domain::event::{BounceType, Event, EventDetail, EventType, LastEvent};
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::message::{Acceptance, Failure, FailureCode, Recorded, State, Transition};
use pillarbox_domain::organisation::DomainState;
use pillarbox_domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use pillarbox_domain::time::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

fn tagged(id: MessageId, event: Option<Event>) -> Report {
    Report {
        message: Reference::Tag(id),
        organisation: Some("acme".to_owned()),
        ses_message_id: "ses-1".to_owned(),
        accepted_at: START,
        event,
    }
}

fn untagged(ses_message_id: &str, accepted_at: Timestamp, event: Event) -> Report {
    Report {
        message: Reference::ProviderId,
        organisation: None,
        ses_message_id: ses_message_id.to_owned(),
        accepted_at,
        event: Some(event),
    }
}

fn sent(ses_message_id: &str, sent_at: Timestamp) -> Transition {
    Transition::Sent { ses_message_id: ses_message_id.to_owned(), sent_at }
}

fn delivery(at: Timestamp) -> Event {
    event(at, EventDetail::Delivery { smtp_response: None })
}

async fn with_second_organisation(fixture: &Fixture) -> OrganisationId {
    let other = fixture.store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    let domain = DomainName::parse("example.com").unwrap();
    fixture.store.put_domain(other.id, domain, DomainState::Assumed, START).await.unwrap();
    other.id
}

#[tokio::test]
async fn bounces_of_many_messages_that_no_outcome_has_are_taken_together() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let mut reports = Vec::new();
    for n in 0..20 {
        let id = fixture.new_message().await;
        let recipients = vec![format!("bob-{n}@example.org")];
        let bounce = Event { recipients, ..event(START, hard_bounce()) };
        reports.push(Report { ses_message_id: format!("ses-{n}"), ..tagged(id, Some(bounce)) });
    }
    let expected: Vec<Applied> = reports
        .iter()
        .map(|report| match report.message {
            Reference::Tag(id) => Applied::Sent(id),
            Reference::ProviderId => unreachable!("all have their tag"),
        })
        .collect();
    assert_eq!(fixture.store.apply_all(reports, START).await, Ok(expected));
    for n in 0..20 {
        let address = SuppressedAddress::parse(&format!("bob-{n}@example.org")).unwrap();
        assert!(fixture.store.is_suppressed(fixture.organisation, &address).await.unwrap());
    }
}

#[tokio::test]
async fn an_event_without_a_tag_finds_its_message_by_the_providers_id() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let mut ids = Vec::new();
    for number in 0..50 {
        let id = fixture.new_message().await;
        let at = START.plus(SECOND * number);
        fixture.store.record(id, 1, sent(&format!("ses-{number}"), at), START).await.unwrap();
        ids.push((id, at));
    }
    // The provider's clock is ours, five minutes ahead of it, or behind it.
    for (number, skew) in [(7, 0_u32), (20, 300), (49, 300)] {
        let (id, at) = ids[number];
        for accepted_at in [at.plus(SECOND * skew), at.minus(SECOND * skew)] {
            let report = untagged(&format!("ses-{number}"), accepted_at, delivery(accepted_at));
            assert_eq!(fixture.store.apply(report, START).await.unwrap(), Applied::Sent(id));
        }
        let expected = if skew == 0 { 1 } else { 2 };
        assert_eq!(fixture.store.events(id).await.unwrap().len(), expected);
    }
    let far = untagged("ses-7", ids[7].1.plus(Duration::from_hours(1)), delivery(START));
    assert_eq!(fixture.store.apply(far, START).await.unwrap(), Applied::Unmatched);
}

#[tokio::test]
async fn a_message_is_found_by_the_id_that_ses_gave_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let given = format!("0102{:012x}-6d5c2f0a-000000", START.unix_millis());
    fixture.store.record(id, 1, sent(&given, START), START).await.unwrap();
    for (text, found) in [(&*given, Some(id)), (&given[..24], None), ("order-1815", None)] {
        assert_eq!(fixture.store.message_sent_as(text).await.unwrap(), found, "{text}");
    }
}

#[tokio::test]
async fn an_event_that_overtakes_the_outcome_is_applied_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let early = [delivery(START.plus(SECOND)), event(START.plus(SECOND * 2), hard_bounce())];
    for event in &early {
        let report = untagged("ses-1", START, event.clone());
        for _ in 0..2 {
            let applied = fixture.store.apply(report.clone(), START).await.unwrap();
            assert_eq!(applied, Applied::Unmatched);
        }
    }
    let stranger = untagged("ses-10", START, delivery(START));
    fixture.store.apply(stranger, START).await.unwrap();
    assert_eq!(fixture.store.event_backlog().await.unwrap().unmatched, 3);
    drop(fixture);
    // They outlive a restart, which fails the message as lost; the tag of another event then proves
    // that it was sent.
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let epoch = fixture.store.suppression_epoch();
    let applied = fixture.store.apply(tagged(id, None), START).await.unwrap();
    assert_eq!(applied, Applied::Sent(id));
    assert_eq!(fixture.store.events(id).await.unwrap(), early);
    let message = fixture.store.message(id, START).await.unwrap().unwrap();
    assert_eq!(message.last_event, Some(early[1].summary()));
    assert_eq!(fixture.store.suppressions(None, 9).await.unwrap().suppressions.len(), 1);
    assert!(fixture.store.suppression_epoch() > epoch);
    assert_eq!(fixture.store.event_backlog().await.unwrap().unmatched, 1);
}

#[tokio::test]
async fn an_event_that_overtakes_the_recording_of_a_success_is_applied_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let direct = fixture.new_message().await;
    let report = untagged("ses-2", START, delivery(START));
    fixture.store.apply(report, START).await.unwrap();
    fixture.store.record(direct, 1, sent("ses-2", START), START).await.unwrap();
    assert_eq!(fixture.store.events(direct).await.unwrap(), [delivery(START)]);
}

#[tokio::test]
async fn early_reports_of_one_event_that_differ_all_count() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let soft = EventDetail::Bounce {
        bounce_type: BounceType::Transient,
        sub_type: "General".to_owned(),
        diagnostic_code: None,
    };
    for detail in [soft, hard_bounce()] {
        let report = untagged("ses-1", START, event(START, detail));
        fixture.store.apply(report, START).await.unwrap();
    }
    fixture.store.record(id, 1, sent("ses-1", START), START).await.unwrap();
    assert_eq!(fixture.store.events(id).await.unwrap(), [event(START, hard_bounce())]);
    assert_eq!(fixture.store.suppressions(None, 9).await.unwrap().suppressions.len(), 1);
}

#[tokio::test]
async fn events_wait_for_their_message_for_a_day() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    fixture.store.apply(untagged("ses-1", START, delivery(START)), START).await.unwrap();
    let end = START.plus(Duration::from_hours(24));
    fixture.store.purge(end.minus(MILLISECOND), 10).await.unwrap();
    assert_eq!(fixture.store.event_backlog().await.unwrap().unmatched, 1);
    fixture.store.purge(end, 10).await.unwrap();
    assert_eq!(fixture.store.event_backlog().await.unwrap().unmatched, 0);
}

#[tokio::test]
async fn only_so_many_events_wait_and_the_oldest_go_first() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    for block in 0..11_u64 {
        let now = START.plus(SECOND * u32::try_from(block).unwrap());
        let reports = (0..1_000).map(|number| {
            untagged(&format!("ses-{}", block * 1_000 + number), START, delivery(START))
        });
        fixture.store.apply_all(reports.collect(), now).await.unwrap();
    }
    assert_eq!(fixture.store.event_backlog().await.unwrap().unmatched, 10_000);
    let [first, last] = [fixture.new_message().await, fixture.new_message().await];
    fixture.store.record(first, 1, sent("ses-999", START), START).await.unwrap();
    fixture.store.record(last, 1, sent("ses-10999", START), START).await.unwrap();
    assert!(fixture.store.events(first).await.unwrap().is_empty());
    assert_eq!(fixture.store.events(last).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_report_that_names_another_organisation_than_its_messages_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let other = with_second_organisation(&fixture).await;
    let id = fixture.new_message().await;
    let before = fixture.store.message(id, START).await.unwrap();
    let bounce = || Some(event(START, hard_bounce()));
    for name in ["other", "nobody", ""] {
        let report = Report { organisation: Some(name.to_owned()), ..tagged(id, bounce()) };
        let applied = fixture.store.apply(report, START).await.unwrap();
        assert_eq!(applied, Applied::OtherOrganisation);
    }
    let made_up = fixture.ids.next(START);
    let of_no_message = tagged(made_up, Some(delivery(START)));
    let applied = fixture.store.apply(of_no_message, START).await.unwrap();
    assert_eq!(applied, Applied::UnknownMessage);
    assert_eq!(fixture.store.message(id, START).await.unwrap(), before);
    assert!(fixture.store.events(id).await.unwrap().is_empty());
    assert!(fixture.store.events(made_up).await.unwrap().is_empty());
    assert!(fixture.store.suppressions(None, 9).await.unwrap().suppressions.is_empty());
    assert_eq!(fixture.store.event_backlog().await.unwrap().unmatched, 0, "no record can follow");

    fixture.store.record(id, 1, sent("ses-1", START), START).await.unwrap();
    let foreign = Report {
        organisation: Some("other".to_owned()),
        ..untagged("ses-1", START, event(START, hard_bounce()))
    };
    let applied = fixture.store.apply(foreign, START).await.unwrap();
    assert_eq!(applied, Applied::OtherOrganisation);
    assert!(fixture.store.suppressions(None, 9).await.unwrap().suppressions.is_empty());
    // A bounce of one organisation does not affect another one.
    fixture.store.apply(tagged(id, bounce()), START).await.unwrap();
    let listed = fixture.store.suppressions(None, 9).await.unwrap().suppressions;
    assert_eq!(listed.len(), 1);
    assert!(listed.iter().all(|(scope, _)| *scope == Some(fixture.organisation)));
    assert_ne!(fixture.organisation, other);
}

#[tokio::test]
async fn an_early_event_of_another_organisation_is_not_applied_later_either() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let foreign = Report {
        organisation: Some("other".to_owned()),
        ..untagged("ses-1", START, event(START, hard_bounce()))
    };
    assert_eq!(fixture.store.apply(foreign, START).await.unwrap(), Applied::Unmatched);
    fixture.store.record(id, 1, sent("ses-1", START), START).await.unwrap();
    assert!(fixture.store.events(id).await.unwrap().is_empty());
    assert!(fixture.store.suppressions(None, 9).await.unwrap().suppressions.is_empty());
}

#[tokio::test]
async fn a_removed_organisations_message_still_gets_its_events() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    fixture.store.remove_organisation(fixture.organisation).await.unwrap();
    let applied = fixture.store.apply(tagged(id, Some(delivery(START))), START).await.unwrap();
    assert_eq!(applied, Applied::Sent(id));
    assert_eq!(fixture.store.events(id).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_proof_corrects_exactly_the_states_that_the_contract_names() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let failure = |code| Failure::new(code, "x");
    let failed = |code, acceptance| Transition::Failed { failure: failure(code), acceptance };
    let unknown = FailureCode::OutcomeUnknown;
    let rejected = FailureCode::ProviderRejected;
    let retry = |acceptance| Transition::RetryLater {
        failure: failure(unknown),
        acceptance,
        next_attempt_at: None,
    };
    let rows = [
        (None, Some(1)),
        (Some(retry(Acceptance::Possible)), Some(2)),
        (Some(retry(Acceptance::Excluded)), Some(2)),
        (Some(failed(unknown, Acceptance::Possible)), Some(2)),
        (Some(failed(rejected, Acceptance::Excluded)), None),
        (Some(Transition::Suppressed), None),
        (Some(sent("first", START.plus(SECOND))), None),
    ];
    for (transition, proved_attempts) in rows {
        let id = fixture.new_message().await;
        let what = format!("{transition:?}");
        let is_sent =
            proved_attempts.is_some() || matches!(transition, Some(Transition::Sent { .. }));
        if let Some(transition) = transition {
            fixture.store.record(id, 2, transition, START).await.unwrap();
        }
        let before = fixture.store.message(id, START).await.unwrap().unwrap();
        let report = tagged(id, Some(delivery(START)));
        let applied = fixture.store.apply(report, START).await.unwrap();
        let expected = if is_sent { Applied::Sent(id) } else { Applied::Done };
        assert_eq!(applied, expected, "{what}");
        let after = fixture.store.message(id, START).await.unwrap().unwrap();
        if let Some(attempts) = proved_attempts {
            let state = State::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START };
            assert_eq!((after.state, after.attempts), (state, attempts), "{what}");
        } else {
            assert_eq!((after.state, after.attempts), (before.state, 2), "{what}");
        }
        assert_eq!(after.last_event.unwrap().event_type, EventType::Delivery);
    }
}

#[tokio::test]
async fn a_proof_that_overtakes_the_outcome_stands_and_the_calls_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let late = [
        sent("ses-1", START.plus(SECOND)),
        Transition::RetryLater {
            failure: Failure::new(FailureCode::OutcomeUnknown, "x"),
            acceptance: Acceptance::Possible,
            next_attempt_at: None,
        },
    ];
    for outcome in late {
        let id = fixture.new_message().await;
        fixture.store.apply(tagged(id, Some(delivery(START))), START).await.unwrap();
        let recorded = fixture.store.record(id, 3, outcome, START).await.unwrap();
        assert_eq!(recorded, Recorded::AlreadyFinal);
        let message = fixture.store.message(id, START).await.unwrap().unwrap();
        let state = State::Sent { ses_message_id: "ses-1".to_owned(), sent_at: START };
        assert_eq!((message.state, message.attempts), (state, 3));
    }
}

#[tokio::test]
async fn a_repeat_does_not_bring_back_a_suppression_that_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let report = tagged(id, Some(event(START, hard_bounce())));
    fixture.store.apply(report.clone(), START).await.unwrap();
    let address = SuppressedAddress::parse("bob@example.org").unwrap();
    fixture.store.unsuppress(Some(fixture.organisation), address).await.unwrap();
    fixture.store.apply(report, START.plus(SECOND)).await.unwrap();
    assert!(fixture.store.suppressions(None, 9).await.unwrap().suppressions.is_empty());
}

#[tokio::test]
async fn an_operators_suppression_stays_the_operators() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let manual = Suppression {
        address: SuppressedAddress::parse("bob@example.org").unwrap(),
        reason: SuppressionReason::Manual,
        since: START.plus(SECOND),
        cause: None,
    };
    fixture.store.suppress(Some(fixture.organisation), manual.clone()).await.unwrap();
    fixture.store.apply(tagged(id, Some(event(START, hard_bounce()))), START).await.unwrap();
    let listed = fixture.store.suppressions(None, 9).await.unwrap().suppressions;
    assert_eq!(listed, [(Some(fixture.organisation), manual)]);
}

#[tokio::test]
async fn exactly_the_named_recipients_are_suppressed_however_they_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let recipients = [
        "Jane <Jane@Example.com>",
        "\"Doe, Mary\" <mary@example.com>",
        "Doe, Rick; <rick@example.com>",
        "not an address",
    ];
    let recipients = recipients.map(str::to_owned).to_vec();
    let bounce = Event { recipients, ..event(START, hard_bounce()) };
    fixture.store.apply(tagged(id, Some(bounce)), START).await.unwrap();
    let listed = fixture.store.suppressions(None, 9).await.unwrap().suppressions;
    let addresses: Vec<&str> = listed.iter().map(|(_, s)| s.address.as_str()).collect();
    assert_eq!(addresses, ["jane@example.com", "mary@example.com", "rick@example.com"]);
}

#[tokio::test]
async fn the_providers_ids_go_with_their_records() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let end = START.plus(RECORD_RETENTION).plus(MILLISECOND);
    let id = fixture.new_message().await;
    let sent_at = START.plus(Duration::from_hours(12));
    fixture.store.record(id, 1, sent("ses-1", sent_at), START).await.unwrap();
    assert_eq!(fixture.store.purge(end, 10).await.unwrap().messages, 1);
    let report = untagged("ses-1", sent_at, delivery(sent_at));
    assert_eq!(fixture.store.apply(report, START).await.unwrap(), Applied::Unmatched);
}

#[tokio::test]
async fn dead_letters_are_kept_once_cut_and_only_so_many() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let long = "ü".repeat(DeadLetter::MAX_DOCUMENT_BYTES);
    let letter = DeadLetter::new(START, "it is not JSON", &long);
    store.keep_dead_letters(vec![letter.clone(), letter.clone()]).await.unwrap();
    assert_eq!(store.dead_letters(9).await.unwrap(), std::slice::from_ref(&letter));
    assert_eq!(letter.document.len(), DeadLetter::MAX_DOCUMENT_BYTES);
    assert_eq!(letter.length, long.len());
    let many = (1..=1_000_u32)
        .map(|number| DeadLetter::new(START.plus(SECOND * number), "bad", &number.to_string()));
    store.keep_dead_letters(many.collect()).await.unwrap();
    let listed = store.dead_letters(5_000).await.unwrap();
    assert!((900..=1_000).contains(&listed.len()), "{}", listed.len());
    assert_eq!(listed[0].document, "1000");
    assert!(listed.iter().all(|listed| *listed != letter), "the oldest went first");
    assert_eq!(store.remove_dead_letters(&listed[..2]).await.unwrap(), 2);
    assert_eq!(store.remove_dead_letters(&listed[..3]).await.unwrap(), 1, "two are gone already");
    assert_eq!(store.dead_letters(1).await.unwrap()[0].document, "997");
    store.purge(START.plus(RECORD_RETENTION * 2), 10).await.unwrap();
    assert!(store.dead_letters(9).await.unwrap().is_empty());
}

fn complaint() -> EventDetail {
    EventDetail::Complaint { feedback_type: Some("abuse".to_owned()), sub_type: None }
}

fn bob() -> SuppressedAddress {
    SuppressedAddress::parse("bob@example.org").unwrap()
}

async fn suppressions(fixture: &Fixture) -> Vec<(Option<OrganisationId>, Suppression)> {
    fixture.store.suppressions(None, 9).await.unwrap().suppressions
}

#[tokio::test]
async fn our_tags_suppress_if_the_message_is_unknown_purged_or_damaged() {
    let causes =
        [(hard_bounce(), SuppressionReason::Bounce), (complaint(), SuppressionReason::Complaint)];
    for (detail, reason) in causes {
        for lost in ["unknown", "purged", "damaged"] {
            let directory = tempfile::tempdir().unwrap();
            let fixture = Fixture::on(in_directory(&directory, START).await).await;
            with_second_organisation(&fixture).await;
            let (id, expected) = match lost {
                "unknown" => (fixture.ids.next(START), Applied::UnknownMessage),
                "purged" => {
                    let id = fixture.new_message().await;
                    let end = START.plus(RECORD_RETENTION).plus(MILLISECOND);
                    assert_eq!(fixture.store.purge(end, 10).await.unwrap().messages, 1);
                    (id, Applied::UnknownMessage)
                }
                _ => {
                    let id = fixture.new_message().await;
                    fixture.store.damage_message(id).await;
                    (id, Applied::DamagedRecord)
                }
            };
            let epoch = fixture.store.suppression_epoch();
            let report = tagged(id, Some(event(START.plus(SECOND), detail.clone())));
            let applied = fixture.store.apply(report, START).await.unwrap();
            assert_eq!(applied, expected, "{lost}");
            let since = START.plus(SECOND);
            let suppression = Suppression { address: bob(), reason, since, cause: Some(id) };
            assert_eq!(
                suppressions(&fixture).await,
                [(Some(fixture.organisation), suppression)],
                "{lost}"
            );
            assert!(
                fixture.store.suppression_epoch() > epoch,
                "what is pending is looked at again"
            );
            assert!(
                fixture.store.events(id).await.unwrap().is_empty(),
                "there is no record to put it on"
            );
        }
    }
}

#[tokio::test]
async fn a_complaint_is_the_reason_if_a_bounce_has_the_same_time() {
    for details in [[hard_bounce(), complaint()], [complaint(), hard_bounce()]] {
        let directory = tempfile::tempdir().unwrap();
        let fixture = Fixture::on(in_directory(&directory, START).await).await;
        let id = fixture.new_message().await;
        for detail in details {
            fixture.store.apply(tagged(id, Some(event(START, detail))), START).await.unwrap();
        }
        let listed = suppressions(&fixture).await;
        let reasons: Vec<_> = listed.iter().map(|(_, one)| one.reason).collect();
        assert_eq!(reasons, [SuppressionReason::Complaint]);
    }
}

#[tokio::test]
async fn without_a_record_only_what_suppresses_suppresses() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let bounce = |bounce_type, sub_type: &str| EventDetail::Bounce {
        bounce_type,
        sub_type: sub_type.to_owned(),
        diagnostic_code: None,
    };
    let by_account = EventDetail::Complaint {
        feedback_type: None,
        sub_type: Some("OnAccountSuppressionList".to_owned()),
    };
    let harmless = [
        delivery(START),
        event(START, bounce(BounceType::Transient, "General")),
        event(START, bounce(BounceType::Undetermined, "Undetermined")),
        event(START, bounce(BounceType::Permanent, "OnAccountSuppressionList")),
        event(START, by_account),
    ];
    for event in harmless {
        let id = fixture.ids.next(START);
        let applied = fixture.store.apply(tagged(id, Some(event)), START).await.unwrap();
        assert_eq!(applied, Applied::UnknownMessage);
    }
    assert!(suppressions(&fixture).await.is_empty());
    assert_eq!(fixture.store.event_backlog().await.unwrap().unmatched, 0);
}

#[tokio::test]
async fn without_a_record_the_tags_alone_say_whose_the_suppression_is() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let other = with_second_organisation(&fixture).await;
    let gone = fixture.store.add_organisation("gone".parse().unwrap()).await.unwrap().unwrap();
    fixture.store.remove_organisation(gone.id).await.unwrap();
    let bounce = || event(START, hard_bounce());
    // Another application on the same queue writes none of our tags, or only one of the two.
    for organisation in [None, Some("nobody"), Some("gone"), Some(""), Some("ACME")] {
        let organisation = organisation.map(str::to_owned);
        let report = Report { organisation, ..tagged(fixture.ids.next(START), Some(bounce())) };
        let applied = fixture.store.apply(report, START).await.unwrap();
        assert_eq!(applied, Applied::UnknownMessage);
    }
    let half = Report { organisation: Some("acme".to_owned()), ..untagged("x", START, bounce()) };
    assert_eq!(fixture.store.apply(half, START).await.unwrap(), Applied::Unmatched);
    assert!(suppressions(&fixture).await.is_empty());

    let theirs = Report {
        organisation: Some("other".to_owned()),
        ..tagged(fixture.ids.next(START), Some(bounce()))
    };
    fixture.store.apply(theirs, START).await.unwrap();
    let listed = suppressions(&fixture).await;
    assert!(matches!(&listed[..], [(Some(owner), _)] if *owner == other), "{listed:?}");
}

#[tokio::test]
async fn a_repeat_without_a_record_does_not_bring_back_a_suppression_that_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.ids.next(START);
    let report = tagged(id, Some(event(START, hard_bounce())));
    fixture.store.apply(report.clone(), START).await.unwrap();
    fixture.store.unsuppress(Some(fixture.organisation), bob()).await.unwrap();
    fixture.store.apply(report, START.plus(SECOND)).await.unwrap();
    assert!(suppressions(&fixture).await.is_empty());
    // A later event is another one.
    let later = Event { occurred_at: START.plus(SECOND), ..event(START, complaint()) };
    fixture.store.apply(tagged(id, Some(later)), START.plus(SECOND)).await.unwrap();
    assert_eq!(suppressions(&fixture).await.len(), 1);
}

/// Events of every kind, at few times and for few recipients, so that many of them coincide.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let detail = prop_oneof![
        Just(EventDetail::Delivery { smtp_response: None }),
        Just(EventDetail::Delivery { smtp_response: Some("250".to_owned()) }),
        Just(hard_bounce()),
        Just(EventDetail::Bounce {
            bounce_type: BounceType::Transient,
            sub_type: "General".to_owned(),
            diagnostic_code: None,
        }),
        Just(EventDetail::Complaint { feedback_type: None, sub_type: None }),
        Just(EventDetail::Reject { reason: "Bad content".to_owned() }),
        Just(EventDetail::DeliveryDelay {
            delay_type: "General".to_owned(),
            diagnostic_code: None
        }),
    ];
    let recipients = prop::sample::subsequence(vec!["a@x.org", "B <b@x.org>", "c@x.org"], 1..=2);
    let event = (0..4_u64, recipients, detail).prop_map(|(second, recipients, detail)| Event {
        occurred_at: START.plus(Duration::from_secs(second)),
        recipients: recipients.into_iter().map(str::to_owned).collect(),
        detail,
    });
    prop::collection::vec(event, 1..8)
}

/// Some events, and the order in which they arrive: each at least once, some more often.
fn arrivals() -> impl Strategy<Value = (Vec<Event>, Vec<usize>)> {
    events().prop_flat_map(|events| {
        let number = events.len();
        let repeats = prop::collection::vec(0..number, 0..number);
        let order = repeats
            .prop_map(move |repeats| (0..number).chain(repeats).collect::<Vec<_>>())
            .prop_shuffle();
        (Just(events), order)
    })
}

type Outcome =
    (Vec<Event>, Option<LastEvent>, Vec<(SuppressedAddress, SuppressionReason, Timestamp)>);

async fn outcome(fixture: &Fixture, id: MessageId, scope: OrganisationId) -> Outcome {
    let message = fixture.store.message(id, START).await.unwrap().unwrap();
    let listed = fixture.store.suppressions(None, 100).await.unwrap().suppressions;
    let suppressions = listed.into_iter().filter(|(listed, _)| *listed == Some(scope));
    let suppressions = suppressions.map(|(_, s)| (s.address, s.reason, s.since)).collect();
    (fixture.store.events(id).await.unwrap(), message.last_event, suppressions)
}

/// State of one message whose events arrive in this order, by tag or by the provider's id, with its
/// own outcome recorded after the first `overtaking` of them.
async fn arrived(store: &Store, order: &[Event], overtaking: Option<usize>) -> Outcome {
    let fixture = Fixture::on(store.clone()).await;
    let id = fixture.new_message().await;
    let ses_message_id = format!("ses-{id}");
    for step in 0..=order.len() {
        if overtaking.is_some_and(|overtaking| overtaking.min(order.len()) == step) {
            fixture.store.record(id, 1, sent(&ses_message_id, START), START).await.unwrap();
        }
        let Some(event) = order.get(step) else { break };
        let report = match overtaking {
            Some(_) => untagged(&ses_message_id, START, event.clone()),
            None => tagged(id, Some(event.clone())),
        };
        fixture.store.apply(report, START).await.unwrap();
    }
    let outcome = outcome(&fixture, id, fixture.organisation).await;
    fixture.store.remove_organisation(fixture.organisation).await.unwrap();
    outcome
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn neither_order_nor_repetition_makes_a_difference(
        (events, order) in arrivals(),
        overtaking in 0..8_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let store = in_memory(&directory, START).await;
            let shuffled: Vec<Event> = order.iter().map(|&index| events[index].clone()).collect();
            // Each in an organisation of its own, so that suppressions are kept apart.
            let expected = arrived(&store, &events, None).await;
            let tagged = arrived(&store, &shuffled, None).await;
            let untagged = arrived(&store, &shuffled, Some(overtaking)).await;
            assert_eq!(tagged, expected);
            assert_eq!(untagged, expected);
        });
    }
}
