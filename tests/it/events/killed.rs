//! The real process, killed while it takes in a backlog.

use std::time::Duration;

use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::Status;
use pillarbox_simulator::Options;

use crate::events::document::{delivery, in_sns};
use crate::events::queue::StubQueue;
use crate::events::sink::{EventSink, NOW, until};
use crate::kit::{Process, Site};

const EVENTS: usize = if cfg!(feature = "long") { 100_000 } else { 2_000 };

/// Starts the service. It is killed with what this gives.
fn serve(site: &Site) -> Process {
    let mut command = site.service();
    command.env("RUST_LOG", "warn");
    Process::spawn(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn events_survive_kills_in_the_middle_of_a_backlog() {
    let site = Site::empty("", Options::default()).await;
    let sink = EventSink::in_store(site.open_store(NOW).await).await;
    let ids: Vec<MessageId> = sink.new_messages(EVENTS).await;
    drop(sink);
    let queue = StubQueue::start(Duration::from_secs(2)).await;
    for &id in &ids {
        queue.put(in_sns(&delivery(id)).to_string());
    }
    // Nothing is sent: events alone decide.
    let events = format!("[ses.events]\nqueue_url = \"{}\"\n", queue.url());
    site.configure("", &format!("endpoint = \"http://127.0.0.1:1\"\n{events}"));
    for part in 1..=3 {
        let process = serve(&site);
        until("a part of the backlog", || queue.deleted() >= EVENTS * part / 4).await;
        drop(process);
        println!("killed with {} of {EVENTS} events deleted", queue.deleted());
        assert!(part > 1 || queue.left() > 0, "killed too late to be in the middle");
    }
    let process = serve(&site);
    until("the rest of the backlog", || queue.left() == 0).await;
    drop(process);
    let sink = EventSink::in_store(site.open_store(NOW).await).await;
    for id in ids {
        assert_eq!(sink.store.events(id).await.unwrap().len(), 1);
        let message = sink.store.message(id, NOW).await.unwrap().unwrap();
        assert_eq!(message.status(), Status::Sent);
        assert_eq!(message.last_event.unwrap().event_type.as_str(), "delivery");
    }
}
