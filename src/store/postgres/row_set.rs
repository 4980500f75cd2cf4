//! Row set: the rows that the rules of a transaction have asked for, read and locked, and those
//! that they put and remove, written at once.
//!
//! A rule that asks for a row that is not here stops, the row is read, and the rule runs again from
//! its start. Rows that it requests beforehand cost one round together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::InMemory;
use crate::directory::OrganisationIndex;
use crate::limits;
use crate::organisation_counts::Increment;
use crate::organisations::set_row;
use crate::postgres::calls::UNMARK;
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::tables::{
    CHANGE_DIRECTORY, Known, LOCK_COUNTERS, Query, array, ask_all, bigint, counters_of, keyed_row,
    limit, lock, put, range, remove, set_counter,
};
use crate::postgres::{Shared, message_id, millis, number, timestamp, uuid_of};
use crate::record::{FeedRow, ReportedChange, encode_feed};
use crate::rows::{Counter, Key, KeyRange, KeyedRow, Lock, NewRow, Rows, Stop, Table};
use crate::transitions::SEARCH_WINDOW;
use pillarbox_domain::feed::FeedPosition;
use pillarbox_domain::id::{MessageId, OrganisationId};
use pillarbox_domain::message::Message;
use pillarbox_domain::time::Timestamp;

/// Largest number of runs of a rule until every row that it needs is here.
const ROUNDS: usize = 8;

/// Keeps others from these ids of the provider until the end of the transaction, so that an event
/// and the outcome that it waits for do not miss each other.
const LOCK_SES_IDS: &str = "
SELECT pg_advisory_xact_lock(number) FROM (
    SELECT DISTINCT hashtextextended(id, 0) AS number FROM unnest($1::text[]) AS id ORDER BY 1
) AS numbers";
const FIND_SENT: &str =
    "SELECT ses_message_id, id, sent_at FROM sent WHERE ses_message_id = ANY($1)";
const FIND_UNMATCHED: &str = "
SELECT ses_message_id, digest, event, received_at FROM unmatched_event
WHERE ses_message_id = ANY($1)";
const WRITE_SENT: &str = "
INSERT INTO sent (ses_message_id, id, sent_at)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[])
ON CONFLICT DO NOTHING";
const END_PENDING: &str = "DELETE FROM pending WHERE id = ANY($1)";
/// Taken as a position: later commits are behind it.
const LAST_POSITION: &str = "UPDATE feed_counter SET last = last RETURNING last";
/// Returns `$2` positions, none before the first one of the instant. Locked last: see
/// `schema.sql`.
const TAKE_POSITIONS: &str =
    "UPDATE feed_counter SET last = greatest(last + 1, $1) + $2 - 1 RETURNING last";
const WRITE_FEED_ENDS: &str = "
INSERT INTO feed_end (organisation, last) SELECT * FROM unnest($1::integer[], $2::bigint[])
ON CONFLICT (organisation) DO UPDATE SET last = excluded.last";

/// Rows of a table that were read, with `None` for a row that does not exist.
type ReadRows = BTreeMap<Table, BTreeMap<Key, Option<Vec<u8>>>>;

/// Rows of a table to write, with `None` for a row that is removed.
type ChangedRows = BTreeMap<Table, BTreeMap<Key, Option<NewRow>>>;

/// Run of keys, with the largest number of rows that is read.
type Run = (Table, KeyRange, usize);

/// Rows that a transaction has read, and the changes to write.
pub(super) struct RowSet<'a> {
    shared: &'a Shared,
    directory: Arc<OrganisationIndex>,
    lock: Lock,
    /// Number of this change of the directory, once the directory is locked.
    version: Option<u64>,
    read: ReadRows,
    /// Runs that were read, with the last key if a run has more rows.
    runs: BTreeMap<Run, Option<Key>>,
    /// Messages by the provider's ids.
    sent: BTreeMap<String, Option<(MessageId, Timestamp)>>,
    counters: BTreeMap<Counter, u64>,
    feed_end: Option<FeedPosition>,
    unread: Unread,
    changes: Changes,
}

/// Rows to read before the rules run again.
#[derive(Default, PartialEq)]
struct Unread {
    rows: BTreeMap<Table, BTreeSet<Key>>,
    runs: BTreeSet<Run>,
    sent: BTreeSet<String>,
    counters: bool,
    feed_end: bool,
}

