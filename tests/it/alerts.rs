//! Alerts for operators over real HTTP: content, time and cost of the posts, also if their receiver
//! takes nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pillarbox_config::{Alerts, Config};
use pillarbox_domain::api_key::ApiKey;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::DomainState;
use pillarbox_domain::webhook::{SigningSecret, WebhookUrl};
use pillarbox_runtime::clock::Clock;
use pillarbox_service::Service;
use pillarbox_simulator::{Options, Simulator};
use pillarbox_store::{DeadLetter, NewApiKey};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::kit::{
    Finished, LocalService, NOON, PATIENCE, Received, Receiver, Reply, Site, http_client,
    is_on_postgres, send_with_key, start_service,
};

/// Longer than it takes until a condition is found.
const MOMENT: Duration = Duration::from_millis(2_500);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
/// Secret of 24 bytes.
const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

/// A service on a manual clock, and the operators' receiver.
struct Place {
    service: Service,
    clock: Clock,
    key: ApiKey,
    config: Config,
    receiver: Receiver,
    simulator: Simulator,
    directory: TempDir,
}

impl Place {
    async fn start(reply: Reply) -> Self {
        let receiver = Receiver::start(reply).await;
        let mut config = None;
        let local = LocalService::start(Options::default(), |it, _| {
            it.alerts = Some(target(&receiver));
            config = Some(it.clone());
        })
        .await;
        let LocalService { service, simulator, clock, key, directory, .. } = local;
        let config = config.unwrap();
        Self { service, clock, key, config, receiver, simulator, directory }
    }

    /// Ends the service, and starts another one on its data after `meanwhile`.
    async fn restart(self, meanwhile: impl AsyncFnOnce(&Config)) -> Self {
        let Self { service, config, clock, .. } = self;
        Box::pin(service.stop()).await;
        meanwhile(&config).await;
        let service = Box::pin(start_service(&config, clock.clone())).await;
        Self { service: service.unwrap(), config, clock, ..self }
    }

    /// Has conditions be found, and lets time pass. No check of them is more than a quarter of an
    /// hour after the one before.
    async fn pass(&self, mut time: Duration) {
        sleep(MOMENT).await;
        while !time.is_zero() {
            let step = time.min(15 * MINUTE);
            self.clock.advance(step);
            time = time.saturating_sub(step);
            sleep(MOMENT / 2).await;
        }
    }

    /// Begins a condition: a document that could not be read.
    async fn keep_letter(&self, text: &str) {
        let letter = DeadLetter::new(self.clock.now(), "no JSON: bob@example.org", text);
        self.service.store().keep_dead_letters(vec![letter]).await.unwrap();
    }

    async fn clear_letters(&self) {
        let store = self.service.store();
        let letters = store.dead_letters(10).await.unwrap();
        store.remove_dead_letters(&letters).await.unwrap();
    }

