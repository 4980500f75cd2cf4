//! Endpoints of webhooks, and how far their deliveries are.
//!
//! The endpoints are few: they are in the index in memory, beside organisations and keys. The
//! deliveries are on disk alone: a cursor into the feed for each endpoint, and a row for each
//! delivery that failed and waits for its next attempt, or that failed for good.

use std::collections::BTreeSet;

use redb::ReadableTable;
use tokio::sync::watch;

use crate::domain::clock_corrections::WindowTime;
use crate::domain::feed::FeedPosition;
use crate::domain::id::OrganisationId;
use crate::domain::policy::RECORD_RETENTION;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{
    PausedBy, Redelivery, SigningSecret, WaitingDelivery, Webhook, WebhookCursor, WebhookId,
    WebhookState,
};
use crate::store::record::webhooks::{
    CursorRow, decode_cursor, decode_redelivery, decode_webhook, encode_cursor, encode_redelivery,
    encode_webhook,
};
use crate::store::redb::batch::Batch;
use crate::store::redb::error::{InRow, ReadError};
use crate::store::redb::tables::{
    LAST_WEBHOOK, Tables, WEBHOOK_CURSORS, WEBHOOK_FAILED, WEBHOOK_WAITING,
};
use crate::store::redb::{ROW_WEIGHT, RedbStore};
use crate::store::{Change, StoreError};
use crate::store::{
    MAX_WEBHOOKS, MAX_WEBHOOKS_OF_ONE, NewWebhook, Settled, Settlement, WaitingPage, WebhookAdded,
};

impl RedbStore {
    pub(in crate::store) async fn add_webhook(
        &self,
        organisation: OrganisationId,
        new: NewWebhook,
        now: Timestamp,
    ) -> Result<WebhookAdded, StoreError> {
        let add = self.writer.run(ROW_WEIGHT, move |batch| {
            if batch.tables.organisations.open()?.get(organisation.0)?.is_none() {
                return Ok(WebhookAdded::NoOrganisation);
            }
            let all = read_all(batch)?;
            let own = all.iter().filter(|webhook| webhook.organisation == organisation).count();
            if own >= MAX_WEBHOOKS_OF_ONE || all.len() >= MAX_WEBHOOKS {
                return Ok(WebhookAdded::TooMany);
            }
            let NewWebhook { url, types, authority, secret } = new;
            let webhook = Webhook {
                id: WebhookId(batch.tables.next_number(LAST_WEBHOOK)?),
                organisation,
                url,
                types,
                authority,
                created_at: now,
                secret,
                replaced: None,
                state: WebhookState::Active,
            };
            let position = batch.shared.feed.last();
            let cursor = WebhookCursor { turn: 0, position };
            put_cursor(&mut batch.tables, webhook.id, &CursorRow::new(cursor))?;
            put(batch, &webhook)?;
            Ok(WebhookAdded::Added(Box::new(webhook)))
        });
        add.await
    }

    pub(in crate::store) async fn remove_webhook(
        &self,
        id: WebhookId,
    ) -> Result<Change, StoreError> {
        let remove = self.writer.run(ROW_WEIGHT, move |batch| {
            let was_there = batch.tables.webhooks.open()?.remove(id.0)?.is_some();
            if !was_there {
                return Ok(Change::None);
            }
            batch.organisations = Change::Made;
            Ok(Change::Made)
        });
        remove.await
    }

    pub(in crate::store) async fn set_webhook_state(
        &self,
        id: WebhookId,
        state: WebhookState,
    ) -> Result<Option<Webhook>, StoreError> {
        self.change_webhook(id, move |webhook| webhook.state = state).await
    }

    pub(in crate::store) async fn rotate_webhook(
        &self,
        id: WebhookId,
        secret: SigningSecret,
        now: Timestamp,
    ) -> Result<Option<Webhook>, StoreError> {
        self.change_webhook(id, move |webhook| webhook.rotate(secret, now)).await
    }

