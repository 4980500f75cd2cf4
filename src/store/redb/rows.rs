//! Rows of the shared transaction and of snapshots, as the rules of the store read and change them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable};

use crate::directory::{KeyUses, OrganisationIndex};
use crate::listing::blocking;
use crate::organisation_counts::Increment;
use crate::organisations::read_index;
use crate::record::ReportedChange;
use crate::redb::batch::Batch;
use crate::redb::error::ReadError;
use crate::redb::tables::{CLOCK, KEY_USE, META, SnapshotRows, TIME_KEY, Tables, published};
use crate::redb::{RedbStore, messages, purge};
use crate::rows::{Counter, Key, KeyRange, KeyedRow, Lock, Rows, Stop, Table};
use crate::{InMemory, ROW_WEIGHT, StoreError};
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::Message;
use pillarbox_domain::time::Timestamp;

impl RedbStore {
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        lock: Lock,
        weight: usize,
        rule: impl FnOnce(&mut dyn Rows) -> Result<T, Stop> + Send + 'static,
    ) -> Result<T, StoreError> {
        let change = move |batch: &mut Batch<'_>| {
            batch.is_changed = false;
            let done = batch.follow(rule)?;
            batch.is_directory_changed |= lock == Lock::Directory && batch.is_changed;
            Ok(done)
        };
        self.writer.run(weight, change).await
    }

    pub(crate) async fn row(&self, table: Table, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.shows(table).await;
        let key = std::slice::from_ref(&key);
        let row = self.read_table(table, |rows| rows.get(key, usize::MAX))?.pop();
        Ok(row.map(|(_, row)| row))
    }

    pub(crate) async fn rows_of(
        &self,
        table: Table,
        keys: Vec<Key>,
        max_bytes: usize,
    ) -> Result<HashMap<Key, Vec<u8>>, StoreError> {
        // Rows that are shown refer to them, so they are published with those.
        let rows = self.read_aside(table, move |rows| rows.get(&keys, max_bytes)).await?;
        Ok(rows.into_iter().collect())
    }

    pub(crate) async fn rows(
        &self,
        table: Table,
        range: KeyRange,
        limit: usize,
    ) -> Result<Vec<KeyedRow>, StoreError> {
        self.read_run(table, move |rows| rows.range(&range, limit)).await
    }

    pub(crate) async fn count_rows(
        &self,
        table: Table,
        range: KeyRange,
    ) -> Result<u64, StoreError> {
        self.read_run(table, move |rows| rows.count(&range)).await
    }

    pub(crate) fn counters(&self) -> Result<BTreeMap<Counter, u64>, StoreError> {
        self.read("meta", "numbers", counters)
    }

    pub(crate) fn time_row(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.read("clock", TIME_KEY, |transaction| {
            let row = transaction.open_table(CLOCK)?.get(TIME_KEY)?;
            Ok(row.map(|row| row.value().to_vec()))
        })
    }

    pub(crate) async fn put_time_row(&self, row: Vec<u8>) -> Result<(), StoreError> {
        let put = move |batch: &mut Batch<'_>| {
            Ok(batch.tables.clock.open()?.insert(TIME_KEY, row.as_slice())?)
        };
        self.writer.run(ROW_WEIGHT, put).await
    }

    pub(crate) async fn put_key_use(&self, uses: KeyUses) -> Result<(), StoreError> {
        let put = move |batch: &mut Batch<'_>| {
            for (id, used) in uses {
                // A key that was revoked meanwhile has no use.
                if batch.tables.api_keys.open()?.get(id)?.is_some() {
                    batch.tables.key_use.open()?.insert(id, used)?;
                }
            }
            Ok(())
        };
        self.writer.run(ROW_WEIGHT, put).await
    }

    /// Waits until snapshots show the durable rows of a table.
    async fn shows(&self, table: Table) {
        // All others are published with each batch that changes them.
        if matches!(table, Table::Messages | Table::Feed | Table::History | Table::Timeline) {
            self.published().await;
        }
    }

    fn read_table<T>(
        &self,
        table: Table,
        read: impl FnOnce(&dyn SnapshotRows) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        self.read(table.as_str(), "rows", |transaction| {
            Ok(read(&*published(table).open(transaction)?)?)
        })
    }

    /// Reads a run of rows.
    async fn read_run<T: Send + 'static>(
        &self,
        table: Table,
        read: impl FnOnce(&dyn SnapshotRows) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.shows(table).await;
        if takes_long(table) {
            self.read_aside(table, read).await
        } else {
            self.read_table(table, read)
        }
    }

    /// Reads on another thread if that may take long.
    async fn read_aside<T: Send + 'static>(
        &self,
        table: Table,
        read: impl FnOnce(&dyn SnapshotRows) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        blocking(move || store.read_table(table, read)).await
    }
}

