//! Starts that find bodies of pending messages.

use std::collections::BTreeSet;

use crate::conformance::{Fixture, START, in_directory, reopened_with};
use crate::{Store, StoreId};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{FailureCode, Recorded, State, Transition};

/// Starts again with these bodies; returns the store, the number of messages that lost theirs, and
/// the messages that stay pending.
async fn next_life(
    directory: &tempfile::TempDir,
    bodies: &BTreeSet<MessageId>,
) -> (Store, usize, BTreeSet<MessageId>) {
    reopened_with(directory, |_| bodies.clone(), START).await
}

async fn is_queued(store: &Store, id: MessageId) -> bool {
    matches!(store.message(id, START).await.unwrap().unwrap().state, State::Queued { .. })
}

#[tokio::test]
async fn what_has_a_body_stays_pending_and_the_rest_fails() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let mut pending = Vec::new();
    for _ in 0..50 {
        pending.push(fixture.new_message().await);
    }
    let ended = fixture.new_message().await;
    let sent = || Transition::Sent { ses_message_id: "s".to_owned(), sent_at: START };
    fixture.store.record(ended, 1, sent(), START).await.unwrap();
    drop(fixture);
    let (with, without): (BTreeSet<MessageId>, BTreeSet<MessageId>) =
        pending.into_iter().partition(|id| id.as_bytes()[15] % 2 == 0);
    // The body of a final message belongs to no pending message.
    let found: BTreeSet<_> = with.iter().copied().chain([ended]).collect();
    let (store, bodies_lost, kept) = next_life(&directory, &found).await;
    assert_eq!((bodies_lost, &kept), (without.len(), &with));
    for id in &without {
        let message = store.message(*id, START).await.unwrap().unwrap();
        assert_eq!(message.failure().unwrap().code, FailureCode::BodyLostOnRestart);
    }
    for id in &with {
        assert!(is_queued(&store, *id).await);
    }
    let mut left = with.iter().copied();
    let finished = left.next().unwrap();
    assert_eq!(store.record(finished, 2, sent(), START).await, Ok(Recorded::Changed));
    drop(store);

    let (store, bodies_lost, kept) = next_life(&directory, &found).await;
    assert_eq!((bodies_lost, kept), (0, left.collect()));
    assert_eq!(store.message(finished, START).await.unwrap().unwrap().attempts, 2);
    drop(store);
    let (store, bodies_lost, kept) = next_life(&directory, &BTreeSet::new()).await;
    assert_eq!((bodies_lost, kept.len()), (with.len() - 1, 0));
    assert!(!is_queued(&store, *with.last().unwrap()).await);
}

#[tokio::test]
async fn a_store_has_the_same_name_at_each_start_and_no_other_has_it() {
    let (mine, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let name = async |directory: &tempfile::TempDir| {
        let mut name = None;
        let bodies = |store: StoreId| {
            name = Some(store);
            BTreeSet::new()
        };
        reopened_with(directory, bodies, START).await;
        name.unwrap()
    };
    let first = name(&mine).await;
    assert_eq!(name(&mine).await, first);
    assert_ne!(name(&others).await, first);
}