    async fn change_webhook(
        &self,
        id: WebhookId,
        change: impl FnOnce(&mut Webhook) + Send + 'static,
    ) -> Result<Option<Webhook>, StoreError> {
        let change = self.writer.run(ROW_WEIGHT, move |batch| {
            let Some(mut webhook) = read(batch, id)? else { return Ok(None) };
            change(&mut webhook);
            put(batch, &webhook)?;
            Ok(Some(webhook))
        });
        change.await
    }

    pub(in crate::store) fn webhooks(&self) -> Vec<Webhook> {
        self.shared.organisations().webhooks.clone()
    }

    pub(in crate::store) fn webhook(&self, id: WebhookId) -> Option<Webhook> {
        self.shared.organisations().webhook(id).cloned()
    }

    pub(in crate::store) fn webhook_changes(&self) -> watch::Receiver<()> {
        self.shared.organisations_changed.subscribe()
    }

    pub(in crate::store) async fn webhook_cursor(
        &self,
        id: WebhookId,
    ) -> Result<Option<WebhookCursor>, StoreError> {
        let read = self.read_aside(move |store| {
            store.read(&WEBHOOK_CURSORS, id, |transaction| {
                let table = transaction.open_table(WEBHOOK_CURSORS)?;
                let row = table.get(id.0)?;
                let row = row.map(|row| decode_cursor(row.value()).in_row(WEBHOOK_CURSORS, id));
                Ok(row.transpose()?.map(|row| row.cursor))
            })
        });
        read.await
    }

    pub(in crate::store) async fn waiting_deliveries(
        &self,
        id: WebhookId,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        let read = self.read_aside(move |store| {
            store.read(&WEBHOOK_WAITING, id, |transaction| {
                let cursors = transaction.open_table(WEBHOOK_CURSORS)?;
                let mut page = WaitingPage::default();
                let Some(cursor) = cursors.get(id.0)? else { return Ok(page) };
                let cursor = decode_cursor(cursor.value()).in_row(WEBHOOK_CURSORS, id)?;
                let table = transaction.open_table(WEBHOOK_WAITING)?;
                for row in table.range((id.0, 0, 0)..(id.0 + 1, 0, 0))?.take(limit) {
                    let (key, row) = row?;
                    page.rows += 1;
                    let (_, due, position) = key.value();
                    let due = Timestamp::from_unix_millis(due);
                    let read = decode_redelivery(position, row.value());
                    match store.shared.damage.left_out(read.in_row(WEBHOOK_WAITING, id)) {
                        Some((turn, delivery)) if cursor.counts(turn, delivery.position) => {
                            page.deliveries.push(WaitingDelivery { due, delivery });
                        }
                        Some(_) | None => {
                            page.void.push((due, FeedPosition::from_number(position)));
                        }
                    }
                }
                Ok(page)
            })
        });
        read.await
    }

    pub(in crate::store) async fn count_waiting_deliveries(
        &self,
        id: WebhookId,
    ) -> Result<u64, StoreError> {
        let count = self.read_aside(move |store| {
            store.read(&WEBHOOK_WAITING, id, |transaction| {
                let table = transaction.open_table(WEBHOOK_WAITING)?;
                Ok(table.range((id.0, 0, 0)..(id.0 + 1, 0, 0))?.count() as u64)
            })
        });
        count.await
    }

    pub(in crate::store) async fn failed_deliveries(
        &self,
        id: WebhookId,
        limit: usize,
    ) -> Result<Vec<Redelivery>, StoreError> {
        let read = self.read_aside(move |store| {
            store.read(&WEBHOOK_FAILED, id, |transaction| {
                let table = transaction.open_table(WEBHOOK_FAILED)?;
                let mut found = Vec::new();
                for row in table.range((id.0, 0)..(id.0 + 1, 0))?.rev().take(limit) {
                    let (key, row) = row?;
                    let read = decode_redelivery(key.value().1, row.value());
                    let read = store.shared.damage.left_out(read.in_row(WEBHOOK_FAILED, id));
                    found.extend(read.map(|(_, delivery)| delivery));
                }
                Ok(found)
            })
        });
        read.await
    }

