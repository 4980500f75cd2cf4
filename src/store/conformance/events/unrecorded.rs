//! Suppression by events whose message has no readable record.

use crate::domain::event::{BounceType, Event, EventDetail};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::policy::RECORD_RETENTION;
use crate::domain::suppression::{SuppressedAddress, Suppression, SuppressionReason};
use crate::store::conformance::events::{
    SECOND, delivery, tagged, untagged, with_second_organisation,
};
use crate::store::conformance::{Fixture, MILLISECOND, START, event, hard_bounce, in_directory};
use crate::store::{Applied, Report};

fn complaint() -> EventDetail {
    EventDetail::Complaint { feedback_type: Some("abuse".to_owned()), sub_type: None }
}

fn bob() -> SuppressedAddress {
    SuppressedAddress::parse("bob@example.org").unwrap()
}

fn suppressions(fixture: &Fixture) -> Vec<(Option<OrganisationId>, Suppression)> {
    fixture.store.suppressions(None, 9).unwrap().suppressions
}

async fn damage(fixture: &Fixture, id: MessageId) {
    let damage = fixture.store.writer.run(0, move |batch| {
        batch.tables.messages.insert(id.as_bytes(), [9_u8].as_slice())?;
        Ok(())
    });
    damage.await.unwrap();
}

#[tokio::test]
async fn our_tags_suppress_if_the_message_is_unknown_purged_or_damaged() {
    let causes =
        [(hard_bounce(), SuppressionReason::Bounce), (complaint(), SuppressionReason::Complaint)];
    for (detail, reason) in causes {
        for lost in ["unknown", "purged", "damaged"] {
            let directory = tempfile::tempdir().unwrap();
            let fixture = Fixture::on(in_directory(&directory, START)).await;
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
                    damage(&fixture, id).await;
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
                suppressions(&fixture),
                [(Some(fixture.organisation), suppression)],
                "{lost}"
            );
            assert!(
                fixture.store.suppression_epoch() > epoch,
                "what is pending is looked at again"
            );
            assert!(
                fixture.store.events(id).unwrap().is_empty(),
                "there is no record to put it on"
            );
        }
    }
}

#[tokio::test]
async fn without_a_record_only_what_suppresses_suppresses() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
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
    assert!(suppressions(&fixture).is_empty());
    assert_eq!(fixture.store.event_backlog().unwrap().unmatched, 0);
}

#[tokio::test]
async fn without_a_record_the_tags_alone_say_whose_the_suppression_is() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let other = with_second_organisation(&fixture).await;
    let gone = fixture.store.add_organisation("gone".parse().unwrap()).await.unwrap().unwrap();
    fixture.store.remove_organisation(gone.id).await.unwrap();
    let bounce = || event(START, hard_bounce());
    // Another application on the same queue writes none of our tags, or one of the two.
    for organisation in [None, Some("nobody"), Some("gone"), Some(""), Some("ACME")] {
        let organisation = organisation.map(str::to_owned);
        let report = Report { organisation, ..tagged(fixture.ids.next(START), Some(bounce())) };
        let applied = fixture.store.apply(report, START).await.unwrap();
        assert_eq!(applied, Applied::UnknownMessage);
    }
    let half = Report { organisation: Some("acme".to_owned()), ..untagged("x", START, bounce()) };
    assert_eq!(fixture.store.apply(half, START).await.unwrap(), Applied::Unmatched);
    assert!(suppressions(&fixture).is_empty());

    let theirs = Report {
        organisation: Some("other".to_owned()),
        ..tagged(fixture.ids.next(START), Some(bounce()))
    };
    fixture.store.apply(theirs, START).await.unwrap();
    let listed = suppressions(&fixture);
    assert!(matches!(&listed[..], [(Some(owner), _)] if *owner == other), "{listed:?}");
}

#[tokio::test]
async fn a_repeat_without_a_record_does_not_bring_back_a_suppression_that_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let id = fixture.ids.next(START);
    let report = tagged(id, Some(event(START, hard_bounce())));
    fixture.store.apply(report.clone(), START).await.unwrap();
    fixture.store.unsuppress(Some(fixture.organisation), bob()).await.unwrap();
    fixture.store.apply(report, START.plus(SECOND)).await.unwrap();
    assert!(suppressions(&fixture).is_empty());
    // A later event is another one.
    let later = Event { occurred_at: START.plus(SECOND), ..event(START, complaint()) };
    fixture.store.apply(tagged(id, Some(later)), START.plus(SECOND)).await.unwrap();
    assert_eq!(suppressions(&fixture).len(), 1);
}
