//! Several messages in one transaction: all or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::conformance::{Fixture, START, in_directory, of_store};
use crate::{Accepted, BatchMode, MessageFilter, NewMessage, StoreError};

impl Fixture {
    /// Accepts messages with these keys, and counts those that are handed over.
    pub(crate) async fn accept_all(
        &self,
        keys: &[Option<&str>],
        handed_over: &Arc<AtomicUsize>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let mut acceptances = Vec::new();
        for key in keys {
            let (id, admitted) = (self.ids.next(START), self.admitted(*key).await);
            let handed_over = Arc::clone(handed_over);
            let on_new = move || {
                handed_over.fetch_add(1, Ordering::SeqCst);
            };
            let organisation = self.organisation;
            acceptances.push(NewMessage::new(id, organisation, &admitted, START, START, on_new));
        }
        let accepted = self.store.accept_all(acceptances, BatchMode::Whole).await;
        accepted.and_then(|all| all.into_iter().collect()).map_err(of_store)
    }

    /// Accepts this many messages, fast.
    pub(super) async fn new_messages(&self, count: usize) {
        let handed_over = Arc::default();
        for first in (0..count).step_by(500) {
            let keys = vec![None; (count - first).min(500)];
            self.accept_all(&keys, &handed_over).await.unwrap();
        }
    }

    pub(crate) async fn listed(&self) -> usize {
        let page = self.store.list(MessageFilter::default(), 1_000, START).await.unwrap();
        page.messages.len()
    }
}

#[tokio::test]
async fn a_batch_is_durable_with_one_message_for_each_key() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
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
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    assert_eq!(fixture.listed().await, 5);
    for id in ids {
        assert!(fixture.store.message(id, START).await.unwrap().is_some());
    }
}
