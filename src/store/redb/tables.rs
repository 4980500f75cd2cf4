//! Tables of the file: a write transaction over all of them, and how the rules of the store, which
//! know keys and rows as bytes, read and change them.
//!
//! Every table that grows with the mail is keyed by the time-ordered message id, so that inserts go
//! to its end and a purge is one range. A random key would be ten times slower at a few million
//! rows.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata,
    StorageError, TableDefinition, TableHandle, Value, WriteTransaction,
};

use crate::redb::changes::{
    self, Changes, LaterChanges, RowChange, last_of_each, make, row_changes,
};
use crate::redb::error::ReadError;
use crate::redb::journal::{Checkpoint, Epoch};
use crate::rows::{Key, KeyRange, KeyedRow, Table, split_timed, timed};
use crate::tables::with_tables;
use pillarbox_domain::id::MessageId;
use pillarbox_domain::time::Timestamp;

/// The key of [`META`] that holds [`DATA_FORMAT`](crate::DATA_FORMAT).
pub(super) const FORMAT_KEY: &str = "format";
/// The key of [`META`] that holds the largest skew of a message's id ahead of its acceptance, in
/// milliseconds: more than 0 only after the clock was set back.
pub(super) const ID_LEAD: &str = "id_lead";
/// The key of [`META`] that holds the number by which the feed's cursors are distinguished from
/// those of other files.
pub(super) const FEED_ID: &str = "feed_id";
/// The key of [`META`] that marks a file as made by `pillarbox dev`.
pub(super) const MADE_BY_DEV: &str = "made_by_dev";
/// The key of [`META`] that is written to check that the file takes writes again.
pub(super) const PROBE: &str = "probe";

/// The key of [`META`] that holds the epoch of the journal that belongs to the file. It is missing
/// if the file has everything.
pub(super) const JOURNAL_EPOCH: &str = "journal_epoch";
/// The key of [`META`] that holds the number of the last record of the journal that the file has.
pub(super) const JOURNAL_RECORD: &str = "journal_record";

