//! Several messages in one transaction: all or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::conformance::disk::{Disk, Fault};
use crate::store::conformance::{Fixture, START, in_directory};
use crate::store::{Accepted, MessageFilter, Store, StoreError};

impl Fixture {
    /// Accepts messages with these keys, and counts those that are handed over.
    async fn accept_all(
        &self,
        keys: &[Option<&str>],
        handed_over: &Arc<AtomicUsize>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let acceptance = |key: Option<&str>| {
            let (id, admitted) = (self.ids.next(START), self.admitted(key));
            let handed_over = Arc::clone(handed_over);
            let on_new = move || {
                handed_over.fetch_add(1, Ordering::SeqCst);
            };
            self.store.acceptance(id, self.organisation, &admitted, START, START, on_new)
        };
        self.store.accept_all(keys.iter().copied().map(acceptance).collect()).await
    }

    /// Accepts so many messages, fast.
    pub(super) async fn new_messages(&self, count: usize) {
        let handed_over = Arc::default();
        for first in (0..count).step_by(500) {
            let keys = vec![None; (count - first).min(500)];
            self.accept_all(&keys, &handed_over).await.unwrap();
        }
    }

    async fn listed(&self) -> usize {
        let page = self.store.list(MessageFilter::default(), 1_000, START).await.unwrap();
        page.messages.len()
    }
}

#[tokio::test]
async fn a_batch_is_durable_with_one_message_for_each_key() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let handed_over = Arc::new(AtomicUsize::new(0));
    let earlier = fixture.accept(Some("earlier"), START).await.unwrap().id();
    let keys = [None, Some("a"), Some("earlier"), Some("a"), None, Some("b")];
    let accepted = fixture.accept_all(&keys, &handed_over).await.unwrap();
    let ids: Vec<_> = accepted.iter().map(Accepted::id).collect();
    let expected = [
        Accepted::New(ids[0]),
        Accepted::New(ids[1]),
        Accepted::Replayed(earlier),
        Accepted::Replayed(ids[1]),
        Accepted::New(ids[4]),
        Accepted::New(ids[5]),
    ];
    assert_eq!(accepted, expected);
    assert_eq!(handed_over.load(Ordering::SeqCst), 4);
    assert_eq!(fixture.accept(Some("b"), START).await, Ok(Accepted::Replayed(ids[5])));
    drop(fixture);
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    assert_eq!(fixture.listed().await, 5);
    for id in ids {
        assert!(fixture.store.message(id, START).unwrap().is_some());
    }
}

#[tokio::test]
async fn a_batch_is_there_whole_or_not_at_all_whichever_sync_failed() {
    for failing in 0..6 {
        let (arrives, is_lost) =
            (Fault::SyncFails { after: failing }, Fault::SyncLoses { after: failing });
        for fault in [arrives, is_lost, Fault::SyncPanics { after: failing }] {
            let disk = Disk::formatted();
            let open = || Store::start(disk.opener(0), START).unwrap().0;
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
    let fixture = Fixture::on(in_directory(&directory, START)).await;
    let damaged = fixture.accept(Some("k"), START).await.unwrap().id();
    let damage = fixture.store.writer.run(0, move |batch| {
        batch.tables.idempotency.insert(damaged.as_bytes(), [9_u8].as_slice())?;
        Ok(())
    });
    damage.await.unwrap();
    let handed_over = Arc::new(AtomicUsize::new(0));
    let keys = [None, Some("a"), Some("k")];
    assert_eq!(fixture.accept_all(&keys, &handed_over).await, Err(StoreError::Damaged));
    assert_eq!((fixture.listed().await, handed_over.load(Ordering::SeqCst)), (1, 0));
    assert!(matches!(fixture.accept(Some("a"), START).await, Ok(Accepted::New(_))));
}
