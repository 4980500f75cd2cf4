//! Webhooks over real HTTP: endpoints, their commands, and what they are sent.

use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pillarbox_domain::feed::{FeedEventType, FeedTypes};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::webhook::{
    EarlierSecrets, PausedBy, SigningSecret, Webhook, WebhookFormat, WebhookState, WebhookUrl,
};
use pillarbox_simulator::{EventOptions, Events, Options};
use pillarbox_store::{NewWebhook, WebhookAdded};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kit::{
    DevProcess, Finished, LocalService, PATIENCE, Receiver, Reply, Site, http_client, message,
    send_with_key,
};

/// Longer than the service takes to do something that it must not do.
const MOMENT: Duration = Duration::from_millis(600);

/// Adds an endpoint by the command line; gives its number and its secret.
fn add(site: &Site, url: &str, more: &[&str]) -> (String, String) {
    let arguments = [&["webhook", "add", "--org", "acme", url, "--json"], more].concat();
    let output = site.done(&arguments);
    let added: Value = serde_json::from_slice(&output.stdout).unwrap();
    (added["id"].to_string(), added["secret"].as_str().unwrap().to_owned())
}

fn list(site: &Site) -> Vec<Value> {
    let output = site.done(&["webhook", "list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    list["webhooks"].as_array().unwrap().clone()
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn endpoints_are_added_listed_changed_and_removed_with_and_without_a_service() {
    let site = Site::new().await;
    let url = "https://app.example.com/hooks";
    let (on_file, _) = add(&site, url, &["--types", "email.bounce,email.complaint"]);
    let server = site.start();
    let (id, secret) = add(&site, "http://10.0.0.7:8080/", &[]);
    assert!(secret.starts_with("whsec_") && secret.len() == 6 + 44, "32 bytes in base64");
    let listed = list(&site);
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["types"], json!(["email.bounce", "email.complaint"]));
    assert_eq!((&listed[0]["url"], &listed[0]["state"]), (&json!(url), &json!("active")));
    assert_eq!(listed[1]["types"].as_array().unwrap().len(), 8);
    let text = String::from_utf8(site.done(&["webhook", "list"]).stdout).unwrap();
    assert!(text.contains(url) && !text.contains("whsec_"), "{text}");

    site.done(&["webhook", "pause", &id]);
    assert_eq!(list(&site)[1]["state"], "paused");
    site.done(&["webhook", "resume", &id]);
    assert_eq!(list(&site)[1]["state"], "active");
    let rotated = site.done(&["webhook", "rotate", &id, "--json"]);
    let rotated: Value = serde_json::from_slice(&rotated.stdout).unwrap();
    assert_ne!(rotated["secret"], json!(secret));
    assert!(list(&site)[1]["rotatingUntil"].is_string());
    site.done(&["webhook", "remove", &on_file]);
    assert_eq!(list(&site).len(), 1);
    assert!(!site.run(&["webhook", "remove", &on_file]).status.success());

    for (url, reason) in [
        ("ftp://example.com/", "neither https nor http"),
        ("https://user:pw@example.com/", "user name or a password"),
        ("example.com", "not a URL"),
        ("https://exa mple.com/", "not a URL"),
        ("https://1.2.3.4.5/", "cannot be called"),
    ] {
        let refused = Finished::from(site.run(&["webhook", "add", "--org", "acme", url]));
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.err.contains(reason), "{}", refused.err);
    }
    let ca = site.directory().join("ca.pem");
    std::fs::write(&ca, "no certificate").unwrap();
    let ca = ca.to_str().unwrap();
    let refused = site.run(&["webhook", "add", "--org", "acme", url, "--ca", ca]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("certificates cannot be used"));
    let refused = site.run(&["webhook", "add", "--org", "acme", url, "--types", "bounce"]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("email.bounce"));

    site.done(&["org", "remove", "acme"]);
    assert_eq!(list(&site), [] as [Value; 0], "endpoints go with their organisation");
    let log = server.terminate().await;
    assert!(!log.contains(&secret[6..]), "no secret in the log");
}

#[tokio::test]
async fn a_test_event_is_signed_and_its_answer_printed() {
    let site = Site::new().await;
    let receiver = Receiver::start(Reply::Status(204)).await;
    let (id, secret) = add(&site, &receiver.url, &[]);
    let _server = site.start_for_commands();
    let test = || Finished::run(site.command(&["webhook", "test", &id, "--json"]));
    let answer = test().await.json();
    assert_eq!((&answer["delivered"], &answer["answer"]), (&json!(true), &json!("status 204")));
    let received = receiver.received().remove(0);
    assert!(received.is_signed_by(&secret));
    assert_eq!(received.content_type, "application/json");
    let event = received.event();
    assert_eq!((&event["type"], &event["id"]), (&json!("email.test"), &json!(received.id)));
    receiver.set(Reply::With(302, "location", receiver.url.clone()));
    let refused = test().await;
    assert_eq!(refused.code, 1);
    let answer: Value = serde_json::from_str(&refused.out).unwrap();
    assert_eq!(answer["delivered"], json!(false));
    assert_eq!(answer["answer"], "status 302; redirects are not followed");
    assert_eq!(answer["body"], "noted");
    assert_eq!(receiver.count(), 2, "the redirect was not followed");
}

#[tokio::test]
async fn events_are_delivered_in_the_feeds_order_from_the_endpoints_addition_on() {
    const MESSAGES: usize = 40;
    let events = Events::On(EventOptions::after(Duration::from_millis(20)));
    let site = Site::with("", Options { events, ..Options::default() }).await;
    site.read_events();
    let server = site.start();
    let before = server.send(&message()).await;
    server.wait_for(&before, "sent").await;
    let end = Instant::now() + PATIENCE;
    while server.record(&before).await["lastEvent"].is_null() {
        assert!(Instant::now() < end, "no event");
        sleep(Duration::from_millis(10)).await;
    }
    let receiver = Receiver::start(Reply::Slow(Duration::from_millis(5), 200)).await;
    let bounces = Receiver::start(Reply::Status(200)).await;
    let (_, secret) = add(&site, &receiver.url, &[]);
    add(&site, &bounces.url, &["--types", "email.bounce"]);
    let mut ids = BTreeSet::new();
    for _ in 0..MESSAGES {
        ids.insert(server.send(&message()).await);
    }
    let received = receiver.wait_for(2 * MESSAGES).await;
    sleep(MOMENT).await;
    assert_eq!(receiver.count(), 2 * MESSAGES, "nothing before the addition, nothing twice");
    assert!(receiver.most_open() <= 16);
    let mut order: Vec<_> = received.iter().map(|one| one.id.as_str()).collect();
    // Attempts begin in order; sixteen of them may overtake one another on their way.
    let come = order.clone();
    order.sort_unstable();
    for (place, id) in come.iter().enumerate() {
        assert!(order.iter().position(|other| other == id).unwrap().abs_diff(place) < 16);
    }
    for one in &received {
        assert!(one.is_signed_by(&secret));
        let event = one.event();
        assert_eq!(event["id"], json!(one.id));
        assert!(ids.contains(event["data"]["id"].as_str().unwrap()), "{event}");
        assert_eq!(event["data"]["to"], json!(["bob@example.org"]));
        match event["type"].as_str().unwrap() {
            "email.sent" => assert!(event["data"]["sesMessageId"].is_string()),
            "email.delivery" => assert_eq!(event["data"]["event"]["type"], "delivery"),
            other => panic!("{other}"),
        }
        assert!(!one.body.contains("How are you?"), "no message body");
    }
    let mut bounce = message();
    bounce["to"] = json!(["bounce@simulator.amazonses.com"]);
    server.send(&bounce).await;
    let told = bounces.wait_for(1).await;
    assert_eq!(told[0].event()["type"], "email.bounce");
    assert_eq!(bounces.count(), 1, "other types are not told");
    let listed = &list(&site)[0];
    until("the list shows how it goes", async || {
        list(&site)[0]["deliveries"]["delivered"].as_u64() == Some(2 * MESSAGES as u64 + 2)
    })
    .await;
    assert_eq!(listed["deliveries"]["lastAnswer"], "status 200");
    let log = server.terminate().await;
    assert!(!log.contains(&secret[6..]), "no secret in the log");
}

/// A service in this process on a manual clock, with one endpoint.
struct Place {
    site: LocalService,
    receiver: Receiver,
    webhook: Webhook,
}

impl Place {
    async fn start(reply: Reply, types: FeedTypes) -> Self {
        let local = LocalService::start(Options::default(), |_, _| {}).await;
        let receiver = Receiver::start(reply).await;
        let webhook = Self::add(&local, &receiver, types).await;
        Self { site: local, receiver, webhook }
    }

    async fn add(local: &LocalService, receiver: &Receiver, types: FeedTypes) -> Webhook {
        let new = NewWebhook {
            url: WebhookUrl::parse(&receiver.url).unwrap(),
            types,
            format: WebhookFormat::Standard,
            authority: None,
            secret: SigningSecret::generate().unwrap(),
        };
        let store = local.service.store();
        let added = store.add_webhook(OrganisationId(1), new, local.clock.now()).await.unwrap();
        let WebhookAdded::Added(webhook) = added else { panic!("{added:?}") };
        *webhook
    }

    async fn send(&self) {
        let key = format!("{:x}", fastrand::u64(..));
        send_with_key(&self.site.client, &self.site.service, &self.site.key, &key).await;
    }

    fn pass(&self, time: Duration) {
        self.site.clock.set(self.site.clock.now().plus(time));
    }

    /// Attempts so far of each delivery that waits.
    async fn waiting(&self) -> Vec<usize> {
        let store = self.site.service.store();
        let page = store.waiting_deliveries(self.webhook.id, 1_000).await.unwrap();
        let attempts = page.deliveries.iter().map(|waiting| waiting.delivery.attempts);
        attempts.map(|attempts| usize::try_from(attempts).unwrap()).collect()
    }

    async fn failed(&self) -> usize {
        let store = self.site.service.store();
        store.failed_deliveries(self.webhook.id, 1_000).await.unwrap().len()
    }
}

/// Waits between attempts, as docs/webhooks.md promises them.
const WAITS: [Duration; 9] = [
    Duration::from_secs(5),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
    Duration::from_hours(14),
    Duration::from_hours(20),
    Duration::from_hours(24),
];

#[tokio::test]
async fn a_failed_delivery_is_tried_again_by_the_schedule_and_then_listed_as_failed() {
    let place = Place::start(Reply::Status(500), FeedTypes::ALL).await;
    place.send().await;
    for (attempt, delay) in (1..).zip(WAITS) {
        let received = place.receiver.wait_for(attempt).await;
        until("the delivery waits", async || place.waiting().await == [attempt]).await;
        let (first, last) = (&received[0], &received[attempt - 1]);
        assert_eq!((&first.id, &first.body), (&last.id, &last.body), "the same event");
        let now = place.site.clock.now().unix_millis() / 1_000;
        assert_eq!(last.timestamp, now.to_string(), "a new time at every attempt");
        place.pass(delay.saturating_sub(Duration::from_millis(1)));
        sleep(Duration::from_millis(300)).await;
        assert_eq!(place.receiver.count(), attempt, "not before its time");
        place.pass(delay / 8);
    }
    place.receiver.wait_for(WAITS.len() + 1).await;
    until("the delivery has failed", async || place.failed().await == 1).await;
    assert_eq!(place.waiting().await, [0; 0]);
    place.pass(Duration::from_hours(48));
    sleep(MOMENT).await;
    assert_eq!(place.receiver.count(), WAITS.len() + 1, "that was the last attempt");
    // What is past its retention is forgotten.
    let store = place.site.service.store();
    let end = place.site.clock.now().plus(RECORD_RETENTION);
    assert_eq!(store.sweep_webhooks(end.into(), 10).await.unwrap(), 1);
    assert_eq!(place.failed().await, 0);
    place.site.service.stop().await;
}

#[tokio::test]
async fn an_endpoint_may_ask_for_more_time_and_a_delivery_that_succeeds_is_over() {
    let reply = Reply::With(503, "retry-after", "120".to_owned());
    let place = Place::start(reply, FeedTypes::ALL).await;
    place.send().await;
    place.receiver.wait_for(1).await;
    until("the delivery waits", async || place.waiting().await == [1]).await;
    place.receiver.set(Reply::Status(202));
    place.pass(Duration::from_secs(119));
    sleep(MOMENT).await;
    assert_eq!(place.receiver.count(), 1);
    place.pass(Duration::from_secs(15));
    place.receiver.wait_for(2).await;
    until("nothing waits", async || place.waiting().await.is_empty()).await;
    assert_eq!(place.failed().await, 0);
    place.site.service.stop().await;
}

#[tokio::test]
async fn an_endpoint_that_answers_410_is_paused_until_it_is_resumed_and_misses_nothing() {
    let place = Place::start(Reply::Status(410), FeedTypes::ALL).await;
    let store = place.site.service.store().clone();
    let id = place.webhook.id;
    place.send().await;
    place.receiver.wait_for(1).await;
    until("it is paused", async || {
        let state = store.webhook(id).unwrap().state;
        matches!(state, WebhookState::Paused { by: PausedBy::Endpoint, .. })
    })
    .await;
    place.send().await;
    sleep(MOMENT).await;
    assert_eq!(place.receiver.count(), 1, "nothing is sent to it");
    place.receiver.set(Reply::Status(200));
    store.set_webhook_state(id, WebhookState::Active).await.unwrap();
    let received = place.receiver.wait_for(3).await;
    assert_eq!(received[0].id, received[1].id, "what it refused comes first");
    assert!(received[1].id < received[2].id);
    place.site.service.stop().await;
}

/// Polls a future once, on this thread.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn an_endpoint_that_is_resumed_before_its_task_saw_the_pause_is_tried_again() {
    let place = Place::start(Reply::Status(410), FeedTypes::ALL).await;
    let store = place.site.service.store().clone();
    let id = place.webhook.id;
    let is_paused = || store.webhook(id).unwrap().state != WebhookState::Active;
    place.send().await;
    place.receiver.wait_for(1).await;
    place.receiver.set(Reply::Status(200));
    let end = Instant::now() + PATIENCE;
    // The endpoint's task runs on this thread: while this one waits without giving it up, only the
    // store's writer works.
    while !is_paused() {
        assert!(Instant::now() < end, "it is never paused");
        sleep(Duration::from_millis(1)).await;
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end && !is_paused() {
            std::hint::spin_loop();
        }
    }
    let mut resumed = pin!(store.set_webhook_state(id, WebhookState::Active));
    // The writer may be done before this returns.
    let at_once = poll_once(resumed.as_mut());
    while is_paused() {
        assert!(Instant::now() < end, "it is never resumed");
        std::hint::spin_loop();
    }
    let done = match at_once {
        Poll::Ready(done) => done,
        Poll::Pending => resumed.await,
    };
    done.unwrap();
    let received = place.receiver.wait_for(2).await;
    assert_eq!(received[0].id, received[1].id, "what it refused is tried again");
    place.send().await;
    place.receiver.wait_for(3).await;
    place.site.service.stop().await;
}

