//! The count of lost messages: durable with the failures, and shown until it is seen or old.

use std::time::Duration;

use crate::domain::message::{Acceptance, Recorded, Transition};
use crate::domain::time::Timestamp;
use crate::store::conformance::{Fixture, MILLISECOND, START, in_directory};
use crate::store::{LostMessages, Store};

const DAY: Duration = Duration::from_hours(24);

fn lost(found_at: Timestamp) -> Transition {
    Transition::BodyLost { acceptance: Acceptance::Excluded, message: "stopped", found_at }
}

fn unseen(store: &Store, now: Timestamp) -> Option<(u64, Timestamp)> {
    store.lost_messages(now).unwrap().map(|lost| (lost.messages, lost.last_at))
}

#[tokio::test]
async fn losses_of_stops_and_starts_add_up_until_they_are_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    assert_eq!(unseen(&fixture.store, START), None);
    let mut pending = Vec::new();
    for _ in 0..5 {
        pending.push(fixture.new_message().await);
    }
    // A stop settles two, one of them twice. The process ends before it comes to the others.
    for id in [pending[0], pending[1]] {
        let recorded = fixture.store.record(id, 0, lost(START)).await.unwrap();
        assert_eq!(recorded, Recorded::Changed);
    }
    let again = fixture.store.record(pending[0], 0, lost(START)).await.unwrap();
    assert_eq!(again, Recorded::AlreadyFinal);
    assert_eq!(unseen(&fixture.store, START), Some((2, START)));
    drop(fixture);

    let next = START.plus(Duration::from_mins(1));
    drop(in_directory(&directory, next));
    let later = next.plus(Duration::from_mins(1));
    let store = in_directory(&directory, later);
    assert_eq!(unseen(&store, later), Some((5, next)), "a start without losses changes nothing");

    let seen = store.acknowledge_lost_messages(later).await.unwrap();
    assert_eq!(seen, Some(LostMessages { messages: 5, last_at: next }));
    assert_eq!(store.acknowledge_lost_messages(later).await.unwrap(), None);
    drop(store);
    assert_eq!(unseen(&in_directory(&directory, later), later), None);
}

#[tokio::test]
async fn a_loss_is_shown_for_a_day_and_then_no_longer_counted() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let ids = [fixture.new_message().await, fixture.new_message().await];
    fixture.store.record(ids[0], 0, lost(START)).await.unwrap();
    let last_moment = START.plus(DAY).minus(MILLISECOND);
    assert_eq!(unseen(&fixture.store, last_moment), Some((1, START)));
    assert_eq!(unseen(&fixture.store, START.plus(DAY)), None);
    fixture.store.record(ids[1], 0, lost(START.plus(DAY))).await.unwrap();
    assert_eq!(unseen(&fixture.store, START.plus(DAY)), Some((1, START.plus(DAY))));
}