/// The key of tables by message: its id.
pub(super) type IdKey = [u8; 16];
/// A row as `record` encodes it.
pub(super) type Row = &'static [u8];
/// A row that is kept for a while: the time at which it was put there, in milliseconds, and the row
/// itself.
pub(super) type TimedRow = (u64, &'static [u8]);

/// Declares the constant of each table, its field of [`Tables`], its place in [`TABLES`], and which
/// [`Table`] of the rules it is.
macro_rules! declare_tables {
    (
        $($(#[$about:meta])* $field:ident: $table:ident = $name:literal ($key:ty => $row:ty) $seen:ident
            $($rows:ident $server:tt)?,)+
    ) => {
        $(
            $(#[$about])*
            pub(super) const $table: TableDefinition<$key, $row> = TableDefinition::new($name);
        )+

        /// Every table of the file, with the time at which readers see the rows that are put into
        /// it. A position here is the table's number in a backup and in the journal.
        pub(super) const TABLES: &[(&dyn AnyTable, Visibility)] =
            &[$((&$table, Visibility::$seen)),+];

        /// Returns the table that has the rows of one of the rules.
        pub(super) fn published(table: Table) -> &'static dyn AnyTable {
            match table {
                $($(Table::$rows => &$table,)?)+
            }
        }

        /// All tables of one write transaction.
        pub(super) struct Tables<'txn> {
            $(pub(super) $field: OnDemand<'txn, $key, $row>,)+
        }

        impl<'txn> Tables<'txn> {
            pub(super) fn new(
                transaction: &'txn WriteTransaction,
                changes: &'txn Changes,
            ) -> Self {
                Self { $($field: OnDemand::new(transaction, changes, $table),)+ }
            }

            /// Creates every table that is missing: readers find all of them in a file.
            pub(super) fn create(&mut self) -> Result<(), redb::Error> {
                $(self.$field.open()?;)+
                Ok(())
            }

            /// Returns the table that has the rows of one of the rules.
            pub(super) fn of(&mut self, table: Table) -> &mut dyn RowTable {
                match table {
                    $($(Table::$rows => &mut self.$field,)?)+
                }
            }
        }
    };
}

with_tables!(declare_tables);

/// The one key of [`CLOCK`].
pub(super) const TIME_KEY: &str = "time";

/// Begins a transaction that is durable once it is committed, and quick to open after a crash.
pub(super) fn begin_write(database: &Database) -> Result<WriteTransaction, redb::TransactionError> {
    let mut transaction = database.begin_write()?;
    set_durable(&mut transaction);
    Ok(transaction)
}

/// Makes a transaction durable once it is committed, and the file quick to open after a crash. redb
/// commits it in two phases then: if a sync fails and loses pages, which Linux takes for clean after
/// that, the file continues from the commit before.
pub(super) fn set_durable(transaction: &mut WriteTransaction) {
    transaction.set_durability(Durability::Immediate).expect("no persistent savepoint is used");
    transaction.set_quick_repair(true);
}

/// Runs one write transaction and commits it durably.
pub(super) fn write<T>(
    database: &Database,
    work: impl FnOnce(&WriteTransaction) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let transaction = begin_write(database)?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

/// Runs one write transaction over all tables, outside of the journal.
pub(super) fn write_tables<T>(
    database: &Database,
    work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    write(database, |transaction| {
        let changes = Changes::default();
        let done = work(Tables::new(transaction, &changes))?;
        let (_, later) = changes.into_parts();
        make_later(transaction, &later)?;
        Ok(done)
    })
}

/// A table that is opened at its first use, because opening all of them takes 8 % of a small
/// transaction's processor time.
pub(super) struct OnDemand<'txn, K: redb::Key + 'static, V: Value + 'static> {
    transaction: &'txn WriteTransaction,
    changes: &'txn Changes,
    definition: TableDefinition<'static, K, V>,
    table: Option<changes::Table<'txn, K, V>>,
}

impl<'txn, K: redb::Key + 'static, V: Value + 'static> OnDemand<'txn, K, V> {
    fn new(
        transaction: &'txn WriteTransaction,
        changes: &'txn Changes,
        definition: TableDefinition<'static, K, V>,
    ) -> Self {
        Self { transaction, changes, definition, table: None }
    }

    /// The table, created if it is missing.
    pub(super) fn open(&mut self) -> Result<&mut changes::Table<'txn, K, V>, redb::Error> {
        let table = self.open_behind()?;
        table.catch_up()?;
        Ok(table)
    }

    /// The table, which may lack the changes that were noted for later.
    fn open_behind(&mut self) -> Result<&mut changes::Table<'txn, K, V>, redb::Error> {
        if self.table.is_none() {
            let table = self.transaction.open_table(self.definition)?;
            let number = number_of(&self.definition);
            self.table = Some(changes::Table::new(table, number, self.changes));
        }
        Ok(self.table.as_mut().expect("it was opened"))
    }

    /// The table, if it is open with all changes.
    fn whole(&mut self) -> Option<&mut changes::Table<'txn, K, V>> {
        self.table.as_mut().filter(|table| table.is_whole())
    }

    /// Puts a row, which a table that is not open gets after the batch is answered.
    pub(super) fn insert_later<'k, 'v>(
        &mut self,
        key: impl Borrow<K::SelfType<'k>>,
        value: impl Borrow<V::SelfType<'v>>,
    ) -> Result<(), StorageError> {
        if let Some(table) = self.whole() {
            return table.insert(key, value);
        }
        let (key, value) = (K::as_bytes(key.borrow()), V::as_bytes(value.borrow()));
        let number = number_of(&self.definition);
        self.changes.note_later(number, key.as_ref(), Some(value.as_ref()));
        Ok(())
    }

    /// Removes a row that may be there; a table that is not open loses it after the batch is
    /// answered.
    pub(super) fn remove_later<'k>(
        &mut self,
        key: impl Borrow<K::SelfType<'k>>,
    ) -> Result<(), StorageError> {
        if let Some(table) = self.whole() {
            return table.remove(key).map(drop);
        }
        let key = K::as_bytes(key.borrow());
        self.changes.note_later(number_of(&self.definition), key.as_ref(), None);
        Ok(())
    }
}

impl OnDemand<'_, IdKey, Row> {
    /// Reads a row, with or without the changes that were noted for later in the table.
    pub(super) fn read_row<T>(
        &mut self,
        id: &IdKey,
        work: impl Fn(Option<&[u8]>) -> T,
    ) -> Result<T, redb::Error> {
        let number = number_of(&self.definition);
        if let Some(read) = self.changes.read_later(number, id, &work) {
            return Ok(read);
        }
        let row = self.open_behind()?.get(id)?;
        Ok(work(row.as_ref().map(redb::AccessGuard::value)))
    }
}

