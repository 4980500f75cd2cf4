//! Deliveries to endpoints, as the store keeps them.

use crate::conformance::{Fixture, MILLISECOND, START, in_directory, in_memory};
use crate::record::webhooks::encode_webhook;
use crate::rows::{Key, KeyRange, Lock, Rows, Table};
use crate::webhooks::remove_old;
use crate::{
    Acknowledged, Acknowledgement, Change, MAX_WEBHOOKS, MAX_WEBHOOKS_OF_ONE, NewWebhook,
    WebhookAdded,
};
use pillarbox_domain::feed::{FeedPosition, FeedTypes};
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::webhook::{
    AttemptFailure, EarlierSecrets, PausedBy, Redelivery, SigningSecret, WaitingDelivery, Webhook,
    WebhookFormat, WebhookId, WebhookState, WebhookUrl,
};

impl Fixture {
    /// Adds an endpoint for all events, in this form of them.
    pub(super) async fn add_webhook(
        &self,
        organisation: OrganisationId,
        format: WebhookFormat,
    ) -> WebhookAdded {
        let new = NewWebhook {
            url: WebhookUrl::parse("https://app.example.com/hooks").unwrap(),
            types: FeedTypes::ALL,
            format,
            authority: None,
            secret: SigningSecret::generate().unwrap(),
        };
        self.store.add_webhook(organisation, new, START).await.unwrap()
    }

    /// An endpoint of the organisation, for all events in the standard form.
    pub(super) async fn webhook(&self) -> Webhook {
        let added = self.add_webhook(self.organisation, WebhookFormat::Standard).await;
        let WebhookAdded::Added(webhook) = added else { panic!("{added:?}") };
        *webhook
    }
}

/// A delivery that waits for another attempt.
fn waiting(position: FeedPosition) -> WaitingDelivery {
    let delivery = Redelivery { position, attempts: 1, last: None };
    WaitingDelivery { due: START.plus(MILLISECOND), delivery }
}

#[tokio::test]
async fn deliveries_that_a_replay_made_void_stay_void_whatever_later_ones_replay() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let webhook = fixture.webhook().await;
    let first = store.webhook_cursor(webhook.id).await.unwrap().unwrap();
    let at = |offset| FeedPosition::from_number(first.position.number() + offset);
    let acknowledge = async |generation, positions: &[u64]| {
        let waiting = positions.iter().map(|offset| waiting(at(*offset))).collect();
        let acknowledgement =
            Acknowledgement { cursor: Some(at(100)), waiting, ..Acknowledgement::default() };
        let acknowledged =
            store.acknowledge_deliveries(webhook.id, generation, acknowledgement).await;
        assert_eq!(acknowledged, Ok(Acknowledged::Done));
    };
    let replay = async |offset| {
        let moved = store.move_webhook_back(webhook.id, at(offset), at(100)).await;
        assert_eq!(moved, Ok(Some(Change::Made)));
    };
    let found = async || {
        let page = store.waiting_deliveries(webhook.id, 100).await.unwrap();
        let deliveries = page.deliveries.iter().map(|one| one.delivery.position);
        let void = page.void.iter().map(|(_, position)| *position);
        (deliveries.collect::<Vec<_>>(), void.collect::<Vec<_>>())
    };
    acknowledge(first.generation, &[40, 60, 90]).await;
    assert_eq!(found().await, (vec![at(40), at(60), at(90)], vec![]));
    replay(50).await;
    assert_eq!(found().await, (vec![at(40)], vec![at(60), at(90)]));
    // The feed is delivered again, and some deliveries fail again.
    acknowledge(first.generation + 1, &[70, 95]).await;
    replay(80).await;
    let void = vec![at(60), at(90), at(95)];
    assert_eq!(found().await, (vec![at(40), at(70)], void), "60 came again with the first replay");
    acknowledge(first.generation + 2, &[99]).await;
    replay(65).await;
    assert_eq!(found().await.0, [at(40)]);
}

