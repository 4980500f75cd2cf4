//! Event feed: entries as they are read, and the ends of all feeds, followed in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tokio::time::sleep;
use uuid::Uuid;

use crate::domain::clock_corrections::WindowTime;
use crate::domain::feed::{FeedEntry, FeedId, FeedPosition, FeedTypes};
use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::Message;
use crate::store::damage::Damage;
use crate::store::error::DamagedRow;
use crate::store::feed_entries::{self, FeedRows, Query};
use crate::store::listing::{self, Turn};
use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::QueryError;
use crate::store::postgres::session::{Session, Transaction};
use crate::store::postgres::working_set::position_number;
use crate::store::postgres::{
    PostgresStore, Shared, blocking, events, message_id, number, uuid_of,
};
use crate::store::record::{EventKey, FeedRow, ReportedChange, decode_feed, decode_message};
use crate::store::{FeedPage, ListError, Lister, StoreError};

/// How many entries the first look at a feed reads at most, and a later one. Types that are rare need
/// several looks.
const FIRST_LOOK: usize = 1_000;
const ROWS_PER_LOOK: usize = 10_000;
/// Wait before a node confirms entries. Mostly they are its own, and their commit is about to be known.
const CONFIRM_AFTER: Duration = Duration::from_millis(20);
/// Pause after a commit that confirmed entries.
const CONFIRM_PAUSE: Duration = Duration::from_millis(200);
/// Pause after one that was not made.
const CONFIRM_AGAIN: Duration = Duration::from_secs(1);

const READ: &str = "
SELECT position, entry FROM feed WHERE organisation = $1 AND position > $2 AND position <= $4
ORDER BY position LIMIT $3";
const READ_ONE: &str = "SELECT position, entry FROM feed WHERE organisation = $1 AND position = $2";
const MESSAGES: &str = "SELECT id, record FROM message WHERE id = ANY($1)";
const OVERTURNED: &str = "SELECT id, failure FROM overturned_failure WHERE id = ANY($1)";

/// Ends of the feeds, as far as this node has followed them.
///
/// An entry shows once its commit is confirmed: it is on the standby too, if there is one. Entries of
/// others are visible before if an administrator cancels a wait for the standby. They would be told
/// of twice if that standby took over. Positions are in the order of commits, so a commit that is
/// confirmed confirms all positions before its own.
pub(super) struct Feeds {
    id: AtomicU64,
    /// Last position that is known to be confirmed.
    confirmed: AtomicI64,
    /// Last position that is visible.
    visible: AtomicI64,
    /// Told if entries are visible that are not known to be confirmed.
    unconfirmed: Notify,
    /// Told if that is done.
    now_confirmed: Notify,
    ends: RwLock<BTreeMap<OrganisationId, FeedPosition>>,
    grew: watch::Sender<FeedPosition>,
}

impl Default for Feeds {
    fn default() -> Self {
        let grew = watch::Sender::new(FeedPosition::START);
        Self {
            id: AtomicU64::new(0),
            confirmed: AtomicI64::new(0),
            visible: AtomicI64::new(0),
            unconfirmed: Notify::new(),
            now_confirmed: Notify::new(),
            ends: RwLock::default(),
            grew,
        }
    }
}