/// Reads organisations, keys, domains and endpoints.
pub(super) fn directory(transaction: &ReadTransaction) -> Result<OrganisationIndex, ReadError> {
    let rows = |table| published(table).open(transaction)?.range(&KeyRange::all(), usize::MAX);
    read_index(|table| Ok(rows(table)?))
}

pub(super) fn key_uses(transaction: &ReadTransaction) -> Result<KeyUses, ReadError> {
    let rows = transaction.open_table(KEY_USE)?;
    let uses = rows.iter()?.map(|row| row.map(|(id, time)| (id.value(), time.value())));
    Ok(uses.collect::<Result<_, _>>()?)
}

/// Returns true if a run of the table may have so many or so large rows that others would wait for
/// the read.
const fn takes_long(table: Table) -> bool {
    matches!(
        table,
        Table::WaitingDeliveries
            | Table::FailedDeliveries
            | Table::History
            | Table::Messages
            | Table::Feed
            | Table::DeadLetters
    )
}

pub(super) fn counters(transaction: &ReadTransaction) -> Result<BTreeMap<Counter, u64>, ReadError> {
    let meta = transaction.open_table(META)?;
    let value =
        |counter: Counter| Ok((counter, meta.get(counter.as_str())?.map_or(0, |row| row.value())));
    Counter::ALL.into_iter().map(value).collect()
}

impl Tables<'_> {
    pub(super) fn counter(&mut self, counter: Counter) -> Result<u64, redb::Error> {
        let row = self.meta.open()?.get(counter.as_str())?;
        Ok(row.map_or(0, |row| row.value()))
    }

    pub(super) fn set_counter(&mut self, counter: Counter, value: u64) -> Result<(), redb::Error> {
        let meta = self.meta.open()?;
        if value == 0 {
            meta.remove(counter.as_str())?;
        } else {
            meta.insert(counter.as_str(), value)?;
        }
        Ok(())
    }
}

impl Batch<'_> {
    /// Runs a rule, and returns the reason if it stopped.
    pub(super) fn follow<T>(
        &mut self,
        rule: impl FnOnce(&mut dyn Rows) -> Result<T, Stop>,
    ) -> Result<T, ReadError> {
        rule(self).map_err(|stop| match stop {
            Stop::Damaged(row) => ReadError::Row(row),
            Stop::Failed | Stop::Unread => ReadError::File(
                self.failure.take().expect("every row can be read, or the file failed"),
            ),
        })
    }
}

/// Returns the result, or stops the rule; the batch keeps the reason.
fn or_stop<T>(
    failure: &mut Option<redb::Error>,
    done: Result<T, impl Into<ReadError>>,
) -> Result<T, Stop> {
    done.map_err(|error| match error.into() {
        ReadError::Row(row) => Stop::Damaged(row),
        ReadError::File(error) => {
            *failure = Some(error);
            Stop::Failed
        }
    })
}

