//! Rows that cannot be read.

use std::collections::BTreeSet;
use std::sync::Arc;

use redb::ReadableTable as _;

use crate::conformance::{Fixture, MILLISECOND, START, event};
use crate::redb::tests::in_directory;
use crate::{Reference, Report, Store, StoreError, StoreOwner};
use pillarbox_domain::event::EventDetail;
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::message::{FailureCode, Transition};

#[tokio::test]
async fn a_damaged_row_fails_its_own_operation_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Arc::new(Fixture::on(in_directory(&directory, START).await).await);
    let id = fixture.new_message().await;
    let damage = fixture.store.redb().writer.run(0, move |batch| {
        batch.tables.messages.open()?.insert(id.as_bytes(), [9_u8].as_slice())?;
        Ok(())
    });
    damage.await.unwrap();
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let fixture = Arc::clone(&fixture);
        others.spawn(async move { fixture.accept(None, START).await });
    }
    let sent = Transition::Sent { ses_message_id: "s".to_owned(), sent_at: START };
    assert_eq!(fixture.store.record(id, 1, sent, START).await, Err(StoreError::Damaged));
    assert!(others.join_all().await.iter().all(Result::is_ok));
    assert_eq!(fixture.store.message(id, START).await, Err(StoreError::Damaged));
}

#[tokio::test]
async fn what_has_a_body_and_no_record_that_can_be_read_does_not_stay_pending() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(fixture.new_message().await);
    }
    let (damaged, missing, whole) = (ids[0], ids[1], ids[2]);
    let damage = fixture.store.redb().writer.run(0, move |batch| {
        batch.tables.messages.open()?.insert(damaged.as_bytes(), [9_u8].as_slice())?;
        batch.tables.messages.open()?.remove(missing.as_bytes())?;
        Ok(())
    });
    damage.await.unwrap();
    drop(fixture);
    let bodies: BTreeSet<_> = ids.into_iter().collect();
    for bodies_lost in [2, 0] {
        let (owner, found) = (StoreOwner::Service, |_| bodies.clone());
        let opened = Store::open_as(owner, directory.path(), found, START);
        let (store, recovery) = opened.unwrap();
        assert_eq!((recovery.bodies_lost, recovery.kept), (bodies_lost, BTreeSet::from([whole])));
        let told: Vec<_> = store.damaged().into_iter().map(|row| row.id).collect();
        assert_eq!(told, [damaged.to_string()]);
    }
}

#[tokio::test]
async fn a_record_that_a_start_set_aside_is_told_of_until_the_end_of_its_retention() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (id, other) = (fixture.new_message().await, fixture.new_message().await);
    let damage = fixture.store.redb().writer.run(0, move |batch| {
        batch.tables.messages.open()?.insert(id.as_bytes(), [9_u8].as_slice())?;
        Ok(())
    });
    damage.await.unwrap();
    drop(fixture);
    for _ in 0..2 {
        let store = in_directory(&directory, START).await;
        let told: Vec<_> = store.damaged().into_iter().map(|row| (row.table, row.id)).collect();
        assert_eq!(told, [("messages".to_owned(), id.to_string())]);
        assert_eq!(store.message(id, START).await, Err(StoreError::Damaged));
        let settled = store.message(other, START).await.unwrap().unwrap();
        assert_eq!(settled.failure().unwrap().code, FailureCode::BodyLostOnRestart);
    }
    let store = in_directory(&directory, START).await;
    store.purge(START.plus(RECORD_RETENTION).plus(MILLISECOND), 10).await.unwrap();
    assert!(store.damaged().is_empty());
    drop(store);
    assert!(in_directory(&directory, START).await.damaged().is_empty());
}

#[tokio::test]
async fn an_event_that_cannot_be_read_is_written_anew_by_its_repeat() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let id = fixture.new_message().await;
    let delivery = event(START, EventDetail::Delivery { smtp_response: None });
    let report = Report {
        message: Reference::Tag(id),
        organisation: None,
        ses_message_id: "ses".to_owned(),
        accepted_at: START,
        event: Some(delivery.clone()),
    };
    fixture.store.apply(report.clone(), START).await.unwrap();
    let damage = fixture.store.redb().writer.run(0, move |batch| {
        let events = batch.tables.events.open()?;
        let key = events.first()?.expect("there is an event").0.value().to_vec();
        events.insert(key.as_slice(), [0xff_u8].as_slice())?;
        Ok(())
    });
    damage.await.unwrap();
    assert_eq!(fixture.store.events(id).await, Ok(Vec::new()), "it is left out");
    fixture.store.apply(report, START).await.unwrap();
    assert_eq!(fixture.store.events(id).await, Ok(vec![delivery]));
}