    /// Events of these types, once there are so many.
    async fn events(&self, types: &[&str], count: usize) -> Vec<Value> {
        let end = Instant::now() + PATIENCE;
        loop {
            let events: Vec<_> = self.receiver.received().iter().map(Received::event).collect();
            let found = events.iter().filter(|event| types.contains(&kind(event)));
            let found: Vec<_> = found.cloned().collect();
            if found.len() >= count {
                return found;
            }
            assert!(Instant::now() < end, "{count} of {types:?}: {events:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// A sample of the metrics.
    async fn metric(&self, sample: &str) -> Option<f64> {
        let url = format!("http://{}/metrics", self.service.operator_address());
        let text = http_client().get(url).send().await.unwrap().text().await.unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value?.parse().ok()
    }
}

const CONDITIONS: [&str; 2] = ["condition.raised", "condition.cleared"];

fn kind(event: &Value) -> &str {
    event["type"].as_str().unwrap()
}

fn code(event: &Value) -> &str {
    event["data"]["code"].as_str().unwrap()
}

fn target(receiver: &Receiver) -> Alerts {
    Alerts {
        url: WebhookUrl::parse(&receiver.url).unwrap(),
        secret: SigningSecret::parse(SECRET).unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_is_told_of_once_it_has_lasted_and_again_when_it_ends() {
    let place = Place::start(Reply::Status(200)).await;
    place.keep_letter("{").await;
    place.pass(Duration::from_secs(50)).await;
    assert_eq!(place.receiver.count(), 0, "it may end by itself");
    place.pass(Duration::from_secs(20)).await;
    let raised = place.events(&["condition.raised"], 1).await.remove(0);
    assert_eq!(
        (code(&raised), &raised["data"]["severity"]),
        ("events_unreadable", &"warning".into())
    );
    let advice = raised["data"]["advice"].as_str().unwrap();
    assert!(advice.contains("pillarbox dead-letter list"), "{advice}");
    assert!(raised["data"]["node"].is_null(), "there is one");
    let current = place.events(&["conditions.current"], 1).await.remove(0);
    assert!(current["data"]["conditions"].as_array().is_some(), "{current}");
    place.clear_letters().await;
    let cleared = place.events(&["condition.cleared"], 1).await.remove(0);
    assert_eq!(
        (code(&cleared), &cleared["data"]["since"]),
        (code(&raised), &raised["data"]["since"])
    );
    assert!(cleared["data"]["endedAt"].is_string());
    sleep(MOMENT).await;
    assert_eq!(place.receiver.count(), 3, "each is told once");
    for received in place.receiver.received() {
        assert!(received.is_signed_by(SECRET));
        assert_eq!(
            (received.content_type.as_str(), received.event()["id"].as_str()),
            ("application/json", Some(received.id.as_str()))
        );
        assert!(!received.body.contains('@') && !received.body.contains(place.key.reveal()));
    }
    place.service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_down_for_an_hour_is_told_the_last_state_of_each_condition() {
    let place = Place::start(Reply::Status(503)).await;
    place.keep_letter("{").await;
    place.pass(MINUTE).await;
    place.events(&["condition.raised"], 1).await;
    place.pass(HOUR / 2).await;
    place.clear_letters().await;
    place.pass(HOUR / 2).await;
    assert_eq!(place.metric("pillarbox_alerts_failing").await, Some(1.0));
    let down = place.receiver.count();
    place.receiver.set(Reply::Status(200));
    // The last that failed was a quarter of an hour ago at most, or fails just now.
    let end = Instant::now() + PATIENCE;
    while place.metric("pillarbox_alerts_waiting").await != Some(0.0) {
        assert!(Instant::now() < end, "all of it is taken");
        place.pass(15 * MINUTE).await;
    }
    place.events(&["condition.cleared"], 2).await;
    let taken: Vec<_> = place.receiver.received()[down..].iter().map(Received::event).collect();
    let mut last = BTreeMap::new();
    for event in taken.iter().filter(|event| CONDITIONS.contains(&kind(event))) {
        last.insert(code(event).to_owned(), kind(event).to_owned());
    }
    let cleared = |code: &str| (code.to_owned(), "condition.cleared".to_owned());
    assert_eq!(last, [cleared("alerts_failing"), cleared("events_unreadable")].into());
    let unreadable = taken.iter().filter(|event| event["data"]["code"] == "events_unreadable");
    assert_eq!(unreadable.count(), 1, "only the last state, and once: {taken:?}");
    assert_eq!(place.metric("pillarbox_alerts_failing").await, Some(0.0));
    let all = place.receiver.count();
    place.pass(HOUR).await;
    assert_eq!(place.receiver.count(), all, "nothing is left to be told");
    place.service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_answers_500_for_ever_costs_nothing_else() {
    let place = Place::start(Reply::Status(500)).await;
    place.keep_letter("{").await;
    place.pass(2 * MINUTE).await;
    place.events(&["condition.raised"], 1).await;
    for number in 0..10 {
        let started = Instant::now();
        let name = format!("key-{number}");
        send_with_key(&http_client(), &place.service, &place.key, &name).await;
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    let sent = Instant::now() + PATIENCE;
    while place.simulator.messages().len() < 10 {
        assert!(Instant::now() < sent, "mail goes out");
        sleep(Duration::from_millis(20)).await;
    }
    place.pass(HOUR).await;
    // One in each quarter of an hour for each of three: the document, the start, and that alerts fail.
    let posts = place.receiver.count();
    assert!((12..36).contains(&posts), "{posts}");
    for (sample, value) in [
        ("pillarbox_alerts_failing", 1.0),
        ("pillarbox_alerts_waiting", 3.0),
        ("pillarbox_alert_attempts_total{outcome=\"delivered\"}", 0.0),
    ] {
        assert_eq!(place.metric(sample).await, Some(value), "{sample}");
    }
    place.service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_what_holds_is_listed_and_not_raised_again_and_what_ended_is_cleared() {
    let place = Place::start(Reply::Status(200)).await;
    place.keep_letter("{").await;
    place.pass(MINUTE).await;
    place.events(&["condition.raised", "conditions.current"], 2).await;
    let place = place.restart(async |_| ()).await;
    place.pass(MINUTE).await;
    let current = place.events(&["conditions.current"], 2).await.remove(1);
    let conditions = current["data"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 1, "{current}");
    assert_eq!(conditions[0]["code"], "events_unreadable");
    sleep(MOMENT).await;
    assert_eq!(place.receiver.count(), 3);

    // What ends while no service runs.
    let place = place
        .restart(async |config| {
            let store = crate::kit::open_store(&config.data_dir, NOON);
            let letters = store.dead_letters(10).await.unwrap();
            store.remove_dead_letters(&letters).await.unwrap();
        })
        .await;
    place.pass(MINUTE).await;
    let cleared = place.events(&["condition.cleared"], 1).await.remove(0);
    assert_eq!(code(&cleared), "events_unreadable");
    place.service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn if_the_store_refuses_alerts_are_posted_from_memory_and_kept_later() {
    let place = Place::start(Reply::Status(200)).await;
    place.pass(MINUTE).await;
    place.events(&["conditions.current"], 1).await;
    let file = place.config.data_dir.join("pillarbox.redb");
    let away = place.directory.path().join("away");
    std::fs::rename(&file, &away).unwrap();
    let end = Instant::now() + PATIENCE;
    while place.metric("pillarbox_store_file_in_place").await != Some(0.0) {
        assert!(Instant::now() < end, "the loss is noticed");
        sleep(MOMENT).await;
    }
    place.pass(MINUTE).await;
    let raised = place.events(&["condition.raised"], 1).await.remove(0);
    let lost = ("data_file_lost", &Value::from("critical"));
    assert_eq!((code(&raised), &raised["data"]["severity"]), lost);
    assert_eq!(place.service.store().alerts().await.unwrap(), [], "no row could be written");
    std::fs::rename(&away, &file).unwrap();
    let cleared = place.events(&["condition.cleared"], 1).await.remove(0);
    assert_eq!(code(&cleared), "data_file_lost");
    sleep(MOMENT).await;
    assert_eq!(place.receiver.count(), 3, "nothing is told twice");
    place.service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_are_told_of_domains_and_of_keys_that_end_soon_each_once() {
    let place = Place::start(Reply::Status(200)).await;
    let store = place.service.store();
    let other = store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    // SES knows it as verified.
    let name = DomainName::parse("example.com").unwrap();
    store.put_domain(other.id, name, DomainState::Pending, NOON).await.unwrap();
    let expires_at = Some(NOON.plus(Duration::from_hours(24 * 7) + HOUR / 2));
    let key = ApiKey::generate().unwrap();
    let new = NewApiKey {
        label: "web".to_owned(),
        expires_at,
        hash: key.hash(),
        rights: pillarbox_domain::organisation::KeyRights::all(),
    };
    store.add_api_key(OrganisationId(1), new, NOON).await.unwrap();
    let verified = place.events(&["domain.verified"], 1).await.remove(0);
    assert_eq!(verified["data"]["domain"], "example.com");
    assert_eq!(verified["data"]["organisation"], "other");
    place.pass(HOUR / 4).await;
    assert_eq!(place.events(&["key.expiring"], 0).await, [] as [Value; 0]);
    place.pass(HOUR / 2).await;
    let expiring = place.events(&["key.expiring"], 1).await.remove(0);
    assert_eq!((&expiring["data"]["id"], &expiring["data"]["label"]), (&2.into(), &"web".into()));
    assert_eq!(expiring["data"]["organisation"], "acme");
    assert!(!expiring.to_string().contains("pb_"));
    let place = place.restart(async |_| ()).await;
    place.pass(2 * MINUTE).await;
    place.events(&["conditions.current"], 2).await;
    let told = place.events(&["domain.verified", "key.expiring"], 2).await;
    assert_eq!(told.len(), 2, "{told:?}");
    place.service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_receiver_is_taken_over_without_a_restart() {
    let mut place = Place::start(Reply::Status(200)).await;
    let other = Receiver::start(Reply::Status(200)).await;
    place.pass(MINUTE).await;
    place.events(&["conditions.current"], 1).await;
    place.config.alerts = Some(target(&other));
    place.service.reload(&place.config);
    place.keep_letter("{").await;
    place.pass(MINUTE).await;
    assert_eq!(code(&other.wait_for(1).await[0].event()), "events_unreadable");
    place.config.alerts = None;
    place.service.reload(&place.config);
    place.clear_letters().await;
    place.pass(MINUTE).await;
    assert_eq!((place.receiver.count(), other.count()), (1, 1));
    place.service.stop().await;
}

/// A site whose configuration names a receiver, and the file of its secret.
async fn site(url: &str, options: Options) -> Site {
    let site = Site::empty("", options).await;
    let secret = site.directory().join("secret");
    std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
    let alerts = format!("[alerts]\nurl = \"{url}\"\nsecret_file = \"{}\"\n", secret.display());
    let endpoint = format!("endpoint = \"{}\"\n", site.simulator.endpoint());
    site.configure(&alerts, &endpoint);
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_no_condition_that_holds() {
    let receiver = Receiver::start(Reply::Status(200)).await;
    let site = site(&receiver.url, Options::default()).await;
    site.reconfigure("[ses]\n", "[ses]\ntracking_override = false\n");
    let server = site.start();
    // The real time: a minute.
    let first = receiver.wait_for(2).await;
    let types: Vec<_> = first.iter().map(|one| kind(&one.event()).to_owned()).collect();
    assert!(types.contains(&"condition.raised".to_owned()), "{types:?}");
    server.kill();
    // What holds no more after the restart.
    site.reconfigure("tracking_override = false\n", "");
    let server = site.start();
    // What the killed process could not write down as taken comes once more, with its id.
    let is_new = |one: &Received| first.iter().all(|before| before.id != one.id);
    let end = Instant::now() + PATIENCE;
    let (current, cleared) = loop {
        let received = receiver.received();
        let later: Vec<_> =
            received.iter().filter(|one| is_new(one)).map(Received::event).collect();
        let of_kind = |wanted| later.iter().find(|event| kind(event) == wanted).cloned();
        if let (Some(current), Some(cleared)) =
            (of_kind("conditions.current"), of_kind("condition.cleared"))
        {
            break (current, cleared);
        }
        assert!(Instant::now() < end, "{later:?}");
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(code(&cleared), "tracking_not_overridden");
    assert_eq!(current["data"]["conditions"], Value::Array(Vec::new()), "{current}");
    let log = server.terminate().await;
    assert!(!log.contains(&SECRET[6..]), "no secret in the log");
}

#[tokio::test]
async fn a_wrong_receiver_is_a_wrong_configuration() {
    let site = site("https://hooks.example.com/", Options::default()).await;
    let serve = || Finished::from(site.service().output().unwrap());
    let change = |from: &str, to: &str| site.reconfigure(from, to);
    change("https://hooks.example.com/", "hooks");
    std::fs::write(site.directory().join("secret"), "PLANTED").unwrap();
    let wrong = serve();
    assert_eq!(wrong.code, 78, "{wrong:?}");
    assert!(wrong.err.contains("2 problems") && !wrong.err.contains("PLANTED"), "{}", wrong.err);
    assert!(wrong.err.contains("alerts.url") && wrong.err.contains("alerts.secret_file"));
    std::fs::remove_file(site.directory().join("secret")).unwrap();
    assert!(serve().err.contains("No such file"));
    std::fs::write(site.directory().join("secret"), SECRET).unwrap();
    change("\"hooks\"", "\"https://1.2.3.4.5/\"");
    let wrong = serve();
    assert_eq!(wrong.code, 78, "{wrong:?}");
    assert!(wrong.err.contains("alerts.url: the URL cannot be called"), "{}", wrong.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_posts_a_test_and_prints_the_answer() {
    let receiver = Receiver::start(Reply::Status(202)).await;
    let site = site(&receiver.url, Options::default()).await;
    let about = async || {
        let examined = Finished::run(site.command(&["doctor", "--json"])).await;
        let document: Value = serde_json::from_str(&examined.out).unwrap();
        let checks = document["checks"].as_array().unwrap();
        checks.iter().find(|check| check["about"] == "alerts").unwrap().clone()
    };
    let without_service = about().await;
    assert_eq!(without_service["verdict"], "ok", "{without_service}");
    let server = site.start();
    let with_service = about().await;
    assert_eq!(with_service["verdict"], "ok");
    assert!(with_service["message"].as_str().unwrap().ends_with("accepted a test (status 202)"));
    receiver.set(Reply::Status(500));
    let refused = about().await;
    assert_eq!(refused["verdict"], "notOk");
    let message = refused["message"].as_str().unwrap();
    assert!(message.ends_with("did not accept a test (status 500): noted"), "{message}");
    assert!(!message.contains("tenant"), "what follows the host may be a secret: {message}");
    let tests: Vec<_> = receiver.received().iter().map(Received::event).collect();
    assert!(tests.iter().all(|event| kind(event) == "alerts.test"), "{tests:?}");
    assert_eq!(tests.len(), 3);
    assert!(receiver.received().iter().all(|received| received.is_signed_by(SECRET)));
    if !is_on_postgres() {
        let log = server.terminate().await;
        assert!(!log.contains("alerts.test") && !log.contains(&SECRET[6..]), "{log}");
    }
}
