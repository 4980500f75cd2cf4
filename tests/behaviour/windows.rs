//! The windows of 24 hours and 90 days, to the millisecond, on a clock that the test moves.

use std::time::Duration;

use pillarbox::clock::{Clock, ConfirmedBy};
use pillarbox::config::Config;
use pillarbox::domain::api_key::ApiKey;
use pillarbox::domain::mailbox::DomainName;
use pillarbox::domain::organisation::DomainState;
use pillarbox::domain::time::Timestamp;
use pillarbox::service::Service;
use pillarbox::ses::credentials::Credentials;
use pillarbox::simulator::{Options, Simulator};
use pillarbox::store::NewApiKey;
use pillarbox::timekeeper::settle;
use secrecy::SecretString;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{PATIENCE, answer, install_crypto, message_with};

const NOON: Timestamp = Timestamp::from_unix_millis(1_800_000_000_000);
const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_hours(24);

/// The service within the test's own process, on a manual clock.
struct Place {
    clock: Clock,
    key: ApiKey,
    service: Service,
    client: reqwest::Client,
    _simulator: Simulator,
    _directory: TempDir,
}

impl Place {
    async fn new() -> Self {
        install_crypto();
        let directory = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = Options {
            verified: vec!["example.com".to_owned()],
            signature_max_age: None,
            ..Options::default()
        };
        let simulator = Simulator::start(listener, options).await;
        let mut config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            operator_listen: "127.0.0.1:0".parse().unwrap(),
            data_dir: directory.path().join("data"),
            admin_socket: directory.path().join("admin.sock"),
            ..Config::default()
        };
        config.ses.endpoint = Some(simulator.endpoint().parse().unwrap());
        let clock = Clock::manual(NOON);
        let credentials = Credentials::fixed("simulator", SecretString::from("simulator"));
        let service = Service::start(&config, clock.clone(), credentials, None).await.unwrap();
        let store = service.store();
        let acme = store.add_organisation("acme".parse().unwrap()).await.unwrap().unwrap();
        let domain = DomainName::parse("example.com").unwrap();
        store.put_domain(acme.id, domain, DomainState::Assumed, NOON).await.unwrap();
        let key = ApiKey::generate().unwrap();
        let new = NewApiKey { label: String::new(), expires_at: None, hash: key.hash() };
        store.add_api_key(acme.id, new, NOON).await.unwrap();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { clock, key, service, client, _simulator: simulator, _directory: directory }
    }

    async fn send(&self, idempotency_key: &str) -> (String, bool) {
        let body = message_with("idempotencyKey", json!(idempotency_key)).to_string();
        let request = self.client.post(format!("http://{}/emails", self.service.address()));
        let request = request.bearer_auth(self.key.reveal());
        let request = request.header("content-type", "application/json").body(body);
        let response = request.send().await.unwrap();
        let replayed = response.headers().contains_key("idempotent-replayed");
        let (status, body) = answer(response).await;
        assert_eq!(status, 200, "{body}");
        (body["id"].as_str().unwrap().to_owned(), replayed)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let request = self.client.get(format!("http://{}{path}", self.service.address()));
        let response = request.bearer_auth(self.key.reveal()).send().await.unwrap();
        let (status, body) = answer(response).await;
        (status.as_u16(), body)
    }
}

#[tokio::test]
async fn a_key_replays_until_24_hours_are_over() {
    let place = Place::new().await;
    let (first, replayed) = place.send("k").await;
    assert!(!replayed);
    place.clock.advance(DAY.saturating_sub(MILLISECOND));
    assert_eq!(place.send("k").await, (first.clone(), true));
    place.clock.advance(MILLISECOND);
    let (second, replayed) = place.send("k").await;
    assert!(!replayed);
    assert_ne!(first, second);
    assert_eq!(place.send("k").await, (second, true));
    place.service.stop().await;
}

#[tokio::test]
async fn a_record_is_read_until_90_days_are_over_whether_or_not_it_was_purged() {
    let place = Place::new().await;
    let (id, _) = place.send("k").await;
    let (path, events) = (format!("/emails/{id}"), format!("/emails/{id}/events"));
    place.clock.advance((DAY * 90).saturating_sub(MILLISECOND));
    assert_eq!(place.get(&path).await.0, 200);
    assert_eq!(place.get(&events).await.0, 200);
    place.clock.advance(MILLISECOND);
    let absent = place.get("/emails/0190b6a0-0000-7000-8000-000000000000").await;
    assert_eq!(place.get(&path).await, absent);
    assert_eq!(place.get(&events).await, absent);
    place.service.stop().await;
}

#[tokio::test]
async fn a_clock_set_back_makes_no_second_message_and_hides_none() {
    let place = Place::new().await;
    let (before, _) = place.send("before").await;
    for days in [2, 100] {
        place.clock.set(NOON.minus(DAY * days));
        assert_eq!(place.send("before").await, (before.clone(), true));
        let key = days.to_string();
        let (id, replayed) = place.send(&key).await;
        assert!(!replayed);
        assert_eq!(place.send(&key).await, (id.clone(), true), "{days} days back");
        assert_eq!(place.get(&format!("/emails/{id}")).await.0, 200, "{days} days back");
    }
    place.service.stop().await;
}

#[tokio::test]
async fn a_clock_that_jumps_expires_nothing_until_the_jump_is_confirmed() {
    let place = Place::new().await;
    let (id, _) = place.send("k").await;
    place.clock.set(NOON.plus(DAY * 400));
    place.clock.advance(DAY * 2);
    assert_eq!(place.get(&format!("/emails/{id}")).await.0, 200);
    assert_eq!(place.send("k").await, (id.clone(), true));
    settle(place.service.store(), &place.clock, ConfirmedBy::Operator).await.unwrap();
    // Two days have passed, whatever the clock said.
    assert!(!place.send("k").await.1);
    assert_eq!(place.get(&format!("/emails/{id}")).await.0, 200);
    place.clock.advance(DAY * 88);
    assert_eq!(place.get(&format!("/emails/{id}")).await.0, 404);
    place.service.stop().await;
}

#[tokio::test]
async fn jumps_of_a_day_keep_ids_in_order_messages_moving_and_everything_in_place() {
    let place = Place::new().await;
    let (first, _) = place.send("first").await;
    let mut ids = vec![first.clone()];
    for (n, at) in [NOON.plus(DAY), NOON.minus(DAY), NOON.plus(DAY * 100)].into_iter().enumerate() {
        place.clock.set(at);
        assert!(place.clock.jump().is_some());
        let (id, replayed) = place.send(&n.to_string()).await;
        assert!(!replayed);
        ids.push(id);
        assert_eq!(place.send("first").await, (first.clone(), true), "the key is still live");
        // As the purge does by itself every minute.
        let purged = place.service.store().purge(place.clock.settled(), 1_000).await.unwrap();
        assert_eq!((purged.messages, purged.idempotency_keys), (0, 0));
    }
    assert!(ids.is_sorted(), "{ids:?}");
    for id in &ids {
        let end = std::time::Instant::now() + PATIENCE;
        while place.get(&format!("/emails/{id}")).await.1["status"] != "sent" {
            assert!(std::time::Instant::now() < end, "{id} is stuck");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    place.clock.set(NOON);
    assert_eq!(place.clock.jump(), None);
    assert_eq!(place.send("first").await, (first, true));
    place.service.stop().await;
}
