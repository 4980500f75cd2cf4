//! Schema: made by the first node, and brought to this version by the first newer one.

use crate::StoreOwner;
use crate::postgres::connection::Connection;
use crate::postgres::error::{ConnectError, QueryError};

/// Every version, as a step from the one before.
const STEPS: &str = include_str!("schema.sql");
/// The oldest version that can work beside nodes of this one.
const OLDEST_READER: i32 = 1;
/// Number of the advisory lock that a node holds while it makes the schema.
const LOCK: i64 = 0x7069_6c6c_6172_0001;
const LOCK_CLUSTER: &str = "SET LOCAL lock_timeout = '5s'; SELECT FROM cluster FOR UPDATE";
const UPGRADE: &str =
    "UPDATE cluster SET version = $1, oldest_reader = greatest(oldest_reader, $2)";

const EXISTS: &str = "SELECT to_regclass('cluster') IS NOT NULL";
const VERSIONS: &str = "SELECT version, oldest_reader FROM cluster";
/// The first version whose tables say whether `pillarbox dev` made them.
const FIRST_WITH_MARK: i32 = 6;
const IS_MARKED: &str = "SELECT made_by_dev FROM cluster";
const MARK: &str = "UPDATE cluster SET made_by_dev = true";
const BEGIN_CLUSTER: &str =
    "INSERT INTO cluster (version, oldest_reader, feed_id) VALUES ($1, $2, $3)";

/// Returns the statements of each step.
fn steps() -> impl Iterator<Item = &'static str> {
    STEPS.split("\n--- Version ").skip(1).filter_map(|step| Some(step.split_once('\n')?.1))
}

/// Version of the schema that this pillarbox makes: the last step.
pub(super) fn version() -> i32 {
    i32::try_from(steps().count()).expect("a few steps")
}

/// Makes the tables if there are none, and checks that this version can work on them. Refuses those
/// of another owner, and leaves them as they are.
pub(super) async fn prepare(
    connection: &Connection,
    owner: StoreOwner,
) -> Result<(), ConnectError> {
    // Another node may be doing it.
    connection.batch("BEGIN; SET LOCAL lock_timeout = '20s'").await?;
    connection.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    let refused = match (owner, found_owner(connection).await?) {
        (StoreOwner::Service, Some(StoreOwner::Dev)) => ConnectError::MadeByDev,
        (StoreOwner::Dev, Some(StoreOwner::Service)) => ConnectError::NotMadeByDev,
        _ => return extend(connection, owner).await,
    };
    connection.batch("ROLLBACK").await?;
    Err(refused)
}

/// Returns the program that made the tables; `None` if there are none.
async fn found_owner(connection: &Connection) -> Result<Option<StoreOwner>, QueryError> {
    if !connection.query_one(EXISTS, &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    let version: i32 = connection.query_one(VERSIONS, &[]).await?.get(0);
    let is_marked =
        version >= FIRST_WITH_MARK && connection.query_one(IS_MARKED, &[]).await?.get::<_, bool>(0);
    Ok(Some(if is_marked { StoreOwner::Dev } else { StoreOwner::Service }))
}

/// Makes or extends the tables in the transaction that was begun, ends it, and checks their version.
async fn extend(connection: &Connection, owner: StoreOwner) -> Result<(), ConnectError> {
    let is_new = !connection.query_one(EXISTS, &[]).await?.get::<_, bool>(0);
    if is_new {
        connection.batch(steps().next().expect("the first step")).await?;
        connection.batch("INSERT INTO feed_counter DEFAULT VALUES").await?;
        connection.execute(BEGIN_CLUSTER, &[&1_i32, &1_i32, &fastrand::i64(..)]).await?;
    }
    let row = connection.query_one(VERSIONS, &[]).await?;
    let (version, oldest_reader): (i32, i32) = (row.get(0), row.get(1));
    let own = self::version();
    let done = usize::try_from(version).unwrap_or(0);
    if version < own && !is_new {
        // Nodes lock the tables in this order, too, and do not wait longer for a step than this.
        connection.batch(LOCK_CLUSTER).await?;
    }
    for step in steps().skip(done) {
        connection.batch(step).await?;
    }
    if version < own {
        connection.execute(UPGRADE, &[&own, &OLDEST_READER]).await?;
        tracing::info!(version = own, "the tables were upgraded to the schema of this pillarbox");
    }
    if is_new && owner == StoreOwner::Dev {
        connection.batch(MARK).await?;
    }
    connection.batch("COMMIT").await?;
    if oldest_reader > own { Err(ConnectError::Newer { version }) } else { Ok(()) }
}