impl Tables<'_> {
    /// Notes the skew of the id ahead of the acceptance, if it is the largest so far.
    pub(super) fn note_lead(
        &mut self,
        id: MessageId,
        created_at: Timestamp,
    ) -> Result<(), redb::Error> {
        let lead = id.instant().unix_millis().saturating_sub(created_at.unix_millis());
        if lead > 0 {
            let meta = self.meta.open()?;
            if meta.get(ID_LEAD)?.is_none_or(|row| row.value() < lead) {
                meta.insert(ID_LEAD, lead)?;
            }
        }
        Ok(())
    }
}

/// Writes that the file has everything, and needs no journal once this transaction is durable.
pub(super) fn forget_journal(transaction: &WriteTransaction) -> Result<(), ReadError> {
    transaction.open_table(META)?.remove(JOURNAL_EPOCH)?;
    Ok(())
}

/// Returns the checkpoint of its journal that the file has; `None` if it needs no journal.
pub(super) fn kept_checkpoint(
    transaction: &ReadTransaction,
) -> Result<Option<Checkpoint>, ReadError> {
    checkpoint_in(&transaction.open_table(META)?)
}

/// As [`kept_checkpoint`], from the open table.
pub(super) fn checkpoint_in(
    meta: &impl ReadableTable<&'static str, u64>,
) -> Result<Option<Checkpoint>, ReadError> {
    let Some(epoch) = meta.get(JOURNAL_EPOCH)? else { return Ok(None) };
    let record = meta.get(JOURNAL_RECORD)?.map_or(0, |row| row.value());
    Ok(Some(Checkpoint { epoch: Epoch(epoch.value()), record }))
}

/// Writes the checkpoint of its journal that the file has once this transaction is durable.
pub(super) fn keep_checkpoint(
    transaction: &WriteTransaction,
    checkpoint: Checkpoint,
) -> Result<(), ReadError> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(JOURNAL_EPOCH, checkpoint.epoch.0)?;
    meta.insert(JOURNAL_RECORD, checkpoint.record)?;
    Ok(())
}

/// Moment from which readers see a row that a batch has put into a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visibility {
    /// At once, by its key: [`RecentRows`](crate::redb::recent_rows::RecentRows) has it. A removed
    /// row is gone at once, because the batch is published.
    ByKey,
    /// At the next publication, because that costs more than all of a message's rows. A reader of a
    /// range requests one; the writer needs none.
    OnDemand,
    /// At once, because the batch is published.
    AtOnce,
}

/// Returns the moment from which readers see the rows of the table of this number.
pub(super) fn visibility(table: u8) -> Visibility {
    TABLES[usize::from(table)].1
}

/// Returns the table's position in [`TABLES`].
pub(super) fn number_of(table: &impl TableHandle) -> u8 {
    let number = TABLES.iter().position(|(known, _)| known.name() == table.name());
    let number = number.and_then(|number| u8::try_from(number).ok());
    number.expect("every table has its number")
}

/// Makes changes again in a transaction.
pub(super) fn replay(transaction: &WriteTransaction, changes: &[u8]) -> Result<(), redb::Error> {
    let unknown = || StorageError::Corrupted("a record of the journal cannot be read".to_owned());
    let mut by_table: BTreeMap<u8, Vec<RowChange<'_>>> = BTreeMap::new();
    for change in row_changes(changes) {
        let change = change.filter(|change| usize::from(change.table) < TABLES.len());
        let change = change.ok_or_else(unknown)?;
        by_table.entry(change.table).or_default().push(change);
    }
    for (table, mut changes) in by_table {
        last_of_each(&mut changes);
        TABLES[usize::from(table)].0.make(transaction, &changes)?;
    }
    Ok(())
}

/// Makes the changes that were noted for later.
pub(super) fn make_later(
    transaction: &WriteTransaction,
    changes: &LaterChanges,
) -> Result<(), redb::Error> {
    for (table, changes) in changes.by_table() {
        TABLES[usize::from(table)].0.make(transaction, &changes)?;
    }
    Ok(())
}

