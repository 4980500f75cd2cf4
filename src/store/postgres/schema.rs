//! Schema: made when the first node comes, and brought to this version by the first newer one.

use crate::store::postgres::connection::Connection;
use crate::store::postgres::error::{ConnectError, QueryError};

/// Version of the schema that this pillarbox makes.
const VERSION: i32 = 1;
/// The oldest version that can work beside nodes of this one.
const OLDEST_READER: i32 = 1;
/// Number of the advisory lock that whoever makes the schema holds.
const LOCK: i64 = 0x7069_6c6c_6172_0001;
const TABLES: &str = include_str!("schema.sql");

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
    connection.batch("BEGIN").await?;
    connection.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    if !connection.query_one(EXISTS, &[]).await?.get::<_, bool>(0) {
        connection.batch(TABLES).await?;
        connection.batch("INSERT INTO feed_counter DEFAULT VALUES").await?;
        let feed_id = i64::from_ne_bytes(fastrand::u64(..).to_ne_bytes());
        connection.execute(BEGIN_CLUSTER, &[&VERSION, &OLDEST_READER, &feed_id]).await?;
    }
    let row = connection.query_one(VERSIONS, &[]).await?;
    connection.batch("COMMIT").await?;
    Ok((row.get(0), row.get(1)))
}