impl Feeds {
    /// Reads the number by which cursors are told from those of other databases.
    pub(super) async fn identify(&self, connection: &Connection) -> Result<(), QueryError> {
        let row = connection.query_one("SELECT feed_id FROM cluster", &[]).await?;
        self.id.store(row.get::<_, i64>(0).cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }

    /// Reads which feeds have grown.
    pub(super) async fn follow(&self, connection: &Connection) -> Result<(), QueryError> {
        const GROWN: &str = "SELECT organisation, last FROM feed_end WHERE last > $1";
        let known = position_number(*self.grew.borrow());
        let rows = connection.query(GROWN, &[&known]).await?;
        let confirmed = self.confirmed();
        let visible = rows.iter().map(|row| row.get(1)).max().unwrap_or(known);
        self.visible.store(visible, Ordering::Release);
        if visible > confirmed {
            self.unconfirmed.notify_one();
        }
        // A feed that never stands still shows up to there as well.
        let shown = rows.iter().map(|row| (row.get::<_, i32>(0), confirmed.min(row.get(1))));
        let ends = shown.filter(|(_, end)| *end > known).map(|(organisation, end)| {
            let end = FeedPosition::from_number(end.unsigned_abs());
            (OrganisationId(organisation.unsigned_abs()), end)
        });
        self.raise(&ends.collect());
        Ok(())
    }

    /// Last position that is known to be confirmed.
    fn confirmed(&self) -> i64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Notes that a commit was confirmed which found this position taken.
    fn confirm(&self, position: i64) {
        self.confirmed.fetch_max(position, Ordering::AcqRel);
    }

    /// Waits until there is more to follow at once: entries that were visible are confirmed.
    pub(super) async fn now_confirmed(&self) {
        self.now_confirmed.notified().await;
    }

    /// Notes entries of this node's own that are durable. Others' before them may not be known
    /// yet: they are followed.
    pub(super) fn grow(&self, ends: &BTreeMap<OrganisationId, FeedPosition>) {
        if let Some(last) = ends.values().max() {
            self.confirm(position_number(*last));
        }
        self.note(ends);
    }

    fn note(&self, ends: &BTreeMap<OrganisationId, FeedPosition>) {
        if ends.is_empty() {
            return;
        }
        let mut known = self.ends.write().unwrap_or_else(PoisonError::into_inner);
        for (organisation, end) in ends {
            let known = known.entry(*organisation).or_insert(*end);
            *known = (*known).max(*end);
        }
    }

    fn raise(&self, ends: &BTreeMap<OrganisationId, FeedPosition>) {
        let Some(last) = ends.values().max().copied() else { return };
        self.note(ends);
        self.grew.send_replace(last);
    }

    fn end(&self, organisation: OrganisationId) -> FeedPosition {
        let ends = self.ends.read().unwrap_or_else(PoisonError::into_inner);
        ends.get(&organisation).copied().unwrap_or(FeedPosition::START)
    }
}

/// Confirms what is visible: makes a commit of its own, which waits for the standby.
pub(super) async fn confirm(
    shared: &Shared,
    writer: &Arc<Mutex<Session>>,
) -> Result<(), QueryError> {
    // Whoever takes a position holds the counter until the end of its commit.
    const LAST: &str = "SELECT last FROM feed_counter";
    let change = Transaction::begin(writer).await?;
    let last: i64 = change.connection().query_one(LAST, &[]).await?.get(0);
    shared.feed.confirm(change.commit(last).await?);
    Ok(())
}

/// Confirms what other nodes wrote, each time that there is something.
pub(super) async fn confirm_others(shared: Arc<Shared>, writer: Arc<Mutex<Session>>) {
    loop {
        shared.feed.unconfirmed.notified().await;
        sleep(CONFIRM_AFTER).await;
        if shared.feed.visible.load(Ordering::Acquire) > shared.feed.confirmed() {
            match confirm(&shared, &writer).await {
                Ok(()) => {
                    shared.feed.now_confirmed.notify_one();
                    sleep(CONFIRM_PAUSE).await;
                }
                Err(error) => {
                    shared.lost(&error);
                    sleep(CONFIRM_AGAIN).await;
                }
            }
        }
    }
}

impl PostgresStore {
    pub(in crate::store) async fn feed(
        &self,
        organisation: OrganisationId,
        after: FeedPosition,
        types: FeedTypes,
        limit: usize,
        window_now: impl Into<WindowTime>,
    ) -> Result<FeedPage, StoreError> {
        let query = Query { organisation, types, limit, window_now: window_now.into() };
        Ok(self.read_feed(&query, after, None).await?.0)
    }