trait KeyForm: redb::Key + Sync + 'static {
    /// Reads a key. The missing part of a shorter one is the least.
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
    &'static str: |key| key.text(0);
    u32: |key| key.number(0);
    (u32, IdKey): |key| (key.number(0), *key.id(4).as_bytes());
    (u64, IdKey): |key| (key.large(0), *key.id(8).as_bytes());
    (u32, u32): |key| (key.number(0), key.number(4));
    (u32, u64): |key| (key.number(0), key.large(4));
    (u32, u64, u64): |key| (key.number(0), key.large(4), key.large(12));
    (u32, &'static str): |key| (key.number(0), key.text(4));
    IdKey: |key| *key.id(0).as_bytes();
    (IdKey, u32): |key| (*key.id(0).as_bytes(), key.number(16));
    Row: |key| key.bytes();
}

/// Form of rows as the rules know them: as they are in the file, unless the form says otherwise.
trait RowForm: Value + Sync + 'static {
    fn read(row: &[u8]) -> Self::SelfType<'_> {
        Self::from_bytes(row)
    }

    fn write(row: &Self::SelfType<'_>) -> Vec<u8> {
        Self::as_bytes(row).as_ref().to_vec()
    }
}

impl RowForm for () {}
impl RowForm for u64 {}
impl RowForm for Row {}

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

/// Gets a key and a value, as they are in the file, and returns whether it wants more.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// A table of the file, with any type of key and row.
pub(super) trait AnyTable: Sync {
    fn name(&self) -> &str;

    fn open(&self, transaction: &ReadTransaction) -> Result<Box<dyn SnapshotRows>, redb::Error>;

    /// Makes changes of rows, as they are in the file.
    fn make(
        &self,
        transaction: &WriteTransaction,
        changes: &[RowChange<'_>],
    ) -> Result<(), redb::Error>;
}

impl<K: KeyForm, V: RowForm> AnyTable for TableDefinition<'static, K, V> {
    fn name(&self) -> &str {
        TableHandle::name(self)
    }

    fn open(&self, transaction: &ReadTransaction) -> Result<Box<dyn SnapshotRows>, redb::Error> {
        Ok(Box::new(transaction.open_table(*self)?))
    }

    fn make(
        &self,
        transaction: &WriteTransaction,
        changes: &[RowChange<'_>],
    ) -> Result<(), redb::Error> {
        Ok(make(&mut transaction.open_table(*self)?, changes)?)
    }
}

/// Table of a snapshot.
pub(super) trait SnapshotRows {
    /// Shows every row, in order, until `visit` stops it.
    fn each(&self, visit: Visit<'_>) -> Result<ControlFlow<()>, redb::Error>;

    /// Returns the rows with these keys, in their order, until they have `max_bytes`.
    fn get(&self, keys: &[Key], max_bytes: usize) -> Result<Vec<KeyedRow>, redb::Error>;

    fn range(&self, range: &KeyRange, limit: usize) -> Result<Vec<KeyedRow>, redb::Error>;

    fn count(&self, range: &KeyRange) -> Result<u64, redb::Error>;
}

impl<K: KeyForm, V: RowForm> SnapshotRows for ReadOnlyTable<K, V> {
    fn each(&self, visit: Visit<'_>) -> Result<ControlFlow<()>, redb::Error> {
        for row in self.iter()? {
            let (key, value) = row?;
            let (key, value) = (key.value(), value.value());
            if visit(K::as_bytes(&key).as_ref(), V::as_bytes(&value).as_ref()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn get(&self, keys: &[Key], max_bytes: usize) -> Result<Vec<KeyedRow>, redb::Error> {
        let mut found = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        for key in keys {
            if bytes >= max_bytes {
                break;
            }
            let row = get(self, key)?;
            bytes += row.as_ref().map_or(0, Vec::len);
            found.extend(row.map(|row| (key.clone(), row)));
        }
        Ok(found)
    }

    fn range(&self, range: &KeyRange, limit: usize) -> Result<Vec<KeyedRow>, redb::Error> {
        read_range(self, range, limit)
    }

    fn count(&self, range: &KeyRange) -> Result<u64, redb::Error> {
        if *range == KeyRange::all() {
            return Ok(self.len()?);
        }
        Ok(ReadableTable::range::<K::SelfType<'_>>(self, bounds::<K>(range))?.count() as u64)
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

type Bounds<'a, K> = (Bound<<K as Value>::SelfType<'a>>, Bound<<K as Value>::SelfType<'a>>);

fn bounds<K: KeyForm>(range: &KeyRange) -> Bounds<'_, K> {
    let (from, end) = range.bounds();
    (from.map(K::read), end.map(K::read))
}
