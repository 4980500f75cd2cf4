//! Organisations that an operator pauses, on the real binary: `org pause` and `org resume`.

use std::time::{Duration, Instant};

use pillarbox_simulator::Options;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kit::{
    PATIENCE, Server, Site, SmtpClient, answer, codes, is_on_postgres, message, message_with,
    metric, refusal, status,
};

/// A call that began before a pause is at the provider by then.
const ON_ITS_WAY: Duration = Duration::from_millis(250);
/// So long without a call, nothing sends.
const QUIET: Duration = Duration::from_millis(1_500);

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    let output = site.done(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn with_key(key: &str) -> Value {
    message_with("idempotencyKey", json!(key))
}

fn condition(site: &Site, code: &str) -> Option<Value> {
    let status = status(site);
    let mut all = status["conditions"].as_array().unwrap().iter();
    all.find(|one| one["code"] == code).cloned()
}

async fn post_batch(server: &Server, keys: &[&str]) -> reqwest::Response {
    let emails: Vec<_> = keys.iter().map(|key| with_key(key)).collect();
    let request = server.client.post(format!("{}/emails/batch", server.base));
    let request = request.bearer_auth(&server.key).header("content-type", "application/json");
    request.body(json!({ "emails": emails }).to_string()).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_starts_once_the_organisation_is_paused_and_all_go_when_it_is_resumed() {
    let site = Site::with("[sending]\nmax_rate = 20", Options::default()).await;
    let mut server = site.start();
    let beta = site.add_organisation("beta", "example.com");
    let mut ids = Vec::new();
    for _ in 0..200 {
        ids.push(server.send(&message()).await);
    }
    let paused = json_of(&site, &["org", "pause", "acme"]);
    sleep(ON_ITS_WAY).await;
    let calls = site.simulator.accepted_total();
    assert!((1..200).contains(&calls), "{calls}: it was to be in the middle");
    assert_eq!(
        (&paused["name"], &paused["paused"]["requests"]),
        (&json!("acme"), &json!("accepted"))
    );
    let (waiting, under_way) = (&paused["messagesWaiting"], &paused["callsUnderWay"]);
    let left = waiting.as_u64().unwrap() + under_way.as_u64().unwrap();
    assert!(left >= 200 - calls && waiting.as_u64().unwrap() <= 200 - calls, "{paused}, {calls}");
    let end = paused["firstEnd"].as_str().unwrap();
    assert!(end > paused["paused"]["since"].as_str().unwrap(), "{paused}");

    // It goes on to be served, and so do the others.
    ids.push(server.send(&message()).await);
    assert_eq!(server.record(&ids[200]).await["status"], "queued");
    server.key.clone_from(&beta);
    let others = server.send(&message()).await;
    server.wait_for(&others, "sent").await;
    server.key.clone_from(&site.key);
    let ticks = server.process.processor_ticks();
    sleep(QUIET).await;
    let ticks = server.process.processor_ticks() - ticks;
    assert_eq!(site.simulator.accepted_total(), calls + 1);
    assert!(ticks < 75, "{ticks} hundredths of a second: what waits costs time");
    let listed = json_of(&site, &["org", "list"]);
    assert_eq!(listed["organisations"][0]["paused"], paused["paused"], "{listed}");
    let text = String::from_utf8(site.done(&["org", "list"]).stdout).unwrap();
    assert!(text.contains("its send requests are accepted"), "{text}");
    let notice = condition(&site, "paused_by_operator").expect("operators are told");
    assert_eq!(notice["severity"], "notice", "{notice}");
    assert!(notice["message"].as_str().unwrap().contains("acme has been paused"), "{notice}");
    assert_eq!(condition(&site, "paused_messages_end"), None, "hours are left");
    assert_eq!(metric(&server, "pillarbox_organisations_paused_by_operators").await, Some(1.0));
    let waiting = metric(&server, "pillarbox_queue_paused_messages").await;
    assert_eq!(waiting, Some(f64::from(u32::try_from(201 - calls).unwrap())));

    let resumed = json_of(&site, &["org", "resume", "acme"]);
    assert_eq!(resumed["name"], "acme");
    for id in &ids {
        server.wait_for(id, "sent").await;
    }
    assert_eq!(site.simulator.accepted_total(), 202, "each once");
    assert_eq!(condition(&site, "paused_by_operator"), None);
    json_of(&site, &["org", "resume", "acme"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_get_503_and_replays_and_reads_are_answered() {
    let more = "[smtp]\nlisten = \"127.0.0.1:0\"\n";
    let site = Site::with(more, Options::default()).await;
    let server = site.start();
    let id = server.send(&with_key("one")).await;
    let mut smtp = SmtpClient::login(server.process.smtp_listening(), &server.key).await.unwrap();
    json_of(&site, &["org", "pause", "acme", "--refuse"]);

    let response = server.post(&message()).send().await.unwrap();
    assert_eq!(response.headers()["retry-after"], "60");
    assert_eq!(refusal(response).await, (503, "Paused".to_owned(), None));
    let response = server.post(&with_key("two")).send().await.unwrap();
    assert_eq!(refusal(response).await.1, "Paused");
    assert_eq!(server.send(&with_key("one")).await, id);
    assert_eq!(answer(post_batch(&server, &["one", "one"]).await).await.0, 200);
    let response = post_batch(&server, &["one", "two"]).await;
    assert_eq!(response.headers()["retry-after"], "60");
    assert_eq!(refusal(response).await, (503, "Paused".to_owned(), None));
    // The checks before come first.
    let wrong = message_with("from", json!("ann@example.net"));
    let response = server.post(&wrong).send().await.unwrap();
    assert_eq!(refusal(response).await.1, "UnverifiedDomain");
    assert_eq!(server.record(&id).await["id"], json!(id));
    let reply = smtp.submit(&["bob@example.org"], "From: ann@example.com\r\n\r\nHi\r\n").await;
    assert_eq!(codes(&reply.unwrap()), "451 4.3.2");
    // The checks after it do not.
    site.done(&["org", "limit", "acme", "--per-day", "1"]);
    let response = server.post(&message()).send().await.unwrap();
    assert_eq!(refusal(response).await, (503, "Paused".to_owned(), None));
    let response = post_batch(&server, &["three"]).await;
    assert_eq!(refusal(response).await, (503, "Paused".to_owned(), None));
    let reply = smtp.submit(&["bob@example.org"], "From: ann@example.com\r\n\r\nHi\r\n").await;
    assert_eq!(codes(&reply.unwrap()), "451 4.3.2");
    site.done(&["org", "limit", "acme", "--none"]);

    // A refused request binds no key.
    json_of(&site, &["org", "pause", "acme", "--accept"]);
    let second = server.send(&with_key("two")).await;
    json_of(&site, &["org", "resume", "acme"]);
    server.wait_for(&second, "sent").await;
    for (wrong, code) in [
        (&["org", "pause", "nobody"][..], 1),
        (&["org", "resume", "nobody"], 1),
        (&["org", "pause", "acme", "--accept", "--refuse"], 2),
    ] {
        assert_eq!(site.run(wrong).status.code(), Some(code), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_outlives_a_kill_and_can_be_made_while_no_service_runs() {
    let site = Site::new().await;
    let server = site.start();
    let paused = json_of(&site, &["org", "pause", "acme", "--refuse"]);
    server.kill();
    let server = site.start();
    let response = server.post(&message()).send().await.unwrap();
    assert_eq!(refusal(response).await.1, "Paused");
    let again = json_of(&site, &["org", "pause", "acme"]);
    assert_eq!(again["paused"]["since"], paused["paused"]["since"]);
    let id = server.send(&message()).await;
    sleep(QUIET).await;
    assert_eq!(server.record(&id).await["status"], "queued");
    json_of(&site, &["org", "resume", "acme"]);
    server.wait_for(&id, "sent").await;
    server.kill();
    if is_on_postgres() {
        return;
    }
    json_of(&site, &["org", "pause", "acme"]);
    let server = site.start();
    let id = server.send(&message()).await;
    sleep(QUIET).await;
    assert_eq!(server.record(&id).await["status"], "queued");
    server.kill();
    json_of(&site, &["org", "resume", "acme"]);
    let server = site.start();
    let id = server.send(&message()).await;
    server.wait_for(&id, "sent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_messages_goes_on_while_their_organisation_is_paused() {
    let site = Site::with("[sending]\nretry_for = \"20s\"", Options::default()).await;
    let server = site.start();
    json_of(&site, &["org", "pause", "acme"]);
    let posted = Instant::now();
    let id = server.send(&message()).await;
    sleep(Duration::from_secs(2)).await;
    let paused = json_of(&site, &["org", "pause", "acme"]);
    let created = server.record(&id).await["createdAt"].as_str().unwrap().to_owned();
    let seconds = |text: &str| humantime::parse_rfc3339(text).unwrap();
    let end = seconds(paused["firstEnd"].as_str().unwrap());
    let lasts = end.duration_since(seconds(&created)).unwrap();
    assert!(
        lasts.abs_diff(Duration::from_secs(20)) < Duration::from_secs(1),
        "{paused}, {created}"
    );
    let text = String::from_utf8(site.done(&["org", "pause", "acme"]).stdout).unwrap();
    assert!(text.contains("the first waiting message fails"), "{text}");
    let warning = condition(&site, "paused_messages_end").expect("it ends within an hour");
    assert_eq!(warning["severity"], "warning", "{warning}");
    let end = Instant::now() + Duration::from_secs(20) + PATIENCE;
    let record = loop {
        let record = server.record(&id).await;
        if record["status"] != "queued" {
            break record;
        }
        assert!(Instant::now() < end, "{record}");
        sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(
        (&record["status"], &record["error"]["code"], &record["attempts"]),
        (&json!("failed"), &json!("retries_exhausted"), &json!(0))
    );
    assert!(posted.elapsed() > Duration::from_secs(19), "{:?}", posted.elapsed());
    assert_eq!(site.simulator.accepted_total(), 0);
}