#[tokio::test]
async fn both_secrets_sign_for_a_day_after_a_rotation() {
    let types = FeedTypes::from_iter([FeedEventType::Sent]);
    let place = Place::start(Reply::Status(200), types).await;
    let store = place.site.service.store().clone();
    let old = place.webhook.secret.reveal();
    let new = SigningSecret::generate().unwrap();
    let now = place.site.clock.now();
    let earlier = EarlierSecrets::Sign;
    store.rotate_webhook(place.webhook.id, new.clone(), earlier, now).await.unwrap();
    place.send().await;
    let received = place.receiver.wait_for(1).await;
    assert!(received[0].is_signed_by(&old) && received[0].is_signed_by(&new.reveal()));
    place.pass(Duration::from_hours(24));
    place.send().await;
    let received = place.receiver.wait_for(2).await;
    assert!(!received[1].is_signed_by(&old) && received[1].is_signed_by(&new.reveal()));
    place.site.service.stop().await;
}

#[tokio::test]
async fn every_secret_of_the_last_day_signs_and_now_ends_the_earlier_ones() {
    let site = Site::new().await;
    let receiver = Receiver::start(Reply::Status(200)).await;
    let (id, first) = add(&site, &receiver.url, &["--types", "email.sent"]);
    let server = site.start();
    let rotate = |more: &[&str]| {
        let ran = site.done(&[&["webhook", "rotate", &id, "--json"], more].concat());
        let rotated: Value = serde_json::from_slice(&ran.stdout).unwrap();
        (rotated["secret"].as_str().unwrap().to_owned(), rotated["signing"].clone())
    };
    let mut secrets = vec![first];
    let mut told = 0;
    // Which of the secrets sign the next event.
    let mut signing = async |secrets: &[String]| {
        server.send(&message()).await;
        told += 1;
        let received = receiver.wait_for(told).await;
        let last = received.last().unwrap();
        secrets.iter().map(|secret| last.is_signed_by(secret)).collect::<Vec<_>>()
    };
    for number in 2..=7 {
        let (secret, count) = rotate(&[]);
        secrets.push(secret);
        let expected = number.min(5);
        assert_eq!(count, expected, "rotation {number}");
        let signed = signing(&secrets).await;
        let wanted: Vec<_> = (0..number).map(|index| index >= number - expected).collect();
        assert_eq!(signed, wanted, "all of the last day sign, at most 5");
    }
    let (last, count) = rotate(&["--now"]);
    secrets.push(last);
    assert_eq!(count, 1);
    let signed = signing(&secrets).await;
    assert_eq!(signed, [vec![false; 7], vec![true]].concat());
    assert_eq!(list(&site)[0]["rotatingUntil"], Value::Null);
    let told = site.done(&["webhook", "rotate", &id]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("2 secrets sign"), "{told}");
    server.terminate().await;
}