#[derive(Default)]
struct Changes {
    rows: ChangedRows,
    limits: BTreeMap<Table, (usize, &'static str)>,
    counters: BTreeMap<Counter, u64>,
    sent: Vec<(String, MessageId, Timestamp)>,
    ended: Vec<MessageId>,
    waiting: Vec<MessageId>,
    feed: Vec<(OrganisationId, FeedRow, Timestamp)>,
    increments: Vec<(OrganisationId, Increment)>,
}

/// Changes that became durable with a transaction.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) increments: Vec<(OrganisationId, Increment)>,
    /// Ends of the feeds that grew.
    pub(super) feed_ends: BTreeMap<OrganisationId, FeedPosition>,
    /// True if an address became suppressed.
    pub(super) is_suppressed: bool,
    /// Changed rows of all tables but that of suppressions.
    rows: ChangedRows,
}

impl<'a> RowSet<'a> {
    pub(super) fn new(shared: &'a Shared, lock: Lock) -> Self {
        Self {
            shared,
            directory: shared.memory.directory.load_full(),
            lock,
            version: None,
            read: BTreeMap::new(),
            runs: BTreeMap::new(),
            sent: BTreeMap::new(),
            counters: BTreeMap::new(),
            feed_end: None,
            unread: Unread::default(),
            changes: Changes::default(),
        }
    }

    /// Runs rules until all rows that they need are here; they return `None` if one is not. In
    /// tests they run once more then, because a rule may change nothing but rows.
    pub(super) async fn run<T>(
        &mut self,
        connection: &Connection,
        mut rules: impl FnMut(&mut Self) -> Result<Option<T>, QueryError>,
    ) -> Result<T, QueryError> {
        let mut runs_again = cfg!(test);
        for _ in 0..ROUNDS {
            if self.unread != Unread::default() {
                self.fetch(connection).await?;
            }
            // Those of the rules' last run.
            self.changes = Changes::default();
            if let Some(done) = rules(self)?
                && !std::mem::take(&mut runs_again)
            {
                return Ok(done);
            }
        }
        Err(QueryError::Endless)
    }

    /// Registers a row to be read with the next ones, unless it is here. Returns true if it is.
    pub(super) fn ask(&mut self, table: Table, key: Key) -> bool {
        let is_read = self.read.get(&table).is_some_and(|rows| rows.contains_key(&key));
        if !is_read {
            self.unread.rows.entry(table).or_default().insert(key);
        }
        is_read
    }

    /// Registers a run of rows to be read with the next ones.
    pub(super) fn ask_range(&mut self, table: Table, range: KeyRange, limit: usize) {
        self.unread.runs.insert((table, range, limit));
    }

    /// Registers a message to be read by the provider's id.
    pub(super) fn ask_sent(&mut self, ses_message_id: &str) {
        if !self.sent.contains_key(ses_message_id) {
            self.unread.sent.insert(ses_message_id.to_owned());
        }
    }

    pub(super) fn is_unchanged(&self) -> bool {
        self.changes.rows.is_empty() && self.changes.counters.is_empty()
    }

    /// Reads and locks the rows that the rules have requested.
    async fn fetch(&mut self, connection: &Connection) -> Result<(), QueryError> {
        let mut unread = std::mem::take(&mut self.unread);
        // Of many messages, in one statement.
        let unmatched: Vec<Run> =
            unread.runs.extract_if(.., |(table, ..)| *table == Table::UnmatchedEvents).collect();
        let ses_id = |key: &Key| key.text_to_nul(0).to_owned();
        let unmatched_ids: Vec<String> =
            unmatched.iter().map(|(_, run, _)| ses_id(&run.from)).collect();
        let keys = unread.rows.get(&Table::UnmatchedEvents).into_iter().flatten();
        let mut ses_ids = unread.sent.clone();
        ses_ids.extend(keys.map(ses_id).chain(unmatched_ids.iter().cloned()));
        let mut queries = Vec::new();
        for (table, keys) in &unread.rows {
            queries.push(lock(*table, &keys.iter().collect::<Vec<_>>()));
        }
        if !unmatched.is_empty() {
            queries.push(Query::new(FIND_UNMATCHED, vec![array(unmatched_ids)]));
        }
        queries.extend(unread.runs.iter().map(|(table, run, most)| range(*table, run, *most)));
        if !unread.sent.is_empty() {
            queries.push(Query::new(FIND_SENT, vec![array(unread.sent.iter().cloned())]));
        }
        let locks_counters = unread.counters && self.lock != Lock::Directory;
        queries.extend(locks_counters.then(|| Query::new(LOCK_COUNTERS, Vec::new())));
        queries.extend(unread.feed_end.then(|| Query::new(LAST_POSITION, Vec::new())));
        let mut answers = self.ask_locked(connection, ses_ids, queries).await?.into_iter();
        let mut answer = || answers.next().unwrap_or_default();
        for (table, keys) in unread.rows {
            let missing = keys.into_iter().map(|key| (key, None));
            self.read.entry(table).or_default().extend(missing);
            self.note_rows(table, &answer());
        }
        if !unmatched.is_empty() {
            self.note_rows(Table::UnmatchedEvents, &answer());
            self.runs.extend(unmatched.into_iter().map(|run| (run, None)));
        }
        for run in unread.runs {
            let (table, _, most) = run;
            let found = answer();
            self.note_rows(table, &found);
            let last = found.last().filter(|_| found.len() == most);
            self.runs.insert(run, last.map(|row| keyed_row(table, row).0));
        }
        if !unread.sent.is_empty() {
            self.sent.extend(unread.sent.into_iter().map(|ses_id| (ses_id, None)));
            self.sent.extend(answer().iter().map(|row: &Row| {
                (row.get(0), Some((message_id(row.get(1)), timestamp(row.get(2)))))
            }));
        }
        if locks_counters {
            self.counters = answer().first().map(counters_of).unwrap_or_default();
        }
        if unread.feed_end {
            let last = answer().first().map(|row| row.get::<_, i64>(0).unsigned_abs());
            self.feed_end = Some(FeedPosition::from_number(last.unwrap_or_default()));
        }
        Ok(())
    }

