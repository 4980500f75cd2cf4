//! Operations that fail, and the batches that they are in.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::conformance::{Fixture, START};
use crate::store::redb::tests::disk::{Disk, Fault};
use crate::store::redb::tests::in_directory;
use crate::store::{Accepted, Store, StoreError};

#[tokio::test]
async fn a_batch_is_there_whole_or_not_at_all_whichever_sync_failed() {
    for failing in 0..6 {
        let (arrives, is_lost) =
            (Fault::SyncFails { after: failing }, Fault::SyncLoses { after: failing });
        for fault in [arrives, is_lost, Fault::SyncPanics { after: failing }] {
            let disk = Disk::formatted();
            let open = || Store::on_redb(disk.opener(0), START).unwrap().0;
            let fixture = Fixture::on(open()).await;
            let handed_over = Arc::new(AtomicUsize::new(0));
            disk.set(fault);
            let keys = [Some("a"), None, Some("b")];
            let answer = fixture.accept_all(&keys, &handed_over).await;
            disk.set(Fault::None);
            fixture.store.writable().await;
            let expected = match answer {
                Ok(accepted) => accepted.len(),
                Err(error) => {
                    assert_eq!(error, StoreError::Unavailable);
                    0
                }
            };
            assert_eq!(fixture.listed().await, expected, "{fault:?}");
            assert_eq!(handed_over.load(Ordering::SeqCst), expected, "{fault:?}");
            drop(fixture);
            assert_eq!(Fixture::on(open()).await.listed().await, expected, "{fault:?}");
        }
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_read_leaves_nothing_of_its_batch() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let damaged = fixture.accept(Some("k"), START).await.unwrap().id();
    let damage = fixture.store.redb().writer.run(0, move |batch| {
        batch.tables.idempotency.open()?.insert(damaged.as_bytes(), [9_u8].as_slice())?;
        Ok(())
    });
    damage.await.unwrap();
    let handed_over = Arc::new(AtomicUsize::new(0));
    let keys = [None, Some("a"), Some("k")];
    assert_eq!(fixture.accept_all(&keys, &handed_over).await, Err(StoreError::Damaged));
    assert_eq!((fixture.listed().await, handed_over.load(Ordering::SeqCst)), (1, 0));
    assert!(matches!(fixture.accept(Some("a"), START).await, Ok(Accepted::New(_))));
}

#[tokio::test]
async fn an_operation_that_panics_is_refused_for_good_and_the_store_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let panics = fixture.store.redb().writer.run(0, |_| -> Result<(), _> { panic!("as it must") });
    assert_eq!(panics.await, Err(StoreError::Damaged));
    fixture.store.writable().await;
    assert!(matches!(fixture.accept(None, START).await, Ok(Accepted::New(_))));
}