#[tokio::test]
async fn deliveries_survive_a_restart_and_an_endpoint_that_was_away() {
    const MESSAGES: usize = 25;
    let site = Site::new().await;
    let server = site.start();
    let receiver = Receiver::start(Reply::Status(503)).await;
    add(&site, &receiver.url, &[]);
    for _ in 0..MESSAGES {
        server.send(&message()).await;
    }
    receiver.wait_for(10).await;
    server.kill();
    let server = site.start();
    receiver.set(Reply::Status(200));
    let is_all_told = async || {
        let received = receiver.received();
        let told: BTreeSet<_> = received.iter().map(|one| &one.id).collect();
        told.len() == MESSAGES && {
            let listed = list(&site);
            listed[0]["deliveries"]["waiting"] == 0 && listed[0]["deliveries"]["inFlight"] == 0
        }
    };
    until("every event was told", is_all_told).await;
    server.terminate().await;
}

#[tokio::test]
async fn events_are_replayed_from_a_time_on_or_one_by_one() {
    let site = Site::new().await;
    let server = site.start();
    let receiver = Receiver::start(Reply::Status(200)).await;
    let (id, _) = add(&site, &receiver.url, &[]);
    for _ in 0..3 {
        server.send(&message()).await;
    }
    let first: Vec<_> = receiver.wait_for(3).await.into_iter().map(|one| one.id).collect();
    let deliveries = |more: &[&str]| {
        let arguments = [&["webhook", "deliveries", &*id, "--json"], more].concat();
        let list: Value = serde_json::from_slice(&site.done(&arguments).stdout).unwrap();
        list["deliveries"].as_array().unwrap().clone()
    };
    until("all are delivered", async || deliveries(&[]).len() == 3).await;
    let listed = deliveries(&[]);
    assert!(listed.iter().all(|one| one["state"] == "delivered" && one["attempts"] == 1));
    let told: BTreeSet<_> = listed.iter().map(|one| one["event"].as_str().unwrap()).collect();
    assert_eq!(told, first.iter().map(String::as_str).collect());
    assert_eq!(
        (&listed[0]["type"], &listed[0]["answer"]),
        (&json!("email.sent"), &json!("status 200"))
    );
    assert_eq!(deliveries(&["--failed"]), [] as [Value; 0]);

    let replay = |arguments: &[&str]| site.run(&[&["webhook", "replay", &*id], arguments].concat());
    assert!(replay(&["--event", &first[1]]).status.success());
    let again = receiver.wait_for(4).await.remove(3);
    assert_eq!(again.id, first[1]);
    assert!(replay(&["--since", "1h"]).status.success());
    let mut again: Vec<_> =
        receiver.wait_for(7).await.into_iter().skip(4).map(|one| one.id).collect();
    again.sort_unstable();
    let mut all = first.clone();
    all.sort_unstable();
    assert_eq!(again, all, "each once more");
    sleep(MOMENT).await;
    assert_eq!(receiver.count(), 7);
    for (arguments, reason) in [
        (["--event", "evt_0"], "not an event"),
        (["--since", "tomorrow"], "is not a time"),
        (["--since", "2999-01-01"], "is in the future"),
    ] {
        let refused = Finished::from(replay(&arguments));
        assert!(refused.code == 1 && refused.err.contains(reason), "{refused:?}");
    }
    assert_eq!(replay(&[]).status.code(), Some(2), "one of the two is needed");
    assert!(!site.run(&["webhook", "replay", "99", "--since", "1h"]).status.success());
    server.terminate().await;
}