    fn note_rows(&mut self, table: Table, found: &[Row]) {
        let rows = found.iter().map(|row| keyed_row(table, row));
        self.read.entry(table).or_default().extend(rows.map(|(key, row)| (key, Some(row))));
    }

    /// Takes the locks that are needed before the queries, that of the directory first, and sends
    /// the queries behind them. Returns the answers to the queries.
    async fn ask_locked(
        &mut self,
        connection: &Connection,
        ses_ids: BTreeSet<String>,
        queries: Vec<Query>,
    ) -> Result<Vec<Vec<Row>>, QueryError> {
        let mut all = Vec::new();
        let locks_directory = self.lock == Lock::Directory && self.version.is_none();
        if locks_directory {
            all.push(Query::new(CHANGE_DIRECTORY, Vec::new()));
        }
        if !ses_ids.is_empty() {
            all.push(Query::new(LOCK_SES_IDS, vec![array(ses_ids)]));
        }
        let locks = all.len();
        all.extend(queries);
        let mut answers = ask_all(connection, &all).await?;
        if locks_directory && let Some(row) = answers[0].first() {
            self.counters = counters_of(row);
            self.version = Some(row.get::<_, i64>("directory_version").cast_unsigned());
        }
        Ok(answers.split_off(locks))
    }

    /// Returns the directory after a commit that changed it, if this node knows the one before.
    pub(super) fn changed_directory(&self, effects: &Effects) -> Option<OrganisationIndex> {
        let version = self.version?;
        let known = self.shared.memory.directory.load();
        if known.version + 1 != version || !known.damaged.is_empty() {
            return None;
        }
        let mut index = OrganisationIndex::clone(&known);
        index.version = version;
        for (table, rows) in &effects.rows {
            for (key, row) in rows {
                set_row(&mut index, *table, key, row.as_ref().map(|new| &*new.row));
            }
        }
        Some(index)
    }

    /// Writes the changes. Positions come last, because nobody else gets one until the end of the
    /// transaction.
    pub(super) async fn write(&mut self, connection: &Connection) -> Result<Effects, QueryError> {
        let changes = std::mem::take(&mut self.changes);
        let mut queries = Vec::new();
        let has_position = |table: &Table| matches!(table, Table::Suppressions | Table::Feed);
        for (table, rows) in changes.rows.iter().filter(|(table, _)| !has_position(table)) {
            self.add_rows(&mut queries, *table, rows, None);
        }
        let limits = queries.len();
        queries.extend(changes.limits.iter().map(|(table, (most, _))| limit(*table, *most)));
        if !changes.sent.is_empty() {
            let ses_ids = array(changes.sent.iter().map(|(ses_id, ..)| ses_id.clone()));
            let messages = array(changes.sent.iter().map(|(_, id, _)| uuid_of(*id)));
            let times = array(changes.sent.iter().map(|(.., at)| millis(*at)));
            queries.push(Query::new(WRITE_SENT, vec![ses_ids, messages, times]));
        }
        for (sql, messages) in [(END_PENDING, &changes.ended), (UNMARK, &changes.waiting)] {
            if !messages.is_empty() {
                queries.push(Query::new(sql, vec![array(messages.iter().copied().map(uuid_of))]));
            }
        }
        queries
            .extend(changes.counters.iter().map(|(counter, value)| set_counter(*counter, *value)));
        let answers = self.ask_locked(connection, BTreeSet::new(), queries).await?;
        for ((_, what), removed) in changes.limits.values().zip(&answers[limits..]) {
            limits::warn_removed(removed.len() as u64, what);
        }
        self.write_positions(connection, changes).await
    }

