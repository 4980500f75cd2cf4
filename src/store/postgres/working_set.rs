//! Working set: the rows that a transaction needs, read at once and locked, and what the rules of
//! transitions make of them, written at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use crate::domain::event::Event;
use crate::domain::feed::FeedPosition;
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Failure, Message, State};
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::domain::time::Timestamp;
use crate::organisation_counts::Increment;
use crate::store::Change;
use crate::store::directory::OrganisationIndex;
use crate::store::error::DamagedRow;
use crate::store::limits::{self, LOST_SHOWN, MAX_UNMATCHED, UNMATCHED};
use crate::store::postgres::calls::UNMARK;
use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::{Shared, events, message_id, millis, number, timestamp, uuid_of};
use crate::store::record::{
    EventKey, FeedRow, ReportedChange, UnmatchedEvent, decode_message, decode_suppression,
    decode_unmatched, encode_feed, encode_message, encode_overturned, encode_suppression,
};
use crate::store::transitions::{Rows, SEARCH_WINDOW, StoredSuppression, event_key};

const LOCK_MESSAGES: &str =
    "SELECT id, record FROM message WHERE id = ANY($1) ORDER BY id FOR UPDATE";
/// Keeps others from these ids of the provider until the end of the transaction, so that an event
/// and the outcome that it waits for do not miss each other.
const LOCK_SES_IDS: &str = "
SELECT pg_advisory_xact_lock(number) FROM (
    SELECT DISTINCT hashtextextended(id, 0) AS number FROM unnest($1::text[]) AS id ORDER BY 1
) AS numbers";
const FIND_SENT: &str =
    "SELECT ses_message_id, id, sent_at FROM sent WHERE ses_message_id = ANY($1)";
const LOCK_UNMATCHED: &str = "
SELECT ses_message_id, digest, event FROM unmatched_event WHERE ses_message_id = ANY($1)
ORDER BY ses_message_id, digest FOR UPDATE";
const FIND_SUPPRESSIONS: &str = "
SELECT s.organisation, s.address, s.suppression FROM suppression AS s
JOIN unnest($1::integer[], $2::text[]) AS asked (organisation, address)
USING (organisation, address)";

const WRITE_MESSAGES: &str = "
UPDATE message SET record = new.record FROM unnest($1::uuid[], $2::bytea[]) AS new (id, record)
WHERE message.id = new.id";
const FORGET_PENDING: &str = "DELETE FROM pending WHERE id = ANY($1)";
const WRITE_SENT: &str = "
INSERT INTO sent (ses_message_id, id, sent_at)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[])
ON CONFLICT DO NOTHING";
const WRITE_EVENTS: &str = "
INSERT INTO event (message, key, event) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[])
ON CONFLICT (message, key) DO UPDATE SET event = excluded.event";
const WRITE_OVERTURNED: &str = "
INSERT INTO overturned_failure (id, failure) SELECT * FROM unnest($1::uuid[], $2::bytea[])
ON CONFLICT (id) DO UPDATE SET failure = excluded.failure";
const REMOVE_UNMATCHED: &str = "DELETE FROM unmatched_event WHERE ses_message_id = ANY($1)";
const WRITE_UNMATCHED: &str = "
INSERT INTO unmatched_event (ses_message_id, digest, received_at, event)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bytea[])
ON CONFLICT DO NOTHING";
const LIMIT_UNMATCHED: &str = "
DELETE FROM unmatched_event WHERE (ses_message_id, digest) IN (
    SELECT ses_message_id, digest FROM unmatched_event ORDER BY received_at DESC OFFSET $1)";
const WRITE_LOST: &str = "
UPDATE cluster SET
    -- A count that is not shown any more begins anew.
    lost_messages = $1 + CASE WHEN lost_messages_at + $3 > $2 THEN lost_messages ELSE 0 END,
    lost_messages_at = greatest(lost_messages_at, $2)";
/// Gives `$2` positions, none before the first one of the instant. Locked last: see `schema/1.sql`.
const TAKE_POSITIONS: &str =
    "UPDATE feed_counter SET last = greatest(last + 1, $1) + $2 - 1 RETURNING last";
