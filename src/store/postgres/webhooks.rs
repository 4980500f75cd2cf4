//! Endpoints of webhooks, and how far their deliveries are. One node delivers for all.

use tokio::sync::watch;

use crate::domain::clock_corrections::WindowTime;
use crate::domain::feed::FeedPosition;
use crate::domain::id::OrganisationId;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{
    PausedBy, Redelivery, SigningSecret, WaitingDelivery, Webhook, WebhookCursor, WebhookId,
    WebhookState,
};
use crate::store::error::DamagedRow;
use crate::store::postgres::connection::Connection;
use crate::store::postgres::directory::organisation_exists;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::purge::feed_runs;
use crate::store::postgres::working_set::position_number;
use crate::store::postgres::{PostgresStore, millis, number, timestamp};
use crate::store::record::webhooks::{
    CursorRow, decode_cursor, decode_redelivery, decode_webhook, encode_cursor, encode_redelivery,
    encode_webhook,
};
use crate::store::{
    Change, MAX_WEBHOOKS, MAX_WEBHOOKS_OF_ONE, NewWebhook, Settled, Settlement, StoreError,
    WaitingPage, WebhookAdded,
};

const ADD_WAITING: &str = "
INSERT INTO webhook_waiting (webhook, due, position, delivery) VALUES ($1, $2, $3, $4)
ON CONFLICT (webhook, due, position) DO UPDATE SET delivery = excluded.delivery";

