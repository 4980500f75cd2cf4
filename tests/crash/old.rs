//! The store while no process has it: messages past their retention are put in for the next process
//! to purge, and its whole content is checked in the end.

use std::time::{Duration, SystemTime};

use pillarbox_domain::admission::admit;
use pillarbox_domain::id::{MessageId, MessageIds};
use pillarbox_domain::message::Message;
use pillarbox_domain::request::{Draft, SendRequest};
use pillarbox_domain::time::Timestamp;
use pillarbox_store::{MessageFilter, NewMessage, Store};
use tokio::task::JoinSet;

use crate::kit::Site;

/// Subject of a message past its retention.
pub(crate) const OLD_SUBJECT: &str = "past its retention";
const AGE: Duration = Duration::from_hours(91 * 24);

/// Returns the time of the wall clock.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

/// Accepts messages of 91 days ago, each with a key.
pub(crate) async fn add(site: &Site, number: usize) {
    let store = site.open_store(now()).await;
    let organisation = store.organisation(&"acme".parse().unwrap()).unwrap().id;
    let ids = MessageIds::new();
    let mut accepting = JoinSet::new();
    for _ in 0..number {
        let created_at = now().minus(AGE);
        let (store, id) = (store.clone(), ids.next(created_at));
        accepting.spawn(async move {
            let key = id.to_string();
            let draft = Draft {
                from: Some("ann@example.com"),
                to: Some(vec!["bob@example.org"]),
                subject: Some(OLD_SUBJECT),
                text: Some("Body".into()),
                idempotency_key: Some(&key),
                ..Draft::default()
            };
            let facts = store.facts(organisation);
            let admitted = admit(SendRequest::parse(draft).unwrap(), &facts).await.unwrap();
            let accepted = store.accept(NewMessage::new(
                id,
                organisation,
                &admitted,
                created_at,
                created_at,
                || {},
            ));
            accepted.await.unwrap();
        });
    }
    accepting.join_all().await;
}

/// Every message in the store, those past their retention included.
pub(crate) async fn all(store: &Store) -> Vec<Message> {
    let (mut all, mut before): (Vec<Message>, Option<MessageId>) = (Vec::new(), None);
    loop {
        let filter = MessageFilter { before, ..MessageFilter::default() };
        let page = store.list(filter, 10_000, now().minus(2 * AGE)).await.unwrap();
        all.extend(page.messages);
        let Some(next) = page.next else { return all };
        before = Some(next);
    }
}