const WRITE_SUPPRESSIONS: &str = "
INSERT INTO suppression (organisation, address, suppression, position)
SELECT organisation, address, suppression, $4
FROM unnest($1::integer[], $2::text[], $3::bytea[]) AS new (organisation, address, suppression)
ORDER BY organisation, address
ON CONFLICT (organisation, address) DO UPDATE
SET suppression = excluded.suppression, position = excluded.position";
const WRITE_FEED: &str = "
INSERT INTO feed (organisation, position, entry)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bytea[])";
const WRITE_FEED_ENDS: &str = "
INSERT INTO feed_end (organisation, last) SELECT * FROM unnest($1::integer[], $2::bigint[])
ON CONFLICT (organisation) DO UPDATE SET last = excluded.last";

/// What a transaction will need.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Messages.
    pub(super) messages: BTreeSet<MessageId>,
    /// Provider's ids: their messages are looked for, and events that wait for them.
    pub(super) ses_ids: BTreeSet<String>,
    /// Events that will be put on the record of a message, by its id or the provider's.
    pub(super) events: Vec<(MessageOf, Event)>,
    /// Organisations whose own suppressions may be changed by those events.
    pub(super) organisations: BTreeSet<OrganisationId>,
}

/// How a message is named.
#[derive(Debug, Clone)]
pub(super) enum MessageOf {
    /// By its id.
    Id(MessageId),
    /// By the provider's.
    SesId(String),
}

/// Rows that a transaction has read, and what is to be written.
pub(super) struct WorkingSet {
    directory: Arc<OrganisationIndex>,
    messages: HashMap<MessageId, Result<Message, DamagedRow>>,
    sent: HashMap<String, (MessageId, Timestamp)>,
    unmatched: BTreeMap<String, Vec<UnmatchedEvent>>,
    /// Digests of the unmatched events that are there.
    unmatched_digests: BTreeSet<(String, Vec<u8>)>,
    events: HashMap<(MessageId, Vec<u8>), Vec<u8>>,
    suppressions: HashMap<(OrganisationId, String), Vec<u8>>,
    damaged: Mutex<Vec<DamagedRow>>,
    changes: Changes,
}

/// What is to be written.
#[derive(Default)]
struct Changes {
    messages: BTreeSet<MessageId>,
    sent: Vec<(String, MessageId, Timestamp)>,
    events: BTreeSet<(MessageId, Vec<u8>)>,
    overturned: Vec<(MessageId, Vec<u8>)>,
    taken: BTreeSet<String>,
    unmatched: Vec<(String, Vec<u8>, Timestamp, Vec<u8>)>,
    suppressions: BTreeMap<(OrganisationId, String), Vec<u8>>,
    /// What was read of each of them, by which it was decided.
    known_suppressions: BTreeMap<(OrganisationId, String), Option<Vec<u8>>>,
    feed: Vec<(OrganisationId, FeedRow, Timestamp)>,
    lost: (i64, i64),
    increments: Vec<(OrganisationId, Increment)>,
}

/// What became durable with a transaction.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) increments: Vec<(OrganisationId, Increment)>,
    /// Ends of the feeds that grew.
    pub(super) feed_ends: BTreeMap<OrganisationId, FeedPosition>,
    /// Addresses that are suppressed since.
    pub(super) suppressed: Vec<(OrganisationId, String)>,
}