impl PostgresStore {
    pub(in crate::store) async fn add_webhook(
        &self,
        organisation: OrganisationId,
        new: NewWebhook,
        now: Timestamp,
    ) -> Result<WebhookAdded, StoreError> {
        const COUNT: &str = "
            SELECT count(*), count(*) FILTER (WHERE organisation = $1) FROM webhook";
        const NEXT: &str =
            "UPDATE cluster SET last_webhook = last_webhook + 1 RETURNING last_webhook";
        const ADD: &str = "INSERT INTO webhook (id, organisation, webhook) VALUES ($1, $2, $3)";
        // Taken as a position: what is committed later is behind it.
        const LAST: &str = "UPDATE feed_counter SET last = last RETURNING last";
        let new = &new;
        let added = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            if !organisation_exists(connection, organisation).await? {
                return Ok(WebhookAdded::NoOrganisation);
            }
            let counts = connection.query_one(COUNT, &[&number(organisation)]).await?;
            let most = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
            if counts.get::<_, i64>(0) >= most(MAX_WEBHOOKS)
                || counts.get::<_, i64>(1) >= most(MAX_WEBHOOKS_OF_ONE)
            {
                return Ok(WebhookAdded::TooMany);
            }
            let id: i32 = connection.query_one(NEXT, &[]).await?.get(0);
            let NewWebhook { url, types, authority, secret } = new.clone();
            let webhook = Webhook {
                id: WebhookId(id.unsigned_abs()),
                organisation,
                url,
                types,
                authority,
                created_at: now,
                secret,
                replaced: None,
                state: WebhookState::Active,
            };
            let row = encode_webhook(&webhook);
            connection.execute(ADD, &[&id, &number(organisation), &row]).await?;
            let last: i64 = connection.query_one(LAST, &[]).await?.get(0);
            let position = FeedPosition::from_number(last.unsigned_abs());
            let cursor = WebhookCursor { turn: 0, position };
            put_cursor(connection, webhook.id, &CursorRow::new(cursor)).await?;
            change.commit(WebhookAdded::Added(Box::new(webhook))).await
        });
        added.await
    }

    pub(in crate::store) async fn remove_webhook(
        &self,
        id: WebhookId,
    ) -> Result<Change, StoreError> {
        let removed = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            let removed =
                connection.execute("DELETE FROM webhook WHERE id = $1", &[&key(id)]).await?;
            change.commit(if removed == 0 { Change::None } else { Change::Made }).await
        });
        removed.await
    }

    pub(in crate::store) async fn set_webhook_state(
        &self,
        id: WebhookId,
        state: WebhookState,
    ) -> Result<Option<Webhook>, StoreError> {
        self.change_webhook(id, |webhook| webhook.state = state).await
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
        apply: impl FnOnce(&mut Webhook) + Send,
    ) -> Result<Option<Webhook>, StoreError> {
        let changed = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            let Some(mut webhook) = read_webhook(connection, id).await? else { return Ok(None) };
            apply(&mut webhook);
            put_webhook(connection, &webhook).await?;
            change.commit(Some(webhook)).await
        });
        changed.await
    }

    pub(in crate::store) fn webhooks(&self) -> Vec<Webhook> {
        self.shared.directory.load().webhooks.clone()
    }

    pub(in crate::store) fn webhook(&self, id: WebhookId) -> Option<Webhook> {
        self.shared.directory.load().webhook(id).cloned()
    }

    pub(in crate::store) fn webhook_changes(&self) -> watch::Receiver<()> {
        self.shared.directory.changes()
    }

    pub(in crate::store) async fn webhook_cursor(
        &self,
        id: WebhookId,
    ) -> Result<Option<WebhookCursor>, StoreError> {
        Ok(self.read_cursor(id).await?.map(|row| row.cursor))
    }

    pub(in crate::store) async fn waiting_deliveries(
        &self,
        id: WebhookId,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        const READ: &str = "
            SELECT due, position, delivery FROM webhook_waiting WHERE webhook = $1
            ORDER BY due, position LIMIT $2";
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut page = WaitingPage::default();
        let Some(cursor) = self.read_cursor(id).await? else { return Ok(page) };
        for row in self.query(READ, &[&key(id), &most]).await? {
            page.rows += 1;
            let (due, position) = (timestamp(row.get(0)), row.get::<_, i64>(1).unsigned_abs());
            let delivery = decode_redelivery(position, row.get(2));
            let delivery =
                delivery.map_err(|reason| DamagedRow::new("webhook_waiting", id, &reason));
            match self.shared.damage.left_out(delivery) {
                Some((turn, delivery)) if cursor.counts(turn, delivery.position) => {
                    page.deliveries.push(WaitingDelivery { due, delivery });
                }
                Some(_) | None => page.void.push((due, FeedPosition::from_number(position))),
            }
        }
        Ok(page)
    }

    pub(in crate::store) async fn count_waiting_deliveries(
        &self,
        id: WebhookId,
    ) -> Result<u64, StoreError> {
        const COUNT: &str = "SELECT count(*) FROM webhook_waiting WHERE webhook = $1";
        let row = self.query_one(COUNT, &[&key(id)]).await?;
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }

    pub(in crate::store) async fn failed_deliveries(
        &self,
        id: WebhookId,
        limit: usize,
    ) -> Result<Vec<Redelivery>, StoreError> {
        const READ: &str = "
            SELECT position, delivery FROM webhook_failed WHERE webhook = $1
            ORDER BY position DESC LIMIT $2";
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.query(READ, &[&key(id), &most]).await?;
        let found = rows.iter().map(|row| {
            decode_redelivery(row.get::<_, i64>(0).unsigned_abs(), row.get(1))
                .map_err(|reason| DamagedRow::new("webhook_failed", id, &reason))
        });
        let found = found.filter_map(|delivery| self.shared.damage.left_out(delivery));
        Ok(found.map(|(_, delivery)| delivery).collect())
    }

    pub(in crate::store) async fn settle_deliveries(
        &self,
        id: WebhookId,
        turn: u32,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let work = async {
            // Only this one changes the endpoint itself.
            let change = match settlement.gone {
                Some(_) => self.begin_directory().await?,
                None => self.begin().await?,
            };
            let connection = change.connection();
            let row = lock_cursor(connection, id).await?;
            let Some(row) = row.filter(|row| row.cursor.turn == turn) else {
                return Ok(Settled::Outdated);
            };
            if read_webhook(connection, id).await?.is_none() {
                return Ok(Settled::Outdated);
            }
            settle(connection, id, row, &settlement).await?;
            change.commit(Settled::Done).await
        };
        match settlement.gone {
            Some(_) => self.changed_directory(work).await,
            None => self.changed(work).await,
        }
    }

    pub(in crate::store) async fn move_webhook_back(
        &self,
        id: WebhookId,
        position: FeedPosition,
        attempted_to: FeedPosition,
    ) -> Result<Option<Change>, StoreError> {
        let moved = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            let Some(row) = lock_cursor(connection, id).await? else { return Ok(None) };
            if row.cursor.position.max(attempted_to) <= position {
                return Ok(Some(Change::None));
            }
            // What was attempted and not stored yet comes again too.
            let position = position.min(row.cursor.position);
            put_cursor(connection, id, &row.moved_back(position)).await?;
            change.commit(Some(Change::Made)).await
        });
        moved.await
    }

    pub(in crate::store) async fn redeliver(
        &self,
        id: WebhookId,
        position: FeedPosition,
        attempted_to: FeedPosition,
        now: Timestamp,
    ) -> Result<Option<Change>, StoreError> {
        const REMOVE: &str = "DELETE FROM webhook_failed WHERE webhook = $1 AND position = $2";
        let redelivered = self.changed_directory(async {
            let change = self.begin_directory().await?;
            let connection = change.connection();
            let Some(row) = lock_cursor(connection, id).await? else { return Ok(None) };
            if position > row.cursor.position.max(attempted_to) {
                return Ok(Some(Change::None));
            }
            connection.execute(REMOVE, &[&key(id), &position_number(position)]).await?;
            let delivery = Redelivery { position, attempts: 0, last: None };
            let waiting = WaitingDelivery { due: now, delivery };
            put_waiting(connection, id, row.cursor.turn, &waiting).await?;
            change.commit(Some(Change::Made)).await
        });
        redelivered.await
    }

    pub(in crate::store) async fn sweep_webhooks(
        &self,
        window_now: WindowTime,
        limit: usize,
    ) -> Result<usize, StoreError> {
        const CURSORS: &str = "DELETE FROM webhook_cursor WHERE id NOT IN (SELECT id FROM webhook)";
        const WAITING: &str = "
            DELETE FROM webhook_waiting WHERE (webhook, due, position) IN (
                SELECT webhook, due, position FROM webhook_waiting
                WHERE webhook NOT IN (SELECT id FROM webhook) LIMIT $1)";
        const FAILED: &str = "
            DELETE FROM webhook_failed WHERE (webhook, position) IN (
                SELECT webhook, position FROM webhook_failed
                WHERE webhook NOT IN (SELECT id FROM webhook)
                    OR EXISTS (
                        SELECT FROM unnest($2::bigint[], $3::bigint[]) AS past (first, after_last)
                        WHERE position >= first AND position < after_last)
                LIMIT $1)";
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let (firsts, ends): (Vec<i64>, Vec<i64>) = feed_runs(&window_now).into_iter().unzip();
        let swept = self.changed(async {
            let change = self.begin().await?;
            let connection = change.connection();
            let cursors = connection.execute(CURSORS, &[]).await?;
            let waiting = connection.execute(WAITING, &[&most]).await?;
            let failed = connection.execute(FAILED, &[&most, &firsts, &ends]).await?;
            change.commit(cursors + waiting + failed).await
        });
        Ok(usize::try_from(swept.await?).unwrap_or(usize::MAX))
    }
}

