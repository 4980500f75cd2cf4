//! Tests of the engine beyond the interface.

#[cfg(feature = "interop")]
mod doubt;
#[cfg(feature = "interop")]
mod encryption;
#[cfg(feature = "interop")]
mod nodes;
#[cfg(feature = "interop")]
mod pace;
#[cfg(feature = "interop")]
mod proxy;
#[cfg(feature = "interop")]
mod races;
#[cfg(feature = "interop")]
mod silence;
#[cfg(feature = "interop")]
mod standby;
#[cfg(feature = "interop")]
mod take_over;
#[cfg(feature = "interop")]
mod terms;

use crate::ACCEPTING_CONNECTIONS;
use crate::postgres::connection::Connector;
use crate::postgres::{PostgresServer, PostgresStore, uuid_of};
use pillarbox_domain::id::MessageId;

impl PostgresServer {
    /// The tests' server on a port, with a database that it makes unless it is there.
    pub(crate) async fn with_database(port: u16, name: &str) -> Self {
        let server = |database: &str| Self {
            hosts: vec![("127.0.0.1".to_owned(), port)],
            database: database.to_owned(),
            user: "pillarbox".to_owned(),
            password: None,
            authorities: None,
            accepting_connections: ACCEPTING_CONNECTIONS,
        };
        let connection = Connector::new(&server("postgres")).connect().await.unwrap();
        let rows = connection.query("SELECT FROM pg_database WHERE datname = $1", &[&name]).await;
        if rows.unwrap().is_empty() {
            connection.batch(&format!("CREATE DATABASE {name}")).await.unwrap();
        }
        server(name)
    }
}

impl PostgresStore {
    pub(crate) async fn damage_message(&self, id: MessageId) {
        const DAMAGE: &str = "UPDATE message SET record = '\\x09' WHERE id = $1 RETURNING 1";
        self.query_one(DAMAGE, &[&uuid_of(id)]).await.unwrap();
    }

    /// Takes a node for dead.
    #[cfg(feature = "interop")]
    pub(crate) async fn bury(&self, name: &str) {
        const BURY: &str = "DELETE FROM node WHERE name = $1 RETURNING 1";
        self.query_one(BURY, &[&name]).await.unwrap();
    }

    /// Rows that find messages by the provider's ids.
    pub(crate) async fn rows_of_indexes(&self) -> u64 {
        let count = "SELECT count(*) FROM sent";
        self.query_one(count, &[]).await.unwrap().get::<_, i64>(0).unsigned_abs()
    }

    pub(crate) async fn rows_of_feed(&self) -> u64 {
        const COUNT: &str = "
            SELECT (SELECT count(*) FROM feed) + (SELECT count(*) FROM overturned_failure)";
        self.query_one(COUNT, &[]).await.unwrap().get::<_, i64>(0).unsigned_abs()
    }
}