impl WorkingSet {
    /// Reads and locks what is needed.
    pub(super) async fn read(
        connection: &Connection,
        directory: Arc<OrganisationIndex>,
        needs: &Needs,
    ) -> Result<Self, QueryError> {
        let mut set = Self {
            directory,
            messages: HashMap::new(),
            sent: HashMap::new(),
            unmatched: BTreeMap::new(),
            unmatched_digests: BTreeSet::new(),
            events: HashMap::new(),
            suppressions: HashMap::new(),
            damaged: Mutex::default(),
            changes: Changes::default(),
        };
        let ses_ids: Vec<&str> = needs.ses_ids.iter().map(String::as_str).collect();
        if !ses_ids.is_empty() {
            for statement in [FIND_SENT, LOCK_UNMATCHED] {
                connection.prepare(statement).await?;
            }
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&ses_ids];
            connection.query(LOCK_SES_IDS, &parameters).await?;
            let (sent, unmatched) = tokio::join!(
                connection.query(FIND_SENT, &parameters),
                connection.query(LOCK_UNMATCHED, &parameters),
            );
            for row in sent? {
                set.sent.insert(row.get(0), (message_id(row.get(1)), timestamp(row.get(2))));
            }
            for row in unmatched? {
                let (ses_id, digest): (String, Vec<u8>) = (row.get(0), row.get(1));
                match decode_unmatched(row.get(2)) {
                    Ok(event) => set.unmatched.entry(ses_id.clone()).or_default().push(event),
                    Err(reason) => {
                        set.note_damage(DamagedRow::new("unmatched_event", &ses_id, &reason));
                    }
                }
                set.unmatched_digests.insert((ses_id, digest));
            }
        }
        let mut ids = needs.messages.clone();
        ids.extend(set.sent.values().map(|(id, _)| *id));
        set.lock_messages(connection, &ids).await?;
        set.find_events(connection, needs).await?;
        Ok(set)
    }

    async fn lock_messages(
        &mut self,
        connection: &Connection,
        ids: &BTreeSet<MessageId>,
    ) -> Result<(), QueryError> {
        let ids: Vec<Uuid> = ids.iter().copied().map(uuid_of).collect();
        if ids.is_empty() {
            return Ok(());
        }
        for row in connection.query(LOCK_MESSAGES, &[&ids]).await? {
            let id = message_id(row.get(0));
            let read = decode_message(id, row.get(1));
            self.messages.insert(id, read.map_err(|e| DamagedRow::new("message", id, &e)));
        }
        Ok(())
    }

    /// Reads the events that are already on the records, and the suppressions of their recipients.
    async fn find_events(
        &mut self,
        connection: &Connection,
        needs: &Needs,
    ) -> Result<(), QueryError> {
        let mut keys = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        let mut organisations = needs.organisations.clone();
        organisations.extend(self.messages.values().flatten().map(|message| message.organisation));
        let mut add = |message: Option<MessageId>, event: &Event| {
            keys.extend(message.map(|id| (id, event_key(event).without_message())));
            if event.suppresses().is_some() {
                let of = event.recipients.iter().filter_map(|r| SuppressedAddress::of_recipient(r));
                addresses.extend(of.map(|address| address.as_str().to_owned()));
            }
        };
        for (message, event) in &needs.events {
            let id = match message {
                MessageOf::Id(id) => Some(*id),
                MessageOf::SesId(ses_id) => self.sent.get(ses_id).map(|(id, _)| *id),
            };
            add(id, event);
        }
        // Each of them may be put on the record of each message: they are few.
        for early in self.unmatched.values().flatten() {
            for id in self.messages.keys() {
                add(Some(*id), &early.event);
            }
        }
        if !keys.is_empty() {
            let ids: Vec<Uuid> = keys.iter().map(|(id, _)| uuid_of(*id)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(|(_, key)| key.as_slice()).collect();
            for row in connection.query(events::FIND, &[&ids, &keys]).await? {
                self.events.insert((message_id(row.get(0)), row.get(1)), row.get(2));
            }
        }
        if !addresses.is_empty() {
            let pairs: Vec<(i32, &str)> = organisations
                .iter()
                .flat_map(|organisation| {
                    addresses.iter().map(|address| (number(*organisation), address.as_str()))
                })
                .collect();
            let (organisations, addresses): (Vec<i32>, Vec<&str>) = pairs.into_iter().unzip();
            self.suppressions = find_suppressions(connection, &organisations, &addresses).await?;
        }
        Ok(())
    }

    /// Writes what has changed. Positions come last, because nobody else gets one until the end of
    /// the transaction.
    pub(super) async fn write(
        &mut self,
        connection: &Connection,
        shared: &Shared,
    ) -> Result<Effects, QueryError> {
        for row in std::mem::take(self.damaged.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            shared.damage.note(row);
        }
        let changes = std::mem::take(&mut self.changes);
        self.write_messages(connection, &changes).await?;
        write_reports(connection, &self.events, &changes).await?;
        let (lost, lost_at) = changes.lost;
        if lost > 0 {
            let shown = i64::try_from(LOST_SHOWN.as_millis()).unwrap_or(i64::MAX);
            connection.execute(WRITE_LOST, &[&lost, &lost_at, &shown]).await?;
        }
        let feed_ends = write_positions(connection, &changes).await?;
        let suppressed = changes.suppressions.into_keys().collect();
        Ok(Effects { increments: changes.increments, feed_ends, suppressed })
    }

    async fn write_messages(
        &self,
        connection: &Connection,
        changes: &Changes,
    ) -> Result<(), QueryError> {
        let changed: Vec<&Message> =
            changes.messages.iter().filter_map(|id| self.messages.get(id)?.as_ref().ok()).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let ids = ids_of(&changed);
        let records: Vec<Vec<u8>> = changed.iter().map(|message| encode_message(message)).collect();
        let (waiting, finals): (Vec<&Message>, Vec<&Message>) =
            changed.iter().partition(|message| matches!(message.state, State::Queued { .. }));
        let (waiting, finals) = (ids_of(&waiting), ids_of(&finals));
        for statement in [WRITE_MESSAGES, FORGET_PENDING, UNMARK] {
            connection.prepare(statement).await?;
        }
        let messages: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&ids, &records];
        let pending: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&finals];
        let unmark = async {
            if waiting.is_empty() { Ok(0) } else { connection.execute(UNMARK, &[&waiting]).await }
        };
        let (written, forgotten, unmarked) = tokio::join!(
            connection.execute(WRITE_MESSAGES, &messages),
            connection.execute(FORGET_PENDING, &pending),
            unmark,
        );
        written?;
        forgotten?;
        unmarked?;
        Ok(())
    }
}

