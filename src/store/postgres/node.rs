//! Node: this process's place among those that work on one database. It gives a sign of life every
//! second, and watches those of the others.
//!
//! A node without a confirmed sign for [`LEASE`] starts nothing. No other node takes it for dead
//! before `dead_after`, which is longer than the lease and a call to the provider together. So no
//! message is marked lost while it may still be sent.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::cluster::{DrainOrder, Duty, LEASE, NodeLoad, NodePlace};
use crate::locks::{Mutex, locked};
use crate::postgres::cluster::read_clock;
use crate::postgres::connection::Connection;
use crate::postgres::error::{ConnectError, QueryError};
use crate::postgres::outcomes::{Job, Work};
use crate::postgres::peers::{BURY, Peer, Sight, boot_time, peers};
use crate::postgres::schema;
use crate::postgres::silence::Purpose;
use crate::postgres::tables::{bigint, integer};
use crate::postgres::{PostgresStore, Shared, answer_to, message_id, millis, uuid_of};
use crate::rate_share::part_of_pace;
use crate::record::decode_message;
use crate::{Alerting, StoreError};
use pillarbox_domain::id::MessageId;
use pillarbox_domain::message::{Acceptance, State, Transition};
use pillarbox_domain::time::Timestamp;

/// Interval of a node's signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// Longest time that the server may take to confirm a beat.
const BEAT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for which the end of a process waits until it has left the others.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
/// Number of messages of the life before that are checked and taken over at one time.
const TAKEN_OVER_AT_ONCE: usize = 10_000;
/// Number of messages of a dead node that are failed at one time.
const SETTLED_AT_ONCE: i64 = 1_000;

/// Silence of a node of the same name after which a start elsewhere takes its place. By then it has
/// started nothing for a while: see [`LEASE`].
const NAMESAKE_SILENCE: Duration = Duration::from_secs(25);

const FIND: &str = "
SELECT id, directory = $2 AND place = $3 AND place <> '', beat FROM node WHERE name = $1 FOR UPDATE";
const LOOK: &str = "
SELECT id, beat FROM node WHERE name = $1 AND NOT (directory = $2 AND place = $3 AND place <> '')";
const JOIN: &str = "
INSERT INTO node (name, directory, place, version, schema, started_at, least_dead_after)
VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id";
const RECORDS: &str = "
SELECT id, record FROM pending JOIN message USING (id) WHERE node = $1 AND id = ANY($2)";
const TAKE_OVER: &str = "
UPDATE pending SET node = $1, calling = NULL WHERE node = $2 AND id = ANY($3) RETURNING id";
const SAY: &str = "
UPDATE node SET beat = beat + 1, pending = $2, conditions = $3, demand = $4
WHERE id = $1 RETURNING draining, beat";
const ORPHANS: &str = "
SELECT id, calling FROM pending WHERE NOT EXISTS (SELECT FROM node WHERE node.id = pending.node)
ORDER BY id LIMIT $1";
/// Messages that had no record, or were final already.
const FORGET_ORPHANS: &str = "
DELETE FROM pending WHERE id = ANY($1)
AND NOT EXISTS (SELECT FROM node WHERE node.id = pending.node)";
const LEAVE: [&str; 3] = [
    "DELETE FROM quota_share WHERE node = $1",
    "DELETE FROM duty WHERE node = $1",
    "DELETE FROM node WHERE id = $1",
];

/// Text in the record of a message whose body was lost, if its node had reported no call. A call
/// that began in the node's last seconds may have been under way.
const BODY_LOST: &str = "the node that held the message ended before it was sent, and bodies are \
                         kept in memory only; a call to the provider may have been under way, so \
                         it is unknown whether the message was accepted";
/// The same, if its node had reported a call.
const CALL_LOST: &str = "the node that held the message ended while a call to the provider was \
                         under way, so it is unknown whether the message was accepted";

/// Time for which a share of the pace and a duty hold on the server, as [`take_part_sql`] sets it.
/// The node itself holds them for less.
const HELD: Duration = Duration::from_secs(30);

