//! The windows of 24 hours and 90 days, to the millisecond, on a clock that the test moves.

use std::time::Duration;

use pillarbox_maintenance::timekeeper::resolve;
use pillarbox_runtime::clock::ConfirmedBy;
use pillarbox_simulator::Options;
use serde_json::Value;

use crate::kit::{self, LocalService, NOON, PATIENCE, send_with_key};

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_hours(24);

async fn start() -> LocalService {
    LocalService::start(Options::default(), |_, _| ()).await
}

async fn send(place: &LocalService, idempotency_key: &str) -> (String, bool) {
    send_with_key(&place.client, &place.service, &place.key, idempotency_key).await
}

async fn get(place: &LocalService, path: &str) -> (u16, Value) {
    kit::get(&place.client, &place.service, &place.key, path).await
}

#[tokio::test]
async fn a_key_replays_until_24_hours_are_over() {
    let place = start().await;
    let (first, replayed) = send(&place, "k").await;
    assert!(!replayed);
    place.clock.advance(DAY.saturating_sub(MILLISECOND));
    assert_eq!(send(&place, "k").await, (first.clone(), true));
    place.clock.advance(MILLISECOND);
    let (second, replayed) = send(&place, "k").await;
    assert!(!replayed);
    assert_ne!(first, second);
    assert_eq!(send(&place, "k").await, (second, true));
    place.service.stop().await;
}

#[tokio::test]
async fn a_record_is_read_until_90_days_are_over_whether_or_not_it_was_purged() {
    let place = start().await;
    let (id, _) = send(&place, "k").await;
    let [path, events, timeline] =
        ["", "/events", "/timeline"].map(|suffix| format!("/emails/{id}{suffix}"));
    place.clock.advance((DAY * 90).saturating_sub(MILLISECOND));
    assert_eq!(get(&place, &path).await.0, 200);
    assert_eq!(get(&place, &events).await.0, 200);
    assert_eq!(get(&place, &timeline).await.0, 200);
    place.clock.advance(MILLISECOND);
    let absent = get(&place, "/emails/0190b6a0-0000-7000-8000-000000000000").await;
    assert_eq!(get(&place, &path).await, absent);
    assert_eq!(get(&place, &events).await, absent);
    assert_eq!(get(&place, &timeline).await, absent);
    place.service.stop().await;
}

#[tokio::test]
async fn a_clock_set_back_makes_no_second_message_and_hides_none() {
    let place = start().await;
    let (before, _) = send(&place, "before").await;
    for days in [2, 100] {
        place.clock.set(NOON.minus(DAY * days));
        assert_eq!(send(&place, "before").await, (before.clone(), true));
        let key = days.to_string();
        let (id, replayed) = send(&place, &key).await;
        assert!(!replayed);
        assert_eq!(send(&place, &key).await, (id.clone(), true), "{days} days back");
        assert_eq!(get(&place, &format!("/emails/{id}")).await.0, 200, "{days} days back");
    }
    place.service.stop().await;
}

#[tokio::test]
async fn a_clock_that_jumps_expires_nothing_until_the_jump_is_confirmed() {
    let place = start().await;
    let (id, _) = send(&place, "k").await;
    place.clock.set(NOON.plus(DAY * 400));
    place.clock.advance(DAY * 2);
    assert_eq!(get(&place, &format!("/emails/{id}")).await.0, 200);
    assert_eq!(send(&place, "k").await, (id.clone(), true));
    resolve(place.service.store(), &place.clock, ConfirmedBy::Operator).await.unwrap();
    // Two days have passed, even though the clock was set.
    assert!(!send(&place, "k").await.1);
    assert_eq!(get(&place, &format!("/emails/{id}")).await.0, 200);
    place.clock.advance(DAY * 88);
    assert_eq!(get(&place, &format!("/emails/{id}")).await.0, 404);
    place.service.stop().await;
}

#[tokio::test]
async fn jumps_of_a_day_keep_ids_in_order_messages_moving_and_everything_in_place() {
    let place = start().await;
    let (first, _) = send(&place, "first").await;
    let mut ids = vec![first.clone()];
    for (n, at) in [NOON.plus(DAY), NOON.minus(DAY), NOON.plus(DAY * 100)].into_iter().enumerate() {
        place.clock.set(at);
        assert!(place.clock.jump().is_some());
        let (id, replayed) = send(&place, &n.to_string()).await;
        assert!(!replayed);
        ids.push(id);
        assert_eq!(send(&place, "first").await, (first.clone(), true), "the key is still live");
        // As the purge does by itself every minute.
        let purged = place.service.store().purge(place.clock.window_time(), 1_000).await.unwrap();
        assert_eq!((purged.messages, purged.idempotency_keys), (0, 0));
    }
    assert!(ids.is_sorted(), "{ids:?}");
    for id in &ids {
        let end = std::time::Instant::now() + PATIENCE;
        while get(&place, &format!("/emails/{id}")).await.1["status"] != "sent" {
            assert!(std::time::Instant::now() < end, "{id} is stuck");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    place.clock.set(NOON);
    assert_eq!(place.clock.jump(), None);
    assert_eq!(send(&place, "first").await, (first, true));
    place.service.stop().await;
}
