//! The tables of the file and their keys.
//!
//! Every table that grows with the mail is keyed by the time-ordered message id, so that inserts
//! go to its end and a purge is one range. A random key here would cost an order of magnitude at
//! a few million rows.

use redb::{Key, ReadableTable, TableDefinition, Value, WriteTransaction};

use crate::domain::id::MessageId;
use crate::domain::time::Timestamp;
use crate::store::redb::record::message::organisation_of;

/// The version of the file's layout. A file of a newer version is refused.
pub(in crate::store) const FORMAT_VERSION: u64 = 2;

/// The key of [`META`] that holds [`FORMAT_VERSION`].
pub(in crate::store) const FORMAT_KEY: &str = "format";
/// The key of [`META`] that holds the last number given to an organisation.
pub(in crate::store) const LAST_ORGANISATION: &str = "last_organisation";
/// The key of [`META`] that holds the last number given to an API key.
pub(in crate::store) const LAST_KEY: &str = "last_key";
/// The key of [`META`] that holds the most, in milliseconds, by which a message's id is ahead of
/// its acceptance: more than none only after the clock was set back.
pub(in crate::store) const ID_LEAD: &str = "id_lead";
/// The key of [`META`] that holds how many messages lost their body and are still to be seen.
pub(in crate::store) const LOST: &str = "lost_messages";
/// The key of [`META`] that holds when the last of them was found, in milliseconds.
pub(in crate::store) const LOST_AT: &str = "lost_messages_at";
/// The key of [`META`] that is written to see whether the file takes writes again.
pub(in crate::store) const PROBE: &str = "probe";

/// A suppression's scope where it holds for every organisation; no organisation has this number.
pub(in crate::store) const ALL_ORGANISATIONS: u32 = 0;

pub(in crate::store) type IdKey = [u8; 16];
pub(in crate::store) type Rows = &'static [u8];
/// A row of a bounded table: when it was put there, in milliseconds, and the row itself.
pub(in crate::store) type Kept = (u64, &'static [u8]);

/// Single values of the file itself.
pub(in crate::store) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Message records.
pub(in crate::store) const MESSAGES: TableDefinition<IdKey, Rows> =
    TableDefinition::new("messages");
/// Each organisation's messages, so that a listing reads no other's. An organisation's messages
/// follow one another, so inserts go to the ends of as many runs as there are organisations.
pub(in crate::store) const BY_ORGANISATION: TableDefinition<(u32, IdKey), ()> =
    TableDefinition::new("messages_by_organisation");
/// Messages whose body is pending in memory.
pub(in crate::store) const PENDING: TableDefinition<IdKey, ()> = TableDefinition::new("pending");
/// The idempotency keys of the last 24 hours, by the message that each one made.
pub(in crate::store) const IDEMPOTENCY: TableDefinition<IdKey, Rows> =
    TableDefinition::new("idempotency");
/// Delivery events: message id, time, rank and digest, so that a repeat has the same key.
pub(in crate::store) const EVENTS: TableDefinition<Rows, Rows> = TableDefinition::new("events");
/// Messages that the provider accepted, by the time of that and their id, with the provider's own
/// id for them: how an event without our tag finds its message.
pub(in crate::store) const SENT: TableDefinition<(u64, IdKey), Rows> = TableDefinition::new("sent");
/// Events whose message is not known yet, by the provider's id for it, with the time of their
/// arrival. Random keys do no harm here, because the table is bounded.
pub(in crate::store) const UNMATCHED: TableDefinition<Rows, Kept> =
    TableDefinition::new("unmatched_events");
/// Documents that could not be read, by their digest, with the time of their arrival. Bounded too.
pub(in crate::store) const DEAD_LETTERS: TableDefinition<Rows, Kept> =
    TableDefinition::new("dead_letters");
/// Records that were pending at a start and could not be read, by message, with the time of that
/// start.
pub(in crate::store) const DAMAGED_MESSAGES: TableDefinition<IdKey, Kept> =
    TableDefinition::new("damaged_messages");
/// Suppressed addresses by organisation.
pub(in crate::store) const SUPPRESSIONS: TableDefinition<(u32, &str), Rows> =
    TableDefinition::new("suppressions");
/// Organisations by number.
pub(in crate::store) const ORGANISATIONS: TableDefinition<u32, Rows> =
    TableDefinition::new("organisations");
/// Hashes of API keys by number.
pub(in crate::store) const API_KEYS: TableDefinition<u32, Rows> = TableDefinition::new("api_keys");
/// Sender domains by organisation.
pub(in crate::store) const DOMAINS: TableDefinition<(u32, &str), Rows> =
    TableDefinition::new("domains");

/// When each API key was last used, in milliseconds, by the key's number.
pub(in crate::store) const KEY_USE: TableDefinition<u32, u64> = TableDefinition::new("key_use");

/// File's record of the clock, under [`TIME_KEY`].
pub(in crate::store) const CLOCK: TableDefinition<&str, Rows> = TableDefinition::new("clock");
/// The one key of [`CLOCK`].
pub(in crate::store) const TIME_KEY: &str = "time";

pub(in crate::store) type Table<'txn, K, V> = redb::Table<'txn, K, V>;

/// A table that not every transaction touches. It is opened at its first use: to open all of them
/// takes 8 % of a small transaction's processor time.
pub(in crate::store) struct OnDemand<'txn, K: Key + 'static, V: Value + 'static> {
    transaction: &'txn WriteTransaction,
    definition: TableDefinition<'static, K, V>,
    table: Option<Table<'txn, K, V>>,
}