#[tokio::test]
async fn a_delivery_waits_fails_and_is_delivered_again_on_demand() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let id = fixture.webhook().await.id;
    let first = store.webhook_cursor(id).await.unwrap().unwrap();
    let at = |offset| FeedPosition::from_number(first.position.number() + offset);
    let acknowledge = async |acknowledgement| {
        let done = store.acknowledge_deliveries(id, first.generation, acknowledgement).await;
        assert_eq!(done, Ok(Acknowledged::Done));
    };
    let found = async || {
        let page = store.waiting_deliveries(id, 9).await.unwrap();
        assert_eq!(page.rows, page.deliveries.len() + page.void.len());
        let waiting: Vec<_> = page.deliveries.iter().map(|one| one.delivery.position).collect();
        let failed = store.failed_deliveries(id, 9).await.unwrap();
        (waiting, failed.iter().map(|one| one.position).collect::<Vec<_>>())
    };
    let waiting = vec![waiting(at(1)), waiting(at(2)), waiting(at(3))];
    let due = waiting[0].due;
    let cursor = Some(at(3));
    acknowledge(Acknowledgement { cursor, waiting, ..Acknowledgement::default() }).await;
    assert_eq!(found().await, (vec![at(1), at(2), at(3)], vec![]));
    assert_eq!(store.count_waiting_deliveries(id).await.unwrap(), 3);
    let failed = |offset| Redelivery { position: at(offset), attempts: 9, last: None };
    let (tried, failed) = (vec![(due, at(1)), (due, at(2))], vec![failed(1), failed(2)]);
    acknowledge(Acknowledgement { tried, failed, ..Acknowledgement::default() }).await;
    assert_eq!(found().await, (vec![at(3)], vec![at(2), at(1)]));

    let redeliver = async |id, offset| store.redeliver(id, at(offset), at(0), START).await.unwrap();
    assert_eq!(redeliver(id, 4).await, Some(Change::None), "it was not attempted yet");
    assert_eq!(redeliver(id, 1).await, Some(Change::Made));
    assert_eq!(found().await, (vec![at(1), at(3)], vec![at(2)]));
    assert_eq!(redeliver(id, 3).await, Some(Change::Made), "the last one that was attempted");
    assert_eq!(redeliver(WebhookId(99), 1).await, None);
}

#[tokio::test]
async fn an_organisation_has_so_many_endpoints_whatever_others_have() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let add = |organisation| fixture.add_webhook(organisation, WebhookFormat::Standard);
    for _ in 0..MAX_WEBHOOKS_OF_ONE {
        assert!(matches!(add(fixture.organisation).await, WebhookAdded::Added(_)));
    }
    assert!(matches!(add(fixture.organisation).await, WebhookAdded::TooMany));
    let other = fixture.store.add_organisation("other".parse().unwrap()).await.unwrap().unwrap();
    assert!(matches!(add(other.id).await, WebhookAdded::Added(_)));
}

#[tokio::test]
async fn all_organisations_together_have_so_many_endpoints() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_memory(&directory, START).await).await;
    let added = fixture.webhook().await;
    // As if the others had added the rest.
    let copies = move |rows: &mut dyn Rows| {
        for number in 2..=u32::try_from(MAX_WEBHOOKS).unwrap() {
            let webhook = Webhook {
                id: WebhookId(number),
                organisation: OrganisationId(1_000 + number),
                ..added.clone()
            };
            rows.put(Table::Webhooks, &Key::from(number), &encode_webhook(&webhook))?;
        }
        Ok(())
    };
    fixture.store.change(Lock::Directory, 1, copies).await.unwrap();
    let add = || fixture.add_webhook(fixture.organisation, WebhookFormat::Standard);
    assert!(matches!(add().await, WebhookAdded::TooMany));
    assert_eq!(fixture.store.remove_webhook(WebhookId(7)).await.unwrap(), Change::Made);
    assert!(matches!(add().await, WebhookAdded::Added(_)));
}

