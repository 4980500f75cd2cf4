//! Tables of the file as the rules of the store know them: keys and rows as bytes.

use std::ops::Bound;

use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition};

use crate::domain::time::Timestamp;
use crate::store::redb::tables::{
    ALERTS, API_KEYS, DEAD_LETTERS, DOMAINS, EVENTS, FEED, HISTORY, IdKey, MESSAGES, ORGANISATIONS,
    OVERTURNED, OnDemand, Row, SUPPRESSIONS, TIMELINE, Tables, TimedRow, UNMATCHED,
    WEBHOOK_CURSORS, WEBHOOK_FAILED, WEBHOOK_WAITING, WEBHOOKS,
};
use crate::store::rows::{Key, KeyRange, KeyedRow, Table, split_timed, timed};

trait KeyForm: redb::Key + Sync + 'static {
    /// Reads a key. What a shorter one lacks is the least.
    fn read(key: &Key) -> Self::SelfType<'_>;
    fn write(key: &Self::SelfType<'_>) -> Key;
}

macro_rules! key_forms {
    ($($form:ty: |$key:ident| $read:expr;)+) => {
        $(
            impl KeyForm for $form {
                fn read($key: &Key) -> Self::SelfType<'_> {
                    $read
                }

                fn write(key: &Self::SelfType<'_>) -> Key {
                    Key::from(*key)
                }
            }
        )+
    };
}

key_forms! {
    u32: |key| key.number(0);
    (u32, u32): |key| (key.number(0), key.number(4));
    (u32, u64): |key| (key.number(0), key.large(4));
    (u32, u64, u64): |key| (key.number(0), key.large(4), key.large(12));
    (u32, &'static str): |key| (key.number(0), key.text(4));
    IdKey: |key| *key.id(0).as_bytes();
    (IdKey, u32): |key| (*key.id(0).as_bytes(), key.number(16));
    Row: |key| key.bytes();
}

trait RowForm: redb::Value + Sync + 'static {
    fn read(row: &[u8]) -> Self::SelfType<'_>;
    fn write(row: &Self::SelfType<'_>) -> Vec<u8>;
}

impl RowForm for Row {
    fn read(row: &[u8]) -> &[u8] {
        row
    }

    fn write(row: &&[u8]) -> Vec<u8> {
        row.to_vec()
    }
}

impl RowForm for TimedRow {
    fn read(row: &[u8]) -> (u64, &[u8]) {
        let (at, row) = split_timed(row);
        (at.unix_millis(), row)
    }

    fn write((at, row): &(u64, &[u8])) -> Vec<u8> {
        timed(Timestamp::from_unix_millis(*at), row)
    }
}

/// Table of a write transaction.
pub(super) trait RowTable {
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, redb::Error>;
    fn put(&mut self, key: &Key, row: &[u8]) -> Result<(), redb::Error>;
    fn remove(&mut self, key: &Key) -> Result<(), redb::Error>;
    fn range(&mut self, range: &KeyRange, limit: usize) -> Result<Vec<KeyedRow>, redb::Error>;
}

impl<K: KeyForm, V: RowForm> RowTable for OnDemand<'_, K, V> {
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, redb::Error> {
        get::<K, V>(&**self.open()?, key)
    }

    fn put(&mut self, key: &Key, row: &[u8]) -> Result<(), redb::Error> {
        Ok(self.open()?.insert(K::read(key), V::read(row))?)
    }

    fn remove(&mut self, key: &Key) -> Result<(), redb::Error> {
        self.open()?.remove(K::read(key))?;
        Ok(())
    }

    fn range(&mut self, range: &KeyRange, limit: usize) -> Result<Vec<KeyedRow>, redb::Error> {
        read_range::<K, V>(&**self.open()?, range, limit)
    }
}

/// Table of a snapshot.
pub(super) trait PublishedTable: Sync {
    fn get(
        &self,
        transaction: &ReadTransaction,
        keys: &[Key],
    ) -> Result<Vec<KeyedRow>, redb::Error>;

