//! Tables of the file: their keys, and a write transaction over all of them.
//!
//! Every table that grows with the mail is keyed by the time-ordered message id, so that inserts
//! go to its end and a purge is one range. A random key here would cost an order of magnitude at
//! a few million rows.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use redb::{
    Database, Durability, Key, ReadTransaction, ReadableTable, ReadableTableMetadata, StorageError,
    TableDefinition, TableHandle, Value, WriteTransaction,
};

use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::store::redb::changes::{
    Changes, LaterChanges, RowChange, Table, last_of_each, make, row_changes,
};
use crate::store::redb::error::ReadError;

/// The version of the file's layout. A file of a newer version is refused.
pub const FORMAT_VERSION: u64 = 6;

/// The key of [`META`] that holds [`FORMAT_VERSION`].
pub(super) const FORMAT_KEY: &str = "format";
/// The key of [`META`] that holds the most, in milliseconds, by which a message's id is ahead of
/// its acceptance: more than none only after the clock was set back.
pub(super) const ID_LEAD: &str = "id_lead";
/// The key of [`META`] that holds the number by which the feed's cursors are told from those of
/// other files.
pub(super) const FEED_ID: &str = "feed_id";
/// The key of [`META`] that marks a file as made by `pillarbox dev`.
pub(super) const MADE_BY_DEV: &str = "made_by_dev";
/// The key of [`META`] that is written to see whether the file takes writes again.
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
/// A row that is kept for a while: when it was put there, in milliseconds, and the row itself.
pub(super) type TimedRow = (u64, &'static [u8]);

/// Declares the tables of the file, each in one place: its constant, its field of [`Tables`] and its
/// place in [`TABLES`].
macro_rules! tables {
    ($($(#[$about:meta])* $field:ident: $table:ident = $name:literal ($key:ty => $row:ty) $seen:ident,)+) => {
        $(
            $(#[$about])*
            pub(super) const $table: TableDefinition<$key, $row> = TableDefinition::new($name);
        )+

        /// Every table of the file, and when readers see what is put into it. A position here is the
        /// table's number in a backup and in the journal.
        pub(super) const TABLES: &[(&dyn AnyTable, Visibility)] =
            &[$((&$table, Visibility::$seen)),+];

        /// All tables of one write transaction.
        pub(super) struct Tables<'txn> {
            $(pub(super) $field: OnDemand<'txn, $key, $row>,)+
        }

        impl<'txn> Tables<'txn> {
            /// Tables of a transaction that notes its changes.
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
        }
    };
}

// A new table goes to the end: its number must not change.
tables! {
    /// Single values of the file itself.
    meta: META = "meta" (&'static str => u64) AtOnce,
    /// Message records.
    messages: MESSAGES = "messages" (IdKey => Row) ByKey,
    /// Each organisation's messages, so that a listing reads no other's. An organisation's messages
    /// follow one another, so inserts go to the ends of as many runs as there are organisations.
    by_organisation: BY_ORGANISATION = "messages_by_organisation" ((u32, IdKey) => ()) OnDemand,
    /// Messages whose body is pending in memory.
    pending: PENDING = "pending" (IdKey => ()) OnDemand,
    /// The idempotency keys of the last 24 hours, by the message that each one made.
    idempotency: IDEMPOTENCY = "idempotency" (IdKey => Row) ByKey,
    /// Delivery events: message id, time, rank and digest, so that a repeat has the same key.
    events: EVENTS = "events" (Row => Row) AtOnce,
    /// Messages that the provider accepted, by the time of that and their id, with the provider's
    /// own id for them: how an event without our tag finds its message.
    sent: SENT = "sent" ((u64, IdKey) => Row) OnDemand,
    /// Events whose message is not known yet, by the provider's id for it, with the time of their
    /// arrival. Random keys do no harm here, because the table is bounded.
    unmatched: UNMATCHED = "unmatched_events" (Row => TimedRow) AtOnce,
    /// Documents that could not be read, by their digest, with the time of their arrival. Bounded
    /// too.
    dead_letters: DEAD_LETTERS = "dead_letters" (Row => TimedRow) AtOnce,
    /// Suppressed addresses by organisation.
    suppressions: SUPPRESSIONS = "suppressions" ((u32, &'static str) => Row) AtOnce,
    /// Organisations by number.
    organisations: ORGANISATIONS = "organisations" (u32 => Row) AtOnce,
    /// Hashes of API keys by number.
    api_keys: API_KEYS = "api_keys" (u32 => Row) AtOnce,
    /// Sender domains by organisation.
    domains: DOMAINS = "domains" ((u32, &'static str) => Row) AtOnce,
    /// When each API key was last used, in milliseconds, by the key's number.
    key_use: KEY_USE = "key_use" (u32 => u64) AtOnce,
    /// Records that were pending at a start and could not be read, by message, with the time of
    /// that start.
    damaged_messages: DAMAGED_MESSAGES = "damaged_messages" (IdKey => TimedRow) AtOnce,
    /// File's record of the clock, under [`TIME_KEY`].
    clock: CLOCK = "clock" (&'static str => Row) AtOnce,
    /// Entries of the event feed, by organisation and position. An organisation's entries follow one
    /// another, as its messages do.
    feed: FEED = "feed" ((u32, u64) => Row) OnDemand,
    /// Failures of messages that an event later proved to be sent: their records do not have them
    /// any more, and the feed still shows them.
    overturned: OVERTURNED = "overturned_failures" (IdKey => Row) AtOnce,
    /// Endpoints of webhooks by number.
    webhooks: WEBHOOKS = "webhooks" (u32 => Row) AtOnce,
    /// How far each endpoint's deliveries are, by the endpoint's number.
    webhook_cursors: WEBHOOK_CURSORS = "webhook_cursors" (u32 => Row) AtOnce,
    /// Deliveries that wait for their next attempt: endpoint, time of that in milliseconds, and the
    /// event's position in the feed.
    webhook_waiting: WEBHOOK_WAITING = "webhook_waiting" ((u32, u64, u64) => Row) AtOnce,
    /// Deliveries whose last attempt failed: endpoint, and the event's position in the feed.
    webhook_failed: WEBHOOK_FAILED = "webhook_failed" ((u32, u64) => Row) AtOnce,
    /// Counts of what happened in each hour, by the hour's number and the organisation; those of all
    /// organisations together are under [`ALL_ORGANISATIONS`].
    history: HISTORY = "history" ((u32, u32) => Row) OnDemand,
    /// Steps of messages' timelines: message and number of the step.
    timeline: TIMELINE = "timeline" ((IdKey, u32) => Row) OnDemand,
    /// Alerts that were raised and are not cleared, or that wait to be posted, by their subject.
    alerts: ALERTS = "alerts" (Row => Row) AtOnce,
}

/// The one key of [`CLOCK`].
pub(super) const TIME_KEY: &str = "time";

/// Begins a transaction that is durable once it is committed, and quick to open after a crash.
pub(super) fn begin_write(database: &Database) -> Result<WriteTransaction, redb::TransactionError> {
    let mut transaction = database.begin_write()?;
    set_durable(&mut transaction);
    Ok(transaction)
}

/// Has a transaction durable once it is committed, and the file quick to open after a crash.
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
    write(database, |transaction| in_tables(transaction, work))
}

/// Does something in the tables of a transaction, outside of the journal.
pub(super) fn in_tables<T>(
    transaction: &WriteTransaction,
    work: impl FnOnce(Tables<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let changes = Changes::default();
    let done = work(Tables::new(transaction, &changes))?;
    let (_, later) = changes.into_parts();
    make_later(transaction, &later)?;
    Ok(done)
}

/// A table that is opened at its first use: to open all of them takes 8 % of a small transaction's
/// processor time.
pub(super) struct OnDemand<'txn, K: Key + 'static, V: Value + 'static> {
    transaction: &'txn WriteTransaction,
    changes: &'txn Changes,
    definition: TableDefinition<'static, K, V>,
    table: Opened<'txn, K, V>,
}

/// How far a table is open.
enum Opened<'txn, K: Key + 'static, V: Value + 'static> {
    Not,
    /// To be read: it lacks what was noted for later.
    Behind(Table<'txn, K, V>),
    /// With all changes.
    Whole(Table<'txn, K, V>),
}

impl<'txn, K: Key + 'static, V: Value + 'static> OnDemand<'txn, K, V> {
    fn new(
        transaction: &'txn WriteTransaction,
        changes: &'txn Changes,
        definition: TableDefinition<'static, K, V>,
    ) -> Self {
        Self { transaction, changes, definition, table: Opened::Not }
    }

    /// The table, created where it is missing.
    pub(super) fn open(&mut self) -> Result<&mut Table<'txn, K, V>, redb::Error> {
        if !matches!(self.table, Opened::Whole(_)) {
            self.open_behind()?.catch_up()?;
            self.table = match std::mem::replace(&mut self.table, Opened::Not) {
                Opened::Behind(table) | Opened::Whole(table) => Opened::Whole(table),
                Opened::Not => unreachable!("it was opened"),
            };
        }
        self.open_behind()
    }

    /// The table, which may lack what was noted for later.
    fn open_behind(&mut self) -> Result<&mut Table<'txn, K, V>, redb::Error> {
        if let Opened::Not = self.table {
            let table = self.transaction.open_table(self.definition)?;
            let table = Table::new(table, number_of(&self.definition), self.changes);
            self.table = Opened::Behind(table);
        }
        match &mut self.table {
            Opened::Behind(table) | Opened::Whole(table) => Ok(table),
            Opened::Not => unreachable!("it was opened"),
        }
    }

    /// Puts a row, which a table that is not open gets after the batch is answered.
    pub(super) fn insert_later<'k, 'v>(
        &mut self,
        key: impl Borrow<K::SelfType<'k>>,
        value: impl Borrow<V::SelfType<'v>>,
    ) -> Result<(), StorageError> {
        if let Opened::Whole(table) = &mut self.table {
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
        if let Opened::Whole(table) = &mut self.table {
            return table.remove(key).map(drop);
        }
        let key = K::as_bytes(key.borrow());
        self.changes.note_later(number_of(&self.definition), key.as_ref(), None);
        Ok(())
    }
}

impl OnDemand<'_, IdKey, Row> {
    /// Reads a row. The table need not have what was noted for later.
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
    /// Notes by how much the id is ahead of the acceptance, where that is more than ever before.
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

/// When readers see a row that a batch has put into a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visibility {
    /// At once, by its key: [`RecentRows`](crate::store::redb::recent_rows::RecentRows) has it. One that
    /// is removed is gone at once, because the batch is published.
    ByKey,
    /// At the next publication, because that costs more than all of a message's rows. Who reads a range asks for one; the writer needs none.
    OnDemand,
    /// At once, because the batch is published.
    AtOnce,
}

/// Returns when readers see what is put into the table of this number.
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

/// Is shown a key and a value, and says whether it wants more.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;
/// Keys with their values.
type ByteRows<'a, 'b> = &'a mut dyn Iterator<Item = (&'b [u8], &'b [u8])>;

/// A table whose keys and values are taken as bytes.
pub(super) trait AnyTable: Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// How many rows it has.
    fn rows(&self, transaction: &ReadTransaction) -> Result<u64, redb::Error>;

    /// Shows every row, in order, until told to stop.
    fn each(
        &self,
        transaction: &ReadTransaction,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<()>, redb::Error>;

    /// Writes rows as [`AnyTable::each`] showed them; gives how many.
    fn insert(
        &self,
        transaction: &WriteTransaction,
        rows: ByteRows<'_, '_>,
    ) -> Result<u64, redb::Error>;

    /// Makes changes of rows.
    fn make(
        &self,
        transaction: &WriteTransaction,
        changes: &[RowChange<'_>],
    ) -> Result<(), redb::Error>;
}

impl<K: Key + Sync + 'static, V: Value + Sync + 'static> AnyTable
    for TableDefinition<'static, K, V>
{
    fn name(&self) -> &str {
        TableHandle::name(self)
    }

    fn rows(&self, transaction: &ReadTransaction) -> Result<u64, redb::Error> {
        Ok(transaction.open_table(*self)?.len()?)
    }

    fn each(
        &self,
        transaction: &ReadTransaction,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<()>, redb::Error> {
        for row in transaction.open_table(*self)?.iter()? {
            let (key, value) = row?;
            let (key, value) = (key.value(), value.value());
            if visit(K::as_bytes(&key).as_ref(), V::as_bytes(&value).as_ref()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn insert(
        &self,
        transaction: &WriteTransaction,
        rows: ByteRows<'_, '_>,
    ) -> Result<u64, redb::Error> {
        let mut table = transaction.open_table(*self)?;
        let mut count = 0;
        for (key, value) in rows {
            table.insert(K::from_bytes(key), V::from_bytes(value))?;
            count += 1;
        }
        Ok(count)
    }

    fn make(
        &self,
        transaction: &WriteTransaction,
        changes: &[RowChange<'_>],
    ) -> Result<(), redb::Error> {
        Ok(make(&mut transaction.open_table(*self)?, changes)?)
    }
}