#[tokio::test]
async fn an_endpoint_that_says_it_is_gone_is_paused_unless_an_operator_paused_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let by_operator = WebhookState::Paused { by: PausedBy::Operator, since: START };
    let later = START.plus(MILLISECOND);
    let by_itself = WebhookState::Paused { by: PausedBy::Endpoint, since: later };
    for (state, expected) in [(WebhookState::Active, by_itself), (by_operator, by_operator)] {
        let id = fixture.webhook().await.id;
        store.set_webhook_state(id, state).await.unwrap();
        let gone = Acknowledgement { gone: Some(later), ..Acknowledgement::default() };
        let done = store.acknowledge_deliveries(id, 0, gone).await;
        assert_eq!(done, Ok(Acknowledged::Done));
        assert_eq!(store.webhook(id).unwrap().state, expected);
    }
    assert_eq!(store.webhook(WebhookId(99)), None);
}

#[tokio::test]
async fn a_sweep_removes_what_endpoints_have_left_in_bounded_steps() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = fixture.webhook().await.id;
        let cursor = store.webhook_cursor(id).await.unwrap().unwrap();
        let at = |offset| FeedPosition::from_number(cursor.position.number() + offset);
        let last = Some((START, AttemptFailure::Status(500)));
        let acknowledgement = Acknowledgement {
            waiting: [1, 2, 3].map(|offset| waiting(at(offset))).into(),
            failed: [4, 5]
                .map(|offset| Redelivery { position: at(offset), attempts: 9, last })
                .into(),
            ..Acknowledgement::default()
        };
        let done = store.acknowledge_deliveries(id, cursor.generation, acknowledgement).await;
        assert_eq!(done, Ok(Acknowledged::Done));
        ids.push(id);
    }
    for removed in [ids[0], ids[2]] {
        assert_eq!(store.remove_webhook(removed).await.unwrap(), Change::Made);
    }
    let mut swept = Vec::new();
    while swept.last() != Some(&0) {
        swept.push(store.sweep_webhooks(START.into(), 4).await.unwrap());
    }
    assert_eq!(swept, [2 + 4 + 4, 2, 0], "of each table four at once");
    let left = store.waiting_deliveries(ids[1], 9).await.unwrap().deliveries.len();
    assert_eq!((left, store.failed_deliveries(ids[1], 9).await.unwrap().len()), (3, 2));
    for gone in [ids[0], ids[2]] {
        assert_eq!(store.count_waiting_deliveries(gone).await.unwrap(), 0);
        assert_eq!(store.failed_deliveries(gone, 9).await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_sweep_leaves_what_belongs_to_an_endpoint_that_was_added_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let webhook = fixture.webhook().await;
    // As if the sweep had read the endpoints before this one was there.
    let rows = fixture.store.rows(Table::WebhookCursors, KeyRange::all(), 10).await.unwrap();
    let old: Vec<_> =
        rows.into_iter().map(|(key, row)| (Table::WebhookCursors, key, row)).collect();
    assert_eq!(old.len(), 1);
    let removed = fixture
        .store
        .change(Lock::Rows, 0, move |rows| remove_old(rows, &old, &START.into()))
        .await
        .unwrap();
    assert_eq!(removed, 0);
    assert!(fixture.store.webhook_cursor(webhook.id).await.unwrap().is_some());
}

#[tokio::test]
async fn the_form_of_an_endpoints_events_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(in_directory(&directory, START).await).await;
    let store = &fixture.store;
    for format in WebhookFormat::ALL {
        let added = fixture.add_webhook(fixture.organisation, format).await;
        let WebhookAdded::Added(webhook) = added else { panic!("{added:?}") };
        assert_eq!(webhook.format, format);
        let secret = SigningSecret::generate().unwrap();
        let rotated =
            store.rotate_webhook(webhook.id, secret, EarlierSecrets::Sign, START).await.unwrap();
        assert_eq!(rotated.unwrap().format, format);
    }
    let kept: Vec<_> = store.webhooks().iter().map(|webhook| webhook.format).collect();
    assert_eq!(kept, WebhookFormat::ALL);
}