    /// Writes rows that have a position in the order of commits: suppressions and entries of the
    /// feed.
    async fn write_positions(
        &self,
        connection: &Connection,
        changes: Changes,
    ) -> Result<Effects, QueryError> {
        let Changes { increments, feed, mut rows, .. } = changes;
        let mut effects = Effects { increments, ..Effects::default() };
        let suppressions = rows.remove(&Table::Suppressions).unwrap_or_default();
        effects.is_suppressed = suppressions.values().any(Option::is_some);
        let count = feed.len().max(usize::from(effects.is_suppressed));
        let mut queries = Vec::new();
        let mut last = None;
        if count > 0 {
            let now = feed.iter().map(|(_, _, now)| *now).max();
            let floor = now.map_or(FeedPosition::START, FeedPosition::first_of);
            let wanted: [&(dyn ToSql + Sync); 2] = [&bigint(floor.number()), &bigint(count)];
            last = Some(connection.query_one(TAKE_POSITIONS, &wanted).await?.get(0));
        }
        // Before the commit, so that no stored address is missing there.
        let keys = suppressions.iter().filter(|(_, row)| row.is_some());
        self.shared.memory.suppressed.insert(keys.map(|(key, _)| (key.number(0), key.text(4))));
        self.add_rows(&mut queries, Table::Suppressions, &suppressions, last);
        if let Some(last) = last.filter(|_| !feed.is_empty()) {
            let first = last.unsigned_abs() + 1 - count as u64;
            let mut entries = BTreeMap::new();
            for (position, (organisation, row, _)) in (first..).zip(&feed) {
                let at = FeedPosition::from_number(position);
                let row = NewRow { row: encode_feed(at, row), organisation: None };
                entries.insert(Key::from((organisation.0, position)), row);
                effects.feed_ends.insert(*organisation, at);
            }
            let entries: Vec<_> = entries.iter().collect();
            queries.push(put(Table::Feed, Known::Missing, &entries, None));
            let organisations = array(effects.feed_ends.keys().copied().map(number));
            let lasts = array(effects.feed_ends.values().map(|at| bigint(at.number())));
            queries.push(Query::new(WRITE_FEED_ENDS, vec![organisations, lasts]));
        }
        ask_all(connection, &queries).await?;
        effects.rows = rows;
        Ok(effects)
    }

    fn add_rows(
        &self,
        queries: &mut Vec<Query>,
        table: Table,
        rows: &BTreeMap<Key, Option<NewRow>>,
        position: Option<i64>,
    ) {
        let read = self.read.get(&table);
        let mut removed = Vec::new();
        let mut by_known: BTreeMap<Known, Vec<(&Key, &NewRow)>> = BTreeMap::new();
        for (key, new) in rows {
            let Some(new) = new else {
                removed.push(key);
                continue;
            };
            let known = match read.and_then(|read| read.get(key)) {
                Some(Some(_)) => Known::There,
                Some(None) => Known::Missing,
                None => Known::Nothing,
            };
            by_known.entry(known).or_default().push((key, new));
        }
        queries.extend((!removed.is_empty()).then(|| remove(table, &removed)));
        queries.extend(by_known.iter().map(|(known, rows)| put(table, *known, rows, position)));
    }

    fn change(&mut self, table: Table, key: &Key, row: Option<NewRow>) {
        self.changes.rows.entry(table).or_default().insert(key.clone(), row);
    }
}