fn ids_of(messages: &[&Message]) -> Vec<Uuid> {
    messages.iter().map(|message| uuid_of(message.id)).collect()
}

/// Writes what reports say: provider's ids, events, and those without a message.
async fn write_reports(
    connection: &Connection,
    events: &HashMap<(MessageId, Vec<u8>), Vec<u8>>,
    changes: &Changes,
) -> Result<(), QueryError> {
    if !changes.sent.is_empty() {
        let ses_ids: Vec<&str> = changes.sent.iter().map(|(ses_id, ..)| ses_id.as_str()).collect();
        let ids: Vec<Uuid> = changes.sent.iter().map(|(_, id, _)| uuid_of(*id)).collect();
        let times: Vec<i64> = changes.sent.iter().map(|(.., at)| millis(*at)).collect();
        connection.execute(WRITE_SENT, &[&ses_ids, &ids, &times]).await?;
    }
    if !changes.events.is_empty() {
        let ids: Vec<Uuid> = changes.events.iter().map(|(id, _)| uuid_of(*id)).collect();
        let keys: Vec<&[u8]> = changes.events.iter().map(|(_, key)| key.as_slice()).collect();
        let rows: Vec<&[u8]> = changes.events.iter().map(|key| events[key].as_slice()).collect();
        connection.execute(WRITE_EVENTS, &[&ids, &keys, &rows]).await?;
    }
    if !changes.overturned.is_empty() {
        let (ids, failures): (Vec<Uuid>, Vec<&[u8]>) =
            changes.overturned.iter().map(|(id, row)| (uuid_of(*id), row.as_slice())).unzip();
        connection.execute(WRITE_OVERTURNED, &[&ids, &failures]).await?;
    }
    if !changes.taken.is_empty() {
        let taken: Vec<&str> = changes.taken.iter().map(String::as_str).collect();
        connection.execute(REMOVE_UNMATCHED, &[&taken]).await?;
    }
    if !changes.unmatched.is_empty() {
        let all = &changes.unmatched;
        let ses_ids: Vec<&str> = all.iter().map(|(ses_id, ..)| ses_id.as_str()).collect();
        let digests: Vec<&[u8]> = all.iter().map(|(_, digest, ..)| digest.as_slice()).collect();
        let times: Vec<i64> = all.iter().map(|(_, _, time, _)| millis(*time)).collect();
        let rows: Vec<&[u8]> = all.iter().map(|(.., row)| row.as_slice()).collect();
        connection.execute(WRITE_UNMATCHED, &[&ses_ids, &digests, &times, &rows]).await?;
        let most = i64::try_from(MAX_UNMATCHED).unwrap_or(i64::MAX);
        let removed = connection.execute(LIMIT_UNMATCHED, &[&most]).await?;
        limits::warn_removed(removed, UNMATCHED);
    }
    Ok(())
}