    pub(in crate::store) async fn list_feed<T: Send + 'static>(
        &self,
        organisation: OrganisationId,
        after: FeedPosition,
        types: FeedTypes,
        limit: usize,
        window_now: impl Into<WindowTime>,
        then: impl FnOnce(FeedPage) -> T + Send + 'static,
    ) -> Result<T, ListError> {
        let query = Query { organisation, types, limit, window_now: window_now.into() };
        let turn = self.shared.listings.turn(Lister::Organisation(organisation)).await?;
        let store = self.clone();
        // Whoever asked may go meanwhile; what the server was asked goes on, so the turn is its own.
        let listing = tokio::spawn(async move {
            let (page, turn) = store.read_feed(&query, after, Some(turn)).await?;
            Ok(blocking(move || {
                let _turn = turn;
                then(page)
            })
            .await)
        });
        listing.await.expect("a listing does not panic and is not aborted")
    }

    pub(in crate::store) async fn feed_entry(
        &self,
        organisation: OrganisationId,
        position: FeedPosition,
        window_now: impl Into<WindowTime>,
    ) -> Result<Option<FeedEntry>, StoreError> {
        let window_now = window_now.into();
        let query = Query { organisation, types: FeedTypes::ALL, limit: 1, window_now };
        let at = position_number(position);
        if at > self.shared.feed.confirmed() {
            return Ok(None);
        }
        let rows = entries_of(&self.query(READ_ONE, &[&number(organisation), &at]).await?);
        let referred = Referred::read(self, &query, &rows).await?;
        let Some((position, row)) = rows.first() else { return Ok(None) };
        let entry = feed_entries::entry(&referred, &query, *position, row);
        entry.map_err(|error| self.shared.refused(error))
    }

    pub(in crate::store) fn feed_end(&self, organisation: OrganisationId) -> FeedPosition {
        self.shared.feed.end(organisation)
    }

    pub(in crate::store) fn feed_grew(&self) -> watch::Receiver<FeedPosition> {
        self.shared.feed.grew.subscribe()
    }

    pub(in crate::store) fn feed_id(&self) -> FeedId {
        FeedId(self.shared.feed.id.load(Ordering::Relaxed))
    }

    /// Reads a page in as many looks as it takes, each in a turn of its own; gives the last one back.
    async fn read_feed(
        &self,
        query: &Query,
        mut after: FeedPosition,
        mut turn: Option<Turn>,
    ) -> Result<(FeedPage, Option<Turn>), StoreError> {
        let mut page = FeedPage { entries: Vec::new(), next: after };
        let mut step = query.limit.clamp(1, FIRST_LOOK);
        loop {
            let (from, most) = (position_number(after), i64::try_from(step).unwrap_or(i64::MAX));
            let organisation = number(query.organisation);
            let confirmed = self.shared.feed.confirmed();
            let rows = self.list_rows(READ, &[&organisation, &from, &most, &confirmed]).await?;
            let mut rows = entries_of(&rows);
            let is_end = rows.len() < step;
            let is_cut = keep_wanted(&mut rows, query);
            let referred = Referred::read(self, query, &rows).await?;
            for (position, row) in &rows {
                let entry = feed_entries::entry(&referred, query, *position, row);
                page.entries.extend(entry.map_err(|error| self.shared.refused(error))?);
                page.next = *position;
                after = *position;
            }
            if !page.entries.is_empty() || (is_end && !is_cut) {
                return Ok((page, turn));
            }
            turn = match turn {
                Some(turn) => Some(turn.again().await),
                None => None,
            };
            step = (step * 4).min(ROWS_PER_LOOK);
        }
    }
}

/// Leaves out what follows when there are as many entries of the wanted types as are asked for: what
/// they refer to is read for no more. Returns true if something was left out.
fn keep_wanted(rows: &mut Vec<(FeedPosition, Vec<u8>)>, query: &Query) -> bool {
    let is_wanted = |(position, row): &(FeedPosition, Vec<u8>)| {
        let row = decode_feed(*position, row);
        row.is_ok_and(|row| query.types.contains(feed_entries::event_type(&row.change)))
    };
    let wanted = rows.iter().enumerate().filter(|(_, row)| is_wanted(row));
    let last = wanted.map(|(index, _)| index).nth(query.limit.max(1) - 1);
    let kept = last.map_or(rows.len(), |index| index + 1);
    let is_cut = kept < rows.len();
    rows.truncate(kept);
    is_cut
}