impl<'txn, K: Key + 'static, V: Value + 'static> OnDemand<'txn, K, V> {
    fn new(
        transaction: &'txn WriteTransaction,
        definition: TableDefinition<'static, K, V>,
    ) -> Self {
        Self { transaction, definition, table: None }
    }

    /// The table, created where it is missing.
    pub(in crate::store) fn open(&mut self) -> Result<&mut Table<'txn, K, V>, redb::Error> {
        let table = match self.table.take() {
            Some(table) => table,
            None => self.transaction.open_table(self.definition)?,
        };
        Ok(self.table.insert(table))
    }
}

/// All tables of one write transaction.
pub(in crate::store) struct Tables<'txn> {
    pub(in crate::store) messages: Table<'txn, IdKey, Rows>,
    pub(in crate::store) by_organisation: Table<'txn, (u32, IdKey), ()>,
    pub(in crate::store) pending: Table<'txn, IdKey, ()>,
    pub(in crate::store) idempotency: Table<'txn, IdKey, Rows>,
    pub(in crate::store) meta: OnDemand<'txn, &'static str, u64>,
    pub(in crate::store) events: OnDemand<'txn, Rows, Rows>,
    pub(in crate::store) sent: OnDemand<'txn, (u64, IdKey), Rows>,
    pub(in crate::store) unmatched: OnDemand<'txn, Rows, Kept>,
    pub(in crate::store) dead_letters: OnDemand<'txn, Rows, Kept>,
    pub(in crate::store) damaged_messages: OnDemand<'txn, IdKey, Kept>,
    pub(in crate::store) suppressions: OnDemand<'txn, (u32, &'static str), Rows>,
    pub(in crate::store) organisations: OnDemand<'txn, u32, Rows>,
    pub(in crate::store) api_keys: OnDemand<'txn, u32, Rows>,
    pub(in crate::store) domains: OnDemand<'txn, (u32, &'static str), Rows>,
    pub(in crate::store) key_use: OnDemand<'txn, u32, u64>,
    pub(in crate::store) clock: OnDemand<'txn, &'static str, Rows>,
}

impl<'txn> Tables<'txn> {
    /// Opens the tables, those on demand not yet.
    pub(in crate::store) fn open(transaction: &'txn WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            messages: transaction.open_table(MESSAGES)?,
            by_organisation: transaction.open_table(BY_ORGANISATION)?,
            pending: transaction.open_table(PENDING)?,
            idempotency: transaction.open_table(IDEMPOTENCY)?,
            meta: OnDemand::new(transaction, META),
            events: OnDemand::new(transaction, EVENTS),
            sent: OnDemand::new(transaction, SENT),
            unmatched: OnDemand::new(transaction, UNMATCHED),
            dead_letters: OnDemand::new(transaction, DEAD_LETTERS),
            damaged_messages: OnDemand::new(transaction, DAMAGED_MESSAGES),
            suppressions: OnDemand::new(transaction, SUPPRESSIONS),
            organisations: OnDemand::new(transaction, ORGANISATIONS),
            api_keys: OnDemand::new(transaction, API_KEYS),
            domains: OnDemand::new(transaction, DOMAINS),
            key_use: OnDemand::new(transaction, KEY_USE),
            clock: OnDemand::new(transaction, CLOCK),
        })
    }

    /// Creates every table that is missing: readers find all of them in a file.
    pub(in crate::store) fn create(&mut self) -> Result<(), redb::Error> {
        self.meta.open()?;
        self.events.open()?;
        self.sent.open()?;
        self.unmatched.open()?;
        self.dead_letters.open()?;
        self.damaged_messages.open()?;
        self.suppressions.open()?;
        self.organisations.open()?;
        self.api_keys.open()?;
        self.domains.open()?;
        self.key_use.open()?;
        self.clock.open()?;
        Ok(())
    }

    /// The next number of a counter in [`META`]; a number is never given twice.
    pub(in crate::store) fn next_number(&mut self, counter: &str) -> Result<u32, redb::Error> {
        let meta = self.meta.open()?;
        let last = meta.get(counter)?.map_or(0, |row| row.value());
        let next = last + 1;
        meta.insert(counter, next)?;
        Ok(u32::try_from(next).expect("fewer than four billion organisations and keys"))
    }

    /// Notes by how much the id is ahead of the acceptance, where that is more than ever before.
    pub(in crate::store) fn note_lead(
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

    /// Takes every trace of a message out of the tables that an acceptance writes.
    pub(in crate::store) fn remove_accepted(&mut self, id: MessageId) -> Result<(), redb::Error> {
        if let Some(row) = self.messages.remove(id.as_bytes())?
            && let Some(organisation) = organisation_of(row.value())
        {
            self.by_organisation.remove((organisation.0, *id.as_bytes()))?;
        }
        self.pending.remove(id.as_bytes())?;
        self.idempotency.remove(id.as_bytes())?;
        Ok(())
    }
}