/// Reads suppressions of organisations, each with the address at the same place.
async fn find_suppressions(
    connection: &Connection,
    organisations: &[i32],
    addresses: &[&str],
) -> Result<HashMap<(OrganisationId, String), Vec<u8>>, QueryError> {
    let rows = connection.query(FIND_SUPPRESSIONS, &[&organisations, &addresses]).await?;
    let suppression = |row: &tokio_postgres::Row| {
        let organisation = OrganisationId(row.get::<_, i32>(0).unsigned_abs());
        ((organisation, row.get(1)), row.get(2))
    };
    Ok(rows.iter().map(suppression).collect())
}

/// Writes what has a position in the order of commits: suppressions and entries of the feed.
async fn write_positions(
    connection: &Connection,
    changes: &Changes,
) -> Result<BTreeMap<OrganisationId, FeedPosition>, QueryError> {
    let mut ends = BTreeMap::new();
    let count = changes.feed.len().max(usize::from(!changes.suppressions.is_empty()));
    if count == 0 {
        return Ok(ends);
    }
    let now = changes.feed.iter().map(|(_, _, now)| *now).max();
    let first = now.map_or(FeedPosition::START, FeedPosition::first_of);
    let wanted = i64::try_from(count).expect("a transaction has few changes");
    let floor = position_number(first);
    let last: i64 = connection.query_one(TAKE_POSITIONS, &[&floor, &wanted]).await?.get(0);
    if !changes.suppressions.is_empty() {
        let keys = || changes.suppressions.keys();
        let organisations: Vec<i32> =
            keys().map(|(organisation, _)| number(*organisation)).collect();
        let addresses: Vec<&str> = keys().map(|(_, address)| address.as_str()).collect();
        // Whoever suppresses holds the counter, so from here on nobody else does. What came since it
        // was read counts: the transaction decides anew.
        let found = find_suppressions(connection, &organisations, &addresses).await?;
        let mut known = changes.known_suppressions.iter();
        if !known.all(|(key, known)| found.get(key) == known.as_ref()) {
            return Err(QueryError::NotMade);
        }
        let rows: Vec<&[u8]> = changes.suppressions.values().map(Vec::as_slice).collect();
        connection.execute(WRITE_SUPPRESSIONS, &[&organisations, &addresses, &rows, &last]).await?;
    }
    if changes.feed.is_empty() {
        return Ok(ends);
    }
    let mut entries = (Vec::new(), Vec::new(), Vec::new());
    for (position, (organisation, row, _)) in (last - wanted + 1..).zip(&changes.feed) {
        let at = FeedPosition::from_number(position.unsigned_abs());
        entries.0.push(number(*organisation));
        entries.1.push(position);
        entries.2.push(encode_feed(at, row));
        ends.insert(*organisation, at);
    }
    connection.execute(WRITE_FEED, &[&entries.0, &entries.1, &entries.2]).await?;
    let (organisations, lasts): (Vec<i32>, Vec<i64>) =
        ends.iter().map(|(organisation, at)| (number(*organisation), position_number(*at))).unzip();
    connection.execute(WRITE_FEED_ENDS, &[&organisations, &lasts]).await?;
    Ok(ends)
}

/// Number of a position as the server keeps it. An instant has 43 bits until the year 2248.
pub(super) fn position_number(position: FeedPosition) -> i64 {
    i64::try_from(position.number()).unwrap_or(i64::MAX)
}

impl Rows for WorkingSet {
    type Error = QueryError;

    fn message(&mut self, id: MessageId) -> Result<Option<Message>, QueryError> {
        match self.messages.get(&id) {
            None => Ok(None),
            Some(Ok(message)) => Ok(Some(message.clone())),
            Some(Err(damaged)) => Err(damaged.clone().into()),
        }
    }

    fn put_message(&mut self, message: &Message) -> Result<(), QueryError> {
        self.messages.insert(message.id, Ok(message.clone()));
        self.changes.messages.insert(message.id);
        Ok(())
    }

    fn keep_overturned(&mut self, id: MessageId, failure: &Failure) -> Result<(), QueryError> {
        self.changes.overturned.retain(|(other, _)| *other != id);
        self.changes.overturned.push((id, encode_overturned(failure)));
        Ok(())
    }

