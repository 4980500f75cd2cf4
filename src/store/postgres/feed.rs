//! Event feed: the ends of all feeds, followed in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tokio::time::sleep;

use crate::locks::{RwLock, read_lock, write_lock};
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::session::{Session, Transaction};
use crate::postgres::tables::bigint;
use crate::postgres::{PostgresStore, Shared};
use pillarbox_domain::feed::{FeedId, FeedPosition};
use pillarbox_domain::id::OrganisationId;

/// Wait before a node confirms entries. They are usually its own, and their commit is about to be
/// known.
const CONFIRM_AFTER: Duration = Duration::from_millis(20);
/// Pause after a commit that confirmed entries.
const CONFIRM_PAUSE: Duration = Duration::from_millis(200);
/// Pause after a commit that failed.
const CONFIRM_AGAIN: Duration = Duration::from_secs(1);

/// Number by which the content of the database is distinguished from that of others.
pub(super) const ID: &str = "SELECT feed_id FROM cluster";

/// Ends of the feeds that this node has followed.
///
/// An entry shows once its commit is confirmed: it is on the standby too, if there is one. Entries
/// of other nodes are visible before that if an administrator cancels a wait for the standby.
/// Applications would get them twice if that standby took over. Positions are in the order of
/// commits, so a commit that is confirmed confirms all positions before its own.
#[derive(Default)]
pub(super) struct Feeds {
    id: AtomicU64,
    /// Last position that is known to be confirmed.
    confirmed: AtomicI64,
    /// Last position that is visible.
    visible: AtomicI64,
    /// Notified if entries are visible that are not known to be confirmed.
    unconfirmed: Notify,
    /// Notified if that is done: there is more to follow at once.
    pub(super) now_confirmed: Notify,
    ends: RwLock<BTreeMap<OrganisationId, FeedPosition>>,
    grew: watch::Sender<FeedPosition>,
}

impl Feeds {
    /// Reads the number by which cursors are distinguished from those of other databases.
    pub(super) async fn identify(&self, connection: &Connection) -> Result<(), QueryError> {
        let row = connection.query_one(ID, &[]).await?;
        self.id.store(row.get::<_, i64>(0).cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn follow(&self, connection: &Connection) -> Result<(), QueryError> {
        const GROWN: &str = "SELECT organisation, last FROM feed_end WHERE last > $1";
        let known = bigint(self.grew.borrow().number());
        let rows = connection.query(GROWN, &[&known]).await?;
        let confirmed = self.confirmed();
        let visible = rows.iter().map(|row| row.get(1)).max().unwrap_or(known);
        self.visible.store(visible, Ordering::Release);
        if visible > confirmed {
            self.unconfirmed.notify_one();
        }
        // Entries are also shown up to there in a feed that never stops growing.
        let shown = rows.iter().map(|row| (row.get::<_, i32>(0), confirmed.min(row.get(1))));
        let ends = shown.filter(|(_, end)| *end > known).map(|(organisation, end)| {
            let end = FeedPosition::from_number(end.unsigned_abs());
            (OrganisationId(organisation.unsigned_abs()), end)
        });
        let ends: BTreeMap<_, _> = ends.collect();
        if let Some(last) = ends.values().max().copied() {
            self.note(&ends);
            self.grew.send_replace(last);
        }
        Ok(())
    }

    fn confirmed(&self) -> i64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Notes durable entries of this node. Entries of other nodes before them may not be known yet:
    /// they are followed.
    pub(super) fn grow(&self, ends: &BTreeMap<OrganisationId, FeedPosition>) {
        if let Some(last) = ends.values().max() {
            self.confirmed.fetch_max(bigint(last.number()), Ordering::AcqRel);
        }
        self.note(ends);
    }

    fn note(&self, ends: &BTreeMap<OrganisationId, FeedPosition>) {
        if ends.is_empty() {
            return;
        }
        let mut known = write_lock(&self.ends);
        for (organisation, end) in ends {
            let known = known.entry(*organisation).or_insert(*end);
            *known = (*known).max(*end);
        }
    }
}

/// Confirms visible entries: makes a commit of its own, which waits for the standby, and confirms the
/// position that it read.
pub(super) async fn confirm(
    shared: &Shared,
    writer: &Arc<Mutex<Session>>,
) -> Result<(), QueryError> {
    // A transaction that takes a position holds the counter until the end of its commit.
    const LAST: &str = "SELECT last FROM feed_counter";
    let change = Transaction::begin(writer).await?;
    let last: i64 = change.connection().query_one(LAST, &[]).await?.get(0);
    let confirmed = change.commit(last).await?;
    shared.feed.confirmed.fetch_max(confirmed, Ordering::AcqRel);
    Ok(())
}

/// Confirms entries of other nodes, each time that there are some.
pub(super) async fn confirm_others(shared: Arc<Shared>, writer: Arc<Mutex<Session>>) {
    loop {
        shared.feed.unconfirmed.notified().await;
        sleep(CONFIRM_AFTER).await;
        if shared.feed.visible.load(Ordering::Acquire) <= shared.feed.confirmed() {
            continue;
        }
        let confirmed = confirm(&shared, &writer).await;
        let pause = if let Err(error) = confirmed {
            shared.lost(&error);
            CONFIRM_AGAIN
        } else {
            shared.feed.now_confirmed.notify_one();
            CONFIRM_PAUSE
        };
        sleep(pause).await;
    }
}

impl PostgresStore {
    pub(crate) fn feed_end(&self, organisation: OrganisationId) -> FeedPosition {
        let ends = read_lock(&self.shared.feed.ends);
        ends.get(&organisation).copied().unwrap_or(FeedPosition::START)
    }

    pub(crate) fn feed_shown(&self) -> FeedPosition {
        FeedPosition::from_number(self.shared.feed.confirmed().unsigned_abs())
    }

    pub(crate) fn feed_grew(&self) -> watch::Receiver<FeedPosition> {
        self.shared.feed.grew.subscribe()
    }

    pub(crate) fn feed_id(&self) -> FeedId {
        FeedId(self.shared.feed.id.load(Ordering::Relaxed))
    }
}
