//! Schema: made when the first node comes, and brought to this version by the first newer one.

use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::{ConnectError, QueryError};

/// Version of the schema that this pillarbox makes.
pub(super) const VERSION: i32 = 5;
/// The oldest version that can work beside nodes of this one.
const OLDEST_READER: i32 = 1;
/// Statements that bring a schema to the next version, from the first one on. Nodes of the version
/// before go on working meanwhile and after: a step only adds, and what it adds has defaults.
const STEPS: [&str; 4] = [
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
    include_str!("schema/5.sql"),
];
/// Number of the advisory lock that whoever makes the schema holds.
const LOCK: i64 = 0x7069_6c6c_6172_0001;
const TABLES: &str = include_str!("schema/1.sql");
const UPGRADE: &str = "UPDATE cluster SET version = $1, oldest_reader = $2";

const EXISTS: &str = "SELECT to_regclass('cluster') IS NOT NULL";
const VERSIONS: &str = "SELECT version, oldest_reader FROM cluster";
const BEGIN_CLUSTER: &str =
    "INSERT INTO cluster (version, oldest_reader, feed_id) VALUES ($1, $2, $3)";

/// Makes the tables if there are none, and checks that this version can work on them.
pub(super) async fn prepare(connection: &Connection) -> Result<(), ConnectError> {
    let (version, oldest_reader) =
        versions(connection).await.map_err(|error| ConnectError::Server(error.to_string()))?;
    if oldest_reader > VERSION {
        return Err(ConnectError::Newer { version });
    }
    Ok(())
}

async fn versions(connection: &Connection) -> Result<(i32, i32), QueryError> {
    // Another node may be at it.
    connection.batch("BEGIN; SET LOCAL lock_timeout = '20s'").await?;
    connection.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    if !connection.query_one(EXISTS, &[]).await?.get::<_, bool>(0) {
        connection.batch(TABLES).await?;
        connection.batch("INSERT INTO feed_counter DEFAULT VALUES").await?;
        let feed_id = i64::from_ne_bytes(fastrand::u64(..).to_ne_bytes());
        connection.execute(BEGIN_CLUSTER, &[&1_i32, &1_i32, &feed_id]).await?;
    }
    let row = connection.query_one(VERSIONS, &[]).await?;
    let (version, oldest_reader): (i32, i32) = (row.get(0), row.get(1));
    let done = usize::try_from(version - 1).unwrap_or(0);
    for step in STEPS.iter().skip(done) {
        connection.batch(step).await?;
    }
    if version < VERSION {
        connection.execute(UPGRADE, &[&VERSION, &OLDEST_READER]).await?;
        tracing::info!(version = VERSION, "the tables have the version of this pillarbox now");
    }
    connection.batch("COMMIT").await?;
    Ok((version, oldest_reader))
}
