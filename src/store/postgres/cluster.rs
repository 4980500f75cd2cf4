//! Cluster: the nodes and the database as operators see them, and operators' orders to nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::StoreError;
use crate::cluster::{
    DatabaseStatus, DrainOrder, Forgotten, LEASE, NodeState, NodeStatus, Standby,
};
use crate::interface::Change;
use crate::locks::locked;
use crate::postgres::connection::{Connection, Connector, PostgresServer};
use crate::postgres::error::{ConnectError, QueryError};
use crate::postgres::peers::{BURY, Peer, boot_time};
use crate::postgres::silence::{Purpose, Silence};
use crate::postgres::tables::bigint;
use crate::postgres::{PostgresStore, Shared, timestamp};
use pillarbox_domain::time::ClockReading;

/// Time between two checks of the database's state.
const LOOK: Duration = Duration::from_secs(10);

/// A node of an earlier schema does not start on a database whose oldest reader is newer.
const KEEP_OFF: &str = "UPDATE cluster SET oldest_reader = $1 WHERE oldest_reader < $1";
const DRAIN: &str = "UPDATE node SET draining = $2 WHERE name = $1";
/// State that an ordinary user may read: the views leave out the work of other users, but not these
/// values.
const DATABASE: &str = "
SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
    to_regclass('cluster') IS NOT NULL,
    current_setting('synchronous_standby_names') <> '', current_setting('fsync')::boolean,
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer,
    greatest(
        (SELECT max(age(backend_xmin)) FROM pg_stat_activity),
        (SELECT max(age(transaction)) FROM pg_prepared_xacts),
        (SELECT max(age(xmin)) FROM pg_replication_slots), 0)::bigint,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
const SCHEMA: &str = "SELECT version FROM cluster";
const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

pub(super) async fn watch_database(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let looked = async { database(&*shared.listers.get().await?).await };
        // The beat says whether the server answers at all.
        let Ok(mut status) = looked.await else { continue };
        let mut known = locked(&shared.database);
        if status.standby == Standby::None && known.standby != Standby::None {
            status.standby = Standby::Lost;
        }
        *known = status;
    }
}

pub(super) async fn read_clock(connection: &Connection) -> Result<ClockReading, QueryError> {
    // Not in the time that is measured.
    connection.prepare(CLOCK).await?;
    let asked = boot_time();
    let time = timestamp(connection.query_one(CLOCK, &[]).await?.get(0));
    Ok(ClockReading { time, asked, answered: boot_time() })
}

pub(super) async fn database(connection: &Connection) -> Result<DatabaseStatus, QueryError> {
    // Not in the time that is measured.
    connection.prepare(DATABASE).await?;
    let before = unix_millis();
    let row = connection.query_one(DATABASE, &[]).await?;
    let here = before.midpoint(unix_millis());
    let schema =
        if row.get(2) { Some(connection.query_one(SCHEMA, &[]).await?.get(0)) } else { None };
    Ok(DatabaseStatus {
        server_version: row.get(0),
        server_version_number: row.get(1),
        schema,
        standby: if row.get(3) { Standby::Synchronous } else { Standby::None },
        waits_for_disk: row.get(4),
        max_connections: row.get(5),
        transactions_behind: row.get(6),
        clock_offset_millis: row.get::<_, i64>(7) - here,
    })
}

/// This machine's clock, in milliseconds since the Unix epoch. It is compared with the database's,
/// so it is not corrected.
fn unix_millis() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    bigint(now.as_millis())
}

impl PostgresStore {
    /// Connects to read the state of the database once, without a node.
    pub(crate) async fn look_at(server: &PostgresServer) -> Result<DatabaseStatus, ConnectError> {
        let connection = Connector::new(server).connect_for(Purpose::Reads).await?;
        Ok(database(&connection).await?)
    }

    pub(crate) fn silence(&self) -> &Silence {
        &self.shared.connector.silence
    }

    pub(crate) fn nodes(&self) -> Vec<NodeStatus> {
        let sight = self.shared.node.sight();
        let status = |peer: &Peer| {
            let mut status = peer.status.clone();
            let silent = sight.at.saturating_sub(peer.since);
            if silent >= LEASE {
                status.state = NodeState::Silent(silent);
            }
            if peer.is_this() {
                status.load = self.shared.node.load();
            }
            status
        };
        let mut nodes: Vec<_> = sight.peers.values().map(status).collect();
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        nodes
    }

    pub(crate) fn database(&self) -> DatabaseStatus {
        locked(&self.shared.database).clone()
    }

    pub(crate) fn server_clock(&self) -> watch::Receiver<ClockReading> {
        self.shared.clock.subscribe()
    }

    pub(crate) async fn keep_nodes_off_before(
        &self,
        schema: i32,
    ) -> Result<Vec<NodeStatus>, StoreError> {
        let kept_off = &self.shared.kept_off_before;
        // It is needed with every message of a newer form.
        if kept_off.load(Ordering::Relaxed) >= schema {
            return Ok(Vec::new());
        }
        let earlier: Vec<_> =
            self.nodes().into_iter().filter(|node| node.schema < schema).collect();
        if earlier.is_empty() {
            self.execute(KEEP_OFF, &[&schema]).await?;
            kept_off.fetch_max(schema, Ordering::Relaxed);
        }
        Ok(earlier)
    }

    pub(crate) async fn drain_node(
        &self,
        name: &str,
        drain: DrainOrder,
    ) -> Result<Change, StoreError> {
        let drained = self.execute(DRAIN, &[&name, &(drain == DrainOrder::Begin)]).await?;
        Ok(if drained == 1 { Change::Made } else { Change::None })
    }

    pub(crate) async fn forget_node(&self, name: &str) -> Result<Forgotten, StoreError> {
        let sight = self.shared.node.sight();
        let peer = sight.peers.values().find(|peer| peer.status.name == name);
        let Some(peer) = peer else { return Ok(Forgotten::Unknown) };
        let silent = sight.at.saturating_sub(peer.since);
        if silent < LEASE || peer.is_this() {
            return Ok(Forgotten::Lives(silent));
        }
        // Only as it was seen: a sign of life meanwhile prevents the removal.
        Ok(match self.execute(BURY, &[&peer.id, &peer.beat]).await? {
            0 => Forgotten::Lives(Duration::ZERO),
            _ => Forgotten::Removed,
        })
    }
}