impl Rows for RowSet<'_> {
    fn get(&mut self, table: Table, key: &Key) -> Result<Option<Vec<u8>>, Stop> {
        if let Some(change) = self.changes.rows.get(&table).and_then(|rows| rows.get(key)) {
            return Ok(change.as_ref().map(|new| new.row.clone()));
        }
        if let Some(row) = self.read.get(&table).and_then(|rows| rows.get(key)) {
            return Ok(row.clone());
        }
        let is_whole = |((of, run, _), last): (&Run, &Option<Key>)| {
            *of == table && last.is_none() && run.contains(key)
        };
        if self.runs.iter().any(is_whole) {
            return Ok(None);
        }
        self.ask(table, key.clone());
        Err(Stop::Unread)
    }

    fn range(
        &mut self,
        table: Table,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<KeyedRow>, Stop> {
        let run = (table, range.clone(), limit);
        let Some(last) = self.runs.get(&run) else {
            self.unread.runs.insert(run);
            return Err(Stop::Unread);
        };
        let is_read = |key: &Key| match last {
            Some(last) if range.is_descending => key >= last,
            Some(last) => key <= last,
            None => true,
        };
        let mut rows: BTreeMap<&Key, Option<&Vec<u8>>> = BTreeMap::new();
        if let Some(read) = self.read.get(&table) {
            rows.extend(read.range(range.bounds()).map(|(key, row)| (key, row.as_ref())));
        }
        if let Some(changed) = self.changes.rows.get(&table) {
            let changed = changed.range(range.bounds());
            rows.extend(changed.map(|(key, new)| (key, new.as_ref().map(|new| &new.row))));
        }
        let found = rows.into_iter().filter(|(key, _)| is_read(key));
        let found = found.filter_map(|(key, row)| Some((key.clone(), row?.clone())));
        let mut found: Vec<KeyedRow> = found.collect();
        if range.is_descending {
            found.reverse();
        }
        found.truncate(limit);
        Ok(found)
    }

    fn put(&mut self, table: Table, key: &Key, row: &[u8]) -> Result<(), Stop> {
        self.change(table, key, Some(NewRow::of(table, key, row.to_vec())));
        Ok(())
    }

    fn remove(&mut self, table: Table, key: &Key) -> Result<(), Stop> {
        self.change(table, key, None);
        Ok(())
    }

    fn read_ahead(&mut self, rows: &[(Table, Key)]) -> Result<(), Stop> {
        let mut are_read = true;
        for (table, key) in rows {
            let is_put = self.changes.rows.get(table).is_some_and(|rows| rows.contains_key(key));
            // Unread rows of others must not stop this rule: it would request its own later.
            are_read &= is_put || self.ask(*table, key.clone());
        }
        if are_read { Ok(()) } else { Err(Stop::Unread) }
    }

    fn make_room(&mut self, table: Table, most: usize, what: &'static str) -> Result<(), Stop> {
        self.changes.limits.insert(table, (most, what));
        Ok(())
    }

    fn counter(&mut self, counter: Counter) -> Result<u64, Stop> {
        let known = self.changes.counters.get(&counter).or_else(|| self.counters.get(&counter));
        if let Some(value) = known {
            return Ok(*value);
        }
        self.unread.counters = true;
        Err(Stop::Unread)
    }

    fn set_counter(&mut self, counter: Counter, value: u64) -> Result<(), Stop> {
        self.changes.counters.insert(counter, value);
        Ok(())
    }

    fn feed_end(&mut self) -> Result<FeedPosition, Stop> {
        self.feed_end.ok_or_else(|| {
            self.unread.feed_end = true;
            Stop::Unread
        })
    }

    fn report(
        &mut self,
        message: &Message,
        change: ReportedChange,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let row = FeedRow { message: message.id, change };
        self.changes.feed.push((message.organisation, row, now));
        Ok(())
    }

    fn end_pending(&mut self, id: MessageId) -> Result<(), Stop> {
        self.changes.ended.push(id);
        Ok(())
    }

    fn end_call(&mut self, id: MessageId) {
        self.changes.waiting.push(id);
    }

    fn find_sent(
        &mut self,
        ses_message_id: &str,
        accepted_at: Timestamp,
    ) -> Result<Option<MessageId>, Stop> {
        let near = accepted_at.minus(SEARCH_WINDOW)..=accepted_at.plus(SEARCH_WINDOW);
        let added = self.changes.sent.iter().find(|(ses_id, ..)| ses_id == ses_message_id);
        let read = self.sent.get(ses_message_id).copied();
        let found = read.flatten().or(added.map(|(_, id, sent_at)| (*id, *sent_at)));
        if found.is_none() && read.is_none() {
            self.ask_sent(ses_message_id);
            return Err(Stop::Unread);
        }
        Ok(found.filter(|(_, sent_at)| near.contains(sent_at)).map(|(id, _)| id))
    }

    fn add_sent(
        &mut self,
        id: MessageId,
        ses_message_id: &str,
        sent_at: Timestamp,
    ) -> Result<(), Stop> {
        self.changes.sent.push((ses_message_id.to_owned(), id, sent_at));
        Ok(())
    }

    fn count(&mut self, organisation: OrganisationId, increment: Increment) {
        self.changes.increments.push((organisation, increment));
    }

    fn directory(&self) -> Arc<OrganisationIndex> {
        Arc::clone(&self.directory)
    }

    fn memory(&self) -> &InMemory {
        &self.shared.memory
    }
}
