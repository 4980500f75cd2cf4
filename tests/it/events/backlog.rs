//! A backlog in the queue: several receives at once while it lasts, and how fast it goes.

use std::time::{Duration, Instant};

use crate::events::document::{delivery, in_sns};
use crate::events::queue::StubQueue;
use crate::events::sink::{EventSink, until};

/// In the long form, the figure that the project promises; in the short one, the same path.
const EVENTS: usize = if cfg!(feature = "long") { 100_000 } else { 2_500 };

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_taken_in_by_many_receives_and_an_idle_queue_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::in_directory(directory.path()).await;
    let ids = sink.new_messages(EVENTS).await;
    let queue = StubQueue::start(Duration::from_mins(5)).await;
    for &id in &ids {
        queue.put(in_sns(&delivery(id)).to_string());
    }
    let started = Instant::now();
    let polling = sink.poll(&queue);
    until("taking in the backlog", || queue.left() == 0).await;
    let took = started.elapsed();
    let rate = f64::from(u32::try_from(EVENTS).unwrap()) / took.as_secs_f64();
    println!(
        "{EVENTS} events in {took:?}: {rate:.0} a second, each batch durable before its delete"
    );
    assert!(ids.iter().all(|&id| sink.events(id) == 1));
    let (_, most) = queue.receiving();
    assert!(most > 4, "{most} receives at once");
    // The last of them wait for their time, and one is left.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(queue.receiving().0 <= 1, "{} receives of an idle queue", queue.receiving().0);
    polling.stop().await;
}