impl PostgresStore {
    async fn read_cursor(&self, id: WebhookId) -> Result<Option<CursorRow>, StoreError> {
        const READ: &str = "SELECT cursor FROM webhook_cursor WHERE id = $1";
        let row = self.query_opt(READ, &[&key(id)]).await?;
        cursor_of(id, row.as_ref()).map_err(|error| self.shared.refused(error))
    }
}

fn key(id: WebhookId) -> i32 {
    i32::try_from(id.0).unwrap_or(i32::MAX)
}

async fn settle(
    connection: &Connection,
    id: WebhookId,
    mut row: CursorRow,
    settlement: &Settlement,
) -> Result<(), QueryError> {
    const TRIED: &str = "
        DELETE FROM webhook_waiting WHERE webhook = $1 AND (due, position) IN (
            SELECT * FROM unnest($2::bigint[], $3::bigint[]))";
    const FAILED: &str = "
        INSERT INTO webhook_failed (webhook, position, delivery) VALUES ($1, $2, $3)
        ON CONFLICT (webhook, position) DO UPDATE SET delivery = excluded.delivery";
    let turn = row.cursor.turn;
    if let Some(position) = settlement.cursor.filter(|position| *position > row.cursor.position) {
        row.cursor.position = position;
        put_cursor(connection, id, &row).await?;
    }
    if !settlement.tried.is_empty() {
        let (due, positions): (Vec<i64>, Vec<i64>) = settlement
            .tried
            .iter()
            .map(|(due, position)| (millis(*due), position_number(*position)))
            .unzip();
        connection.execute(TRIED, &[&key(id), &due, &positions]).await?;
    }
    for waiting in &settlement.waiting {
        put_waiting(connection, id, turn, waiting).await?;
    }
    for delivery in &settlement.failed {
        let (position, row) =
            (position_number(delivery.position), encode_redelivery(turn, delivery));
        connection.execute(FAILED, &[&key(id), &position, &row]).await?;
    }
    if let Some(since) = settlement.gone
        && let Some(mut webhook) = read_webhook(connection, id).await?
        && webhook.state == WebhookState::Active
    {
        webhook.state = WebhookState::Paused { by: PausedBy::Endpoint, since };
        put_webhook(connection, &webhook).await?;
    }
    Ok(())
}

