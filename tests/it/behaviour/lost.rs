//! Messages that a stop or a crash left unsent are shown in all places that operators read, until
//! they have seen it.

use std::time::Duration;

use pillarbox_simulator::Options;
use serde_json::{Value, json};

use crate::behaviour::operator::wait_until_ready;
use crate::kit::{Server, Site, is_on_postgres, look, message, metric, status};

const METRIC: &str = "pillarbox_start_lost_messages";

/// True if metric, page and `status` all show so many lost messages.
async fn shows(site: &Site, server: &Server, messages: u64) {
    let value = metric(server, METRIC).await.map(|value| value.to_string());
    assert_eq!(value, Some(messages.to_string()));
    let (page, text) = (look(site, server).await, site.done(&["status"]).stdout);
    let text = String::from_utf8(text).unwrap();
    let lost = status(site)["lostMessages"].clone();
    if messages == 0 {
        assert!(!page.contains("bodies_lost"), "{page}");
        assert!(!text.contains("lost messages"), "{text}");
        assert_eq!(lost, Value::Null);
        return;
    }
    assert!(
        page.contains(&format!("The process ended before it sent {messages} messages")),
        "{page}"
    );
    assert!(page.contains("pillarbox status --acknowledge"), "{page}");
    assert!(text.contains(&format!("{messages}; the process ended before it sent")), "{text}");
    assert_eq!(lost["messages"], messages);
    // It is no reason to send no more mail here.
    wait_until_ready(server).await;
}

async fn send_pending(server: &Server, messages: usize) {
    for _ in 0..messages {
        server.send(&message()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_of_the_process_left_unsent_is_shown_until_it_is_acknowledged() {
    let slow = Options { latency: Duration::from_mins(1), ..Options::default() };
    let site = Site::with("[sending]\ndrain = \"300ms\"", slow).await;
    let server = site.start();
    shows(&site, &server, 0).await;
    send_pending(&server, 3).await;
    let log = server.terminate().await;
    assert!(log.contains("messages were not sent before the stop"), "{log}");

    let server = site.start();
    shows(&site, &server, 3).await;
    assert!(server.log().contains("pillarbox status --acknowledge"));
    server.terminate().await;
    let server = site.start();
    shows(&site, &server, 3).await;
    send_pending(&server, 2).await;
    server.kill();
    if !is_on_postgres() {
        assert_eq!(status(&site)["lostMessages"]["messages"], 3, "the next start finds the others");
    }
    let server = site.start();
    shows(&site, &server, 5).await;

    let told = site.done(&["status", "--acknowledge"]).stdout;
    let told = String::from_utf8(told).unwrap();
    assert!(told.starts_with("acknowledged: 5 lost messages, the last at 20"), "{told}");
    shows(&site, &server, 0).await;
    server.terminate().await;
    shows(&site, &site.start(), 0).await;
    let again = site.done(&["status", "--acknowledge", "--json"]).stdout;
    assert_eq!(serde_json::from_slice::<Value>(&again).unwrap(), json!({ "lostMessages": null }));
}