/// Takes or keeps a node's part of the pace, as much of it as the others leave, and its duties: those
/// that nobody has, and its own. The duty of alerts is for nodes that have a receiver. A node whose own
/// work has stopped takes `None`, and leaves its duties to others.
///
/// Shares are given one after the other, so there is a lock. All of this is one request: the server
/// runs it as one transaction, in which each statement sees what was committed before it began. A
/// node that vanishes meanwhile does not hold the lock.
fn take_part_sql(node: i32, ask: f64, takes_duties: Option<Alerting>) -> String {
    let duties = match takes_duties {
        None => format!("DELETE FROM duty WHERE node = {node}"),
        Some(alerting) => {
            let taken = Duty::ALL.into_iter();
            let taken = taken.filter(|duty| *duty != Duty::Alerts || alerting == Alerting::On);
            let names = taken.map(|duty| format!("('{}')", duty.as_str())).collect::<Vec<_>>();
            let names = names.join(", ");
            format!(
                "INSERT INTO duty (name, node, until)
            SELECT name, {node}, clock_timestamp() + interval '30 seconds'
            FROM (VALUES {names}) AS duties (name)
            ON CONFLICT (name) DO UPDATE SET node = excluded.node, until = excluded.until
            WHERE duty.node = excluded.node OR duty.until < clock_timestamp()
            RETURNING name AS duty"
            )
        }
    };
    format!(
        "SELECT pg_advisory_xact_lock(7811887802133217281);
        WITH others AS (
            SELECT coalesce(sum(rate), 0) AS taken FROM quota_share
            WHERE node <> {node} AND until > clock_timestamp()
        )
        INSERT INTO quota_share (node, rate, until)
        SELECT {node}, greatest(least({ask:?}, 1 - taken), 0),
            clock_timestamp() + interval '30 seconds'
        FROM others
        ON CONFLICT (node) DO UPDATE SET rate = excluded.rate, until = excluded.until
        RETURNING rate;
        {duties}"
    )
}

/// Identity of a node.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// Name that the operator gave it; no other live node has it.
    pub name: String,
    /// Random number that lies in its data directory.
    pub directory: [u8; 16],
    /// Place in which it holds that directory. A copy of the directory has another one.
    pub place: NodePlace,
    /// Silence after which it takes other nodes for dead.
    pub dead_after: Duration,
    /// Smallest value of `dead_after` for its own calls. Others wait for this time if theirs is
    /// shorter.
    pub least_dead_after: Duration,
}

pub(crate) struct Node {
    identity: NodeIdentity,
    id: AtomicI32,
    /// Time at which the last confirmed beat was sent, by the clock that includes suspension.
    confirmed: Mutex<Duration>,
    /// True if the others took it for dead.
    is_fenced: AtomicBool,
    /// Its part of the pace of all nodes, from 0 to 1.
    share: watch::Sender<f64>,
    /// True for each of [`Duty::ALL`] that it has.
    duties: [watch::Sender<bool>; Duty::ALL.len()],
    /// Latest order to accept messages or not.
    drains: watch::Sender<DrainOrder>,
    /// Load that it reports at the next beat.
    load: Mutex<NodeLoad>,
    /// All nodes, as they were last seen.
    sight: Mutex<Arc<Sight>>,
}

impl Node {
    pub(super) fn new(identity: NodeIdentity) -> Self {
        Self {
            identity,
            id: AtomicI32::new(0),
            confirmed: Mutex::new(Duration::ZERO),
            is_fenced: AtomicBool::new(false),
            share: watch::Sender::new(0.0),
            duties: Default::default(),
            drains: watch::Sender::new(DrainOrder::End),
            load: Mutex::default(),
            sight: Mutex::default(),
        }
    }

    pub(crate) fn drains(&self) -> watch::Receiver<DrainOrder> {
        self.drains.subscribe()
    }

    pub(crate) fn say_load(&self, load: NodeLoad) {
        *locked(&self.load) = load;
    }

    pub(super) fn load(&self) -> NodeLoad {
        locked(&self.load).clone()
    }

    pub(super) fn sight(&self) -> Arc<Sight> {
        Arc::clone(&locked(&self.sight))
    }

    pub(super) fn id(&self) -> i32 {
        self.id.load(Ordering::Acquire)
    }

    /// Returns true if it may start something: its last confirmed beat was not long ago.
    pub(super) fn is_live(&self) -> bool {
        let silent = boot_time().saturating_sub(*locked(&self.confirmed));
        !self.is_fenced.load(Ordering::Acquire) && silent < LEASE
    }

    pub(crate) fn share(&self) -> watch::Receiver<f64> {
        self.share.subscribe()
    }

    pub(crate) fn has_duty(&self, duty: Duty) -> watch::Receiver<bool> {
        self.duties[duty as usize].subscribe()
    }

