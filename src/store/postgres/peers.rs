//! Peers: all nodes on the database, as this one last saw them, with the time since which each
//! gives no sign of life, by this machine's clock.

use std::collections::HashMap;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio_postgres::Row;

use crate::cluster::{NodeLoad, NodeState, NodeStatus, SeenFrom};
use crate::postgres::connection::Connection;
use crate::postgres::error::QueryError;
use crate::postgres::timestamp;

const NODES: &str = "
SELECT id, name, beat, version, schema, started_at, draining, pending, conditions,
    coalesce((SELECT rate FROM quota_share WHERE node = node.id AND until > clock_timestamp()), 0),
    ARRAY(SELECT name FROM duty WHERE node = node.id AND until > clock_timestamp() ORDER BY name),
    demand, least_dead_after
FROM node ORDER BY name";
/// Removes a node, if it has given no sign of life since it was last seen.
pub(super) const BURY: &str = "DELETE FROM node WHERE id = $1 AND beat = $2";

/// All nodes as they were last seen, by the numbers of their lives.
#[derive(Debug, Clone, Default)]
pub(super) struct Sight {
    /// Time of the last read, by the clock of [`boot_time`]. While the server cannot be reached,
    /// nobody is observed, and nobody's silence grows.
    pub(super) at: Duration,
    pub(super) peers: HashMap<i32, Peer>,
}

/// A node as it was last seen.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    /// Number of its current life.
    pub(super) id: i32,
    /// Count of its signs of life.
    pub(super) beat: i64,
    /// Time at which this count was first seen, by the clock of [`boot_time`].
    pub(super) since: Duration,
    pub(super) status: NodeStatus,
}

impl Peer {
    pub(super) fn is_this(&self) -> bool {
        self.status.seen_from == SeenFrom::Itself
    }

    fn of(row: &Row, this: i32, before: &HashMap<i32, Peer>, now: Duration) -> Self {
        let (id, beat): (i32, i64) = (row.get(0), row.get(2));
        let seen = before.get(&id).filter(|seen| seen.beat == beat);
        let is_draining = row.get(6);
        let status = NodeStatus {
            name: row.get(1),
            version: row.get(3),
            schema: row.get(4),
            started_at: timestamp(row.get(5)),
            state: if is_draining { NodeState::Draining } else { NodeState::Working },
            seen_from: if id == this { SeenFrom::Itself } else { SeenFrom::Another },
            least_dead_after: Duration::from_millis(row.get::<_, i64>(12).unsigned_abs()),
            share: row.get(9),
            duties: row.get(10),
            load: NodeLoad {
                pending: row.get::<_, i64>(7).unsigned_abs(),
                conditions: row.get(8),
                demand: row.get::<_, i32>(11).unsigned_abs(),
            },
        };
        Self { id, beat, since: seen.map_or(now, |seen| seen.since), status }
    }
}

/// Reads all nodes. `before` has the times since which they are silent.
pub(super) async fn peers(
    connection: &Connection,
    this: i32,
    before: &HashMap<i32, Peer>,
) -> Result<HashMap<i32, Peer>, QueryError> {
    let rows = connection.query(NODES, &[]).await?;
    let now = boot_time();
    let peers = rows.iter().map(|row| Peer::of(row, this, before, now));
    Ok(peers.map(|peer| (peer.id, peer)).collect())
}

/// Time since the machine was started, with the time in which it was suspended.
pub(super) fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
