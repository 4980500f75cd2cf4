//! Operations that fail, and the batches that they are in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::conformance::{Fixture, START};
use crate::redb::tests::disk::{Disk, Fault};
use crate::redb::tests::in_directory;
use crate::{Accepted, Store, StoreError};

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

/// Hands over batches of this many messages while the writer is held, and returns the time that
/// they take, with the number of commits.
async fn committed_together(
    fixture: &Arc<Fixture>,
    batches: usize,
    messages: usize,
    key_of: impl Fn(usize) -> Option<String> + Copy + Send + 'static,
) -> (Duration, u64) {
    let (begun, has_begun) = mpsc::channel::<()>();
    let (hold, held) = mpsc::channel::<()>();
    let store = fixture.store.clone();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        // Held until the other end of the channel is gone.
        let holding = store.redb().writer.run(0, move |_| {
            let _ = begun.send(());
            let _ = held.recv();
            Ok(())
        });
        holding.await.unwrap();
    });
    tokio::task::yield_now().await;
    has_begun.recv().unwrap();
    for batch in 0..batches {
        let fixture = Arc::clone(fixture);
        tasks.spawn(async move {
            let keys: Vec<_> = (0..messages).map(|n| key_of(batch * messages + n)).collect();
            let keys: Vec<_> = keys.iter().map(Option::as_deref).collect();
            fixture.accept_all(&keys, &Arc::default()).await.unwrap();
        });
    }
    // Each task hands its batch over when it first runs.
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    let before = fixture.store.metrics().commits();
    let start = Instant::now();
    drop(hold);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    (start.elapsed(), fixture.store.metrics().commits() - before)
}

#[tokio::test]
async fn a_commit_takes_so_many_messages_however_they_were_handed_over() {
    let fixture = Arc::new(Fixture::on(Store::on_failing_disk(START).0).await);
    let (_, commits) = committed_together(&fixture, 30, 100, |_| None).await;
    // The one that held the writer, and five with 512 messages or a few more.
    assert_eq!(commits, 1 + 5, "3,000 messages");
}

#[tokio::test]
async fn a_key_costs_the_writer_as_much_whatever_the_number_of_keys_in_its_commit() {
    const MESSAGES: usize = 1_000;
    const TIMES: usize = 30;
    let fixture = Arc::new(Fixture::on(Store::on_failing_disk(START).0).await);
    let mut in_turn = Duration::ZERO;
    for time in 0..TIMES {
        let key_of = move |n| Some(format!("{time} {n}"));
        in_turn += committed_together(&fixture, 1, MESSAGES, key_of).await.0;
    }
    let (at_once, _) =
        committed_together(&fixture, 1, TIMES * MESSAGES, |n| Some(n.to_string())).await;
    assert!(at_once < 2 * in_turn, "{at_once:?} at once, {in_turn:?} in turn");
}