fn entries_of(rows: &[tokio_postgres::Row]) -> Vec<(FeedPosition, Vec<u8>)> {
    let entry = |row: &tokio_postgres::Row| {
        (FeedPosition::from_number(row.get::<_, i64>(0).unsigned_abs()), row.get(1))
    };
    rows.iter().map(entry).collect()
}

/// Rows that entries refer to.
struct Referred<'a> {
    messages: HashMap<MessageId, Result<Message, DamagedRow>>,
    overturned: HashMap<MessageId, Vec<u8>>,
    events: HashMap<(MessageId, Vec<u8>), Vec<u8>>,
    damage: &'a Damage,
}

impl<'a> Referred<'a> {
    async fn read(
        store: &'a PostgresStore,
        query: &Query,
        entries: &[(FeedPosition, Vec<u8>)],
    ) -> Result<Self, StoreError> {
        let mut referred = Self {
            messages: HashMap::new(),
            overturned: HashMap::new(),
            events: HashMap::new(),
            damage: &store.shared.damage,
        };
        let rows = entries.iter().filter_map(|(position, row)| decode_feed(*position, row).ok());
        let rows: Vec<FeedRow> = rows
            .filter(|row| query.types.contains(feed_entries::event_type(&row.change)))
            .collect();
        if rows.is_empty() {
            return Ok(referred);
        }
        let ids: Vec<Uuid> = rows.iter().map(|row| uuid_of(row.message)).collect();
        for row in store.list_rows(MESSAGES, &[&ids]).await? {
            let id = message_id(row.get(0));
            let message = decode_message(id, row.get(1));
            let message = message.map_err(|reason| DamagedRow::new("message", id, &reason));
            let visible = message.map(|message| listing::visible(message, &query.window_now));
            if let Some(message) = visible.transpose() {
                referred.messages.insert(id, message);
            }
        }
        let of = |wanted: fn(&ReportedChange) -> bool| -> Vec<Uuid> {
            rows.iter().filter(|row| wanted(&row.change)).map(|row| uuid_of(row.message)).collect()
        };
        let failed = of(|change| matches!(change, ReportedChange::Failed));
        if !failed.is_empty() {
            for row in store.list_rows(OVERTURNED, &[&failed]).await? {
                referred.overturned.insert(message_id(row.get(0)), row.get(1));
            }
        }
        let observed = of(|change| matches!(change, ReportedChange::Observed(_)));
        if !observed.is_empty() {
            let keys = rows.iter().filter_map(|row| match row.change {
                ReportedChange::Observed(key) => Some(key.without_message()),
                ReportedChange::Sent | ReportedChange::Failed | ReportedChange::Suppressed => None,
            });
            let keys: Vec<Vec<u8>> = keys.collect();
            for row in store.list_rows(events::FIND, &[&observed, &keys]).await? {
                referred.events.insert((message_id(row.get(0)), row.get(1)), row.get(2));
            }
        }
        Ok(referred)
    }
}

impl FeedRows for Referred<'_> {
    type Error = QueryError;

    fn message(&self, id: MessageId) -> Result<Option<Message>, QueryError> {
        Ok(self.messages.get(&id).cloned().transpose()?)
    }

    fn overturned(&self, id: MessageId) -> Result<Option<Vec<u8>>, QueryError> {
        Ok(self.overturned.get(&id).cloned())
    }

    fn event(&self, id: MessageId, key: &EventKey) -> Result<Option<Vec<u8>>, QueryError> {
        Ok(self.events.get(&(id, key.without_message())).cloned())
    }

    fn damage(&self) -> &Damage {
        self.damage
    }
}
