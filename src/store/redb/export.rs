//! Export of all rows for another engine.

use redb::{Key, ReadTransaction, ReadableTable, TableDefinition, Value};
use tokio::sync::mpsc;

use crate::domain::id::MessageId;
use crate::store::StoreError;
use crate::store::record::webhooks::{decode_cursor, decode_webhook};
use crate::store::record::{IdempotencyRow, decode_api_key};
use crate::store::redb::RedbStore;
use crate::store::redb::error::ReadError;
use crate::store::redb::tables::{
    API_KEYS, BY_ORGANISATION, CLOCK, DEAD_LETTERS, DOMAINS, EVENTS, FEED, FEED_ID, HISTORY,
    ID_LEAD, IDEMPOTENCY, KEY_USE, LAST_KEY, LAST_ORGANISATION, LAST_WEBHOOK, LOST_MESSAGES,
    LOST_MESSAGES_AT, MADE_BY_DEV, MESSAGES, META, ORGANISATIONS, OVERTURNED, PENDING, SENT,
    SUPPRESSIONS, TIME_KEY, TIMELINE, UNMATCHED, WEBHOOK_CURSORS, WEBHOOK_FAILED, WEBHOOK_WAITING,
    WEBHOOKS,
};
use crate::store::transfer::{CHUNK_ROWS, Chunk, Facts, Field, TransferTable};

/// Number of the node that no node has: what it holds has no body any more.
const NOBODY: u32 = 0;
/// Number that no organisation has.
const NO_ORGANISATION: u32 = 0;

impl RedbStore {
    /// Sends all rows of one moment, table after table, and returns the facts beside them. Leaves a
    /// table if nobody takes its rows any more.
    pub(in crate::store) fn export(&self, to: &mpsc::Sender<Chunk>) -> Result<Facts, StoreError> {
        self.read("meta", "all tables", |transaction| export(transaction, to))
    }
}

fn export(transaction: &ReadTransaction, to: &mpsc::Sender<Chunk>) -> Result<Facts, ReadError> {
    let mut export = Export { transaction, to, left_out: 0 };
    let mut facts = facts(transaction)?;
    export.directory()?;
    export.messages()?;
    export.events()?;
    facts.feed_last = export.feed()?.max(export.webhooks()?);
    export.all(HISTORY, TransferTable::History, |(hour, organisation), counts| {
        Some(vec![Field::Number(hour), Field::Number(organisation), bytes(counts)])
    })?;
    facts.left_out = export.left_out;
    Ok(facts)
}

fn facts(transaction: &ReadTransaction) -> Result<Facts, ReadError> {
    let meta = transaction.open_table(META)?;
    let number = |name| Ok::<_, ReadError>(meta.get(name)?.map_or(0, |row| row.value()));
    let clock = transaction.open_table(CLOCK)?;
    Ok(Facts {
        last_organisation: number(LAST_ORGANISATION)?,
        last_key: number(LAST_KEY)?,
        last_webhook: number(LAST_WEBHOOK)?,
        id_lead: number(ID_LEAD)?,
        lost_messages: number(LOST_MESSAGES)?,
        lost_messages_at: number(LOST_MESSAGES_AT)?,
        feed_id: number(FEED_ID)?,
        feed_last: 0,
        time_record: clock.get(TIME_KEY)?.map(|row| row.value().to_vec()),
        made_by_dev: meta.get(MADE_BY_DEV)?.is_some(),
        left_out: 0,
    })
}

/// An export under way.
struct Export<'a> {
    transaction: &'a ReadTransaction,
    to: &'a mpsc::Sender<Chunk>,
    left_out: u64,
}

