//! Export of all rows for another engine.

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, TableDefinition};
use tokio::sync::mpsc;

use crate::StoreError;
use crate::record::usage::decode_usage;
use crate::record::webhooks::decode_cursor;
use crate::record::{IdempotencyRow, organisation_of};
use crate::redb::error::ReadError;
use crate::redb::rows::counters;
use crate::redb::tables::{
    BY_ORGANISATION, CLOCK, FEED_ID, ID_LEAD, IDEMPOTENCY, IdKey, MADE_BY_DEV, MESSAGES, META,
    PENDING, Row, SENT, TIME_KEY, USAGE, published,
};
use crate::redb::{RedbStore, rows};
use crate::rows::{Key, KeyRange, NewRow, Table};
use crate::transfer::{CHUNK_ROWS, Chunk, Facts};
use pillarbox_domain::id::{MessageId, OrganisationId};

impl RedbStore {
    /// Sends all rows of one moment, table after table, and returns the facts beside them. Skips
    /// the rest of a table if nobody takes its rows any more.
    pub(crate) fn export(&self, to: &mpsc::Sender<Chunk>) -> Result<Facts, StoreError> {
        self.read("meta", "all tables", |transaction| export(transaction, to))
    }
}

fn export(transaction: &ReadTransaction, to: &mpsc::Sender<Chunk>) -> Result<Facts, ReadError> {
    let messages = transaction.open_table(MESSAGES)?;
    let by_organisation = transaction.open_table(BY_ORGANISATION)?;
    let facts = facts(transaction)?;
    let mut export = Export { transaction, messages: &messages, by_organisation, to, facts };
    // By the index of organisations: a record that cannot be read does not show its organisation.
    let rows = |rows| Chunk::Rows(Table::Messages, rows);
    export.all(BY_ORGANISATION, rows, |(organisation, id), ()| {
        let row = messages.get(id).ok().flatten()?.value().to_vec();
        let organisation = Some(OrganisationId(organisation));
        Some((Key::from(id), NewRow { row, organisation }))
    })?;
    // After their messages.
    for table in Table::ALL.into_iter().filter(|table| *table != Table::Messages) {
        export.rows(table)?;
    }
    export.all(PENDING, Chunk::Pending, |id, ()| Some(MessageId::from_bytes(id)))?;
    export.all(IDEMPOTENCY, Chunk::IdempotencyKeys, |id, row| {
        let row = IdempotencyRow::decode(row).ok()?;
        let organisation = OrganisationId(row.organisation);
        Some((organisation, row.key.into_owned(), MessageId::from_bytes(id), row.created_at))
    })?;
    export.all(USAGE, Chunk::Usage, |(organisation, month), row| {
        Some((OrganisationId(organisation), decode_usage(month, row).ok()?))
    })?;
    export.all(SENT, Chunk::Sent, |(sent_at, id), ses_message_id| {
        // A database can have no NUL in a text.
        let ses_message_id = String::from_utf8(ses_message_id.to_vec()).ok();
        let ses_message_id = ses_message_id.filter(|text| !text.contains('\0'))?;
        Some((ses_message_id, MessageId::from_bytes(id), sent_at))
    })?;
    Ok(export.facts)
}

fn facts(transaction: &ReadTransaction) -> Result<Facts, ReadError> {
    let meta = transaction.open_table(META)?;
    let number = |name| Ok::<_, ReadError>(meta.get(name)?.map_or(0, |row| row.value()));
    let clock = transaction.open_table(CLOCK)?;
    Ok(Facts {
        counters: counters(transaction)?,
        id_lead: number(ID_LEAD)?,
        feed_id: number(FEED_ID)?,
        last_cursor: 0,
        time_record: clock.get(TIME_KEY)?.map(|row| row.value().to_vec()),
        made_by_dev: meta.get(MADE_BY_DEV)?.is_some(),
        key_uses: rows::key_uses(transaction)?,
        left_out: 0,
    })
}

struct Export<'a> {
    transaction: &'a ReadTransaction,
    messages: &'a ReadOnlyTable<IdKey, Row>,
    by_organisation: ReadOnlyTable<(u32, IdKey), ()>,
    to: &'a mpsc::Sender<Chunk>,
    facts: Facts,
}

impl Export<'_> {
    /// Sends all rows of a table that the rules know.
    fn rows(&mut self, table: Table) -> Result<(), ReadError> {
        let mut range = KeyRange::all();
        loop {
            let rows = published(table).open(self.transaction)?.range(&range, CHUNK_ROWS)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            range = range.after(last.clone());
            let count = rows.len();
            let rows = rows.into_iter().filter_map(|(key, row)| self.brought(table, key, row));
            let rows: Vec<_> = rows.collect();
            self.facts.left_out += (count - rows.len()) as u64;
            // If nobody takes rows any more, the receiver gives the reason.
            if self.to.blocking_send(Chunk::Rows(table, rows)).is_err() {
                return Ok(());
            }
        }
    }

    /// Returns a row in its form for the database; `None` if a value that the database searches by
    /// cannot be read.
    fn brought(&mut self, table: Table, key: Key, row: Vec<u8>) -> Option<(Key, NewRow)> {
        match table {
            Table::WebhookCursors => {
                let position = decode_cursor(&row).ok()?.cursor.position.number();
                self.facts.last_cursor = self.facts.last_cursor.max(position);
            }
            // The database has no such row without its message, and messages are sent by their
            // index.
            Table::Timeline => {
                let id = *key.id(0).as_bytes();
                let organisation = organisation_of(self.messages.get(id).ok()??.value())?;
                self.by_organisation.get((organisation.0, id)).ok()??;
            }
            Table::Events if key.bytes().len() < size_of::<MessageId>() => return None,
            Table::UnmatchedEvents => {
                let end = key.bytes().iter().position(|byte| *byte == 0)?;
                std::str::from_utf8(&key.bytes()[..end]).ok()?;
            }
            _ => {}
        }
        let row = NewRow::of(table, &key, row);
        Some((key, row))
    }

    /// Sends all rows of another table. Rows that become `None` cannot be sent.
    fn all<K: redb::Key + 'static, V: redb::Value + 'static, T>(
        &mut self,
        table: TableDefinition<'static, K, V>,
        chunk: impl Fn(Vec<T>) -> Chunk,
        mut brought: impl FnMut(K::SelfType<'_>, V::SelfType<'_>) -> Option<T>,
    ) -> Result<(), ReadError> {
        let mut rows = Vec::new();
        for row in self.transaction.open_table(table)?.iter()? {
            let (key, value) = row?;
            match brought(key.value(), value.value()) {
                Some(row) => rows.push(row),
                None => self.facts.left_out += 1,
            }
            if rows.len() == CHUNK_ROWS
                && self.to.blocking_send(chunk(std::mem::take(&mut rows))).is_err()
            {
                return Ok(());
            }
        }
        let _ = self.to.blocking_send(chunk(rows));
        Ok(())
    }
}
