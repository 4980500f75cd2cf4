//! Alerts: news that one node finds and another one posts; news of domains and keys, posted once.

use std::time::Duration;

use super::{Fixture, MILLISECOND, START, in_directory};
use crate::record::alerts::{encode_alert, encode_alert_key};
use crate::rows::{Key, Lock, Rows, Table};
use crate::{Alerting, Change, MAX_ALERTS, NewApiKey, Store};
use pillarbox_domain::alert::{Alert, AlertChange, AlertEvent, AlertKey, News, ReportedCondition};
use pillarbox_domain::api_key::{ApiKey, EXPIRY_NOTICE};
use pillarbox_domain::id::KeyId;
use pillarbox_domain::mailbox::DomainName;
use pillarbox_domain::organisation::{DomainCheck, DomainState, Finding, KeyRights};
use pillarbox_domain::time::Timestamp;

fn key(code: &str) -> AlertKey {
    let (node, about) = (String::new(), String::new());
    AlertKey::Condition { node, code: code.to_owned(), about }
}

fn condition() -> ReportedCondition {
    ReportedCondition {
        severity: "warning".to_owned(),
        message: "Commits are slow".to_owned(),
        advice: "See the disk".to_owned(),
        since: START,
    }
}

async fn only(store: &Store) -> Alert {
    let mut alerts = store.alerts().await.unwrap();
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    alerts.remove(0).1
}

#[tokio::test]
async fn an_alert_is_kept_until_it_is_cleared_and_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let raised = AlertChange::news(START, AlertEvent::Raised(condition()));
    store.change_alerts(vec![(key("commits_slow"), raised)]).await.unwrap();
    let alert = only(&store).await;
    assert!(alert.is_due(START));
    let taken = AlertChange::delivery(alert.taken());
    store.change_alerts(vec![(key("commits_slow"), taken.clone())]).await.unwrap();
    drop(store);
    let store = in_directory(&directory, START).await;
    let told = only(&store).await;
    assert_eq!(told, Alert { delivery: alert.taken(), ..alert });
    // The node that posts writes the outcome of the earlier news late.
    let cleared = AlertChange::news(START.plus(MILLISECOND), AlertEvent::Cleared(condition()));
    store.change_alerts(vec![(key("commits_slow"), cleared)]).await.unwrap();
    store.change_alerts(vec![(key("commits_slow"), taken)]).await.unwrap();
    let alert = only(&store).await;
    assert!(alert.is_waiting() && alert.holding().is_none());
    let taken = AlertChange::delivery(alert.taken());
    store.change_alerts(vec![(key("commits_slow"), taken.clone())]).await.unwrap();
    assert_eq!(store.alerts().await.unwrap(), []);
    store.change_alerts(vec![(key("commits_slow"), taken)]).await.unwrap();
    assert_eq!(store.alerts().await.unwrap(), [], "it is over");
}

#[tokio::test]
async fn there_are_at_most_so_many_alerts() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_directory(&directory, START).await;
    let raised = |number: usize| {
        (key(&format!("code_{number}")), AlertChange::news(START, AlertEvent::Raised(condition())))
    };
    store.change_alerts((0..MAX_ALERTS).map(raised).collect()).await.unwrap();
    store.change_alerts(vec![raised(MAX_ALERTS)]).await.unwrap();
    assert_eq!(store.alerts().await.unwrap().len(), MAX_ALERTS);
    let cleared = AlertChange::news(START.plus(MILLISECOND), AlertEvent::Cleared(condition()));
    store.change_alerts(vec![(key("code_7"), cleared)]).await.unwrap();
    let alerts = store.alerts().await.unwrap();
    assert_eq!(alerts.iter().filter(|(_, alert)| alert.holding().is_none()).count(), 1);
    // Each of several nodes has added the last one at the same time.
    let (_, alert) = alerts[0].clone();
    let add = move |rows: &mut dyn Rows| {
        for number in 0..9 {
            let key = Key::from(&*encode_alert_key(&key(&format!("of_node_{number}"))));
            rows.put(Table::Alerts, &key, &encode_alert(&alert))?;
        }
        Ok(())
    };
    store.change(Lock::Rows, 9, add).await.unwrap();
    assert_eq!(store.alerts().await.unwrap().len(), MAX_ALERTS + 9);
}

