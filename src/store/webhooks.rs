//! Endpoints of webhooks, and the progress of their deliveries.
//!
//! The endpoints are few: they are in the directory in memory. The deliveries are only rows: a
//! cursor into the feed for each endpoint, and a row for each delivery that failed and waits for
//! its next attempt, or that failed for good.

use std::collections::BTreeSet;

use tokio::sync::watch;

use crate::organisations::exists;
use crate::record::webhooks::{
    CursorRow, decode_cursor, decode_redelivery, decode_webhook, encode_cursor, encode_redelivery,
    encode_webhook,
};
use crate::rows::{
    Counter, InTable, Key, KeyRange, KeyedRow, Lock, Rows, Stop, Table, next_number,
};
use crate::{
    Acknowledged, Acknowledgement, Change, MAX_WEBHOOKS, MAX_WEBHOOKS_OF_ONE, NewWebhook, Store,
    StoreError, WaitingPage, WebhookAdded,
};
use pillarbox_domain::clock_corrections::WindowTime;
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::OrganisationId;
use pillarbox_domain::limits::RECORD_RETENTION;
use pillarbox_domain::time::Timestamp;
use pillarbox_domain::webhook::{
    EarlierSecrets, PausedBy, Redelivery, SigningSecret, WaitingDelivery, Webhook, WebhookCursor,
    WebhookId, WebhookState,
};

impl Store {
    /// Adds an endpoint. It receives the events that are committed after it.
    pub async fn add_webhook(
        &self,
        organisation: OrganisationId,
        new: NewWebhook,
        now: Timestamp,
    ) -> Result<WebhookAdded, StoreError> {
        self.change(Lock::Directory, 1, move |rows| add(rows, organisation, &new, now)).await
    }

    /// Removes an endpoint. Events that it has not received yet are not delivered.
    pub async fn remove_webhook(&self, id: WebhookId) -> Result<Change, StoreError> {
        self.remove_row(Lock::Directory, Table::Webhooks, Key::from(id.0)).await
    }

    /// Pauses or resumes an endpoint; returns the changed endpoint, or `None` if it is gone.
    pub async fn set_webhook_state(
        &self,
        id: WebhookId,
        state: WebhookState,
    ) -> Result<Option<Webhook>, StoreError> {
        self.change_webhook(id, move |webhook| webhook.state = state).await
    }

    /// Gives an endpoint a new secret. The effect on the earlier ones: [`Webhook::rotate`].
    pub async fn rotate_webhook(
        &self,
        id: WebhookId,
        secret: SigningSecret,
        earlier: EarlierSecrets,
        now: Timestamp,
    ) -> Result<Option<Webhook>, StoreError> {
        self.change_webhook(id, move |webhook| webhook.rotate(secret.clone(), earlier, now)).await
    }

    async fn change_webhook(
        &self,
        id: WebhookId,
        apply: impl Fn(&mut Webhook) + Send + Sync + 'static,
    ) -> Result<Option<Webhook>, StoreError> {
        let change = move |rows: &mut dyn Rows| {
            let row = rows.get(Table::Webhooks, &Key::from(id.0))?;
            // One that cannot be read counts as gone.
            let read = row.and_then(|row| decode_webhook(id.0, &row).ok());
            let Some(mut webhook) = read else { return Ok(None) };
            apply(&mut webhook);
            put(rows, &webhook)?;
            Ok(Some(webhook))
        };
        self.change(Lock::Directory, 1, change).await
    }

    /// All endpoints, by number.
    pub fn webhooks(&self) -> Vec<Webhook> {
        self.directory().load().webhooks.clone()
    }

    /// The endpoint with this number.
    pub fn webhook(&self, id: WebhookId) -> Option<Webhook> {
        self.directory().load().webhook(id).cloned()
    }

    /// Returns a receiver that is notified after each change of an endpoint or its cursor, and
    /// after other changes.
    pub fn webhook_changes(&self) -> watch::Receiver<()> {
        self.directory().changes()
    }

    /// Returns the progress of an endpoint's deliveries; `None` if the endpoint is gone.
    pub async fn webhook_cursor(&self, id: WebhookId) -> Result<Option<WebhookCursor>, StoreError> {
        Ok(self.cursor_row(id).await?.map(|row| row.cursor))
    }