#[tokio::test]
async fn delivered_events_are_replayed_while_an_earlier_one_is_still_under_way() {
    let site = Site::new().await;
    let server = site.start();
    let receiver = Receiver::start(Reply::Status(200)).await;
    receiver.next([Reply::Slow(Duration::from_secs(5), 200)]);
    let (id, _) = add(&site, &receiver.url, &[]);
    server.send(&message()).await;
    receiver.wait_for(1).await;
    server.send(&message()).await;
    let delivered = receiver.wait_for(2).await.remove(1).id;
    until("it is delivered", async || list(&site)[0]["deliveries"]["delivered"] == 1).await;
    let replay = |arguments: &[&str]| {
        let replayed = site.done(&[&["webhook", "replay", &*id], arguments].concat());
        String::from_utf8(replayed.stdout).unwrap()
    };
    let said = replay(&["--event", &delivered]);
    assert!(said.contains("again"), "{said}");
    assert_eq!(receiver.wait_for(3).await.remove(2).id, delivered);
    let said = replay(&["--since", "1h"]);
    assert!(said.contains("again"), "{said}");
    let again: BTreeSet<_> =
        receiver.wait_for(5).await.into_iter().skip(3).map(|one| one.id).collect();
    assert_eq!(again.len(), 2, "both once more");
    server.terminate().await;
}

