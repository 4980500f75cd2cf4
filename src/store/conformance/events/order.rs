//! Any order and any repetition of a message's events comes to the same.

use std::time::Duration;

use proptest::prelude::*;

use crate::domain::event::{BounceType, Event, EventDetail, LastEvent};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::suppression::{SuppressedAddress, SuppressionReason};
use crate::domain::time::Timestamp;
use crate::store::conformance::events::{sent, tagged, untagged};
use crate::store::conformance::{Fixture, START, hard_bounce};
use crate::store::redb::open::Opener;
use crate::store::redb::open::faults::Disk;
use crate::store::{CACHE_BYTES, Store};

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

fn outcome(fixture: &Fixture, id: MessageId, scope: OrganisationId) -> Outcome {
    let message = fixture.store.message(id, START).unwrap().unwrap();
    let listed = fixture.store.suppressions(None, 100).unwrap().suppressions;
    let suppressions = listed.into_iter().filter(|(listed, _)| *listed == Some(scope));
    let suppressions = suppressions.map(|(_, s)| (s.address, s.reason, s.since)).collect();
    (fixture.store.events(id).unwrap(), message.last_event, suppressions)
}

/// What becomes of one message whose events arrive in this order, by tag or by the provider's id,
/// with its own outcome recorded after the first `overtaking` of them.
async fn arrived(store: &Store, order: &[Event], overtaking: Option<usize>) -> Outcome {
    let fixture = Fixture::on(store.clone()).await;
    let id = fixture.new_message().await;
    let ses_message_id = format!("ses-{id}");
    for step in 0..=order.len() {
        if overtaking.is_some_and(|overtaking| overtaking.min(order.len()) == step) {
            fixture.store.record(id, 1, sent(&ses_message_id, START)).await.unwrap();
        }
        let Some(event) = order.get(step) else { break };
        let report = match overtaking {
            Some(_) => untagged(&ses_message_id, START, event.clone()),
            None => tagged(id, Some(event.clone())),
        };
        fixture.store.apply(report, START).await.unwrap();
    }
    let outcome = outcome(&fixture, id, fixture.organisation);
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
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let disk = Disk::formatted();
            let opener = Opener::backend(CACHE_BYTES, move || disk.clone());
            let store = Store::start(opener, START).unwrap().0;
            let shuffled: Vec<Event> = order.iter().map(|&index| events[index].clone()).collect();
            // Each in an organisation of its own, so that suppressions are told apart.
            let expected = arrived(&store, &events, None).await;
            let tagged = arrived(&store, &shuffled, None).await;
            let untagged = arrived(&store, &shuffled, Some(overtaking)).await;
            assert_eq!(tagged, expected);
            assert_eq!(untagged, expected);
        });
    }
}