    /// Takes its part of the pace and its duties. On the server they hold for longer than the lease
    /// of a node that does not come back: by then that node starts nothing.
    async fn take_part(
        &self,
        connection: &Connection,
        ask: f64,
        takes_duties: Option<Alerting>,
    ) -> Result<(), QueryError> {
        // Given up here before others can take them.
        if takes_duties.is_none() {
            for known in &self.duties {
                known.send_if_modified(|known| std::mem::replace(known, false));
            }
        }
        // Lowered before it is given up, raised after it was given.
        self.share.send_if_modified(|share| {
            let is_lower = ask < *share;
            *share = share.min(ask);
            is_lower
        });
        let rows = connection.script(&take_part_sql(self.id(), ask, takes_duties)).await?;
        let column = |name| rows.iter().filter_map(move |row| row.try_get(name).ok().flatten());
        let share = column("rate").next().and_then(|rate| rate.parse().ok());
        let share: f64 = share.ok_or(QueryError::NotMade)?;
        let duties = Duty::ALL.map(|duty| column("duty").any(|name| name == duty.as_str()));
        self.share.send_if_modified(|known| {
            let before = std::mem::replace(known, share);
            before.to_bits() != share.to_bits()
        });
        for (known, has) in self.duties.iter().zip(duties) {
            known.send_if_modified(|known| std::mem::replace(known, has) != has);
        }
        Ok(())
    }

    pub(super) fn fence(&self) {
        if !self.is_fenced.swap(true, Ordering::AcqRel) {
            tracing::error!(
                node = self.identity.name,
                "the other nodes treated this node as dead and failed the messages that it held; \
                 this node stops, so that the supervisor starts it again"
            );
        }
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire)
    }
}

/// Node of the same name in another place, as it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Namesake {
    id: i32,
    beat: i64,
}

/// Watches a node of the same name in another place, if there is one: on another machine or before
/// this boot, with another data directory or a copy of it. Returns the node once it was silent for
/// [`NAMESAKE_SILENCE`].
pub(super) async fn watch_namesake(
    connection: &Connection,
    identity: &NodeIdentity,
) -> Result<Option<Namesake>, ConnectError> {
    let NodeIdentity { name, directory, place, .. } = identity;
    let silence = NAMESAKE_SILENCE.min(identity.dead_after);
    let mut seen = None;
    let (mut since, mut last) = (boot_time(), boot_time());
    loop {
        let (directory, place) = (directory.as_slice(), place.as_bytes());
        let row = connection.query(LOOK, &[name, &directory, &place]).await?.pop();
        let Some(row) = row else { return Ok(None) };
        let namesake = Namesake { id: row.get(0), beat: row.get(1) };
        let now = boot_time();
        match seen.replace(namesake) {
            Some(before) if before != namesake => {
                return Err(ConnectError::NameTaken(name.clone()));
            }
            // A node that was suspended itself has observed nothing.
            Some(_) if now.saturating_sub(last) > LEASE => since = now,
            Some(_) if now.saturating_sub(since) >= silence => return Ok(seen),
            Some(_) => {}
            None => {
                since = now;
                tracing::warn!(
                    node = name,
                    until = %humantime::format_rfc3339_seconds(SystemTime::now() + silence),
                    "the database already has a node of this name. That node runs on another \
                     machine, started before the last boot, or uses another data directory or a \
                     copy of this one. If it gives no sign of life by the time in `until`, this \
                     node replaces it, and the messages that the other node held fail. To replace \
                     it earlier, run on another node: pillarbox node forget {name}"
                );
            }
        }
        last = now;
        sleep(BEAT).await;
    }
}

/// Joins the others under the configured name. The life before in the same place is over, because
/// the lock of the data directory is held. Of the messages that it held, this node takes those
/// whose body is there; the others belong to no node. Of the nodes of the same name elsewhere, only
/// `dead` is over, and its messages belong to no node. Returns the messages that are taken over.
pub(super) async fn join(
    node: &Node,
    connection: &Connection,
    dead: Option<Namesake>,
    bodies: &BTreeSet<MessageId>,
    now: Timestamp,
) -> Result<BTreeSet<MessageId>, ConnectError> {
    let identity = &node.identity;
    let sent = boot_time();
    let mut joined = join_once(identity, connection, dead, bodies, now).await;
    // The server may have continued with the transaction of a start that was killed: its node was
    // made after this one had checked, and is the life before.
    let name_is_there =
        joined.as_ref().is_err_and(|error| error.code() == Some(&SqlState::UNIQUE_VIOLATION));
    if name_is_there && connection.batch("ROLLBACK").await.is_ok() {
        joined = join_once(identity, connection, dead, bodies, now).await;
    }
    let Some((id, taken)) = joined? else {
        return Err(ConnectError::NameTaken(identity.name.clone()));
    };
    node.id.store(id, Ordering::Release);
    *locked(&node.confirmed) = sent;
    Ok(taken)
}