#[tokio::test]
async fn an_endpoint_that_fails_is_told_of_on_every_way_until_it_takes_events_again() {
    let site = Site::new().await;
    let server = site.start();
    let receiver = Receiver::start(Reply::Status(500)).await;
    let (id, _) = add(&site, &receiver.url, &[]);
    let conditions = || {
        let status: Value =
            serde_json::from_slice(&site.done(&["status", "--json"]).stdout).unwrap();
        let conditions = status["conditions"].as_array().unwrap().clone();
        let codes = conditions.iter().map(|one| one["code"].as_str().unwrap().to_owned());
        (codes.collect::<Vec<_>>(), status.to_string())
    };
    for _ in 0..3 {
        server.send(&message()).await;
    }
    until("it is a condition", async || conditions().0 == ["webhook_failing"]).await;
    let (_, text) = conditions();
    assert!(text.contains("Endpoint 1 of acme does not accept events (status 500)"), "{text}");
    assert!(text.contains("pillarbox webhook deliveries 1"), "{text}");
    let shown = site.done(&["status"]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains("does not accept events"));
    let metrics = async || server.operator("/metrics").await.text().await.unwrap();
    let series =
        |name: &str| format!("pillarbox_webhook_{name}{{organisation=\"acme\",webhook=\"1\"");
    // The first failure is enough for the condition; the other two deliveries may come later.
    let expected = [
        format!("{}}} 1", series("failing")),
        format!("{}}} 3", series("waiting_deliveries")),
        format!("{},outcome=\"retried\"}} 3", series("attempts_total")),
    ];
    until("the metrics tell of it", async || {
        let text = metrics().await;
        expected.iter().all(|line| text.contains(line))
    })
    .await;
    assert_eq!(server.operator("/readyz").await.status(), 200, "mail goes out all the same");
    let listed = &list(&site)[0]["deliveries"];
    assert_eq!((&listed["failing"], &listed["waiting"]), (&json!(true), &json!(3)));

    receiver.set(Reply::Status(200));
    until("it is over", async || conditions().0.is_empty()).await;
    let text = metrics().await;
    assert!(text.contains(&format!("{}}} 0", series("failing"))), "{text}");
    receiver.set(Reply::Status(410));
    server.send(&message()).await;
    until("that it is gone is a condition", async || conditions().0 == ["webhook_gone"]).await;
    assert!(metrics().await.contains(&format!("{}}} 1", series("gone"))));
    assert_eq!(list(&site)[0]["state"], "gone");
    site.done(&["webhook", "pause", &id]);
    until("a pause is none", async || conditions().0.is_empty()).await;
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_tells_an_endpoint_of_every_event_and_logs_each_delivery() {
    let receiver = Receiver::start(Reply::Status(200)).await;
    let mut dev = DevProcess::start_with_log(&["--webhook", &receiver.url]);
    let (address, key) = (dev.told("address"), dev.told("API key"));
    assert_eq!(dev.told("webhook"), receiver.url);
    let secret = dev.told("secret");
    let body = json!({
        "from": "dev@example.com", "to": ["success@simulator.amazonses.com"], "subject": "Hello",
        "text": "It works.",
    });
    let request = http_client().post(format!("{address}/emails")).bearer_auth(&key);
    let request = request.header("content-type", "application/json").body(body.to_string());
    assert_eq!(request.send().await.unwrap().status(), 200);
    let received = receiver.wait_for(2).await;
    let types: Vec<_> = received.iter().map(|one| one.event()["type"].clone()).collect();
    assert_eq!(types, ["email.sent", "email.delivery"]);
    assert!(received.iter().all(|one| one.is_signed_by(&secret)));
    let line = dev.line(|line| line.contains("email.delivery") && line.contains("status 200"));
    assert!(line.contains("delivered"), "{line}");
}

#[tokio::test]
async fn doctor_says_whether_endpoints_are_there() {
    let site = Site::new().await;
    let server = site.start();
    let receiver = Receiver::start(Reply::Status(200)).await;
    add(&site, &receiver.url, &[]);
    add(&site, "http://127.0.0.1:1/", &[]);
    let (paused, _) = add(&site, &receiver.url, &[]);
    site.done(&["webhook", "pause", &paused]);
    let report = Finished::run(site.command(&["doctor", "--json"])).await;
    let report: Value = serde_json::from_str(&report.out).unwrap();
    let verdict = |about: &str| {
        let mut checks = report["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["about"] == about).unwrap();
        (check["verdict"].as_str().unwrap().to_owned(), check["message"].to_string())
    };
    let (found, message) = verdict("webhook 1 of acme");
    assert!(found == "ok" && message.contains("status 405 to HEAD"), "{message}");
    let (found, message) = verdict("webhook 2 of acme");
    assert!(found == "warning" && message.contains("does not answer"), "{message}");
    assert_eq!(verdict("webhook 3 of acme").0, "warning");
    assert_eq!(receiver.count(), 0, "no event was sent");
    server.terminate().await;
}