    fn find_sent(
        &mut self,
        ses_message_id: &str,
        accepted_at: Timestamp,
    ) -> Result<Option<MessageId>, QueryError> {
        let near = accepted_at.minus(SEARCH_WINDOW)..=accepted_at.plus(SEARCH_WINDOW);
        let sent = self.sent.get(ses_message_id).filter(|(_, sent_at)| near.contains(sent_at));
        Ok(sent.map(|(id, _)| *id))
    }

    fn add_sent(
        &mut self,
        id: MessageId,
        ses_message_id: &str,
        sent_at: Timestamp,
    ) -> Result<(), QueryError> {
        if self.sent.insert(ses_message_id.to_owned(), (id, sent_at)).is_none() {
            self.changes.sent.push((ses_message_id.to_owned(), id, sent_at));
        }
        Ok(())
    }

    fn event(&mut self, id: MessageId, key: &EventKey) -> Result<Option<Vec<u8>>, QueryError> {
        Ok(self.events.get(&(id, key.without_message())).cloned())
    }

    fn put_event(&mut self, id: MessageId, key: &EventKey, row: &[u8]) -> Result<(), QueryError> {
        let key = (id, key.without_message());
        self.events.insert(key.clone(), row.to_vec());
        self.changes.events.insert(key);
        Ok(())
    }

    fn keep_unmatched(
        &mut self,
        ses_message_id: &str,
        digest: &[u8],
        row: &[u8],
        now: Timestamp,
    ) -> Result<Change, QueryError> {
        if !self.unmatched_digests.insert((ses_message_id.to_owned(), digest.to_vec())) {
            return Ok(Change::None);
        }
        if let Ok(event) = decode_unmatched(row) {
            self.unmatched.entry(ses_message_id.to_owned()).or_default().push(event);
        }
        let ses_message_id = ses_message_id.to_owned();
        self.changes.unmatched.push((ses_message_id, digest.to_vec(), now, row.to_vec()));
        Ok(Change::Made)
    }

    fn take_unmatched(&mut self, ses_message_id: &str) -> Result<Vec<UnmatchedEvent>, QueryError> {
        let Some(events) = self.unmatched.remove(ses_message_id) else { return Ok(Vec::new()) };
        self.changes.unmatched.retain(|(ses_id, ..)| ses_id != ses_message_id);
        self.unmatched_digests.retain(|(ses_id, _)| ses_id != ses_message_id);
        self.changes.taken.insert(ses_message_id.to_owned());
        Ok(events)
    }

    fn suppression(
        &mut self,
        organisation: OrganisationId,
        address: &SuppressedAddress,
    ) -> Result<StoredSuppression, QueryError> {
        let key = (organisation, address.as_str().to_owned());
        Ok(self.suppressions.get(&key).map_or(StoredSuppression::Missing, |row| {
            decode_suppression(address.as_str(), row)
                .map_or(StoredSuppression::Damaged, StoredSuppression::Readable)
        }))
    }

    fn put_suppression(
        &mut self,
        organisation: OrganisationId,
        suppression: &Suppression,
    ) -> Result<(), QueryError> {
        let key = (organisation, suppression.address.as_str().to_owned());
        let row = encode_suppression(suppression);
        let known = self.suppressions.insert(key.clone(), row.clone());
        // Of several changes of one address, the first was decided by what was read.
        self.changes.known_suppressions.entry(key.clone()).or_insert(known);
        self.changes.suppressions.insert(key, row);
        Ok(())
    }

    fn report(
        &mut self,
        message: &Message,
        change: ReportedChange,
        now: Timestamp,
    ) -> Result<(), QueryError> {
        let row = FeedRow { message: message.id, change };
        self.changes.feed.push((message.organisation, row, now));
        Ok(())
    }

    fn add_lost_message(&mut self, found_at: Timestamp) -> Result<(), QueryError> {
        let (lost, at) = self.changes.lost;
        self.changes.lost = (lost + 1, at.max(millis(found_at)));
        Ok(())
    }

    fn count(&mut self, organisation: OrganisationId, increment: Increment) {
        self.changes.increments.push((organisation, increment));
    }

    fn may_be_named(&self, organisation: OrganisationId, name: &str) -> bool {
        self.directory.may_be_named(organisation, name)
    }

    fn organisation_named(&self, name: &str) -> Option<OrganisationId> {
        self.directory.named(name).map(|organisation| organisation.id)
    }

    fn note_damage(&self, row: DamagedRow) {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner).push(row);
    }
}
