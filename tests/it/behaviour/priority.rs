//! Priorities of messages, on the real binary: requests, keys, records, and the order of calls.

use pillarbox_simulator::{Fault, Faults, Options};
use serde_json::{Value, json};

use crate::kit::{
    Finished, Manager, Server, Site, SmtpClient, answer, codes, message, message_with, refusal,
};

/// One call after the other, so that the provider sees the queue's order.
const ONE_CALL: &str = "[sending]\nmax_in_flight = 1\n";

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    let output = site.done(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The priority of a message as its record and as operators see it.
async fn priorities(site: &Site, server: &Server, id: &str) -> (Value, Value) {
    let shown = json_of(site, &["message", "show", id]);
    (server.record(id).await["priority"].clone(), shown["priority"].clone())
}

async fn batch(server: &Server, emails: &[Value]) -> reqwest::Response {
    let request = server.client.post(format!("{}/emails/batch", server.base));
    let request = request.bearer_auth(&server.key).header("content-type", "application/json");
    request.body(json!({ "emails": emails }).to_string()).send().await.unwrap()
}

/// Posts so many messages of each priority, the normal ones first; their subjects say which they are.
async fn post(server: &Server, normal: usize, high: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for (priority, count) in [("normal", normal), ("high", high)] {
        for n in 0..count {
            let mut message = message_with("priority", json!(priority));
            message["subject"] = json!(format!("{priority} {n:03}"));
            ids.push(server.send(&message).await);
        }
    }
    ids
}

/// Waits until all are sent, and returns their subjects in the order of their calls.
async fn order(site: &Site, server: &Server, ids: &[String]) -> Vec<String> {
    for id in ids {
        server.wait_for(id, "sent").await;
    }
    site.simulator.messages().iter().map(|message| message.subject.clone()).collect()
}

/// While both wait, each ten calls have nine high ones and a normal one, each in the order of
/// acceptance.
fn assert_order(subjects: &[String], both_wait: usize) {
    let is_high = |subject: &&String| subject.starts_with("high");
    for ten in subjects[..both_wait].windows(10) {
        assert_eq!(ten.iter().filter(is_high).count(), 9, "{subjects:?}");
    }
    let (high, normal): (Vec<_>, Vec<_>) = subjects.iter().partition(is_high);
    assert!(high.is_sorted() && normal.is_sorted(), "{subjects:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_priority_is_checked_stored_and_shown() {
    let site = Site::with("[smtp]\nlisten = \"127.0.0.1:0\"\n", Options::default()).await;
    let mut server = site.start();
    let with = |priority: Value| message_with("priority", priority);
    for wrong in [json!("urgent"), json!(""), json!("High"), json!(1), json!(["high"])] {
        let refused = refusal(server.post(&with(wrong.clone())).send().await.unwrap()).await;
        let expected = (422, "ValidationError".to_owned(), Some("priority".to_owned()));
        assert_eq!(refused, expected, "{wrong}");
        let refused = refusal(batch(&server, &[message(), with(wrong)]).await).await;
        assert_eq!(refused.2.as_deref(), Some("emails[1].priority"));
    }
    let null = json!(null);
    for (given, shown) in
        [(null.clone(), "normal"), (json!("normal"), "normal"), (json!("high"), "high")]
    {
        let mut message = message();
        message["priority"] = given.clone();
        let id = server.send(&message).await;
        assert_eq!(priorities(&site, &server, &id).await, (given.clone(), json!(shown)));
        let record = server.wait_for(&id, "sent").await;
        assert_eq!(record.get("priority"), Some(&given).filter(|given| !given.is_null()));
    }
    let (status, answers) = answer(batch(&server, &[message(), with(json!("high"))]).await).await;
    assert_eq!(status, 200, "{answers}");
    for (n, shown) in [(0, (null.clone(), json!("normal"))), (1, (json!("high"), json!("high")))] {
        let id = answers["emails"][n]["id"].as_str().unwrap();
        assert_eq!(priorities(&site, &server, id).await, shown);
    }

    // A key's own priority, also of the key that replaces it, and over SMTP.
    let refused = site.run(&["key", "add", "--org", "acme", "--priority", "urgent"]);
    assert_eq!(refused.status.code(), Some(2));
    let added = json_of(&site, &["key", "add", "--org", "acme", "--priority", "high"]);
    let rotated = json_of(&site, &["key", "rotate", &added["id"].to_string()]);
    let keys = json_of(&site, &["key", "list"]);
    let listed: Vec<_> =
        keys["keys"].as_array().unwrap().iter().map(|key| &key["priority"]).collect();
    assert_eq!(listed, ["normal", "high", "high"]);
    let table = String::from_utf8(site.done(&["key", "list"]).stdout).unwrap();
    assert!(table.contains("PRIORITY") && table.contains("high"), "{table}");
    for key in [&added, &rotated] {
        key["key"].as_str().unwrap().clone_into(&mut server.key);
        let id = server.send(&message()).await;
        assert_eq!(priorities(&site, &server, &id).await, (null.clone(), json!("high")));
        let id = server.send(&with(json!("normal"))).await;
        assert_eq!(priorities(&site, &server, &id).await, (json!("normal"), json!("normal")));
        let address = server.process.smtp_listening();
        let mut smtp = SmtpClient::login(&address, &server.key).await.unwrap();
        for command in ["MAIL FROM:<ann@example.com>", "RCPT TO:<bob@example.org>", "DATA"] {
            smtp.ask(command).await.unwrap();
        }
        let mail = "From: ann@example.com\r\nSubject: Hello\r\n\r\nHello\r\n.";
        let reply = smtp.ask(mail).await.unwrap();
        assert_eq!(codes(&reply), "250 2.0.0", "{reply}");
        let id = reply.trim_end().rsplit(' ').next().unwrap();
        assert_eq!(priorities(&site, &server, id).await, (null.clone(), json!("high")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nine_of_ten_calls_are_for_high_messages_while_normal_ones_wait_too() {
    let site = Site::with(ONE_CALL, Options::default()).await;
    let server = site.start();
    site.done(&["org", "pause", "acme"]);
    let ids = post(&server, 50, 40).await;
    site.done(&["org", "resume", "acme"]);
    let subjects = order(&site, &server, &ids).await;
    assert_order(&subjects, 44);
    assert_eq!(subjects.len(), 90);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_and_a_restart_keep_priorities_and_order() {
    let site = Site::with(ONE_CALL, Options::default()).await;
    let manager = Manager::of(&site, 2, Vec::new());
    let server = manager.start(&site);
    site.done(&["org", "pause", "acme"]);
    let mut ids = post(&server, 20, 20).await;
    Finished::run(site.command(&["restart", "--json"])).await.json();
    let shown = json_of(&site, &["message", "show", &ids[30]]);
    assert_eq!((&shown["status"], &shown["priority"]), (&json!("queued"), &json!("high")));
    server.kill();
    let server = manager.start(&site);
    site.done(&["org", "resume", "acme"]);
    let subjects = order(&site, &server, &ids).await;
    assert_order(&subjects, 20);
    ids.dedup();
    assert_eq!((subjects.len(), site.simulator.accepted_total()), (40, ids.len() as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_backs_off_keeps_its_priority_and_holds_up_nobody() {
    let more = format!("{ONE_CALL}retry_initial = \"50ms\"\nretry_max = \"100ms\"\n");
    let site = Site::with(&more, Options::default()).await;
    let server = site.start();
    site.simulator.set_faults(Faults::always(Fault::Throttled));
    let ids = post(&server, 3, 3).await;
    for id in &ids {
        while server.record(id).await["attempts"] == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    site.simulator.set_faults(Faults::none());
    let subjects = order(&site, &server, &ids).await;
    assert_eq!(subjects.len(), ids.len());
    for (id, shown) in ids.iter().zip(["normal", "normal", "normal", "high", "high", "high"]) {
        assert_eq!(priorities(&site, &server, id).await, (json!(shown), json!(shown)));
    }
}
