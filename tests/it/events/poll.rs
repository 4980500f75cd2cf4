//! The poll of a queue: deleted only after the commit, with every fault in between.

use crate::kit;
use std::time::Duration;

use pillarbox_domain::event::EventType;
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::message::Status;
use pillarbox_events::metrics::DocumentType;

use crate::events::document::{about, delivery, in_event_bridge, in_sns, message_of, send};
use crate::events::queue::{Deleting, StubQueue};
use crate::events::sink::{EventSink, NOW, until};

const DELIVERY: DocumentType = DocumentType::Event(EventType::Delivery);

const LONG: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn queued_events_reach_their_records_and_leave_the_queue() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let ids = sink.new_messages(25).await;
    let store = sink.store.clone();
    // Every event is on its record by the time that its message is deleted.
    let queue = StubQueue::watched(LONG, move |body| {
        let Some(id) = message_of(body) else { return true };
        kit::at_once(store.message(id, NOW)).unwrap().unwrap().status() == Status::Sent
    })
    .await;
    for (number, &id) in ids.iter().enumerate() {
        let document = delivery(id);
        queue.put(in_sns(&send(id)).to_string());
        queue.put(match number % 3 {
            0 => document.to_string(),
            1 => in_sns(&document).to_string(),
            _ => in_event_bridge(&document).to_string(),
        });
    }
    let polling = sink.poll(&queue);
    until("deleting all", || queue.left() == 0).await;
    polling.stop().await;
    assert_eq!(queue.deleted_too_early(), 0);
    assert!(ids.iter().all(|&id| sink.events(id) == 1));
    let metrics = sink.events.metrics();
    assert_eq!(
        (
            metrics.documents(DocumentType::Send),
            metrics.documents(DELIVERY),
            metrics.unmatched.get()
        ),
        (25, 25, 0)
    );
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_kept_counted_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let ids = sink.new_messages(5).await;
    let queue = StubQueue::start(LONG).await;
    for &id in &ids {
        queue.put("{\"eventType\":\"Bounce\",\"mail\":{}}");
        queue.put("no JSON");
        queue.put(delivery(id).to_string());
        queue.put("");
    }
    let polling = sink.poll(&queue);
    until("deleting all", || queue.left() == 0).await;
    polling.stop().await;
    assert!(ids.iter().all(|&id| sink.events(id) == 1));
    let metrics = sink.events.metrics();
    assert_eq!((metrics.documents(DELIVERY), metrics.documents(DocumentType::Unreadable)), (5, 15));
    assert_eq!(sink.store.dead_letters(9).await.unwrap().len(), 3, "each is kept once");
}

#[tokio::test]
async fn redelivered_events_are_not_doubled() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let ids = sink.new_messages(12).await;
    let queue = StubQueue::start(SHORT).await;
    queue.set_deleting(Deleting::Fails);
    for &id in &ids {
        queue.put(delivery(id).to_string());
    }
    let polling = sink.poll(&queue);
    until("the redelivery", || sink.events.metrics().documents(DELIVERY) >= 36).await;
    queue.set_deleting(Deleting::Works);
    until("deleting all", || queue.left() == 0).await;
    polling.stop().await;
    assert!(ids.iter().all(|&id| sink.events(id) == 1));
}

#[tokio::test]
async fn a_crash_between_commit_and_delete_loses_and_doubles_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let ids = sink.new_messages(40).await;
    let queue = StubQueue::start(SHORT).await;
    queue.set_deleting(Deleting::Hangs);
    for &id in &ids {
        queue.put(delivery(id).to_string());
    }
    let polling = sink.poll(&queue);
    until("the commits", || ids.iter().filter(|&&id| sink.events(id) == 1).count() >= 10).await;
    polling.task.abort();
    let _ = polling.task.await;
    assert_eq!(queue.deleted(), 0);
    drop(sink);
    queue.set_deleting(Deleting::Works);
    // The last of the aborted tasks closes the file a moment later.
    tokio::time::sleep(SHORT).await;
    let sink = EventSink::in_directory(directory.path()).await;
    let polling = sink.poll(&queue);
    until("deleting all", || queue.left() == 0).await;
    polling.stop().await;
    assert!(ids.iter().all(|&id| sink.events(id) == 1));
}

#[tokio::test]
async fn the_poll_ends_between_batches_and_deletes_only_what_is_applied() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let ids = sink.new_messages(400).await;
    let store = sink.store.clone();
    let is_applied = move |body: &str| {
        message_of(body).is_some_and(|id| kit::at_once(store.events(id)).unwrap().len() == 1)
    };
    let queue = StubQueue::watched(LONG, is_applied).await;
    for &id in &ids {
        queue.put(delivery(id).to_string());
    }
    let polling = sink.poll(&queue);
    until("the first batches", || queue.deleted() >= 20).await;
    polling.stop().await;
    let number = queue.deleted();
    assert_eq!(queue.deleted_too_early(), 0);
    assert!((20..400).contains(&number), "{number}");
    assert_eq!(queue.left() + number, 400);
    let applied = ids.iter().filter(|&&id| sink.events(id) == 1).count();
    assert_eq!(applied, number, "a batch that is under way is ended in order");
}

#[tokio::test]
async fn events_of_purged_messages_suppress_and_leave_the_queue() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let ids = sink.new_messages(2).await;
    sink.clock.advance(RECORD_RETENTION + LONG);
    assert_eq!(sink.store.purge(sink.clock.window_time(), 10).await.unwrap().messages, 2);
    let queue = StubQueue::start(LONG).await;
    for (&id, (name, kind)) in ids.iter().zip([("bounce", "bounced"), ("complaint", "complained")])
    {
        let mut document = about(id, &format!("event-{name}-record.json"));
        let recipient = serde_json::json!([{"emailAddress": format!("{name}@example.org")}]);
        document[name][format!("{kind}Recipients")] = recipient;
        queue.put(in_sns(&document).to_string());
    }
    let polling = sink.poll(&queue);
    until("deleting all", || queue.left() == 0).await;
    polling.stop().await;
    let suppressed = sink.store.suppressions(None, 9).await.unwrap().suppressions;
    let suppressed: Vec<_> = suppressed
        .iter()
        .map(|(scope, suppression)| (*scope, suppression.address.as_str(), suppression.cause))
        .collect();
    let scope = Some(sink.organisation);
    let expected = [
        (scope, "bounce@example.org", Some(ids[0])),
        (scope, "complaint@example.org", Some(ids[1])),
    ];
    assert_eq!(suppressed, expected);
    assert_eq!(sink.events.metrics().unmatched.get(), 2);
}

#[tokio::test]
async fn a_queue_that_fails_is_asked_again_and_the_trouble_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let id = sink.new_message().await;
    let queue = StubQueue::start(LONG).await;
    queue.put(delivery(id).to_string());
    queue.fail_receives(2);
    let polling = sink.poll(&queue);
    until("the trouble", || sink.events.trouble().is_some()).await;
    assert!(sink.events.trouble().unwrap().contains("InternalFailure"));
    until("the event", || sink.events(id) == 1).await;
    until("the end of the trouble", || sink.events.trouble().is_none()).await;
    polling.stop().await;
}