    async fn cursor_row(&self, id: WebhookId) -> Result<Option<CursorRow>, StoreError> {
        let row = self.row(Table::WebhookCursors, Key::from(id.0)).await?;
        let cursor = row.map(|row| decode_cursor(&row).in_table(Table::WebhookCursors, id));
        cursor.transpose().map_err(|row| self.damaged_row(row))
    }

    /// Deliveries of an endpoint that wait for their next attempt, by its time, at most `limit`
    /// rows.
    pub async fn waiting_deliveries(
        &self,
        id: WebhookId,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        let mut page = WaitingPage::default();
        let Some(cursor) = self.cursor_row(id).await? else { return Ok(page) };
        for (key, row) in self.rows(Table::WaitingDeliveries, KeyRange::of(id.0), limit).await? {
            page.rows += 1;
            let (due, position) = (Timestamp::from_unix_millis(key.large(4)), key.large(12));
            let read = decode_redelivery(position, &row).in_table(Table::WaitingDeliveries, id);
            match self.damage().left_out(read) {
                Some((generation, delivery)) if cursor.counts(generation, delivery.position) => {
                    page.deliveries.push(WaitingDelivery { due, delivery });
                }
                Some(_) | None => page.void.push((due, FeedPosition::from_number(position))),
            }
        }
        Ok(page)
    }

    /// Returns the number of an endpoint's deliveries that wait for their next attempt. Reads all
    /// of them.
    pub async fn count_waiting_deliveries(&self, id: WebhookId) -> Result<u64, StoreError> {
        self.count_rows(Table::WaitingDeliveries, KeyRange::of(id.0)).await
    }

    /// Deliveries of an endpoint whose last attempt failed, the newest events first, at most
    /// `limit`.
    pub async fn failed_deliveries(
        &self,
        id: WebhookId,
        limit: usize,
    ) -> Result<Vec<Redelivery>, StoreError> {
        let range = KeyRange::of(id.0).descending();
        let rows = self.rows(Table::FailedDeliveries, range, limit).await?;
        let found = rows.into_iter().filter_map(|(key, row)| {
            let read = decode_redelivery(key.large(4), &row).in_table(Table::FailedDeliveries, id);
            self.damage().left_out(read)
        });
        Ok(found.map(|(_, delivery)| delivery).collect())
    }

    /// Writes the outcomes of deliveries, unless the cursor has a new generation since.
    pub async fn acknowledge_deliveries(
        &self,
        id: WebhookId,
        generation: u32,
        acknowledgement: Acknowledgement,
    ) -> Result<Acknowledged, StoreError> {
        // Only an endpoint that is gone changes its own row.
        let lock = if acknowledgement.gone.is_some() { Lock::Directory } else { Lock::Rows };
        let rows = 1
            + acknowledgement.waiting.len()
            + acknowledgement.tried.len()
            + acknowledgement.failed.len();
        let rule = move |rows: &mut dyn Rows| acknowledge(rows, id, generation, &acknowledgement);
        self.change(lock, rows, rule).await
    }

    /// Moves an endpoint's cursor back, so that everything after `position` is delivered again.
    /// Leaves it if nothing after that was attempted, by the cursor or `attempted_to`. `None` if
    /// the endpoint is gone.
    pub async fn move_webhook_back(
        &self,
        id: WebhookId,
        position: FeedPosition,
        attempted_to: FeedPosition,
    ) -> Result<Option<Change>, StoreError> {
        let move_back = move |rows: &mut dyn Rows| {
            let Some(row) = read_cursor(rows, id)? else { return Ok(None) };
            if row.cursor.position.max(attempted_to) <= position {
                return Ok(Some(Change::None));
            }
            // An event that was attempted and not stored yet is delivered again too.
            let position = position.min(row.cursor.position);
            put_cursor(rows, id, &row.moved_back(position))?;
            Ok(Some(Change::Made))
        };
        self.change(Lock::Directory, 1, move_back).await
    }