    /// Reads on a thread where that may take long.
    async fn read_aside<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.published().await;
        let store = self.clone();
        let read = tokio::task::spawn_blocking(move || read(&store)).await;
        read.expect("a read does not panic and is not aborted")
    }

    pub(in crate::store) async fn settle_deliveries(
        &self,
        id: WebhookId,
        turn: u32,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let rows = 1 + settlement.waiting.len() + settlement.tried.len() + settlement.failed.len();
        let settle = self.writer.run(ROW_WEIGHT * rows, move |batch| {
            let Some(row) = read_cursor(batch, id)?.filter(|row| row.cursor.turn == turn) else {
                return Ok(Settled::Outdated);
            };
            if batch.tables.webhooks.open()?.get(id.0)?.is_none() {
                return Ok(Settled::Outdated);
            }
            settle(batch, id, row, &settlement)?;
            Ok(Settled::Done)
        });
        settle.await
    }

    pub(in crate::store) async fn move_webhook_back(
        &self,
        id: WebhookId,
        position: FeedPosition,
        attempted_to: FeedPosition,
    ) -> Result<Option<Change>, StoreError> {
        let replay = self.writer.run(ROW_WEIGHT, move |batch| {
            let Some(row) = read_cursor(batch, id)? else { return Ok(None) };
            if row.cursor.position.max(attempted_to) <= position {
                return Ok(Some(Change::None));
            }
            // What was attempted and not stored yet comes again too.
            let position = position.min(row.cursor.position);
            put_cursor(&mut batch.tables, id, &row.moved_back(position))?;
            batch.organisations = Change::Made;
            Ok(Some(Change::Made))
        });
        replay.await
    }

    pub(in crate::store) async fn redeliver(
        &self,
        id: WebhookId,
        position: FeedPosition,
        attempted_to: FeedPosition,
        now: Timestamp,
    ) -> Result<Option<Change>, StoreError> {
        let redeliver = self.writer.run(ROW_WEIGHT, move |batch| {
            let Some(row) = read_cursor(batch, id)? else { return Ok(None) };
            if position > row.cursor.position.max(attempted_to) {
                return Ok(Some(Change::None));
            }
            let delivery = Redelivery { position, attempts: 0, last: None };
            batch.tables.webhook_failed.open()?.remove((id.0, position.number()))?;
            put_waiting(batch, id, row.cursor.turn, &WaitingDelivery { due: now, delivery })?;
            batch.organisations = Change::Made;
            Ok(Some(Change::Made))
        });
        redeliver.await
    }

    pub(in crate::store) async fn sweep_webhooks(
        &self,
        window_now: WindowTime,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let sweep = self.writer.run(0, move |batch| sweep(batch, &window_now, limit));
        sweep.await
    }
}

fn settle(
    batch: &mut Batch<'_>,
    id: WebhookId,
    mut row: CursorRow,
    settlement: &Settlement,
) -> Result<(), ReadError> {
    let turn = row.cursor.turn;
    if let Some(position) = settlement.cursor.filter(|position| *position > row.cursor.position) {
        row.cursor.position = position;
        put_cursor(&mut batch.tables, id, &row)?;
    }
    for (due, position) in &settlement.tried {
        batch.tables.webhook_waiting.open()?.remove((
            id.0,
            due.unix_millis(),
            position.number(),
        ))?;
    }
    for waiting in &settlement.waiting {
        put_waiting(batch, id, turn, waiting)?;
    }
    for delivery in &settlement.failed {
        let row = encode_redelivery(turn, delivery);
        let key = (id.0, delivery.position.number());
        batch.tables.webhook_failed.open()?.insert(key, row.as_slice())?;
    }
    if let Some(since) = settlement.gone
        && let Some(mut webhook) = read(batch, id)?
        && webhook.state == WebhookState::Active
    {
        webhook.state = WebhookState::Paused { by: PausedBy::Endpoint, since };
        put(batch, &webhook)?;
    }
    Ok(())
}

fn read_all(batch: &mut Batch<'_>) -> Result<Vec<Webhook>, ReadError> {
    let mut all = Vec::new();
    for row in batch.tables.webhooks.open()?.iter()? {
        let (id, row) = row?;
        // One that cannot be read counts for nothing.
        all.extend(decode_webhook(id.value(), row.value()));
    }
    Ok(all)
}