/// Makes the transaction of [`join`]; returns `None` if the name belongs to a node elsewhere.
async fn join_once(
    identity: &NodeIdentity,
    connection: &Connection,
    dead: Option<Namesake>,
    bodies: &BTreeSet<MessageId>,
    now: Timestamp,
) -> Result<Option<(i32, BTreeSet<MessageId>)>, QueryError> {
    let NodeIdentity { name, directory, place, least_dead_after, .. } = identity;
    let (directory, place) = (directory.as_slice(), place.as_bytes());
    let least_dead_after = bigint(least_dead_after.as_millis());
    connection.batch("BEGIN").await?;
    let mut predecessor = None;
    if let Some(row) = connection.query(FIND, &[name, &directory, &place]).await?.pop() {
        let namesake = Namesake { id: row.get(0), beat: row.get(2) };
        let is_of_this_place: bool = row.get(1);
        predecessor = is_of_this_place.then_some(namesake.id);
        if !is_of_this_place && dead != Some(namesake) {
            connection.batch("ROLLBACK").await?;
            return Ok(None);
        }
        let before = namesake.id;
        connection.execute(BURY, &[&before, &namesake.beat]).await?;
        for statement in LEAVE {
            connection.execute(statement, &[&before]).await?;
        }
    }
    let (version, schema) = (env!("CARGO_PKG_VERSION"), schema::version());
    let started_at = millis(now);
    let parameters: [&(dyn ToSql + Sync); 7] =
        [name, &directory, &place, &version, &schema, &started_at, &least_dead_after];
    let id: i32 = connection.query_one(JOIN, &parameters).await?.get(0);
    let mut taken = BTreeSet::new();
    if let Some(before) = predecessor {
        taken = take_over(connection, id, before, bodies).await?;
    }
    connection.batch("COMMIT").await?;
    Ok(Some((id, taken)))
}

/// Takes over messages of the life before whose bodies are there. A message without a readable
/// record, or with a final one, stays behind: no outcome of it could be stored, so it must not be
/// sent. It counts as a dead node's, and fails.
async fn take_over(
    connection: &Connection,
    node: i32,
    before: i32,
    bodies: &BTreeSet<MessageId>,
) -> Result<BTreeSet<MessageId>, QueryError> {
    let bodies: Vec<Uuid> = bodies.iter().copied().map(uuid_of).collect();
    let mut taken = BTreeSet::new();
    for bodies in bodies.chunks(TAKEN_OVER_AT_ONCE) {
        let held = connection.query(RECORDS, &[&before, &bodies]).await?;
        let queued: Vec<Uuid> =
            held.iter().filter(|row| is_queued(row)).map(|row| row.get(0)).collect();
        let rows = connection.query(TAKE_OVER, &[&node, &before, &queued]).await?;
        taken.extend(rows.iter().map(|row| message_id(row.get(0))));
    }
    Ok(taken)
}

/// Returns true if a row of [`RECORDS`] can be read and is not final.
fn is_queued(row: &Row) -> bool {
    let message = decode_message(message_id(row.get(0)), row.get(1));
    message.is_ok_and(|message| matches!(message.state, State::Queued { .. }))
}