    fn range(
        &self,
        transaction: &ReadTransaction,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<KeyedRow>, redb::Error>;

    fn count(&self, transaction: &ReadTransaction, range: &KeyRange) -> Result<u64, redb::Error>;
}

impl<K: KeyForm, V: RowForm> PublishedTable for TableDefinition<'static, K, V> {
    fn get(
        &self,
        transaction: &ReadTransaction,
        keys: &[Key],
    ) -> Result<Vec<KeyedRow>, redb::Error> {
        let table = transaction.open_table(*self)?;
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.extend(get::<K, V>(&table, key)?.map(|row| (key.clone(), row)));
        }
        Ok(found)
    }

    fn range(
        &self,
        transaction: &ReadTransaction,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<KeyedRow>, redb::Error> {
        read_range::<K, V>(&transaction.open_table(*self)?, range, limit)
    }

    fn count(&self, transaction: &ReadTransaction, range: &KeyRange) -> Result<u64, redb::Error> {
        let table = transaction.open_table(*self)?;
        if *range == KeyRange::all() {
            return Ok(table.len()?);
        }
        let rows = table.range::<K::SelfType<'_>>(bounds::<K>(range))?;
        Ok(rows.count() as u64)
    }
}

fn get<K: KeyForm, V: RowForm>(
    table: &impl ReadableTable<K, V>,
    key: &Key,
) -> Result<Option<Vec<u8>>, redb::Error> {
    let row = table.get(K::read(key))?;
    Ok(row.map(|row| V::write(&row.value())))
}

fn read_range<K: KeyForm, V: RowForm>(
    table: &impl ReadableTable<K, V>,
    range: &KeyRange,
    limit: usize,
) -> Result<Vec<KeyedRow>, redb::Error> {
    let mut rows = table.range::<K::SelfType<'_>>(bounds::<K>(range))?;
    let mut found = Vec::new();
    while found.len() < limit {
        let row = if range.is_descending { rows.next_back() } else { rows.next() };
        let Some(row) = row else { break };
        let (key, row) = row?;
        found.push((K::write(&key.value()), V::write(&row.value())));
    }
    Ok(found)
}

type Bounds<'a, K> =
    (Bound<<K as redb::Value>::SelfType<'a>>, Bound<<K as redb::Value>::SelfType<'a>>);

fn bounds<K: KeyForm>(range: &KeyRange) -> Bounds<'_, K> {
    let (from, end) = range.bounds();
    (from.map(K::read), end.map(K::read))
}

pub(super) fn published(table: Table) -> &'static dyn PublishedTable {
    match table {
        Table::Organisations => &ORGANISATIONS,
        Table::ApiKeys => &API_KEYS,
        Table::Domains => &DOMAINS,
        Table::Webhooks => &WEBHOOKS,
        Table::WebhookCursors => &WEBHOOK_CURSORS,
        Table::WaitingDeliveries => &WEBHOOK_WAITING,
        Table::FailedDeliveries => &WEBHOOK_FAILED,
        Table::Suppressions => &SUPPRESSIONS,
        Table::DeadLetters => &DEAD_LETTERS,
        Table::UnmatchedEvents => &UNMATCHED,
        Table::History => &HISTORY,
        Table::Messages => &MESSAGES,
        Table::Events => &EVENTS,
        Table::Timeline => &TIMELINE,
        Table::OverturnedFailures => &OVERTURNED,
        Table::Feed => &FEED,
        Table::Alerts => &ALERTS,
    }
}

impl Tables<'_> {
    pub(super) fn of(&mut self, table: Table) -> &mut dyn RowTable {
        match table {
            Table::Organisations => &mut self.organisations,
            Table::ApiKeys => &mut self.api_keys,
            Table::Domains => &mut self.domains,
            Table::Webhooks => &mut self.webhooks,
            Table::WebhookCursors => &mut self.webhook_cursors,
            Table::WaitingDeliveries => &mut self.webhook_waiting,
            Table::FailedDeliveries => &mut self.webhook_failed,
            Table::Suppressions => &mut self.suppressions,
            Table::DeadLetters => &mut self.dead_letters,
            Table::UnmatchedEvents => &mut self.unmatched,
            Table::History => &mut self.history,
            Table::Messages => &mut self.messages,
            Table::Events => &mut self.events,
            Table::Timeline => &mut self.timeline,
            Table::OverturnedFailures => &mut self.overturned,
            Table::Feed => &mut self.feed,
            Table::Alerts => &mut self.alerts,
        }
    }
}