fn read(batch: &mut Batch<'_>, id: WebhookId) -> Result<Option<Webhook>, ReadError> {
    let row = batch.tables.webhooks.open()?.get(id.0)?;
    Ok(row.and_then(|row| decode_webhook(id.0, row.value()).ok()))
}

fn put(batch: &mut Batch<'_>, webhook: &Webhook) -> Result<(), ReadError> {
    batch.tables.webhooks.open()?.insert(webhook.id.0, encode_webhook(webhook).as_slice())?;
    batch.organisations = Change::Made;
    Ok(())
}

fn read_cursor(batch: &mut Batch<'_>, id: WebhookId) -> Result<Option<CursorRow>, ReadError> {
    let row = batch.tables.webhook_cursors.open()?.get(id.0)?;
    let row = row.map(|row| decode_cursor(row.value()).in_row(WEBHOOK_CURSORS, id));
    Ok(row.transpose()?)
}

fn put_cursor(tables: &mut Tables<'_>, id: WebhookId, row: &CursorRow) -> Result<(), ReadError> {
    tables.webhook_cursors.open()?.insert(id.0, encode_cursor(row).as_slice())?;
    Ok(())
}

fn put_waiting(
    batch: &mut Batch<'_>,
    id: WebhookId,
    turn: u32,
    waiting: &WaitingDelivery,
) -> Result<(), ReadError> {
    let WaitingDelivery { due, delivery } = waiting;
    let key = (id.0, due.unix_millis(), delivery.position.number());
    let row = encode_redelivery(turn, delivery);
    batch.tables.webhook_waiting.open()?.insert(key, row.as_slice())?;
    Ok(())
}

/// Removes the endpoints of an organisation. What they left is swept later, a step at a time.
pub(super) fn remove_of(
    batch: &mut Batch<'_>,
    organisation: OrganisationId,
) -> Result<(), ReadError> {
    for webhook in read_all(batch)? {
        if webhook.organisation == organisation {
            batch.tables.webhooks.open()?.remove(webhook.id.0)?;
        }
    }
    Ok(())
}

fn sweep(batch: &mut Batch<'_>, window_now: &WindowTime, limit: usize) -> Result<usize, ReadError> {
    let tables = &mut batch.tables;
    let mut live = BTreeSet::new();
    for row in tables.webhooks.open()?.iter()? {
        live.insert(row?.0.value());
    }
    let cursors = tables.webhook_cursors.open()?;
    let mut orphans = Vec::new();
    for row in cursors.iter()? {
        orphans.extend(Some(row?.0.value()).filter(|id| !live.contains(id)));
    }
    let mut swept = orphans.len();
    for id in orphans {
        cursors.remove(id)?;
    }
    let waiting = tables.webhook_waiting.open()?;
    let (mut keys, mut from) = (Vec::new(), 0);
    while let Some(row) = waiting.range((from, 0, 0)..)?.next() {
        let id = row?.0.value().0;
        let rows = if live.contains(&id) { 0 } else { limit - keys.len() };
        for row in waiting.range((id, 0, 0)..(id + 1, 0, 0))?.take(rows) {
            keys.push(row?.0.value());
        }
        from = id + 1;
    }
    swept += keys.len();
    for key in keys {
        waiting.remove(key)?;
    }
    let failed = tables.webhook_failed.open()?;
    let (mut keys, mut from) = (Vec::new(), 0);
    while let Some(row) = failed.range((from, 0)..)?.next() {
        let id = row?.0.value().0;
        for row in failed.range((id, 0)..(id + 1, 0))?.take(limit - keys.len()) {
            let (key, row) = row?;
            let read = decode_redelivery(key.value().1, row.value()).ok();
            let last = read.and_then(|(_, delivery)| delivery.last);
            // The event is older than its last attempt.
            let is_past = last.is_none_or(|(at, _)| window_now.is_past(at, RECORD_RETENTION));
            if live.contains(&id) && !is_past {
                break;
            }
            keys.push(key.value());
        }
        from = id + 1;
    }
    swept += keys.len();
    for key in keys {
        failed.remove(key)?;
    }
    Ok(swept)
}