/// Gives signs of life, and removes nodes that give none.
pub(super) async fn live(shared: Arc<Shared>) {
    let mut ticks = interval(BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection: Option<Connection> = None;
    let mut is_first = true;
    let mut seen: HashMap<i32, Peer> = HashMap::new();
    let mut last = boot_time();
    loop {
        ticks.tick().await;
        let now = boot_time();
        // A node that was suspended itself has observed nothing.
        if now.saturating_sub(last) > LEASE {
            seen.clear();
        }
        last = now;
        let had_connection = connection.as_ref().is_some_and(|open| !open.is_closed());
        let beaten = timeout(BEAT_TIMEOUT, beat(&shared, &mut connection, &mut seen)).await;
        let beaten = beaten.unwrap_or_else(|_| {
            if connection.take().is_some() {
                shared.connector.silence.note(Purpose::Lease);
            }
            Err(QueryError::TimedOut(BEAT_TIMEOUT))
        });
        match beaten {
            Ok(()) => {
                // Another server may have taken over from one that does not answer. At the start
                // there is none to leave.
                if !had_connection && !std::mem::take(&mut is_first) {
                    shared.connector.silence.server_is_back();
                    shared.connector.close_others(connection.as_ref().expect("it beat by it"));
                }
                shared.reached();
            }
            Err(QueryError::Fenced) => shared.node.fence(),
            Err(error) => {
                connection = None;
                seen.clear();
                shared.lost(&error);
            }
        }
    }
}

async fn beat(
    shared: &Shared,
    slot: &mut Option<Connection>,
    seen: &mut HashMap<i32, Peer>,
) -> Result<(), QueryError> {
    if slot.as_ref().is_none_or(Connection::is_closed) {
        *slot = Some(shared.connector.connect_for(Purpose::Lease).await?);
    }
    let connection = slot.as_ref().expect("it was made");
    let id = shared.node.id();
    let sent = boot_time();
    let load = shared.node.load();
    let (pending, demand) = (bigint(load.pending), integer(load.demand));
    let warnings = connection.warnings();
    let said = connection.query(SAY, &[&id, &pending, &load.conditions, &demand]).await?.pop();
    let Some(said) = said else { return Err(QueryError::Fenced) };
    // If the wait for the standby was cancelled, the standby may not have it.
    if connection.warnings() == warnings {
        *locked(&shared.node.confirmed) = sent;
        shared.connector.hold(connection, id, said.get(1));
    }
    shared.clock.send_replace(read_clock(connection).await?);
    let drain = if said.get(0) { DrainOrder::Begin } else { DrainOrder::End };
    shared.node.drains.send_if_modified(|known| std::mem::replace(known, drain) != drain);
    let mut peers = peers(connection, id, seen).await?;
    let now = boot_time();
    let silent = |peer: &Peer| now.saturating_sub(peer.since);
    let dead_after = shared.node.identity.dead_after;
    let is_dead = |peer: &Peer| silent(peer) >= dead_after.max(peer.status.least_dead_after);
    let dead = peers.values().filter(|peer| !peer.is_this() && is_dead(peer));
    let dead: Vec<_> = dead.cloned().collect();
    for peer in dead {
        if connection.execute(BURY, &[&peer.id, &peer.beat]).await? == 1 {
            let node = &peer.status.name;
            tracing::error!(node, "a node is dead: the messages that it held have failed");
            peers.remove(&peer.id);
        }
    }
    // The part and duties of a silent node are free by now. Until they are, the server gives only
    // the rest.
    let demands = peers.values().filter(|peer| silent(peer) < HELD);
    let demands = demands.map(|peer| peer.status.load.demand);
    let ask = part_of_pace(load.demand, demands);
    let is_alone = !peers.values().any(|peer| !peer.is_this() && silent(peer) < LEASE);
    let gives_up = shared.connector.silence.keeps_from_duties() && !is_alone;
    let takes_duties = (!gives_up).then(|| shared.memory.alerting.get());
    shared.node.take_part(connection, ask, takes_duties).await?;
    *locked(&shared.node.sight) = Arc::new(Sight { at: now, peers: peers.clone() });
    *seen = peers;
    Ok(())
}

/// Fails the messages that dead nodes held; returns their number.
pub(super) async fn recover_orphans(
    shared: &Shared,
    changing: &mpsc::Sender<Job>,
    now: Timestamp,
) -> Result<usize, QueryError> {
    let mut recovered = 0;
    loop {
        let connection = shared.readers.get().await?;
        let rows = connection.query(ORPHANS, &[&SETTLED_AT_ONCE]).await?;
        if rows.is_empty() {
            return Ok(recovered);
        }
        let fail = |row: &Row| {
            let (message, attempts) = match row.get::<_, Option<i32>>(1) {
                Some(attempts) => (CALL_LOST, attempts.unsigned_abs()),
                None => (BODY_LOST, 0),
            };
            let acceptance = Acceptance::Possible;
            let transition = Transition::BodyLost { acceptance, message, found_at: now };
            let work = Work::Record { id: message_id(row.get(0)), attempts, transition };
            answer_to(changing, move |reply| Job { work, now, reply })
        };
        for failed in join_all(rows.iter().map(fail)).await {
            match failed {
                // The body of a message that cannot be read is lost as well.
                Ok(_) | Err(StoreError::Damaged) => recovered += 1,
                Err(_) => return Err(QueryError::NotMade),
            }
        }
        let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        connection.execute(FORGET_ORPHANS, &[&ids]).await?;
    }
}

impl PostgresStore {
    pub(crate) fn node(&self) -> &Node {
        &self.shared.node
    }

    pub(crate) async fn leave(&self) {
        let left = async {
            let connection = self.shared.readers.get().await?;
            for statement in LEAVE {
                connection.execute(statement, &[&self.shared.node.id()]).await?;
            }
            Ok::<_, QueryError>(())
        };
        let left = timeout(LEAVE_LIMIT, left).await;
        if let Err(error) = left.unwrap_or(Err(QueryError::TimedOut(LEAVE_LIMIT))) {
            tracing::warn!(
                %error,
                "the node could not be removed from the database; it shows as silent until it \
                 starts again"
            );
        }
    }
}