#[tokio::test]
async fn operators_are_told_of_each_change_of_a_domain_if_they_have_a_receiver() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let name = || DomainName::parse("new.example").unwrap();
    store.put_domain(organisation, name(), DomainState::Pending, START).await.unwrap();
    let change = async |from, to, finding, second| {
        let check = DomainCheck { at: START.plus(Duration::from_secs(second)), finding };
        store.change_domain(organisation, name(), from, to, check).await.unwrap()
    };
    let (pending, verified) = (DomainState::Pending, DomainState::Verified);
    change(pending, verified, Finding::Verified, 1).await;
    change(verified, pending, Finding::Failed, 2).await;
    assert_eq!(store.alerts().await.unwrap(), [], "nobody asked for them");
    store.set_alerting(Alerting::On);
    change(pending, pending, Finding::Failed, 3).await;
    assert_eq!(store.alerts().await.unwrap(), [], "SES said so before");
    change(pending, pending, Finding::Pending, 4).await;
    assert_eq!(store.alerts().await.unwrap(), []);
    for (from, to, finding, second, event) in [
        (pending, pending, Finding::Failed, 5, AlertEvent::DomainFailed),
        (pending, verified, Finding::Verified, 6, AlertEvent::DomainVerified),
        (verified, pending, Finding::Unknown, 7, AlertEvent::DomainFailed),
    ] {
        assert_eq!(change(from, to, finding, second).await, Change::Made);
        let at = START.plus(Duration::from_secs(second));
        let (key, alert) = store.alerts().await.unwrap().remove(0);
        assert_eq!(key, AlertKey::Domain { organisation, name: "new.example".to_owned() });
        assert_eq!(alert, Alert::new(News { at, event }));
    }
    assert_eq!(change(verified, verified, Finding::Verified, 8).await, Change::None);
    assert_eq!(only(store).await.news.at, START.plus(Duration::from_secs(7)));
}

#[tokio::test]
async fn operators_are_told_of_a_keys_end_once_a_week_before() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let (store, organisation) = (&fixture.store, fixture.organisation);
    let add = async |label: &str, days: u64, now: Timestamp| {
        let expires_at = (days > 0).then(|| now.plus(Duration::from_hours(24 * days)));
        let hash = ApiKey::generate().unwrap().hash();
        let new = NewApiKey { label: label.to_owned(), expires_at, hash, rights: KeyRights::all() };
        store.add_api_key(organisation, new, now).await.unwrap();
    };
    add("for ever", 0, START).await;
    add("month", 30, START).await;
    add("ends", 1, START.minus(EXPIRY_NOTICE)).await;
    let told = async |now: Timestamp| {
        let change = store.tell_of_expiring_keys(now).await.unwrap();
        assert_eq!(store.tell_of_expiring_keys(now).await.unwrap(), Change::None);
        let mut found = Vec::new();
        for (key, alert) in store.alerts().await.unwrap() {
            let AlertKey::KeyExpiry(KeyId(id)) = key else { panic!("{key:?}") };
            found.push(id);
            let taken = AlertChange::delivery(alert.taken());
            store.change_alerts(vec![(key, taken)]).await.unwrap();
        }
        assert_eq!(change == Change::Made, !found.is_empty());
        found.len()
    };
    assert_eq!(told(START).await, 0, "one is far away, one over");
    let week_before = START.plus(Duration::from_hours(24 * 23));
    assert_eq!(told(week_before.minus(MILLISECOND)).await, 0);
    assert_eq!(told(week_before).await, 1);
    assert_eq!(told(week_before.plus(Duration::from_hours(24 * 6))).await, 0);
    let later = week_before.plus(Duration::from_hours(24 * 6));
    add("short", 3, later).await;
    assert_eq!(told(later).await, 1, "it has no week");
    assert_eq!(told(later.plus(Duration::from_hours(24))).await, 0);
    let end = later.plus(Duration::from_hours(72));
    add("over", 1, end.minus(Duration::from_hours(24))).await;
    assert_eq!(told(end).await, 0, "it is over");
    assert!(store.damaged().is_empty(), "the row beside the alerts is none of them");
}