async fn read_webhook(
    connection: &Connection,
    id: WebhookId,
) -> Result<Option<Webhook>, QueryError> {
    const READ: &str = "SELECT webhook FROM webhook WHERE id = $1";
    let row = connection.query_opt(READ, &[&key(id)]).await?;
    Ok(row.and_then(|row| decode_webhook(id.0, row.get(0)).ok()))
}

async fn put_webhook(connection: &Connection, webhook: &Webhook) -> Result<(), QueryError> {
    const PUT: &str = "UPDATE webhook SET webhook = $2 WHERE id = $1";
    connection.execute(PUT, &[&key(webhook.id), &encode_webhook(webhook)]).await?;
    Ok(())
}

async fn lock_cursor(
    connection: &Connection,
    id: WebhookId,
) -> Result<Option<CursorRow>, QueryError> {
    let sql = "SELECT cursor FROM webhook_cursor WHERE id = $1 FOR UPDATE";
    cursor_of(id, connection.query_opt(sql, &[&key(id)]).await?.as_ref())
}

fn cursor_of(
    id: WebhookId,
    row: Option<&tokio_postgres::Row>,
) -> Result<Option<CursorRow>, QueryError> {
    let cursor = row.map(|row| decode_cursor(row.get(0)));
    let cursor = cursor.transpose();
    Ok(cursor.map_err(|reason| DamagedRow::new("webhook_cursor", id, &reason))?)
}

async fn put_cursor(
    connection: &Connection,
    id: WebhookId,
    row: &CursorRow,
) -> Result<(), QueryError> {
    const PUT: &str = "
        INSERT INTO webhook_cursor (id, cursor) VALUES ($1, $2)
        ON CONFLICT (id) DO UPDATE SET cursor = excluded.cursor";
    connection.execute(PUT, &[&key(id), &encode_cursor(row)]).await?;
    Ok(())
}

async fn put_waiting(
    connection: &Connection,
    id: WebhookId,
    turn: u32,
    waiting: &WaitingDelivery,
) -> Result<(), QueryError> {
    let WaitingDelivery { due, delivery } = waiting;
    let (due, position) = (millis(*due), position_number(delivery.position));
    let row = encode_redelivery(turn, delivery);
    connection.execute(ADD_WAITING, &[&key(id), &due, &position, &row]).await?;
    Ok(())
}