impl Export<'_> {
    fn directory(&mut self) -> Result<(), ReadError> {
        self.all(ORGANISATIONS, TransferTable::Organisations, |id, row| {
            Some(vec![Field::Number(id), bytes(row)])
        })?;
        let used = self.transaction.open_table(KEY_USE)?;
        self.all(API_KEYS, TransferTable::ApiKeys, |id, row| {
            // One that cannot be read is nobody's, and the nodes tell of it.
            let organisation =
                decode_api_key(id, row).map_or(NO_ORGANISATION, |key| key.organisation.0);
            let used_at = used.get(id).ok().flatten().map(|used_at| used_at.value());
            let used_at = Field::Optional(used_at);
            Some(vec![Field::Number(id), Field::Number(organisation), bytes(row), used_at])
        })?;
        self.all(DOMAINS, TransferTable::Domains, |(organisation, name), row| {
            Some(vec![Field::Number(organisation), Field::Text(name.to_owned()), bytes(row)])
        })?;
        self.all(SUPPRESSIONS, TransferTable::Suppressions, |(organisation, address), row| {
            let address = Field::Text(address.to_owned());
            // The first position: who follows them begins before it.
            Some(vec![Field::Number(organisation), address, bytes(row), Field::Large(1)])
        })
    }

    fn messages(&mut self) -> Result<(), ReadError> {
        // By the index of organisations: a record that cannot be read does not tell whose it is.
        let messages = self.transaction.open_table(MESSAGES)?;
        self.all(BY_ORGANISATION, TransferTable::Messages, |(organisation, id), ()| {
            let row = messages.get(id).ok().flatten()?;
            let id = Field::Id(MessageId::from_bytes(id));
            Some(vec![id, Field::Number(organisation), bytes(row.value())])
        })?;
        self.all(PENDING, TransferTable::Pending, |id, ()| {
            Some(vec![Field::Id(MessageId::from_bytes(id)), Field::Number(NOBODY)])
        })?;
        self.all(IDEMPOTENCY, TransferTable::IdempotencyKeys, |id, row| {
            let IdempotencyRow { organisation, created_at, key } =
                IdempotencyRow::decode(row).ok()?;
            let key = Field::Key(key.into_owned());
            let id = Field::Id(MessageId::from_bytes(id));
            Some(vec![Field::Number(organisation), key, id, Field::Large(created_at)])
        })?;
        self.all(SENT, TransferTable::SentMessages, |(sent_at, id), ses_message_id| {
            let ses_message_id = text(ses_message_id)?;
            let id = Field::Id(MessageId::from_bytes(id));
            Some(vec![ses_message_id, id, Field::Large(sent_at)])
        })?;
        self.all(OVERTURNED, TransferTable::OverturnedFailures, |id, row| {
            Some(vec![Field::Id(MessageId::from_bytes(id)), bytes(row)])
        })
    }

    fn events(&mut self) -> Result<(), ReadError> {
        self.all(EVENTS, TransferTable::Events, |key, row| {
            let (id, key) = key.split_first_chunk()?;
            Some(vec![Field::Id(MessageId::from_bytes(*id)), bytes(key), bytes(row)])
        })?;
        self.all(TIMELINE, TransferTable::Timeline, |(id, number), row| {
            Some(vec![Field::Id(MessageId::from_bytes(id)), Field::Number(number), bytes(row)])
        })?;
        self.all(UNMATCHED, TransferTable::UnmatchedEvents, |key, (received_at, row)| {
            let end = key.iter().position(|byte| *byte == 0)?;
            let ses_message_id = text(&key[..end])?;
            let digest = bytes(&key[end + 1..]);
            let received_at = Field::Large(received_at);
            Some(vec![ses_message_id, digest, received_at, bytes(row)])
        })?;
        self.all(DEAD_LETTERS, TransferTable::DeadLetters, |key, (received_at, row)| {
            Some(vec![bytes(key), Field::Large(received_at), bytes(row)])
        })
    }

    /// Sends the feed; returns its last position.
    fn feed(&mut self) -> Result<u64, ReadError> {
        let mut ends: Vec<(u32, u64)> = Vec::new();
        self.all(FEED, TransferTable::Feed, |(organisation, position), row| {
            match ends.last_mut() {
                Some((last, end)) if *last == organisation => *end = position,
                Some(_) | None => ends.push((organisation, position)),
            }
            Some(vec![Field::Number(organisation), Field::Large(position), bytes(row)])
        })?;
        let last = ends.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let rows = ends
            .into_iter()
            .map(|(organisation, end)| vec![Field::Number(organisation), Field::Large(end)]);
        self.send(TransferTable::FeedEnds, rows.collect());
        Ok(last)
    }

    /// Sends endpoints and their deliveries; returns the last position that one has reached.
    fn webhooks(&mut self) -> Result<u64, ReadError> {
        self.all(WEBHOOKS, TransferTable::Webhooks, |id, row| {
            let organisation =
                decode_webhook(id, row).map_or(NO_ORGANISATION, |webhook| webhook.organisation.0);
            Some(vec![Field::Number(id), Field::Number(organisation), bytes(row)])
        })?;
        let mut last = 0;
        self.all(WEBHOOK_CURSORS, TransferTable::WebhookCursors, |id, row| {
            let cursor = decode_cursor(row).ok()?.cursor;
            last = last.max(cursor.position.number());
            Some(vec![Field::Number(id), bytes(row)])
        })?;
        self.all(WEBHOOK_WAITING, TransferTable::WaitingDeliveries, |(id, due, position), row| {
            let (due, position) = (Field::Large(due), Field::Large(position));
            Some(vec![Field::Number(id), due, position, bytes(row)])
        })?;
        self.all(WEBHOOK_FAILED, TransferTable::FailedDeliveries, |(id, position), row| {
            Some(vec![Field::Number(id), Field::Large(position), bytes(row)])
        })?;
        Ok(last)
    }

    /// Sends all rows of a table. Those that become `None` cannot be brought over.
    fn all<K: Key + 'static, V: Value + 'static>(
        &mut self,
        table: TableDefinition<'static, K, V>,
        to: TransferTable,
        mut fields: impl FnMut(K::SelfType<'_>, V::SelfType<'_>) -> Option<Vec<Field>>,
    ) -> Result<(), ReadError> {
        let mut rows = Vec::new();
        for row in self.transaction.open_table(table)?.iter()? {
            let (key, value) = row?;
            match fields(key.value(), value.value()) {
                Some(fields) => rows.push(fields),
                None => self.left_out += 1,
            }
            if rows.len() == CHUNK_ROWS {
                self.send(to, std::mem::take(&mut rows));
                if self.to.is_closed() {
                    // Whoever does not take them any more says why.
                    return Ok(());
                }
            }
        }
        self.send(to, rows);
        Ok(())
    }

    fn send(&self, table: TransferTable, rows: Vec<Vec<Field>>) {
        if !rows.is_empty() {
            let _ = self.to.blocking_send(Chunk { table, rows });
        }
    }
}

/// Text of these bytes, if a database can have it.
fn text(bytes: &[u8]) -> Option<Field> {
    let text = String::from_utf8(bytes.to_vec()).ok()?;
    (!text.contains('\0')).then_some(Field::Text(text))
}

fn bytes(bytes: &[u8]) -> Field {
    Field::Bytes(bytes.to_vec())
}