impl Rows for Batch<'_> {
    fn get(&mut self, table: Table, key: &Key) -> Result<Option<Vec<u8>>, Stop> {
        let row = match table {
            Table::Messages => {
                let id = key.id(0);
                self.tables.messages.read_row(id.as_bytes(), |row| row.map(<[u8]>::to_vec))
            }
            table => self.tables.of(table).get(key),
        };
        or_stop(&mut self.failure, row)
    }

    fn range(
        &mut self,
        table: Table,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<KeyedRow>, Stop> {
        or_stop(&mut self.failure, self.tables.of(table).range(range, limit))
    }

    fn put(&mut self, table: Table, key: &Key, row: &[u8]) -> Result<(), Stop> {
        self.is_changed = true;
        let put = match table {
            Table::Messages => {
                let put = self.tables.messages.insert_later(key.id(0).as_bytes(), row);
                put.map_err(redb::Error::from)
            }
            table => self.tables.of(table).put(key, row),
        };
        if table == Table::Suppressions {
            // Before the commit, so that no stored address is missing there.
            self.shared.memory.suppressed.insert([(key.number(0), key.text(4))]);
            self.effects.is_suppressed = true;
        }
        or_stop(&mut self.failure, put)
    }

    fn remove(&mut self, table: Table, key: &Key) -> Result<(), Stop> {
        self.is_changed = true;
        or_stop(&mut self.failure, self.tables.of(table).remove(key))?;
        if table == Table::ApiKeys {
            let key_use = or_stop(&mut self.failure, self.tables.key_use.open())?;
            or_stop(&mut self.failure, key_use.remove(key.number(0)))?;
        }
        Ok(())
    }

    fn read_ahead(&mut self, _: &[(Table, Key)]) -> Result<(), Stop> {
        Ok(())
    }

    fn make_room(&mut self, table: Table, most: usize, what: &'static str) -> Result<(), Stop> {
        or_stop(&mut self.failure, purge::make_room(&mut self.tables, table, most, what))
    }

    fn counter(&mut self, counter: Counter) -> Result<u64, Stop> {
        or_stop(&mut self.failure, self.tables.counter(counter))
    }

    fn set_counter(&mut self, counter: Counter, value: u64) -> Result<(), Stop> {
        or_stop(&mut self.failure, self.tables.set_counter(counter, value))
    }

    fn feed_end(&mut self) -> Result<FeedPosition, Stop> {
        Ok(self.shared.feed.last())
    }

    fn report(
        &mut self,
        message: &Message,
        change: ReportedChange,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let appended = self.shared.feed.append(&mut self.tables, message, change, now);
        let position = or_stop(&mut self.failure, appended)?;
        self.effects.fed.push((message.organisation, position));
        Ok(())
    }

    fn end_pending(&mut self, id: MessageId) -> Result<(), Stop> {
        or_stop(&mut self.failure, self.tables.pending.remove_later(id.as_bytes()))
    }

    fn end_call(&mut self, _: MessageId) {}

    fn find_sent(
        &mut self,
        ses_message_id: &str,
        accepted_at: Timestamp,
    ) -> Result<Option<MessageId>, Stop> {
        let sent = or_stop(&mut self.failure, self.tables.sent.open())?;
        or_stop(&mut self.failure, messages::find_sent(&**sent, ses_message_id, accepted_at))
    }

    fn add_sent(
        &mut self,
        id: MessageId,
        ses_message_id: &str,
        sent_at: Timestamp,
    ) -> Result<(), Stop> {
        let key = (sent_at.unix_millis(), *id.as_bytes());
        or_stop(&mut self.failure, self.tables.sent.insert_later(key, ses_message_id.as_bytes()))
    }

    fn count(&mut self, organisation: OrganisationId, increment: Increment) {
        self.effects.increments.push((organisation, increment));
    }

    fn directory(&self) -> Arc<OrganisationIndex> {
        self.shared.memory.directory.load_full()
    }

    fn memory(&self) -> &InMemory {
        &self.shared.memory
    }
}
