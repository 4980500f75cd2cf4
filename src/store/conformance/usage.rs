//! Limits of organisations: exactly as many recipients as they allow, also with callers at the same
//! time.

use std::sync::Arc;
use std::time::Duration;

use crate::conformance::{Fixture, START, in_directory};
use crate::{AcceptError, Accepted, BatchMode, NewMessage, Store};
use pillarbox_domain::organisation::Limits;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::usage::{Exceeded, Period};

const DAY: Duration = Duration::from_hours(24);

impl Fixture {
    pub(super) async fn limit(&self, limits: Limits) {
        let change = move |organisation: &mut pillarbox_domain::organisation::Organisation| {
            organisation.limits = limits;
        };
        self.store.change_organisation(self.organisation, change).await.unwrap().unwrap();
        let limited = (!limits.is_none()).then_some((self.organisation, limits));
        assert_eq!(self.store.limits(), Vec::from_iter(limited));
    }

    async fn message(&self, key: Option<&str>, recipients: u64, now: Timestamp) -> NewMessage {
        let admitted = self.admitted(key).await;
        let id = self.ids.next(now);
        let message = NewMessage::new(id, self.organisation, &admitted, now, now, || {});
        NewMessage { recipients, ..message }
    }

    /// Accepts messages with these keys and numbers of recipients together.
    async fn ask(
        &self,
        messages: &[(Option<&str>, u64)],
        now: Timestamp,
    ) -> Result<Vec<Accepted>, AcceptError> {
        let mut all = Vec::new();
        for (key, recipients) in messages {
            all.push(self.message(*key, *recipients, now).await);
        }
        self.store.accept_all(all, BatchMode::Whole).await?.into_iter().collect()
    }

    async fn used(&self, period: Period, now: Timestamp) -> u64 {
        let usage = self.store.usage(&[self.organisation], now).await.unwrap();
        usage[0].of(period).used
    }
}

fn left(refused: Result<Vec<Accepted>, AcceptError>) -> u64 {
    match refused {
        Err(AcceptError::LimitReached(Exceeded { left, .. })) => left,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_takes_as_many_recipients_as_it_says_and_replays_are_free() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    // What came before the limit counts.
    fixture.ask(&[(Some("first"), 2)], START).await.unwrap();
    fixture.limit(Limits { per_day: Some(10), ..Limits::NONE }).await;
    assert_eq!(left(fixture.ask(&[(None, 9)], START).await), 8);
    fixture.ask(&[(None, 3), (Some("second"), 2)], START).await.unwrap();
    assert_eq!(fixture.used(Period::Day, START).await, 7);
    // All of a request or nothing.
    assert_eq!(left(fixture.ask(&[(Some("refused"), 1), (None, 3)], START).await), 3);
    assert_eq!(fixture.listed().await, 3);
    // A replay needs nothing; nor does the second of two with one key.
    let replayed =
        fixture.ask(&[(Some("first"), 50), (Some("third"), 3), (Some("third"), 3)], START).await;
    let replayed = replayed.unwrap();
    assert!(matches!(
        replayed[..],
        [Accepted::Replayed(_), Accepted::New(_), Accepted::Replayed(_)]
    ));
    assert_eq!(fixture.used(Period::Day, START).await, 10);
    assert_eq!(left(fixture.ask(&[(None, 1)], START).await), 0);
    let known = fixture.store.exceeded_limit(fixture.organisation, 1, || START).unwrap();
    assert_eq!((known.limit, known.left), (10, 0), "what is known in memory refuses it before");
    assert_eq!(fixture.store.exceeded_limit(fixture.organisation, 10, || START.plus(DAY)), None);
    let again = fixture.ask(&[(Some("second"), 2)], START).await.unwrap();
    assert!(matches!(again[..], [Accepted::Replayed(_)]), "{again:?}");
    // A key of a refused request is not bound.
    let tomorrow = START.plus(DAY);
    let bound = fixture.ask(&[(Some("refused"), 1)], tomorrow).await.unwrap();
    assert!(matches!(bound[..], [Accepted::New(_)]), "{bound:?}");
    match fixture.ask(&[(None, 11)], tomorrow).await {
        Err(AcceptError::LimitReached(Exceeded { limit: 10, retry: None, .. })) => {}
        other => panic!("more than the limit in one request: {other:?}"),
    }
    // A limit below the present usage, and none.
    fixture.limit(Limits { per_day: Some(1), per_minute: Some(1), ..Limits::NONE }).await;
    assert_eq!(left(fixture.ask(&[(None, 1)], tomorrow).await), 0);
    fixture.limit(Limits::NONE).await;
    fixture.ask(&[(None, 100)], tomorrow).await.unwrap();
    assert_eq!(fixture.used(Period::Day, tomorrow).await, 101);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_one_time_never_exceed_a_limit_and_use_all_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Arc::new(Fixture::on(in_directory(&directory, START).await).await);
    fixture.limit(Limits { per_hour: Some(100), per_month: Some(1_000), ..Limits::NONE }).await;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..40_u64 {
        let fixture = Arc::clone(&fixture);
        clients.spawn(async move {
            let mut accepted = 0;
            for request in 0..5_u64 {
                let key = format!("{client} {request}");
                let key = (client % 2 == 0).then_some(key.as_str());
                match fixture.ask(&[(key, 1)], START).await {
                    Ok(_) => accepted += 1,
                    Err(AcceptError::LimitReached(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            accepted
        });
    }
    let accepted: u64 = clients.join_all().await.into_iter().sum();
    assert_eq!(accepted, 100);
    assert_eq!(fixture.listed().await, 100);
    assert_eq!(fixture.used(Period::Hour, START).await, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_kept_by_month_and_over_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let at = |text: &str| Timestamp::parse_rfc3339(text).unwrap();
    let (last, first) = (at("2027-01-31T23:59:59.900Z"), at("2027-02-01T00:00:00.000Z"));
    let months = [at("2027-01-01T00:00:00Z"), at("2027-02-01T00:00:00Z")];
    let of = async |store: &Store, month| store.usage_of_month(month).await.unwrap();
    let organisation = {
        let fixture = Fixture::on(in_directory(&directory, START).await).await;
        fixture.limit(Limits { per_month: Some(7), ..Limits::NONE }).await;
        fixture.ask(&[(None, 5)], last).await.unwrap();
        assert_eq!(left(fixture.ask(&[(None, 3)], last).await), 2);
        fixture.ask(&[(None, 6)], first).await.unwrap();
        let other =
            fixture.store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
        assert!(of(&fixture.store, months[0]).await.iter().all(|(one, _)| *one != other.id));
        fixture.organisation
    };
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    assert_eq!(of(&fixture.store, months[0]).await, [(organisation, 5)]);
    assert_eq!(of(&fixture.store, months[1]).await, [(organisation, 6)]);
    assert_eq!(of(&fixture.store, at("2026-12-01T00:00:00Z")).await, []);
    assert_eq!(left(fixture.ask(&[(None, 2)], first).await), 1);
    assert_eq!(fixture.used(Period::Month, first).await, 6);
    assert_eq!(fixture.used(Period::Minute, first).await, 6);
    assert_eq!(fixture.used(Period::Minute, first.plus(DAY)).await, 0);
    // For billing, the usage is there after the organisation is removed.
    fixture.store.remove_organisation(organisation).await.unwrap();
    assert_eq!(of(&fixture.store, months[1]).await, [(organisation, 6)]);
}