    /// Schedules one event for delivery again, from `now` on. Changes nothing if it was not
    /// attempted yet, by the cursor and `attempted_to`. `None` if the endpoint is gone.
    pub async fn redeliver(
        &self,
        id: WebhookId,
        position: FeedPosition,
        attempted_to: FeedPosition,
        now: Timestamp,
    ) -> Result<Option<Change>, StoreError> {
        let redeliver = move |rows: &mut dyn Rows| {
            let Some(row) = read_cursor(rows, id)? else { return Ok(None) };
            if position > row.cursor.position.max(attempted_to) {
                return Ok(Some(Change::None));
            }
            let delivery = Redelivery { position, attempts: 0, last: None };
            rows.remove(Table::FailedDeliveries, &Key::from((id.0, position.number())))?;
            put_waiting(rows, id, row.cursor.generation, &WaitingDelivery { due: now, delivery })?;
            Ok(Some(Change::Made))
        };
        self.change(Lock::Directory, 1, redeliver).await
    }

    /// Removes rows of endpoints that are gone, and of failed deliveries whose event is past its
    /// retention: of each kind at most `limit` at once. Returns their number.
    pub async fn sweep_webhooks(
        &self,
        window_now: WindowTime,
        limit: usize,
    ) -> Result<usize, StoreError> {
        // As of now: the transaction checks again that each row is to be removed.
        let live = self.rows(Table::Webhooks, KeyRange::all(), usize::MAX).await?;
        let live: BTreeSet<u32> = live.iter().map(|(key, _)| key.number(0)).collect();
        let mut old = Vec::new();
        for table in [Table::WebhookCursors, Table::WaitingDeliveries, Table::FailedDeliveries] {
            let (mut found, mut next) = (Vec::new(), Some(0));
            // From endpoint to endpoint: a live one may have very many.
            while let Some(first) = next {
                let range = KeyRange { from: Key::from(first), ..KeyRange::all() };
                let Some((key, row)) = self.rows(table, range, 1).await?.pop() else { break };
                let id = key.number(0);
                let is_live = live.contains(&id);
                let is_old = |(key, row): &KeyedRow| is_old(table, key, row, is_live, &window_now);
                if is_old(&(key, row)) {
                    let rows = self.rows(table, KeyRange::of(id), limit - found.len()).await?;
                    found.extend(rows.into_iter().take_while(is_old));
                }
                next = id.checked_add(1).filter(|_| found.len() < limit);
            }
            old.extend(found.into_iter().map(|(key, row)| (table, key, row)));
        }
        if old.is_empty() {
            return Ok(0);
        }
        self.change(Lock::Rows, 0, move |rows| remove_old(rows, &old, &window_now)).await
    }
}

fn add(
    rows: &mut dyn Rows,
    organisation: OrganisationId,
    new: &NewWebhook,
    now: Timestamp,
) -> Result<WebhookAdded, Stop> {
    if !exists(rows, organisation)? {
        return Ok(WebhookAdded::NoOrganisation);
    }
    let all = rows.range(Table::Webhooks, &KeyRange::all(), usize::MAX)?;
    // A row that cannot be read counts for nothing.
    let all = all.iter().filter_map(|(key, row)| decode_webhook(key.number(0), row).ok());
    let all: Vec<Webhook> = all.collect();
    let own = all.iter().filter(|webhook| webhook.organisation == organisation).count();
    if own >= MAX_WEBHOOKS_OF_ONE || all.len() >= MAX_WEBHOOKS {
        return Ok(WebhookAdded::TooMany);
    }
    let NewWebhook { url, types, format, authority, secret } = new.clone();
    let webhook = Webhook {
        id: WebhookId(next_number(rows, Counter::LastWebhook)?),
        organisation,
        url,
        types,
        format,
        authority,
        created_at: now,
        secret,
        replaced: Vec::new(),
        state: WebhookState::Active,
    };
    let position = rows.feed_end()?;
    put_cursor(rows, webhook.id, &CursorRow::new(WebhookCursor { generation: 0, position }))?;
    put(rows, &webhook)?;
    Ok(WebhookAdded::Added(Box::new(webhook)))
}

