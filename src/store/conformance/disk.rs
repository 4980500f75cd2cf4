//! The store on a disk that fails.

use crate::domain::request::IdempotencyKey;
use crate::store::conformance::{Fixture, START};
use crate::store::redb::open::Opener;
use crate::store::redb::open::faults::{Disk, Fault};
use crate::store::{Accepted, Health, MessageFilter, Store, StoreError};

/// A store on a disk in memory that fails when told to.
async fn on_disk(disk: &Disk) -> Fixture {
    let backend = disk.clone();
    let opener = Opener::backend(move || backend.clone());
    Fixture::on(Store::start(opener, START).unwrap().0).await
}

#[tokio::test]
async fn a_full_disk_refuses_and_reads_and_replays_go_on_until_there_is_space() {
    let disk = Disk::formatted();
    let fixture = on_disk(&disk).await;
    let Accepted::New(id) = fixture.accept(Some("k"), START).await.unwrap() else { panic!() };
    disk.set(Fault::Full);
    // Freed pages of earlier commits may take a few more messages.
    let mut last = Ok(Accepted::New(id));
    for _ in 0..200 {
        last = fixture.accept(None, START).await;
        if last.is_err() {
            break;
        }
    }
    assert_eq!(last, Err(StoreError::Unavailable));
    assert_eq!(fixture.store.health(), Health::Refusing);
    let key = IdempotencyKey::parse("k").unwrap();
    let replay = fixture.store.replay_after_commit(fixture.organisation, key, START).await;
    assert_eq!(replay.unwrap(), Some(id));
    assert!(fixture.store.message(id, START).unwrap().is_some());
    assert_eq!(fixture.accept(None, START).await, Err(StoreError::Unavailable));
    disk.set(Fault::None);
    fixture.store.writable().await;
    assert!(matches!(fixture.accept(None, START).await, Ok(Accepted::New(_))));
}

#[tokio::test]
async fn a_refused_message_never_comes_to_life_whichever_sync_failed() {
    for failing in 0..6 {
        let disk = Disk::formatted();
        let fixture = on_disk(&disk).await;
        fixture.accept(Some("before"), START).await.unwrap();
        disk.set(Fault::SyncFails { after: failing });
        let answer = fixture.accept(Some("k"), START).await;
        disk.set(Fault::None);
        fixture.store.writable().await;
        let key = IdempotencyKey::parse("k").unwrap();
        let replay = fixture.store.replay(fixture.organisation, key, START).unwrap();
        let listed = fixture.store.list(MessageFilter::default(), 9, START).await.unwrap().messages;
        match answer {
            Ok(Accepted::New(id)) => assert_eq!((replay, listed.len()), (Some(id), 2)),
            Err(StoreError::Unavailable) => assert_eq!((replay, listed.len()), (None, 1)),
            other => panic!("{other:?}"),
        }
        drop(fixture);
        let fixture = on_disk(&disk).await;
        let after = fixture.store.list(MessageFilter::default(), 9, START).await.unwrap().messages;
        assert_eq!(after.len(), listed.len(), "sync {failing}");
    }
}
