//! Obstacles of sending read plainly in `pillarbox status` and on the records.

use std::thread;
use std::time::{Duration, Instant};

use pillarbox_simulator::{EventOptions, Events, Fault, Faults, Options};

use serde_json::json;

use crate::behaviour::operator::metrics;
use crate::kit::{PATIENCE, Server, Site, answer, message, message_with};

/// Waits until the status says this, and gives the whole of it. It exits with 1 if that is critical.
async fn status_with(site: &Site, words: &str) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = String::from_utf8(site.run(&["status"]).stdout).unwrap();
        if status.contains(words) {
            return status;
        }
        assert!(Instant::now() < end, "{words:?} is not in:\n{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a waiting message shows this failure.
async fn shows(server: &Server, id: &str, code: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let record = server.record(id).await;
        if record["error"]["code"] == code && record["status"] == "queued" {
            return;
        }
        assert!(Instant::now() < end, "{record}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_account_reads_plainly_and_sending_goes_on_when_it_is_lifted() {
    let site = Site::new().await;
    site.simulator.set_faults(Faults::always(Fault::SendingPaused));
    let server = site.start();
    let first = server.send(&message()).await;
    status_with(&site, "the account is not allowed to send").await;
    let second = server.send(&message()).await;
    shows(&server, &first, "sending_paused").await;
    shows(&server, &second, "sending_paused").await;
    let status = status_with(&site, "would lose 2 messages: 2 waiting for the provider").await;
    assert!(status.contains("a stop now:"), "{status}");
    let json = crate::kit::status(&site);
    assert_eq!(json["sending"]["stopWouldLose"]["messages"], 2);
    assert!(site.simulator.calls_total() < 10, "the backlog is not thrown at it");
    site.simulator.set_faults(Faults::none());
    server.wait_for(&first, "sent").await;
    server.wait_for(&second, "sent").await;
    let status = status_with(&site, "takes messages").await;
    assert!(status.contains("would probably lose no message"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_answer_does_not_hold_the_status_up() {
    const LOCKED: Duration = Duration::from_secs(7);
    let site = Site::new().await;
    // A data file cannot be made to hang.
    let Some(database) = site.database() else { return };
    let server = site.start();
    status_with(&site, "takes writes").await;
    let lock = thread::spawn(move || {
        let seconds = LOCKED.as_secs();
        database.run(&format!(
            "BEGIN; LOCK TABLE dead_letter IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds}); COMMIT"
        ))
    });
    status_with(&site, "does not answer").await;
    let asked = Instant::now();
    let status = String::from_utf8(site.run(&["status"]).stdout).unwrap();
    assert!(status.contains("does not answer"), "{status}");
    assert!(asked.elapsed() < LOCKED / 2, "{:?}", asked.elapsed());
    let metrics = metrics(&server).await;
    assert!(metrics.contains_key("pillarbox_dead_letters"), "the last answer: {metrics:?}");
    assert!(asked.elapsed() < LOCKED / 2 + Duration::from_secs(1), "{:?}", asked.elapsed());
    lock.join().unwrap();
    status_with(&site, "takes writes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_messages_read_plainly_as_the_page_says_them() {
    let site = Site::new().await;
    site.simulator.script(vec![Fault::Rejected]);
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "failed").await;
    let status = status_with(&site, "1 message of acme failed in the last 5 minutes").await;
    assert!(status.contains("message list --status failed --org acme"), "{status}");
    let json = crate::kit::status(&site);
    let failed = json["conditions"].as_array().unwrap().iter();
    let failed: Vec<_> = failed.filter(|one| one["code"] == "messages_failed").collect();
    assert_eq!(failed.len(), 1, "{json}");
    assert_eq!(failed[0]["ready"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounce_rate_of_the_last_day_is_said_also_after_a_restart() {
    let events = Events::On(EventOptions::default());
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    let server = site.start();
    let to = |fate: &str, count| -> Vec<_> {
        (0..count).map(|n| format!("{fate}+{n}@simulator.amazonses.com")).collect()
    };
    for recipients in to("success", 100).chunks(50).chain(to("bounce", 10).chunks(1)) {
        server.send(&message_with("to", json!(recipients))).await;
    }
    let said = "acme's bounce rate of the last 24 hours is 9.09 %";
    status_with(&site, said).await;
    server.terminate().await;
    let _server = site.start();
    status_with(&site, said).await;
    let json = crate::kit::status(&site);
    let mut conditions = json["conditions"].as_array().unwrap().iter();
    let bounces = conditions.find(|one| one["code"] == "bounces").unwrap();
    assert_eq!(bounces["affected"]["organisation"], "acme");
    let from = bounces["affected"]["from"].as_str().unwrap();
    assert!(from.ends_with(":00:00.000Z"), "the beginning of an hour: {from}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_quota_reads_plainly_and_pauses_before_it_is_refused() {
    let options = Options { daily_quota: Some(1), ..Options::default() };
    let site = Site::with("", options).await;
    let server = site.start();
    let first = server.send(&message()).await;
    server.wait_for(&first, "sent").await;
    let second = server.send(&message()).await;
    status_with(&site, "the account's daily quota is used up").await;
    shows(&server, &second, "provider_quota_exhausted").await;
    site.simulator.set_daily_quota(None);
    server.wait_for(&second, "sent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_the_set_up_pauses_and_never_fails_the_queue() {
    let site = Site::new().await;
    site.simulator.set_faults(Faults::always(Fault::AccessDenied));
    let server = site.start();
    let id = server.send(&message()).await;
    shows(&server, &id, "sending_paused").await;
    status_with(&site, "sending is paused").await;
    site.simulator.set_faults(Faults::none());
    server.wait_for(&id, "sent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_read_the_providers_text_and_clients_read_ours() {
    // What the simulator says then names a domain of one organisation, an ARN and an account.
    const SECRET: [&str; 3] = ["alpha.example", "arn:aws", "123456789012"];
    let site = Site::new().await;
    let beta = site.add_organisation("beta", "beta.example");
    site.simulator.set_faults(Faults::always(Fault::AccessDenied));
    let server = site.start();
    let tried = server.send(&message()).await;
    let status = status_with(&site, "alpha.example").await;
    assert!(SECRET.iter().all(|part| status.contains(part)), "{status}");
    assert!(server.log().contains("alpha.example"));

    let from_beta = message_with("from", json!("b@beta.example"));
    let post = server.client.post(format!("{}/emails", server.base)).bearer_auth(&beta);
    let posted = post
        .header("content-type", "application/json")
        .body(from_beta.to_string())
        .send()
        .await
        .unwrap();
    let waiting = answer(posted).await.1["id"].as_str().unwrap().to_owned();
    for (id, key) in [(&tried, &server.key), (&waiting, &beta)] {
        for path in [format!("/emails/{id}"), "/emails".to_owned()] {
            let url = format!("{}{path}", server.base);
            let end = Instant::now() + PATIENCE;
            // While the message's own first call is under way, there is no failure to show.
            let text = loop {
                let request = server.client.get(&url).bearer_auth(key);
                let text = request.send().await.unwrap().text().await.unwrap();
                if text.contains("sending_paused") {
                    break text;
                }
                assert!(Instant::now() < end, "{path}: {text}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            assert!(!SECRET.iter().any(|part| text.contains(part)), "{path}: {text}");
        }
    }
}