fn acknowledge(
    rows: &mut dyn Rows,
    id: WebhookId,
    generation: u32,
    acknowledgement: &Acknowledgement,
) -> Result<Acknowledged, Stop> {
    let key = Key::from(id.0);
    rows.read_ahead(&[(Table::WebhookCursors, key.clone()), (Table::Webhooks, key.clone())])?;
    let cursor = read_cursor(rows, id)?.filter(|row| row.cursor.generation == generation);
    let webhook = rows.get(Table::Webhooks, &key)?;
    let (Some(mut row), Some(webhook)) = (cursor, webhook) else {
        return Ok(Acknowledged::Outdated);
    };
    if let Some(position) =
        acknowledgement.cursor.filter(|position| *position > row.cursor.position)
    {
        row.cursor.position = position;
        put_cursor(rows, id, &row)?;
    }
    for (due, position) in &acknowledgement.tried {
        let key = Key::from((id.0, due.unix_millis(), position.number()));
        rows.remove(Table::WaitingDeliveries, &key)?;
    }
    for waiting in &acknowledgement.waiting {
        put_waiting(rows, id, generation, waiting)?;
    }
    for delivery in &acknowledgement.failed {
        let key = Key::from((id.0, delivery.position.number()));
        rows.put(Table::FailedDeliveries, &key, &encode_redelivery(generation, delivery))?;
    }
    if let Some(since) = acknowledgement.gone
        && let Ok(mut webhook) = decode_webhook(id.0, &webhook)
        && webhook.state == WebhookState::Active
    {
        webhook.state = WebhookState::Paused { by: PausedBy::Endpoint, since };
        put(rows, &webhook)?;
    }
    Ok(Acknowledged::Done)
}

/// Removes rows that are still as they were read, if their endpoint is gone or their time is over.
/// An endpoint may have been added since they were found.
pub(super) fn remove_old(
    rows: &mut dyn Rows,
    old: &[(Table, Key, Vec<u8>)],
    window_now: &WindowTime,
) -> Result<usize, Stop> {
    let webhook = |key: &Key| Key::from(key.number(0));
    let keys: Vec<_> = old
        .iter()
        .flat_map(|(table, key, _)| [(*table, key.clone()), (Table::Webhooks, webhook(key))])
        .collect();
    rows.read_ahead(&keys)?;
    let mut removed = 0;
    for (table, key, row) in old {
        let is_live = rows.get(Table::Webhooks, &webhook(key))?.is_some();
        if is_old(*table, key, row, is_live, window_now)
            && rows.get(*table, key)?.as_ref() == Some(row)
        {
            rows.remove(*table, key)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Returns true if a row is to be removed, of an endpoint that is there or not.
fn is_old(table: Table, key: &Key, row: &[u8], is_live: bool, window_now: &WindowTime) -> bool {
    !is_live || (table == Table::FailedDeliveries && is_past(key, row, window_now))
}

/// Returns true if the event of a delivery that failed is past its retention: it is older than the
/// last attempt. A row that cannot be read counts as past.
fn is_past(key: &Key, row: &[u8], window_now: &WindowTime) -> bool {
    let read = decode_redelivery(key.large(4), row).ok();
    let last = read.and_then(|(_, delivery)| delivery.last);
    last.is_none_or(|(at, _)| window_now.is_past(at, RECORD_RETENTION))
}

fn put(rows: &mut dyn Rows, webhook: &Webhook) -> Result<(), Stop> {
    let key = Key::from(webhook.id.0);
    rows.put(Table::Webhooks, &key, &encode_webhook(webhook))
}

fn read_cursor(rows: &mut dyn Rows, id: WebhookId) -> Result<Option<CursorRow>, Stop> {
    let row = rows.get(Table::WebhookCursors, &Key::from(id.0))?;
    let cursor = row.map(|row| decode_cursor(&row).in_table(Table::WebhookCursors, id));
    Ok(cursor.transpose()?)
}

fn put_cursor(rows: &mut dyn Rows, id: WebhookId, row: &CursorRow) -> Result<(), Stop> {
    rows.put(Table::WebhookCursors, &Key::from(id.0), &encode_cursor(row))
}

fn put_waiting(
    rows: &mut dyn Rows,
    id: WebhookId,
    generation: u32,
    waiting: &WaitingDelivery,
) -> Result<(), Stop> {
    let WaitingDelivery { due, delivery } = waiting;
    let key = Key::from((id.0, due.unix_millis(), delivery.position.number()));
    rows.put(Table::WaitingDeliveries, &key, &encode_redelivery(generation, delivery))
}
